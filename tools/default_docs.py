"""Writes docs/defaults.md from engine/limits.py: every constant, its value, its reason.

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

from tenure_service.engine import limits

ROOT = Path(__file__).resolve().parent.parent
TARGET: Final = ROOT / "docs" / "defaults.md"
LIMITS: Final = ROOT / "service" / "tenure_service" / "engine" / "limits.py"
CONFIG: Final = ROOT / "service" / "tenure_service" / "config.py"

_INTRODUCTION: Final = """\
<!-- Generated from service/tenure_service/engine/limits.py by `make gen`; do not edit. -->

# Defaults and limits

Every constant that bounds or times something in the server. Where a setting is named, it replaces
the constant for one server (`tenure config` prints all settings); everything else is fixed in a
release. What a caller may choose for one task or one call is in the comments of
[proto/tenure/v1](../proto/tenure/v1), with these bounds.
"""
_UNTITLED: Final = "Others"
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
