"""What was measured over several runs, as a table: the median, and every run.

`printed` prints it, also when the measurement is interrupted: then it has what was measured.
"""

import argparse
import contextlib
import os
import platform
import signal
import statistics
import sys
from collections.abc import Collection, Iterator, Sequence


class Table:
    """Figures by name, in the order in which they came."""

    def __init__(self) -> None:
        self._rows: dict[str, list[tuple[float, ...]]] = {}
        self._failed: dict[str, str] = {}

    def add(self, name: str, *values: float) -> None:
        """Notes what one run gave: one figure, or some that belong together."""
        self._rows.setdefault(name, []).append(values)
        say(f"{name}: {_cell(values)}")

    def fail(self, name: str, reason: str) -> None:
        """Notes why there is no figure."""
        self._failed[name] = f"not run: {reason}"
        say(f"{name}: not run: {reason}")

    def __str__(self) -> str:
        lines = ["| what | median | every run |", "|---|---|---|"]
        for name, runs in self._rows.items():
            middle = tuple(statistics.median(each) for each in zip(*runs, strict=True))
            lines.append(f"| {name} | {_cell(middle)} | {', '.join(map(_cell, runs))} |")
        lines += [f"| {name} | {reason} | |" for name, reason in self._failed.items()]
        return "\n".join(lines)


def quantiles(values: Sequence[float]) -> tuple[float, float, float]:
    """Gives the median, the 99th percentile and the largest."""
    high = sorted(values)[min(int(len(values) * 0.99), len(values) - 1)]
    return statistics.median(values), high, max(values)


def parts(
    parser: argparse.ArgumentParser, named: Collection[str], known: Collection[str]
) -> list[str]:
    """Gives the parts that were named on the command line, all if none was; ends it for others."""
    if unknown := set(named) - set(known):
        parser.error(f"no such part: {', '.join(sorted(unknown))}")
    return list(named or known)


def say(text: str) -> None:
    """Tells whoever waits how far it is."""
    print(text, file=sys.stderr, flush=True)


@contextlib.contextmanager
def printed(settings: str) -> Iterator[Table]:
    """Prints the table at the end, below the machine and the settings."""
    # SIGTERM takes down what was started, as the keyboard does.
    signal.signal(signal.SIGTERM, lambda *_: signal.raise_signal(signal.SIGINT))
    # A shell starts its background jobs deaf to the keyboard.
    signal.signal(signal.SIGINT, signal.default_int_handler)
    table = Table()
    before = os.getloadavg()[0]
    try:
        yield table
    except KeyboardInterrupt:
        say("interrupted: the table has what was measured")
    print(
        f"{platform.machine()}, {os.cpu_count()} cores, load {before:.1f} before and "
        f"{os.getloadavg()[0]:.1f} after, Python {platform.python_version()}, {settings}\n"
    )
    print(table)


def _cell(values: Sequence[float]) -> str:
    return " / ".join(_figure(value) for value in values)


def _figure(value: float) -> str:
    if value >= 100 or value == int(value):
        return f"{value:,.0f}"
    return f"{value:.2f}"
