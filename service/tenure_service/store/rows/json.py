"""JSON as rows hold it."""

from typing import Any

Json = dict[str, Any]
