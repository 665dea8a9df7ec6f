"""Draws docs/pictures from the tables of bench/RESULTS.md: python -m bench.plots, or `make plots`.

What a picture shows stands in a table there, so nothing is drawn that was not recorded. A row is
found by what its bench calls it; where a day measured again what another had, the later one counts.
The same tables give the same files, byte for byte. Needs only matplotlib, of the group `plots`.
"""

import re
import sys
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import matplotlib as mpl
from matplotlib import ticker
from matplotlib.backends.backend_svg import FigureCanvasSVG
from matplotlib.figure import Figure

if TYPE_CHECKING:
    from matplotlib.axes import Axes

_ROOT = Path(__file__).resolve().parent.parent
_RESULTS = _ROOT / "bench" / "RESULTS.md"
_PICTURES = _ROOT / "docs" / "pictures"
_SETTINGS: Final[dict[Any, Any]] = {
    # Without a salt of its own every run names its parts anew.
    "svg.hashsalt": "tenure",
    # Letters stay letters: the same file whatever fonts are installed.
    "svg.fonttype": "none",
    "font.family": "sans-serif",
    "font.size": 10.0,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.titlelocation": "left",
    "axes.axisbelow": True,
}
_OURS, _THEIRS, _DOT, _BOUND = "#1f5fa8", "#b8b8b8", "#222222", "#b03a2e"
_NUMBER = re.compile(r"\d[\d,]*(?:\.\d+)?")
_PEERS = ("tasks/s", "enqueue", "every run", "drain", "every run")
_LATENCY = re.compile(r"(?P<load>.+): (?P<step>[a-z]+), p50 / p99 / max \(ms\)")
_STEPS = {"enqueued": "enqueued", "started": "handler starts", "known": "result known"}
_GROWTH = re.compile(r"ratio: (?!p\d\d )(?P<what>.+)")
_GROWTH_MIN = 0.85
_MEMORY = "memory a stream"
_NOT_NOW = {"before", "target"}
_MEMORY_MAX = 60


class Missing(Exception):
    """The tables do not have what a picture shows."""


class Table(NamedTuple):
    """A table: its head, empty where it has none, and its rows."""

    head: list[str]
    rows: list[list[str]]


def tables(text: str) -> Iterator[Table]:
    """Reads the tables of a document in Markdown, in their order."""
    lines: list[list[str]] = []
    for line in [*text.splitlines(), ""]:
        if line.startswith("|"):
            lines.append([cell.strip() for cell in line.strip().strip("|").split("|")])
            continue
        if len(lines) > 1 and all(set(cell) <= set("-: ") for cell in lines[1]):
            yield Table(lines[0], lines[2:])
        elif lines:
            yield Table([], lines)
        lines = []


def numbers(cell: str) -> list[float]:
    """Reads the numbers of a cell, which may have commas between their thousands."""
    parts = (_NUMBER.search(part) for part in re.split(r", | / ", cell))
    return [float(match[0].replace(",", "")) for match in parts if match]


def rows(all_: Sequence[Table], pattern: re.Pattern[str]) -> dict[str, tuple[re.Match[str], str]]:
    """Finds rows of any table by their first cell; gives its match, and every run or the figure."""
    found: dict[str, tuple[re.Match[str], str]] = {}
    for each in all_:
        for cells in each.rows:
            match = pattern.fullmatch(cells[0])
            if match and len(cells) > 1:
                # What was measured last stands last, also in the picture.
                found.pop(cells[0], None)
                found[cells[0]] = match, cells[2 if each.head[2:3] == ["every run"] else 1]
    return found


def drain(all_: Sequence[Table], axes: "Axes") -> None:
    """Draws the drain beside that of each peer in the same runs."""
    last = [each for each in all_ if tuple(each.head[: len(_PEERS)]) == _PEERS]
    cells = {row[0]: row for row in last[-1].rows if len(row) > 4 and row[3]} if last else {}
    peers = [name for name in cells if not name.startswith("Tenure")]
    if not peers:
        raise Missing("no table of peers")
    labels: list[str] = []
    for name in peers:
        for title, color in ((f"Tenure, before {name}", _OURS), (name, _THEIRS)):
            if title in cells:
                row = cells[title]
                _bar(axes, len(labels), numbers(row[3])[0], color, numbers(row[4]))
                labels.append("Tenure, in the same runs" if title != name else name)
    _named(axes, labels)
    axes.set_title("A backlog of no-op tasks, one worker process")
    axes.xaxis.set_major_formatter(ticker.StrMethodFormatter("{x:,.0f}"))
    axes.set_xlabel("tasks a second; dots are the single runs")


def latency(all_: Sequence[Table], axes: "Axes") -> None:
    """Draws how long tasks take from their enqueueing, half of them and 99 of 100."""
    found = rows(all_, _LATENCY)
    labels: list[str] = []
    for match, cell in found.values():
        if match["step"] not in _STEPS:
            continue
        runs = [numbers(run) for run in cell.split(", ")]
        place = len(labels)
        for column, color in ((0, _OURS), (1, _BOUND)):
            values = [run[column] for run in runs if len(run) > column]
            axes.scatter(values, [place] * len(values), color=color, s=28, zorder=3)
        ends = [min(run[0] for run in runs), max(run[1] for run in runs)]
        axes.plot(ends, [place, place], color=_THEIRS, linewidth=2.0)
        labels.append(f"{match['load']}: {_STEPS[match['step']]}")
    if not labels:
        raise Missing("no row of latencies")
    _named(axes, labels)
    axes.set_xscale("log")
    axes.xaxis.set_major_locator(ticker.LogLocator(subs=(1, 2, 5)))
    axes.xaxis.set_major_formatter(lambda value, _: f"{value:,g}")
    axes.xaxis.set_minor_formatter(ticker.NullFormatter())
    axes.set_title("From the moment a task falls due")
    axes.set_xlabel("milliseconds; blue: half of the tasks, red: 99 of 100; one dot a run")


def growth(all_: Sequence[Table], axes: "Axes") -> None:
    """Draws the drain with much else in the database, as a share of that with nothing else."""
    found = rows(all_, _GROWTH)
    if not found:
        raise Missing("no row of ratios")
    for place, (_, cell) in enumerate(found.values()):
        values = numbers(cell)
        _bar(axes, place, sorted(values)[len(values) // 2], _OURS, values)
    _named(axes, [match["what"] for match, _ in found.values()])
    axes.axvline(1, color=_DOT, linewidth=0.8)
    axes.axvline(_GROWTH_MIN, color=_BOUND, linewidth=1.2, linestyle="--")
    axes.set_title("The drain beside much else; 1 is alone")
    axes.set_xlabel(f"dots are the single runs; dashed: {_GROWTH_MIN:g}, the least that is wanted")


def memory(all_: Sequence[Table], axes: "Axes") -> None:
    """Draws the server's memory for one idle stream."""
    labels: list[str] = []
    for each in all_:
        for cells in each.rows:
            shape, _, what = cells[0].rpartition(": ")
            if what != _MEMORY:
                continue
            # A column is a shape of its own, or the row says which one it is of.
            heads = [shape] if shape else [f"{each.head[0]}, {title}" for title in each.head[1:]]
            for label, cell in zip(heads, cells[1:], strict=False):
                values = numbers(cell.partition("KiB")[0])
                if values and label.rpartition(", ")[2] not in _NOT_NOW:
                    _bar(axes, len(labels), sorted(values)[len(values) // 2], _OURS, values)
                    labels.append(label)
    if not labels:
        raise Missing("no row of memory")
    _named(axes, labels)
    axes.axvline(_MEMORY_MAX, color=_BOUND, linewidth=1.2, linestyle="--")
    axes.set_title("A server's memory for one worker's stream")
    axes.set_xlabel(f"KiB; dashed: {_MEMORY_MAX}, the most that is wanted")


PICTURES: dict[str, Callable[[Sequence[Table], "Axes"], None]] = {
    "drain": drain,
    "latency": latency,
    "growth": growth,
    "memory": memory,
}


def _bar(axes: "Axes", place: int, value: float, color: str, runs: Sequence[float]) -> None:
    axes.barh(place, value, height=0.62, color=color)
    axes.scatter(runs, [place] * len(runs), color=_DOT, s=9, zorder=3)
    text = f"{value:,.0f}" if value >= 10 else f"{value:.2f}"
    axes.annotate(
        text, (max([value, *runs]), place), (6, 0), textcoords="offset points", va="center"
    )


def _named(axes: "Axes", labels: Sequence[str]) -> None:
    axes.set_yticks(range(len(labels)), labels)
    axes.set_ylim(len(labels) - 0.4, -0.6)
    axes.tick_params(axis="y", length=0)
    axes.grid(axis="x", color="#e4e4e4", linewidth=0.6)
    axes.margins(x=0.12)
    figure = axes.get_figure(root=True)
    if figure is not None:
        figure.set_size_inches(8.0, 1.2 + 0.34 * len(labels))


def main() -> None:
    """Draws what there are tables for; says what there are none for."""
    found = list(tables(_RESULTS.read_text(encoding="utf-8")))
    _PICTURES.mkdir(exist_ok=True)
    with mpl.rc_context(_SETTINGS):
        for name, draw in PICTURES.items():
            figure = Figure(layout="constrained")
            FigureCanvasSVG(figure)
            path = _PICTURES / f"{name}.svg"
            try:
                draw(found, figure.add_subplot())
            except Missing as missing:
                print(f"{path.name} not drawn: {missing}", file=sys.stderr)
            else:
                figure.savefig(path, metadata={"Date": None, "Creator": None})


if __name__ == "__main__":
    main()
