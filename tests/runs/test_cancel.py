"""Cancelling runs, wherever they are, and what they have started."""

import pytest

from tenure_service.engine.states import Outcome
from tenure_service.engine.tokens import TaskKey
from tenure_service.store.database import Conn
from tenure_service.usecase import cancel_runs, end, expire
from tenure_service.usecase.end import Ends, Recorded
from tests.runs import flows
from tests.runs.lives import (
    all_of,
    begin,
    hand_out,
    hold_wake,
    key,
    report,
    start_child,
    start_tasks,
    state,
    suspend,
    suspension,
    wake_up,
    work,
)
from tests.usecase.stage import Gate, Stage, in_thread, later


def cancel(stage: Stage, *run_ids: str, grace_ms: int = 60_000, reason: str = "why") -> Ends:
    return cancel_runs.cancel_runs(
        stage.database, stage.namespace_id, run_ids, reason=reason, grace_ms=grace_ms
    )


def requests(stage: Stage) -> list[tuple[str, int]]:
    """(task or run, seconds of grace) of the requests that stand."""
    return stage.all(
        "select task_id::text, extract(epoch from deadline_at - requested_at)::integer"
        " from cancel_requests order by 1"
    )


def press(stage: Stage) -> Ends | None:
    return cancel_runs.press(stage.database)


def failures(stage: Stage, run_id: str) -> list[tuple[str | None, str | None]]:
    return stage.all(
        "select failure ->> 'type', failure ->> 'message' from deliveries"
        " where task_id = %s and final",
        run_id,
    )


@pytest.mark.parametrize("place", ["ready", "DELAY"])
def test_cancel__no_worker_has_had_it__is_over_at_once(stage: Stage, place: str) -> None:
    (run_id,) = flows.place(stage)
    if place == "DELAY":
        with stage.connect() as conn:
            conn.execute(
                "with gone as (delete from ready_tasks returning *) insert into timers"
                " (fire_at, kind, namespace_id, lane_id, rank, run_id, task_id, attempt, delivery,"
                " lost_count) select now() + interval '1 day', 'DELAY', 1, lane_id, rank, run_id,"
                " task_id, 1, 1, 0 from gone"
            )
    ends = cancel(stage, run_id)
    assert ends.over == [run_id]
    assert state(stage, run_id) == ("CANCELLED", None, "over")
    assert failures(stage, run_id) == [("Cancelled", "why")]
    assert requests(stage) == []
    assert cancel(stage, run_id).over == []
    stage.check()


@pytest.mark.parametrize("place", ["WAIT", "WAIT for ever", "BLOCKED", "BACKOFF"])
def test_cancel__it_waits__is_woken_to_clean_up(stage: Stage, place: str) -> None:
    one = begin(stage)
    if place == "WAIT":
        suspend(stage, one, wake_ms=86_400_000)
    elif place == "WAIT for ever":
        suspend(stage, one, all_of(start_tasks(stage, one, 1)))
    elif place == "BLOCKED":
        stage.end(suspension(one, blocked=True))
    else:
        report(stage, one, Outcome.RESCHEDULED, delay_ms=86_400_000)
    ends = cancel(stage, one.run_id)
    assert (ends.over, len(ends.ready_lanes)) == ([], 1)
    assert state(stage, one.run_id) == ("OPEN", None, "ready")
    assert requests(stage) == [(one.run_id, 60)]
    stage.check()
    (again,) = hand_out(stage, "v1")
    assert requests(stage) == [(one.run_id, 60)]
    report(stage, again, Outcome.CANCELLED)
    assert state(stage, one.run_id) == ("CANCELLED", None, "over")
    stage.check()


def test_cancel__it_runs__waits_for_its_worker(stage: Stage) -> None:
    one = begin(stage)
    ends = cancel(stage, one.run_id)
    assert (ends.over, ends.ready_lanes) == ([], {})
    assert state(stage, one.run_id) == ("OPEN", None, "leased")
    report(stage, one, Outcome.CANCELLED)
    assert state(stage, one.run_id) == ("CANCELLED", None, "over")
    assert requests(stage) == []
    stage.check()


def test_cancel__it_is_ready_again__stays_there(stage: Stage) -> None:
    one = begin(stage)
    report(stage, one, Outcome.RELEASED)
    ends = cancel(stage, one.run_id)
    assert (ends.over, ends.ready_lanes) == ([], {})
    assert state(stage, one.run_id) == ("OPEN", None, "ready")
    stage.check()


@pytest.mark.parametrize("outcome", [Outcome.RESCHEDULED, Outcome.FAILED])
def test_end__request_stands_and_it_was_told__is_cancelled(stage: Stage, outcome: Outcome) -> None:
    one = begin(stage)
    cancel(stage, one.run_id)
    report(stage, one, outcome)
    assert state(stage, one.run_id) == ("CANCELLED", None, "over")
    assert requests(stage) == []
    stage.check()


@pytest.mark.parametrize("outcome", [Outcome.RELEASED, Outcome.SUSPENDED, Outcome.LOST])
def test_end__request_stands_and_it_was_not_told__goes_on_to_clean_up(
    stage: Stage, outcome: Outcome
) -> None:
    one = begin(stage)
    cancel(stage, one.run_id)
    if outcome is Outcome.LOST:
        expire.expire(stage.database, stage.catalogue, now=later())
    else:
        fields = {"wake_ms": 86_400_000} if outcome is Outcome.SUSPENDED else {}
        report(stage, one, outcome, **fields)
    assert state(stage, one.run_id) == ("OPEN", None, "ready")
    assert requests(stage) == [(one.run_id, 60)]
    stage.check()
    (again,) = hand_out(stage, "v1")
    report(stage, again, Outcome.CANCELLED)
    assert state(stage, one.run_id) == ("CANCELLED", None, "over")
    assert requests(stage) == []
    stage.check()


def test_end__request_stands_and_it_is_lost_for_the_last_time__is_cancelled(stage: Stage) -> None:
    one = begin(stage)
    with stage.connect() as conn:
        conn.execute("update runs set recovery_attempts = 1")
    cancel(stage, one.run_id)
    expire.expire(stage.database, stage.catalogue, now=later())
    assert state(stage, one.run_id) == ("CANCELLED", None, "over")
    assert requests(stage) == []
    stage.check()


def test_end__request_stands_and_it_returned__is_completed(stage: Stage) -> None:
    one = begin(stage)
    cancel(stage, one.run_id)
    report(stage, one, Outcome.DONE)
    assert state(stage, one.run_id) == ("COMPLETED", None, "over")
    assert requests(stage) == []
    stage.check()


@pytest.mark.parametrize("outcome", [Outcome.RELEASED, Outcome.SUSPENDED])
def test_cancel__activation_is_ending__finds_where_it_went(stage: Stage, outcome: Outcome) -> None:
    one = begin(stage)
    children = start_tasks(stage, one, 1)
    message = suspension(one, all_of(children))
    gate = Gate()

    def hold(conn: Conn) -> Ends:
        ends = end.end(conn, stage.catalogue, [message])
        gate.wait()
        return ends

    if outcome is Outcome.RELEASED:
        message = end.Ending(
            lease_id=message.lease_id, secret=message.secret, key=message.key, outcome=outcome
        )
    ending = in_thread(lambda: stage.database.transact(hold))
    gate.reached()
    cancelling = in_thread(lambda: cancel(stage, one.run_id))
    stage.waiting_for_a_lock()
    gate.open()
    assert ending.result(20).recorded == [Recorded.RECORDED]
    cancelling.result(20)
    assert state(stage, one.run_id) == ("OPEN", None, "ready")
    assert len(requests(stage)) == 1
    stage.check()


def test_suspend__cancellation_holds_the_run__goes_on_to_clean_up(stage: Stage) -> None:
    one = begin(stage)
    gate = Gate()
    with stage.transaction() as conn:
        conn.execute("select 1 from runs for update")
        suspending = in_thread(lambda: suspend(stage, one, wake_ms=1_000))
        stage.waiting_for_a_lock()
        gate.open()
        conn.execute(
            "insert into cancel_requests (run_id, task_id, namespace_id, deadline_at)"
            " values (%s, %s, %s, now() + interval '1 minute')",
            [one.run_id, one.run_id, stage.namespace_id],
        )
    suspending.result(20)
    assert state(stage, one.run_id) == ("OPEN", None, "ready")
    stage.check()


def test_wake__cancellation_came_first__does_nothing(stage: Stage) -> None:
    one = begin(stage)
    suspend(stage, one, all_of(start_tasks(stage, one, 1)))
    work(stage)
    cancel(stage, one.run_id)
    assert wake_up(stage, one.run_id) == []
    assert state(stage, one.run_id) == ("OPEN", None, "ready")
    stage.check()


def test_cancel__wake_holds_the_run__finds_it_ready(stage: Stage) -> None:
    one = begin(stage)
    suspend(stage, one, all_of(start_tasks(stage, one, 1)))
    work(stage)
    gate = Gate()
    waking = hold_wake(stage, one.run_id, gate)
    cancelling = in_thread(lambda: cancel(stage, one.run_id))
    stage.waiting_for_a_lock()
    gate.open()
    assert waking.result(20) == [one.run_id]
    assert cancelling.result(20).ready_lanes == {}
    assert state(stage, one.run_id) == ("OPEN", None, "ready")
    stage.check()


@pytest.mark.parametrize("place", ["leased", "ready"])
def test_end_overdue__run__is_over_without_its_worker(stage: Stage, place: str) -> None:
    one = begin(stage)
    if place == "ready":
        suspend(stage, one, wake_ms=86_400_000)
    cancel(stage, one.run_id)
    assert state(stage, one.run_id)[2] == place
    before = cancel_runs.end_overdue(stage.database, stage.catalogue, now=later(seconds=50))
    assert before is None
    ends = cancel_runs.end_overdue(stage.database, stage.catalogue, now=later(seconds=70))
    assert ends is not None
    assert ends.over == [one.run_id]
    assert ends.stopped == ([one.run_id] if place == "leased" else [])
    assert state(stage, one.run_id) == ("CANCELLED", None, "over")
    assert failures(stage, one.run_id) == [("Cancelled", "why")]
    assert cancel_runs.end_overdue(stage.database, stage.catalogue, now=later()) is None
    stage.check()


def test_cancel__again__can_shorten_the_grace(stage: Stage) -> None:
    one = begin(stage)
    cancel(stage, one.run_id)
    cancel(stage, one.run_id, grace_ms=90_000)
    assert requests(stage) == [(one.run_id, 60)]
    cancel(stage, one.run_id, grace_ms=5_000, reason="hurry")
    assert requests(stage) == [(one.run_id, 5)]
    assert stage.all("select reason from cancel_requests") == [("why",)]


def test_cancel__of_another_namespace__does_nothing(stage: Stage) -> None:
    one = begin(stage)
    cancel_runs.cancel_runs(
        stage.database, stage.namespace_id + 1, [one.run_id], reason="", grace_ms=0
    )
    assert requests(stage) == []


def test_cancel__tree__ends_with_what_the_run_started(stage: Stage) -> None:
    """Its tasks wait, run and are over; its runs wait, are new and are over."""
    one = begin(stage)
    held, over, waiting = start_tasks(stage, one, 3)
    first, second = stage.lease(2)
    assert [first.task_id, second.task_id] == [held, over]
    stage.report(second, Outcome.DONE)
    suspended, done = (start_child(stage, one) for _ in range(2))
    children = {child.run_id: child for child in hand_out(stage)}
    (grandchild,) = start_tasks(stage, children[suspended], 1)
    suspend(stage, children[suspended], all_of([grandchild]))
    report(stage, children[done], Outcome.DONE)
    new = start_child(stage, one)

    cancel(stage, one.run_id)
    ends = report(stage, one, Outcome.CANCELLED)
    assert ends.spread
    stage.check()
    assert sorted(requests(stage)) == sorted((each, 30) for each in (held, waiting, suspended, new))

    pressed = press(stage)
    assert pressed is not None
    assert sorted(pressed.over) == sorted([waiting, new])
    assert state(stage, suspended) == ("OPEN", None, "ready")
    assert sorted(requests(stage)) == sorted([(held, 30), (suspended, 30)])
    assert press(stage) is None
    stage.check()

    stage.report(first, Outcome.CANCELLED)
    (child,) = hand_out(stage, "v1")
    assert report(stage, child, Outcome.CANCELLED).spread
    last = press(stage)
    assert last is not None
    assert last.over == [grandchild]
    assert requests(stage) == []
    assert press(stage) is None
    stage.check()


def test_press__ended_before_the_request__loses_it(stage: Stage) -> None:
    """A task and a run end between the look for what is open and the request."""
    one = begin(stage)
    (child_task,) = start_tasks(stage, one, 1)
    child_run = start_child(stage, one)
    work(stage)
    (child,) = hand_out(stage)
    report(stage, child, Outcome.DONE)
    cancel(stage, one.run_id)
    report(stage, one, Outcome.CANCELLED)
    with stage.connect() as conn:
        for run_id, task_id in ((one.run_id, child_task), (child_run, child_run)):
            conn.execute(
                "insert into cancel_requests (run_id, task_id, namespace_id, deadline_at)"
                " values (%s, %s, %s, now() + interval '1 minute')",
                [run_id, task_id, stage.namespace_id],
            )
    stage.check()
    assert press(stage) is not None
    assert requests(stage) == []
    assert stage.outcomes(TaskKey(one.run_id, child_task)) == ["DONE"]
    assert stage.outcomes(key(child_run)) == ["DONE"]
    stage.check()


def test_cancel__beside_the_end_of_its_parent__does_not_deadlock(stage: Stage) -> None:
    """Both ask for the end of the child: one waits for the other, and neither for both."""
    one = begin(stage)
    child_id = start_child(stage, one)
    cancel(stage, one.run_id)
    gate = Gate()

    def hold(conn: Conn) -> Ends:
        ends = end.end(
            conn,
            stage.catalogue,
            [
                end.Ending(
                    lease_id=one.task.lease_id,
                    secret=None,
                    key=key(one.run_id),
                    outcome=Outcome.CANCELLED,
                )
            ],
        )
        gate.wait()
        return ends

    ending = in_thread(lambda: stage.database.transact(hold))
    gate.reached()
    cancelling = in_thread(lambda: cancel(stage, one.run_id, child_id))
    stage.waiting_for_a_lock()
    gate.open()
    assert ending.result(20).spread
    assert cancelling.result(20).over == [child_id]
    stage.check()
