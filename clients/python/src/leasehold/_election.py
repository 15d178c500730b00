"""Elections: one leader at a time, which everybody can see."""

from __future__ import annotations

import asyncio
import random
from typing import TYPE_CHECKING, Any, AsyncIterator, Awaitable, Callable, Dict, Iterator, Optional, Tuple, TypeVar, Union

from . import _aio, _protocol
from ._cancel import CancelToken
from ._json import note_field
from ._lease import Lease
from ._model import Leader, Resource
from ._names import ResourceName, name_field
from ._scope import LeaseRequest
from .errors import Corrupt, Lost, Unavailable

if TYPE_CHECKING:
    from .client import Client

T = TypeVar("T")

_LOOK_ONCE = 25.0
_PAUSE_MAX = 3.0


class Election:
    """An election. The leader has a value that others can see, usually its address."""

    def __init__(self, client: Client, resource: ResourceName, ttl: float) -> None:
        self._client = client
        self._resource = resource
        self._ttl = ttl

    def candidate(
        self,
        value: Union[str, bytes],
        *,
        wait: Optional[float] = None,
        label: Optional[str] = None,
        on_lost: Optional[Callable[[Lease], Any]] = None,
    ) -> LeaseRequest:
        """A request to lead, with this value. By default it waits without a limit. The leader changes its value with ``set_note``."""
        options: Dict[str, Any] = dict(note_field(value))
        if label is not None:
            options["label"] = label
        return LeaseRequest(self._client, self._resource, ttl=self._ttl, wait=wait, options=options, on_lost=on_lost)

    def lead(
        self,
        value: Union[str, bytes],
        work: Callable[[Lease], T],
        *,
        label: Optional[str] = None,
        cancel: Optional[CancelToken] = None,
    ) -> T:
        """Waits until it leads, and does the work. If the lead is lost, it stands again, and the work begins anew.

        The work must ``check()`` the lead it is given, and let ``Lost`` out. Outages of the server do not end this.
        """
        cancel = cancel or CancelToken()
        while True:
            try:
                lead = self.candidate(value, label=label).acquire(cancel=cancel)
            except Unavailable:
                cancel.sleep(random.uniform(0.5, 1.0))
                continue
            with lead:
                try:
                    return work(lead)
                except Lost:
                    # Raised for another lease, or after the work itself gave up its lead.
                    if lead.is_held or lead.loss().why == "released":
                        raise

    async def lead_async(
        self, value: Union[str, bytes], work: Callable[[Lease], Awaitable[T]], *, label: Optional[str] = None
    ) -> T:
        """As ``lead``, for asyncio: the work is cancelled when the lead is lost."""
        while True:
            lead: Optional[Lease] = None
            try:
                async with self.candidate(value, label=label) as lead:
                    return await work(lead)
            except Lost:
                if lead is None or lead.loss().why == "released":
                    raise
            except Unavailable:
                if lead is not None:
                    raise
                await asyncio.sleep(random.uniform(0.5, 1.0))

    def leader(self) -> Optional[Leader]:
        """Who leads now."""
        return Leader.of(self._client.resource(self._resource))

    def observe(self, *, cancel: Optional[CancelToken] = None) -> Observer:
        """The leader, now and after each change: iterate over it, with ``for`` or ``async for``. Without a leader it gives None.

        It shows what the server says, a moment ago: only the leader's own lease tells who may act.
        """
        return Observer(self._client, self._resource, cancel or CancelToken())


class Observer:
    """Follows an election. Outages of the server do not end it."""

    def __init__(self, client: Client, resource: ResourceName, cancel: CancelToken) -> None:
        self._client = client
        self._resource = resource
        self._cancel = cancel
        self._cursor: Optional[str] = None
        self._seen: Optional[Tuple[Optional[Leader]]] = None

    def next(self, cancel: Optional[CancelToken] = None) -> Optional[Leader]:
        """Waits for the next change; the first call returns at once. Both this token and that of ``observe`` cancel it."""
        if cancel is None:
            return self._next(self._cancel)
        self._cancel._add(cancel.cancel)
        try:
            return self._next(cancel)
        finally:
            self._cancel._remove(cancel.cancel)

    def _next(self, cancel: CancelToken) -> Optional[Leader]:
        pause = 0.1
        while True:
            cancel.check()
            try:
                leader = self._look(cancel)
            except (Unavailable, Corrupt):
                cancel.sleep(pause * random.uniform(0.5, 1.0))
                pause = min(pause * 2, _PAUSE_MAX)
                continue
            pause = 0.1
            if self._seen is None or self._seen[0] != leader:
                self._seen = (leader,)
                return leader
            cancel.sleep(0.05)  # a wait may end early

    def _look(self, cancel: CancelToken) -> Optional[Leader]:
        wait = None if self._cursor is None else int(_LOOK_ONCE * 1000)
        timeout = self._client.timeout + (0.0 if wait is None else _LOOK_ONCE)
        name = name_field(self._resource, "name")
        call = _protocol.get("/v1/resource", timeout, **name, cursor=self._cursor, wait_ms=wait)
        try:
            resource = self._client.read_doc(call, Resource.read, cancel)
            leader = Leader.of(resource)
        except (Unavailable, Corrupt):
            self._cursor = None  # another server may not know it
            raise
        self._cursor = resource.cursor
        return leader

    def __iter__(self) -> Iterator[Optional[Leader]]:
        while True:
            yield self.next()

    async def __aiter__(self) -> AsyncIterator[Optional[Leader]]:
        while True:
            yield await _aio.run(lambda cancel: self.next(cancel))
