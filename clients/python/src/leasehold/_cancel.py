"""Cancels a wait from another thread."""

from __future__ import annotations

import threading
from typing import Callable, List

from .errors import Cancelled


class CancelToken:
    """Cancels waiting claims, from any thread, at once.

    >>> cancel = CancelToken()
    >>> threading.Timer(5, cancel.cancel).start()                   # doctest: +SKIP
    >>> client.lease("report/42", wait=60).acquire(cancel=cancel)   # doctest: +SKIP
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._event = threading.Event()
        self._callbacks: List[Callable[[], None]] = []

    @property
    def is_cancelled(self) -> bool:
        """Whether ``cancel`` was called."""
        return self._event.is_set()

    def cancel(self) -> None:
        """Cancels. What waits with this token raises ``Cancelled``."""
        with self._lock:
            self._event.set()
            callbacks, self._callbacks = self._callbacks, []
        for callback in callbacks:
            callback()

    def check(self) -> None:
        """Raises ``Cancelled`` if it is."""
        if self.is_cancelled:
            raise Cancelled("the caller cancelled")

    def sleep(self, seconds: float) -> None:
        """Sleeps, unless it is cancelled."""
        self._event.wait(max(0.0, min(seconds, threading.TIMEOUT_MAX)))
        self.check()

    def _add(self, callback: Callable[[], None]) -> None:
        """Calls this when it is cancelled, or now."""
        with self._lock:
            if not self._event.is_set():
                self._callbacks.append(callback)
                return
        callback()

    def _remove(self, callback: Callable[[], None]) -> None:
        with self._lock:
            if callback in self._callbacks:
                self._callbacks.remove(callback)
