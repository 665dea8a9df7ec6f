"""One test for each invariant that the task half keeps, named after its number.

They show the rule at its plainest; tests/usecase steps through its windows.
"""

import uuid

import psycopg
import pytest

from tenure_service.dispatch.batcher import Batcher
from tenure_service.engine.errors import Reason, TenureError
from tenure_service.engine.states import Outcome
from tenure_service.engine.tokens import TaskKey
from tenure_service.store import deliveries, sessions
from tenure_service.store.database import Conn, DataRefused
from tenure_service.store.leases import Pick
from tenure_service.usecase import cancel, end, expire, lease, maintain, operate
from tenure_service.usecase.end import Recorded
from tenure_service.usecase.enqueue import Answer, Call, enqueue
from tests.runs import lives
from tests.usecase.stage import Stage, ending, in_thread, later, task_id_of


class _Killed(Exception):
    """The process is gone before its COMMIT."""


def test_inv_01__end_of_a_task_meets_the_suspension_of_its_run__is_counted_once(
    stage: Stage,
) -> None:
    """The second task is over after the look at what is over, and before the run is suspended."""
    one = lives.begin(stage)
    children = lives.start_tasks(stage, one, 2)
    lives.work(stage)

    def work(conn: Conn) -> None:
        end.end(conn, stage.catalogue, [lives.suspension(one, lives.all_of(children))])
        lives.work(stage)

    stage.database.transact(work)
    assert lives.waits(stage, one.run_id) == [(0, 1, 1)]
    stage.check()
    assert lives.wake_up(stage, one.run_id) == [one.run_id]
    assert lives.wake_up(stage, one.run_id) == []
    stage.check()


def test_inv_02__killed_before_the_commit__neither_the_end_nor_its_follow_up_is_there(
    stage: Stage,
) -> None:
    (key,) = stage.tasks(1)
    (task,) = stage.lease(1)

    def work(conn: Conn) -> None:
        end.end(conn, stage.catalogue, [ending(task, Outcome.FAILED)])
        raise _Killed

    with pytest.raises(_Killed):
        stage.database.transact(work)
    assert (stage.outcomes(key), stage.ready(key)) == ([], None)
    stage.check()
    assert stage.report(task, Outcome.FAILED) is Recorded.RECORDED
    assert stage.ready(key) is not None
    stage.check()


def test_inv_03__everything_is_done_twice__changes_nothing(stage: Stage) -> None:
    call = stage.call(*[stage.item()] * 4, request_id=str(uuid.uuid4()), digest=b"d")
    first, again = (enqueue(stage.database, stage.catalogue, [call])[0] for _ in range(2))
    assert isinstance(first, list)
    assert isinstance(again, list)
    assert [task_id_of(a) for a in first] == [task_id_of(a) for a in again]
    keys = [TaskKey(task_id_of(answer), task_id_of(answer)) for answer in first]
    tasks = stage.lease(4)
    for _ in range(2):
        stage.end(ending(tasks[0], Outcome.DONE), ending(tasks[1], Outcome.FAILED))
        cancel.cancel(stage.database, stage.namespace_id, [keys[2]], reason="", grace_ms=0)
        cancel.end_overdue(stage.database, stage.catalogue, now=later())
        expire.expire(stage.database, stage.catalogue, now=later())
        expire.fire_timers(stage.database, now=later())
        stage.check()
    assert [stage.outcomes(key) for key in keys] == [["DONE"], ["FAILED"], ["CANCELLED"], ["LOST"]]


def test_inv_04__session_is_resumed_elsewhere__the_first_server_hands_it_nothing(
    stage: Stage,
) -> None:
    stage.tasks(2)
    before = stage.session()
    resumed = stage.database.transact(
        lambda conn: sessions.resume(conn, before.session_id, stage.new_session())
    )
    assert resumed is not None
    assert resumed.epoch == before.epoch + 1
    assert stage.lease(1, opened=before) == []
    assert (
        expire.release_session(stage.database, stage.catalogue, before.session_id, before.epoch)
        is None
    )
    pick = stage.pick(before, stage.lane_id())
    now = Pick(**{name: getattr(pick, name) for name in Pick.__slots__} | {"epoch": resumed.epoch})
    (grant,) = lease.lease(stage.database, stage.catalogue, [now])
    assert len(grant.tasks) == 2
    stage.check()


def test_inv_06__delivery_inserted_twice__the_first_stands(stage: Stage) -> None:
    (key,) = stage.tasks(1)
    (task,) = stage.lease(1)
    new = deliveries.NewDelivery(
        run_id=key.run_id,
        task_id=key.task_id,
        lease_id=task.lease_id,
        delivery=1,
        attempt=1,
        outcome=Outcome.DONE,
        final=True,
    )
    assert stage.report(task, Outcome.FAILED) is Recorded.RECORDED
    assert stage.database.transact(lambda conn: deliveries.insert(conn, [new])) == set()
    assert stage.outcomes(key) == ["FAILED"]
    with stage.connect() as conn, pytest.raises(psycopg.errors.UniqueViolation):
        conn.execute("insert into tasks select * from tasks")
    stage.check()


@pytest.mark.parametrize("outcome", ["DONE", "FAILED", "RELEASED", "RESCHEDULED", "LOST"])
def test_inv_07__any_end__is_one_row_and_one_place(stage: Stage, outcome: str) -> None:
    (key,) = stage.tasks(1)
    (task,) = stage.lease(1)
    stage.check()
    by_server = {"secret": None} if outcome == "LOST" else {}
    assert stage.report(task, Outcome(outcome), **by_server) is Recorded.RECORDED
    assert stage.outcomes(key) == [outcome]
    assert stage.all("select count(*) from leases") == [(0,)]
    stage.check()


def test_inv_08__clock_of_this_machine__decides_nothing(stage: Stage) -> None:
    """Another clock is handed in where tests may; without it, only the database's counts."""
    stage.tasks(1)
    (task,) = stage.lease(1)
    assert expire.expire(stage.database, stage.catalogue) is None
    with stage.connect() as conn:
        conn.execute("update leases set expires_at = now() + interval '1 second'")
    assert expire.expire(stage.database, stage.catalogue, now=later(hours=-1)) is None
    assert expire.expire(stage.database, stage.catalogue, now=later(hours=1)) is not None
    assert stage.outcomes(task) == ["LOST"]


def test_inv_08__lease_has_run_out__is_live_until_it_is_swept(stage: Stage) -> None:
    stage.tasks(1)
    (task,) = stage.lease(1)
    with stage.connect() as conn:
        conn.execute("update leases set expires_at = '-infinity'")
    assert stage.report(task, Outcome.DONE) is Recorded.RECORDED
    stage.check()


def test_inv_09__two_operators_replay_one_letter__one_does(stage: Stage) -> None:
    (key,) = stage.tasks(1)
    (task,) = stage.lease(1)
    stage.report(task, Outcome.FAILED, failure={"type": "E", "message": "", "non_retryable": True})
    with stage.connect() as holder, holder.transaction():
        holder.execute("select from dead_letters for update")
        both = [
            in_thread(lambda: operate.replay(stage.database, stage.namespace_id, [key]))
            for _ in range(2)
        ]
        stage.waiting_for_a_lock(2)
    answers = [future.result(20)[0][0] for future in both]
    assert answers.count("REPLAYED") == 1  # type: ignore[arg-type]
    (refused,) = (answer for answer in answers if isinstance(answer, TenureError))
    assert refused.reason is Reason.STATE_CONFLICT
    assert stage.all("select count(*) from ready_tasks") == [(1,)]
    stage.check()


def test_inv_10__nobody_was_notified__one_question_tells_all_there_is_to_do(stage: Stage) -> None:
    served = [(stage.namespace_id, "default", "work", "")]
    idle = maintain.due(stage.database, served)
    assert (idle.lease_expired, idle.timer_due_ms, idle.ready_lane_ids) == (False, None, [])
    assert not idle.cancel_overdue
    keys = stage.tasks(3)
    stage.tasks(1, "nobody_serves_this")
    stage.tasks(1, delay_ms=0)
    stage.lease(2)
    cancel.cancel(stage.database, stage.namespace_id, keys[:1], reason="", grace_ms=0)
    with stage.connect() as conn:
        conn.execute("update leases set expires_at = '-infinity'")
    due = maintain.due(stage.database, served)
    assert due.lease_expired
    assert due.timer_due_ms is not None
    assert due.timer_due_ms <= 0
    assert due.cancel_overdue
    assert due.ready_lane_ids == [stage.lane_id()]


def test_inv_10__hint_is_wrong__only_one_pick_is_short(stage: Stage) -> None:
    (key,) = stage.tasks(1)
    pick = stage.pick(stage.session(), stage.lane_id())
    beyond = Pick(
        **{name: getattr(pick, name) for name in Pick.__slots__} | {"low_seq": 10**9, "low_rank": 0}
    )
    (grant,) = lease.lease(stage.database, stage.catalogue, [beyond])
    assert grant.tasks == []
    (grant,) = lease.lease(stage.database, stage.catalogue, [pick])
    assert [task.task_id for task in grant.tasks] == [key.task_id]


def test_inv_11__queue_is_paused__hands_out_nothing_and_loses_nothing(stage: Stage) -> None:
    stage.tasks(2)
    (task,) = stage.lease(1)
    operate.set_queue(stage.database, stage.namespace_id, "default", paused=True)
    assert stage.report(task, Outcome.FAILED) is Recorded.RECORDED
    assert stage.lease(2) == []
    stage.check()
    operate.set_queue(stage.database, stage.namespace_id, "default", paused=False)
    assert sorted(one.attempt for one in stage.lease(2)) == [1, 2]
    stage.check()


def test_inv_12__timers_fire_at_once_late_and_for_cancelled_tasks__make_ready_once(
    stage: Stage,
) -> None:
    keys = stage.tasks(20, delay_ms=1_000)
    cancel.cancel(stage.database, stage.namespace_id, keys[:5], reason="", grace_ms=0)
    assert expire.fire_timers(stage.database) == []
    firing = [in_thread(lambda: expire.fire_timers(stage.database, now=later())) for _ in range(3)]
    assert sum(len(future.result(20)) for future in firing) == 15
    assert expire.fire_timers(stage.database, now=later()) == []
    assert [one.task_id for one in stage.lease(20)] == [key.task_id for key in keys[5:]]
    stage.check()


def test_inv_13__every_way_to_die__is_a_letter_with_its_reason(stage: Stage) -> None:
    keys = stage.tasks(3, policy=stage.item().shape.policy)
    exhausted, refused, lost = (key.task_id for key in keys)
    for _ in range(5):
        expire.fire_timers(stage.database, now=later(days=90))
        for task in stage.lease() + stage.lease(suspect=True):
            if task.task_id == exhausted:
                stage.report(task, Outcome.FAILED)
            elif task.task_id == refused:
                failure = {"type": "E\x00", "message": "\ud800", "non_retryable": True}
                stage.report(task, Outcome.FAILED, failure=failure)
        expire.expire(stage.database, stage.catalogue, now=later())
        stage.check()
    found = stage.all("select task_id::text, reason::text, state::text from dead_letters")
    assert sorted(found) == sorted(
        [
            (exhausted, "ATTEMPTS_EXHAUSTED", "OPEN"),
            (refused, "NON_RETRYABLE", "OPEN"),
            (lost, "LEASE_LOST", "OPEN"),
        ]
    )
    answers, _ = operate.replay(stage.database, stage.namespace_id, keys)
    assert answers == ["REPLAYED"] * 3
    assert len(stage.lease()) == 3
    stage.check()


async def test_inv_14__bad_item_among_good_ones__is_alone_with_its_error(stage: Stage) -> None:
    batcher: Batcher[Call, list[Answer] | TenureError] = Batcher(
        "test", lambda calls: enqueue(stage.database, stage.catalogue, calls)
    )
    try:
        priorities = [0, 101, 0, 0]
        futures = [batcher.submit(1, stage.call(stage.item(priority=p))) for p in priorities]
        with pytest.raises(DataRefused):
            await futures[1]
        for future in (futures[0], *futures[2:]):
            assert not isinstance(await future, TenureError)
    finally:
        batcher.close()
    stage.check()


def test_inv_14__nobody_serves_a_flooded_lane__its_neighbour_is_handed_out(stage: Stage) -> None:
    stage.tasks(200, "flood", priority=100)
    (key,) = stage.tasks(1)
    with stage.connect() as holder, holder.transaction():
        # Somebody even holds the flood's rows.
        holder.execute(
            "select from ready_tasks where lane_id = %s for update", [stage.lane_id("flood")]
        )
        assert [task.task_id for task in stage.lease(1)] == [key.task_id]
    stage.check()
