"""Requests and answers of the HTTP API, as pure functions: no connection, no clock, no thread.

1. A request is a ``Call``. Each one may be sent again as it is, except orders.
2. An answer that does not name its claim (key and owner hash) is never a grant: its effect is unknown.
3. A refusal is a problem document, which becomes one of the errors of this package.
"""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from typing import Any, Dict, List, Optional, Sequence, Union
from urllib.parse import urlencode

from ._json import Doc
from ._model import FinishRequest, Holder
from ._names import key_of, new_owner, owner_hash
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

#: How much of an answer is read.
ANSWER_MAX = 64 << 20


@dataclass(frozen=True)
class Call:
    """A request."""

    method: str
    path: str
    body: bytes = b""
    #: How long the answer may take, in seconds.
    at_most: float = 10.0
    #: Renewals and releases have connections of their own, which waiting claims do not use.
    is_upkeep: bool = False
    may_repeat: bool = True


@dataclass(frozen=True)
class Answer:
    """An answer of a leasehold server, on our store, to our request."""

    status: int
    body: bytes
    #: The request was sent twice, because the first time its connection broke.
    was_repeated: bool = False


@dataclass(frozen=True)
class Claim:
    """What one claim asks for. Its owner token is secret, and the same in all its requests."""

    resource: str
    ttl: float
    options: Dict[str, Any] = field(default_factory=lambda: {})
    owner: str = field(default_factory=new_owner, repr=False)

    @property
    def key(self) -> str:
        return key_of(self.resource)

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


def milliseconds(seconds: float) -> int:
    """At least one: zero is refused."""
    return max(1, round(seconds * 1000))


def _post(path: str, body: Dict[str, Any], at_most: float, is_upkeep: bool = False) -> Call:
    return Call("POST", path, json.dumps(body).encode(), at_most, is_upkeep)


def _get(path: str, query: Dict[str, Any], at_most: float) -> Call:
    given = {name: value for name, value in query.items() if value is not None}
    return Call("GET", f"{path}?{urlencode(given)}" if given else path, at_most=at_most)


def acquire(claim: Claim, *, wait: float, keeps_place: bool, timeout: float) -> Call:
    """Asks for the lease. The server waits for up to ``wait``; with ``keeps_place`` the claim stays in the queue after that."""
    body: Dict[str, Any] = {"resource": claim.resource, "owner": claim.owner, "ttl_ms": milliseconds(claim.ttl)}
    body.update(claim.options)
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
        raise Unavailable(f"the answer to a claim on {claim.resource} has the unknown verdict {verdict!r}")
    try:
        granted = Granted(
            ttl=doc.seconds("ttl_ms"),
            remaining=doc.seconds("remaining_ms"),
            waited=doc.seconds("waited_ms"),
            token=doc.opt_token("token"),
            number=doc.opt_token("number"),
            pass_=doc.opt_text("pass"),
        )
    except ValueError as error:
        raise _unreadable(error) from error
    if granted.pass_ is not None:
        wanted = f"{granted.token} {owner_hash(claim.owner)} {claim.resource}"
        if granted.pass_ != wanted:
            raise Unavailable(f"the pass of {claim.resource} does not fit its claim")
    return granted


def renew(claims: Sequence[Claim], timeout: float) -> Call:
    """Renews several leases in one request."""
    leases = [{"resource": claim.resource, "owner": claim.owner, "ttl_ms": milliseconds(claim.ttl)} for claim in claims]
    # The server answers a little earlier than we stop waiting, for what its store has answered by then.
    body = {"leases": leases, "timeout_ms": milliseconds(timeout * 0.9)}
    return _post("/v1/renew", body, timeout, is_upkeep=True)


def set_note(claim: Claim, note: Dict[str, str], timeout: float) -> Call:
    """Renews one lease, and replaces its note."""
    body: Dict[str, Any] = {"resource": claim.resource, "owner": claim.owner, "ttl_ms": milliseconds(claim.ttl)}
    return _post("/v1/renew", {**body, **note}, timeout, is_upkeep=True)


def read_renewals(answer: Answer, claims: Sequence[Claim]) -> List[Union[Kept, LeaseholdError]]:
    """The outcome for each of the leases."""
    doc = _document(answer, None)
    try:
        entries = doc.docs("leases")
    except ValueError as error:
        raise _unreadable(error) from error
    if len(entries) != len(claims):
        raise Unavailable("the answer to a renewal has another number of leases")
    return [_renewal(entry, claim) for entry, claim in zip(entries, claims)]


def read_renewal(answer: Answer, claim: Claim) -> Kept:
    """The outcome for a single lease."""
    outcome = _kept(_document(answer, claim))
    if isinstance(outcome, LeaseholdError):
        raise outcome
    return outcome


def _renewal(entry: Doc, claim: Claim) -> Union[Kept, LeaseholdError]:
    is_refusal = entry.opt_text("kind") is not None
    # The store's failure names no claim; its verdict, good or bad, must name ours.
    if not claim.is_named_by(entry) and not (is_refusal and entry.opt_text("verdict") is None):
        return Unavailable("the answer to a renewal names another claim")
    return error_of(entry) if is_refusal else _kept(entry)


def _kept(doc: Doc) -> Union[Kept, LeaseholdError]:
    if doc.opt_text("verdict") != "kept":
        return Unavailable(f"the answer to a renewal has the unknown verdict {doc.opt_text('verdict')!r}")
    try:
        asked = doc.doc("asked")
        return Kept(
            ttl=doc.seconds("ttl_ms"),
            remaining=doc.seconds("remaining_ms"),
            asked=None if asked is None else FinishRequest.read(asked),
            evicting=doc.flag("evicting"),
        )
    except ValueError as error:
        return _unreadable(error)


def release(claim: Claim, *, bury: Optional[float], keep_for: Optional[float], timeout: float) -> Call:
    """Ends the claim. ``bury`` leaves a tombstone for so long: a delayed request of it is refused. ``keep_for`` keeps the resource closed."""
    body: Dict[str, Any] = {"resource": claim.resource, "owner": claim.owner}
    if bury is not None:
        body["bury_ms"] = milliseconds(bury)
    if keep_for is not None:
        body["keep_for_ms"] = milliseconds(keep_for)
    return _post("/v1/release", body, timeout, is_upkeep=True)


def read_release(answer: Answer, claim: Claim) -> None:
    """An error, unless the claim has ended."""
    verdict = _document(answer, claim).opt_text("verdict")
    if verdict not in ("released", "already_gone"):
        raise Unavailable(f"the answer to a release has the unknown verdict {verdict!r}")


def get(path: str, timeout: float, **query: Any) -> Call:
    """A query. Parameters that are None are left out."""
    return _get(path, query, timeout)


def order(body: Dict[str, Any], timeout: float) -> Call:
    """An operator's order, which is never sent twice."""
    given = {name: value for name, value in body.items() if value is not None}
    return Call("POST", "/v1/orders", json.dumps(given).encode(), timeout, may_repeat=False)


def read_document(answer: Answer) -> Doc:
    """The document of an answer to a query or an order."""
    return _document(answer, None)


def _document(answer: Answer, claim: Optional[Claim]) -> Doc:
    """The document of an answer. A refusal is raised."""
    if not (200 <= answer.status < 300 or answer.status >= 400):
        raise Unavailable(f"the server answered with status {answer.status}")
    try:
        doc = Doc.read(answer.body)
    except ValueError as error:
        raise _unreadable(error) from error
    if answer.status >= 400:
        names_another = claim is not None and doc.opt_text("key") is not None and not claim.is_named_by(doc)
        if names_another:
            raise Unavailable("the answer names another claim")
        raise error_of(doc)
    if claim is not None and not claim.is_named_by(doc):
        raise Unavailable("the answer names another claim")
    return doc


def _unreadable(error: ValueError) -> Unavailable:
    return Unavailable(f"the answer of the server cannot be read: {error}")


def error_of(doc: Doc) -> LeaseholdError:
    """The error of a problem document."""
    try:
        error = _error_of(doc)
    except ValueError as why:
        return _unreadable(why)
    error.effect = _effect(doc)
    return error


def _effect(doc: Doc) -> Effect:
    return "none" if doc.opt_text("effect") == "none" else "unknown"


def _error_of(doc: Doc) -> LeaseholdError:
    kind = doc.text("kind")
    message = _message(doc)
    retry_after = doc.opt_seconds("retry_after_ms")
    if kind == "contended":
        holders = tuple(Holder.read(holder) for holder in doc.docs("holders"))
        return Busy(message, holders=holders, retry_after=retry_after or 0.0, paused=doc.flag("paused"))
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
    return f"{text} ({hint})" if hint else text
