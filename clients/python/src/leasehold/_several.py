"""Several leases at once: all of them, or none."""

from __future__ import annotations

import threading
from types import TracebackType
from typing import Any, Callable, Iterator, List, Optional, Sequence, Tuple, Type

from . import _clock
from ._acquire import timed_out
from ._cancel import CancelToken
from ._lease import Lease, call_back, release_async, wait_lost
from ._scope import LeaseRequest, Request
from .errors import Busy, Cancelled, Invalid, Lost


class LeaseSet:
    """Several leases that are held together. If one of them is lost, so is the set."""

    def __init__(self, leases: Sequence[Lease]) -> None:
        #: In the order in which they were acquired: the byte order of their keys.
        self.leases: Tuple[Lease, ...] = tuple(leases)
        #: Set when one of them is lost.
        self.lost = threading.Event()
        for lease in self.leases:
            lease._also_set(self.lost)

    def __getitem__(self, resource: str) -> Lease:
        for lease in self.leases:
            if lease.resource == resource:
                return lease
        raise KeyError(resource)

    def __iter__(self) -> Iterator[Lease]:
        return iter(self.leases)

    def __len__(self) -> int:
        return len(self.leases)

    def check(self) -> None:
        """Raises ``Lost`` if one of them has ended."""
        for lease in self.leases:
            lease.check()

    @property
    def is_held(self) -> bool:
        """Whether ``check`` would pass."""
        return all(lease.is_held for lease in self.leases)

    def loss(self) -> Lost:
        """The error of the first one that has ended."""
        ended = [lease for lease in self.leases if not lease.is_held]
        return (ended or self.leases)[0].loss()

    def on_lost(self, callback: Callable[[LeaseSet], Any]) -> None:
        """Calls this once with the set when one of them is lost, as ``Lease.on_lost``."""
        self._listen(lambda: call_back(lambda: callback(self)))

    async def wait_lost(self) -> None:
        """Waits until one of them is lost."""
        await wait_lost(self._listen)

    def _listen(self, callback: Callable[[], None]) -> Callable[[], None]:
        """Calls this once when one of them is lost, as ``Lease._listen``."""
        first = threading.Lock()

        def tell() -> None:
            if first.acquire(blocking=False):
                callback()

        removes = [lease._listen(tell) for lease in self.leases]

        def remove() -> None:
            for each in removes:
                each()

        return remove

    def _release_later(self) -> bool:
        """Releases all of them in the background."""
        for lease in reversed(self.leases):
            lease._release_later()
        return False

    def release(self) -> None:
        """Releases all of them, as ``Lease.release``."""
        answers: List[threading.Event] = []
        for lease in reversed(self.leases):
            done = threading.Event()
            if lease._release_later(told=done.set):
                answers.append(done)
        ends_at = _clock.now() + max(lease._client.release_timeout for lease in self.leases)
        for done in answers:
            done.wait(max(0.0, ends_at - _clock.now()))

    async def release_async(self) -> None:
        """As ``release``, for asyncio."""
        await release_async(reversed(self.leases))

    def __enter__(self) -> LeaseSet:
        return self

    def __exit__(
        self,
        _kind: Optional[Type[BaseException]],
        _error: Optional[BaseException],
        _trace: Optional[TracebackType],
    ) -> None:
        self.release()


class SeveralRequest(Request[LeaseSet]):
    """A request for several leases."""

    def __init__(self, requests: Sequence[LeaseRequest], wait: Optional[float]) -> None:
        super().__init__()
        # In one order everywhere, so that two programs never wait for each other.
        self._requests = sorted(requests, key=lambda request: request.key.encode())
        self._wait = wait
        keys = [request.key for request in self._requests]
        if not keys:
            raise Invalid("there is nothing to acquire")
        if len(set(keys)) < len(keys):
            raise Invalid("the same resource twice would wait for itself")

    def acquire(self, *, cancel: Optional[CancelToken] = None) -> LeaseSet:
        """Acquires all of them, or none. ``wait`` is for all together. Raises ``Lost`` if one is lost while others are waited for."""
        ends_at = None if self._wait is None else _clock.now() + self._wait
        leases: List[Lease] = []
        # Cancelled by the caller, and by the loss of a lease.
        stop = CancelToken()
        removes: List[Callable[[], None]] = []
        if cancel is not None:
            cancel._add(stop.cancel)
        try:
            for request in self._requests:
                left = None if ends_at is None else max(0.0, ends_at - _clock.now())
                lease = request._acquire_within(left, stop)
                leases.append(lease)
                removes.append(lease._listen(stop.cancel))
            for lease in leases:
                lease.check()  # the first ones may have been lost while the last ones were waited for
            return LeaseSet(leases)
        except BaseException as error:
            lost = [lease.loss() for lease in leases if not lease.is_held]
            for lease in reversed(leases):
                lease._release_later()
            if isinstance(error, Cancelled) and lost and not (cancel is not None and cancel.is_cancelled):
                raise lost[0] from None
            if type(error) is Busy and (self._wait is None or self._wait > 0):
                # The time was used up by the leases before.
                raise timed_out(self._wait or 0.0, error) from None
            raise
        finally:
            for remove in removes:
                remove()
            if cancel is not None:
                cancel._remove(stop.cancel)
