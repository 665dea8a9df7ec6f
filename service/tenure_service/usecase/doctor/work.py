"""Checks of what stands in the tables: handlers without end, workers, names, dead letters."""

from datetime import timedelta
from typing import Final

from tenure_service.store import doctor, restores
from tenure_service.usecase import poll
from tenure_service.usecase.doctor.findings import Case, Finding, counted, fine, span, warned

#: A handler of an hour without a limit is more often stuck than long.
_RUN: Final = timedelta(hours=1)
#: Servers note each second whom they have a stream of, and a worker reconnects within seconds.
_SILENT: Final = timedelta(minutes=1)
_LATE: Final = timedelta(days=1)
#: A deployment that replaces all workers is over by then.
_WAITED: Final = timedelta(minutes=5)


def timers(case: Case) -> list[Finding]:
    """They fire: nobody holds them for a restore that is not over."""
    held = restores.held(case.conn)
    if held is None:
        return [fine("timers", "they are not held")]
    text = f"held since {held.checked_at:%Y-%m-%d %H:%M %Z} for a restore: none fires"
    return [warned("timers", text, "when all is as it should be: tenure restore-check --release")]


def running(case: Case) -> list[Finding]:
    """No handler runs for long with nothing to end it."""
    found = doctor.running(case.conn, _RUN, now=case.now)
    return [
        warned(
            "running",
            f"{counted(row.task_count, 'task')} {_named(row.name, row.queue, row.namespace)} "
            f"without a timeout, the oldest, {row.task_id}, since {span(row.run_duration)}",
            f"tenure task cancel {row.task_id}, or let it; give {row.name} a timeout",
        )
        for row in found
    ] or [fine("running", f"nothing runs for over {span(_RUN)} without a timeout")]


def listening(case: Case) -> list[Finding]:
    """A worker that renews its leases also listens for work."""
    found = doctor.deaf(case.conn, _SILENT, polling_hash=poll.POLLING_SECRET_HASH, now=case.now)
    return [
        warned(
            "listening",
            f"worker {row.worker} of {row.namespace} renews {counted(row.held_count, 'task')} and "
            f"has had no stream for {span(row.silent_duration)}",
            "restart it: it can be given nothing",
        )
        for row in found
    ] or [fine("listening", "every worker that renews has a stream")]


def unserved(case: Case) -> list[Finding]:
    """Every name that tasks wait for is known, and served where they wait."""
    return [
        warned(
            "unserved",
            f"tasks {_named(row.name, row.queue, row.namespace)} wait for "
            f"{span(row.wait_duration)}, and no worker "
            + ("serves the name there" if row.registered else "ever registered the name"),
            f"the queue is paused: `tenure queue resume {row.queue}`, and start a worker that serves it"
            if row.paused
            else "start a worker that serves this queue, or see `tenure task why ID`"
            if row.registered
            else "start a worker that has it, or correct the name and cancel them",
        )
        for row in doctor.unserved(case.conn, _WAITED, _SILENT, now=case.now)
    ] or [fine("unserved", "workers serve every name that tasks wait for")]


def dead_letters(case: Case) -> list[Finding]:
    """Nobody waits for somebody to look at what died."""
    return [
        warned(
            "dead-letters",
            f"{counted(row.task_count, 'task')} {_named(row.name, row.queue, row.namespace)} died "
            f"of {row.reason} within a day",
            f"tenure dead-letter list --name {row.name}, then replay or discard",
        )
        for row in doctor.dead(case.conn, _LATE, now=case.now)
    ] or [fine("dead-letters", "none of the last day is open")]


def _named(name: str, queue: str, namespace: str) -> str:
    where = "" if namespace == "default" else f" of {namespace}"
    return f"named {name} on queue {queue}{where}"
