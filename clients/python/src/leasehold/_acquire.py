"""Acquires a lease.

1. Ask, with the claim's own owner token. While there is time, the server waits for us, and the claim has a place in its queue.
2. Granted: begin to watch the lease. If the grant is over on arrival (this process was stopped), begin anew.
3. Queued: ask again. Its place lasts for at least a second.
4. No answer: ask again with the same owner token, after a pause. If the claim was granted meanwhile, that finds the grant.
5. The time is over: the last request leaves the queue in the same step.
6. Whatever else ends this, an exception of the caller's included: if something of the claim may be left at the server, it is released in
   the background, with a tombstone if a request of it may still be on its way.
"""

from __future__ import annotations

import math
import random
from dataclasses import replace
from typing import TYPE_CHECKING, Optional

from . import _clock, _process, _protocol
from ._cancel import CancelToken
from ._lease import Lease
from ._names import new_owner
from ._protocol import Claim, Granted
from ._times import Sent, tombstone
from .errors import Busy, Cancelled, LeaseholdError, TimedOut, Unavailable

if TYPE_CHECKING:
    from .client import Client

#: The longest wait of one request: less than what proxies allow.
_WAIT_ONCE = 25.0
_PAUSE_FIRST = 0.1
_PAUSE_MAX = 3.0
#: So many servers in a row may be draining.
_DRAINED_MAX = 3


class Acquisition:
    """One claim, until it is granted or given up."""

    def __init__(self, client: Client, claim: Claim, wait: Optional[float], cancel: CancelToken) -> None:
        self._client = client
        self._claim = claim
        self._wait = math.inf if wait is None else max(0.0, wait)
        self._ends_at = _clock.now() + self._wait
        self._cancel = cancel
        self._pause = _PAUSE_FIRST
        #: Something of the claim may be at the server.
        self._may_be_left = False
        #: A request of it may still be on its way.
        self._unanswered = False
        self._drained = 0

    def run(self) -> Lease:
        """The lease. Otherwise nothing of the claim is left, or soon will not be."""
        try:
            while True:
                lease = self._ask()
                if lease is not None:
                    return lease
        except BaseException:
            if self._may_be_left:
                self._abandon()
            raise

    def _left(self) -> float:
        return max(0.0, self._ends_at - _clock.now())

    def _ask(self) -> Optional[Lease]:
        """Asks once."""
        self._cancel.check()
        self._client.connections.check_one_store()
        left = self._left()
        is_last = left <= _WAIT_ONCE
        wait = min(left, _WAIT_ONCE)
        call = _protocol.acquire(self._claim, wait=wait, keeps_place=not is_last, timeout=self._client.timeout)
        sent = Sent(_clock.now(), _clock.wall())
        had_left, self._may_be_left = self._may_be_left, True
        try:
            answer = self._client.connections.call(call, self._cancel)
            self._unanswered |= answer.was_repeated
            verdict = _protocol.read_acquire(answer, self._claim)
        except Unavailable as error:
            self._may_be_left = had_left or error.effect == "unknown"
            self._unanswered |= error.effect == "unknown"
            # A server that drains is being replaced: also a try asks the next one.
            self._drained += error.draining
            if left <= 0 and not (error.draining and self._drained <= _DRAINED_MAX):
                raise
            self._rest(error)
            return None
        except Busy as error:
            self._may_be_left = self._unanswered
            if is_last:
                raise self._refusal(error) from None
            self._cancel.sleep(min(error.retry_after or self._pause, self._pause, left))
            return None
        except Cancelled:
            self._unanswered = True
            raise
        except LeaseholdError as error:
            self._may_be_left = had_left or error.effect == "unknown"
            raise
        self._pause = _PAUSE_FIRST
        return self._granted(verdict, sent) if isinstance(verdict, Granted) else None

    def _rest(self, error: Unavailable) -> None:
        """Waits a little before asking again."""
        pause = self._pause * random.uniform(0.5, 1.0)
        if not error.draining:
            self._pause = min(self._pause * 2, _PAUSE_MAX)
        longest = math.inf if error.draining else self._left()
        self._cancel.sleep(min(max(pause, error.retry_after or 0.0), longest))

    def _refusal(self, error: Busy) -> Busy:
        if self._wait <= 0:
            return error
        text = f"waited {self._wait:.3g} s: {error}"
        return TimedOut(text, holders=error.holders, retry_after=error.retry_after, paused=error.paused)

    def _granted(self, granted: Granted, sent: Sent) -> Optional[Lease]:
        self._client.connections.check_one_store()  # another request may have met another store meanwhile
        self._cancel.check()
        lease = Lease(self._client, self._claim, granted, sent)
        lease.bury = self._unanswered
        if lease.is_held:
            _process.current().watch(lease)
            return lease
        lease.release_later()
        if self._left() <= 0:
            raise Unavailable(f"the lease on {self._claim.resource} was over when its grant arrived", effect="none")
        self._claim = replace(self._claim, owner=new_owner())
        self._may_be_left = self._unanswered = False
        return None

    def _abandon(self) -> None:
        self._client.release_claim(self._claim, tombstone(self._claim.ttl))
