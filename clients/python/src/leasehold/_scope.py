"""Requests: what is asked for, and the scopes in which it is held."""

from __future__ import annotations

import asyncio
import functools
import inspect
import math
import sys
import threading
from abc import ABC, abstractmethod
from contextvars import ContextVar
from types import TracebackType
from typing import TYPE_CHECKING, Any, Callable, Dict, Generic, Optional, Protocol, Type, TypeVar, Union

from . import _aio
from ._acquire import Acquisition
from ._cancel import CancelToken
from ._lease import Lease, call_in_loop
from ._names import ResourceName, key_of
from ._protocol import Claim
from .errors import Invalid, Lost

if TYPE_CHECKING:
    from .client import Client

F = TypeVar("F", bound=Callable[..., Any])


class Held(Protocol):
    """A lease, or several."""

    @property
    def is_held(self) -> bool: ...
    def loss(self) -> Lost: ...
    def _listen(self, callback: Callable[[], None]) -> Callable[[], None]: ...
    def release(self) -> None: ...
    async def release_async(self) -> None: ...
    def _release_later(self) -> bool: ...


H = TypeVar("H", bound=Held)

_current: ContextVar[Optional[Lease]] = ContextVar("leasehold_current", default=None)


class Request(ABC, Generic[H]):
    """A request. It does nothing until it is entered or acquired.

    ``with request as lease:`` and ``async with request as lease:`` hold the lease for the length of the block.
    """

    def __init__(self) -> None:
        self._scope: Optional[Union[H, _AsyncScope[H]]] = None
        #: Locked from before it is acquired until its block has ended.
        self._in_use = threading.Lock()

    @abstractmethod
    def acquire(self, *, cancel: Optional[CancelToken] = None) -> H:
        """Acquires it. Release it, or use ``with``."""

    async def acquire_async(self) -> H:
        """As ``acquire``, for asyncio. A task that is cancelled leaves nothing behind."""
        return await _aio.run(lambda cancel: self.acquire(cancel=cancel), lambda held: held._release_later())

    def __enter__(self) -> H:
        self._begin_use()
        try:
            held = self.acquire()
        except BaseException:
            self._in_use.release()
            raise
        self._scope = held
        return held

    def __exit__(
        self,
        _kind: Optional[Type[BaseException]],
        _error: Optional[BaseException],
        _trace: Optional[TracebackType],
    ) -> None:
        held = self._end_use()
        if held is not None and not isinstance(held, _AsyncScope):
            held.release()

    async def __aenter__(self) -> H:
        self._begin_use()
        try:
            held = await self.acquire_async()
        except BaseException:
            self._in_use.release()
            raise
        self._scope = _AsyncScope(held)
        return held

    async def __aexit__(
        self,
        kind: Optional[Type[BaseException]],
        error: Optional[BaseException],
        _trace: Optional[TracebackType],
    ) -> None:
        scope = self._end_use()
        if isinstance(scope, _AsyncScope):
            await scope.leave(kind, error)

    def _begin_use(self) -> None:
        if not self._in_use.acquire(blocking=False):
            raise Invalid("this request is in use: make one for each block, as in `with client.lease(…)`")

    def _end_use(self) -> Optional[Union[H, _AsyncScope[H]]]:
        scope, self._scope = self._scope, None
        if scope is not None:
            self._in_use.release()
        return scope


class _AsyncScope(Generic[H]):
    """A block that is cancelled when its lease is lost, as ``asyncio.timeout`` does it."""

    def __init__(self, held: H) -> None:
        task = asyncio.current_task()
        assert task is not None, "a coroutine runs in a task"
        self._held = held
        self._task: asyncio.Task[Any] = task
        self._is_over = False
        self._was_cancelled = False
        #: How many others have asked the task to end. Before Python 3.11 nobody counts.
        self._others = 0
        if sys.version_info >= (3, 11):
            self._others = task.cancelling()
        loop = asyncio.get_running_loop()
        self._remove = held._listen(lambda: call_in_loop(loop, self._cancel))

    def _cancel(self) -> None:
        # Once: `leave` takes back one cancellation.
        if not self._is_over and not self._was_cancelled:
            self._was_cancelled = True
            self._task.cancel()

    async def leave(self, kind: Optional[Type[BaseException]], error: Optional[BaseException]) -> None:
        self._is_over = True
        self._remove()
        is_ours = False
        if self._was_cancelled:
            others = self._others
            if sys.version_info >= (3, 11):
                others = self._task.uncancel()
            is_ours = others <= self._others and kind is not None and issubclass(kind, asyncio.CancelledError)
        if is_ours:
            loss = self._held.loss()
            self._held._release_later()
            raise loss from error
        await self._held.release_async()


class LeaseRequest(Request[Lease]):
    """A request for one lease."""

    def __init__(
        self,
        client: Client,
        resource: ResourceName,
        *,
        ttl: float,
        wait: Optional[float],
        options: Dict[str, Any],
        on_lost: Optional[Callable[[Lease], Any]] = None,
    ) -> None:
        super().__init__()
        if not (ttl > 0 and math.isfinite(ttl)):
            raise Invalid("a ttl must be greater than 0, and finite")
        if wait is not None and math.isnan(wait):
            raise Invalid("the time to wait must be a number of seconds, or None")
        self.key = key_of(resource)
        self.resource = resource
        self.ttl = ttl
        self.wait = wait
        self._client = client
        self._options = options
        self._on_lost = on_lost

    def acquire(self, *, cancel: Optional[CancelToken] = None) -> Lease:
        """Acquires the lease, waiting up to ``wait`` seconds if others hold it.

        An unanswered request may take up to the client's ``timeout`` longer. Raises ``Busy``, ``TimedOut``, ``Unavailable``, ``Denied``, ``Invalid``,
        ``Cancelled``.
        """
        return self._acquire_within(self.wait, cancel)

    def _acquire_within(self, wait: Optional[float], cancel: Optional[CancelToken]) -> Lease:
        """Acquires it, with another time to wait."""
        claim = Claim(self.resource, self.ttl, self._client.claim_options(self._options))
        lease = Acquisition(self._client, claim, wait, cancel or CancelToken()).run()
        if self._on_lost is not None:
            lease.on_lost(self._on_lost)
        return lease

    def copy(self) -> LeaseRequest:
        """Another request for the same."""
        return LeaseRequest(
            self._client,
            self.resource,
            ttl=self.ttl,
            wait=self.wait,
            options=self._options,
            on_lost=self._on_lost,
        )


def locked(make: Callable[..., LeaseRequest]) -> Callable[[F], F]:
    """Runs a function, or a coroutine function, under the lease that ``make`` asks for, from the function's own arguments."""

    def decorate(function: F) -> F:
        name = getattr(function, "__qualname__", repr(function))
        if inspect.isgeneratorfunction(function) or inspect.isasyncgenfunction(function):
            raise Invalid(f"{name} is a generator function, which would run after its lease is released: use `with` inside of it")
        if inspect.iscoroutinefunction(function):

            @functools.wraps(function)
            async def run_async(*args: Any, **kwargs: Any) -> Any:
                async with make(*args, **kwargs) as lease:
                    before = _current.set(lease)
                    try:
                        return _finished(name, await function(*args, **kwargs))
                    finally:
                        _current.reset(before)

            return run_async  # type: ignore[return-value]

        @functools.wraps(function)
        def run(*args: Any, **kwargs: Any) -> Any:
            with make(*args, **kwargs) as lease:
                before = _current.set(lease)
                try:
                    return _finished(name, function(*args, **kwargs))
                finally:
                    _current.reset(before)

        return run  # type: ignore[return-value]

    return decorate


def _finished(name: str, result: Any) -> Any:
    """The result of a function, unless it is work that begins only now."""
    if not (inspect.isawaitable(result) or inspect.isgenerator(result) or inspect.isasyncgen(result)):
        return result
    if inspect.iscoroutine(result):
        result.close()  # otherwise Python warns that it was never awaited
    kind = type(result).__name__
    raise Invalid(f"{name} returned a {kind}, whose work would run after the lease is released: decorate the function that does the work")


def current_lease() -> Lease:
    """The lease of the function that ``client.locked`` decorates and that runs now. Raises ``Invalid`` outside of one."""
    lease = _current.get()
    if lease is None:
        raise Invalid("no function that `client.locked` decorates is running")
    return lease
