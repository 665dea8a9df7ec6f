"""Recording the steps of runs, with what they ask for, and reading them.

Many activations are served in one transaction, in a constant number of statements: the leases are
kept from ending, the runs are locked, and a statement after the locks says which activations still
run (what ended one was waited for). Then the steps are inserted; of those that were not recorded
before, and only of those, tasks are enqueued and runs started; the others are read back. A kill
at any instant leaves a step with its task, or neither. Holds INV-02, INV-03, INV-04, INV-06.
"""

import logging
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Final, NamedTuple

from tenure_service.engine import limits
from tenure_service.engine.errors import FieldInvalid, Reason, TenureError
from tenure_service.engine.states import StepKind
from tenure_service.store import partitions, rows, runs, steps, tasks
from tenure_service.store.database import Conn, Database, PartitionMissing
from tenure_service.store.steps import Activation, Claim, Page, View
from tenure_service.usecase import enqueue
from tenure_service.usecase.catalogue import Catalogue

_log = logging.getLogger(__name__)

_REMEMBERED_MAX: Final = 10_000
#: Of the outcomes that steps which stood have by now, as many are told; Wait tells the others.
_OUTCOMES_BYTES_MAX: Final = 1024 * 1024


@dataclass(frozen=True, slots=True, kw_only=True)
class Step:
    """A step to record, with everything within its limits; `task` is what a TASK or a CHILD asks for."""

    step_id: str
    name: str
    kind: StepKind
    output: bytes | None = None
    output_encoding: str | None = None
    output_schema: str | None = None
    failure: rows.Json | None = None
    sleep_ms: int | None = None
    task: enqueue.Item | None = None

    @property
    def starts(self) -> bool:
        """True if it asks for a task or a run."""
        return self.task is not None


@dataclass(frozen=True, slots=True, kw_only=True)
class Call:
    """Steps of one activation."""

    claim: Claim
    steps: Sequence[Step]

    @property
    def activation(self) -> Activation:
        """Names the activation."""
        return self.claim.lease_id, self.claim.run_id


class Recorded(NamedTuple):
    """A step as it stands; `lane_id` is that of a task or run which is new, for who wakes workers."""

    view: View
    existing: bool = False
    lane_id: int | None = None
    priority: int = 0
    delay_ms: int | None = None


Answer = Recorded | TenureError


class Counts:
    """How many steps are recorded of the runs of late activations, so that none are counted twice.

    An activation records under one lease, and its steps come through the server that has its
    stream: what another server would add to them is seen with the next activation.
    """

    def __init__(self) -> None:
        self._by_activation: dict[Activation, int] = {}

    def get(self, activation: Activation) -> int | None:
        """Gives a number, if it is known."""
        return self._by_activation.get(activation)

    def note(self, counts: Mapping[Activation, int]) -> None:
        """Notes numbers that are committed; forgets the oldest of too many."""
        for activation, count in counts.items():
            self._by_activation.pop(activation, None)
            self._by_activation[activation] = count
        while len(self._by_activation) > _REMEMBERED_MAX:
            del self._by_activation[next(iter(self._by_activation))]


@dataclass(slots=True)
class _Pending:
    """One step on its way through the transaction."""

    call: int
    place: int
    step: Step
    activation: Activation
    common: tasks.Common | None
    new: steps.NewStep

    @property
    def key(self) -> tuple[str, str]:
        return self.new.run_id, self.new.step_id


def record(
    database: Database,
    catalogue: Catalogue,
    counts: Counts,
    calls: Sequence[Call],
    *,
    now: datetime | None = None,
) -> list[list[Answer] | TenureError]:
    """Records the steps of many activations in one transaction.

    Returns:
        For each call its answers in the order of its steps, or the error of the whole call
        (LEASE_LOST).
    """
    commons = _commons(catalogue, calls)

    def work(conn: Conn) -> tuple[list[list[Answer] | TenureError], dict[Activation, int]]:
        return _record(conn, counts, calls, commons, now)

    try:
        answers, counted = database.transact(work)
    except PartitionMissing:
        partitions.ensure(database)
        answers, counted = database.transact(work)
    _warn(counts, counted)
    counts.note(counted)
    return answers


def _commons(catalogue: Catalogue, calls: Sequence[Call]) -> dict[tuple[int, int], tasks.Common]:
    shapes = {
        (call.claim.namespace_id, id(step.task.shape)): step.task.shape
        for call in calls
        for step in call.steps
        if step.task is not None
    }
    return enqueue.commons(catalogue, shapes) if shapes else {}


def _warn(counts: Counts, counted: Mapping[Activation, int]) -> None:
    for activation, count in counted.items():
        if count >= limits.STEP_COUNT_WARN > (counts.get(activation) or 0):
            _log.warning(
                "run %s has %d steps, which each of its activations replays; %d are the most",
                activation[1],
                count,
                limits.STEP_COUNT_MAX,
            )


def _record(
    conn: Conn,
    counts: Counts,
    calls: Sequence[Call],
    commons: Mapping[tuple[int, int], tasks.Common],
    now: datetime | None,
) -> tuple[list[list[Answer] | TenureError], dict[Activation, int]]:
    step_counts = _fence(conn, counts, calls)
    lost = {
        number: _lease_lost(call.claim.run_id)
        for number, call in enumerate(calls)
        if call.activation not in step_counts
    }
    pending = [
        _pending(number, place, call, step, commons)
        for number, call in enumerate(calls)
        if number not in lost
        for place, step in enumerate(call.steps)
    ]
    slots: list[list[Answer | None]] = [[None] * len(call.steps) for call in calls]
    fitting: list[_Pending] = []
    for one, refusal in _judge(conn, pending, step_counts):
        if refusal is None:
            fitting.append(one)
        else:
            slots[one.call][one.place] = refusal
    if fitting:
        for one, answer in _store(conn, fitting, now):
            slots[one.call][one.place] = answer
            if isinstance(answer, Recorded) and not answer.existing:
                step_counts[one.activation] += 1
    answers: list[list[Answer] | TenureError] = [
        lost.get(number) or [answer for answer in slots[number] if answer is not None]
        for number in range(len(calls))
    ]
    return answers, step_counts


def _fence(conn: Conn, counts: Counts, calls: Sequence[Call]) -> dict[Activation, int]:
    """Gives the activations that may record, each with the number of its run's steps."""
    held = steps.lock_leases(conn, {call.claim for call in calls})
    if not held:
        return {}
    runs = steps.lock_runs(conn, {run_id for _, run_id in held})
    activations = sorted(one for one in held if one[1] in runs)
    if not activations:
        return {}
    known = {one: counts.get(one) for one in activations}
    running = steps.running(conn, activations, {one: n is None for one, n in known.items()})
    return {one: count if count is not None else known[one] or 0 for one, count in running.items()}


def _lease_lost(run_id: str) -> TenureError:
    return TenureError(
        Reason.LEASE_LOST,
        f"this activation of run {run_id} is over, or its lease was lost: drop it",
        metadata={"run_id": run_id},
    )


def _pending(
    number: int,
    place: int,
    call: Call,
    step: Step,
    commons: Mapping[tuple[int, int], tasks.Common],
) -> _Pending:
    common = None
    if step.task is not None:
        common = commons[call.claim.namespace_id, id(step.task.shape)]
    new = steps.NewStep(
        run_id=call.claim.run_id,
        step_id=step.step_id,
        kind=step.kind,
        name=step.name,
        sleep_ms=step.sleep_ms,
        output=step.output,
        output_encoding=step.output_encoding,
        output_schema=step.output_schema,
        failure=step.failure,
    )
    return _Pending(number, place, step, call.activation, common, new)


def _judge(
    conn: Conn, pending: Sequence[_Pending], step_counts: Mapping[Activation, int]
) -> list[tuple[_Pending, TenureError | None]]:
    """Refuses the new steps of runs that have too many; what is recorded still answers."""
    wanted = Counter(one.activation for one in pending)
    left = {
        activation: limits.STEP_COUNT_MAX - step_counts[activation]
        for activation, count in wanted.items()
        if step_counts[activation] + count > limits.STEP_COUNT_MAX
    }
    if not left:
        return [(one, None) for one in pending]
    near = [one.key for one in pending if one.activation in left]
    recorded = set(steps.get(conn, near, bytes_max=0))
    judged: list[tuple[_Pending, TenureError | None]] = []
    for one in pending:
        refusal = None
        if one.activation in left and one.key not in recorded:
            if left[one.activation] <= 0:
                refusal = _too_many(one.new.run_id)
            else:
                left[one.activation] -= 1
                recorded.add(one.key)
        judged.append((one, refusal))
    return judged


def _too_many(run_id: str) -> TenureError:
    text = (
        f"would be a step more than the {limits.STEP_COUNT_MAX:,} that run {run_id} may have:"
        " start runs for parts of its work"
    )
    return FieldInvalid([("step_id", text)])


def _store(
    conn: Conn, pending: Sequence[_Pending], now: datetime | None
) -> list[tuple[_Pending, Answer]]:
    """Inserts what is not recorded, does what that asks for, and reads the rest back."""
    asking = [one for one in pending if one.step.task is not None]
    if asking:
        ids = tasks.make_ids(conn, len(asking))
        for one, child_id in zip(asking, ids, strict=True):
            one.new = _with_child(one.new, child_id)
    inserted = steps.insert(conn, [one.new for one in pending], now=now)
    fresh: dict[tuple[str, str], _Pending] = {}
    for one in pending:
        if one.key in inserted:
            fresh.setdefault(one.key, one)
    _begin(conn, fresh.values(), now)
    standing = [one for one in pending if fresh.get(one.key) is not one]
    wanted = sorted({one.key for one in standing})
    views = steps.get(conn, wanted, bytes_max=_OUTCOMES_BYTES_MAX, now=now) if wanted else {}
    return [
        (
            one,
            _recorded(one, inserted[one.key])
            if fresh.get(one.key) is one
            else _standing(one, views[one.key]),
        )
        for one in pending
    ]


def _with_child(new: steps.NewStep, child_id: str) -> steps.NewStep:
    return steps.NewStep(
        run_id=new.run_id, step_id=new.step_id, kind=new.kind, name=new.name, child_id=child_id
    )


def _begin(conn: Conn, fresh: Iterable[_Pending], now: datetime | None) -> None:
    """Enqueues the tasks and starts the runs that new steps ask for."""
    asked: list[tuple[_Pending, str, enqueue.Item, tasks.Common]] = [
        (one, one.new.child_id, one.step.task, one.common)
        for one in fresh
        if one.step.task is not None and one.common is not None and one.new.child_id is not None
    ]
    found = [
        steps.StepTask(one.new.run_id, child_id, one.new.step_id, common, item.input)
        for one, child_id, item, common in asked
        if item.shape.run is None
    ]
    if found:
        steps.enqueue(conn, found, now=now)
    children = [each for each in asked if each[2].shape.run is not None]
    if children:
        roots = [tasks.NewTask(common, item.input, None) for _, _, item, common in children]
        tasks.insert(conn, [child_id for _, child_id, _, _ in children], roots, now=now)
        new = [
            enqueue.new_run(child_id, item.shape, common, parent_run_id=one.new.run_id)
            for one, child_id, item, common in children
        ]
        runs.insert(conn, new, now=now)


def _recorded(one: _Pending, row: rows.StepInserted) -> Recorded:
    """Answers a new step as it was sent."""
    new = one.new
    view = View(
        rows.StepRow(
            run_id=new.run_id,
            step_id=new.step_id,
            seq=row.seq,
            recorded_at=row.recorded_at,
            kind=new.kind,
            name=new.name,
            child_id=new.child_id,
            wake_at=row.wake_at,
            remaining_ms=new.sleep_ms,
            output=new.output,
            output_encoding=new.output_encoding,
            output_schema=new.output_schema,
            failure=new.failure,
        )
    )
    if one.common is None:
        return Recorded(view)
    return Recorded(
        view,
        lane_id=one.common.lane_id,
        priority=one.common.priority,
        delay_ms=one.common.delay_ms,
    )


def _standing(one: _Pending, view: View) -> Answer:
    row = view.row
    if (row.kind, row.name) == (one.new.kind, one.new.name):
        return Recorded(view, existing=True)
    return TenureError(
        Reason.HISTORY_MISMATCH,
        f"step {row.step_id} of run {row.run_id} is recorded as {row.kind} {row.name!r}, not as"
        f" {one.new.kind} {one.new.name!r}",
        metadata={
            "run_id": row.run_id,
            "step_id": row.step_id,
            "name": one.new.name,
            "kind": one.new.kind,
            "existing_name": row.name,
            "existing_kind": row.kind,
        },
    )


def page(database: Database, claim: Claim, *, after_seq: int, bytes_max: int) -> Page:
    """Reads a page of the steps of an activation.

    Raises:
        TenureError: LEASE_LOST.
    """

    def work(conn: Conn) -> Page | None:
        if not steps.held(conn, claim):
            return None
        return steps.pages(conn, [claim.run_id], bytes_max, after_seqs=[after_seq])[claim.run_id]

    found = database.read(work)
    if found is None:
        raise _lease_lost(claim.run_id)
    return found


def results(
    database: Database, children: Sequence[steps.Child], *, bytes_max: int
) -> dict[tuple[str, str], rows.ChildResultRow]:
    """Reads how tasks and runs were over; see `store.steps.results`."""
    return database.read(lambda conn: steps.results(conn, children, bytes_max))
