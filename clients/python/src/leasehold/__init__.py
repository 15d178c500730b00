"""Distributed leases for Python: ``with client.lease("report/42") as lease:``.

A client of ``leasehold serve``, without dependencies, for threads and for asyncio.
"""

from ._cancel import CancelToken
from ._election import Election, Observer
from ._lease import Lease
from ._model import FinishRequest, ForeignLock, Holder, Leader, Overview, OverviewItem, Resource, Waiter
from ._names import Key
from ._scope import LeaseRequest, current_lease
from ._several import LeaseSet, SeveralRequest
from ._version import VERSION as __version__
from .client import Client
from .errors import (
    Busy,
    Cancelled,
    Corrupt,
    Denied,
    HolderChanged,
    Invalid,
    LeaseholdError,
    Lost,
    Mismatch,
    TimedOut,
    Unavailable,
)

__all__ = [
    "Busy",
    "CancelToken",
    "Cancelled",
    "Client",
    "Corrupt",
    "Denied",
    "Election",
    "FinishRequest",
    "ForeignLock",
    "Holder",
    "HolderChanged",
    "Invalid",
    "Key",
    "Leader",
    "Lease",
    "LeaseRequest",
    "LeaseSet",
    "LeaseholdError",
    "Lost",
    "Mismatch",
    "Observer",
    "Overview",
    "OverviewItem",
    "Resource",
    "SeveralRequest",
    "TimedOut",
    "Unavailable",
    "Waiter",
    "__version__",
    "current_lease",
]
