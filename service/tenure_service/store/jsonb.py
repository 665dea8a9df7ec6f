"""The one funnel of every JSONB write, and of every text that comes from outside.

PostgreSQL stores neither NUL in text nor lone surrogates. Refusing to record a failure over one
unprintable letter would be the worse bug, so they are replaced by U+FFFD here; payloads are bytea
and never pass here.
"""

import json
from typing import Any

from psycopg.types.json import Jsonb

_REPLACEMENT = "\ufffd"


def clean(text: str) -> str:
    """Replaces what PostgreSQL cannot store in text."""
    if "\x00" in text:
        text = text.replace("\x00", _REPLACEMENT)
    try:
        text.encode("utf-8")
    except UnicodeEncodeError:
        text = text.encode("utf-8", "surrogatepass").decode("utf-8", "replace")
    return text


def _clean_all(value: Any) -> Any:
    if isinstance(value, str):
        return clean(value)
    if isinstance(value, dict):
        return {clean(str(key)): _clean_all(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_clean_all(item) for item in value]
    return value


def jsonb(value: Any) -> Jsonb:
    """Gives a JSON value that PostgreSQL can store."""
    return Jsonb(_clean_all(value))


def jsonb_text(value: Any) -> str:
    """Gives the same as text, for arrays of jsonb."""
    return json.dumps(_clean_all(value), ensure_ascii=False)
