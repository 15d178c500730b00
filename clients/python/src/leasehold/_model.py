"""What others hold, as the server describes it. Times are in seconds."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Optional, Tuple

from ._json import Doc
from .errors import Unavailable


@dataclass(frozen=True)
class Holder:
    """Somebody who holds a lease."""

    host: str
    pid: int
    label: str
    #: Who the server took it for, by its token or certificate.
    subject: Optional[str]
    #: The token of its grant; of a shared grant, its number.
    token: int
    weight: int
    held_for: float
    #: How long until it expires, unless it is renewed.
    remaining: float
    note: Optional[bytes]
    #: An operator evicted it at its expiry.
    evicting: bool
    #: It was released, and the resource stays closed for a while: nobody holds it.
    kept: bool

    @staticmethod
    def read(doc: Doc) -> Holder:
        who = doc.doc("holder") or Doc({})
        return Holder(
            host=who.text("host"),
            pid=who.whole("pid"),
            label=who.opt_text("label") or "",
            subject=who.opt_text("subject"),
            token=doc.opt_token("token") or 0,
            weight=doc.whole("weight"),
            held_for=doc.seconds("held_for_ms"),
            remaining=doc.seconds("remaining_ms"),
            note=doc.note(),
            evicting=doc.flag("evicting"),
            kept=doc.flag("kept"),
        )


@dataclass(frozen=True)
class Waiter:
    """A claim in the queue."""

    host: str
    pid: int
    label: str
    subject: Optional[str]
    weight: int
    waited: float
    #: It could have been granted, and did not answer.
    silent: bool

    @staticmethod
    def read(doc: Doc) -> Waiter:
        who = doc.doc("holder") or Doc({})
        return Waiter(
            host=who.text("host"),
            pid=who.whole("pid"),
            label=who.opt_text("label") or "",
            subject=who.opt_text("subject"),
            weight=doc.whole("weight"),
            waited=doc.seconds("waited_ms"),
            silent=doc.flag("silent"),
        )


@dataclass(frozen=True)
class ForeignLock:
    """A lock of another program that stands in the way."""

    #: Its key in the store.
    key: str
    #: What it is, in the words of the store.
    form: str
    #: Names it in the order ``evict-foreign``.
    value_hash: str
    #: How long until it expires; None if it never does.
    remaining: Optional[float]

    @staticmethod
    def read(doc: Doc) -> ForeignLock:
        return ForeignLock(doc.text("key"), doc.text("form"), doc.text("value_hash"), doc.opt_seconds("remaining_ms"))


@dataclass(frozen=True)
class Resource:
    """A resource as it is now."""

    name: str
    key: str
    capacity: int
    holders: Tuple[Holder, ...]
    holder_count: int
    #: Locks of other programs.
    foreign: Tuple[ForeignLock, ...]
    queue: Tuple[Waiter, ...]
    queue_length: int
    #: The newest token, where the store remembers it.
    last_token: Optional[int]
    #: How long until an operator's pause ends.
    paused_for: Optional[float]
    #: Why it cannot be read. Then nothing else is known about it.
    unreadable: Optional[str]
    cursor: str

    @staticmethod
    def read(doc: Doc) -> Resource:
        return Resource(
            name=doc.text("resource"),
            key=doc.text("key"),
            capacity=doc.whole("capacity"),
            holders=tuple(Holder.read(holder) for holder in doc.docs("holders")),
            holder_count=doc.whole("holder_count"),
            foreign=tuple(ForeignLock.read(lock) for lock in doc.docs("foreign")),
            queue=tuple(Waiter.read(waiter) for waiter in doc.docs("queue")),
            queue_length=doc.whole("queue_length"),
            last_token=doc.opt_token("last_token"),
            paused_for=doc.opt_seconds("paused_for_ms"),
            unreadable=doc.opt_text("unreadable"),
            cursor=doc.text("cursor"),
        )


@dataclass(frozen=True)
class OverviewItem:
    """A resource in the overview."""

    name: str
    key: str
    holder_count: int
    queue_length: int
    oldest_wait: Optional[float]
    stuck: bool

    @staticmethod
    def read(doc: Doc) -> OverviewItem:
        return OverviewItem(
            name=doc.text("resource"),
            key=doc.text("key"),
            holder_count=doc.whole("holder_count"),
            queue_length=doc.whole("queue_length"),
            oldest_wait=doc.opt_seconds("oldest_wait_ms"),
            stuck=doc.flag("stuck"),
        )


@dataclass(frozen=True)
class Overview:
    """All resources in numbers, and a page of them, as the server sampled them ``sampled_ago`` seconds ago."""

    sampled_ago: float
    held: int
    waiting: int
    stuck: int
    paused: int
    matched: int
    items: Tuple[OverviewItem, ...]
    #: Where the next page begins, if there is one.
    next: Optional[str]

    @staticmethod
    def read(doc: Doc) -> Overview:
        return Overview(
            sampled_ago=doc.seconds("sampled_ms_ago"),
            held=doc.whole("held"),
            waiting=doc.whole("waiting"),
            stuck=doc.whole("stuck"),
            paused=doc.whole("paused"),
            matched=doc.whole("matched"),
            items=tuple(OverviewItem.read(item) for item in doc.docs("items")),
            next=doc.opt_text("next"),
        )


@dataclass(frozen=True)
class FinishRequest:
    """An operator asks a holder to finish."""

    #: How many seconds the holder has.
    within: float
    by: str
    why: str

    @staticmethod
    def read(doc: Doc) -> FinishRequest:
        return FinishRequest(doc.seconds("within_ms"), doc.text("by"), doc.text("why"))


@dataclass(frozen=True)
class Leader:
    """Who leads."""

    #: The fencing token of its grant.
    token: int
    host: str
    pid: int
    label: str
    note: Optional[bytes]

    @property
    def value(self) -> Optional[str]:
        """What it says of itself, if that is text: usually its address."""
        try:
            return None if self.note is None else self.note.decode()
        except UnicodeDecodeError:
            return None

    @staticmethod
    def of(resource: Resource) -> Optional[Leader]:
        """The leader of an election, which is the holder of its resource. Raises ``Unavailable`` if it cannot be read."""
        if resource.unreadable is not None:
            raise Unavailable(f"{resource.name} cannot be read, so its leader is not known: {resource.unreadable}", effect="none")
        holders = [holder for holder in resource.holders if not holder.kept]
        if not holders:
            return None
        holder = holders[-1]
        return Leader(holder.token, holder.host, holder.pid, holder.label, holder.note)
