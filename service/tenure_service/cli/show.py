"""What a command prints: tables and progress for people, JSON for scripts.

On a terminal tables are drawn with rich where it is installed; elsewhere columns are padded with
spaces, so that `grep` and `awk` work.
"""

from __future__ import annotations

import base64
import contextlib
import dataclasses
import datetime
import json
import re
import sys
from typing import TYPE_CHECKING, Any, Final

from tenure_service.telemetry.logs import printable

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence

    from tenure import Payload

#: Of a cell of a table: a name is shorter, what a refused call said may be megabytes.
_CELL_CHARS_MAX: Final = 200


def document(value: Any) -> None:
    """Prints one JSON document."""
    print(_json(plain(value), indent=2))


def plain(value: Any) -> Any:
    """Turns an answer of the client into what JSON can say.

    Instants become RFC 3339 texts, JSON payloads their values, other payloads base64.
    """
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        if type(value).__name__ == "Payload":
            return _payload(value)
        return {
            field.name: plain(getattr(value, field.name))
            for field in dataclasses.fields(value)
            if not field.name.startswith("_")
        }
    if isinstance(value, dict):
        return {str(name): plain(each) for name, each in value.items()}
    if isinstance(value, list | tuple | set | frozenset):
        return [plain(each) for each in value]
    if isinstance(value, datetime.datetime):
        return value.isoformat()
    if isinstance(value, datetime.timedelta):
        return value.total_seconds()
    if isinstance(value, type):
        return value.__name__
    return str(value) if isinstance(value, str) else value


def _payload(payload: Any) -> Any:
    if payload.encoding == "json":
        with contextlib.suppress(ValueError):
            return payload.json()
    return {"encoding": payload.encoding, "base64": base64.b64encode(payload.data).decode()}


def payload_text(payload: Payload | None) -> str:
    """Gives a payload as one line of JSON."""
    if payload is None:
        return "-"
    return _json(plain(payload))


def _json(value: Any, indent: int | None = None) -> str:
    """Writes JSON as people read it: in their letters, but for those that steer a terminal."""
    text = json.dumps(value, indent=indent, ensure_ascii=False)
    return re.sub(r"[^\n\x20-\x7e]", _escaped, text)


def _escaped(found: re.Match[str]) -> str:
    return found[0] if found[0].isprintable() else json.dumps(found[0])[1:-1]


def instant(value: datetime.datetime | None) -> str:
    """Gives an instant in the zone of this machine."""
    return "-" if value is None else f"{value.astimezone():%Y-%m-%d %H:%M:%S}"


def table(
    headings: Sequence[str],
    rows: Iterable[Sequence[Any]],
    *,
    empty: str,
    cell_chars_max: int = _CELL_CHARS_MAX,
) -> None:
    """Prints a table.

    Args:
        headings: Heading of each column.
        rows: One sequence a row; None shows as a dash.
        empty: Sentence to print, to stderr, where there are no rows.
        cell_chars_max: Letters of a cell that are shown; `…` stands for the rest.
    """
    texts = [
        [
            "-" if cell is None or cell == "" else _clipped(printable(str(cell)), cell_chars_max)
            for cell in row
        ]
        for row in rows
    ]
    if not texts:
        print(empty, file=sys.stderr)
        return
    if sys.stdout.isatty() and _drawn(headings, texts):
        return
    widths = [max(map(len, column)) for column in zip(headings, *texts, strict=True)]
    for line in [[heading.upper() for heading in headings], *texts]:
        cells = [cell.ljust(width) for cell, width in zip(line, widths, strict=True)]
        print("  ".join(cells).rstrip())


def _clipped(text: str, chars_max: int) -> str:
    return text if len(text) <= chars_max else f"{text[: chars_max - 1]}…"


def _drawn(headings: Sequence[str], texts: Sequence[Sequence[str]]) -> bool:
    """Draws with rich; False where it is not installed."""
    try:
        from rich import box, console, text
        from rich.table import Table
    except ModuleNotFoundError:
        return False
    drawing = Table(box=box.SIMPLE_HEAD, pad_edge=False)
    for place, heading in enumerate(headings):
        # The first column is what people copy: ids and names stay in one piece.
        drawing.add_column(heading, overflow="fold", no_wrap=place == 0)
    for line in texts:
        drawing.add_row(*map(text.Text, line))
    console.Console().print(drawing)
    return True


def facts(pairs: Iterable[tuple[str, Any]]) -> None:
    """Prints names with their values, one a line; a value that says nothing is left out."""
    kept = [(name, str(value)) for name, value in pairs if value not in {None, "", "-"}]
    width = max((len(name) for name, _ in kept), default=0)
    for name, value in kept:
        first, *rest = [printable(line) for line in value.splitlines()] or [""]
        print(f"{name.ljust(width)}  {first}")
        for line in rest:
            print(f"{' ' * width}  {line}")


def note(text: str) -> None:
    """Prints a remark for people to stderr."""
    print(printable(text, "\n"), file=sys.stderr)


@contextlib.contextmanager
def progress(first: str) -> Iterator[Callable[[str], None]]:
    """Shows what long work is doing: a spinner on a terminal, a line a change elsewhere.

    Yields:
        A function that takes the next text.
    """
    if sys.stderr.isatty():
        with contextlib.suppress(ModuleNotFoundError):
            from rich import console

            with console.Console(stderr=True).status(first) as status:
                yield status.update
            return
    shown = ""

    def say(text: str) -> None:
        nonlocal shown
        if text != shown:
            note(text)
        shown = text

    yield say
