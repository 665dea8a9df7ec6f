"""The ends of runs, as they are written with the last delivery."""

from datetime import timedelta

import pytest

from tenure_service.engine.policy import Policy, Timeout, TimeoutAction, TimeoutKind
from tenure_service.engine.states import Outcome
from tenure_service.usecase import timeouts
from tenure_service.usecase.end import Recorded
from tests.runs import flows
from tests.runs.lives import (
    all_of,
    begin,
    hand_out,
    inbox,
    report,
    start_child,
    start_tasks,
    state,
    suspend,
)
from tests.usecase.stage import Stage, later

ENDS = [
    # (how the activation ends, what the run is, what its delivery says)
    (Outcome.DONE, "COMPLETED", "DONE"),
    (Outcome.FAILED, "FAILED", "FAILED"),
    (Outcome.CANCELLED, "FAILED", "FAILED"),
]


@pytest.mark.parametrize(("outcome", "status", "recorded"), ENDS)
def test_end__activation__is_the_end_of_its_run(
    stage: Stage, outcome: Outcome, status: str, recorded: str
) -> None:
    one = begin(stage)
    ends = report(stage, one, outcome)
    assert (ends.recorded, ends.over) == ([Recorded.RECORDED], [one.run_id])
    assert state(stage, one.run_id) == (status, None, "over")
    assert stage.outcomes(one.task) == [recorded]
    assert stage.all("select version, ended_at is not null, status::text from runs") == [
        ("v1", True, status)
    ]
    # A run is not tried again, and is no dead letter.
    assert stage.all("select 1 from dead_letters") == []
    assert report(stage, one, outcome).recorded == [Recorded.ALREADY_RECORDED]
    stage.check()


def test_end__run_that_a_run_started__tells_it(stage: Stage) -> None:
    one = begin(stage)
    child_id = start_child(stage, one)
    (child,) = hand_out(stage)
    ends = report(stage, child, Outcome.DONE)
    assert ends.inboxes == {one.run_id}
    assert inbox(stage, one.run_id) == [child_id]
    assert inbox(stage, child_id) == []
    assert report(stage, one, Outcome.DONE).inboxes == set()


def test_end__task_that_is_no_runs__tells_nobody(stage: Stage) -> None:
    stage.tasks(2)
    tasks = stage.lease()
    for task in tasks:
        stage.report(task, Outcome.DONE)
    assert stage.all("select 1 from run_inbox") == []


def test_end__retried_task__tells_only_at_its_end(stage: Stage) -> None:
    one = begin(stage)
    (child_id,) = start_tasks(stage, one, 1)
    for number in range(3):
        assert inbox(stage, one.run_id) == []
        (task,) = stage.lease()
        stage.report(task, Outcome.FAILED)
        assert task.attempt == number + 1
    assert inbox(stage, one.run_id) == [child_id]
    stage.check()


READY_UNTIL = """
    update ready_tasks set total_by = now() + %(s)s, deadline_at = now() + %(s)s
    where run_id = task_id
"""


def total(stage: Stage, seconds: float) -> None:
    """Gives all runs a total timeout, where they are and in their policies."""
    limit = Timeout(round(seconds * 1000), TimeoutAction.TIME_OUT)
    policy = Policy(max_attempts=1, total=limit)
    (policy_id,) = stage.catalogue.policy_ids([policy]).values()
    with stage.connect() as conn:
        conn.execute("update tasks set policy_id = %s where run_id = task_id", [policy_id])
        for statement in (
            "update leases set total_bys = array[now() + %(s)s], deadline_at = now() + %(s)s",
            READY_UNTIL,
            "update timers set total_by = now() + %(s)s, fire_at = least(fire_at, now() + %(s)s)",
        ):
            conn.execute(statement.encode(), {"s": timedelta(seconds=seconds)})


@pytest.mark.parametrize("place", ["leased", "ready", "WAIT", "WAIT for ever", "ready again"])
def test_time_out__wherever_the_run_is__is_its_end(stage: Stage, place: str) -> None:
    if place == "ready":
        (run_id,) = flows.place(stage)
    else:
        one = begin(stage)
        run_id = one.run_id
        if place == "WAIT":
            suspend(stage, one, wake_ms=86_400_000)
        elif place == "WAIT for ever":
            suspend(stage, one, all_of(start_tasks(stage, one, 1)))
        elif place == "ready again":
            report(stage, one, Outcome.RELEASED)
    assert state(stage, run_id)[2] == place.removesuffix(" again")
    total(stage, 10)
    assert timeouts.sweep(stage.database, stage.catalogue, now=later(seconds=9)) is None
    ends = timeouts.sweep(stage.database, stage.catalogue, now=later(seconds=11))
    assert ends is not None
    assert ends.over == [run_id]
    assert ends.tally.timeouts == {TimeoutKind.TOTAL: 1}
    assert state(stage, run_id) == ("TIMED_OUT", None, "over")
    assert stage.all("select failure ->> 'type' from deliveries where final") == [("TotalTimeout",)]
    assert ends.spread == (place == "WAIT for ever")
    assert timeouts.sweep(stage.database, stage.catalogue, now=later(seconds=12)) is None
    stage.check()


def test_time_out__run_is_locked__comes_later(stage: Stage) -> None:
    one = begin(stage)
    suspend(stage, one, wake_ms=86_400_000)
    total(stage, 10)
    with stage.transaction() as conn:
        conn.execute("select 1 from runs for update")
        assert timeouts.sweep(stage.database, stage.catalogue, now=later(seconds=11)) is None
    assert timeouts.sweep(stage.database, stage.catalogue, now=later(seconds=11)) is not None
    stage.check()
