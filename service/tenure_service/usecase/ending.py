"""Endings of hand-outs, and what is planned for each before anything is written.

An ending says how a hand-out ended, a held one has its lease locked, a plan is what is inserted for
it and what follows if the insert wins, and ends are what came of many.
"""

import base64
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Final

from tenure_service.engine.policy import Policy, TimeoutKind
from tenure_service.engine.states import Outcome
from tenure_service.engine.tokens import TaskKey
from tenure_service.store import deliveries, inbox, leases, rows
from tenure_service.store.inbox import WaitSet

#: Type of the failure that says why a task was cancelled, or that its handler gave up unasked.
CANCELLED_TYPE: Final = "Cancelled"


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
    #: Of SUSPENDED: what the run waits for, and until when; neither, where it is blocked.
    waits: Sequence[WaitSet] = ()
    wake_ms: int | None = None
    blocked: bool = False


@dataclass(frozen=True, slots=True)
class Held:
    """An ending whose lease is locked and names the task."""

    number: int
    ending: Ending
    lease: rows.LeaseRow
    at: int

    @property
    def attempt(self) -> int:
        """The number of its attempt."""
        return self.lease.attempts[self.at]

    @property
    def delivery(self) -> int:
        """The number of the hand-out."""
        return self.lease.deliveries[self.at]


@dataclass(frozen=True, slots=True)
class Plan:
    """What is inserted for a hand-out, and what follows if the insert wins."""

    held: Held
    delivery: deliveries.NewDelivery
    back: deliveries.PutBack | None
    death: deliveries.Death | None
    #: Of an activation: what becomes of its run.
    settled: inbox.Settled | None = None


def why_cancelled(reason: str) -> rows.Json | None:
    """Gives the failure of a cancelled task, in which the reason outlives the request."""
    return {"type": CANCELLED_TYPE, "message": reason} if reason else None


def final_plan(held: Held, outcome: Outcome, failure: rows.Json | None = None) -> Plan:
    """Plans an end that nothing follows on."""
    return Plan(held, new_delivery(held, outcome, final=True, failure=failure), None, None)


def new_delivery(
    held: Held, outcome: Outcome, *, final: bool, failure: rows.Json | None = None
) -> deliveries.NewDelivery:
    """Gives the row that ends a hand-out."""
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


def _run_ms(held: Held) -> float | None:
    """Gives how long the handler ran: as its worker says, or else since the start that it told."""
    ending, lease = held.ending, held.lease
    started = lease.started_task_ids or []
    if ending.run_ms is not None or ending.key.task_id not in started:
        return ending.run_ms
    started_at = (lease.started_at or [])[started.index(ending.key.task_id)]
    return max((lease.read_at - started_at).total_seconds() * 1000, 0.0)


def _left(held: Held, outcome: Outcome) -> tuple[bytes | None, str | None, str | None]:
    """Gives what a hand-out leaves: its output, or the last progress of a handler that had none."""
    ending = held.ending
    said = (held.lease.details or {}).get(ending.key.task_id)
    if outcome is Outcome.DONE or ending.output is not None or said is None:
        return ending.output, ending.output_encoding, ending.output_schema
    return base64.b64decode(said["data"]), said["encoding"], said["schema"]


def put_back(
    held: Held,
    policy: Policy | None,
    *,
    lane_id: int | None = None,
    attempt: int | None = None,
    lost_count: int | None = None,
    seq: int | None = None,
    delay_ms: int | None = 0,
    suspended: bool = False,
) -> deliveries.PutBack:
    """Gives the place of the next hand-out: at the end of the lane, unless told otherwise."""
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
        suspended=suspended,
        total_by=None if lease.total_bys is None else lease.total_bys[at],
        start_ms=None if policy is None else policy.limit_ms(TimeoutKind.SCHEDULE_TO_START),
    )


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
    #: Runs with something new in their inboxes, or that may have it.
    inboxes: set[str] = field(default_factory=set)
    #: True: tasks and runs are to be cancelled because the runs that started them were.
    spread: bool = False
    tally: Tally = field(default_factory=Tally)

    def put_back(self, task: deliveries.PutBack) -> None:
        """Notes a task that goes back: its lane with the best rank, or its delay."""
        if task.is_timed:
            if task.delay_ms is not None:
                self.timed_ms.append(task.delay_ms)
        else:
            self.readied({task.lane_id: task.rank})

    def add(self, other: "Ends") -> None:
        """Adds another one's news; `recorded` speaks of the endings of one call alone."""
        self.over += other.over
        self.completions += other.completions
        self.stopped += other.stopped
        self.timed_ms += other.timed_ms
        self.inboxes |= other.inboxes
        self.spread |= other.spread
        self.tally.add(other.tally)
        self.readied(other.ready_lanes)

    def readied(self, ranks: Mapping[int, int]) -> None:
        """Notes lanes that have something new, with its rank."""
        for lane_id, rank in ranks.items():
            best = self.ready_lanes.get(lane_id, leases.RANK_MAX)
            self.ready_lanes[lane_id] = min(best, rank)
