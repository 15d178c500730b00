"""Cancels a wait from another thread, or from a signal handler."""

from __future__ import annotations

import threading
from typing import Callable, List

from .errors import Cancelled


class CancelToken:
    """Cancels waiting claims at once, from any thread and from signal handlers.

    >>> cancel = CancelToken()
    >>> threading.Timer(5, cancel.cancel).start()                   # doctest: +SKIP
    >>> client.lease("report/42", wait=60).acquire(cancel=cancel)   # doctest: +SKIP
    """

    # A signal handler runs in the main thread, between any two steps of the code below, so no step may hold a lock that `cancel` needs.
    # Each operation on the list, the flag and the latch is atomic. A callback may be called twice.

    def __init__(self) -> None:
        #: Locked until it is cancelled.
        self._latch = threading.Lock()
        self._latch.acquire()
        self._is_cancelled = False
        self._callbacks: List[Callable[[], None]] = []

    @property
    def is_cancelled(self) -> bool:
        """Whether ``cancel`` was called."""
        return self._is_cancelled

    def cancel(self) -> None:
        """Cancels. What waits with this token raises ``Cancelled``."""
        self._is_cancelled = True
        self._open_latch()
        callbacks, self._callbacks = self._callbacks, []
        for callback in callbacks:
            callback()

    def check(self) -> None:
        """Raises ``Cancelled`` if it is."""
        if self._is_cancelled:
            raise Cancelled("the caller cancelled")

    def sleep(self, seconds: float) -> None:
        """Sleeps, unless it is cancelled."""
        self.check()
        if self._latch.acquire(timeout=max(0.0, min(seconds, threading.TIMEOUT_MAX))):
            self._open_latch()  # for the next one
        self.check()

    def _open_latch(self) -> None:
        try:
            self._latch.release()
        except RuntimeError:
            pass  # it is open

    def _add(self, callback: Callable[[], None]) -> None:
        """Calls this when it is cancelled, or now."""
        self._callbacks.append(callback)
        # `cancel` may have looked at the list before the line above.
        if self._is_cancelled:
            callback()

    def _remove(self, callback: Callable[[], None]) -> None:
        try:
            self._callbacks.remove(callback)
        except ValueError:
            pass  # it was called
