"""Ending hand-outs, the careful form: the one place that decides what follows from an outcome.

    lock the lease rows         leases.lock (or the rows that expiry, release or cancel locked)
    lock the runs               end_runs.lock, where a hand-out is an activation of a run
    look, decide                policy, cancel requests; nothing is written yet
    insert the deliveries       on conflict do nothing: whoever inserts wins
    follow up on what came back spend the lease, put back, bury, drop the cancel request; the
                                state of a run, and what it waits for
    classify the rest           recorded before under this lease, or lost

Each shortcut was shown to lose or to double a task: deciding from what was sent instead of from
what was inserted doubles the follow-up of a duplicate; looking and locking in one statement misses
what a concurrent transaction committed meanwhile. Holds INV-07, INV-11, INV-13.
"""

import random
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import replace
from datetime import datetime

from tenure_service.engine import limits, retry
from tenure_service.engine.policy import Policy
from tenure_service.engine.states import Outcome
from tenure_service.store import cancels, deliveries, leases, rows
from tenure_service.store.database import Conn
from tenure_service.usecase import end_runs
from tenure_service.usecase.catalogue import Catalogue
from tenure_service.usecase.end_runs import Run
from tenure_service.usecase.ending import (
    CANCELLED_TYPE,
    Ending,
    Ends,
    Held,
    Plan,
    Recorded,
    Tally,
    final_plan,
    new_delivery,
    put_back,
    why_cancelled,
)

__all__ = ["CANCELLED_TYPE", "Ending", "Ends", "Recorded", "Tally", "end", "why_cancelled"]

#: Outcomes that a reported one may have been recorded as: a request to cancel turns what would be
#: put back into CANCELLED, an unasked for CANCELLED is a failure, and so is a suspended task.
_RECORDED_AS = {
    Outcome.DONE: {Outcome.DONE},
    Outcome.FAILED: {Outcome.FAILED, Outcome.CANCELLED},
    Outcome.CANCELLED: {Outcome.CANCELLED, Outcome.FAILED},
    Outcome.RELEASED: {Outcome.RELEASED, Outcome.CANCELLED},
    Outcome.RESCHEDULED: {Outcome.RESCHEDULED, Outcome.CANCELLED},
    Outcome.SUSPENDED: {Outcome.SUSPENDED, Outcome.CANCELLED, Outcome.FAILED},
}


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
    runs = end_runs.lock(conn, catalogue, held)
    plans = _plan(conn, catalogue, held, runs)
    ends = Ends(recorded=[Recorded.LEASE_LOST] * len(endings))
    if plans:
        # A hand-out that is reported twice in one batch is won by the first: only that one is
        # inserted, since the insert does not say which of two equal keys it took.
        firsts: dict[tuple[str, int], Plan] = {}
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
) -> tuple[list[Held], list[tuple[int, Ending]]]:
    """Splits endings into those whose lease is theirs, and the others."""
    by_id = {lease.lease_id: lease for lease in locked}
    places = {
        lease.lease_id: {task_id: at for at, task_id in enumerate(lease.task_ids)}
        for lease in locked
    }
    held: list[Held] = []
    unheld: list[tuple[int, Ending]] = []
    for number, ending in enumerate(endings):
        lease = by_id.get(ending.lease_id)
        at = places[ending.lease_id].get(ending.key.task_id) if lease is not None else None
        if lease is None or at is None or not _is_of(ending, lease):
            unheld.append((number, ending))
        else:
            held.append(Held(number, ending, lease, at))
    return held, unheld


def _is_of(ending: Ending, lease: rows.LeaseRow) -> bool:
    """Says whether who ends a hand-out may do so under this lease."""
    return ending.secret in (None, lease.secret) and (
        ending.namespace_id in (None, lease.namespace_id)
    )


def _plan(
    conn: Conn, catalogue: Catalogue, held: Sequence[Held], runs: Mapping[str, Run]
) -> list[Plan]:
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
    plans: list[Plan] = []
    for one in held:
        task_id = one.ending.key.task_id
        reason = cancelled.get(task_id)
        run = runs.get(task_id)
        if run is None:
            policy = policies.get(task_id)
            plans.append(_decide(conn, catalogue, one, cancel_reason=reason, policy=policy))
        else:
            plans.append(end_runs.decide(one, run, cancel_reason=reason))
    return plans


def _decide(
    conn: Conn,
    catalogue: Catalogue,
    held: Held,
    *,
    cancel_reason: str | None,
    policy: Policy | None,
) -> Plan:
    ending = held.ending
    if ending.outcome is Outcome.DONE:
        return final_plan(held, Outcome.DONE)
    if cancel_reason is not None:
        return final_plan(held, Outcome.CANCELLED, why_cancelled(cancel_reason))
    if policy is None:
        raise AssertionError(f"task {ending.key.task_id} has a lease but no row")
    if ending.outcome is Outcome.RELEASED:
        back = put_back(held, policy, seq=held.lease.seqs[held.at])
        return Plan(held, new_delivery(held, Outcome.RELEASED, final=False), back, None)
    if ending.outcome is Outcome.RESCHEDULED:
        back = put_back(held, policy, delay_ms=ending.delay_ms)
        return Plan(held, new_delivery(held, Outcome.RESCHEDULED, final=False), back, None)
    if ending.outcome is Outcome.LOST:
        return _lost(conn, catalogue, held, policy)
    if ending.outcome is Outcome.TIMED_OUT:
        return _timed_out(held, policy)
    if ending.outcome is Outcome.SUSPENDED:
        failure = {"type": "NotARun", "message": "a task was reported as suspended or blocked"}
        return _failed(replace(held, ending=replace(ending, failure=failure)), policy)
    return _failed(held, policy)


def _lost(conn: Conn, catalogue: Catalogue, held: Held, policy: Policy) -> Plan:
    lost_count = held.lease.lost_counts[held.at] + 1
    verdict = retry.after_loss(lost_count)
    if isinstance(verdict, retry.Dead):
        return _dead(held, Outcome.LOST, verdict)
    lane_id = held.lease.lane_id
    if lost_count >= limits.SUSPECT_LOST:
        lane_id = catalogue.suspect_lane_id(lane_id, conn)
    back = put_back(held, policy, lane_id=lane_id, lost_count=lost_count, delay_ms=verdict.delay_ms)
    return Plan(held, new_delivery(held, Outcome.LOST, final=False), back, None)


def _failed(held: Held, policy: Policy) -> Plan:
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
    back = put_back(held, policy, attempt=held.attempt + 1, delay_ms=verdict.delay_ms)
    return Plan(held, new_delivery(held, Outcome.FAILED, final=False), back, None)


def _timed_out(held: Held, policy: Policy) -> Plan:
    if held.ending.timeout is None:
        raise AssertionError("a timeout has a kind")
    verdict = retry.after_timeout(
        policy,
        held.ending.timeout,
        attempt=held.attempt,
        share=random.random(),  # noqa: S311 - spreads load, guards nothing
    )
    if isinstance(verdict, retry.TimedOut):
        return final_plan(held, Outcome.TIMED_OUT)
    if isinstance(verdict, retry.Dead):
        return _dead(held, Outcome.TIMED_OUT, verdict)
    back = put_back(held, policy, attempt=held.attempt + 1, delay_ms=verdict.delay_ms)
    return Plan(held, new_delivery(held, Outcome.TIMED_OUT, final=False), back, None)


def _dead(held: Held, outcome: Outcome, verdict: retry.Dead) -> Plan:
    death = deliveries.Death(
        run_id=held.ending.key.run_id,
        task_id=held.ending.key.task_id,
        namespace_id=held.lease.namespace_id,
        delivery=held.delivery,
        attempt=held.attempt,
        reason=verdict.reason,
    )
    return Plan(held, new_delivery(held, outcome, final=True), None, death)


def _follow_up(conn: Conn, winners: Sequence[Plan], ends: Ends, now: datetime | None) -> None:
    """Writes what follows from the deliveries that were inserted, and only from those."""
    for plan in winners:
        ends.recorded[plan.held.number] = Recorded.RECORDED
    if not winners:
        return
    leases.spend(conn, Counter(plan.held.lease.lease_id for plan in winners))
    backs = [plan.back for plan in winners if plan.back is not None and plan.settled is None]
    activations = [plan for plan in winners if plan.settled is not None]
    if activations:
        backs += end_runs.follow_up(conn, activations, ends, now)
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
        ends.inboxes.update(key.run_id for key in over if key.run_id != key.task_id)
    _count(winners, ends.tally)
    ends.stopped = [
        plan.delivery.task_id
        for plan in winners
        if plan.held.ending.secret is None
        and plan.delivery.outcome in {Outcome.TIMED_OUT, Outcome.CANCELLED}
    ]


def _count(winners: Sequence[Plan], tally: Tally) -> None:
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
