"""What can go wrong, as types."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Literal

if TYPE_CHECKING:
    from ._model import ForeignLock, Holder

Effect = Literal["none", "unknown"]


def _restore(kind: type[LeaseholdError], args: tuple[Any, ...], fields: dict[str, Any]) -> LeaseholdError:
    error = kind.__new__(kind, *args)
    error.args = args
    error.__dict__.update(fields)
    return error


class LeaseholdError(Exception):
    """The base of all errors of this package."""

    #: Whether the request may have changed something at the server.
    effect: Effect = "none"
    #: What the server calls a refusal of its own, such as ``limit``, ``throttled`` or ``guarantee_too_weak``.
    kind: str | None = None

    def __reduce__(self) -> tuple[Any, ...]:
        # Celery and multiprocessing send errors to other processes.
        return _restore, (type(self), self.args, dict(self.__dict__))


class Busy(LeaseholdError):
    """Others hold the lease."""

    def __init__(
        self,
        message: str,
        *,
        holders: tuple[Holder, ...] = (),
        retry_after: float = 0.0,
        paused: bool = False,
        foreign: ForeignLock | None = None,
    ) -> None:
        super().__init__(message)
        #: Some of those who hold it.
        self.holders = holders
        #: How many seconds to wait at least before asking again; add some at random.
        self.retry_after = retry_after
        #: An operator has paused the resource.
        self.paused = paused
        #: The lock of another program that stands in the way.
        self.foreign = foreign


class TimedOut(Busy):
    """Others still hold the lease when the time to wait is over."""


class Lost(LeaseholdError):
    """The lease has ended: stop the work.

    ``why`` is ``expired`` (by the clock), ``wall_clock`` (by the calendar clock alone), ``not_there``, ``evicted``, ``buried`` (the server
    said so), ``forked`` (it belongs to the parent of this process), or ``released``.
    """

    def __init__(self, message: str, *, why: str) -> None:
        super().__init__(message)
        self.why = why


class Unavailable(LeaseholdError):
    """No answer, or none that can be believed. ``effect`` says whether the request may have been carried out."""

    def __init__(
        self, message: str, *, effect: Effect = "unknown", retry_after: float | None = None, draining: bool = False
    ) -> None:
        super().__init__(message)
        self.effect = effect
        #: How many seconds to wait before asking again, if the server said so.
        self.retry_after = retry_after
        #: The server shuts down: ask again, and another one answers.
        self.draining = draining


class Denied(LeaseholdError):
    """There is no valid API token, it does not allow this, or the server's certificate cannot be trusted."""


class Invalid(LeaseholdError):
    """The request is wrong. Asking again does not help."""


class Mismatch(Invalid):
    """The holders of a semaphore use another capacity."""

    def __init__(self, message: str, *, capacity: int | None) -> None:
        super().__init__(message)
        self.capacity = capacity


class HolderChanged(LeaseholdError):
    """An order named a grant that is gone."""

    def __init__(self, message: str, *, token: int | None) -> None:
        super().__init__(message)
        #: The token of the newest grant.
        self.token = token


class Corrupt(LeaseholdError):
    """The store has a value that cannot be read: somebody else wrote to its keys."""


class Cancelled(LeaseholdError):
    """The caller cancelled. Nothing of the claim is left, or a release that is under way ends it."""
