"""Reads JSON documents with the types that are expected. What is not as expected is a ``ValueError``."""

from __future__ import annotations

import base64
import binascii
import json
from typing import Any, Dict, List, Optional, cast


#: The largest number of the API: 64 bits.
_WHOLE_MAX = 2**64 - 1


class Doc:
    """A JSON object."""

    def __init__(self, fields: Dict[str, Any]) -> None:
        self.fields = fields

    @staticmethod
    def read(body: bytes) -> Doc:
        """Reads a body that must be an object."""
        try:
            return Doc.of(json.loads(body))
        except RecursionError:
            raise ValueError("it is nested too deeply") from None

    @staticmethod
    def of(value: object) -> Doc:
        """The value, which must be an object."""
        if not isinstance(value, dict):
            raise ValueError("not a JSON object")
        return Doc(cast("Dict[str, Any]", value))

    def text(self, name: str) -> str:
        """A text that must be there."""
        value = self.fields.get(name)
        if not isinstance(value, str):
            raise ValueError(f"{name!r} is not a text")
        return value

    def opt_text(self, name: str) -> Optional[str]:
        """A text, if there is one."""
        value = self.fields.get(name)
        return value if isinstance(value, str) else None

    def whole(self, name: str) -> int:
        """A number that must be there, and not negative."""
        value = self.fields.get(name)
        if not isinstance(value, int) or isinstance(value, bool) or not 0 <= value <= _WHOLE_MAX:
            raise ValueError(f"{name!r} is not a whole number of 64 bits")
        return value

    def opt_whole(self, name: str) -> Optional[int]:
        """A number, if there is one."""
        return None if self.fields.get(name) is None else self.whole(name)

    def seconds(self, name: str) -> float:
        """A number of milliseconds, in seconds."""
        return self.whole(name) / 1000

    def opt_seconds(self, name: str) -> Optional[float]:
        """A number of milliseconds, in seconds, if there is one."""
        value = self.opt_whole(name)
        return None if value is None else value / 1000

    def opt_token(self, name: str) -> Optional[int]:
        """A token, which is written as text, if there is one."""
        value = self.opt_text(name)
        if value is None:
            return None
        if not (value.isascii() and value.isdigit() and len(value) <= 20):
            raise ValueError(f"{name!r} is not a token")
        return int(value)

    def flag(self, name: str) -> bool:
        """Whether it is there and true."""
        return self.fields.get(name) is True

    def doc(self, name: str) -> Optional[Doc]:
        """An object, if there is one."""
        value = self.fields.get(name)
        return None if value is None else Doc.of(value)

    def docs(self, name: str) -> List[Doc]:
        """A list of objects; empty if there is none."""
        value = self.fields.get(name)
        if value is None:
            return []
        if not isinstance(value, list):
            raise ValueError(f"{name!r} is not a list")
        return [Doc.of(entry) for entry in cast("List[object]", value)]

    def note(self) -> Optional[bytes]:
        """A note, which is text or base64."""
        text = self.opt_text("note")
        if text is not None:
            return text.encode()
        encoded = self.opt_text("note_base64")
        if encoded is None:
            return None
        try:
            return base64.b64decode(encoded, validate=True)
        except binascii.Error as error:
            raise ValueError("'note_base64' is not base64") from error


def note_field(note: "str | bytes") -> Dict[str, str]:
    """The field of a request that has this note."""
    if isinstance(note, str):
        return {"note": note}
    try:
        return {"note": note.decode()}
    except UnicodeDecodeError:
        return {"note_base64": base64.b64encode(note).decode()}
