"""Ending hand-outs, the careful form: the one place that decides what follows from an outcome.

    lock the lease rows         leases.lock (or the rows that expiry, release or cancel locked)
    look, decide                policy, cancel requests; nothing is written yet
    insert the deliveries       on conflict do nothing: whoever inserts wins
    follow up on what came back spend the lease, put back, bury, drop the cancel request
    classify the rest           recorded before under this lease, or lost

Each shortcut was shown to lose or to double a task: deciding from what was sent instead of from
what was inserted doubles the follow-up of a duplicate; looking and locking in one statement misses
what a concurrent transaction committed meanwhile. Holds INV-07, INV-11, INV-13.
"""

import base64
import random
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from enum import StrEnum
from typing import Final

from tenure_service.engine import limits, retry
from tenure_service.engine.policy import Policy, TimeoutKind
from tenure_service.engine.states import Outcome
from tenure_service.engine.tokens import TaskKey
from tenure_service.store import cancels, deliveries, leases, rows
from tenure_service.store.database import Conn
from tenure_service.usecase.catalogue import Catalogue

#: Type of the failure that says why a task was cancelled, or that its handler gave up unasked.
CANCELLED_TYPE: Final = "Cancelled"
#: Outcomes that a reported one may have been recorded as: a request to cancel turns what would be
#: put back into CANCELLED, and an unasked for CANCELLED is a failure.
_RECORDED_AS = {
    Outcome.DONE: {Outcome.DONE},
    Outcome.FAILED: {Outcome.FAILED, Outcome.CANCELLED},
    Outcome.CANCELLED: {Outcome.CANCELLED, Outcome.FAILED},
    Outcome.RELEASED: {Outcome.RELEASED, Outcome.CANCELLED},
    Outcome.RESCHEDULED: {Outcome.RESCHEDULED, Outcome.CANCELLED},
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Ending:
    """How one hand-out ended.

    `secret` and `namespace_id` are None where the server itself ends it; else they are the
    reporter's, and must be the lease's.
    """

    lease_id: str
    secret: bytes | None
    key: TaskKey
    outcome: Outcome
    run_ms: float | None = None
    output: bytes | None = None
    output_encoding: str | None = None
    output_schema: str | None = None
    failure: rows.Json | None = None
    delay_ms: int = 0
    timeout: TimeoutKind | None = None
    namespace_id: int | None = None


class Recorded(StrEnum):
    """What became of an ending."""

    RECORDED = "RECORDED"
    ALREADY_RECORDED = "ALREADY_RECORDED"
    LEASE_LOST = "LEASE_LOST"


@dataclass(slots=True)
class Tally:
    """How many hand-outs ended in which way, for the measures; nothing is decided from it."""

    outcomes: Counter[Outcome] = field(default_factory=Counter)
    timeouts: Counter[TimeoutKind] = field(default_factory=Counter)
    deaths: Counter[str] = field(default_factory=Counter)
    retried_count: int = 0
    run_ms: dict[Outcome, list[float]] = field(default_factory=dict)

    def add(self, other: "Tally") -> None:
        """Adds another one."""
        self.outcomes += other.outcomes
        self.timeouts += other.timeouts
        self.deaths += other.deaths
        self.retried_count += other.retried_count
        for outcome, found in other.run_ms.items():
            self.ran(outcome, found)

    def ran(self, outcome: Outcome, run_ms: Iterable[float | None]) -> None:
        """Notes how long handlers ran, as far as they said."""
        self.run_ms.setdefault(outcome, []).extend(each for each in run_ms if each is not None)


@dataclass(slots=True)
class Ends:
    """What became of all endings, in their order, and what others may want to know of it."""

    recorded: list[Recorded]
    over: list[str] = field(default_factory=list)
    #: Those of them that are over with an output, by namespace: who waits for it has it here.
    completions: list[tuple[int, leases.Completion]] = field(default_factory=list)
    #: Hand-outs that the server itself ended, whose workers are to be told.
    stopped: list[str] = field(default_factory=list)
    ready_lanes: dict[int, int] = field(default_factory=dict)
    timed_ms: list[int] = field(default_factory=list)
    tally: Tally = field(default_factory=Tally)

    def put_back(self, task: deliveries.PutBack) -> None:
        """Notes a task that goes back: its lane with the best rank, or its delay."""
        if task.delay_ms > 0:
            self.timed_ms.append(task.delay_ms)
        else:
            best = self.ready_lanes.get(task.lane_id, leases.RANK_MAX)
            self.ready_lanes[task.lane_id] = min(best, task.rank)


@dataclass(frozen=True, slots=True)
class _Held:
    """An ending whose lease is locked and names the task."""

    number: int
    ending: Ending
    lease: rows.LeaseRow
    at: int

    @property
    def attempt(self) -> int:
        return self.lease.attempts[self.at]

    @property
    def delivery(self) -> int:
        return self.lease.deliveries[self.at]


@dataclass(frozen=True, slots=True)
class _Plan:
    """What is inserted for a hand-out, and what follows if the insert wins."""

    held: _Held
    delivery: deliveries.NewDelivery
    back: deliveries.PutBack | None
    death: deliveries.Death | None


def end(
    conn: Conn,
    catalogue: Catalogue,
    endings: Sequence[Ending],
    *,
    locked: Sequence[rows.LeaseRow] | None = None,
    now: datetime | None = None,
) -> Ends:
    """Ends hand-outs inside the caller's transaction.

    Args:
        conn: In a transaction.
        catalogue: For policies and lanes.
        endings: Of any leases, and of one hand-out more than one: then the first counts.
        locked: The leases, if the caller has locked them already.
        now: Database time for tests.

    Returns:
        What became of each ending, in order; what is over; which lanes have something new.
    """
    if locked is None:
        locked = leases.lock(conn, sorted({ending.lease_id for ending in endings}))
    held, unheld = _match(endings, locked)
    plans = _plan(conn, catalogue, held)
    ends = Ends(recorded=[Recorded.LEASE_LOST] * len(endings))
    if plans:
        # A hand-out that is reported twice in one batch is won by the first: only that one is
        # inserted, since the insert does not say which of two equal keys it took.
        firsts: dict[tuple[str, int], _Plan] = {}
        for plan in plans:
            firsts.setdefault((plan.delivery.task_id, plan.delivery.delivery), plan)
        won = deliveries.insert(conn, [plan.delivery for plan in firsts.values()], now=now)
        winners = [plan for name, plan in firsts.items() if name in won]
        numbers = {plan.held.number for plan in winners}
        unheld += [(p.held.number, p.held.ending) for p in plans if p.held.number not in numbers]
        _follow_up(conn, winners, ends, now)
    if unheld:
        _classify(conn, unheld, ends)
    return ends


def _match(
    endings: Sequence[Ending], locked: Sequence[rows.LeaseRow]
) -> tuple[list[_Held], list[tuple[int, Ending]]]:
    """Splits endings into those whose lease is theirs, and the others."""
    by_id = {lease.lease_id: lease for lease in locked}
    places = {
        lease.lease_id: {task_id: at for at, task_id in enumerate(lease.task_ids)}
        for lease in locked
    }
    held: list[_Held] = []
    unheld: list[tuple[int, Ending]] = []
    for number, ending in enumerate(endings):
        lease = by_id.get(ending.lease_id)
        at = places[ending.lease_id].get(ending.key.task_id) if lease is not None else None
        if lease is None or at is None or not _is_of(ending, lease):
            unheld.append((number, ending))
        else:
            held.append(_Held(number, ending, lease, at))
    return held, unheld


def _is_of(ending: Ending, lease: rows.LeaseRow) -> bool:
    """Says whether who ends a hand-out may do so under this lease."""
    return ending.secret in (None, lease.secret) and (
        ending.namespace_id in (None, lease.namespace_id)
    )


def _plan(conn: Conn, catalogue: Catalogue, held: Sequence[_Held]) -> list[_Plan]:
    """Decides for each hand-out what is written, reading what the decisions need in bulk."""
    unsure = [one for one in held if one.ending.outcome is not Outcome.DONE]
    cancelled: dict[str, str] = {}
    policies: dict[str, Policy] = {}
    if unsure:
        task_keys = [one.ending.key for one in unsure]
        cancelled = cancels.requested(conn, task_keys)
        ids = deliveries.policy_ids(conn, task_keys)
        found = catalogue.policies(ids.values(), conn)
        policies = {task_id: found[policy_id] for task_id, policy_id in ids.items()}
    return [
        _decide(
            conn,
            catalogue,
            one,
            cancel_reason=cancelled.get(one.ending.key.task_id),
            policy=policies.get(one.ending.key.task_id),
        )
        for one in held
    ]


def _decide(
    conn: Conn,
    catalogue: Catalogue,
    held: _Held,
    *,
    cancel_reason: str | None,
    policy: Policy | None,
) -> _Plan:
    ending = held.ending
    if ending.outcome is Outcome.DONE:
        return _final(held, Outcome.DONE)
    if cancel_reason is not None:
        return _final(held, Outcome.CANCELLED, why_cancelled(cancel_reason))
    if policy is None:
        raise AssertionError(f"task {ending.key.task_id} has a lease but no row")
    if ending.outcome is Outcome.RELEASED:
        back = _back(held, policy, seq=held.lease.seqs[held.at])
        return _Plan(held, _delivery(held, Outcome.RELEASED, final=False), back, None)
    if ending.outcome is Outcome.RESCHEDULED:
        back = _back(held, policy, delay_ms=ending.delay_ms)
        return _Plan(held, _delivery(held, Outcome.RESCHEDULED, final=False), back, None)
    if ending.outcome is Outcome.LOST:
        return _lost(conn, catalogue, held, policy)
    if ending.outcome is Outcome.TIMED_OUT:
        return _timed_out(held, policy)
    return _failed(held, policy)


def _lost(conn: Conn, catalogue: Catalogue, held: _Held, policy: Policy) -> _Plan:
    lost_count = held.lease.lost_counts[held.at] + 1
    verdict = retry.after_loss(lost_count)
    if isinstance(verdict, retry.Dead):
        return _dead(held, Outcome.LOST, verdict)
    lane_id = held.lease.lane_id
    if lost_count >= limits.SUSPECT_LOST:
        lane_id = catalogue.suspect_lane_id(lane_id, conn)
    back = _back(held, policy, lane_id=lane_id, lost_count=lost_count, delay_ms=verdict.delay_ms)
    return _Plan(held, _delivery(held, Outcome.LOST, final=False), back, None)


def _failed(held: _Held, policy: Policy) -> _Plan:
    failure = held.ending.failure or {"type": CANCELLED_TYPE, "message": "the handler gave up"}
    verdict = retry.after_failure(
        policy,
        attempt=held.attempt,
        failure_type=failure["type"],
        non_retryable=bool(failure.get("non_retryable")),
        retry_after_ms=failure.get("retry_after_ms"),
        share=random.random(),  # noqa: S311 - spreads load, guards nothing
    )
    if isinstance(verdict, retry.Dead):
        return _dead(held, Outcome.FAILED, verdict)
    back = _back(held, policy, attempt=held.attempt + 1, delay_ms=verdict.delay_ms)
    return _Plan(held, _delivery(held, Outcome.FAILED, final=False), back, None)


def _timed_out(held: _Held, policy: Policy) -> _Plan:
    if held.ending.timeout is None:
        raise AssertionError("a timeout has a kind")
    verdict = retry.after_timeout(
        policy,
        held.ending.timeout,
        attempt=held.attempt,
        share=random.random(),  # noqa: S311 - spreads load, guards nothing
    )
    if isinstance(verdict, retry.TimedOut):
        return _final(held, Outcome.TIMED_OUT)
    if isinstance(verdict, retry.Dead):
        return _dead(held, Outcome.TIMED_OUT, verdict)
    back = _back(held, policy, attempt=held.attempt + 1, delay_ms=verdict.delay_ms)
    return _Plan(held, _delivery(held, Outcome.TIMED_OUT, final=False), back, None)


def _dead(held: _Held, outcome: Outcome, verdict: retry.Dead) -> _Plan:
    death = deliveries.Death(
        run_id=held.ending.key.run_id,
        task_id=held.ending.key.task_id,
        namespace_id=held.lease.namespace_id,
        delivery=held.delivery,
        attempt=held.attempt,
        reason=verdict.reason,
    )
    return _Plan(held, _delivery(held, outcome, final=True), None, death)


def why_cancelled(reason: str) -> rows.Json | None:
    """Gives the failure of a cancelled task, in which the reason outlives the request."""
    return {"type": CANCELLED_TYPE, "message": reason} if reason else None


def _final(held: _Held, outcome: Outcome, failure: rows.Json | None = None) -> _Plan:
    return _Plan(held, _delivery(held, outcome, final=True, failure=failure), None, None)


def _delivery(
    held: _Held, outcome: Outcome, *, final: bool, failure: rows.Json | None = None
) -> deliveries.NewDelivery:
    ending = held.ending
    failure = ending.failure or failure
    if outcome is Outcome.LOST:
        failure = {"type": "LeaseLost", "message": "the worker was lost before it reported"}
    output, encoding, schema = _left(held, outcome)
    return deliveries.NewDelivery(
        run_id=ending.key.run_id,
        task_id=ending.key.task_id,
        lease_id=ending.lease_id,
        session_id=held.lease.session_id,
        delivery=held.delivery,
        attempt=held.attempt,
        outcome=outcome,
        final=final,
        run_ms=_run_ms(held),
        output=output,
        output_encoding=encoding,
        output_schema=schema,
        failure=failure,
    )


def _run_ms(held: _Held) -> float | None:
    """Gives how long the handler ran: as its worker says, or else since the start that it told."""
    ending, lease = held.ending, held.lease
    started = lease.started_task_ids or []
    if ending.run_ms is not None or ending.key.task_id not in started:
        return ending.run_ms
    started_at = (lease.started_at or [])[started.index(ending.key.task_id)]
    return max((lease.read_at - started_at).total_seconds() * 1000, 0.0)


def _left(held: _Held, outcome: Outcome) -> tuple[bytes | None, str | None, str | None]:
    """Gives what a hand-out leaves: its output, or the last progress of a handler that had none."""
    ending = held.ending
    said = (held.lease.details or {}).get(ending.key.task_id)
    if outcome is Outcome.DONE or ending.output is not None or said is None:
        return ending.output, ending.output_encoding, ending.output_schema
    return base64.b64decode(said["data"]), said["encoding"], said["schema"]


def _back(
    held: _Held,
    policy: Policy,
    *,
    lane_id: int | None = None,
    attempt: int | None = None,
    lost_count: int | None = None,
    seq: int | None = None,
    delay_ms: int = 0,
) -> deliveries.PutBack:
    lease, at = held.lease, held.at
    return deliveries.PutBack(
        run_id=held.ending.key.run_id,
        task_id=held.ending.key.task_id,
        namespace_id=lease.namespace_id,
        lane_id=lease.lane_id if lane_id is None else lane_id,
        rank=lease.ranks[at],
        attempt=lease.attempts[at] if attempt is None else attempt,
        delivery=lease.deliveries[at] + 1,
        lost_count=lease.lost_counts[at] if lost_count is None else lost_count,
        seq=seq,
        delay_ms=delay_ms,
        total_by=None if lease.total_bys is None else lease.total_bys[at],
        start_ms=policy.limit_ms(TimeoutKind.SCHEDULE_TO_START),
    )


def _follow_up(conn: Conn, winners: Sequence[_Plan], ends: Ends, now: datetime | None) -> None:
    """Writes what follows from the deliveries that were inserted, and only from those."""
    for plan in winners:
        ends.recorded[plan.held.number] = Recorded.RECORDED
    if not winners:
        return
    leases.spend(conn, Counter(plan.held.lease.lease_id for plan in winners))
    backs = [plan.back for plan in winners if plan.back is not None]
    if backs:
        deliveries.put_back(conn, backs, now=now)
        for back in backs:
            ends.put_back(back)
    deaths = [plan.death for plan in winners if plan.death is not None]
    if deaths:
        deliveries.bury(conn, deaths, now=now)
    over = [plan.held.ending.key for plan in winners if plan.delivery.final]
    if over:
        cancels.delete(conn, over)
        ends.over = [key.task_id for key in over]
    _count(winners, ends.tally)
    ends.stopped = [
        plan.delivery.task_id
        for plan in winners
        if plan.held.ending.secret is None
        and plan.delivery.outcome in {Outcome.TIMED_OUT, Outcome.CANCELLED}
    ]


def _count(winners: Sequence[_Plan], tally: Tally) -> None:
    for plan in winners:
        outcome = Outcome(plan.delivery.outcome)
        tally.outcomes[outcome] += 1
        tally.ran(outcome, (plan.held.ending.run_ms,))
        if outcome is Outcome.TIMED_OUT and plan.held.ending.timeout is not None:
            tally.timeouts[plan.held.ending.timeout] += 1
        if plan.death is not None:
            tally.deaths[plan.death.reason] += 1
        if plan.back is not None and outcome in {Outcome.FAILED, Outcome.TIMED_OUT}:
            tally.retried_count += 1


def _classify(conn: Conn, unheld: Sequence[tuple[int, Ending]], ends: Ends) -> None:
    """Tells repeated reports of a recorded outcome from reports under a lost lease."""
    found = deliveries.classify(conn, [(ending.key, ending.lease_id) for _, ending in unheld])
    for number, ending in unheld:
        outcome = found.get((ending.key.task_id, ending.lease_id))
        if outcome is not None and outcome in _RECORDED_AS.get(ending.outcome, set()):
            ends.recorded[number] = Recorded.ALREADY_RECORDED
