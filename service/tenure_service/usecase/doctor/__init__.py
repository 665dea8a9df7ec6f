"""Says whether a database is in good order, and what to do about each thing that is not.

`server` has the checks of PostgreSQL itself, `structure` and `tables` those of our tables, `work`
those of what stands in them. A check is a function that reads by `store.doctor` and gives one finding or more;
what it cannot read it says, as a warning of its own. Nothing is written, and nothing is asked of a
running server: doctor also works when none will start.

A check fails where a server does not run, loses or doubles work; it warns where one runs worse than
it could, or where somebody should look. A rule that is often true of a healthy database is no check.
"""

from collections.abc import Callable, Sequence
from datetime import datetime, timedelta
from typing import Final

from tenure_service.store import doctor
from tenure_service.usecase.doctor import server, structure, tables, work
from tenure_service.usecase.doctor.findings import Case, Finding, Level, failed, warned

__all__ = ["Finding", "Level", "examine"]

Check = Callable[[Case], list[Finding]]

_SERVER: Final[Sequence[tuple[str, Check]]] = (
    ("writable", server.writable),
    ("rights", server.rights),
    ("durability", server.durability),
    ("autovacuum", server.autovacuum),
    ("timeouts", server.timeouts),
    ("connections", server.connections),
    ("memory", server.memory),
    ("clock", server.clock),
    ("snapshots", server.snapshots),
)
_TABLES: Final[Sequence[tuple[str, Check]]] = (
    ("partitions", tables.ahead),
    ("structure", structure.whole),
    ("options", tables.options),
    ("bloat", tables.bloat),
    ("timers", work.timers),
    ("running", work.running),
    ("listening", work.listening),
    ("unserved", work.unserved),
    ("dead-letters", work.dead_letters),
)
#: One statement of a check; the invariants read whole tables and have a limit of their own.
_STATEMENT: Final = timedelta(seconds=20)


def examine(
    dsn: str, schema: str, *, limit: timedelta, now: datetime | None = None
) -> list[Finding]:
    """Makes all checks.

    Args:
        dsn: The database, as a URL or conninfo string.
        schema: The schema of the tables.
        limit: How long the invariants may take.
        now: What counts as now for everything that has an age; None is the database's own time.

    Returns:
        One finding a check or more, in the order of the checks. The checks of tables are left out
        where there are none of this release.
    """
    try:
        with doctor.connected(dsn, schema) as conn:
            case = Case(conn=conn, dsn=dsn, schema=schema, limit=limit, now=now)
            return _examine(case)
    except doctor.NotChecked as exc:
        advice = "correct --database or TENURE_DATABASE, or start PostgreSQL"
        return [failed("connection", f"no database answers: {exc}", advice)]


def _examine(case: Case) -> list[Finding]:
    version = _one(case, "version", server.version)
    if _any_failed(version):
        return version
    schema = server.schema(case)
    found = version + schema + _all(case, _SERVER)
    if _any_failed(schema):
        return found
    return found + _all(case, _TABLES) + tables.invariants(case)


def _all(case: Case, checks: Sequence[tuple[str, Check]]) -> list[Finding]:
    return [finding for name, check in checks for finding in _one(case, name, check)]


def _one(case: Case, name: str, check: Check) -> list[Finding]:
    try:
        with doctor.reading(case.conn, _STATEMENT):
            return check(case)
    except doctor.NotChecked as exc:
        return [warned(name, f"not checked: {exc}", "try again, as the role that the servers use")]


def _any_failed(found: Sequence[Finding]) -> bool:
    return any(finding.level is Level.FAIL for finding in found)
