"""A run that is suspended goes on once, whenever the last of what it waits for is over."""

from collections.abc import Sequence
from datetime import timedelta

import pytest

from tenure_service.engine.states import Outcome
from tenure_service.store import inbox as store_inbox
from tenure_service.store.database import Conn
from tenure_service.store.inbox import WaitSet
from tenure_service.usecase import end, expire, operate, report
from tenure_service.usecase.end import Recorded
from tests.runs.lives import (
    all_of,
    any_of,
    begin,
    hand_out,
    inbox,
    key,
    start_child,
    start_tasks,
    state,
    suspend,
    suspension,
    waits,
    wake_up,
    work,
)
from tests.runs.lives import report as report_run
from tests.usecase.stage import Gate, Stage, completions, ending, in_thread, later


def test_suspend__nothing_is_over__waits_on_the_clock_for_ever(stage: Stage) -> None:
    one = begin(stage)
    children = start_tasks(stage, one, 3)
    ends = suspend(stage, one, all_of(children), any_of(children[:2]))
    assert ends.recorded == [Recorded.RECORDED]
    assert state(stage, one.run_id) == ("WAITING", None, "WAIT for ever")
    assert waits(stage, one.run_id) == [(0, 3, 3), (1, 1, 2)]
    assert ends.inboxes == {one.run_id}
    assert ends.ready_lanes == {}
    assert expire.fire_timers(stage.database, now=later(days=3_000)) == []
    stage.check()


def test_suspend__with_a_time__goes_on_when_it_is_over(stage: Stage) -> None:
    one = begin(stage)
    ends = suspend(stage, one, wake_ms=60_000)
    assert ends.timed_ms == [60_000]
    assert state(stage, one.run_id) == ("WAITING", None, "WAIT")
    assert expire.fire_timers(stage.database, now=later(seconds=50)) == []
    assert len(expire.fire_timers(stage.database, now=later(seconds=70))) == 1
    assert state(stage, one.run_id) == ("WAITING", None, "ready")
    (again,) = hand_out(stage, "v1")
    assert (again.task.attempt, again.task.delivery) == (1, 2)
    report_run(stage, again, Outcome.DONE)
    assert state(stage, one.run_id) == ("COMPLETED", None, "over")
    stage.check()


def test_suspend__total_timeout_is_nearer__waits_until_that(stage: Stage) -> None:
    one = begin(stage)
    with stage.connect() as conn:
        conn.execute("update leases set total_bys = array[now() + interval '10 seconds']")
    suspend(stage, one, wake_ms=60_000)
    ((at_total,),) = stage.all("select fire_at = total_by from timers")
    assert at_total
    assert expire.fire_timers(stage.database, now=later(seconds=20)) == []


@pytest.mark.parametrize("careful", [True, False])
def test_suspend__child_was_over_before__goes_on_at_once(stage: Stage, *, careful: bool) -> None:
    one = begin(stage)
    children = start_tasks(stage, one, 2)
    opened = stage.session()
    tasks = stage.lease(opened=opened)
    if careful:
        stage.end(*(ending(task, Outcome.DONE) for task in tasks))
    else:
        assert report.complete(stage.database, completions(tasks, opened.session_id))
    assert sorted(inbox(stage, one.run_id)) == sorted(children)
    ends = suspend(stage, one, all_of(children))
    assert state(stage, one.run_id) == ("OPEN", None, "ready")
    assert len(ends.ready_lanes) == 1
    assert inbox(stage, one.run_id) == []
    assert waits(stage, one.run_id) == []
    assert wake_up(stage, one.run_id) == []
    stage.check()


def test_suspend__child_ends_while_the_report_is_written__is_woken_by_the_inbox(
    stage: Stage,
) -> None:
    """The child's end is committed after the look of the suspension, and before its commit."""
    one = begin(stage)
    children = start_tasks(stage, one, 1)
    gate = Gate()

    def hold(conn: Conn) -> end.Ends:
        ends = end.end(conn, stage.catalogue, [suspension(one, all_of(children))])
        gate.wait()
        return ends

    suspending = in_thread(lambda: stage.database.transact(hold))
    gate.reached()
    work(stage)
    # Whoever wakes finds the run locked, and is told to come again.
    assert wake_up(stage, one.run_id) == []
    gate.open()
    assert suspending.result(20).inboxes == {one.run_id}
    assert state(stage, one.run_id) == ("WAITING", None, "WAIT for ever")
    stage.check()
    assert wake_up(stage, one.run_id) == [one.run_id]
    assert state(stage, one.run_id) == ("OPEN", None, "ready")
    stage.check()


def test_suspend__child_ends_right_after_the_look__is_not_taken_unread(
    stage: Stage, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The child's end is committed after the look, and before the next statement."""
    one = begin(stage)
    children = start_tasks(stage, one, 1)
    look = store_inbox.wait

    def look_and_end(conn: Conn, waits: Sequence[tuple[str, Sequence[WaitSet]]]) -> set[str]:
        complete = look(conn, waits)
        work(stage)
        return complete

    monkeypatch.setattr(store_inbox, "wait", look_and_end)
    suspend(stage, one, all_of(children))
    assert inbox(stage, one.run_id) == children
    stage.check()
    assert wake_up(stage, one.run_id) == [one.run_id]


def test_suspend__child_ends_before_the_lock_of_the_run__is_counted_once(stage: Stage) -> None:
    """The child's end is committed while the suspension waits for the run."""
    one = begin(stage)
    children = start_tasks(stage, one, 2)
    with stage.transaction() as conn:
        conn.execute("select 1 from runs for update")
        suspending = in_thread(lambda: suspend(stage, one, all_of(children)))
        stage.waiting_for_a_lock()
        work(stage)
    suspending.result(20)
    assert waits(stage, one.run_id) == [(0, 1, 1)]
    assert inbox(stage, one.run_id) == []
    work(stage)
    assert wake_up(stage, one.run_id) == [one.run_id]
    stage.check()


def test_suspend__child_run_is_over__goes_on_at_once(stage: Stage) -> None:
    one = begin(stage)
    child_id = start_child(stage, one)
    (child,) = hand_out(stage)
    assert child.run_id == child_id
    assert report_run(stage, child, Outcome.FAILED).inboxes == {one.run_id}
    suspend(stage, one, all_of([child_id]))
    assert state(stage, one.run_id) == ("OPEN", None, "ready")
    stage.check()


def test_suspend__waits_for_what_is_not_its_own__goes_on_at_once(stage: Stage) -> None:
    (other,) = stage.tasks(1)
    one = begin(stage)
    suspend(stage, one, all_of([other.task_id]))
    assert state(stage, one.run_id) == ("OPEN", None, "ready")


def test_suspend__dead_child_was_replayed__waits_for_its_next_end(stage: Stage) -> None:
    one = begin(stage)
    (child_id,) = start_tasks(stage, one, 1)
    (task,) = stage.lease()
    stage.report(task, Outcome.FAILED, failure={"type": "E", "message": "", "non_retryable": True})
    operate.replay(stage.database, stage.namespace_id, [key(one.run_id)._replace(task_id=child_id)])
    suspend(stage, one, all_of([child_id]))
    assert state(stage, one.run_id) == ("WAITING", None, "WAIT for ever")
    stage.check()
    work(stage)
    assert wake_up(stage, one.run_id) == [one.run_id]
    stage.check()


def test_suspend__reported_twice__is_recorded_once(stage: Stage) -> None:
    one = begin(stage)
    children = start_tasks(stage, one, 1)
    message = suspension(one, all_of(children))
    assert stage.end(message, message) == [Recorded.RECORDED, Recorded.ALREADY_RECORDED]
    assert stage.end(message) == [Recorded.ALREADY_RECORDED]
    assert waits(stage, one.run_id) == [(0, 1, 1)]
    work(stage)
    assert wake_up(stage, one.run_id) == [one.run_id]
    assert stage.end(message) == [Recorded.ALREADY_RECORDED]
    assert state(stage, one.run_id) == ("OPEN", None, "ready")
    stage.check()


def test_suspend__late__writes_nothing(stage: Stage) -> None:
    """The lease ran out, and the run is with another worker."""
    one = begin(stage)
    children = start_tasks(stage, one, 1)
    expire.expire(stage.database, stage.catalogue, now=later())
    (again,) = hand_out(stage, "v1")
    assert suspend(stage, one, all_of(children)).recorded == [Recorded.LEASE_LOST]
    assert waits(stage, one.run_id) == []
    assert state(stage, one.run_id) == ("OPEN", None, "leased")
    report_run(stage, again, Outcome.DONE)
    assert suspend(stage, one, all_of(children)).recorded == [Recorded.LEASE_LOST]
    assert state(stage, one.run_id) == ("COMPLETED", None, "over")
    stage.check()


def test_suspend__time_fires_before_the_children__the_next_one_waits_anew(stage: Stage) -> None:
    one = begin(stage)
    children = start_tasks(stage, one, 2)
    suspend(stage, one, all_of(children), wake_ms=1_000)
    expire.fire_timers(stage.database, now=later(seconds=2))
    work(stage)
    # It is ready: what comes meanwhile is counted, and wakes nobody.
    assert wake_up(stage, one.run_id) == []
    (again,) = hand_out(stage, "v1")
    work(stage)
    assert wake_up(stage, one.run_id) == []
    suspend(stage, again, all_of(children))
    assert state(stage, one.run_id) == ("OPEN", None, "ready")
    (last,) = hand_out(stage, "v1")
    suspend(stage, last, WaitSet(start_tasks(stage, last, 3, prefix="x"), 2))
    assert waits(stage, one.run_id) == [(0, 2, 3)]
    stage.check()


def test_suspend__many_at_once__each_has_its_own_waits(stage: Stage) -> None:
    runs = [begin(stage) for _ in range(5)]
    children = {one.run_id: start_tasks(stage, one, 3) for one in runs}
    stage.end(
        *(suspension(one, WaitSet(children[one.run_id], n % 3 + 1)) for n, one in enumerate(runs))
    )
    assert [waits(stage, one.run_id) for one in runs] == [
        [(0, n % 3 + 1, 3)] for n in range(len(runs))
    ]
    work(stage, 15)
    assert sorted(wake_up(stage, *(one.run_id for one in runs))) == sorted(
        one.run_id for one in runs
    )
    stage.check()


def test_suspend__of_a_task__counts_as_its_failure(stage: Stage) -> None:
    (task_key,) = stage.tasks(1)
    (task,) = stage.lease()
    message = ending(task, Outcome.SUSPENDED, wake_ms=1_000)
    assert stage.end(message) == [Recorded.RECORDED]
    assert stage.outcomes(task_key) == ["FAILED"]
    assert stage.end(message) == [Recorded.ALREADY_RECORDED]
    stage.check()


def test_suspend__a_long_time__is_within_what_a_clock_can_say(stage: Stage) -> None:
    one = begin(stage)
    suspend(stage, one, wake_ms=int(timedelta(days=3_650).total_seconds() * 1000))
    assert state(stage, one.run_id) == ("WAITING", None, "WAIT")
