"""Writes docs/defaults.md: every constant of engine/limits.py, and what the Python SDK goes by.

A block of constants is a section: `# Title. Why.` above it heads it, blocks without a title come
last. `#:` above one constant is the reason of that constant.
"""

from __future__ import annotations

import ast
import re
from dataclasses import dataclass, field
from datetime import timedelta
from pathlib import Path
from typing import Final

from tenure import channel, connection
from tenure.worker import absence, job, process, session, slots, stream, worker
from tenure_service.engine import limits

ROOT = Path(__file__).resolve().parent.parent
TARGET: Final = ROOT / "docs" / "defaults.md"
LIMITS: Final = ROOT / "service" / "tenure_service" / "engine" / "limits.py"
CONFIG: Final = ROOT / "service" / "tenure_service" / "config.py"

_INTRODUCTION: Final = """\
<!-- Generated from service/tenure_service/engine/limits.py and sdk/tenure by `make gen`; do not edit. -->

# Defaults and limits

Every constant that bounds or times something in the server. Where a setting is named, it replaces
the constant for one server (`tenure config` prints all settings); everything else is fixed in a
release. What the Python SDK does unless told otherwise stands at the end. What a caller may choose for one task or one call is in the comments of
[proto/tenure/v1](../proto/tenure/v1), with these bounds.
"""
_UNTITLED: Final = "Others"
# What the SDK does unless told otherwise: what, how much, how to tell it.
_SDK: Final = (
    ("server", f"`{channel.DEFAULT_ADDRESS}`", "`address=`, TENURE_ADDRESS"),
    ("namespace", f"`{channel.DEFAULT_NAMESPACE}`", "`namespace=`, TENURE_NAMESPACE"),
    (
        "TLS, API key, payload codec",
        "none",
        "`tls=`, `api_key=`, `codec=`, TENURE_TLS_*, TENURE_API_KEY",
    ),
    ("queue of a task", "`default`", "`@app.task(queue=)`, `using(queue=)`"),
    ("a call is repeated for", f"{connection.TOTAL_SECONDS:g} s", ""),
    ("one try of it takes at most", f"{connection.TRY_SECONDS:g} s", ""),
    ("handlers at once", f"{worker.CONCURRENCY}", "`Worker(concurrency=)`, `--concurrency`"),
    (
        (
            "tasks asked for at a time, while the median of handlers is not under"
            f" {slots.SHORT_SECONDS * 1000:g} ms"
        ),
        "as many",
        "",
    ),
    (
        f"and then, for work of about {slots.WORK_SECONDS:g} s, at most",
        f"{worker.PREFETCH_MAX:,}",
        "`Worker(prefetch_max=)`; 0: never more than can run",
    ),
    ("where handlers run", "threads; one event loop for `async def`", "`mode=`, `--mode`"),
    (
        "time for handlers at a stop",
        f"{worker.GRACE_SECONDS:g} s",
        "`close(grace)`, `run(grace)`, `--grace`",
    ),
    ("and to end once cancelled", f"{session.CANCEL_SECONDS:g} s", ""),
    ("and to have results acknowledged", f"{session.FLUSH_SECONDS:g} s", ""),
    ("a process of a handler is killed after its grace and", f"{job.KILL_SECONDS:g} s", ""),
    ("time for such a process to import the app", f"{process.IMPORT_SECONDS:g} s", ""),
    ("time for the server to answer Open", f"{stream.OPEN_SECONDS:g} s", ""),
    ("heartbeats without an answer that end a stream", f"{stream.HEARTBEATS_UNANSWERED_MAX}", ""),
    (
        "pause before the next stream, random, up to",
        (
            f"{absence.PAUSE_SECONDS_FIRST:g} s, or {absence.PAUSE_SHARE:.0%} of the time away where"
            " connections are refused; doubled with each failure in a row where they are not; never"
            f" above {absence.PAUSE_SECONDS_MAX:g} s"
        ),
        "",
    ),
)
_UNITS: Final = ((86_400, "d"), (3_600, "h"), (60, "min"), (1, "s"))


@dataclass(slots=True)
class Constant:
    """One constant and the reason that stands above it."""

    name: str
    reason: str


@dataclass(slots=True)
class Section:
    """The constants of one block, with what its comment says of all of them."""

    title: str
    reason: str = ""
    constants: list[Constant] = field(default_factory=list)


def sections(source: str) -> list[Section]:
    """Reads the module's text; sections in their order, those without a title in one at the end."""
    found: list[Section] = []
    rest = Section(_UNTITLED)
    body = ast.parse(source).body
    lines = source.splitlines()
    first = next(node for node in body if isinstance(node, ast.AnnAssign)).lineno
    # The comment of the first constant belongs to its block.
    while lines[first - 2].startswith("#"):
        first -= 1
    for block in re.split(r"\n\s*\n", "\n".join(lines[first - 1 :])):
        section = _section(block)
        if section.title:
            found.append(section)
        else:
            rest.constants += section.constants
    return [*found, rest] if rest.constants else found


def _section(block: str) -> Section:
    """Reads one block; its title is empty if no comment heads it."""
    heading: list[str] = []
    reason: list[str] = []
    constants: list[Constant] = []
    for line in block.splitlines():
        if line.startswith("#:"):
            reason.append(line.removeprefix("#:").strip())
        elif line.startswith("#"):
            (reason if constants or reason else heading).append(line.removeprefix("#").strip())
        elif match := re.match(r"([A-Z][A-Z0-9_]*): Final = ", line):
            constants.append(Constant(match[1], " ".join(reason)))
            reason = []
    title, _, why = " ".join(heading).partition(". ")
    return Section(title.removesuffix("."), why, constants)


def shown(name: str, value: object) -> str:
    """Writes a value with its unit."""
    if isinstance(value, timedelta):
        seconds = value.total_seconds()
        for size, unit in _UNITS:
            if seconds and seconds % size == 0:
                return f"{seconds / size:,.0f} {unit}"
        return f"{seconds:g} s"
    if isinstance(value, int) and "_BYTES_" in name:
        for size, unit in ((1024**2, "MiB"), (1024, "KiB")):
            if value % size == 0:
                return f"{value // size:,} {unit}"
        return f"{value:,} bytes"
    return f"{value:,}" if isinstance(value, int) else f"{value}"


def settings(source: str) -> dict[str, str]:
    """Reads from the text of config.py, by constant, the variable of the setting it is default of."""
    found = re.findall(r"^    ([a-z_]+): .*\blimits\.([A-Z_]+)", source, re.MULTILINE)
    return {constant: f"TENURE_{name.upper()}" for name, constant in found}


def text() -> str:
    """Returns the whole document."""
    replaced = settings(CONFIG.read_text(encoding="utf-8"))
    parts = [_INTRODUCTION]
    for section in sections(LIMITS.read_text(encoding="utf-8")):
        parts.append(f"\n## {section.title}\n")
        if section.reason:
            parts.append(f"\n{section.reason}\n")
        parts.append(_table(section, replaced))
    parts.append("\n## The Python SDK\n\n| what | default | to change it |\n| --- | --- | --- |\n")
    parts += [f"| {' | '.join(row)} |\n" for row in _SDK]
    return "".join(parts)


def _table(section: Section, replaced: dict[str, str]) -> str:
    """Writes the constants of a section, without columns that would be empty."""
    rows = [
        {
            "constant": f"`{constant.name}`",
            "value": shown(constant.name, getattr(limits, constant.name)),
            "setting": f"`{replaced[constant.name]}`" if constant.name in replaced else "",
            "why": constant.reason,
        }
        for constant in section.constants
    ]
    columns = [column for column in rows[0] if any(row[column] for row in rows)]
    lines = [columns, ["---"] * len(columns), *([row[c] for c in columns] for row in rows)]
    return "\n" + "".join(f"| {' | '.join(cells)} |\n" for cells in lines)
