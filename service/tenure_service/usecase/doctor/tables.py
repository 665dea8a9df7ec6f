"""Checks of our tables: partitions ahead, storage options, bloat, invariants."""

import time
from datetime import timedelta
from typing import Final

from tenure_service.engine import limits
from tenure_service.store import doctor, partitions, rows
from tenure_service.store import invariants as checks
from tenure_service.usecase.doctor.findings import (
    Case,
    Finding,
    counted,
    failed,
    fine,
    listed,
    span,
    warned,
)

_AHEAD: Final = 2 * limits.PARTITION_WIDTH
#: Rows of these live for seconds, so that they bloat first.
_HOT: Final = ("ready_tasks_p", "timers", "leases", "sessions")
#: 5,000 tasks a second leave 300,000 dead rows in the minute between two naps of autovacuum. So a
#: count alone says little; vacuum that did not come for ten of its naps does, and so does a count
#: that no minute makes.
_DEAD_COUNT: Final = 20_000
_DEAD_COUNT_MANY: Final = 2_000_000
_UNVACUUMED: Final = timedelta(minutes=10)
#: The statements of invariants.sql give no more rows.
_BREACH_COUNT_MAX: Final = 100


def ahead(case: Case) -> list[Finding]:
    """New tasks have a partition to go to, for two widths at least."""
    duration = partitions.ahead(case.conn)
    if duration >= _AHEAD:
        return [fine("partitions", f"there are some for the next {span(duration)}")]
    names = [table.name for table in doctor.tables(case.conn, case.schema, now=case.now)]
    if not any(name.startswith(f"{partitions.PARENTS[0]}_p") for name in names):
        text = "there are none yet: no server has run here"
        return [warned("partitions", text, "start a server: it makes them")]
    if duration <= timedelta(0):
        text = "there is none for now: no task can be enqueued"
        return [failed("partitions", text, "start a server: it makes them, or says why it cannot")]
    advice = "start a server, or look for its warnings of the loop `partitions`"
    return [warned("partitions", f"there are some for the next {span(duration)} only", advice)]


def options(case: Case) -> list[Finding]:
    """Tables have the storage options that the migrations gave them, and are vacuumed."""
    wrong = [
        warned(
            "options",
            f"{table.name} has not {', '.join(missing)}",
            f"alter table {case.schema}.{table.name} set ({', '.join(missing)})",
        )
        for table in doctor.tables(case.conn, case.schema, now=case.now)
        if (missing := _missing(table))
    ]
    return wrong or [fine("options", "as the migrations set them")]


def _missing(table: rows.DoctorTable) -> list[str]:
    has = dict(option.split("=", 1) for option in table.options)
    wanted = {"autovacuum_enabled": "on"} if _is_off(has.get("autovacuum_enabled")) else {}
    wanted |= next(
        (each for name, each in doctor.TABLE_OPTIONS.items() if _is_of(table.name, name)), {}
    )
    return [f"{name} = {value}" for name, value in wanted.items() if has.get(name) != value]


def _is_off(value: str | None) -> bool:
    """Reads a boolean as somebody wrote it; PostgreSQL also takes the beginning of a word."""
    return value is not None and (value == "0" or value.lower().startswith(("f", "n", "of")))


def _is_of(table: str, name: str) -> bool:
    """Says whether a table is the one of a name, or a partition of its stem."""
    return table == name or (name.endswith("_p") and table.startswith(name))


def bloat(case: Case) -> list[Finding]:
    """Vacuum keeps up with the tables whose rows live for seconds."""
    hot = [
        table
        for table in doctor.tables(case.conn, case.schema, now=case.now)
        if any(_is_of(table.name, name) for name in _HOT)
    ]
    found = []
    for table in hot:
        late = table.dead_count >= _DEAD_COUNT and table.unvacuumed_duration >= _UNVACUUMED
        if table.dead_count > table.live_count and (late or table.dead_count >= _DEAD_COUNT_MANY):
            text = (
                f"{table.name} has {counted(table.dead_count, 'dead row')} and "
                f"{table.live_count:,} live, no vacuum for {span(table.unvacuumed_duration)}"
            )
            advice = f"see `snapshots` and `options`, then: vacuum {case.schema}.{table.name}"
            found.append(warned("bloat", text, advice))
    dead = sum(table.dead_count for table in hot)
    return found or [fine("bloat", f"{counted(dead, 'dead row')} in the tables that turn over")]


def invariants(case: Case) -> list[Finding]:
    """What must hold at any instant holds; each check by itself, all within the limit."""
    found: list[Finding] = []
    skipped: list[str] = []
    refused: list[str] = []
    end = time.monotonic() + case.limit.total_seconds()
    for name in checks.CHECKS:
        left = timedelta(seconds=end - time.monotonic())
        try:
            breaches = doctor.breaches(case.conn, name, left) if left > timedelta(0) else None
        except doctor.TooLong as exc:
            skipped.append(f"{name} ({exc})")
            continue
        except doctor.NotChecked as exc:
            refused.append(f"{name} ({exc})")
            continue
        if breaches is None:
            skipped.append(name)
        elif breaches:
            found.append(_broken(name, breaches))
    if skipped:
        text = f"not checked: {listed(skipped)}; the limit is {span(case.limit)}"
        found.append(warned("invariants", text, "give it more time: --timeout 10m"))
    if refused:
        advice = "try again, as the role that the servers use"
        found.append(warned("invariants", f"not checked: {listed(refused)}", advice))
    return found or [fine("invariants", f"all {len(checks.CHECKS)} hold")]


def _broken(name: str, breaches: list[rows.Breach]) -> Finding:
    first = breaches[0]
    more = " or more" if len(breaches) >= _BREACH_COUNT_MAX else ""
    return failed(
        "invariants",
        f"{name}: {len(breaches)}{more}, such as {first.task_id}: {first.detail}",
        f"docs/invariants.md has {name}; report it with `tenure task why {first.task_id}`",
    )
