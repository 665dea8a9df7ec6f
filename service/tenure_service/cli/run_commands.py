"""The commands of runs, with their flags."""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING, Any, Final

from tenure_service.cli import flags
from tenure_service.cli.building import add, group

if TYPE_CHECKING:
    from collections.abc import Sequence

#: What lists ask for by name; runs have no other states today.
STATES: Final = (
    "DELAYED",
    "QUEUED",
    "RUNNING",
    "WAITING",
    "BLOCKED",
    "COMPLETED",
    "FAILED",
    "CANCELLED",
    "TIMED_OUT",
)


def build(commands: Any) -> None:
    """Adds them."""
    run = group(commands, "run", "runs of workflows: start, read, cancel, resume, fork, check")
    remote = [flags.remote()]
    _start(run, remote)
    _list(run, remote)
    _read(run, remote)
    _operate(run, remote)
    check = add(
        run,
        "check",
        "run_check:check",
        "say which open runs the code at hand could not go on with\n\n"
        "Replays what is recorded of each open run of the app's workflows. Nothing is recorded,"
        "\nno step, task or child run is run, and no run is touched: what runs is the code of the"
        "\nworkflows between their verbs. Prints a line for each run that the code does not fit, and"
        "\nexits with 1 if there is one. Runs whose cancelling is asked for are left out.",
        "tenure run check --app shop.flows:app\ntenure run check --app app:app --name checkout --json",
        parents=remote,
    )
    check.add_argument("--app", required=True, metavar="MODULE:NAME", help="app with the new code")
    check.add_argument("--name", metavar="NAME", help="only runs of this workflow")


def _start(run: Any, remote: Sequence[argparse.ArgumentParser]) -> None:
    start = add(
        run,
        "start",
        "runs:start",
        "start a run by the name of its workflow\n\n"
        "Prints its id; with --wait also its result, and exits with 1 unless it completed.",
        "tenure run start checkout --input '{\"order\": 17}' --key order-17 --wait 10\n"
        "tenure run start report --delay 5m --attribute customer=c-7 --attribute plan=free",
        parents=remote,
    )
    start.add_argument("name", metavar="NAME", help="name of the workflow; need not be registered")
    source = start.add_mutually_exclusive_group()
    source.add_argument("--input", metavar="JSON", help="parameters by name, as one JSON object")
    source.add_argument("--input-file", metavar="FILE", help="the same from a file; - is stdin")
    start.add_argument("--queue", default="", metavar="Q", help="queue (default)")
    start.add_argument("--key", default="", help="idempotency key: a second one is the first")
    start.add_argument("--lane", default="", help="lane key within the queue")
    start.add_argument("--delay", type=flags.seconds, default=0.0, help="30, 5m, 2h: begin later")
    start.add_argument(
        "--timeout", type=flags.some_seconds, metavar="TIME", help="until it ends as TIMED_OUT"
    )
    start.add_argument(
        "--priority", type=flags.priority, default=0, metavar="N", help="-100 to 100"
    )
    _attributes(start, "what people search it by; may be repeated")
    start.add_argument("--wait", type=flags.seconds, metavar="SECONDS", help="wait for the result")


def _list(run: Any, remote: Sequence[argparse.ArgumentParser]) -> None:
    listing = add(
        run,
        "list",
        "runs:list_",
        "list runs, newest first",
        "tenure run list --name checkout --limit 20\n"
        "tenure run list --state WAITING --state BLOCKED --attribute customer=c-7",
        parents=remote,
    )
    listing.add_argument(
        "--state",
        action="append",
        type=str.upper,
        choices=STATES,
        metavar="STATE",
        help=f"{' '.join(STATES)}; may be repeated (all)",
    )
    listing.add_argument("--name", default="", metavar="NAME", help="only runs of this workflow")
    _attributes(listing, "only runs with this attribute; may be repeated")
    listing.add_argument("--parent", default="", metavar="ID", help="only those this run started")
    listing.add_argument(
        "--limit", type=flags.count, default=100, metavar="N", help="at most (100)"
    )


def _read(run: Any, remote: Sequence[argparse.ArgumentParser]) -> None:
    show = add(
        run,
        "show",
        "runs:show_",
        "show a run: where it stands, what it waits for, how it was over",
        "tenure run show 0198...\ntenure run show --key order-17 --payloads",
        parents=remote,
    )
    which = show.add_mutually_exclusive_group(required=True)
    which.add_argument("id", nargs="?", metavar="ID")
    which.add_argument("--key", help="the key it was started with, in place of its id")
    show.add_argument("--payloads", action="store_true", help="with input and output")
    steps = add(
        run,
        "steps",
        "runs:steps",
        "list what is recorded of a run, in the order of recording",
        "tenure run steps 0198... --limit 50",
        parents=remote,
    )
    steps.add_argument("id", metavar="ID")
    steps.add_argument("--limit", type=flags.count, default=1_000, metavar="N", help="(1000)")
    wait = add(
        run,
        "wait",
        "runs:wait",
        "wait until a run is over\n\nPrints its result, and exits with 1 unless it completed.",
        "tenure run wait 0198... --timeout 10m",
        parents=remote,
    )
    wait.add_argument("id", metavar="ID")
    wait.add_argument("--timeout", type=flags.seconds, metavar="TIME", help="at most (no limit)")


def _operate(run: Any, remote: Sequence[argparse.ArgumentParser]) -> None:
    cancel = add(
        run,
        "cancel",
        "runs:cancel",
        "ask for the end of runs; their functions may clean up\n\n"
        "What a cancelled run has started is cancelled with it.",
        "tenure run cancel 0198... 0199... --reason 'wrong customer' --grace 5m",
        parents=remote,
    )
    cancel.add_argument("ids", nargs="+", metavar="ID")
    cancel.add_argument("--reason", default="", metavar="TEXT", help="shown with the run")
    cancel.add_argument(
        "--grace", type=flags.seconds, metavar="TIME", help="for their functions to end (30s)"
    )
    resume = add(
        run,
        "resume",
        "runs:resume",
        "let BLOCKED runs go on, once what blocked them is put right",
        "tenure run resume 0198... 0199...",
        parents=remote,
    )
    resume.add_argument("ids", nargs="+", metavar="ID")
    fork = add(
        run,
        "fork",
        "runs:fork",
        "start a new run with the recorded steps of another one\n\n"
        "Prints its id. The other run is not touched. Without --before it starts from scratch.",
        "tenure run fork 0198... --before 4",
        parents=remote,
    )
    fork.add_argument("id", metavar="ID")
    fork.add_argument(
        "--before",
        default="",
        metavar="STEP",
        help="step from which on it runs itself; `tenure run steps` has their ids",
    )


def _attributes(made: argparse.ArgumentParser, about: str) -> None:
    made.add_argument(
        "--attribute",
        dest="attributes",
        action="append",
        type=_pair,
        default=[],
        metavar="NAME=VALUE",
        help=about,
    )


def _pair(text: str) -> tuple[str, str]:
    name, sign, value = text.partition("=")
    if not (name and sign):
        raise argparse.ArgumentTypeError(f"{text!r} is no NAME=VALUE such as customer=c-7")
    return name, value
