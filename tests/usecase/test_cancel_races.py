"""Cancellation that meets hand-outs, put-backs and timers: the request is never lost."""

import functools
from concurrent.futures import Future

import pytest

from tenure_service.engine.states import Outcome, TaskState
from tenure_service.engine.tokens import TaskKey
from tenure_service.store import leases, timers
from tenure_service.store.database import Conn
from tenure_service.usecase import cancel, end, expire, read
from tenure_service.usecase.end import Recorded
from tests.usecase.stage import Gate, Stage, ending, in_thread, later

PUT_BACK = [Outcome.RELEASED, Outcome.FAILED, Outcome.RESCHEDULED]


def _cancel(
    stage: Stage, *keys: TaskKey, grace_ms: int = 60_000, reason: str = ""
) -> dict[str, TaskState]:
    return cancel.cancel(stage.database, stage.namespace_id, keys, reason=reason, grace_ms=grace_ms)


def _graces(stage: Stage) -> list[tuple[object, ...]]:
    """(seconds of grace, rounded; reason) of the requests that stand."""
    return stage.all(
        "select round(extract(epoch from deadline_at - requested_at)), reason from cancel_requests"
    )


def _held(stage: Stage, gate: Gate, *endings: end.Ending) -> Future[end.Ends]:
    """Ends hand-outs in a transaction that is kept open until the gate is."""

    def work(conn: Conn) -> end.Ends:
        ends = end.end(conn, stage.catalogue, endings)
        gate.wait()
        return ends

    return in_thread(lambda: stage.database.transact(work))


@pytest.mark.parametrize("outcome", PUT_BACK)
def test_cancel__task_is_being_put_back__takes_it_from_where_it_went(
    stage: Stage, outcome: Outcome
) -> None:
    (key,) = stage.tasks(1)
    (task,) = stage.lease(1)
    gate = Gate()
    reporter = _held(stage, gate, ending(task, outcome))
    gate.reached()
    canceller = in_thread(lambda: _cancel(stage, key))
    stage.waiting_for_a_lock()
    gate.open()
    assert reporter.result(20).recorded == [Recorded.RECORDED]
    assert canceller.result(20) == {key.task_id: TaskState.CANCELLED}
    assert stage.outcomes(key) == [outcome, "CANCELLED"]
    stage.check()


@pytest.mark.parametrize("outcome", [*PUT_BACK, Outcome.LOST])
def test_report__cancellation_holds_the_lease__ends_the_task(
    stage: Stage, outcome: Outcome
) -> None:
    (key,) = stage.tasks(1)
    (task,) = stage.lease(1)
    with stage.connect() as holder, holder.transaction():
        holder.execute("select from leases for update")
        canceller = in_thread(lambda: _cancel(stage, key))
        stage.waiting_for_a_lock(1)  # its request is written, its lock is not had yet
        secret = None if outcome is Outcome.LOST else b"s" * 16
        reporter = in_thread(lambda: stage.report(task, outcome, secret=secret))
        stage.waiting_for_a_lock(2)
    canceller.result(20)
    assert reporter.result(20) is Recorded.RECORDED
    # Whoever got the lease first, the task is over as cancelled.
    assert stage.outcomes(key)[-1] == "CANCELLED"
    stage.check()


@pytest.mark.parametrize("outcome", [*PUT_BACK, Outcome.LOST, Outcome.CANCELLED])
def test_end__cancellation_stands__cancelled_beats_going_on(stage: Stage, outcome: Outcome) -> None:
    (key,) = stage.tasks(1)
    (task,) = stage.lease(1)
    assert _cancel(stage, key) == {key.task_id: TaskState.LEASED}
    assert stage.report(task, outcome, secret=None) is Recorded.RECORDED
    assert stage.outcomes(key) == ["CANCELLED"]
    stage.check()


def test_report__output_after_cancellation__completes(stage: Stage) -> None:
    (key,) = stage.tasks(1)
    (task,) = stage.lease(1)
    _cancel(stage, key)
    assert stage.report(task, Outcome.DONE) is Recorded.RECORDED
    assert stage.outcomes(key) == ["DONE"]
    stage.check()


def test_report__cancelled_although_nobody_asked__is_a_failure(stage: Stage) -> None:
    (key,) = stage.tasks(1)
    (task,) = stage.lease(1)
    assert stage.report(task, Outcome.CANCELLED) is Recorded.RECORDED
    assert stage.report(task, Outcome.CANCELLED) is Recorded.ALREADY_RECORDED
    assert stage.outcomes(key) == ["FAILED"]
    stage.check()


def test_cancel__task_is_being_handed_out__leaves_the_request_to_the_holder(stage: Stage) -> None:
    (key,) = stage.tasks(1)
    pick = stage.pick(stage.session(), stage.lane_id())
    gate = Gate()

    def hold(conn: Conn) -> None:
        leases.take(conn, pick)
        gate.wait()

    taker = in_thread(lambda: stage.database.transact(hold))
    gate.reached()
    canceller = in_thread(lambda: _cancel(stage, key))
    stage.waiting_for_a_lock()
    gate.open()
    taker.result(20)
    canceller.result(20)
    assert stage.outcomes(key) == []
    assert stage.all("select task_id::text from cancel_requests") == [(key.task_id,)]
    stage.check()
    expire.expire(stage.database, stage.catalogue, now=later())
    assert stage.outcomes(key) == ["CANCELLED"]
    stage.check()


def test_cancel__timer_is_firing__takes_the_task_from_its_lane(stage: Stage) -> None:
    (key,) = stage.tasks(1, delay_ms=1_000)
    gate = Gate()

    def hold(conn: Conn) -> None:
        timers.fire(conn, 10, now=later())
        gate.wait()

    firing = in_thread(lambda: stage.database.transact(hold))
    gate.reached()
    canceller = in_thread(lambda: _cancel(stage, key))
    stage.waiting_for_a_lock()
    gate.open()
    firing.result(20)
    assert canceller.result(20) == {key.task_id: TaskState.CANCELLED}
    assert stage.outcomes(key) == ["CANCELLED"]
    stage.check()


@pytest.mark.parametrize("delay_ms", [None, 60_000])
def test_cancel__twice_at_once_while_it_waits__ends_once(
    stage: Stage, delay_ms: int | None
) -> None:
    keys = stage.tasks(20, delay_ms=delay_ms)
    both = [in_thread(lambda: _cancel(stage, *keys)) for _ in range(2)]
    for future in both:
        assert set(future.result(20).values()) == {TaskState.CANCELLED}
    assert stage.all("select count(*), count(distinct task_id) from deliveries") == [(20, 20)]
    stage.check()


def test_cancel__task_is_over_or_unknown__changes_nothing(stage: Stage) -> None:
    (key,) = stage.tasks(1)
    (task,) = stage.lease(1)
    stage.report(task, Outcome.DONE)
    nobody = TaskKey("01234567-0000-7000-8000-000000000000", "01234567-0000-7000-8000-000000000000")
    assert _cancel(stage, key, nobody) == {key.task_id: TaskState.COMPLETED}
    stage.check()


def test_end_overdue__worker_does_not_answer__ends_the_task_without_it(stage: Stage) -> None:
    key, other = stage.tasks(2)
    task, mate = stage.lease(2)
    _cancel(stage, key)
    assert cancel.end_overdue(stage.database, stage.catalogue) is None
    ends = cancel.end_overdue(stage.database, stage.catalogue, now=later())
    assert ends is not None
    assert ends.over == [key.task_id]
    stage.check()
    assert stage.report(task, Outcome.DONE) is Recorded.LEASE_LOST
    assert stage.report(mate, Outcome.DONE) is Recorded.RECORDED
    assert (stage.outcomes(key), stage.outcomes(other)) == (["CANCELLED"], ["DONE"])
    stage.check()


def test_end_overdue__report_holds_the_lease__the_output_stands(stage: Stage) -> None:
    key, _ = stage.tasks(2)
    task, _ = stage.lease(2)
    _cancel(stage, key)
    gate = Gate()
    reporter = _held(stage, gate, ending(task, Outcome.DONE))
    gate.reached()
    overdue = in_thread(lambda: cancel.end_overdue(stage.database, stage.catalogue, now=later()))
    stage.waiting_for_a_lock()
    gate.open()
    assert reporter.result(20).recorded == [Recorded.RECORDED]
    overdue.result(20)
    assert stage.outcomes(key) == ["DONE"]
    stage.check()


def test_cancel__again_with_another_grace__only_a_shorter_one_counts(stage: Stage) -> None:
    (key,) = stage.tasks(1)
    stage.lease(1)
    _cancel(stage, key, grace_ms=60_000, reason="first")
    _cancel(stage, key, grace_ms=600_000, reason="second")
    assert _graces(stage) == [(60, "first")]
    _cancel(stage, key, grace_ms=20_000, reason="third")
    assert _graces(stage) == [(20, "first")]
    assert cancel.end_overdue(stage.database, stage.catalogue) is None
    _cancel(stage, key, grace_ms=0)
    ends = cancel.end_overdue(stage.database, stage.catalogue)
    assert ends is not None
    assert ends.over == [key.task_id]
    assert stage.outcomes(key) == ["CANCELLED"]
    stage.check()


@pytest.mark.parametrize("outcome", [Outcome.DONE, Outcome.CANCELLED])
def test_cancel__again_while_the_report_is_recorded__waits_and_finds_it_over(
    stage: Stage, outcome: Outcome
) -> None:
    key, other = stage.tasks(2)
    task, _ = stage.lease(2)
    _cancel(stage, key, other)
    gate = Gate()
    reporter = _held(stage, gate, ending(task, outcome))
    gate.reached()
    # It holds the lease and has dropped the request; the second one takes them in the same order.
    again = in_thread(lambda: _cancel(stage, key, other, grace_ms=1_000))
    stage.waiting_for_a_lock()
    gate.open()
    assert reporter.result(20).recorded == [Recorded.RECORDED]
    states = again.result(20)
    assert states[key.task_id].value in {"COMPLETED", "CANCELLED"}
    assert stage.all("select task_id::text from cancel_requests") == [(other.task_id,)]
    assert [row[0] for row in _graces(stage)] == [1]
    stage.check()


def test_cancel__again_by_many_at_once__the_shortest_grace_stands(stage: Stage) -> None:
    keys = stage.tasks(10)
    stage.lease(10)
    _cancel(stage, *keys)
    orders = [keys, keys[::-1]]

    def again(at: int) -> dict[str, TaskState]:
        return _cancel(stage, *orders[at % 2], grace_ms=10_000 + 1_000 * at)

    asked = [in_thread(functools.partial(again, at)) for at in range(6)]
    for future in asked:
        future.result(20)
    seconds = stage.all(
        "select distinct extract(epoch from deadline_at - requested_at) < 20 from cancel_requests"
    )
    assert seconds == [(True,)]
    stage.check()


@pytest.mark.parametrize("waits", [True, False])
def test_cancel__with_a_reason__outlives_the_request(stage: Stage, waits: bool) -> None:  # noqa: FBT001 - a table
    (key,) = stage.tasks(1)
    if not waits:
        stage.lease(1)
    _cancel(stage, key, reason="wrong customer", grace_ms=0)
    if not waits:
        cancel.end_overdue(stage.database, stage.catalogue)
    told = read.explain(stage.database, stage.catalogue, stage.namespace_id, key)
    assert told.state is TaskState.CANCELLED
    assert "Why it was cancelled: wrong customer" in told.reasons
    stage.check()


def test_explain__cancellation_stands__tells_reason_and_end_of_the_grace(stage: Stage) -> None:
    (key,) = stage.tasks(1)
    stage.lease(1)
    _cancel(stage, key, reason="wrong customer")
    ((end_at,),) = stage.all(
        "select to_char(deadline_at at time zone 'utc', 'YYYY-MM-DD HH24:MI:SS') from cancel_requests"
    )
    told = read.explain(stage.database, stage.catalogue, stage.namespace_id, key)
    assert (
        f"Its cancellation was requested (wrong customer): it ends by {end_at} UTC,"
        " also without its worker."
    ) in told.reasons
