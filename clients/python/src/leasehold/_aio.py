"""Runs what waits for a server in a worker, for asyncio.

Not in the executor of the loop: it has a few threads, which claims that wait for minutes would take from everybody else.
"""

from __future__ import annotations

import asyncio
from typing import Callable, Optional, TypeVar

from . import _process
from ._cancel import CancelToken
from ._lease import call_in

T = TypeVar("T")


async def run(work: Callable[[CancelToken], T], undo: Optional[Callable[[T], object]] = None) -> T:
    """The result of the work. If the task is cancelled, so is the token; a result that comes too late is undone."""
    loop = asyncio.get_running_loop()
    future: asyncio.Future[T] = loop.create_future()
    cancel = CancelToken()

    def deliver(result: T) -> None:
        if not future.cancelled():
            future.set_result(result)
        elif undo is not None:
            undo(result)

    def fail(error: BaseException) -> None:
        if not future.cancelled():
            future.set_exception(error)

    def in_worker() -> None:
        try:
            result = work(cancel)
        except BaseException as error:
            failure = error
            call_in(loop, lambda: fail(failure))
        else:
            try:
                loop.call_soon_threadsafe(deliver, result)
            except RuntimeError:  # the loop is closed
                if undo is not None:
                    undo(result)

    _process.current().workers.submit(in_worker)
    try:
        return await future
    except asyncio.CancelledError:
        cancel.cancel()
        # It may have been done, and the task cancelled before it saw that.
        if undo is not None and future.done() and not future.cancelled() and future.exception() is None:
            undo(future.result())
        raise
