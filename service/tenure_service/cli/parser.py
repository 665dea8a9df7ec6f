"""All commands with their flags, help and examples. Imports nothing that is slow to import."""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING, Any

from tenure_service import __version__
from tenure_service.cli import access_commands, exits, flags, policy_commands, run_commands
from tenure_service.cli.building import add as _add
from tenure_service.cli.building import group as _group

if TYPE_CHECKING:
    from collections.abc import Sequence

_ABOUT = """\
Durable tasks on PostgreSQL.

The first ten minutes:
  tenure new hello && cd hello
  tenure dev app:app                                        (in one terminal)
  tenure task enqueue greet --input '{"name": "Ada"}' --wait 10   (in another)
"""

_REPLAY = """\
make dead tasks ready again, attempts counted from 1

A replayed task keeps the policy that it was enqueued with: `tenure policy set` says what holds for
tasks enqueued from then on."""


def parse(arguments: Sequence[str]) -> argparse.Namespace:
    """Parses a command line; `call` of the result is `module:function` of this package.

    Prints help and exits by itself, with code 2 where the usage is wrong.
    """
    words = list(arguments)
    if words[:2] == ["worker", "list"]:
        # `tenure worker APP` takes any app but one called `list`, which has no colon in it.
        words[:2] = ["worker list"]
    return build().parse_args(words)


def build() -> argparse.ArgumentParser:
    """Builds the parser of the whole command line."""
    top = flags.Parser(
        prog="tenure",
        description=_ABOUT,
        epilog=f"`tenure COMMAND --help` explains each with an example.\n\n{exits.HELP}",
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    top.add_argument("--version", action="version", version=f"tenure {__version__}")
    commands = top.add_subparsers(title="commands", metavar="COMMAND", required=True)
    _start(commands)
    _run(commands)
    _task(commands)
    run_commands.build(commands)
    _dead_letter(commands)
    _registry(commands)
    policy_commands.build(commands)
    access_commands.build(commands)
    return top


# ---------------------------------------------------------------- the first ten minutes


def _start(commands: Any) -> None:
    new = _add(
        commands,
        "new",
        "new:run",
        "make a folder with two tasks, a test and a README\n\nNothing is ever overwritten.",
        "tenure new hello",
    )
    new.add_argument("name", metavar="NAME", help="folder to make; its last part names the app")
    dev = _add(
        commands,
        "dev",
        "dev:run",
        "run PostgreSQL, a server and a worker in this terminal\n\n"
        "The data stays in .tenure/ until you delete it. The worker starts again when a *.py file"
        "\nof the app changes, also after an error in one; a module that does not exist ends the"
        "\ncommand at once. Ctrl-C stops everything.",
        "tenure dev app:app\ntenure dev --port 0 --ephemeral",
    )
    dev.add_argument("app", nargs="?", metavar="MODULE:NAME", help="app to run a worker for")
    dev.add_argument("--dir", default=".tenure", metavar="DIR", help="where data is (.tenure)")
    dev.add_argument("--port", type=flags.port, default=7711, metavar="N", help="port (7711)")
    dev.add_argument("--ephemeral", action="store_true", help="start empty, forget at the end")
    dev.add_argument("--concurrency", type=flags.count, default=10, metavar="N", help="(10)")
    dev.add_argument("--verbose", action="store_true", help="show the server's own log too")


# ---------------------------------------------------------------------------- production


def _run(commands: Any) -> None:
    server = _add(
        commands,
        "server",
        "server:run",
        "run a server\n\n"
        "Prints `listening on HOST:PORT` when it is ready (a JSON object with --json); logs go to"
        "\nstderr. SIGTERM or Ctrl-C drains and stops. Flags go before variables.",
        "tenure server --database postgresql://tenure@db/tenure --listen 127.0.0.1:7711\n"
        "TENURE_DATABASE=... tenure server --processes 4",
        parents=[flags.settings()],
    )
    server.add_argument("--json", action="store_true", help="say where it listens as JSON")
    server.add_argument("--share-port", action="store_true", help=argparse.SUPPRESS)
    server.add_argument("--process-index", type=int, default=0, help=argparse.SUPPRESS)
    server.add_argument("--parent-fd", type=int, help=argparse.SUPPRESS)
    _worker(commands)
    _schema(commands)
    _doctor(commands)
    _health(commands)


def _worker(commands: Any) -> None:
    worker = _add(
        commands,
        "worker",
        "worker:run",
        "run a worker for an app; `tenure worker list` lists those that run\n\n"
        "SIGTERM or Ctrl-C lets running handlers end; a second one stops at once.",
        "tenure worker app:app\ntenure worker shop.tasks:app --queue payments --concurrency 50",
    )
    worker.add_argument("app", metavar="MODULE:NAME", help="app whose tasks and workflows it runs")
    worker.add_argument("--address", metavar="HOST:PORT", help="server (TENURE_ADDRESS)")
    worker.add_argument("--namespace", metavar="NAME", help="namespace (TENURE_NAMESPACE)")
    worker.add_argument(
        "--queue", action="append", metavar="Q", help="serve this queue; may be repeated"
    )
    worker.add_argument("--concurrency", type=flags.count, default=10, metavar="N", help="(10)")
    worker.add_argument(
        "--mode",
        choices=("thread", "process"),
        default="thread",
        help="where handlers run whose tasks do not say it (thread)",
    )
    worker.add_argument("--name", metavar="NAME", help="name for people (host and process id)")
    worker.add_argument(
        "--grace",
        type=flags.seconds,
        default=30.0,
        metavar="SECONDS",
        help="time for running handlers at a stop (30)",
    )
    worker.add_argument("--log-level", default="INFO", metavar="NAME", help="(INFO)")
    worker.add_argument(
        "--log-format",
        choices=("text", "json"),
        help="text, or json: an object a line (TENURE_LOG_FORMAT, else text)",
    )
    worker.add_argument("--parent-fd", type=int, help=argparse.SUPPRESS)
    worker.add_argument("--hint", action="store_true", help=argparse.SUPPRESS)


def _schema(commands: Any) -> None:
    migrate = _add(
        commands,
        "migrate",
        "schema:run",
        "bring the schema of a database up to date\n\nSafe to run from several places at once.",
        "tenure migrate --database postgresql://tenure@db/tenure\ntenure migrate --status",
    )
    flags.database(migrate)
    migrate.add_argument("--status", action="store_true", help="only say what is applied")
    migrate.add_argument("--phase", choices=["pre", "post"], help="only these, for a roll-out")
    migrate.add_argument("--json", action="store_true", help="print one JSON document")
    restore = _add(
        commands,
        "restore-check",
        "restore:run",
        "make a database safe that was restored to an earlier moment\n\n"
        "Ends the sessions and leases of that moment, whose tasks go back unspent, and holds timers:"
        "\nno delayed task, retry or timeout fires on any server until --release. Run it before"
        "\nservers start. Running it again is harmless.",
        "tenure restore-check --database postgresql://tenure@db/tenure --dry-run\n"
        "tenure restore-check\ntenure restore-check --release",
    )
    flags.database(restore)
    restore.add_argument("--dry-run", action="store_true", help="only say what it would do")
    restore.add_argument(
        "--force", action="store_true", help="also a database that servers work on at this moment"
    )
    restore.add_argument("--release", action="store_true", help="let the held timers go")
    restore.add_argument("--json", action="store_true", help="print one JSON document")
    settings = _add(
        commands,
        "config",
        "settings:run",
        "print the settings of a server with their sources, secrets masked",
        "tenure config\ntenure config --listen 0.0.0.0:7711 --json",
        parents=[flags.settings()],
    )
    settings.add_argument("--json", action="store_true", help="print one JSON document")


def _doctor(commands: Any) -> None:
    doctor = _add(
        commands,
        "doctor",
        "doctor:run",
        "say whether a database is in good order, and what to do\n\n"
        "Looks at PostgreSQL and its settings, the schema, the tables and the work in them. It only"
        "\nreads, and needs no server. Exits with 1 if a check fails; warnings are for people.",
        "tenure doctor --database postgresql://tenure@db/tenure\n"
        "tenure doctor --strict --timeout 10m --json",
    )
    flags.database(doctor)
    doctor.add_argument(
        "--timeout",
        type=flags.seconds_of_a_day,
        default=60.0,
        metavar="TIME",
        help="time for the invariants, which read whole tables (60s)",
    )
    doctor.add_argument("--strict", action="store_true", help="let warnings fail too")
    doctor.add_argument("--json", action="store_true", help="print one JSON document")


def _health(commands: Any) -> None:
    health = _add(
        commands,
        "health",
        "health:run",
        "ask one server whether it takes traffic, for health checks\n\n"
        "Prints one line. Exits with 0 only if the server says SERVING, which it does while its"
        "\ndatabase takes writes. Needs no key.",
        "tenure health\ntenure health --address server:7711 --timeout 2",
    )
    health.add_argument(
        "--address",
        metavar="HOST:PORT",
        help="server to ask (TENURE_ADDRESS, else 127.0.0.1:7711)",
    )
    health.add_argument(
        "--timeout",
        type=flags.seconds,
        default=5.0,
        metavar="SECONDS",
        help="time for an answer (5)",
    )


# --------------------------------------------------------------------------------- tasks


def _task(commands: Any) -> None:
    group = _group(commands, "task", "enqueue, read and cancel tasks")
    remote = [flags.remote()]
    _enqueue(group, remote)
    get = _add(
        group,
        "get",
        "tasks:get",
        "show a task and each time it was handed out",
        "tenure task get 0198... --payloads",
        parents=remote,
    )
    get.add_argument("id", metavar="ID")
    get.add_argument("--payloads", action="store_true", help="with input and output")
    _task_list(group, remote)
    cancel = _add(
        group,
        "cancel",
        "tasks:cancel",
        "ask for the end of tasks; running handlers may clean up",
        "tenure task cancel 0198... 0199... --reason 'wrong customer' --grace 5m",
        parents=remote,
    )
    cancel.add_argument("ids", nargs="+", metavar="ID")
    cancel.add_argument(
        "--reason",
        default="",
        metavar="TEXT",
        help="shown with the task; of a running one that is cancelled again the first reason stays",
    )
    cancel.add_argument(
        "--grace",
        type=flags.seconds,
        metavar="TIME",
        help="for running handlers to end (30s); cancelling again can only shorten it",
    )
    why = _add(
        group,
        "why",
        "tasks:why",
        "say why a task stands where it stands",
        "tenure task why 0198...",
        parents=remote,
    )
    why.add_argument("id", metavar="ID")


def _enqueue(group: Any, remote: Sequence[argparse.ArgumentParser]) -> None:
    enqueue = _add(
        group,
        "enqueue",
        "tasks:enqueue",
        "enqueue a task by name\n\n"
        "Prints its id; with --wait also its result, and exits with 1 unless it completed.",
        'tenure task enqueue greet --input \'{"name": "Ada"}\' --wait 10\n'
        "tenure task enqueue charge --input-file order.json --key order-17 --delay 5m\n"
        "tenure task enqueue charge --max-attempts 8 --start-to-close 30s",
        parents=remote,
    )
    enqueue.add_argument("name", metavar="NAME", help="name of the task; need not be registered")
    source = enqueue.add_mutually_exclusive_group()
    source.add_argument("--input", metavar="JSON", help="parameters by name, as one JSON object")
    source.add_argument("--input-file", metavar="FILE", help="the same from a file; - is stdin")
    enqueue.add_argument("--queue", default="", metavar="Q", help="queue (default)")
    enqueue.add_argument("--key", default="", help="idempotency key: a second one is the first")
    enqueue.add_argument("--lane", default="", help="lane key within the queue")
    enqueue.add_argument("--delay", type=flags.seconds, default=0.0, help="30, 5m, 2h: run later")
    enqueue.add_argument(
        "--priority", type=flags.priority, default=0, metavar="N", help="-100 to 100"
    )
    enqueue.add_argument(
        "--wait", type=flags.seconds, metavar="SECONDS", help="wait for the result"
    )
    flags.policy(enqueue)


def _task_list(group: Any, remote: Sequence[argparse.ArgumentParser]) -> None:
    listing = _add(
        group,
        "list",
        "tasks:list_",
        "list tasks, newest first\n\n"
        "Without --state it reads one state after another: a task that goes back to an earlier one"
        "\nmeanwhile may be left out.",
        "tenure task list --name charge --limit 20\n"
        "tenure task list --state READY --queue payments",
        parents=remote,
    )
    listing.add_argument(
        "--state",
        type=str.upper,
        choices=[
            "DELAYED",
            "READY",
            "LEASED",
            "RUNNING",
            "BACKOFF",
            "COMPLETED",
            "DEAD",
            "CANCELLED",
            "TIMED_OUT",
        ],
        metavar="STATE",
        help="DELAYED READY LEASED RUNNING BACKOFF COMPLETED DEAD CANCELLED TIMED_OUT (all)",
    )
    _filters(listing)


def _filters(made: argparse.ArgumentParser) -> None:
    made.add_argument("--queue", default="", metavar="Q", help="only this queue")
    made.add_argument("--name", default="", metavar="NAME", help="only tasks of this name")
    made.add_argument("--limit", type=flags.count, default=100, metavar="N", help="at most (100)")


def _dead_letter(commands: Any) -> None:
    group = _group(commands, "dead-letter", "tasks that ended without success: list, replay")
    remote = [flags.remote()]
    listing = _add(
        group,
        "list",
        "dead_letters:list_",
        "list tasks that ended without success, newest first",
        "tenure dead-letter list --name charge",
        parents=remote,
    )
    _filters(listing)
    listing.add_argument(
        "--state",
        type=str.upper,
        choices=["OPEN", "REPLAYED", "DISCARDED"],
        default="OPEN",
        metavar="STATE",
        help="OPEN (default), REPLAYED or DISCARDED",
    )
    show = _add(
        group,
        "show",
        "dead_letters:show_",
        "show a dead task with its input and the stack of its failure",
        "tenure dead-letter show 0198...",
        parents=remote,
    )
    show.add_argument("id", metavar="ID")
    for name, about in (
        (
            "replay",
            _REPLAY,
        ),
        ("discard", "mark dead letters as dealt with; the tasks stay readable"),
    ):
        made = _add(
            group,
            name,
            f"dead_letters:{name}",
            about,
            f"tenure dead-letter {name} 0198... 0199...\n"
            f"tenure dead-letter {name} --all --name charge",
            parents=remote,
        )
        made.add_argument("ids", nargs="*", metavar="ID")
        made.add_argument("--all", action="store_true", help="every open one of the filters")
        made.add_argument("--queue", default="", metavar="Q", help="with --all: of this queue")
        made.add_argument("--name", default="", metavar="NAME", help="with --all: of this name")


# ------------------------------------------------------------------------------ registry


def _registry(commands: Any) -> None:
    remote = [flags.remote()]
    queue = _group(commands, "queue", "what stands in the queues; pause and resume them")
    _add(
        queue,
        "list",
        "registry:list_queues",
        "count what stands where, by queue and task name",
        "tenure queue list",
        parents=remote,
    )
    for name, about in (
        ("pause", "hand nothing out of a queue; what runs goes on"),
        ("resume", "hand out of a queue again"),
    ):
        made = _add(
            queue,
            name,
            f"registry:{name}_queue",
            about,
            f"tenure queue {name} mail",
            parents=remote,
        )
        made.add_argument("name", metavar="QUEUE")
    _add(
        commands,
        "worker list",
        "registry:list_workers",
        "list workers that hold a session\n\n"
        "RECEIVING is `gone` for one that was not heard from for a minute and renews no lease: it was"
        "\nkilled, or is cut off. It leaves the list within two minutes more, unless it comes back.",
        "tenure worker list --json",
        parents=remote,
    )
    namespace = _group(commands, "namespace", "list and create namespaces")
    _add(
        namespace,
        "list",
        "registry:list_namespaces",
        "list namespaces",
        "tenure namespace list",
        parents=remote,
    )
    create = _add(
        namespace,
        "create",
        "registry:create_namespace",
        "create a namespace, unless there is one of this name",
        "tenure namespace create team-a",
        parents=remote,
    )
    create.add_argument("name", metavar="NAME")
