"""A lease that is held."""

from __future__ import annotations

import asyncio
import logging
import threading
import warnings
from types import TracebackType
from typing import TYPE_CHECKING, Any, Callable, List, Optional, Type, Union

from . import _clock, _process, _protocol
from ._json import note_field
from ._model import FinishRequest
from ._names import key_of
from ._protocol import Claim, Granted, Kept
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
        self.client = client
        self.claim = claim
        #: The resource, as ``[namespace:]kind/id``.
        self.resource = claim.resource
        #: The ttl in seconds that the server gave. It may be less than was asked for.
        self.ttl = granted.ttl
        #: Set when the lease is lost. After a release it stays as it is.
        self.lost = threading.Event()
        #: An operator's request to finish, if there was one.
        self.asked: Optional[FinishRequest] = None
        #: An operator evicted this lease: it is not extended any more, and ends by its clock.
        self.evicting = False
        self.is_renewing = False
        self.bury = False
        self._granted = granted
        self._times: Times = times_of(sent, remaining=granted.remaining, ttl=granted.ttl, waited=granted.waited)
        self._why: Optional[str] = None
        self._message = ""
        self._listeners: List[Callable[[], None]] = []

    # -- what it is ----------------------------------------------------------------------------------------------------------

    @property
    def key(self) -> str:
        """The key of the resource: leases are acquired in the byte order of this."""
        return key_of(self.resource)

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
        if self.end_if_over(_clock.now(), _clock.wall()):
            raise self.loss()

    @property
    def is_held(self) -> bool:
        """Whether ``check`` would pass."""
        return not self.end_if_over(_clock.now(), _clock.wall())

    @property
    def remaining(self) -> float:
        """How many seconds of work are left if no renewal succeeds; 0 if it has ended."""
        return max(0.0, self._times.stop_at - _clock.now()) if self.is_held else 0.0

    async def wait_lost(self) -> None:
        """Waits until the lease is lost."""
        loop = asyncio.get_running_loop()
        future: asyncio.Future[None] = loop.create_future()

        def wake() -> None:
            if not future.done():
                future.set_result(None)

        remove = self.listen(lambda: call_in(loop, wake))
        try:
            await future
        finally:
            remove()

    # -- what its holder does ------------------------------------------------------------------------------------------------

    def set_note(self, note: Union[str, bytes]) -> None:
        """Replaces the note that others can read, and renews the lease."""
        self.check()
        sent = Sent(_clock.now(), _clock.wall())
        try:
            answer = self.client.connections.call(_protocol.set_note(self.claim, note_field(note), self.client.timeout))
            self.was_renewed(sent, _protocol.read_renewal(answer, self.claim))
        except Lost as error:
            self.end(error.why, str(error))
            raise

    async def set_note_async(self, note: Union[str, bytes]) -> None:
        """As ``set_note``, for asyncio."""
        from . import _aio

        await _aio.run(lambda _cancel: self.set_note(note))

    def release(self, *, keep_for: Optional[float] = None) -> None:
        """Releases the lease. From now on ``check`` fails. With ``keep_for`` nobody gets it for so many seconds more.

        Returns when the server has answered, after ``release_timeout`` at the latest. Never raises because of the server: the lease then
        ends with its ttl. What it raises is an interrupt of the caller, and the release goes on.
        """
        done = self.release_later(keep_for)
        if done is not None:
            done.wait(self.client.release_timeout)

    async def release_async(self, *, keep_for: Optional[float] = None) -> None:
        """As ``release``, for asyncio. The release goes on if the task is cancelled."""
        done = self.release_later(keep_for)
        if done is not None:
            from . import _aio

            limit = self.client.release_timeout
            await _aio.run(lambda _cancel: done.wait(limit))

    def release_later(self, keep_for: Optional[float] = None) -> Optional[threading.Event]:
        """Releases the lease in the background. The event says when; without one there is nothing to wait for."""
        with _process.current().lock:
            was_held = self._why is None
            if self._why in ("released", "forked"):
                return None
            if was_held:
                self._why, self._message = "released", ""
            _process.current().forget(self)
        done = threading.Event()
        bury = tombstone(self.claim.ttl) if self.bury else None
        self.client.release_claim(self.claim, bury, keep_for, done)
        # Nobody waits for the release of a lease that is lost.
        return done if was_held else None

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

    def listen(self, callback: Callable[[], None]) -> Callable[[], None]:
        """Calls this once when the lease is lost, in whatever thread notices it. It must not block. Returns what removes it."""
        with _process.current().lock:
            if self._why is None:
                self._listeners.append(callback)
                return lambda: self._remove(callback)
            is_lost = self.lost.is_set()
        if is_lost:
            callback()
        return lambda: None

    def _remove(self, callback: Callable[[], None]) -> None:
        with _process.current().lock:
            if callback in self._listeners:
                self._listeners.remove(callback)

    def on_lost(self, callback: Callable[[Lease], Any]) -> None:
        """Calls this with the lease when it is lost, in a thread of its own. Not in a forked child."""

        def run() -> None:
            try:
                callback(self)
            except Exception:
                log.exception("a function for a lost lease failed")

        self.listen(lambda: _process.current().workers.submit(run))

    def next_event(self, now: float = 0.0) -> float:
        """When the watch has something to do."""
        times = self._times
        return times.stop_at if self.is_renewing else min(times.stop_at, max(now, times.renew_at))

    def is_due(self, now: float) -> bool:
        """Whether it should be renewed."""
        return not self.is_renewing and not self.evicting and self._why is None and self._times.renew_at <= now

    def end_if_over(self, now: float, wall: float) -> bool:
        """Whether it has ended; ends it if the clocks say so."""
        if self._why is not None:
            return True
        times = self._times
        if now >= times.stop_at:
            self.end("evicted" if self.evicting else "expired")
        elif wall >= times.wall_stop_at:
            self.end("wall_clock")
        return self._why is not None

    def was_renewed(self, sent: Sent, kept: Kept) -> None:
        """The server has extended it."""
        times = times_of(sent, remaining=kept.remaining, ttl=kept.ttl)
        with _process.current().lock:
            self.ttl = kept.ttl
            self._times = self._times.later_of(times)
            self.is_renewing = False
            self.asked = kept.asked or self.asked
            self.evicting = self.evicting or kept.evicting
            _process.current().poke(self.next_event())

    def was_not_renewed(self) -> None:
        """It is tried again soon."""
        with _process.current().lock:
            self._times = self._times._replace(renew_at=_clock.now() + renewal_retry(self.ttl))
            self.is_renewing = False
            _process.current().poke(self.next_event())

    def end(self, why: str, message: str = "") -> None:
        """Ends it, once and for all. Says so to those who listen."""
        process = _process.current()
        with process.lock:
            self.is_renewing = False
            if self._why is not None:
                return
            self._why, self._message = why, message and f"the lease on {self.resource} has ended: {message}"
            process.forget(self)
            listeners, self._listeners = self._listeners, []
            self.lost.set()
        for callback in listeners:
            callback()

    def end_in_child(self) -> None:
        """This process is a forked child: the lease stays with the parent."""
        if self._why is None:
            self._why = "forked"
        self._listeners = []
        # Another thread of the parent may have held its lock.
        reset = getattr(self.lost, "_at_fork_reinit", None)
        if reset is not None:
            reset()
        self.lost.set()

    def __del__(self) -> None:
        if getattr(self, "_why", "") is None:
            warnings.warn(f"{self!r} was dropped and not released: it ends with its ttl", ResourceWarning, stacklevel=2)

    def __repr__(self) -> str:
        state = "held" if self._why is None else self._why
        return f"<Lease {self.resource} {state}>"


def call_in(loop: asyncio.AbstractEventLoop, callback: Callable[[], None]) -> None:
    """Calls this in the thread of the loop, unless that has ended."""
    try:
        loop.call_soon_threadsafe(callback)
    except RuntimeError:
        pass  # the loop is closed, and nobody waits
