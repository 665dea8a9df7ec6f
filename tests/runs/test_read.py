"""Reading runs and waiting for them: where each stands, what lists give, what nobody may see."""

import asyncio
from datetime import UTC, datetime, timedelta

import pytest

from tenure.v1 import run_pb2 as run
from tenure.v1 import task_pb2 as task
from tenure.v1 import task_service_pb2 as tasks
from tenure_service.engine.states import Outcome
from tenure_service.usecase import cancel_runs, runs
from tenure_service.usecase.report import end_all
from tests.eventually import time_passes
from tests.protocol import caller, refusals
from tests.protocol.caller import Caller, seconds
from tests.protocol.refusals import Refusal
from tests.runs import calls, flows, lives
from tests.runs.activations import call, nap, record
from tests.runs.calls import new
from tests.usecase.stage import Stage

UNKNOWN = "01900000-0000-7000-8000-000000000000"


def _read(stage: Stage, run_id: str) -> tuple[str, str | None, datetime | None]:
    """(state, why it is blocked, when it wakes) of a run."""
    row = runs.get(
        stage.database, stage.namespace_id, run_id=run_id, key=None, include_payloads=False
    )
    return row.state, row.blocked, row.wakes_at


# ---------------------------------------------------------------------------------- one run


def test_get__each_place__is_the_state(stage: Stage) -> None:
    (waiting,) = flows.place(stage)
    assert _read(stage, waiting) == ("QUEUED", None, None)
    (one,) = lives.hand_out(stage)
    assert _read(stage, one.run_id) == ("RUNNING", None, None)
    lives.suspend(stage, one, lives.all_of(lives.start_tasks(stage, one, 1)))
    assert _read(stage, one.run_id) == ("WAITING", None, None)
    lives.work(stage)
    lives.wake_up(stage, one.run_id)
    assert _read(stage, one.run_id) == ("QUEUED", None, None)
    (one,) = lives.hand_out(stage, "v1")
    lives.suspend(stage, one, wake_ms=3_600_000)
    state, _, wakes_at = _read(stage, one.run_id)
    assert state == "WAITING"
    assert wakes_at is not None
    assert timedelta(minutes=59) < wakes_at - datetime.now(UTC) < timedelta(minutes=61)


def test_get__blocked__says_why_and_with_which_failure(stage: Stage) -> None:
    one = lives.begin(stage)
    end_all(stage.database, stage.catalogue, [lives.suspension(one, blocked=True)])
    assert _read(stage, one.run_id) == ("BLOCKED", "HISTORY_MISMATCH", None)
    row = runs.get(
        stage.database, stage.namespace_id, run_id=one.run_id, key=None, include_payloads=False
    )
    assert row.failure is not None
    assert row.failure["type"] == "HistoryMismatch"


@pytest.mark.parametrize(
    ("outcome", "state"), [(Outcome.DONE, "COMPLETED"), (Outcome.FAILED, "FAILED")]
)
def test_get__it_ended__has_what_it_came_to(stage: Stage, outcome: Outcome, state: str) -> None:
    one = lives.begin(stage)
    lives.report(stage, one, outcome)
    row = runs.get(
        stage.database, stage.namespace_id, run_id=one.run_id, key=None, include_payloads=True
    )
    assert (row.state, row.activation_count, row.version) == (state, 1, "v1")
    assert row.ended_at is not None
    assert (row.output is not None, row.failure is not None) == (
        outcome is Outcome.DONE,
        outcome is Outcome.FAILED,
    )


def test_get__activation_is_lost__counts_it(stage: Stage) -> None:
    one = lives.begin(stage)
    lives.report(stage, one, Outcome.LOST)
    row = runs.get(
        stage.database, stage.namespace_id, run_id=one.run_id, key=None, include_payloads=False
    )
    assert (row.state, row.activation_count, row.recovery_count) == ("QUEUED", 1, 1)


async def test_get__with_a_worker__names_it_and_what_was_recorded(
    client: Caller, stage: Stage
) -> None:
    one = lives.begin(stage)
    record(stage, one, call("1"), nap("2", 60))
    cancel_runs.cancel_runs(
        stage.database, stage.namespace_id, [one.run_id], reason="", grace_ms=60_000
    )
    found = await calls.get(client, one.run_id)
    assert (found.worker, found.step_count, found.cancel_requested) == ("worker", 2, True)


async def test_get__by_key__is_the_run_of_the_key_while_it_is_in_force(client: Caller) -> None:
    gone = new(key="gone", key_duration=seconds(0))
    run_id, _ = await calls.started(client, new(key="k"), gone)
    assert (await calls.get(client, key="k")).run_id == run_id
    for key in ("gone", "never"):
        refused = await refusals.refused(calls.get(client, key=key))
        assert (refused.status, refused.reason) == ("NOT_FOUND", "RUN_NOT_FOUND")


async def test_get__named_twice_or_not_at_all__is_refused(client: Caller) -> None:
    for one in (calls.get(client), calls.get(client, UNKNOWN, key="k")):
        assert (await refusals.refused(one)).reason == "FIELD_INVALID"


async def test_get__no_run_of_the_namespace__is_not_found(client: Caller) -> None:
    await client.create_namespace("other")
    other = Caller(client.address, "other")
    (foreign,) = await calls.started(other)
    (task_id,) = await client.enqueue()
    for run_id in (UNKNOWN, foreign, task_id, f"{foreign}:{UNKNOWN}"):
        refused = await refusals.refused(calls.get(client, run_id))
        assert (refused.status, refused.reason) == ("NOT_FOUND", "RUN_NOT_FOUND"), run_id
    await other.close()


# ------------------------------------------------------------------------------ roots hidden


async def test_task_calls__root_of_a_run__know_no_such_task(client: Caller, stage: Stage) -> None:
    (run_id,) = await calls.started(client)
    for one in (
        client.get(run_id),
        client.task.ExplainTask(tasks.ExplainTaskRequest(task_id=run_id)),
    ):
        assert (await refusals.refused(one)).reason == "TASK_NOT_FOUND"
    (waited,) = (await client.wait(run_id)).results
    (cancelled,) = (await client.cancel(run_id)).results
    assert refusals.read(waited.error).reason == "TASK_NOT_FOUND"
    assert refusals.read(cancelled.error).reason == "TASK_NOT_FOUND"
    assert stage.all("select count(*) from cancel_requests") == [(0,)]
    assert await calls.state(client, run_id) == "QUEUED"


async def test_list_tasks__newer_runs_in_every_place__lists_the_tasks_beside_them(
    client: Caller, stage: Stage
) -> None:
    done, held = stage.tasks(2)
    taken = stage.lease(2)
    stage.report(taken[0], Outcome.DONE)
    (cancelled,) = await client.enqueue("other")
    await client.cancel(cancelled)
    (delayed,) = await client.enqueue("other", delay=seconds(60))
    (ready,) = await client.enqueue("other")
    tasks_there = {
        "COMPLETED": done.task_id,
        "LEASED": held.task_id,
        "CANCELLED": cancelled,
        "DELAYED": delayed,
        "READY": ready,
    }
    _place_everywhere(stage)
    await calls.started(client, new(delay=seconds(60)))
    listed = {}
    for state in task.TaskState.values():
        if state != task.TASK_STATE_UNSPECIFIED:
            request = tasks.ListTasksRequest(state=state, page_size=1)
            for found in (await client.task.ListTasks(request)).tasks:
                listed[task.TaskState.Name(state).removeprefix("TASK_STATE_")] = found.task_id
    assert listed == tasks_there
    assert len((await calls.listed(client))[0]) == 6


def _place_everywhere(stage: Stage) -> None:
    """Runs that are over, suspended, cancelled, with a worker, and queued."""
    ended = lives.begin(stage)
    lives.report(stage, ended, Outcome.DONE)
    suspended = lives.begin(stage)
    lives.suspend(stage, suspended, wake_ms=60_000)
    gone = flows.place(stage)
    cancel_runs.cancel_runs(stage.database, stage.namespace_id, gone, reason="", grace_ms=60_000)
    lives.begin(stage)
    flows.place(stage)


async def test_task_calls__task_of_a_run__is_a_task_like_others(
    client: Caller, stage: Stage
) -> None:
    one = lives.begin(stage)
    (own_id,) = lives.start_tasks(stage, one, 1)
    task_id = f"{one.run_id}:{own_id}"
    assert await client.state(task_id) == "READY"
    answer = await client.task.ListTasks(tasks.ListTasksRequest(state=task.TASK_STATE_READY))
    assert [found.task_id for found in answer.tasks] == [task_id]
    (cancelled,) = (await client.cancel(task_id)).results
    assert cancelled.state == task.TASK_STATE_CANCELLED
    assert isinstance((await calls.wait(client, task_id))[task_id], Refusal)


# ---------------------------------------------------------------------------------- waiting


@pytest.mark.parametrize("place", [0, 1], ids=["this server", "another server"])
async def test_await__it_ends_meanwhile__answers_with_its_output(
    pair: tuple[Caller, Caller], place: int
) -> None:
    here = pair[0]
    worker = await flows.serve(pair[place], flows.flow())
    (run_id,) = await calls.started(here)
    (given,) = await worker.tasks()
    waiting = asyncio.create_task(calls.wait(here, run_id, wait_seconds=20))
    await time_passes(seconds=0.3)
    assert not waiting.done()
    assert await worker.report(caller.completed(given, b'"done"')) == ["RECORDED"]
    found = (await waiting)[run_id]
    assert isinstance(found, run.RunResult)
    assert (calls.state_name(found.state), found.output.data) == ("COMPLETED", b'"done"')
    await worker.close()


async def test_await__over_failed_cancelled_and_unknown__tells_of_each(
    client: Caller, stage: Stage
) -> None:
    failed, done = lives.begin(stage), lives.begin(stage)
    lives.report(stage, failed, Outcome.FAILED, failure={"type": "Broken", "message": "no"})
    lives.report(stage, done, Outcome.DONE, output=b"7")
    (open_id,) = flows.place(stage)
    (cancelled,) = flows.place(stage)
    cancel_runs.cancel_runs(
        stage.database, stage.namespace_id, [cancelled], reason="why", grace_ms=60_000
    )
    (task_id,) = await client.enqueue()
    asked = (failed.run_id, done.run_id, open_id, cancelled, task_id, UNKNOWN, "nonsense")
    found = await calls.wait(client, *asked)
    assert open_id not in found
    results = {one: said for one, said in found.items() if isinstance(said, run.RunResult)}
    assert {one: calls.state_name(said.state) for one, said in results.items()} == {
        failed.run_id: "FAILED",
        done.run_id: "COMPLETED",
        cancelled: "CANCELLED",
    }
    assert results[failed.run_id].failure.type == "Broken"
    assert (results[cancelled].failure.type, results[cancelled].failure.message) == (
        "Cancelled",
        "why",
    )
    assert results[done.run_id].output.data == b"7"
    refused = {one: said.reason for one, said in found.items() if isinstance(said, Refusal)}
    assert refused == dict.fromkeys((task_id, UNKNOWN, "nonsense"), "RUN_NOT_FOUND")


async def test_await__run_that_was_waited_for_as_a_run__is_no_task_to_its_waiters(
    client: Caller,
) -> None:
    """What was just said of the run must not answer who asks for a task of its id."""
    (run_id,) = await calls.started(client)
    assert await calls.wait(client, run_id, wait_seconds=0) == {}
    (answer,) = (await client.wait(run_id, wait_seconds=5)).results
    assert refusals.read(answer.error).reason == "TASK_NOT_FOUND"
