"""Writes docs/metrics.md from telemetry/metrics.py: every measure, its kind, labels and meaning.

A comment `# Title. Why.` above measures begins a section.
"""

from __future__ import annotations

import ast
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Final

from tenure_service.telemetry import metrics

if TYPE_CHECKING:
    from tenure_service.telemetry.instruments import Instrument

ROOT = Path(__file__).resolve().parent.parent
TARGET: Final = ROOT / "docs" / "metrics.md"
SOURCE: Final = ROOT / "service" / "tenure_service" / "telemetry" / "metrics.py"

_INTRODUCTION: Final = """\
<!-- Generated from service/tenure_service/telemetry/metrics.py by `make gen`; do not edit. -->

# Metrics

What each server process tells at `/metrics` on its HTTP port, in the forms of Prometheus and OpenMetrics, and pushes to an OpenTelemetry
collector where `OTEL_EXPORTER_OTLP_ENDPOINT` is set, under the same names. Counters begin at 0 with the process. Labels
are of bounded sets: never an id, a key or a payload. `process_*` are those of the Prometheus client: memory, CPU, open files.
[operating.md](operating.md#metrics) says how to scrape, what to alert on, and where the dashboard is.
"""


@dataclass(slots=True)
class Section:
    """Measures under one title."""

    title: str
    reason: str
    names: list[str] = field(default_factory=list)


def sections(source: str) -> list[Section]:
    """Reads the module's text; the names of the variables, by section."""
    found: list[Section] = []
    lines = source.splitlines()
    for node in ast.parse(source).body:
        if not isinstance(node, ast.AnnAssign) or not isinstance(node.target, ast.Name):
            continue
        if not isinstance(node.value, ast.Call) or not _makes(node.value):
            continue
        comment = _comment(lines, node.lineno - 2)
        if comment:
            title, _, reason = comment.partition(".")
            found.append(Section(title, reason.strip()))
        found[-1].names.append(node.target.id)
    return found


def text() -> str:
    """Gives the document."""
    parts = [_INTRODUCTION]
    for section in sections(SOURCE.read_text(encoding="utf-8")):
        parts.append(f"## {section.title}\n")
        if section.reason:
            parts.append(f"{section.reason}\n")
        rows = [_row(getattr(metrics, name)) for name in section.names]
        parts.append(
            "\n".join(["| name | kind | labels | means |", "|---|---|---|---|", *rows, ""])
        )
    return "\n".join(parts)


def _makes(call: ast.Call) -> bool:
    return isinstance(call.func, ast.Name) and call.func.id in {"_counter", "_gauge", "_histogram"}


def _comment(lines: list[str], at: int) -> str:
    """Gives the comment that ends at a line, as one text."""
    found: list[str] = []
    while at >= 0 and lines[at].startswith("# "):
        found.insert(0, lines[at][2:])
        at -= 1
    return " ".join(found)


def _row(instrument: Instrument) -> str:
    labels = [
        f"{name}: {', '.join(f'`{value}`' for value in domain)}" if domain else name
        for name, domain in instrument.labels.items()
    ]
    return (
        f"| `{instrument.name}` | {instrument.kind} | {'; '.join(labels)} "
        f"| {instrument.description} |"
    )
