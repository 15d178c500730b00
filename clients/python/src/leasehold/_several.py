"""Several leases at once: all of them, or none."""

from __future__ import annotations

import threading
from types import TracebackType
from typing import Callable, Iterator, List, Optional, Sequence, Tuple, Type

from . import _clock
from ._cancel import CancelToken
from ._lease import Lease
from ._scope import LeaseRequest, Request
from .errors import Invalid, Lost


class LeaseSet:
    """Several leases that are held together. If one of them is lost, so is the set."""

    def __init__(self, leases: Sequence[Lease]) -> None:
        #: In the order in which they were acquired: the byte order of their keys.
        self.leases: Tuple[Lease, ...] = tuple(leases)
        #: Set when one of them is lost.
        self.lost = threading.Event()
        for lease in self.leases:
            lease.listen(self.lost.set)

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

    def listen(self, callback: Callable[[], None]) -> Callable[[], None]:
        """Calls this when one of them is lost, as ``Lease.listen``."""
        removes = [lease.listen(callback) for lease in self.leases]

        def remove() -> None:
            for each in removes:
                each()

        return remove

    def release_later(self) -> Optional[threading.Event]:
        """Releases all of them in the background."""
        for lease in reversed(self.leases):
            lease.release_later()
        return None

    def release(self) -> None:
        """Releases all of them, as ``Lease.release``."""
        _wait([lease.release_later() for lease in reversed(self.leases)], self.leases)

    async def release_async(self) -> None:
        """As ``release``, for asyncio."""
        from . import _aio

        events = [lease.release_later() for lease in reversed(self.leases)]
        await _aio.run(lambda _cancel: _wait(events, self.leases))

    def __enter__(self) -> LeaseSet:
        return self

    def __exit__(
        self,
        _kind: Optional[Type[BaseException]],
        _error: Optional[BaseException],
        _trace: Optional[TracebackType],
    ) -> None:
        self.release()


def _wait(events: List[Optional[threading.Event]], leases: Sequence[Lease]) -> None:
    ends_at = _clock.now() + max((lease.client.release_timeout for lease in leases), default=0.0)
    for event in events:
        if event is not None:
            event.wait(max(0.0, ends_at - _clock.now()))


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
        """Acquires all of them, or none. ``wait`` is for all together."""
        ends_at = None if self._wait is None else _clock.now() + self._wait
        leases: List[Lease] = []
        try:
            for request in self._requests:
                left = None if ends_at is None else max(0.0, ends_at - _clock.now())
                leases.append(request.acquire_within(left, cancel))
            for lease in leases:
                lease.check()  # the first ones may have been lost while the last ones were waited for
        except BaseException:
            for lease in reversed(leases):
                lease.release_later()
            raise
        return LeaseSet(leases)
