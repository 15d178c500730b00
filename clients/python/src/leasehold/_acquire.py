"""Acquires a lease.

1. Ask, with the claim's own owner token. While there is time, the server waits for us, and the claim has a place in its queue.
2. Granted: begin to watch the lease. If the grant is over on arrival (this process was stopped), begin anew.
3. Queued: ask again. Its place lasts for at least a second.
4. No answer: ask again with the same owner token, after a pause. If the claim was granted meanwhile, that finds the grant.
5. The server knows a tombstone or an eviction of the owner token: begin anew, with a new one.
6. The time is over: the last request leaves the queue in the same step.
7. If anything else ends this, also an exception of the caller: if the claim may hold the lease or a place in the queue, it is released in
   the background, with a tombstone if a request of it may still be on its way.
"""

from __future__ import annotations

import math
import random
from dataclasses import replace
from typing import TYPE_CHECKING, Optional, Union

from . import _clock, _process, _protocol
from ._cancel import CancelToken
from ._lease import Lease
from ._names import new_owner
from ._protocol import Answer, Claim, Granted, Queued
from ._times import Sent, tombstone
from .errors import Busy, Cancelled, LeaseholdError, Lost, TimedOut, Unavailable

if TYPE_CHECKING:
    from .client import Client

#: The longest wait of one request: less than what proxies allow.
_WAIT_ONCE = 25.0
_PAUSE_FIRST = 0.1
_PAUSE_MAX = 3.0
#: A place in the queue lasts for a second: the claim asks again well before that.
_PLACE_PAUSE_MAX = 0.4
#: A try is repeated this often while servers drain.
_DRAINED_MAX = 3
#: A try is repeated this often because its owner token cannot be used again.
_USED_UP_MAX = 3


class Acquisition:
    """One claim, until it is granted or given up."""

    def __init__(self, client: Client, claim: Claim, wait: Optional[float], cancel: CancelToken) -> None:
        self._client = client
        self._claim = claim
        self._wait = math.inf if wait is None else max(0.0, wait)
        self._ends_at = _clock.now() + self._wait
        self._cancel = cancel
        self._pause = _PAUSE_FIRST
        #: The claim may hold the lease, or a place in the queue.
        self._may_hold_or_queue = False
        #: A request of it may still be on its way.
        self._unanswered = False
        self._was_granted = False
        self._drained = 0
        self._used_up = 0

    def run(self) -> Lease:
        """The lease. Otherwise nothing of the claim is left, or it is being released in the background."""
        try:
            while True:
                lease = self._ask()
                if lease is not None:
                    return lease
        except BaseException as error:
            # An earlier request of the claim may have been carried out.
            if isinstance(error, Unavailable) and (self._unanswered or self._was_granted):
                error.effect = "unknown"
            self._abandon()
            raise

    def _time_left(self) -> float:
        return max(0.0, self._ends_at - _clock.now())

    def _ask(self) -> Optional[Lease]:
        """Asks once."""
        self._cancel.check()
        self._client.connections.check_one_store()
        left = self._time_left()
        is_last = left <= _WAIT_ONCE
        wait = min(left, _WAIT_ONCE)
        call = _protocol.acquire(self._claim, wait=wait, keeps_place=not is_last, timeout=self._client.timeout)
        sent = Sent(_clock.now(), _clock.wall())
        before, self._may_hold_or_queue = self._may_hold_or_queue, True
        try:
            verdict = self._client.connections.call(call, self._read, self._cancel)
        except Unavailable as error:
            self._may_hold_or_queue = before or error.effect == "unknown"
            self._unanswered |= error.effect == "unknown"
            # A server that drains is being replaced: also a try asks the next one.
            self._drained += error.draining
            if left <= 0 and not (error.draining and self._drained <= _DRAINED_MAX):
                raise
            self._pause_before_retry(error)
            return None
        except Busy as error:
            self._may_hold_or_queue = self._unanswered
            if is_last:
                raise self._refusal(error) from None
            # It has no place, although it asked for one: the server takes no more waiters, or a proxy answered.
            self._cancel.sleep(min(self._pause * random.uniform(0.5, 1.0), left))
            self._pause = min(self._pause * 2, _PAUSE_MAX)
            return None
        except Lost as error:
            # It was evicted, or has a tombstone: this owner token cannot be used again.
            self._may_hold_or_queue = before
            self._used_up += 1
            if left <= 0 and self._used_up > _USED_UP_MAX:
                self._unanswered = self._was_granted = False
                raise Unavailable(str(error), effect="none") from error
            self._begin_anew()
            self._pause_before_retry(Unavailable(str(error), effect="none"))
            return None
        except Cancelled as error:
            self._may_hold_or_queue = before or error.effect == "unknown"
            self._unanswered |= error.effect == "unknown"
            raise
        except LeaseholdError as error:
            self._may_hold_or_queue = before or error.effect == "unknown"
            raise
        if isinstance(verdict, Granted):
            return self._granted(verdict, sent)
        self._pause_while_queued(_clock.now() - sent.at)
        return None

    def _read(self, answer: Answer) -> Union[Granted, Queued]:
        self._unanswered |= answer.was_repeated
        return _protocol.read_acquire(answer, self._claim)

    def _pause_before_retry(self, error: Unavailable) -> None:
        """Waits longer each time, and not less than the server asks for."""
        pause = self._pause * random.uniform(0.5, 1.0)
        self._pause = min(self._pause * 2, _PAUSE_MAX)
        longest = self._time_left() if self._wait > 0 else math.inf
        self._cancel.sleep(min(max(pause, (error.retry_after or 0.0) * random.uniform(1.0, 1.25)), longest))

    def _pause_while_queued(self, took: float) -> None:
        """A server that waits for us needs no pause; one that answers at once must not be asked without end."""
        if took >= _PLACE_PAUSE_MAX:
            self._pause = _PAUSE_FIRST
            return
        pause = min(self._pause * random.uniform(0.5, 1.0), _PLACE_PAUSE_MAX, max(self._time_left(), _PAUSE_FIRST))
        self._pause = min(self._pause * 2, _PAUSE_MAX)
        self._cancel.sleep(pause)

    def _refusal(self, error: Busy) -> Busy:
        return error if self._wait <= 0 else timed_out(self._wait, error)

    def _granted(self, granted: Granted, sent: Sent) -> Optional[Lease]:
        self._was_granted = True
        # The server cannot have waited for longer than the answer took.
        granted = replace(granted, waited=min(granted.waited, _clock.now() - sent.at))
        self._client.connections.check_one_store()  # another request may have met another store meanwhile
        self._cancel.check()
        lease = Lease(self._client, self._claim, granted, sent)
        lease._leave_tombstone = self._unanswered
        try:
            if lease.is_held:
                _process.current().watch(lease)
                return lease
        except RuntimeError as error:
            self._forget(lease)
            raise Unavailable(f"no thread can be started, which would renew the lease on {lease.resource}") from error
        self._forget(lease)
        if self._time_left() <= 0:
            text = (
                f"the lease on {lease.resource} was granted too late: its ttl of {granted.ttl:.3g} s had run out before the answer came."
                " Use a longer ttl"
            )
            raise Unavailable(text, effect="none")
        return None

    def _forget(self, lease: Lease) -> None:
        """Releases a lease that nobody gets, and begins anew."""
        lease._release_later()
        self._may_hold_or_queue = False
        self._begin_anew()

    def _begin_anew(self) -> None:
        """The next request has a new owner token."""
        self._abandon()
        self._claim = replace(self._claim, owner=new_owner())
        self._unanswered = self._was_granted = False

    def _abandon(self) -> None:
        """Releases what the claim may have left at the server, in the background."""
        if self._may_hold_or_queue:
            self._may_hold_or_queue = False
            self._client.release_claim(self._claim, tombstone(self._claim.ttl))


def timed_out(wait: float, error: Busy) -> TimedOut:
    """The error of a claim that has waited for so long."""
    text = f"waited {wait:.3g} s: {error}"
    copy = TimedOut(
        text, holders=error.holders, retry_after=error.retry_after, paused=error.paused, foreign=error.foreign
    )
    copy.effect, copy.kind = error.effect, error.kind
    return copy
