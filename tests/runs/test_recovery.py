"""Runs whose activations are lost go on with the version that had them, or are blocked."""

from dataclasses import replace

import pytest

from tenure_service.engine import limits
from tenure_service.engine.states import Outcome
from tenure_service.store.database import Conn
from tenure_service.usecase import expire, wake
from tenure_service.usecase.end import Recorded
from tenure_service.usecase.report import end_all
from tests.runs import flows
from tests.runs.activations import Activation, record
from tests.runs.lives import (
    all_of,
    begin,
    hand_out,
    report,
    start_tasks,
    state,
    suspend,
    suspension,
)
from tests.usecase.stage import Stage, later


def lose(stage: Stage) -> None:
    expire.expire(stage.database, stage.catalogue, now=later())
    # What waits after a loss.
    with stage.connect() as conn:
        conn.execute(
            "update timers set fire_at = now() - interval '1 second' where kind = 'BACKOFF'"
        )
    expire.fire_timers(stage.database)


def lane(stage: Stage, run_id: str) -> tuple[str, bool, int]:
    """(version, suspect, lost count) of where a run waits."""
    ((version, suspect, lost_count),) = stage.all(
        """
        select l.app_version, l.suspect, w.lost_count
        from (
            select task_id, lane_id, lost_count from ready_tasks
            union all
            select task_id, lane_id, lost_count from timers
        ) as w
        inner join lanes as l using (lane_id)
        where w.task_id = %s
        """,
        run_id,
    )
    return version, suspect, lost_count


def version(stage: Stage, run_id: str) -> str | None:
    ((found,),) = stage.all("select version from runs where run_id = %s", run_id)
    return found if found is None else str(found)


def exhaust(stage: Stage, attempts: int = 3) -> Activation:
    """Loses a run's activations until it is blocked; gives the last one."""
    one = begin(stage)
    with stage.connect() as conn:
        conn.execute("update runs set recovery_attempts = %s", [attempts])
    for number in range(1, attempts):
        lose(stage)
        assert state(stage, one.run_id) == ("OPEN", None, "ready")
        suspect = number >= limits.SUSPECT_LOST
        assert lane(stage, one.run_id) == ("v1", suspect, number)
        (one,) = hand_out(stage, "v1", suspect=suspect)
    lose(stage)
    return one


def test_expire__activation__goes_back_to_the_version_that_had_it(stage: Stage) -> None:
    one = begin(stage)
    assert version(stage, one.run_id) is None
    lose(stage)
    assert lane(stage, one.run_id) == ("v1", False, 1)
    assert version(stage, one.run_id) == "v1"
    # Compatible code goes on with it, and has it from then on; the run began with the first.
    hand_out(stage, "v1", by="v2")
    lose(stage)
    assert lane(stage, one.run_id) == ("v2", True, 2)
    assert version(stage, one.run_id) == "v1"
    stage.check()


def test_expire__worker_without_a_version__keeps_the_lane(stage: Stage) -> None:
    (run_id,) = flows.place(stage)
    hand_out(stage, by="v1")
    with stage.connect() as conn:
        conn.execute("update sessions set handlers = '[]'")
    lose(stage)
    assert lane(stage, run_id) == ("*", False, 1)
    assert version(stage, run_id) is None


@pytest.mark.parametrize("attempts", [1, 3, 7])
def test_expire__as_often_as_it_may_be_lost__is_blocked(stage: Stage, attempts: int) -> None:
    one = exhaust(stage, attempts)
    assert state(stage, one.run_id) == ("BLOCKED", "RECOVERIES_EXHAUSTED", "WAIT for ever")
    assert stage.outcomes(one.task) == ["LOST"] * attempts
    assert stage.all("select 1 from dead_letters") == []
    ((failure,),) = stage.all("select failure from runs")
    assert failure["type"] == "RecoveriesExhausted"
    assert str(attempts) in failure["message"]
    stage.check()


def test_suspend__after_losses__counts_anew(stage: Stage) -> None:
    one = begin(stage)
    lose(stage)
    (one,) = hand_out(stage, "v1")
    lose(stage)
    (one,) = hand_out(stage, "v1", suspect=True)
    assert one.task.lease_id
    suspend(stage, one, wake_ms=1_000)
    assert lane(stage, one.run_id) == ("v1", False, 0)
    stage.check()


def test_release__activation__keeps_its_place(stage: Stage) -> None:
    one = begin(stage)
    before = one.task.seq
    report(stage, one, Outcome.RELEASED)
    ready = stage.ready(one.task)
    assert ready is not None
    assert ready[:4] == (1, 2, 0, before)
    assert lane(stage, one.run_id) == ("v1", False, 0)
    stage.check()


def test_block__reported__holds_the_run_until_it_is_resumed(stage: Stage) -> None:
    one = begin(stage)
    message = suspension(one, blocked=True)
    assert stage.end(message) == [Recorded.RECORDED]
    assert stage.end(message) == [Recorded.ALREADY_RECORDED]
    assert state(stage, one.run_id) == ("BLOCKED", "HISTORY_MISMATCH", "WAIT for ever")
    assert stage.all("select failure ->> 'type' from runs") == [("HistoryMismatch",)]
    assert expire.fire_timers(stage.database, now=later(days=3_000)) == []
    stage.check()


def resume(stage: Stage, *run_ids: str) -> list[str]:
    def work(conn: Conn) -> list[str]:
        return wake.resume(conn, run_ids).run_ids

    return stage.database.transact(work)


@pytest.mark.parametrize("exhausted", [True, False])
def test_resume__blocked__goes_on_with_its_losses_counted_anew(
    stage: Stage, *, exhausted: bool
) -> None:
    if exhausted:
        one = exhaust(stage)
    else:
        one = begin(stage)
        stage.end(suspension(one, blocked=True))
    waiting = begin(stage)
    suspend(stage, waiting, wake_ms=60_000)
    assert resume(stage, one.run_id, waiting.run_id) == [one.run_id]
    assert state(stage, one.run_id) == ("OPEN", None, "ready")
    assert lane(stage, one.run_id) == ("v1", False, 0)
    assert stage.all("select failure from runs where run_id = %s", one.run_id) == [(None,)]
    assert resume(stage, one.run_id) == []
    stage.check()
    hand_out(stage, "v1")
    lose(stage)
    assert lane(stage, one.run_id) == ("v1", False, 1)
    stage.check()


def test_wake__blocked_run__stays(stage: Stage) -> None:
    """What it waited for before its time fired is over now: that does not unblock it."""
    one = begin(stage)
    children = start_tasks(stage, one, 1)
    suspend(stage, one, all_of(children), wake_ms=1_000)
    expire.fire_timers(stage.database, now=later(seconds=2))
    (again,) = hand_out(stage, "v1")
    stage.end(suspension(again, blocked=True))
    (task,) = stage.lease()
    stage.report(task, Outcome.DONE)
    assert wake.wake(stage.database, [one.run_id]).run_ids == []
    assert state(stage, one.run_id) == ("BLOCKED", "HISTORY_MISMATCH", "WAIT for ever")
    stage.check()


def test_expire__several_runs_of_one_lease__each_goes_its_way(stage: Stage) -> None:
    flows.place(stage, 3)
    first, second, third = hand_out(stage)
    report(stage, first, Outcome.DONE)
    suspend(stage, second, wake_ms=1_000)
    lose(stage)
    assert [state(stage, one.run_id)[0] for one in (first, second, third)] == [
        "COMPLETED",
        "WAITING",
        "OPEN",
    ]
    assert lane(stage, third.run_id) == ("v1", False, 1)
    stage.check()


def test_record__after_the_activation_was_suspended__is_refused(stage: Stage) -> None:
    flows.place(stage, 2)
    first, second = hand_out(stage)
    suspend(stage, first, wake_ms=1_000)
    with pytest.raises(AssertionError, match="is over"):
        record(stage, first)
    assert start_tasks(stage, second, 1)


def test_end__in_one_batch_with_tasks__each_takes_its_form(stage: Stage) -> None:
    one, (task_key,) = begin(stage), stage.tasks(1)
    (task,) = stage.lease()
    lost = replace(suspension(one, wake_ms=5), secret=None)
    ends = end_all(
        stage.database,
        stage.catalogue,
        [
            replace(lost, lease_id=task.lease_id, key=task_key, outcome=Outcome.LOST),
            replace(lost, outcome=Outcome.LOST),
        ],
    )
    assert ends.recorded == [Recorded.RECORDED] * 2
    assert stage.ready(task) is not None
    assert lane(stage, one.run_id) == ("v1", False, 1)
    stage.check()
