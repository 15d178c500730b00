"""When a lease is renewed, when its work must stop, and when another one may be granted. Pure functions.

With a ttl of 30 s and a request sent at 0 s::

     sent          renew                         stop          deadline   end at the server
      0 s           10 s                        24.7 s          29.7 s        30 s
      |----- ttl/3 ----|                            |---- ttl/6 ----|-- margin --|
"""

from __future__ import annotations

from typing import NamedTuple

#: A long lease is renewed this often, too, so that its holder learns of an eviction soon.
RENEW_EVERY_MAX = 60.0
#: The fixed part of the safety margin, for a short ttl.
MARGIN_MIN = 0.002
#: How much slower our clock may run than the server's while it waits for us.
WAITED_TRUST = 0.99


class Sent(NamedTuple):
    """When a request was sent: read before it was written to the connection."""

    at: float
    wall: float


class Times(NamedTuple):
    """The times of one lease, on the two clocks."""

    renew_at: float
    stop_at: float
    deadline: float
    #: ``stop_at`` on the calendar clock.
    wall_stop_at: float

    def later_of(self, other: Times) -> Times:
        """The later end of both, and the next renewal of the other.

        ``wall_stop_at`` belongs to the same answer as ``stop_at``: of two calendar times, one may be from before the clock was set back.
        """
        later = other if other.stop_at >= self.stop_at else self
        return Times(other.renew_at, later.stop_at, max(self.deadline, other.deadline), later.wall_stop_at)


def times_of(sent: Sent, *, remaining: float, ttl: float, waited: float = 0.0) -> Times:
    """The times of a lease, all in seconds.

    ``remaining`` was left when the store carried out the request, which the server sent to it ``waited`` after it had read ours.
    Nothing counts from when the answer arrived: it may have been in a buffer while this process was stopped.
    """
    waited *= WAITED_TRUST
    margin = max(ttl, remaining) / 100 + MARGIN_MIN
    deadline = sent.at + waited + max(0.0, remaining - margin)
    stop_at = deadline - ttl / 6
    # Asking again may find a grant that is some time old. Its renewal is due that much sooner.
    age = max(0.0, ttl - remaining)
    renew_at = max(sent.at, sent.at + waited + min(ttl / 3, RENEW_EVERY_MAX) - age)
    return Times(renew_at, stop_at, deadline, sent.wall + (stop_at - sent.at))


def renewal_timeout(ttl: float) -> float:
    """How long a renewal may take: less than a third of the ttl, so that it can be repeated in time."""
    return max(0.05, min(10.0, ttl * 0.3))


def renewal_retry(ttl: float) -> float:
    """How long after a failed renewal the next one is sent."""
    return max(0.05, min(2.0, ttl / 15))


def tombstone(ttl: float) -> float:
    """How long a tombstone must last: longer than any request of the claim can be delayed."""
    return min(max(2 * ttl, 180.0), 172_800.0)
