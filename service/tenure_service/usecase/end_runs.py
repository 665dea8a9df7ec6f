"""What the end of an activation makes of its run, and runs that end where they wait.

    lock the runs               after their leases, before anything is decided: who cancels or wakes
                                a run has locked it, and what they committed is seen
    decide                      over, put back, suspended, or blocked
    take their inboxes          before what they speak of is looked at (INV-01)
    note the waits, look        a set that is complete already lets its run go on at once
    write the state             with the end of a run the word to the run that started it, and the
                                requests to cancel what it started

Holds INV-01, INV-02, INV-04, INV-07.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from typing import Final

from tenure_service.engine import limits, retry
from tenure_service.engine.states import Outcome, RunBlocked, RunStatus
from tenure_service.engine.tokens import TaskKey
from tenure_service.store import cancels, deliveries, inbox, rows, versions
from tenure_service.store.database import Conn
from tenure_service.store.inbox import Settled, WaitSet
from tenure_service.store.registry import Lane
from tenure_service.store.versions import SessionHandler
from tenure_service.usecase.catalogue import Catalogue
from tenure_service.usecase.ending import (
    CANCELLED_TYPE,
    Ends,
    Held,
    Plan,
    new_delivery,
    put_back,
    why_cancelled,
)

#: What is taken from one inbox at a time; what is left matches nothing that is waited for.
INBOX_ROWS_A_RUN: Final = 1_000
_SPREAD_REASON: Final = "the run that started it was cancelled or timed out"
_STATUS: Final = {
    Outcome.DONE: RunStatus.COMPLETED,
    Outcome.FAILED: RunStatus.FAILED,
    Outcome.CANCELLED: RunStatus.CANCELLED,
    Outcome.TIMED_OUT: RunStatus.TIMED_OUT,
}
#: Ends with which what a run started ends, too.
_SPREADING: Final = frozenset({RunStatus.CANCELLED, RunStatus.TIMED_OUT})
#: Endings after which a run goes on.
_GOING_ON: Final = frozenset(
    {Outcome.LOST, Outcome.RELEASED, Outcome.RESCHEDULED, Outcome.SUSPENDED}
)


@dataclass(frozen=True, slots=True)
class Run:
    """A locked run whose activation ends, the version that had it, and the lane it goes back to."""

    row: rows.RunLocked
    version: str | None
    lane_id: int


def lock(conn: Conn, catalogue: Catalogue, held: Sequence[Held]) -> dict[str, Run]:
    """Locks the runs among what is held, by their ids; no run, no statement."""
    lanes = catalogue.lanes({one.lease.lane_id for one in held}, conn)
    of_runs = [one for one in held if lanes[one.lease.lane_id].is_of_runs]
    if not of_runs:
        return {}
    locked = inbox.lock(conn, (one.ending.key.run_id for one in of_runs))
    handlers = {one.number: _handler(one, lanes[one.lease.lane_id]) for one in of_runs}
    found = versions.of_sessions(conn, set(handlers.values()))
    back: dict[int, Lane] = {}
    for one in of_runs:
        version = found.get(handlers[one.number])
        lane = lanes[one.lease.lane_id]
        row = locked[one.ending.key.run_id]
        suspect = _lost_count(one) >= limits.SUSPECT_LOST and not _is_exhausted(one, row)
        back[one.number] = lane._replace(app_version=version or lane.app_version, suspect=suspect)
    wanted = {back[one.number] for one in of_runs if one.ending.outcome in _GOING_ON}
    lane_ids = catalogue.lane_ids_in(conn, wanted) if wanted else {}
    return {
        one.ending.key.run_id: Run(
            locked[one.ending.key.run_id],
            found.get(handlers[one.number]),
            lane_ids.get(back[one.number], one.lease.lane_id),
        )
        for one in of_runs
    }


def _handler(one: Held, lane: Lane) -> SessionHandler:
    return SessionHandler(one.lease.session_id, lane.queue, lane.name)


def _lost_count(held: Held) -> int:
    """Counts the activations that were lost in a row, with this ending."""
    before = held.lease.lost_counts[held.at]
    if held.ending.outcome is Outcome.LOST:
        return before + 1
    return 0 if held.ending.outcome is Outcome.SUSPENDED else before


def _is_exhausted(held: Held, row: rows.RunLocked) -> bool:
    return held.ending.outcome is Outcome.LOST and _lost_count(held) >= row.recovery_attempts


def decide(held: Held, run: Run, *, cancel_reason: str | None) -> Plan:
    """Decides what follows on the end of an activation, if its delivery is inserted."""
    outcome = held.ending.outcome
    if outcome is Outcome.DONE:
        return _over(held, run, Outcome.DONE)
    if cancel_reason is not None and not _may_clean_up(held, run):
        return _over(held, run, Outcome.CANCELLED, why_cancelled(cancel_reason))
    if outcome is Outcome.TIMED_OUT:
        return _over(held, run, Outcome.TIMED_OUT)
    if outcome is Outcome.LOST:
        return _lost(held, run)
    if outcome is Outcome.SUSPENDED:
        if held.ending.blocked:
            return _block(held, run, RunBlocked.HISTORY_MISMATCH, held.ending.failure)
        back = put_back(
            held,
            None,
            lane_id=run.lane_id,
            lost_count=0,
            delay_ms=held.ending.wake_ms if cancel_reason is None else 0,
            suspended=cancel_reason is None,
        )
        # It does not wait while it is to be cancelled: its next activation is told.
        waits = RunStatus.WAITING if cancel_reason is None else RunStatus.OPEN
        return _plan(held, run, back, waits)
    if outcome is Outcome.RELEASED:
        back = put_back(held, None, lane_id=run.lane_id, seq=held.lease.seqs[held.at])
        return _plan(held, run, back)
    if outcome is Outcome.RESCHEDULED:
        delay_ms = held.ending.delay_ms
        return _plan(held, run, put_back(held, None, lane_id=run.lane_id, delay_ms=delay_ms))
    failure = {"type": CANCELLED_TYPE, "message": "the function gave up"}
    return _over(held, run, Outcome.FAILED, failure)


def _may_clean_up(held: Held, run: Run) -> bool:
    """Says whether a run that is to be cancelled goes on, so that its function is told.

    Its activation ended before that: it just suspended, its worker stopped or was lost. The grace of
    the request ends it in any case.
    """
    ending = held.ending
    if ending.outcome is Outcome.SUSPENDED:
        return not ending.blocked
    if ending.outcome is Outcome.LOST:
        return not _is_exhausted(held, run.row)
    return ending.outcome is Outcome.RELEASED


def _lost(held: Held, run: Run) -> Plan:
    lost_count = _lost_count(held)
    if _is_exhausted(held, run.row):
        why = {
            "type": "RecoveriesExhausted",
            "message": f"its last {lost_count} activations lost their workers",
        }
        return _block(held, run, RunBlocked.RECOVERIES_EXHAUSTED, why)
    back = put_back(
        held,
        None,
        lane_id=run.lane_id,
        lost_count=lost_count,
        delay_ms=retry.loss_delay_ms(lost_count),
    )
    return _plan(held, run, back)


def _block(held: Held, run: Run, why: RunBlocked, failure: rows.Json | None) -> Plan:
    back = put_back(
        held,
        None,
        lane_id=run.lane_id,
        lost_count=_lost_count(held),
        delay_ms=None,
        suspended=True,
    )
    settled = Settled(
        run_id=run.row.run_id,
        status=RunStatus.BLOCKED,
        blocked=why,
        failure=failure,
        version=run.version,
    )
    delivery = new_delivery(held, held.ending.outcome, final=False)
    return Plan(held, delivery, back, None, settled)


def _plan(
    held: Held, run: Run, back: deliveries.PutBack, status: RunStatus = RunStatus.OPEN
) -> Plan:
    settled = Settled(run_id=run.row.run_id, status=status, version=run.version)
    return Plan(held, new_delivery(held, held.ending.outcome, final=False), back, None, settled)


def _over(held: Held, run: Run, outcome: Outcome, failure: rows.Json | None = None) -> Plan:
    settled = Settled(run_id=run.row.run_id, status=_STATUS[outcome], version=run.version)
    delivery = new_delivery(held, outcome, final=True, failure=failure)
    return Plan(held, delivery, None, None, settled)


def follow_up(
    conn: Conn, plans: Sequence[Plan], ends: Ends, now: datetime | None
) -> list[deliveries.PutBack]:
    """Writes the states of runs whose activations ended; gives what is put back, for the caller."""
    settled = {plan.settled.run_id: plan.settled for plan in plans if plan.settled is not None}
    waits = {
        plan.held.ending.key.run_id: plan.held.ending.waits
        for plan in plans
        if plan.back is not None and plan.back.suspended and plan.held.ending.waits
    }
    complete = _settle(conn, settled, waits, ends, now)
    backs: list[deliveries.PutBack] = []
    for plan in plans:
        if plan.back is None:
            continue
        at_once = plan.back.run_id in complete
        backs.append(replace(plan.back, suspended=False, delay_ms=0) if at_once else plan.back)
    return backs


def _settle(
    conn: Conn,
    settled: Mapping[str, Settled],
    waits: Mapping[str, Sequence[WaitSet]],
    ends: Ends,
    now: datetime | None,
) -> set[str]:
    """Writes the states of locked runs, and their waits; gives those that go on at once."""
    inbox.take(conn, settled.keys(), INBOX_ROWS_A_RUN)
    inbox.forget_waits(conn, settled.keys())
    complete = inbox.wait(conn, list(waits.items())) if waits else set()
    if complete:
        inbox.forget_waits(conn, complete)
    found = [
        replace(one, status=RunStatus.OPEN) if run_id in complete else one
        for run_id, one in settled.items()
    ]
    ends.inboxes.update(inbox.settle(conn, found, now=now))
    # What ends between the look and the commit finds the run locked, and leaves it to us.
    ends.inboxes.update(waits.keys() - complete)
    stopped = [one.run_id for one in found if one.status in _SPREADING]
    if stopped:
        spread = cancels.spread(conn, stopped, reason=_SPREAD_REASON, now=now)
        ends.spread = ends.spread or spread
    return complete


def finish(
    conn: Conn,
    taken: Sequence[rows.WaitingTaken],
    outcome: Outcome,
    failures: Mapping[str, rows.Json | None],
    now: datetime | None,
) -> Ends:
    """Ends locked runs that were taken from where they waited."""
    ends = Ends(recorded=[])
    if not taken:
        return ends
    new = [
        deliveries.NewDelivery(
            run_id=row.run_id,
            task_id=row.task_id,
            delivery=row.delivery,
            # One that no worker has had never began.
            attempt=row.attempt if row.delivery > 1 else row.attempt - 1,
            outcome=outcome,
            final=True,
            failure=failures.get(row.run_id),
        )
        for row in taken
    ]
    deliveries.insert(conn, new, now=now)
    cancels.delete(conn, [TaskKey(row.run_id, row.task_id) for row in taken])
    settled = {row.run_id: Settled(run_id=row.run_id, status=_STATUS[outcome]) for row in taken}
    _settle(conn, settled, {}, ends, now)
    ends.over = [row.run_id for row in taken]
    ends.tally.outcomes[outcome] += len(taken)
    return ends
