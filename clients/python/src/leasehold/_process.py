"""What this process has for all its clients: threads, the leases that it holds, and what happens when it forks.

- One *watch* thread looks at the clocks. It ends leases at their stop-work threshold and finds those that are due for a renewal. It
  never waits for a server, so a server that hangs delays no loss signal.
- *Workers* are threads that wait for servers, and run what is called back. They end after ten idle seconds. There are as many as
  there is work, so work never waits for work.
- All of them are daemon threads: they keep no program alive. At its end it waits for releases that are under way, up to
  ``release_timeout``.
- An exception of what is called back, or of one lease, ends neither the watch nor a worker.
- In a forked child none of them runs. Every lease of the parent is lost there: it is neither renewed nor released.
"""

from __future__ import annotations

import atexit
import logging
import math
import os
import secrets
import sys
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
#: How soon it looks again after an exception.
_WATCH_AGAIN = 0.1
#: Events that are this near are handled together.
_WATCH_PAUSE = 0.02


class Workers:
    """Threads for what may block."""

    def __init__(self) -> None:
        self._changed = threading.Condition(threading.Lock())
        self._work: Deque[Callable[[], None]] = deque()
        self._idle = 0

    def submit(self, work: Callable[[], None]) -> bool:
        """Runs it soon, in a thread of its own. Returns whether there is one: not if the program ends, or has too many threads."""
        with self._changed:
            self._work.append(work)
            if self._idle >= len(self._work):
                self._changed.notify()
                return True
        try:
            threading.Thread(target=self._run, name="leasehold-worker", daemon=True).start()
        except RuntimeError:
            with self._changed:
                if work not in self._work:
                    return True  # another worker has taken it
                self._work.remove(work)
            return False
        return True

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
        call_safely(work)
        return True


def call_safely(work: Callable[[], object]) -> None:
    """Calls this, and logs what it raises."""
    try:
        work()
    except BaseException:  # also SystemExit, which would end a thread of ours
        log.exception("a function that leasehold calls in the background failed")


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
        #: Until when the watch sleeps. Infinite while it looks: what changes then, it may have looked at already.
        self._planned = math.inf
        #: The earliest time that it was told meanwhile.
        self._told = math.inf
        self._watching = False
        self._released = threading.Condition(self.lock)
        #: Releases that are under way, and until when the end of the program waits for each.
        self._releases: Dict[object, float] = {}

    def watch(self, lease: Lease) -> None:
        """Begins to watch a lease: it is renewed, and ended in time. Dropping the last reference to it ends that.

        Raises ``RuntimeError`` if no thread can be started.
        """
        with self.lock:
            if not self._watching:
                threading.Thread(target=self._watch, name="leasehold-watch", daemon=True).start()
                self._watching = True
            self.leases[id(lease)] = weakref.ref(lease)
            self.poke(lease._next_event())

    def poke(self, when: float) -> None:
        """Something is to be done at this time: the watch must not sleep longer."""
        with self.lock:
            if when < self._planned:
                self._told = min(self._told, when)
                self._wake.notify()

    def begin_release(self, at_most: float) -> Callable[[], None]:
        """The end of the program waits for a release, for so many seconds at most. Returns what ends that."""
        release = object()

        def end() -> None:
            with self.lock:
                self._releases.pop(release, None)
                self._released.notify_all()

        with self.lock:
            self._releases[release] = _clock.now() + at_most
        return end

    def await_releases(self) -> None:
        """Waits for the releases that are under way."""
        with self.lock:
            while self._releases:
                left = max(self._releases.values()) - _clock.now()
                if left <= 0:
                    return
                self._released.wait(left)

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
            with self.lock:
                self._planned = self._told = math.inf
            # In a function of its own, so that no lease is kept alive while this sleeps.
            next_event = self._look()
            with self.lock:
                pause = max(_WATCH_PAUSE, min(next_event, self._told) - _clock.now())
                self._planned = _clock.now() + pause if self.leases else math.inf
                self._wake.wait(pause if self.leases else None)

    def _look(self) -> float:
        """Ends what is over, and renews what is due. Returns when to look again."""
        now, wall = _clock.now(), _clock.wall()
        next_event = now + _WATCH_EVERY
        try:
            due: List[Lease] = []
            for lease in self.live():
                if lease._end_if_over(now, wall):
                    continue
                if lease._is_due(now):
                    due.append(lease)
                else:
                    next_event = min(next_event, lease._next_event(now))
            if due:
                self._renew(due, now)
            return min([next_event, *(lease._next_event(now) for lease in due)])
        except BaseException:
            # Such as MemoryError. The other leases need this thread.
            log.exception("the watch over the leases failed, and tries again")
            return now + _WATCH_AGAIN

    def _renew(self, due: List[Lease], now: float) -> None:
        """Renews these leases, and those that would be due soon, in as few requests as possible."""
        from ._renewal import batches, renew

        chosen = {id(lease): lease for lease in due}
        clients = {id(lease._client) for lease in due}
        for lease in self.live():
            if id(lease._client) in clients and lease._is_due(now + lease.ttl / 10):
                chosen[id(lease)] = lease
        for batch in batches(list(chosen.values())):
            for lease in batch:
                lease._is_renewing = True
            is_running = False
            try:
                is_running = self.workers.submit(partial(renew, batch))
            finally:
                if not is_running:
                    for lease in batch:
                        lease._was_not_renewed()


def is_ending() -> bool:
    """Whether the interpreter shuts down: its main thread has ended."""
    return sys.is_finalizing() or not threading.main_thread().is_alive()


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
            lease._end_in_child()
    for client in list(parent.clients):
        client._after_fork()
        current().clients.add(client)


def _at_exit() -> None:
    if _process is not None:
        _process.await_releases()
        for client in list(_process.clients):
            client.close()


atexit.register(_at_exit)
if hasattr(os, "register_at_fork"):
    os.register_at_fork(before=_before_fork, after_in_parent=_in_parent, after_in_child=_in_child)
