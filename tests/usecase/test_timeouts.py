"""Timeouts fire at their time and not before, act as they say, and are armed again."""

import dataclasses
import logging
from datetime import UTC, datetime, timedelta

import pytest

from tenure_service.engine.policy import (
    PartialPolicy,
    Policy,
    Timeout,
    TimeoutAction,
    TimeoutKind,
)
from tenure_service.engine.retry import TimedOut, after_timeout
from tenure_service.engine.states import Outcome
from tenure_service.engine.tokens import TaskKey
from tenure_service.store import leases, rows
from tenure_service.usecase import cancel, expire, lease, operate, read, timeouts
from tests.usecase.stage import AT_ONCE, Stage, ending


def policy(**limits: Timeout) -> PartialPolicy:
    return dataclasses.replace(AT_ONCE, **limits)  # type: ignore[arg-type]


def after(seconds: float) -> datetime:
    return datetime.now(UTC) + timedelta(seconds=seconds)


def sweep(stage: Stage, seconds: float) -> bool:
    """Sweeps as if so many seconds had passed; tells whether anything was due."""
    return timeouts.sweep(stage.database, stage.catalogue, now=after(seconds)) is not None


def state(stage: Stage, key: TaskKey | rows.LeasedTask) -> str:
    view, _ = read.get(
        stage.database,
        stage.catalogue,
        stage.namespace_id,
        TaskKey(key.run_id, key.task_id),
        include_payloads=False,
    )
    return view.row.state


def start(stage: Stage, task: rows.LeasedTask, run_ms: float = 0.0) -> None:
    one = leases.Started(task.lease_id, b"s" * 16, task.task_id, run_ms)
    lease.renew(stage.database, [], [one], 60_000)


def say(stage: Stage, task: rows.LeasedTask, data: str = "NDI=") -> None:
    details = {"data": data, "encoding": None, "schema": None}
    one = leases.Progress(task.lease_id, b"s" * 16, task.task_id, details)
    lease.renew(stage.database, [], [], 60_000, [one])


RETRY_10_S = Timeout(10_000)
OVER_10_S = Timeout(10_000, TimeoutAction.TIME_OUT)
ALERT_10_S = Timeout(10_000, TimeoutAction.ALERT_ONLY)


def test_end__the_server_ends_a_started_hand_out__it_keeps_its_start(stage: Stage) -> None:
    told, silent = stage.tasks(2, policy=policy(total=OVER_10_S))
    leased = {task.task_id: task for task in stage.lease()}
    start(stage, leased[told.task_id], run_ms=2_000)
    assert sweep(stage, 11)
    ran = "select extract(epoch from ended_at - started_at)::float8 from deliveries"
    by_id = dict(stage.all(ran.replace("select", "select task_id::text,")))
    assert by_id[told.task_id] == pytest.approx(13, abs=0.9)
    assert by_id[silent.task_id] is None
    stage.check()


def test_start_to_close__retry__spends_the_attempt_and_ends_in_the_dead_letters(
    stage: Stage,
) -> None:
    (key,) = stage.tasks(policy=policy(start_to_close=RETRY_10_S))
    for attempt in (1, 2, 3):
        (task,) = stage.lease()
        assert task.attempt == attempt
        start(stage, task)
        assert not sweep(stage, 9)
        assert sweep(stage, 11)
        assert stage.report(task, Outcome.DONE) == "LEASE_LOST"
        stage.check()
    assert stage.outcomes(key) == ["TIMED_OUT"] * 3
    assert state(stage, key) == "DEAD"
    ((reason, failure),) = stage.all(
        "select g.reason::text, d.failure from dead_letters g join deliveries d"
        " on d.task_id = g.task_id and d.delivery = g.delivery"
    )
    assert reason == "ATTEMPTS_EXHAUSTED"
    assert failure["type"] == "StartToCloseTimeout"


def test_start_to_close__counted_from_the_start__not_from_the_lease(stage: Stage) -> None:
    stage.tasks(policy=policy(start_to_close=RETRY_10_S))
    (task,) = stage.lease()
    assert not sweep(stage, 1000)
    start(stage, task, run_ms=8_000)
    assert not sweep(stage, 1)
    assert sweep(stage, 3)
    stage.check()


def test_start_to_close__time_out__ends_the_task(stage: Stage) -> None:
    (key,) = stage.tasks(policy=policy(start_to_close=OVER_10_S))
    (task,) = stage.lease()
    start(stage, task)
    assert sweep(stage, 11)
    assert state(stage, key) == "TIMED_OUT"
    assert stage.all("select 1 from dead_letters") == []
    stage.check()


def test_start_to_close__one_of_a_lease__leaves_its_mates(stage: Stage) -> None:
    stage.tasks(policy=policy(start_to_close=RETRY_10_S))
    stage.tasks(2)
    first, second, third = stage.lease()
    start(stage, first)
    start(stage, second)
    assert sweep(stage, 11)
    assert not sweep(stage, 1000)
    assert stage.report(first, Outcome.DONE) == "LEASE_LOST"
    assert stage.report(second, Outcome.DONE) == "RECORDED"
    assert stage.report(third, Outcome.DONE) == "RECORDED"
    stage.check()


def test_alert_only__is_told_once_and_ends_nothing(
    stage: Stage, caplog: pytest.LogCaptureFixture
) -> None:
    stage.tasks(policy=policy(start_to_close=ALERT_10_S, heartbeat=Timeout(20_000)))
    (task,) = stage.lease()
    start(stage, task)
    with caplog.at_level(logging.WARNING):
        sweep(stage, 11)
        sweep(stage, 12)
    told = [r for r in caplog.records if "start_to_close" in r.getMessage()]
    assert len(told) == 1
    assert stage.outcomes(task) == []
    assert sweep(stage, 21)
    assert stage.outcomes(task) == ["TIMED_OUT"]
    stage.check()


def test_heartbeat__progress__puts_it_off(stage: Stage) -> None:
    stage.tasks(policy=policy(heartbeat=RETRY_10_S))
    (task,) = stage.lease()
    start(stage, task, run_ms=8_000)
    say(stage, task)
    sweep(stage, 3)
    assert stage.outcomes(task) == []
    assert sweep(stage, 11)
    assert stage.outcomes(task) == ["TIMED_OUT"]
    stage.check()


def test_progress__handler_is_lost__is_handed_to_the_next_attempt(stage: Stage) -> None:
    stage.tasks()
    (task,) = stage.lease()
    say(stage, task)
    expire.expire(stage.database, stage.catalogue, now=after(3600))
    pick = stage.pick(stage.session(), stage.lane_id())
    (grant,) = lease.lease(stage.database, stage.catalogue, [pick])
    assert grant.details[task.task_id].output == b"42"


def test_progress__wrong_secret__is_not_kept(stage: Stage) -> None:
    stage.tasks()
    (task,) = stage.lease()
    details = {"data": "NDI=", "encoding": None, "schema": None}
    forged = leases.Progress(task.lease_id, b"x" * 16, task.task_id, details)
    started = leases.Started(task.lease_id, b"x" * 16, task.task_id, 0.0)
    lease.renew(stage.database, [], [started], 60_000, [forged])
    assert stage.all("select details, started_task_ids from leases") == [(None, None)]


def test_start__said_twice_or_of_another_task__is_noted_once(stage: Stage) -> None:
    stage.tasks(2)
    first, _ = stage.lease(2)
    start(stage, first)
    start(stage, first)
    stray = first._replace(task_id="00000000-0000-7000-8000-000000000000")
    start(stage, stray)
    ((started,),) = stage.all("select cardinality(started_task_ids) from leases")
    assert started == 1


def test_schedule_to_start__nobody_takes_it__spends_attempts(stage: Stage) -> None:
    (key,) = stage.tasks(policy=policy(schedule_to_start=RETRY_10_S))
    assert not sweep(stage, 9)
    assert sweep(stage, 11)
    assert stage.outcomes(key) == ["TIMED_OUT"]
    assert state(stage, key) == "READY"
    # It was armed again at the put-back, whose time the test had moved 11 s ahead.
    assert not sweep(stage, 19)
    assert sweep(stage, 25)
    assert sweep(stage, 60)
    assert state(stage, key) == "DEAD"
    stage.check()


def test_schedule_to_start__begins_when_a_delay_is_over(stage: Stage) -> None:
    (key,) = stage.tasks(policy=policy(schedule_to_start=OVER_10_S), delay_ms=20_000)
    assert not sweep(stage, 19)
    expire.fire_timers(stage.database, now=after(21))
    assert not sweep(stage, 30)
    assert sweep(stage, 32)
    assert state(stage, key) == "TIMED_OUT"
    stage.check()


def test_schedule_to_start__leased_in_time__does_not_fire(stage: Stage) -> None:
    stage.tasks(policy=policy(schedule_to_start=RETRY_10_S))
    (task,) = stage.lease()
    assert not sweep(stage, 1000)
    assert stage.report(task, Outcome.DONE) == "RECORDED"


def test_schedule_to_start__alert_only__keeps_the_place(stage: Stage) -> None:
    (key,) = stage.tasks(policy=policy(schedule_to_start=ALERT_10_S))
    before = stage.ready(key)
    assert sweep(stage, 11)
    assert stage.ready(key) == before
    assert not sweep(stage, 1000)
    stage.check()


@pytest.mark.parametrize("action", [TimeoutAction.RETRY, TimeoutAction.TIME_OUT])
def test_total__ready_delayed_leased_or_backing_off__ends_the_task(
    stage: Stage, action: TimeoutAction
) -> None:
    total = policy(total=Timeout(60_000, action))
    slow = dataclasses.replace(total, initial_delay_ms=1_000_000, max_delay_ms=1_000_000)
    (backing_off,) = stage.tasks(policy=slow)
    (task,) = stage.lease()
    stage.report(task, Outcome.FAILED)
    (leased,) = stage.tasks(policy=total)
    stage.lease()
    (ready,) = stage.tasks(policy=total)
    (delayed,) = stage.tasks(policy=total, delay_ms=1_000_000)
    keys = (backing_off, leased, ready, delayed)
    assert not sweep(stage, 59)
    assert sweep(stage, 61)
    assert [state(stage, key) for key in keys] == ["TIMED_OUT"] * 4
    stage.check()


def test_total__released_lost_and_retried__keeps_its_end(stage: Stage) -> None:
    (key,) = stage.tasks(policy=policy(total=OVER_10_S))
    (task,) = stage.lease()
    stage.report(task, Outcome.RELEASED)
    (task,) = stage.lease()
    stage.report(task, Outcome.FAILED)
    (task,) = stage.lease()
    stage.report(task, Outcome.RESCHEDULED, delay_ms=3_600_000)
    assert not sweep(stage, 9)
    assert sweep(stage, 11)
    assert state(stage, key) == "TIMED_OUT"
    assert stage.outcomes(key) == ["RELEASED", "FAILED", "RESCHEDULED", "TIMED_OUT"]
    stage.check()


def test_total__over_meanwhile__fires_for_nobody(stage: Stage) -> None:
    stage.tasks(policy=policy(total=OVER_10_S))
    (task,) = stage.lease()
    assert stage.report(task, Outcome.DONE) == "RECORDED"
    assert not sweep(stage, 1000)
    assert stage.outcomes(task) == ["DONE"]


def test_timeout__cancelled_meanwhile__ends_as_cancelled(stage: Stage) -> None:
    (key,) = stage.tasks(policy=policy(start_to_close=RETRY_10_S))
    (task,) = stage.lease()
    start(stage, task)
    cancel.cancel(stage.database, stage.namespace_id, [key], reason="", grace_ms=3_600_000)
    assert sweep(stage, 11)
    assert state(stage, key) == "CANCELLED"
    stage.check()


def test_report__failed_before_the_sweep__is_what_counts(stage: Stage) -> None:
    stage.tasks(policy=policy(start_to_close=RETRY_10_S))
    (task,) = stage.lease()
    start(stage, task, run_ms=60_000)
    assert stage.end(ending(task, Outcome.FAILED)) == ["RECORDED"]
    assert not sweep(stage, 1)
    assert stage.outcomes(task) == ["FAILED"]
    stage.check()


def test_replay__after_a_timeout__is_live_again(stage: Stage) -> None:
    limits = dataclasses.replace(policy(start_to_close=RETRY_10_S), max_attempts=1)
    (key,) = stage.tasks(policy=limits)
    (task,) = stage.lease()
    start(stage, task)
    assert sweep(stage, 11)
    assert state(stage, key) == "DEAD"
    operate.replay(stage.database, stage.namespace_id, [key])
    assert state(stage, key) == "READY"
    (task,) = stage.lease()
    assert stage.report(task, Outcome.DONE) == "RECORDED"
    assert state(stage, key) == "COMPLETED"
    stage.check()


@pytest.mark.parametrize("kind", list(TimeoutKind))
def test_after_timeout__time_out__is_over_whatever_is_left(kind: TimeoutKind) -> None:
    complete = dataclasses.replace(Policy(), **{kind: OVER_10_S})  # type: ignore[arg-type]
    assert after_timeout(complete, kind, attempt=1, share=0.5) == TimedOut()
