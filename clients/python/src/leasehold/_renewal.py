"""Renews leases in batches."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Dict, List, Tuple

from . import _clock, _protocol
from ._protocol import Kept
from ._times import Sent, renewal_timeout
from .errors import LeaseholdError, Lost, Unavailable

if TYPE_CHECKING:
    from ._lease import Lease

log = logging.getLogger("leasehold")

#: So many leases are renewed in one request; a server takes a thousand.
_BATCH_MAX = 500


def batches(leases: List[Lease]) -> List[List[Lease]]:
    """One batch for each client and size of ttl: a long one must not delay a short one."""
    groups: Dict[Tuple[int, int], List[Lease]] = {}
    for lease in leases:
        size = int(lease.ttl * 1000).bit_length()
        groups.setdefault((id(lease.client), size), []).append(lease)
    return [group[at : at + _BATCH_MAX] for group in groups.values() for at in range(0, len(group), _BATCH_MAX)]


def renew(leases: List[Lease]) -> None:
    """Renews these leases of one client. Runs in a worker."""
    claims = [lease.claim for lease in leases]
    connections = leases[0].client.connections
    timeout = renewal_timeout(min(lease.ttl for lease in leases))
    sent = Sent(_clock.now(), _clock.wall())
    try:
        answer = connections.call(_protocol.renew(claims, timeout))
        outcomes = _protocol.read_renewals(answer, claims)
    except LeaseholdError as error:
        outcomes = [error for _ in leases]
    except Exception as error:  # of the caller's own token=… function
        log.exception("a renewal failed")
        outcomes = [Unavailable(f"the renewal failed: {error}") for _ in leases]
    for lease, outcome in zip(leases, outcomes):
        if isinstance(outcome, Kept):
            lease.was_renewed(sent, outcome)
        elif isinstance(outcome, Lost):
            lease.end(outcome.why, str(outcome))
        else:
            log.warning("the lease on %s was not renewed, and will be tried again: %s", lease.resource, outcome)
            lease.was_not_renewed()
