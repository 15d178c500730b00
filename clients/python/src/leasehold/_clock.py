"""The two clocks of a lease.

``now`` counts the time that the machine sleeps, where the platform has such a clock: a lease ends at the server while a
laptop is closed. ``wall`` is the calendar clock, a second watch for platforms without one.
"""

from __future__ import annotations

import sys
import time


def _reader_id() -> int | None:
    if sys.platform == "linux":
        return getattr(time, "CLOCK_BOOTTIME", None)
    if sys.platform == "darwin":
        # There, time.monotonic() stands still during sleep, and CLOCK_MONOTONIC does not.
        return getattr(time, "CLOCK_MONOTONIC", None)
    return None


_CLOCK = _reader_id()


def now() -> float:
    """Seconds on a clock that never goes back."""
    if _CLOCK is None:
        return time.monotonic()
    return time.clock_gettime(_CLOCK)


def wall() -> float:
    """Seconds on the calendar clock, which somebody may set."""
    return time.time()
