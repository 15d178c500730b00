"""Names of resources, and owner tokens."""

from __future__ import annotations

import hashlib
import re
import secrets
from dataclasses import dataclass
from typing import Dict, Union
from urllib.parse import unquote_to_bytes

from .errors import Invalid

_NAMES = re.compile(r"(?:([a-z0-9._-]{1,64}):)?([a-z0-9._-]{1,64})")
_PLAIN = frozenset(b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-._:@+=,")
_ID_MAX = 256
#: An id that is a hash, made by a program with a secret. As text it would be an ordinary id.
_HASHED = re.compile(r"~[0-9a-f]{32}")


@dataclass(frozen=True)
class Key:
    """Names a resource by its key: the only name of a resource whose id is hashed. ``Resource.key`` has it."""

    key: str

    def __post_init__(self) -> None:
        names, _, encoded = self.key.partition("/")
        if _NAMES.fullmatch(names) and _HASHED.fullmatch(encoded):
            return
        try:
            is_key = key_of(_decoded(self.key)) == self.key
        except (Invalid, UnicodeDecodeError):
            is_key = False
        if not is_key:
            raise Invalid(f"{self.key!r} is not the key of a resource")

    def __str__(self) -> str:
        """As people write it, if it is not hashed."""
        return self.key if "/~" in self.key else _decoded(self.key)


#: A resource: ``[namespace:]kind/id``, or its key.
ResourceName = Union[str, Key]


def _decoded(key: str) -> str:
    return unquote_to_bytes(key).decode()


def name_field(resource: ResourceName, text_field: str = "resource") -> Dict[str, str]:
    """The field of a request that names this resource."""
    return {"key": resource.key} if isinstance(resource, Key) else {text_field: resource}


def key_of(resource: ResourceName) -> str:
    """The key of ``[namespace:]kind/id``, as the server writes it: the id is percent-encoded.

    Several leases are acquired in the order of their keys.
    """
    if isinstance(resource, Key):
        return resource.key
    names, slash, id_ = resource.partition("/")
    if not slash:
        raise Invalid(f"{resource!r} is not a resource: write kind/id, as in report/42")
    if not _NAMES.fullmatch(names):
        raise Invalid(f"{resource!r} is not a resource: before the slash, only a-z, 0-9, '.', '_' and '-' are allowed")
    try:
        encoded = id_.encode()
    except UnicodeEncodeError as error:
        raise Invalid(f"{resource!r} is not a resource: its id is not valid Unicode") from error
    if not 1 <= len(encoded) <= _ID_MAX:
        raise Invalid(f"{resource!r} is not a resource: an id has 1 to {_ID_MAX} bytes, this one has {len(encoded)}")
    if any(ord(char) < 32 or 127 <= ord(char) < 160 for char in id_):
        raise Invalid(f"{resource!r} is not a resource: its id has a control character")
    return f"{names}/" + "".join(chr(byte) if byte in _PLAIN else f"%{byte:02X}" for byte in encoded)


def new_owner() -> str:
    """A fresh owner token: the secret that renews and releases one claim."""
    return secrets.token_hex(16)


def owner_hash(owner: str) -> str:
    """What stands for an owner token in answers."""
    return hashlib.sha256(owner.encode()).hexdigest()[:32]
