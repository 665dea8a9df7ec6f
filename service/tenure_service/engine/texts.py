"""What texts of the protocol may hold: names that people read, and names of encodings."""

import re
import unicodedata
from typing import Final

_CONTROL: Final = re.compile(r"[\x00-\x1f\x7f]")
#: Control and format characters, line and paragraph separators. A name with one of them looks like
#: another name, or turns around what is printed beside it.
_UNSEEN: Final = frozenset({"Cc", "Cf", "Zl", "Zp"})
_ENCODING: Final = re.compile(r"[\x20-\x7e]*")


def has_control(text: str) -> bool:
    """Says whether a text has control characters, so that it is not one line."""
    return _CONTROL.search(text) is not None


def name_flaw(name: str) -> str | None:
    """Says what is wrong with a name; None: nothing. An empty one is not looked at."""
    if name.isascii():
        unseen = _CONTROL.search(name)
        if unseen is not None:
            return _unseen(unseen[0])
    else:
        for letter in name:
            if unicodedata.category(letter) in _UNSEEN:
                return _unseen(letter)
    return "must not be blank" if name and not name.strip() else None


def is_encoding(text: str) -> bool:
    """Says whether a text may name an encoding: printable ASCII."""
    return _ENCODING.fullmatch(text) is not None


def _unseen(letter: str) -> str:
    return f"has U+{ord(letter):04X}, a control, format or separator character"
