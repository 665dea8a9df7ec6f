"""The commands of keys and of the record of operators, with their flags."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from tenure_service.cli import flags
from tenure_service.cli.building import add, group

if TYPE_CHECKING:
    import argparse


def build(commands: Any) -> None:
    """Adds them."""
    keys = group(commands, "key", "make, list and revoke keys")
    _create(keys)
    _look(keys)
    audit = add(
        commands,
        "audit",
        "keys:audit",
        "list what operators did, newest first\n\n"
        "In the record is every call of AdminService and RegistryService with a key that is in\n"
        "force, also one that was refused for its scope, and what `tenure key` does at the database.\n"
        "So are CancelTasks, CancelRuns, ResumeRuns and ForkRun, which clients call, up to 60 times\n"
        "a minute each.\n"
        "Calls with no such key are in the servers' logs. Those that only read are left out here,\n"
        "unless --all, --refused or --operation asks for them.",
        "tenure audit --limit 20\n"
        "tenure audit --principal mailer --since 7d\n"
        "tenure audit --refused --since 2026-03-01 --until 2026-04-01T12:00:00+02:00",
        parents=[flags.remote()],
    )
    audit.add_argument(
        "--principal",
        "--key",
        default="",
        metavar="WHO",
        help="only by this one: a key's name or id, or what the column ACTOR says",
    )
    audit.add_argument(
        "--operation", default="", metavar="NAME", help="only this one, such as SetQueue"
    )
    audit.add_argument(
        "--since",
        type=flags.instant,
        metavar="TIME",
        help="only from then on: 2026-03-01, 2026-03-01T12:00:00+02:00, or how long ago, 7d",
    )
    audit.add_argument("--until", type=flags.instant, metavar="TIME", help="only before then")
    audit.add_argument(
        "--refused", action="store_true", help="only what was refused or failed, also reads"
    )
    audit.add_argument("--all", action="store_true", help="also what only reads")
    audit.add_argument(
        "--limit", type=flags.count, default=100, metavar="N", help="lines at most (100)"
    )


def _create(keys: Any) -> None:
    create = add(
        keys,
        "create",
        "keys:create",
        "make a key, and show its secret this once\n\n"
        "With --database it is made in the database itself: so the first key is made, which lets\n"
        "make others over the network.",
        "tenure key create ops --scope admin --every-namespace --database postgresql://...\n"
        "tenure key create mailer --scope worker --queue 'mail*' --expires 90d",
        parents=[flags.remote()],
    )
    create.add_argument("name", metavar="NAME", help="name for people")
    create.add_argument(
        "--scope",
        action="append",
        required=True,
        choices=["worker", "client", "admin"],
        dest="scopes",
        help="what it may be used for; may be repeated",
    )
    create.add_argument(
        "--queue",
        action="append",
        default=[],
        dest="queues",
        metavar="GLOB",
        help="queues that it may be used on (all); may be repeated",
    )
    create.add_argument(
        "--every-namespace", action="store_true", help="for every namespace, not for one"
    )
    create.add_argument(
        "--expires",
        type=flags.some_seconds,
        metavar="TIME",
        help="how long it lives, such as 90d (as long as the key that makes it)",
    )
    _database(create)


def _look(keys: Any) -> None:
    listed = add(
        keys,
        "list",
        "keys:list_",
        "list keys; their secrets are kept nowhere",
        "tenure key list --all",
        parents=[flags.remote()],
    )
    listed.add_argument("--all", action="store_true", help="also those that have ended")
    _database(listed)
    revoke = add(
        keys,
        "revoke",
        "keys:revoke",
        "end a key: calls are refused within 5 s, open streams end within 10 s",
        "tenure key revoke 0199c0de-0000-7000-8000-000000000000",
        parents=[flags.remote()],
    )
    revoke.add_argument("key_id", metavar="KEY_ID", help="as `tenure key list` shows it")
    _database(revoke)


def _database(command: argparse.ArgumentParser) -> None:
    flags.database(command.add_argument_group("instead of a server"))
