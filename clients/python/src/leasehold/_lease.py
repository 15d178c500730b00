"""A lease that is held."""

from __future__ import annotations

import asyncio
import logging
import threading
import warnings
from types import TracebackType
from typing import TYPE_CHECKING, Any, Callable, Iterable, List, Optional, Tuple, Type, Union

from . import _clock, _process, _protocol
from ._json import note_field
from ._model import FinishRequest
from ._process import call_safely
from ._protocol import Claim, Granted, Kept, RenewedClaim
from ._times import Sent, Times, renewal_retry, times_of, tombstone
from .errors import Invalid, Lost

if TYPE_CHECKING:
    from .client import Client

log = logging.getLogger("leasehold")

_WHY = {
    "expired": "it could not be renewed in time",
    "wall_clock": "the calendar clock says that it is over",
    "forked": "it belongs to the parent of this process",
    "released": "it was released",
    "not_there": "the server does not know it any more",
    "evicted": "an operator evicted it",
    "buried": "its claim was cancelled",
}


class Lease:
    """A lease that this process holds, and renews in the background, until it is released or lost.

    It is lost when ``check()`` raises: at the latest a sixth of the ttl before anybody else can be granted.
    """

    def __init__(self, client: Client, claim: Claim, granted: Granted, sent: Sent) -> None:
        self._client = client
        self._claim = claim
        #: The resource, as ``[namespace:]kind/id``; its key, if its id is hashed.
        self.resource = claim.text
        #: The ttl in seconds that the server gave. It may be less than was asked for.
        self.ttl = granted.ttl
        #: Set when the lease is lost. After a release it stays as it is.
        self.lost = threading.Event()
        #: An operator's request to finish, if there was one.
        self.asked: Optional[FinishRequest] = None
        #: An operator evicted this lease: it is not extended any more, and ends by its clock.
        self.evicting = False
        self._is_renewing = False
        #: A request of the claim may still be on its way, so its release leaves a tombstone.
        self._leave_tombstone = False
        self._granted = granted
        self._times: Times = times_of(sent, remaining=granted.remaining, ttl=granted.ttl, waited=granted.waited)
        self._why: Optional[str] = None
        self._message = ""
        self._listeners: List[Callable[[], None]] = []
        #: Set when the lease is lost, in a forked child, too.
        self._events: List[threading.Event] = [self.lost]

    # -- what it is ----------------------------------------------------------------------------------------------------------

    @property
    def key(self) -> str:
        """The key of the resource: leases are acquired in the byte order of this."""
        return self._claim.key

    @property
    def token(self) -> int:
        """The fencing token: higher than those of all earlier grants of this resource. Raises ``Invalid`` for a shared lease."""
        if self._granted.token is None:
            raise Invalid(f"the lease on {self.resource} is shared: it has a number, and no token")
        return self._granted.token

    @property
    def pass_(self) -> str:
        """What the holder shows to a fence: token, hash of the owner, resource. Raises ``Invalid`` for a shared lease."""
        if self._granted.pass_ is None:
            raise Invalid(f"the lease on {self.resource} is shared: it has no pass")
        return self._granted.pass_

    @property
    def number(self) -> Optional[int]:
        """The number of a shared lease. It orders nothing."""
        return self._granted.number

    @property
    def is_shared(self) -> bool:
        """Whether others may hold it at the same time."""
        return self._granted.token is None

    # -- whether it is held --------------------------------------------------------------------------------------------------

    def check(self) -> None:
        """Raises ``Lost`` if the lease has ended. Call it before every effect: it reads two clocks, and asks nobody."""
        if self._end_if_over(_clock.now(), _clock.wall()):
            raise self.loss()

    @property
    def is_held(self) -> bool:
        """Whether ``check`` would pass."""
        return not self._end_if_over(_clock.now(), _clock.wall())

    @property
    def remaining(self) -> float:
        """How many seconds of work are left if no renewal succeeds; 0 if it has ended."""
        return max(0.0, self._times.stop_at - _clock.now()) if self.is_held else 0.0

    async def wait_lost(self) -> None:
        """Waits until the lease is lost."""
        await wait_lost(self._listen)

    # -- what its holder does ------------------------------------------------------------------------------------------------

    def set_note(self, note: Union[str, bytes]) -> None:
        """Replaces the note that others can read, and renews the lease."""
        self.check()
        sent = Sent(_clock.now(), _clock.wall())
        call = _protocol.set_note(self._claim, note_field(note), self._client.timeout)
        try:
            kept = self._client.connections.call(call, lambda answer: _protocol.read_renewal(answer, self._renewed_claim()))
            self._was_renewed(sent, kept)
        except Lost as error:
            self._mark_lost(error.why, str(error))
            raise self.loss() from None

    async def set_note_async(self, note: Union[str, bytes]) -> None:
        """As ``set_note``, for asyncio."""
        from . import _aio

        await _aio.run(lambda _cancel: self.set_note(note))

    def release(self, *, keep_for: Optional[float] = None) -> None:
        """Releases the lease. From now on ``check`` fails. With ``keep_for`` nobody gets it for so many seconds more.

        Returns when the server has answered, after ``release_timeout`` at the latest. Never raises because of the server: the lease then
        ends with its ttl. What it raises is an interrupt of the caller, and the release goes on.
        """
        done = threading.Event()
        if self._release_later(keep_for, done.set):
            done.wait(self._client.release_timeout)

    async def release_async(self, *, keep_for: Optional[float] = None) -> None:
        """As ``release``, for asyncio. The release goes on if the task is cancelled."""
        await release_async([self], keep_for)

    def _release_later(self, keep_for: Optional[float] = None, told: Callable[[], None] = lambda: None) -> bool:
        """Releases the lease in the background. Returns whether to wait for the server's answer, after which ``told`` is called."""
        kept_ms = None if keep_for is None else _protocol.milliseconds(keep_for)
        with _process.current().lock:
            was_held = self._why is None
            if self._why in ("released", "forked"):
                return False
            if was_held:
                self._why, self._message = "released", ""
            _process.current().forget(self)
        tombstone_for = tombstone(self._claim.ttl) if self._leave_tombstone else None
        self._client.release_claim(self._claim, tombstone_for, kept_ms, told)
        # Nobody waits for the release of a lease that is lost.
        return was_held

    def __enter__(self) -> Lease:
        return self

    def __exit__(
        self,
        _kind: Optional[Type[BaseException]],
        _error: Optional[BaseException],
        _trace: Optional[TracebackType],
    ) -> None:
        self.release()

    # -- what happens to it: called by the watch and the workers -------------------------------------------------------------

    def loss(self) -> Lost:
        """The error that says why it has ended."""
        why = self._why or "expired"
        text = self._message or f"the lease on {self.resource} has ended: {_WHY.get(why, why)}"
        return Lost(text, why=why)

    def _listen(self, callback: Callable[[], None]) -> Callable[[], None]:
        """Calls this once when the lease is lost, in the thread that notices it. It must not block. Returns what removes it."""
        with _process.current().lock:
            if self._why is None:
                self._listeners.append(callback)
                return lambda: self._remove(callback)
            is_lost = self.lost.is_set()
        if is_lost:
            call_safely(callback)
        return lambda: None

    def _renewed_claim(self) -> RenewedClaim:
        return RenewedClaim(self._claim, self._granted.grant)

    def _also_set(self, event: threading.Event) -> None:
        """Sets this event, too, when the lease is lost."""
        with _process.current().lock:
            self._events.append(event)
            if self.lost.is_set():
                event.set()

    def _remove(self, callback: Callable[[], None]) -> None:
        with _process.current().lock:
            if callback in self._listeners:
                self._listeners.remove(callback)

    def on_lost(self, callback: Callable[[Lease], Any]) -> None:
        """Calls this with the lease when it is lost, in a thread of its own. Not in a forked child."""
        self._listen(lambda: call_back(lambda: callback(self)))

    def _next_event(self, now: float = 0.0) -> float:
        """When the watch has something to do."""
        times = self._times
        return times.stop_at if self._is_renewing or self.evicting else min(times.stop_at, max(now, times.renew_at))

    def _is_due(self, now: float) -> bool:
        """Whether it should be renewed."""
        return not self._is_renewing and not self.evicting and self._why is None and self._times.renew_at <= now

    def _end_if_over(self, now: float, wall: float) -> bool:
        """Whether it has ended; ends it if the clocks say so."""
        if self._why is not None:
            return True
        times = self._times
        if now >= times.stop_at:
            self._mark_lost("evicted" if self.evicting else "expired")
        elif wall >= times.wall_stop_at:
            self._mark_lost("wall_clock")
        return self._why is not None

    def _was_renewed(self, sent: Sent, kept: Kept) -> None:
        """The server has extended it."""
        times = times_of(sent, remaining=kept.remaining, ttl=kept.ttl)
        with _process.current().lock:
            self.ttl = kept.ttl
            self._times = self._times.later_of(times)
            self._is_renewing = False
            self.asked = kept.asked or self.asked
            self.evicting = self.evicting or kept.evicting
            _process.current().poke(self._next_event())

    def _was_not_renewed(self) -> None:
        """It is tried again soon."""
        with _process.current().lock:
            self._times = self._times._replace(renew_at=_clock.now() + renewal_retry(self.ttl))
            self._is_renewing = False
            _process.current().poke(self._next_event())

    def _mark_lost(self, why: str, message: str = "") -> None:
        """Ends it, once and for all. Says so to those who listen."""
        process = _process.current()
        with process.lock:
            self._is_renewing = False
            if self._why is not None:
                return
            self._why, self._message = why, message and f"the lease on {self.resource} has ended: {message}"
            # A request of the claim that is still on its way could be granted anew.
            self._leave_tombstone |= why == "not_there"
            process.forget(self)
            listeners, self._listeners = self._listeners, []
            for event in self._events:
                event.set()
        for callback in listeners:
            call_safely(callback)

    def _end_in_child(self) -> None:
        """This process is a forked child: the lease stays with the parent."""
        if self._why is None:
            self._why = "forked"
        self._listeners = []
        for event in self._events:
            # Another thread of the parent may have held its lock.
            reset = getattr(event, "_at_fork_reinit", None)
            if reset is not None:
                reset()
            event.set()

    def __del__(self) -> None:
        if getattr(self, "_why", "") is None:
            warnings.warn(f"{self!r} was dropped and not released: it ends with its ttl", ResourceWarning, stacklevel=2)

    def __repr__(self) -> str:
        state = "held" if self._why is None else self._why
        return f"<Lease {self.resource} {state}>"


def call_in_loop(loop: asyncio.AbstractEventLoop, callback: Callable[[], None]) -> None:
    """Calls this in the thread of the loop, unless that has ended."""
    try:
        loop.call_soon_threadsafe(callback)
    except RuntimeError:
        pass  # the loop is closed, and nobody waits


def call_back(work: Callable[[], object]) -> None:
    """Runs a function of the program in a thread of its own."""
    if not _process.current().workers.submit(lambda: call_safely(work)):
        log.error("there is no thread for a function that was given to `on_lost`, so it is not called")


def _future_of(loop: asyncio.AbstractEventLoop) -> Tuple[asyncio.Future[None], Callable[[], None]]:
    """A future, and a function for any thread that ends it."""
    future: asyncio.Future[None] = loop.create_future()

    def wake() -> None:
        if not future.done():
            future.set_result(None)

    return future, lambda: call_in_loop(loop, wake)


async def wait_lost(listen: Callable[[Callable[[], None]], Callable[[], None]]) -> None:
    """Waits until what is listened to is lost."""
    future, wake = _future_of(asyncio.get_running_loop())
    remove = listen(wake)
    try:
        await future
    finally:
        remove()


async def release_async(leases: Iterable[Lease], keep_for: Optional[float] = None) -> None:
    """Releases all of them, and waits for the answers, for the longest ``release_timeout``."""
    loop = asyncio.get_running_loop()
    answers: List[asyncio.Future[None]] = []
    longest = 0.0
    for lease in leases:
        future, wake = _future_of(loop)
        if lease._release_later(keep_for, wake):
            answers.append(future)
            longest = max(longest, lease._client.release_timeout)
    if answers:
        await asyncio.wait(answers, timeout=longest)
