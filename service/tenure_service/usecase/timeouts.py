"""Timeouts: of tasks that wait, and of tasks that workers hold.

Each task carries its deadlines where it is live, so a timeout fires whatever else happens, and is
armed again by whatever puts the task back. `deadline_at` of a lease is only when to look: what is
overdue is computed from the policy, the handler's start and its last progress, under the lease's
lock. Holds INV-07, INV-08, INV-12.
"""

import dataclasses
import logging
import random
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta

from tenure_service.engine import retry
from tenure_service.engine.policy import Policy, TimeoutAction, TimeoutKind
from tenure_service.engine.states import Outcome
from tenure_service.engine.tokens import TaskKey
from tenure_service.store import deliveries, inbox, leases, rows, timers
from tenure_service.store.database import Conn, Database
from tenure_service.usecase import end, end_runs
from tenure_service.usecase.catalogue import Catalogue

_log = logging.getLogger(__name__)

_LEASES_A_PASS = 20
_WAITING_A_PASS = 500

#: What is over is said first; then what the attempt has run into.
_ORDER = (TimeoutKind.TOTAL, TimeoutKind.START_TO_CLOSE, TimeoutKind.HEARTBEAT)


def failure(kind: TimeoutKind, limit_ms: int | None) -> rows.Json:
    """Describes a timeout as a failure."""
    word = "".join(part.capitalize() for part in kind.split("_"))
    seconds = (limit_ms or 0) / 1000
    return {"type": f"{word}Timeout", "message": f"{kind} timeout of {seconds:g} s is over"}


def sweep(
    database: Database, catalogue: Catalogue, *, now: datetime | None = None
) -> end.Ends | None:
    """Ends what is overdue, under some leases and of some waiting tasks; None if nothing was."""
    held = database.transact(lambda conn: _sweep_leases(conn, catalogue, now))
    waiting = database.transact(lambda conn: _sweep_waiting(conn, catalogue, now))
    runs = database.transact(lambda conn: _sweep_runs(conn, catalogue, now))
    found = [ends for ends in (held, waiting, runs) if ends is not None]
    if not found:
        return None
    merged = found[0]
    for ends in found[1:]:
        merged.add(ends)
    return merged


@dataclass(frozen=True, slots=True)
class _Limits:
    """The deadlines of one task under a lease, those that have none left out."""

    by_kind: Mapping[TimeoutKind, datetime]

    def overdue(self, now: datetime) -> list[TimeoutKind]:
        return [kind for kind in _ORDER if kind in self.by_kind and self.by_kind[kind] <= now]

    def next_after(self, now: datetime) -> datetime | None:
        return min((at for at in self.by_kind.values() if at > now), default=None)


def _limits(lease: rows.LeaseRow, at: int, policy: Policy) -> _Limits:
    task_id = lease.task_ids[at]
    found: dict[TimeoutKind, datetime] = {}
    total_by = None if lease.total_bys is None else lease.total_bys[at]
    if total_by is not None:
        found[TimeoutKind.TOTAL] = total_by
    if task_id in (lease.started_task_ids or ()):
        started_at = (lease.started_at or [])[(lease.started_task_ids or []).index(task_id)]
        said = (lease.details or {}).get(task_id)
        beat_at = started_at if said is None else datetime.fromtimestamp(float(said["at"]), UTC)
        for kind, since in (
            (TimeoutKind.START_TO_CLOSE, started_at),
            (TimeoutKind.HEARTBEAT, max(started_at, beat_at)),
        ):
            limit_ms = policy.limit_ms(kind)
            if limit_ms is not None:
                found[kind] = since + timedelta(milliseconds=limit_ms)
    alerted = set(lease.alerted or ())
    return _Limits({kind: by for kind, by in found.items() if _alert(task_id, kind) not in alerted})


def _alert(task_id: str, kind: TimeoutKind) -> str:
    return f"{task_id}:{kind}"


def _sweep_leases(conn: Conn, catalogue: Catalogue, now: datetime | None) -> end.Ends | None:
    locked = leases.lock_overdue(conn, _LEASES_A_PASS, now=now)
    if not locked:
        return None
    keys = [
        (TaskKey(run_id, task_id), lease.lease_id)
        for lease in locked
        for run_id, task_id in zip(lease.run_ids, lease.task_ids, strict=True)
    ]
    ended = deliveries.classify(conn, keys)
    ids = deliveries.policy_ids(conn, [key for key, _ in keys])
    policies = catalogue.policies(ids.values(), conn)
    endings: list[end.Ending] = []
    deadlines: list[leases.Deadline] = []
    for lease in locked:
        alerted: list[str] = []
        nexts: list[datetime | None] = []
        for at, task_id in enumerate(lease.task_ids):
            if (task_id, lease.lease_id) in ended:
                continue
            policy = policies[ids[task_id]]
            limits = _limits(lease, at, policy)
            kind = _acted_on(task_id, limits.overdue(lease.read_at), policy, alerted)
            if kind is None:
                nexts.append(limits.next_after(lease.read_at))
            else:
                endings.append(_ending(lease, at, kind, policy))
        deadline_at = min((at for at in nexts if at is not None), default=None)
        deadlines.append(leases.Deadline(lease.lease_id, deadline_at, alerted))
    leases.set_deadlines(conn, deadlines)
    return end.end(conn, catalogue, endings, locked=locked, now=now)


def _acted_on(
    task_id: str, overdue: Iterable[TimeoutKind], policy: Policy, alerted: list[str]
) -> TimeoutKind | None:
    """Gives the first timeout that is acted on; those that are only told of are told here."""
    for kind in overdue:
        if not _alerts_only(policy, kind):
            return kind
        _tell(task_id, kind, policy)
        alerted.append(_alert(task_id, kind))
    return None


def _alerts_only(policy: Policy, kind: TimeoutKind) -> bool:
    found = policy.timeout(kind)
    return found is not None and found.action is TimeoutAction.ALERT_ONLY


def _tell(task_id: str, kind: TimeoutKind, policy: Policy) -> None:
    _log.warning(
        "task %s: %s",
        task_id,
        failure(kind, policy.limit_ms(kind))["message"],
        extra={"task_id": task_id},
    )


def _ending(lease: rows.LeaseRow, at: int, kind: TimeoutKind, policy: Policy) -> end.Ending:
    return end.Ending(
        lease_id=lease.lease_id,
        secret=None,
        key=TaskKey(lease.run_ids[at], lease.task_ids[at]),
        outcome=Outcome.TIMED_OUT,
        failure=failure(kind, policy.limit_ms(kind)),
        timeout=kind,
    )


@dataclass(slots=True)
class _Fates:
    """What becomes of waiting tasks whose timeout is due."""

    ends: list[deliveries.NewDelivery]
    backs: list[deliveries.PutBack]
    deaths: list[deliveries.Death]
    tally: end.Tally


def _sweep_waiting(conn: Conn, catalogue: Catalogue, now: datetime | None) -> end.Ends | None:
    taken = timers.take_overdue(conn, _WAITING_A_PASS, now=now)
    if not taken:
        return None
    ids = deliveries.policy_ids(conn, [TaskKey(row.run_id, row.task_id) for row in taken])
    policies = catalogue.policies(ids.values(), conn)
    fates = _Fates([], [], [], end.Tally())
    for row in taken:
        _decide_waiting(row, policies[ids[row.task_id]], fates)
    return _write_waiting(conn, fates, now)


def _decide_waiting(row: rows.WaitingOverdue, policy: Policy, fates: _Fates) -> None:
    kind = TimeoutKind.TOTAL if row.total_over else TimeoutKind.SCHEDULE_TO_START
    if _alerts_only(policy, kind):
        _tell(row.task_id, kind, policy)
        # The same place without the limit that was told of; no hand-out has ended.
        fates.backs.append(_back(row, keep_total=kind is not TimeoutKind.TOTAL))
        return
    verdict = retry.after_timeout(
        policy,
        kind,
        attempt=row.attempt,
        share=random.random(),  # noqa: S311 - spreads load
    )
    final = not isinstance(verdict, retry.Retry)
    fates.tally.timeouts[kind] += 1
    fates.ends.append(
        deliveries.NewDelivery(
            run_id=row.run_id,
            task_id=row.task_id,
            delivery=row.delivery,
            attempt=row.attempt,
            outcome=Outcome.TIMED_OUT,
            final=final,
            failure=failure(kind, policy.limit_ms(kind)),
        )
    )
    if isinstance(verdict, retry.Retry):
        start_ms = policy.limit_ms(TimeoutKind.SCHEDULE_TO_START)
        fates.backs.append(_next(row, verdict.delay_ms, start_ms))
        fates.tally.retried_count += 1
    elif isinstance(verdict, retry.Dead):
        fates.tally.deaths[verdict.reason] += 1
        fates.deaths.append(
            deliveries.Death(
                run_id=row.run_id,
                task_id=row.task_id,
                namespace_id=row.namespace_id,
                delivery=row.delivery,
                attempt=row.attempt,
                reason=verdict.reason,
            )
        )


def _back(row: rows.WaitingOverdue, *, keep_total: bool) -> deliveries.PutBack:
    return deliveries.PutBack(
        run_id=row.run_id,
        task_id=row.task_id,
        namespace_id=row.namespace_id,
        lane_id=row.lane_id,
        rank=row.rank,
        attempt=row.attempt,
        delivery=row.delivery,
        lost_count=row.lost_count,
        seq=row.seq,
        total_by=row.total_by if keep_total else None,
    )


def _next(row: rows.WaitingOverdue, delay_ms: int, start_ms: int | None) -> deliveries.PutBack:
    """Gives the place of the next attempt: at the end of the lane, or after a delay."""
    return dataclasses.replace(
        _back(row, keep_total=True),
        attempt=row.attempt + 1,
        delivery=row.delivery + 1,
        seq=None,
        delay_ms=delay_ms,
        start_ms=start_ms,
    )


def _write_waiting(conn: Conn, fates: _Fates, now: datetime | None) -> end.Ends:
    ends = end.Ends(recorded=[], tally=fates.tally)
    if fates.ends:
        deliveries.insert(conn, fates.ends, now=now)
        ends.over = [one.task_id for one in fates.ends if one.final]
        ends.inboxes.update(
            one.run_id for one in fates.ends if one.final and one.run_id != one.task_id
        )
    if fates.backs:
        deliveries.put_back(conn, fates.backs, now=now)
        for back in fates.backs:
            ends.put_back(back)
    if fates.deaths:
        deliveries.bury(conn, fates.deaths, now=now)
    return ends


def _sweep_runs(conn: Conn, catalogue: Catalogue, now: datetime | None) -> end.Ends | None:
    """Ends runs whose timeout is over while no worker has them; those that are locked come later."""
    overdue = inbox.overdue(conn, _WAITING_A_PASS, now=now)
    locked = inbox.lock_free(conn, overdue) if overdue else {}
    if not locked:
        return None
    taken = inbox.take_overdue(conn, locked.keys(), now=now)
    ids = deliveries.policy_ids(conn, [TaskKey(row.run_id, row.task_id) for row in taken])
    policies = catalogue.policies(ids.values(), conn)
    failures = {
        row.run_id: failure(
            TimeoutKind.TOTAL, policies[ids[row.run_id]].limit_ms(TimeoutKind.TOTAL)
        )
        for row in taken
    }
    ends = end_runs.finish(conn, taken, Outcome.TIMED_OUT, failures, now)
    ends.tally.timeouts[TimeoutKind.TOTAL] += len(taken)
    return ends
