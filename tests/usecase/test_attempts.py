"""What each end of a hand-out does to the task: attempts, losses, its place, its death."""

import pytest

from tenure_service.engine.policy import Backoff, PartialPolicy
from tenure_service.engine.states import Outcome
from tenure_service.store import rows
from tenure_service.usecase import expire, operate
from tenure_service.usecase.end import Recorded
from tests.usecase.stage import Stage, later


def _lose(stage: Stage) -> None:
    assert expire.expire(stage.database, stage.catalogue, now=later()) is not None


def _again(stage: Stage, *, suspect: bool = False) -> rows.LeasedTask:
    """Hands the one task out again, its timer having fired if it had one."""
    expire.fire_timers(stage.database, now=later(days=90))
    (task,) = stage.lease(1, suspect=suspect)
    return task


def test_report__failures__spend_attempts_until_the_last(stage: Stage) -> None:
    (key,) = stage.tasks(1)
    for attempt in (1, 2, 3):
        task = _again(stage)
        assert (task.attempt, task.delivery) == (attempt, attempt)
        assert stage.report(task, Outcome.FAILED) is Recorded.RECORDED
        stage.check()
    assert stage.ready(key) is None
    assert stage.all("select reason::text, state::text, delivery, attempt from dead_letters") == [
        ("ATTEMPTS_EXHAUSTED", "OPEN", 3, 3)
    ]
    assert stage.outcomes(key) == ["FAILED"] * 3


@pytest.mark.parametrize(
    ("failure", "policy"),
    [
        ({"type": "E", "message": "", "non_retryable": True}, PartialPolicy()),
        ({"type": "E", "message": ""}, PartialPolicy(non_retryable_types=("E",))),
    ],
)
def test_report__failure_that_no_retry_helps__dies_at_once(
    stage: Stage, failure: rows.Json, policy: PartialPolicy
) -> None:
    stage.tasks(1, policy=policy)
    task = _again(stage)
    stage.report(task, Outcome.FAILED, failure=failure)
    assert stage.all("select reason::text, attempt from dead_letters") == [("NON_RETRYABLE", 1)]
    stage.check()


def test_report__failure_with_retry_after__waits_as_long(stage: Stage) -> None:
    stage.tasks(1)
    stage.report(
        _again(stage),
        Outcome.FAILED,
        failure={"type": "E", "message": "", "retry_after_ms": 7_200_000},
    )
    assert stage.all(
        "select kind::text, attempt, delivery,"
        " round(extract(epoch from fire_at - now()) / 3600)::int from timers"
    ) == [("BACKOFF", 2, 2, 2)]
    stage.check()


@pytest.mark.parametrize(
    ("backoff", "hours"),
    [(Backoff.FIXED, [1, 1]), (Backoff.LINEAR, [1, 2]), (Backoff.EXPONENTIAL, [1, 4])],
)
def test_report__failures__wait_as_the_policy_says(
    stage: Stage, backoff: Backoff, hours: list[int]
) -> None:
    policy = PartialPolicy(
        max_attempts=3,
        backoff=backoff,
        initial_delay_ms=3_600_000,
        multiplier=4,
        max_delay_ms=36_000_000,
        jitter=0,
    )
    stage.tasks(1, policy=policy)
    for expected in hours:
        stage.report(_again(stage), Outcome.FAILED)
        found = stage.all(
            "select round(extract(epoch from fire_at - now()) / 3600)::int from timers"
        )
        assert found == [(expected,)]
        stage.check()


def test_report__rescheduled__spends_no_attempt_and_leaves_details(stage: Stage) -> None:
    (key,) = stage.tasks(1)
    for delivery in (1, 2, 3, 4, 5):
        task = _again(stage)
        assert (task.attempt, task.delivery) == (1, delivery)
        stage.report(task, Outcome.RESCHEDULED, delay_ms=1_000, output=b"so far")
        stage.check()
    assert stage.report(_again(stage), Outcome.DONE) is Recorded.RECORDED
    assert stage.outcomes(key) == ["RESCHEDULED"] * 5 + ["DONE"]
    stage.check()


def test_report__released__keeps_attempt_and_place(stage: Stage) -> None:
    first, second = stage.tasks(2)
    before = stage.ready(first)
    (task,) = stage.lease(1)
    stage.report(task, Outcome.RELEASED)
    after = stage.ready(first)
    assert before is not None
    assert after is not None
    assert (after[0], after[1], after[3]) == (1, 2, before[3])
    assert [one.task_id for one in stage.lease(2)] == [first.task_id, second.task_id]
    stage.check()


def test_report__failed__goes_to_the_end_of_the_lane(stage: Stage) -> None:
    first, second = stage.tasks(2)
    (task,) = stage.lease(1)
    stage.report(task, Outcome.FAILED)
    assert [one.task_id for one in stage.lease(2)] == [second.task_id, first.task_id]


def test_release_session__held_tasks__go_back_unspent_and_the_session_is_closed(
    stage: Stage,
) -> None:
    keys = stage.tasks(3)
    opened = stage.session()
    tasks = stage.lease(3, opened=opened)
    stage.report(tasks[0], Outcome.DONE)
    ends = expire.release_session(stage.database, stage.catalogue, opened.session_id, opened.epoch)
    assert ends is not None
    assert expire.release_session(stage.database, stage.catalogue, opened.session_id, 1) is None
    assert [one.task_id for one in stage.lease(3)] == [key.task_id for key in keys[1:]]
    assert stage.lease(3, opened=opened) == []
    stage.check()


def test_expire__losses__spend_no_attempt_and_the_fifth_is_death(stage: Stage) -> None:
    (key,) = stage.tasks(1)
    normal, suspect = stage.lane_id(), stage.lane_id(suspect=True)
    for lost in range(5):
        task = _again(stage, suspect=lost >= 2)
        assert (task.attempt, task.delivery) == (1, lost + 1)
        _lose(stage)
        stage.check()
        found = stage.all(
            "select lane_id, lost_count::int, attempt from ready_tasks"
            " union all select lane_id, lost_count::int, attempt from timers"
        )
        lane_id = normal if lost == 0 else suspect
        assert found == ([(lane_id, lost + 1, 1)] if lost < 4 else [])
    assert stage.outcomes(key) == ["LOST"] * 5
    assert stage.all("select reason::text, delivery, attempt, lane_id from dead_letters") == [
        ("LEASE_LOST", 5, 1, normal)
    ]


def test_expire__only_attempt_of_the_task__goes_back_all_the_same(stage: Stage) -> None:
    (key,) = stage.tasks(1, policy=PartialPolicy(max_attempts=1))
    _again(stage)
    _lose(stage)
    assert stage.ready(key) is not None
    stage.report(_again(stage), Outcome.FAILED)
    assert stage.outcomes(key) == ["LOST", "FAILED"]
    assert stage.all("select reason::text from dead_letters") == [("ATTEMPTS_EXHAUSTED",)]
    stage.check()


def test_lease__urgent_first__then_in_order_of_enqueueing(stage: Stage) -> None:
    """One order for what waited before a worker came and for what comes after."""
    late = stage.tasks(3)
    urgent = stage.tasks(2, priority=5)
    later_on = stage.tasks(1)
    order = [task.task_id for task in stage.lease(4) + stage.lease(4)]
    assert order == [key.task_id for key in [*urgent, *late, *later_on]]


# -------------------------------------------------------------------------------- dead letters


def _kill(stage: Stage) -> None:
    stage.report(
        _again(stage), Outcome.FAILED, failure={"type": "E", "message": "", "non_retryable": True}
    )


def test_replay__dead_letter__is_the_same_task_with_fresh_attempts(stage: Stage) -> None:
    (key,) = stage.tasks(1)
    _kill(stage)
    answers, lanes = operate.replay(stage.database, stage.namespace_id, [key])
    assert answers == ["REPLAYED"]
    assert list(lanes) == [stage.lane_id()]
    stage.check()
    task = _again(stage)
    assert (task.task_id, task.attempt, task.delivery) == (key.task_id, 1, 2)
    _kill_leased(stage, task)
    assert stage.all("select state::text, delivery from dead_letters") == [("OPEN", 2)]
    stage.check()
    operate.replay(stage.database, stage.namespace_id, [key])
    assert stage.report(_again(stage), Outcome.DONE) is Recorded.RECORDED
    assert stage.outcomes(key) == ["FAILED", "FAILED", "DONE"]
    stage.check()


def _kill_leased(stage: Stage, task: rows.LeasedTask) -> None:
    failure = {"type": "E", "message": "", "non_retryable": True}
    assert stage.report(task, Outcome.FAILED, failure=failure) is Recorded.RECORDED


def test_replay__task_that_killed_five_workers__starts_trusted(stage: Stage) -> None:
    (key,) = stage.tasks(1)
    for lost in range(5):
        _again(stage, suspect=lost >= 2)
        _lose(stage)
    operate.replay(stage.database, stage.namespace_id, [key])
    waiting = stage.ready(key)
    assert waiting is not None
    assert (waiting[:3], waiting[4]) == ((1, 6, 0), stage.lane_id())
    stage.check()


@pytest.mark.parametrize("first", ["replay", "discard"])
def test_replay__dead_letter_is_dealt_with__is_a_conflict(stage: Stage, first: str) -> None:
    (key,) = stage.tasks(1)
    _kill(stage)
    acted = operate.replay if first == "replay" else operate.discard
    acted(stage.database, stage.namespace_id, [key])
    before = stage.ready(key)
    (answer,), lanes = operate.replay(stage.database, stage.namespace_id, [key])
    (other,) = operate.discard(stage.database, stage.namespace_id, [key])
    assert str(answer).endswith("not OPEN")
    assert str(other).endswith("not OPEN")
    assert lanes == {}
    assert stage.ready(key) == before
    stage.check()


def test_replay__twice_in_one_call__puts_back_once(stage: Stage) -> None:
    (key,) = stage.tasks(1)
    _kill(stage)
    answers, _ = operate.replay(stage.database, stage.namespace_id, [key, key])
    assert answers == ["REPLAYED", "REPLAYED"]
    assert stage.all("select count(*) from ready_tasks") == [(1,)]
    stage.check()
