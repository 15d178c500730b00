"""Requests and answers of the HTTP API, as pure functions: no connection, no clock, no thread.

1. A request is a ``Call``. Each one may be sent again as it is, except orders.
2. An answer that does not name its claim (key and owner hash) is never a grant: its effect is unknown.
3. A refusal is a problem document, which becomes one of the errors of this package.
"""

from __future__ import annotations

import json
import math
from dataclasses import dataclass, field, replace
from typing import Any, Callable, Dict, List, Optional, Sequence, TypeVar, Union
from urllib.parse import urlencode

from ._json import Doc
from ._model import FinishRequest, ForeignLock, Holder
from ._names import ResourceName, key_of, name_field, new_owner, owner_hash
from .errors import (
    Busy,
    Corrupt,
    Denied,
    Effect,
    HolderChanged,
    Invalid,
    LeaseholdError,
    Lost,
    Mismatch,
    Unavailable,
)

T = TypeVar("T")

#: How much of an answer is read.
ANSWER_MAX = 64 << 20


@dataclass(frozen=True)
class Call:
    """A request."""

    method: str
    path: str
    #: Owner tokens are in it.
    body: bytes = field(default=b"", repr=False)
    #: How long the answer may take, in seconds.
    at_most: float = 10.0
    #: Renewals and releases have connections of their own, which waiting claims do not use.
    is_upkeep: bool = False
    may_repeat: bool = True


@dataclass
class Answer:
    """An answer of a leasehold server, on our store, to our request."""

    status: int
    body: bytes
    #: The request was sent twice, because the first time its connection broke.
    was_repeated: bool = False
    #: It cannot be believed: its connection is not used again. Set by what reads the answer.
    drop_connection: bool = False


@dataclass(frozen=True)
class Claim:
    """What one claim asks for. Its owner token is secret, and the same in all its requests."""

    resource: ResourceName
    ttl: float
    options: Dict[str, Any] = field(default_factory=lambda: {})
    owner: str = field(default_factory=new_owner, repr=False)

    @property
    def key(self) -> str:
        return key_of(self.resource)

    @property
    def text(self) -> str:
        """The resource as people write it, and as a pass has it."""
        return str(self.resource)

    def fields(self) -> Dict[str, Any]:
        """The fields that name it in a request."""
        return {**name_field(self.resource), "owner": self.owner}

    def is_named_by(self, doc: Doc) -> bool:
        """Whether an answer is about this claim."""
        return doc.opt_text("key") == self.key and doc.opt_text("owner_hash") == owner_hash(self.owner)


@dataclass(frozen=True)
class Granted:
    """The claim holds the resource."""

    ttl: float
    remaining: float
    waited: float
    token: Optional[int]
    number: Optional[int]
    pass_: Optional[str]

    def at_most(self, asked: float) -> Granted:
        """No lease lasts longer than was asked for."""
        return replace(self, ttl=min(self.ttl, _whole(asked)), remaining=min(self.remaining, _whole(asked)))

    @property
    def grant(self) -> Optional[int]:
        """The number of the grant: its token, if it is exclusive."""
        return self.number if self.token is None else self.token


@dataclass(frozen=True)
class RenewedClaim:
    """A claim that holds this grant."""

    claim: Claim
    grant: Optional[int]


@dataclass(frozen=True)
class Queued:
    """The claim has a place in the queue: ask again."""


@dataclass(frozen=True)
class Kept:
    """The lease was renewed."""

    ttl: float
    remaining: float
    asked: Optional[FinishRequest]
    evicting: bool

    def at_most(self, asked: float) -> Kept:
        """As ``Granted.at_most``."""
        return replace(self, ttl=min(self.ttl, _whole(asked)), remaining=min(self.remaining, _whole(asked)))


def milliseconds(seconds: float) -> int:
    """At least one: zero is refused."""
    if not math.isfinite(seconds):
        raise Invalid(f"a time must be a finite number of seconds, not {seconds}")
    return max(1, round(seconds * 1000))


def _whole(ttl: float) -> float:
    """A ttl as it is sent, in seconds."""
    return milliseconds(ttl) / 1000


def _post(path: str, body: Dict[str, Any], at_most: float, is_upkeep: bool = False) -> Call:
    return Call("POST", path, json.dumps(body).encode(), at_most, is_upkeep)


def _get(path: str, query: Dict[str, Any], at_most: float) -> Call:
    given = {name: value for name, value in query.items() if value is not None}
    return Call("GET", f"{path}?{urlencode(given)}" if given else path, at_most=at_most)


def acquire(claim: Claim, *, wait: float, keeps_place: bool, timeout: float) -> Call:
    """Asks for the lease. The server waits for up to ``wait``; with ``keeps_place`` the claim stays in the queue after that."""
    body: Dict[str, Any] = {**claim.fields(), "ttl_ms": milliseconds(claim.ttl), **claim.options}
    if wait > 0:
        body["wait_ms"] = int(wait * 1000)
    if keeps_place:
        body["when_blocked"] = "queue"
    return _post("/v1/acquire", body, wait + timeout)


def read_acquire(answer: Answer, claim: Claim) -> Union[Granted, Queued]:
    """The verdict on a claim, or the error of its refusal."""
    doc = _document(answer, claim)
    verdict = doc.opt_text("verdict")
    if verdict == "queued" and answer.status == 202:
        return Queued()
    if verdict != "granted" or answer.status != 200:
        raise _unbelievable(answer, f"the answer to a claim on {claim.text} has the unknown verdict {verdict!r}")
    try:
        granted = Granted(
            ttl=doc.seconds("ttl_ms"),
            remaining=doc.seconds("remaining_ms"),
            waited=doc.seconds("waited_ms"),
            token=doc.opt_token("token"),
            number=doc.opt_token("number"),
            pass_=doc.opt_text("pass"),
        ).at_most(claim.ttl)
    except ValueError as error:
        raise _unreadable(answer, error) from error
    if granted.pass_ is not None:
        wanted = f"{granted.token} {owner_hash(claim.owner)} {claim.text}"
        if granted.pass_ != wanted:
            raise _unbelievable(answer, f"the pass of {claim.text} does not fit its claim")
    return granted


def renew(claims: Sequence[Claim], timeout: float) -> Call:
    """Renews several leases in one request."""
    leases = [{**claim.fields(), "ttl_ms": milliseconds(claim.ttl)} for claim in claims]
    # The server answers a little earlier than we stop waiting, for what its store has answered by then.
    body = {"leases": leases, "timeout_ms": milliseconds(timeout * 0.9)}
    return _post("/v1/renew", body, timeout, is_upkeep=True)


def set_note(claim: Claim, note: Dict[str, str], timeout: float) -> Call:
    """Renews one lease, and replaces its note."""
    body: Dict[str, Any] = {**claim.fields(), "ttl_ms": milliseconds(claim.ttl), **note}
    return _post("/v1/renew", body, timeout, is_upkeep=True)


def read_renewals(answer: Answer, claims: Sequence[RenewedClaim]) -> List[Union[Kept, LeaseholdError]]:
    """The outcome for each of the leases."""
    try:
        doc = _document(answer, None)
    except Lost as error:
        # A refusal of the whole list names no lease.
        raise _unbelievable(answer, f"the answer to a list of renewals is that of one lease: {error}") from error
    try:
        entries = doc.docs("leases")
    except ValueError as error:
        raise _unreadable(answer, error) from error
    if len(entries) != len(claims):
        raise _unbelievable(answer, "the answer to a renewal has another number of leases")
    return [_renewal(answer, entry, claim) for entry, claim in zip(entries, claims)]


def read_renewal(answer: Answer, claim: RenewedClaim) -> Kept:
    """The outcome for a single lease."""
    outcome = _kept(answer, _document(answer, claim.claim), claim)
    if isinstance(outcome, LeaseholdError):
        raise outcome
    return outcome


def _renewal(answer: Answer, entry: Doc, renewed: RenewedClaim) -> Union[Kept, LeaseholdError]:
    is_refusal = entry.opt_text("kind") is not None
    # The store's failure names no claim; its verdict, good or bad, must name ours.
    if not renewed.claim.is_named_by(entry) and not (is_refusal and entry.opt_text("verdict") is None):
        return _unbelievable(answer, "the answer to a renewal names another claim")
    return error_of(entry) if is_refusal else _kept(answer, entry, renewed)


def _kept(answer: Answer, doc: Doc, renewed: RenewedClaim) -> Union[Kept, LeaseholdError]:
    verdict = doc.opt_text("verdict")
    if verdict == "queued":
        return Lost(f"the claim on {renewed.claim.text} only waits in the queue", why="not_there")
    if verdict != "kept":
        return _unbelievable(answer, f"the answer to a renewal has the unknown verdict {verdict!r}")
    try:
        grant = doc.opt_token("grant")
        asked = doc.doc("asked")
        kept = Kept(
            ttl=doc.seconds("ttl_ms"),
            remaining=doc.seconds("remaining_ms"),
            asked=None if asked is None else FinishRequest.read(asked),
            evicting=doc.flag("evicting"),
        ).at_most(renewed.claim.ttl)
    except ValueError as error:
        return _unreadable(answer, error)
    if grant is None:
        return _unbelievable(answer, "the answer to a renewal names no grant")
    if grant != renewed.grant:
        # The store had lost the lease, and granted a delayed request of the claim. Others may have held it between.
        return Lost(f"the server knows another grant of {renewed.claim.text}, {grant} and not {renewed.grant}", why="not_there")
    return kept


def release(claim: Claim, *, tombstone_for: Optional[float], kept_ms: Optional[int], timeout: float) -> Call:
    """Ends the claim. With ``tombstone_for`` a delayed request of it is refused for so long. ``kept_ms`` keeps the resource closed."""
    body = claim.fields()
    if tombstone_for is not None:
        body["bury_ms"] = milliseconds(tombstone_for)
    if kept_ms is not None:
        body["keep_for_ms"] = kept_ms
    return _post("/v1/release", body, timeout, is_upkeep=True)


def read_release(answer: Answer, claim: Claim) -> None:
    """An error, unless the claim has ended."""
    verdict = _document(answer, claim).opt_text("verdict")
    if verdict not in ("released", "already_gone"):
        raise _unbelievable(answer, f"the answer to a release has the unknown verdict {verdict!r}")


def get(path: str, timeout: float, **query: Any) -> Call:
    """A query. Parameters that are None are left out."""
    return _get(path, query, timeout)


def order(body: Dict[str, Any], timeout: float) -> Call:
    """An operator's order, which is never sent twice."""
    given = {name: value for name, value in body.items() if value is not None}
    return Call("POST", "/v1/orders", json.dumps(given).encode(), timeout, may_repeat=False)


def read_reply(answer: Answer, read: Callable[[Doc], T]) -> T:
    """What ``read`` makes of the answer to a query or an order."""
    doc = _document(answer, None)
    try:
        return read(doc)
    except ValueError as error:
        raise _unreadable(answer, error) from error


def _document(answer: Answer, claim: Optional[Claim]) -> Doc:
    """The document of an answer. A refusal is raised."""
    if not (200 <= answer.status < 300 or answer.status >= 400):
        raise _unbelievable(answer, f"the server answered with status {answer.status}")
    try:
        doc = Doc.read(answer.body)
    except ValueError as error:
        raise _unreadable(answer, error) from error
    if answer.status >= 400:
        names_another = claim is not None and doc.opt_text("key") is not None and not claim.is_named_by(doc)
        if names_another:
            raise _unbelievable(answer, "the answer names another claim")
        refusal = error_of(doc)
        if claim is not None and isinstance(refusal, (Lost, Busy)) and not claim.is_named_by(doc):
            raise _unbelievable(answer, "a verdict on a claim names no claim")
        raise refusal
    if claim is not None and not claim.is_named_by(doc):
        raise _unbelievable(answer, "the answer names another claim")
    return doc


def _unbelievable(answer: Answer, why: str) -> Unavailable:
    answer.drop_connection = True
    return Unavailable(why)


def _unreadable(answer: Answer, error: ValueError) -> Unavailable:
    return _unbelievable(answer, f"the answer of the server cannot be read: {error}")


def error_of(doc: Doc) -> LeaseholdError:
    """The error of a problem document."""
    try:
        error = _error_of(doc)
    except ValueError as why:
        return Unavailable(f"the answer of the server cannot be read: {why}")
    error.effect, error.kind = _effect(doc), doc.opt_text("kind")
    return error


def _effect(doc: Doc) -> Effect:
    return "none" if doc.opt_text("effect") == "none" else "unknown"


def _error_of(doc: Doc) -> LeaseholdError:
    kind = doc.text("kind")
    message = _message(doc)
    retry_after = doc.opt_seconds("retry_after_ms")
    if kind == "contended":
        holders = tuple(Holder.read(holder) for holder in doc.docs("holders"))
        lock = doc.doc("foreign")
        foreign = None if lock is None else ForeignLock.read(lock)
        return Busy(message, holders=holders, retry_after=retry_after or 0.0, paused=doc.flag("paused"), foreign=foreign)
    if kind == "lost":
        return Lost(message, why=doc.opt_text("why") or "not_there")
    if kind == "mismatch":
        return Mismatch(message, capacity=doc.opt_whole("capacity"))
    if kind == "not_that_one":
        return HolderChanged(message, token=doc.opt_token("token"))
    if kind in ("unauthenticated", "denied"):
        return Denied(message)
    if kind == "corrupt":
        return Corrupt(message)
    if kind in _INVALID:
        return Invalid(message)
    return Unavailable(message, retry_after=retry_after, draining=kind in ("draining", "shut_down"))


_INVALID = frozenset(
    "token_required malformed not_found method_not_allowed too_large not_json wrong_host invalid unsupported"
    " guarantee_too_weak limit stale_token".split()
)


def _message(doc: Doc) -> str:
    text = doc.opt_text("detail") or doc.opt_text("title") or doc.text("kind")
    resource = doc.opt_text("resource")
    capacity = doc.opt_whole("capacity")
    if capacity is not None and str(capacity) not in text:
        text = f"{text}: the holders use the capacity {capacity}"
    if resource is not None and resource not in text:
        text = f"{resource}: {text}"
    hint = doc.opt_text("hint")
    text = f"{text} ({hint})" if hint else text
    # It is printed and logged: no line breaks, and nothing that controls a terminal.
    return "".join(char if char.isprintable() else " " for char in text)
