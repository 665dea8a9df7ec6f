"""Runs that go on: because what they wait for has happened, or because an operator says so.

What a run has started leaves a row in its inbox when it is over. Whoever comes by takes the rows of
the runs that nobody has locked, counts them against what the runs wait for, and makes ready those
of which a set is complete: a constant number of statements for many runs. Rows of runs that are not
suspended are dropped: an activation that waits in memory is told by its server, and one that is
suspended later looks itself. Holds INV-01, INV-03, INV-04, INV-07.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Final

from tenure_service.engine.states import RunStatus
from tenure_service.store import inbox
from tenure_service.store.database import Conn, Database
from tenure_service.store.leases import RANK_MAX
from tenure_service.usecase.end_runs import INBOX_ROWS_A_RUN

#: Runs of one pass: each transaction is short.
RUNS_A_PASS: Final = 500


@dataclass(slots=True)
class Woken:
    """What a pass did."""

    #: Lanes in which runs are ready now, with the best rank.
    ready_lanes: dict[int, int] = field(default_factory=dict)
    run_ids: list[str] = field(default_factory=list)
    #: Runs that somebody else had locked, or of which there may be more: to be looked at again.
    left: list[str] = field(default_factory=list)


def wake(database: Database, run_ids: Sequence[str]) -> Woken:
    """Looks at the inboxes of these runs, RUNS_A_PASS at most, in one transaction."""
    return database.transact(lambda conn: _wake(conn, sorted(set(run_ids))))


def wake_any(database: Database, *, after: str = inbox.FIRST) -> tuple[Woken, str | None]:
    """Looks at the inboxes of the next runs that have something in theirs, after an id.

    Returns:
        What was done, and the id after which to go on; None if these were the last.
    """

    def work(conn: Conn) -> tuple[Woken, str | None]:
        found = inbox.pick(conn, RUNS_A_PASS, after=after)
        if not found:
            return Woken(), None
        woken = _wake(conn, found)
        if woken.left:
            inbox.drop(conn, woken.left)
        return woken, found[-1] if len(found) == RUNS_A_PASS else None

    return database.transact(work)


def _wake(conn: Conn, run_ids: Sequence[str]) -> Woken:
    locked = inbox.lock_free(conn, run_ids)
    woken = Woken(left=[run_id for run_id in run_ids if run_id not in locked])
    taken = inbox.take(conn, locked.keys(), INBOX_ROWS_A_RUN) if locked else []
    if not taken:
        return woken
    counts: dict[str, int] = {}
    for row in taken:
        counts[row.run_id] = counts.get(row.run_id, 0) + 1
    complete = inbox.count(conn, taken)
    if complete:
        _go_on(conn, sorted(complete), woken)
    woken.left += [
        run_id
        for run_id, count in counts.items()
        if count >= INBOX_ROWS_A_RUN and run_id not in complete
    ]
    return woken


def _go_on(conn: Conn, run_ids: Sequence[str], woken: Woken, *, recovered: bool = False) -> None:
    for row in inbox.go_on(conn, run_ids, recovered=recovered):
        woken.run_ids.append(row.run_id)
        best = woken.ready_lanes.get(row.lane_id, RANK_MAX)
        woken.ready_lanes[row.lane_id] = min(best, row.rank)


def resume(conn: Conn, run_ids: Sequence[str]) -> Woken:
    """Lets BLOCKED runs go on inside the caller's transaction, with their losses counted anew.

    `run_ids` of the answer are those that do; the others were not BLOCKED, or do not exist.
    """
    locked = inbox.lock(conn, run_ids)
    blocked = [run_id for run_id, row in locked.items() if row.status == RunStatus.BLOCKED]
    woken = Woken()
    if blocked:
        _go_on(conn, blocked, woken, recovered=True)
    return woken
