"""Runs over a real server and hand-driven streams: they are suspended, and go on by themselves."""

import asyncio
import time
from typing import Any

import pytest
from google.protobuf import duration_pb2

from tenure.v1 import payload_pb2 as payload
from tenure.v1 import run_pb2 as run
from tenure.v1 import worker_pb2 as worker
from tenure.v1 import workflow_service_pb2 as workflow
from tenure.v1 import workflow_service_pb2_grpc as workflow_grpc
from tenure_service.engine.states import Outcome
from tests.eventually import eventually_async
from tests.protocol.caller import Caller, completed
from tests.runs import flows
from tests.runs.lives import state
from tests.runs.run_worker import RunWorker
from tests.usecase.stage import Stage

SOME_ID = "01900000-0000-7000-8000-000000000000"


def suspended(
    one: worker.Assignment, *sets: tuple[list[str], int], wake_seconds: float | None = None
) -> worker.Result:
    said = worker.Suspended(
        waits=[worker.WaitSet(child_ids=ids, needed_count=count) for ids, count in sets]
    )
    if wake_seconds is not None:
        said.wake_after.FromMilliseconds(round(wake_seconds * 1000))
    return worker.Result(task_id=one.task_id, lease_token=one.lease_token, suspended=said)


def task(step_id: str) -> run.NewStep:
    asked = run.StepTask(name="work", input=payload.Payload(data=b"[1]"))
    return run.NewStep(step_id=step_id, name="work", task=asked)


def activations(raw: RunWorker) -> list[worker.Assignment]:
    return [one for one in raw.assigned if one.HasField("activation")]


def tasks(raw: RunWorker) -> list[worker.Assignment]:
    return [one for one in raw.assigned if not one.HasField("activation")]


async def begin(stage: Stage, client: Caller, *, slots: int = 1) -> tuple[RunWorker, str]:
    """A worker that has an activation of a new run."""
    (run_id,) = flows.place(stage)
    raw = await RunWorker.open(client, "work", slots=slots)
    await raw.activation()
    return raw, run_id


async def test_report__suspended_and_its_task_is_over__goes_on_at_once(
    stage: Stage, client: Caller
) -> None:
    raw, run_id = await begin(stage, client)
    ack = await raw.record(activations(raw)[0], task("1"))
    (child_id,) = [record.step.child_id for record in ack.records]
    await raw.until(lambda: bool(tasks(raw)))
    await raw.accept()
    assert await raw.report(suspended(activations(raw)[0], ([child_id], 1))) == ["RECORDED"]
    assert state(stage, run_id) == ("WAITING", None, "WAIT for ever")
    began = time.monotonic()
    assert await raw.report(completed(tasks(raw)[0])) == ["RECORDED"]
    await raw.until(lambda: len(activations(raw)) == 2)
    # Not by the poll, which comes once a second.
    assert time.monotonic() - began < 0.7
    again = activations(raw)[1]
    assert (again.delivery, again.attempt) == (2, 1)
    assert [step.WhichOneof("outcome") for step in again.activation.steps] == ["output"]
    assert await raw.report(completed(again)) == ["RECORDED"]
    assert state(stage, run_id) == ("COMPLETED", None, "over")
    await raw.close()
    stage.check()


async def test_report__suspended_for_a_time__goes_on_after_it(stage: Stage, client: Caller) -> None:
    raw, run_id = await begin(stage, client)
    began = time.monotonic()
    assert await raw.report(suspended(activations(raw)[0], wake_seconds=0.2)) == ["RECORDED"]
    await raw.until(lambda: len(activations(raw)) == 2)
    assert 0.15 < time.monotonic() - began < 0.9
    await raw.report(completed(activations(raw)[1]))
    assert state(stage, run_id) == ("COMPLETED", None, "over")
    await raw.close()


async def test_report__blocked__is_held(stage: Stage, client: Caller) -> None:
    raw, run_id = await begin(stage, client)
    one = activations(raw)[0]
    failure = payload.Failure(type="HistoryMismatch", message="2: 'pay' is 'ship' now")
    result = worker.Result(
        task_id=one.task_id, lease_token=one.lease_token, blocked=worker.Blocked(failure=failure)
    )
    assert await raw.report(result) == ["RECORDED"]
    assert state(stage, run_id) == ("BLOCKED", "HISTORY_MISMATCH", "WAIT for ever")
    assert stage.all("select failure ->> 'message' from runs") == [(failure.message,)]
    await raw.nothing_comes()
    await raw.close()
    stage.check()


async def test_wake__every_hint_is_lost__is_found_by_the_poll(stage: Stage, client: Caller) -> None:
    """The end of the child is committed by somebody who tells nobody."""
    raw, _ = await begin(stage, client, slots=0)
    ack = await raw.record(activations(raw)[0], task("1"))
    (child_id,) = [record.step.child_id for record in ack.records]
    await raw.report(suspended(activations(raw)[0], ([child_id], 1)))
    (leased,) = await asyncio.to_thread(stage.lease)
    await asyncio.to_thread(stage.report, leased, Outcome.DONE)
    await raw.until(lambda: len(activations(raw)) == 2, seconds=3)
    await raw.close()


async def test_wake__child_is_over_on_another_server__goes_on_here(
    stage: Stage, pair: tuple[Caller, Caller]
) -> None:
    raw, _ = await begin(stage, pair[0], slots=0)
    ack = await raw.record(activations(raw)[0], *(task(str(n)) for n in range(3)))
    child_ids = [record.step.child_id for record in ack.records]
    await raw.report(suspended(activations(raw)[0], (child_ids, 3)))
    other = await RunWorker.open(pair[1], "work", slots=3)
    await other.until(lambda: len(tasks(other)) == 3, seconds=5)
    await other.report(*(completed(one) for one in tasks(other)))
    await raw.until(lambda: len(activations(raw)) == 2 or any(activations(other)), seconds=5)
    for each in (raw, other):
        await each.close()


async def test_report__task_of_a_run__takes_the_fast_path_and_tells(
    stage: Stage, client: Caller
) -> None:
    """An activation that waits in memory leaves nothing in the inbox for long."""
    raw, run_id = await begin(stage, client)
    await raw.record(activations(raw)[0], task("1"))
    await raw.until(lambda: bool(tasks(raw)))
    await raw.report(completed(tasks(raw)[0]))
    assert await eventually_async(lambda: stage.all("select 1 from run_inbox") == [])
    assert state(stage, run_id) == ("OPEN", None, "leased")
    await raw.report(completed(activations(raw)[0]))
    await raw.close()
    stage.check()


def wrong(one: worker.Assignment, kind: str) -> worker.Result:
    result = worker.Result(task_id=one.task_id, lease_token=one.lease_token)
    if kind == "nothing":
        result.suspended.SetInParent()
    elif kind == "negative time":
        result.suspended.wake_after.CopyFrom(duration_pb2.Duration(seconds=-1))
    elif kind == "endless time":
        result.suspended.wake_after.CopyFrom(duration_pb2.Duration(seconds=3_651 * 86_400))
    elif kind == "no child":
        result.suspended.waits.add(needed_count=1)
    elif kind == "too many":
        result.suspended.waits.add(child_ids=[f"{one.task_id}:{SOME_ID}"], needed_count=2)
    elif kind == "none":
        result.suspended.waits.add(child_ids=[f"{one.task_id}:{SOME_ID}"])
    elif kind == "garbage":
        result.suspended.waits.add(child_ids=["garbage"], needed_count=1)
    elif kind == "itself":
        result.suspended.waits.add(child_ids=[one.task_id], needed_count=1)
    elif kind == "of another run":
        other = f"{SOME_ID}:{one.task_id}"
        result.suspended.waits.add(child_ids=[other], needed_count=1)
    else:
        result.blocked.SetInParent()
    return result


@pytest.mark.parametrize(
    "kind",
    [
        "nothing",
        "negative time",
        "endless time",
        "no child",
        "too many",
        "none",
        "garbage",
        "itself",
        "of another run",
        "blocked without why",
    ],
)
async def test_report__suspension_is_wrong__is_refused_alone(
    stage: Stage, client: Caller, kind: str
) -> None:
    raw, run_id = await begin(stage, client)
    one = activations(raw)[0]
    (other,) = flows.place(stage)
    await raw.until(lambda: len(activations(raw)) == 2)
    ack = await raw.report_fully(wrong(one, kind), completed(activations(raw)[1]))
    assert [int(status) for status in ack.statuses] == [
        worker.REPORT_STATUS_REFUSED,
        worker.REPORT_STATUS_RECORDED,
    ]
    assert state(stage, run_id) == ("OPEN", None, "leased")
    assert state(stage, other) == ("COMPLETED", None, "over")
    assert await raw.report(completed(one)) == ["RECORDED"]
    await raw.close()


async def test_report__one_child_twice_in_a_set__counts_once(stage: Stage, client: Caller) -> None:
    raw, _ = await begin(stage, client, slots=0)
    ack = await raw.record(activations(raw)[0], task("1"), task("2"))
    first, second = [record.step.child_id for record in ack.records]
    sets = ([first, first, second], 2)
    assert await raw.report(suspended(activations(raw)[0], sets)) == ["RECORDED"]
    assert stage.all("select count(*) from run_waits") == [(2,)]
    await raw.close()
    stage.check()


def workflows(client: Caller) -> workflow_grpc.WorkflowServiceStub:
    return workflow_grpc.WorkflowServiceStub(client.channel)


async def cancel(client: Caller, run_id: str) -> None:
    request = workflow.CancelRunsRequest(run_ids=[run_id], reason="no longer wanted")
    call: Any = workflows(client).CancelRuns
    answer = await call(request, metadata=client.metadata, timeout=10)
    assert [one.WhichOneof("outcome") for one in answer.results] == ["state"]


def gave_up(one: worker.Assignment) -> worker.Result:
    return worker.Result(
        task_id=one.task_id, lease_token=one.lease_token, cancelled=worker.CancelledOutcome()
    )


async def test_cancel__run_waits__its_next_activation_is_told_at_once(
    stage: Stage, client: Caller
) -> None:
    raw, run_id = await begin(stage, client)
    await raw.report(suspended(activations(raw)[0], wake_seconds=3_600))
    await cancel(client, run_id)
    await raw.until(lambda: len(activations(raw)) == 2)
    await raw.until(lambda: bool(raw.cancels), seconds=0.7)
    (told,) = raw.cancels
    assert (told.task_id, told.reason) == (run_id, "no longer wanted")
    assert 25 < told.grace_duration.ToTimedelta().total_seconds() <= 30
    assert await raw.report(gave_up(activations(raw)[1])) == ["RECORDED"]
    assert state(stage, run_id) == ("CANCELLED", None, "over")
    await raw.close()
    stage.check()


async def test_cancel__run_with_a_task_that_runs__both_are_told(
    stage: Stage, client: Caller
) -> None:
    raw, run_id = await begin(stage, client)
    ack = await raw.record(activations(raw)[0], task("1"), task("2"))
    running, waiting = [record.step.child_id for record in ack.records]
    await raw.until(lambda: bool(tasks(raw)))
    await raw.accept()
    await cancel(client, run_id)
    await raw.until(lambda: len(raw.cancels) == 1)
    await raw.report(gave_up(activations(raw)[0]))
    assert state(stage, run_id) == ("CANCELLED", None, "over")
    await raw.until(lambda: len(raw.cancels) == 2)
    assert [told.task_id for told in raw.cancels] == [run_id, running]
    waiting_id = waiting.split(":")[1]
    outcomes = "select outcome::text from deliveries where task_id = %s"
    assert await eventually_async(
        lambda: stage.all(outcomes, waiting_id) == [("CANCELLED",)], seconds=3
    )
    await raw.report(gave_up(tasks(raw)[0]))
    await raw.close()
    stage.check()
