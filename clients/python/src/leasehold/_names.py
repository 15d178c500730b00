"""Names of resources, and owner tokens."""

from __future__ import annotations

import hashlib
import re
import secrets

from .errors import Invalid

_NAMES = re.compile(r"(?:([a-z0-9._-]{1,64}):)?([a-z0-9._-]{1,64})")
_PLAIN = frozenset(b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-._:@+=,")
_ID_MAX = 256


def key_of(resource: str) -> str:
    """The key of ``[namespace:]kind/id``, as the server writes it: the id is percent-encoded.

    Several leases are acquired in the order of their keys.
    """
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
