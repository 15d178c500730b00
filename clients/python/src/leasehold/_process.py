"""What this process has for all its clients: threads, the leases that it holds, and what happens when it forks.

- One *watch* thread looks at the clocks. It ends leases at their stop-work threshold and finds those that are due for a renewal. It
  never waits for a server, so a server that hangs delays no loss signal.
- *Workers* are threads that wait for servers, and run what is called back. They end after ten idle seconds. There are as many as
  there is work, so work never waits for work.
- All of them are daemon threads: they keep no program alive.
- In a forked child none of them runs. Every lease of the parent is lost there: it is neither renewed nor released.
"""

from __future__ import annotations

import logging
import math
import os
import secrets
import threading
import weakref
from collections import deque
from functools import partial
from typing import TYPE_CHECKING, Callable, Deque, Dict, List, Optional

from . import _clock

if TYPE_CHECKING:
    from ._lease import Lease
    from .client import Client

log = logging.getLogger("leasehold")

_WORKER_IDLE = 10.0
#: The watch looks at the clocks this often at least: after a sleep of the machine, and after the calendar clock was set.
_WATCH_EVERY = 1.0
#: Events that are this near are handled together.
_WATCH_PAUSE = 0.02


class Workers:
    """Threads for what may block."""

    def __init__(self) -> None:
        self._changed = threading.Condition(threading.Lock())
        self._work: Deque[Callable[[], None]] = deque()
        self._idle = 0

    def submit(self, work: Callable[[], None]) -> None:
        """Runs it soon, in a thread of its own."""
        with self._changed:
            self._work.append(work)
            if self._idle >= len(self._work):
                self._changed.notify()
                return
        try:
            threading.Thread(target=self._run, name="leasehold-worker", daemon=True).start()
        except RuntimeError:
            # The interpreter is shutting down, or there are too many threads. Another worker may have taken it.
            self._run_one(0.0)

    def _run(self) -> None:
        while self._run_one(_WORKER_IDLE):
            pass

    def _run_one(self, patience: float) -> bool:
        with self._changed:
            self._idle += 1
            try:
                self._changed.wait_for(lambda: bool(self._work), patience)
            finally:
                self._idle -= 1
            if not self._work:
                return False
            work = self._work.popleft()
        try:
            work()
        except Exception:
            log.exception("work in the background failed")
        return True


class Process:
    """The state of this process."""

    def __init__(self) -> None:
        #: Guards the registry and every change of a lease. Held for moments only, never across I/O or a callback.
        self.lock = threading.RLock()
        self.workers = Workers()
        #: Names this process in claims: they fall silent together.
        self.id = secrets.token_hex(8)
        self.leases: Dict[int, weakref.ref[Lease]] = {}
        self.clients: weakref.WeakSet[Client] = weakref.WeakSet()
        self._wake = threading.Condition(self.lock)
        self._planned = 0.0
        self._watching = False

    def watch(self, lease: Lease) -> None:
        """Begins to watch a lease: it is renewed, and ended in time. Dropping the last reference to it ends that."""
        with self.lock:
            self.leases[id(lease)] = weakref.ref(lease)
            if not self._watching:
                self._watching = True
                threading.Thread(target=self._watch, name="leasehold-watch", daemon=True).start()
            self.poke(lease.next_event())

    def poke(self, when: float) -> None:
        """Something is to be done at this time: the watch must not sleep longer."""
        with self.lock:
            if when < self._planned:
                self._wake.notify()

    def forget(self, lease: Lease) -> None:
        """Ends watching."""
        with self.lock:
            self.leases.pop(id(lease), None)

    def live(self) -> List[Lease]:
        """The leases that are watched."""
        with self.lock:
            pairs = [(number, reference()) for number, reference in self.leases.items()]
            for number, lease in pairs:
                if lease is None:
                    self.leases.pop(number, None)
        return [lease for _, lease in pairs if lease is not None]

    def _watch(self) -> None:
        while True:
            # In a function of its own, so that no lease is kept alive while this sleeps.
            next_event = self._look()
            with self.lock:
                pause = max(_WATCH_PAUSE, next_event - _clock.now())
                self._planned = _clock.now() + pause if self.leases else math.inf
                self._wake.wait(pause if self.leases else None)
                self._planned = 0.0

    def _look(self) -> float:
        """Ends what is over, and renews what is due. Returns when to look again."""
        due: List[Lease] = []
        now, wall = _clock.now(), _clock.wall()
        next_event = now + _WATCH_EVERY
        for lease in self.live():
            if lease.end_if_over(now, wall):
                continue
            if lease.is_due(now):
                due.append(lease)
            else:
                next_event = min(next_event, lease.next_event(now))
        if due:
            self._renew(due, now)
        return min([next_event, *(lease.next_event(now) for lease in due)])

    def _renew(self, due: List[Lease], now: float) -> None:
        """Renews these leases, and those that would be due soon, in as few requests as possible."""
        from ._renewal import batches, renew

        chosen = {id(lease): lease for lease in due}
        clients = {id(lease.client) for lease in due}
        for lease in self.live():
            if id(lease.client) in clients and lease.is_due(now + lease.ttl / 10):
                chosen[id(lease)] = lease
        for batch in batches(list(chosen.values())):
            for lease in batch:
                lease.is_renewing = True
            self.workers.submit(partial(renew, batch))


_process: Optional[Process] = None
_creation = threading.Lock()


def current() -> Process:
    """The state of this process."""
    global _process
    if _process is None:
        with _creation:
            if _process is None:
                _process = Process()
    return _process


def _before_fork() -> None:
    # The child gets a copy of the registry: it must be in one piece.
    _creation.acquire()
    if _process is not None:
        _process.lock.acquire()


def _in_parent() -> None:
    if _process is not None:
        _process.lock.release()
    _creation.release()


def _in_child() -> None:
    global _process, _creation
    parent, _process, _creation = _process, None, threading.Lock()
    if parent is None:
        return
    for reference in list(parent.leases.values()):
        lease = reference()
        if lease is not None:
            lease.end_in_child()
    for client in list(parent.clients):
        client._after_fork()
        current().clients.add(client)


if hasattr(os, "register_at_fork"):
    os.register_at_fork(before=_before_fork, after_in_parent=_in_parent, after_in_child=_in_child)
