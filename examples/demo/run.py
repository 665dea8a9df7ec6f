"""The main job on real files: count the tokens of the standard library, losing a worker midway.

Starts an embedded PostgreSQL, a server and two worker processes; enqueues one task for each source
file; kills one worker with SIGKILL when a third is done; sums up what came back and compares it
with a plain computation. Exit code 0 only if everything is equal.

    python -m examples.demo.run [--kill worker,server,postgres] [--files N]
"""

import argparse
import collections
import contextlib
import multiprocessing
import os
import sys
import time

from examples.demo import app as demo
from examples.demo import stage
from tenure import Client, Handle, TaskFailed, as_completed

Result = dict[str, int] | str

# Processes are started while channels are open; gRPC need not follow them into children.
os.environ.setdefault("GRPC_ENABLE_FORK_SUPPORT", "0")


def main() -> int:
    """Runs the demo; gives the exit code."""
    arguments = parse()
    paths = stage.source_files()[: arguments.files]
    print(f"demo: one task for each of {len(paths)} source files of Python's standard library")
    with stage.Stage(say) as theatre:
        os.environ["TENURE_ADDRESS"] = theatre.address
        began = time.monotonic()
        handles = demo.count_tokens.enqueue_many((path,) for path in paths)
        say(f"enqueued {len(handles)} tasks in {time.monotonic() - began:.2f} s")
        began = time.monotonic()
        results = work_off(theatre, dict(zip(paths, handles, strict=True)), arguments.kill)
        seconds = time.monotonic() - began
        say("checking every task, and computing the same without Tenure")
        lost, doubled = check_deliveries(theatre.address, handles)
    wrong = compare(paths, results)
    report(paths, results, wrong)
    killed = ", ".join(f"{count} {what}" for what, count in theatre.killed.items()) or "nothing"
    print(f"killed with SIGKILL: {killed}; tasks lost {lost}, results doubled {doubled}")
    print(
        f"{len(paths) / seconds:,.0f} files a second on {os.cpu_count()} cores; "
        "try next: `tenure new hello`, and in it `tenure dev app:app`"
    )
    return int(bool(wrong or lost or doubled or not theatre.killed))


def parse() -> argparse.Namespace:
    """Reads the command line."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n", maxsplit=1)[0])
    parser.add_argument(
        "--kill",
        type=lambda text: text.split(","),
        default=["worker"],
        help="what to kill midway: worker, server, postgres, or several with commas",
    )
    parser.add_argument("--files", type=int, default=None, help="take only the first N files")
    arguments = parser.parse_args()
    unknown = set(arguments.kill) - {"worker", "server", "postgres"}
    if unknown:
        parser.error(f"--kill knows worker, server and postgres, not {', '.join(unknown)}")
    return arguments


def say(text: str) -> None:
    """Tells what happens, with the time since the start."""
    print(f"  {time.monotonic() - STARTED:5.1f} s  {text}", flush=True)


def work_off(
    theatre: stage.Stage, handles: dict[str, Handle[dict[str, int]]], kill: list[str]
) -> dict[str, Result]:
    """Waits for all results, and kills what is to be killed when a third of them is there.

    Returns:
        By path the counts, or the failure as text.
    """
    theatre.start_worker()
    theatre.start_worker()
    paths = {handle.id: path for path, handle in handles.items()}
    results: dict[str, Result] = {}
    left = list(kill)
    shown = 0
    for handle in as_completed(handles.values(), timeout=900):
        try:
            results[paths[handle.id]] = handle.result()
        except TaskFailed as exc:
            results[paths[handle.id]] = f"{exc.failure.type}: {exc.failure.message}"
        done = len(results)
        if left and done * 3 >= len(handles):
            theatre.kill(left.pop(0))
        if done * 5 // len(handles) > shown:
            shown = done * 5 // len(handles)
            say(f"{done} of {len(handles)} done")
    return results


def check_deliveries(address: str, handles: list[Handle[dict[str, int]]]) -> tuple[int, int]:
    """Counts tasks without exactly one end: (lost, doubled)."""
    client = Client(address)
    lost = doubled = 0
    for handle in handles:
        ends = sum(delivery.final for delivery in client.get_task(handle.id).deliveries)
        lost += ends == 0
        doubled += ends > 1
    return lost, doubled


def expected(path: str) -> Result:
    """Computes what a task should give, without Tenure."""
    try:
        return demo.count_tokens(path)
    except Exception as exc:  # noqa: BLE001 - whatever it raises is the expected failure
        return f"{type(exc).__name__}: {exc}"


def compare(paths: list[str], results: dict[str, Result]) -> list[str]:
    """Lists the files whose result differs from a plain computation."""
    with multiprocessing.get_context("spawn").Pool(os.cpu_count()) as pool:
        plain = pool.map(expected, paths, chunksize=20)
    return [path for path, one in zip(paths, plain, strict=True) if results.get(path) != one]


def report(paths: list[str], results: dict[str, Result], wrong: list[str]) -> None:
    """Prints what was computed, and what differs."""
    failed = [result for result in results.values() if isinstance(result, str)]
    totals: collections.Counter[str] = collections.Counter()
    for result in results.values():
        if not isinstance(result, str):
            totals.update(result)
    same = "equal to" if not wrong else f"in {len(wrong)} files DIFFERENT from"
    print(
        f"{len(paths)} files, {totals.total():,} tokens, {len(failed)} unreadable files in the dead "
        f"letters: {same} a plain computation"
    )
    for path in wrong[:5]:
        print(f"  differs: {path}: {results.get(path)!r:.200}", file=sys.stderr)


STARTED = time.monotonic()

if __name__ == "__main__":
    with contextlib.suppress(KeyboardInterrupt):
        sys.exit(main())
    sys.exit(130)
