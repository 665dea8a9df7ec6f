"""`tenure restore-check`: makes a database safe that was restored to an earlier moment."""

from __future__ import annotations

import sys
import time
from typing import TYPE_CHECKING, Final

from tenure_service.cli import direct, exits, server, show

if TYPE_CHECKING:
    import argparse
    from collections.abc import Callable

    from tenure_service.store import rows
    from tenure_service.store.database import Database
    from tenure_service.usecase.restore import Findings, Voided

#: Pauses between lines where no terminal shows progress in place.
_LINE_SECONDS: Final = 2.0
_RELEASE: Final = "tenure restore-check --release"


def run(values: argparse.Namespace) -> int:
    """Holds timers and voids what a restored database still holds; or lets timers go."""
    if values.release and values.dry_run:
        raise exits.CommandFailed("--release and --dry-run exclude each other", exits.USAGE)
    with server.reported(), direct.opened(values, "tenure restore-check") as database:
        if values.release:
            return _release(database, values)
        from tenure_service.usecase import restore
        from tenure_service.usecase.catalogue import Catalogue

        if values.dry_run:
            findings = restore.look(database)
        else:
            _refuse_busy(restore.look(database), force=values.force)
            with show.progress("voiding sessions and leases") as say:
                findings = restore.check(
                    database, Catalogue(database), checked_by=direct.operator(), say=_paced(say)
                )
            show.note(_told(findings.voided))
        _print(findings, values)
    return exits.OK


def _release(database: Database, values: argparse.Namespace) -> int:
    from tenure_service.usecase import restore

    released, before = restore.release(database, released_by=direct.operator())
    if values.json:
        show.document({"released": released, "found": before.found})
    elif released is None:
        print("nothing to do: timers are not held")
    else:
        print(
            f"released: timers were held since {show.instant(released.checked_at)}; "
            f"{before.found.timer_due_count} timers and {before.found.timeout_due_count} timeouts "
            "of waiting tasks are due now"
        )
    return exits.OK


def _refuse_busy(findings: Findings, *, force: bool) -> None:
    """Refuses a database that servers work on: at three in the morning the wrong URL is near."""
    count = findings.found.present_count
    if count and not force:
        raise exits.CommandFailed(
            f"{count} sessions were heard from in the last 15 s: servers work on this database.\n"
            "Is it the restored one? If so stop them first, or say --force: what their workers hold "
            "runs again.",
            exits.CONFLICT,
        )


def _paced(say: Callable[[str], None]) -> Callable[[Voided], None]:
    """Tells of progress: each step on a terminal, a line now and then elsewhere."""
    said_at = time.monotonic()

    def tell(voided: Voided) -> None:
        nonlocal said_at
        now = time.monotonic()
        if sys.stderr.isatty() or now - said_at >= _LINE_SECONDS:
            said_at = now
            say(f"{_told(voided)} so far")

    return tell


def _told(voided: Voided) -> str:
    return (
        f"closed {voided.session_count} sessions, ended {voided.lease_count} leases, "
        f"of {voided.task_count} tasks"
    )


def _print(findings: Findings, values: argparse.Namespace) -> None:
    if findings.found.present_count:
        show.note(
            f"tenure: {findings.found.present_count} sessions were heard from in the last 15 s: "
            "servers worked on this database before it was checked"
        )
    if findings.repeated and not values.dry_run:
        show.note(
            "tenure: timers were held already, so only what was handed out before that is void; if "
            f"the database was restored again since, `{_RELEASE}` first, then check"
        )
    if values.json:
        show.document(
            {
                "dry_run": values.dry_run,
                "restore": findings.restore,
                "repeated": findings.repeated,
                "data": findings.data,
                "found": findings.found,
                "voided": findings.voided,
                "ready": findings.ready,
                "keys": findings.keys,
            }
        )
        return
    found, data = findings.found, findings.data
    done = found if values.dry_run else findings.voided
    word = "to void" if values.dry_run else "voided"
    show.facts(
        [
            (
                "data stands at",
                _moment(findings),
            ),
            ("last delivery", show.instant(data.delivery_ended_at)),
            ("last session seen", show.instant(data.session_seen_at)),
            (f"sessions {word}", str(done.session_count)),
            (f"leases {word}", f"{done.lease_count}, of {done.task_count} tasks"),
            ("timers", f"{found.timer_count}, {found.timer_due_count} of them due already"),
            ("timeouts due", f"{found.timeout_due_count} of waiting tasks"),
            ("timers held", _held(findings.restore)),
            ("keys in force", _keys(findings)),
        ]
    )
    print()
    show.table(
        ["namespace", "queue", "ready"],
        [(row.namespace, row.queue, row.ready_count) for row in findings.ready],
        empty="no task waits for a worker",
    )


def _moment(findings: Findings) -> str:
    """Tells to which moment the data stands: the one that was found first."""
    until = findings.data.data_until
    text = show.instant(until) if until else "the beginning: it is empty"
    if findings.repeated and findings.restore is not None:
        text += f", as the check of {show.instant(findings.restore.checked_at)} found it"
    return text


def _keys(findings: Findings) -> str | None:
    """Names the keys: a restore makes those good again that were revoked after its moment."""
    if not findings.keys:
        return None
    names = ", ".join(f"{key.name} ({key.id})" for key in findings.keys)
    return (
        f"{len(findings.keys)}: {names}\n"
        "one that was revoked since that moment is in force again: `tenure key revoke ID --database`"
        " before\nservers start; one that was made since is not known"
    )


def _held(restore: rows.RestoreRow | None) -> str:
    if restore is None:
        return "no"
    return (
        f"since {show.instant(restore.checked_at)}, by {restore.checked_by}\n"
        f"`{_RELEASE}` lets them go"
    )
