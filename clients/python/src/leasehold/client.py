"""A client of ``leasehold serve``."""

from __future__ import annotations

import os
import socket
from types import TracebackType
from typing import Any, Callable, Dict, Iterator, List, Literal, Optional, Tuple, Type, TypeVar, Union

from . import _clock, _process, _protocol
from ._cancel import CancelToken
from ._election import Election
from ._json import Doc, note_field
from ._lease import Lease, log
from ._model import Overview, Resource
from ._names import ResourceName, key_of, name_field
from ._protocol import Call, Claim
from ._scope import F, LeaseRequest, locked
from ._several import SeveralRequest
from ._transport import Connections, Token
from .errors import Denied, Invalid, LeaseholdError, Unavailable

T = TypeVar("T")

Level = Literal["best-effort", "quorum", "database", "consensus"]
Action = Literal["ask", "evict", "evict-now", "evict-foreign", "pause", "resume", "resize"]

#: How long a release is tried again in the background.
_RELEASE_FOR = 30.0
_TIMEOUT_MAX = 86400.0


class Client:
    """A client of a server at ``url``, or of several behind one address.

    ``token`` is an API token, or a function that returns one (asked for each request, for tokens that change). ``ca`` is a file with the
    certificates of the server's authority, ``cert`` a file with a client certificate, or a pair of files with certificate and key. ``label`` is
    shown to those who wait for us, and so is ``host``, by default the name of this one. With ``level`` a store that guarantees less refuses
    every claim: ``Invalid``, with the kind ``guarantee_too_weak``. ``timeout`` bounds the answer to a request, ``release_timeout`` the end of a block.

    Safe to use from several threads, and in a forked child: leases of the parent are lost there, and new ones work.
    Making a client asks the server nothing.
    """

    def __init__(
        self,
        url: str = "http://127.0.0.1:7420",
        *,
        token: Token = None,
        ca: Optional[str] = None,
        cert: Union[str, Tuple[str, str], None] = None,
        label: Optional[str] = None,
        host: Optional[str] = None,
        level: Optional[Level] = None,
        timeout: float = 10.0,
        release_timeout: float = 5.0,
    ) -> None:
        if not (0 < timeout <= _TIMEOUT_MAX and 0 < release_timeout <= _TIMEOUT_MAX):
            raise Invalid(f"a timeout must be greater than 0 and at most {_TIMEOUT_MAX:.0f} s")
        self.connections = Connections(url, token=token, ca=ca, cert=cert)
        self.timeout = timeout
        self.release_timeout = release_timeout
        self._label = label
        self._level = level
        self._host = host or socket.gethostname()
        process = _process.current()
        with process.lock:
            process.clients.add(self)

    # -- leases --------------------------------------------------------------------------------------------------------------

    def lease(
        self,
        resource: ResourceName,
        *,
        ttl: float = 30.0,
        wait: Optional[float] = 10.0,
        note: Union[str, bytes, None] = None,
        label: Optional[str] = None,
        on_lost: Optional[Callable[[Lease], Any]] = None,
    ) -> LeaseRequest:
        """A request for the lease on ``[namespace:]kind/id``, held by one at a time. A ``Key`` names a resource whose id is hashed.

        It lasts ``ttl`` seconds, and is renewed in the background until it is released. If others hold it, wait up to ``wait`` seconds in the
        server's queue; None waits without a limit, 0 not at all. Others can read the ``note``. ``on_lost`` is called with the lease, in a thread of its
        own, when it is lost.
        """
        return self._request(resource, None, ttl, wait, note, label, on_lost)

    def try_lease(self, resource: ResourceName, *, ttl: float = 30.0, **options: Any) -> LeaseRequest:
        """As ``lease``, without waiting: ``Busy`` if others hold it."""
        return self.lease(resource, ttl=ttl, wait=0.0, **options)

    def semaphore(
        self,
        resource: ResourceName,
        *,
        capacity: int,
        weight: int = 1,
        ttl: float = 30.0,
        wait: Optional[float] = 10.0,
        note: Union[str, bytes, None] = None,
        label: Optional[str] = None,
        on_lost: Optional[Callable[[Lease], Any]] = None,
    ) -> LeaseRequest:
        """A request for ``weight`` of a ``capacity``, which must be the same for everybody."""
        if not 1 <= weight <= capacity:
            raise Invalid(f"weight must be between 1 and the capacity ({capacity}), got {weight}")
        return self._request(resource, {"weight": weight, "capacity": capacity}, ttl, wait, note, label, on_lost)

    def read(
        self,
        resource: ResourceName,
        *,
        ttl: float = 30.0,
        wait: Optional[float] = 10.0,
        note: Union[str, bytes, None] = None,
        label: Optional[str] = None,
        on_lost: Optional[Callable[[Lease], Any]] = None,
    ) -> LeaseRequest:
        """A request to read: many may, while nobody writes."""
        return self._request(resource, "read", ttl, wait, note, label, on_lost)

    def write(
        self,
        resource: ResourceName,
        *,
        ttl: float = 30.0,
        wait: Optional[float] = 10.0,
        note: Union[str, bytes, None] = None,
        label: Optional[str] = None,
        on_lost: Optional[Callable[[Lease], Any]] = None,
    ) -> LeaseRequest:
        """A request to write: one may, while nobody reads."""
        return self._request(resource, "write", ttl, wait, note, label, on_lost)

    def _request(
        self,
        resource: ResourceName,
        share: Union[str, Dict[str, int], None],
        ttl: float,
        wait: Optional[float],
        note: Union[str, bytes, None],
        label: Optional[str],
        on_lost: Optional[Callable[[Lease], Any]],
    ) -> LeaseRequest:
        options: Dict[str, Any] = {} if note is None else dict(note_field(note))
        if share is not None:
            options["share"] = share
        if label is not None:
            options["label"] = label
        return LeaseRequest(self, resource, ttl=ttl, wait=wait, options=options, on_lost=on_lost)

    def all(self, *requests: LeaseRequest, wait: Optional[float] = 10.0) -> SeveralRequest:
        """A request for several leases: all of them, or none. ``wait`` is for all together, and replaces that of each."""
        return SeveralRequest(requests, wait)

    def locked(self, resource: Union[ResourceName, Callable[..., ResourceName]], **options: Any) -> Callable[[F], F]:
        """Runs the decorated function, or coroutine function, under a lease. ``options`` are those of ``lease``.

        The resource may be a function of the arguments: ``@client.locked(lambda report_id: f"report/{report_id}")``.
        ``leasehold.current_lease()`` is the lease, inside.
        """
        if not callable(resource):
            key_of(resource)  # a mistake is seen at once
            return locked(lambda *_args, **_kwargs: self.lease(resource, **options))
        return locked(lambda *args, **kwargs: self.lease(resource(*args, **kwargs), **options))

    def election(self, resource: ResourceName, *, ttl: float = 30.0) -> Election:
        """An election on this resource."""
        key_of(resource)
        return Election(self, resource, ttl)

    # -- for operators -------------------------------------------------------------------------------------------------------

    def resource(self, resource: ResourceName) -> Resource:
        """A resource as it is now."""
        key_of(resource)
        return self.read_doc(_protocol.get("/v1/resource", self.timeout, **name_field(resource, "name")), Resource.read)

    def list(self, prefix: str = "") -> Iterator[Resource]:
        """All resources that are in use, in key order, straight from the store."""
        after: Optional[str] = None
        while True:
            call = _protocol.get("/v1/resources", self.timeout, prefix=prefix or None, after=after, limit=200)
            resources, after = self.read_doc(call, _read_page)
            yield from resources
            if after is None:
                return

    def overview(
        self,
        q: Optional[str] = None,
        *,
        kind: Optional[str] = None,
        sort: Literal["wait", "hold", "name", "waiters"] = "wait",
        limit: int = 50,
        after: Optional[str] = None,
    ) -> Overview:
        """Numbers about all resources, and a page of those whose names have ``q`` in them, as the server sampled them a moment ago."""
        call = _protocol.get("/v1/overview", self.timeout, q=q, kind=kind, sort=sort, limit=limit, after=after)
        return self.read_doc(call, Overview.read)

    def order(
        self,
        action: Action,
        resource: ResourceName,
        *,
        why: str,
        token: Optional[int] = None,
        any: bool = False,
        within: Optional[float] = None,
        lasting: Optional[float] = None,
        capacity: Optional[int] = None,
        value_hash: Optional[str] = None,
    ) -> None:
        """An operator's order, which is written to the audit trail with ``why``. It is never sent twice.

        ``ask`` and the evictions name the grant by its ``token``, or take ``any``. ``evict-now`` and ``evict-foreign`` can make two run at once.
        """
        body: Dict[str, Any] = {
            "action": action,
            **name_field(resource),
            "why": why,
            "token": None if token is None else str(token),
            "any": True if any else None,
            "within_ms": None if within is None else _protocol.milliseconds(within),
            "lasting_ms": None if lasting is None else _protocol.milliseconds(lasting),
            "capacity": capacity,
            "value_hash": value_hash,
        }
        self.read_doc(_protocol.order(body, self.timeout), lambda doc: doc)

    def info(self) -> Dict[str, Any]:
        """The store, its limits, and what this client may do, as the server says it."""
        return self.read_doc(_protocol.get("/v1/info", self.timeout), lambda doc: doc.fields)

    def close(self) -> None:
        """Closes idle connections. Leases that are held go on, and so can the client."""
        self.connections.close()

    def __enter__(self) -> Client:
        return self

    def __exit__(
        self,
        _kind: Optional[Type[BaseException]],
        _error: Optional[BaseException],
        _trace: Optional[TracebackType],
    ) -> None:
        self.close()

    def __repr__(self) -> str:
        return f"<leasehold.Client {self.connections.server}>"

    # -- for the other modules -----------------------------------------------------------------------------------------------

    def claim_options(self, options: Dict[str, Any]) -> Dict[str, Any]:
        """The fields of a claim that say who we are, and the given ones."""
        ours: Dict[str, Any] = {"host": self._host, "pid": os.getpid(), "process": _process.current().id}
        if self._label is not None:
            ours["label"] = self._label
        if self._level is not None:
            ours["level"] = self._level
        return {**ours, **options}

    def read_doc(self, call: Call, read: Callable[[Doc], T], cancel: Optional[CancelToken] = None) -> T:
        """Sends a query, and reads its answer."""
        return self.connections.call(call, lambda answer: _protocol.read_reply(answer, read), cancel)

    def release_claim(
        self,
        claim: Claim,
        tombstone_for: Optional[float],
        kept_ms: Optional[int] = None,
        told: Callable[[], None] = lambda: None,
    ) -> None:
        """Releases a claim in the background, detached from what cancels its caller. ``told`` is called after the first try."""
        process = _process.current()
        end = process.begin_release(self.release_timeout)
        call = _protocol.release(claim, tombstone_for=tombstone_for, kept_ms=kept_ms, timeout=self.release_timeout)

        def first() -> Optional[LeaseholdError]:
            try:
                return self._try_release(call, claim)
            finally:
                told()
                end()

        def run() -> None:
            ends_at = _clock.now() + min(_RELEASE_FOR, claim.ttl)
            wait = CancelToken()
            pause = 0.2
            error = first()
            while error is not None:
                if _clock.now() + pause >= ends_at or not isinstance(error, Unavailable):
                    warn(error)
                    return
                wait.sleep(pause)
                pause = min(pause * 2, 5.0)
                error = self._try_release(call, claim)

        def warn(why: object) -> None:
            log.warning("the lease on %s was not released, and ends with its ttl: %s", claim.text, why)

        if process.workers.submit(run):
            return
        if _process.is_ending():
            # No thread can be started any more, and there will be no other time.
            error = first()
        else:
            # The caller may be an event loop, which must not wait here.
            told()
            end()
            error = Unavailable("no thread can be started")
        if error is not None:
            warn(error)

    def _try_release(self, call: Call, claim: Claim) -> Optional[LeaseholdError]:
        try:
            self.connections.call(call, lambda answer: _protocol.read_release(answer, claim))
        except LeaseholdError as error:
            return error
        except Exception as error:  # of the program's own token=… function, whose message may have the token in it
            return Denied(f"the function for the API token raised {type(error).__name__}")
        return None

    def _after_fork(self) -> None:
        self.connections.after_fork()


def _read_page(doc: Doc) -> Tuple[List[Resource], Optional[str]]:
    return [Resource.read(entry) for entry in doc.docs("resources")], doc.opt_text("next")
