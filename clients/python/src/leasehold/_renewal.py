"""Renews leases in batches."""

from __future__ import annotations

import logging
from functools import partial
from typing import TYPE_CHECKING, Dict, List, Tuple, Union

from . import _clock, _protocol
from ._process import call_safely
from ._protocol import Kept
from ._times import Sent, renewal_timeout
from .errors import LeaseholdError, Lost, Unavailable

if TYPE_CHECKING:
    from ._lease import Lease

log = logging.getLogger("leasehold")

#: At most this many leases are renewed in one request; a server takes a thousand.
_BATCH_MAX = 500


def batches(leases: List[Lease]) -> List[List[Lease]]:
    """One batch for each client and size of ttl: a long one must not delay a short one."""
    groups: Dict[Tuple[int, int], List[Lease]] = {}
    for lease in leases:
        size = int(lease.ttl * 1000).bit_length()
        groups.setdefault((id(lease._client), size), []).append(lease)
    return [group[at : at + _BATCH_MAX] for group in groups.values() for at in range(0, len(group), _BATCH_MAX)]


def renew(leases: List[Lease]) -> None:
    """Renews these leases of one client. Runs in a worker."""
    claims = [lease._renewed_claim() for lease in leases]
    timeout = renewal_timeout(min(lease.ttl for lease in leases))
    call = _protocol.renew([each.claim for each in claims], timeout)
    sent = Sent(_clock.now(), _clock.wall())
    outcomes: List[Union[Kept, LeaseholdError]]
    try:
        outcomes = leases[0]._client.connections.call(call, lambda answer: _protocol.read_renewals(answer, claims))
    except LeaseholdError as error:
        outcomes = [error for _ in leases]
    except BaseException as error:  # of the program's own token=… function
        log.exception("a renewal failed")
        outcomes = [Unavailable(f"the renewal failed: {type(error).__name__}") for _ in leases]
    for lease, outcome in zip(leases, outcomes):
        call_safely(partial(_take, lease, sent, outcome))


def _take(lease: Lease, sent: Sent, outcome: Union[Kept, LeaseholdError]) -> None:
    """Takes what a renewal says about this lease."""
    if isinstance(outcome, Kept):
        lease._was_renewed(sent, outcome)
    elif isinstance(outcome, Lost):
        lease._mark_lost(outcome.why, str(outcome))
    else:
        log.warning("the lease on %s was not renewed, and will be tried again: %s", lease.resource, outcome)
        lease._was_not_renewed()
