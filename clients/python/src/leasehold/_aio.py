"""Runs what waits for a server in a worker, for asyncio.

Not in the executor of the loop: it has a few threads, which claims that wait for minutes would take from everybody else.
"""

from __future__ import annotations

import asyncio
import threading
from typing import Callable, List, Optional, TypeVar

from . import _process
from ._cancel import CancelToken
from ._lease import call_in_loop
from .errors import Unavailable

T = TypeVar("T")

#: How long the end of the program waits for a claim that was cancelled.
_GIVE_UP = 5.0


async def run(work: Callable[[CancelToken], T], undo: Optional[Callable[[T], object]] = None) -> T:
    """The result of the work. If the task is cancelled, so is the token; a result that comes too late is undone.

    Raises ``Unavailable`` if no thread can be started.
    """
    loop = asyncio.get_running_loop()
    future: asyncio.Future[T] = loop.create_future()
    cancel = CancelToken()

    def deliver(result: T) -> None:
        if not future.cancelled():
            future.set_result(result)
        else:
            undo_late(result)

    def fail(error: BaseException) -> None:
        if not future.cancelled():
            future.set_exception(error)

    def in_worker() -> None:
        try:
            result = work(cancel)
        except BaseException as error:
            failure = error
            call_in_loop(loop, lambda: fail(failure))
        else:
            if cancel.is_cancelled:
                undo_late(result)
            else:
                try:
                    loop.call_soon_threadsafe(deliver, result)
                except RuntimeError:  # the loop is closed
                    undo_late(result)
        finally:
            is_over.set()
            for end in ends:
                end()

    def undo_late(result: T) -> None:
        if undo is not None:
            undo(result)

    process = _process.current()
    is_over = threading.Event()
    ends: List[Callable[[], None]] = []
    if not process.workers.submit(in_worker):
        raise Unavailable("no thread can be started, so nothing was sent", effect="none")
    try:
        return await future
    except asyncio.CancelledError:
        if undo is not None:
            # If the program ends now, it waits until the claim is given up and its release is under way.
            ends.append(process.begin_release(_GIVE_UP))
            if is_over.is_set():
                ends[0]()
        cancel.cancel()
        # It may have been done, and the task cancelled before it saw that.
        if undo is not None and future.done() and not future.cancelled() and future.exception() is None:
            undo(future.result())
        raise
