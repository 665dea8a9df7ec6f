"""What people do to runs: cancelling, letting go on, forking; and what is kept of it."""

import json
import uuid
from typing import Any

import psycopg
import pytest

from tenure.v1 import run_pb2 as run
from tenure.v1 import workflow_service_pb2 as service
from tenure_service.engine.states import Outcome
from tenure_service.usecase.report import end_all
from tests.protocol import caller, refusals
from tests.protocol.caller import Caller, seconds
from tests.runs import calls, flows, lives
from tests.runs.activations import call, nap, record, step_ids, task
from tests.runs.calls import new
from tests.usecase.stage import Stage

UNKNOWN = "01900000-0000-7000-8000-000000000000"


async def _cancel(client: Caller, *run_ids: str, reason: str = "") -> list[str]:
    request = service.CancelRunsRequest(run_ids=run_ids, reason=reason)
    answer: service.CancelRunsResponse = await calls.call(client, "CancelRuns", request)
    return calls.outcomes(answer.results)


async def _resume(client: Caller, *run_ids: str) -> list[str]:
    request = service.ResumeRunsRequest(run_ids=run_ids)
    answer: service.ResumeRunsResponse = await calls.call(client, "ResumeRuns", request)
    return calls.outcomes(answer.results)


async def _fork(client: Caller, run_id: str, before: str = "", request_id: str = "") -> str:
    request = service.ForkRunRequest(run_id=run_id, before_step_id=before, request_id=request_id)
    answer: service.ForkRunResponse = await calls.call(client, "ForkRun", request)
    return answer.run_id


def _events(conn: psycopg.Connection, action: str) -> list[tuple[Any, str]]:
    found = conn.execute(
        "select request, outcome from audit_events where action = %s order by audit_event_id",
        [action],
    ).fetchall()
    return [(json.loads(request), outcome) for request, outcome in found]


# -------------------------------------------------------------------------------- cancelling


async def test_cancel__no_worker_has_had_it__is_over_and_waiters_are_told(
    pair: tuple[Caller, Caller],
) -> None:
    here, there = pair
    (run_id,) = await calls.started(here)
    assert await _cancel(there, run_id, UNKNOWN, reason="why") == ["CANCELLED", "RUN_NOT_FOUND"]
    found = (await calls.wait(here, run_id))[run_id]
    assert isinstance(found, run.RunResult)
    assert (calls.state_name(found.state), found.failure.message) == ("CANCELLED", "why")
    assert await _cancel(here, run_id) == ["CANCELLED"]


async def test_cancel__with_a_worker__is_told_and_ends_when_its_function_has(
    pair: tuple[Caller, Caller],
) -> None:
    here, there = pair
    worker = await flows.serve(there, flows.flow())
    (run_id,) = await calls.started(here)
    (given,) = await worker.tasks()
    await worker.accept()
    assert await _cancel(here, run_id) == ["RUNNING"]
    await worker.until(lambda: [one.task_id for one in worker.cancels] == [run_id])
    assert (await calls.get(here, run_id)).cancel_requested
    assert await worker.report(caller.failed(given, type="Cancelled")) == ["RECORDED"]
    assert await calls.state(here, run_id) == "CANCELLED"
    await worker.close()


async def test_cancel__run_of_another_namespace_or_a_task__is_not_found(client: Caller) -> None:
    await client.create_namespace("other")
    other = Caller(client.address, "other")
    (foreign,) = await calls.started(other)
    (task_id,) = await client.enqueue()
    assert await _cancel(client, foreign, task_id) == ["RUN_NOT_FOUND"] * 2
    assert await calls.state(other, foreign) == "QUEUED"
    assert await client.state(task_id) == "READY"
    await other.close()


# ---------------------------------------------------------------------------------- resuming


async def test_resume__blocked__goes_on_and_others_say_their_state(
    client: Caller, stage: Stage
) -> None:
    one = lives.begin(stage)
    end_all(stage.database, stage.catalogue, [lives.suspension(one, blocked=True)])
    (waiting,) = flows.place(stage)
    assert await _resume(client, one.run_id, waiting, UNKNOWN) == [
        "QUEUED",
        "STATE_CONFLICT",
        "RUN_NOT_FOUND",
    ]
    assert await _resume(client, one.run_id) == ["STATE_CONFLICT"]
    request = service.ResumeRunsRequest(run_ids=[waiting])
    answer: service.ResumeRunsResponse = await calls.call(client, "ResumeRuns", request)
    assert refusals.read(answer.results[0].error).metadata == {
        "state": "QUEUED",
        "allowed": "BLOCKED",
    }
    worker = await flows.serve(client, flows.flow(), activations=2)
    await worker.tasks(2, seconds=5)
    assert {given.task_id for given in worker.assigned} == {one.run_id, waiting}
    await flows.finish(worker, 2)
    await worker.close()


async def test_resume__run_of_another_namespace__is_not_found_and_stays_blocked(
    client: Caller, stage: Stage
) -> None:
    one = lives.begin(stage)
    end_all(stage.database, stage.catalogue, [lives.suspension(one, blocked=True)])
    await client.create_namespace("other")
    other = Caller(client.address, "other")
    assert await _resume(other, one.run_id) == ["RUN_NOT_FOUND"]
    assert lives.state(stage, one.run_id)[0] == "BLOCKED"
    await other.close()


# ----------------------------------------------------------------------------------- forking


async def test_fork__before_a_step__has_the_input_and_the_steps_before_it(
    client: Caller, stage: Stage
) -> None:
    (source,) = await calls.started(
        client,
        new(data=b"[1]", key="k", priority=3, lane="c", attributes={"a": "1"}, recovery_attempts=4),
    )
    with stage.connect() as conn:
        conn.execute(
            "insert into steps (run_id, step_id, kind, name, output) select %s, i::text, 'CALL',"
            " 'reserve', '7' from generate_series(1, 12) as i order by i + 0",
            [source],
        )
    before = await calls.get(client, source)
    forked = await _fork(client, source, "11")
    found = await calls.get(client, forked)
    assert calls.state_name(found.state) == "QUEUED"
    assert (found.input.data, found.input.encoding) == (b"[1]", "json")
    assert (found.name, found.lane, found.priority) == ("flow", "c", 3)
    assert (found.key, dict(found.attributes)) == ("", {"a": "1"})
    assert (found.parent_run_id, found.root_run_id) == ("", forked)
    assert step_ids(stage, forked) == [str(n) for n in range(1, 11)]
    assert await calls.get(client, source) == before
    assert (await calls.get(client, key="k")).run_id == source
    assert stage.all(
        "select forked_from::text, recovery_attempts from runs where run_id = %s", forked
    ) == [(source, 4)]
    worker = await flows.serve(client, flows.flow(), activations=2)
    await worker.tasks(2)
    given = {one.task_id: one for one in worker.assigned}[forked]
    assert [step.step_id for step in given.activation.steps] == [str(n) for n in range(1, 11)]
    assert {step.output.data for step in given.activation.steps} == {b"7"}
    await flows.finish(worker, 2)
    await worker.close()


async def test_fork__tasks_and_runs_before_it__are_copied_with_what_they_came_to(
    client: Caller, stage: Stage
) -> None:
    one = lives.begin(stage)
    record(stage, one, task("done"), task("failed"), task("cancelled"), task("open"), nap("nap", 1))
    done, failed, cancelled = stage.lease(3)
    stage.report(done, Outcome.DONE, output=b"", output_encoding="json")
    broken = {"type": "Broken", "message": "no", "non_retryable": True}
    stage.report(failed, Outcome.FAILED, failure=broken)
    await client.cancel(f"{one.run_id}:{cancelled.task_id}", reason="why")
    stage.report(cancelled, Outcome.FAILED)
    record(stage, one, call("last"))
    forked = await _fork(client, one.run_id, "last")
    request = service.ListRunStepsRequest(run_id=forked)
    answer: service.ListRunStepsResponse = await calls.call(client, "ListRunSteps", request)
    request.run_id = one.run_id
    source: service.ListRunStepsResponse = await calls.call(client, "ListRunSteps", request)
    steps = {step.step_id: step for step in answer.steps}
    assert list(steps) == ["done", "failed", "cancelled", "nap"]
    for there in source.steps:
        if there.step_id not in steps:
            continue
        here = steps[there.step_id]
        assert (here.kind, here.name, here.recorded_at) == (
            there.kind,
            there.name,
            there.recorded_at,
        )
        assert (here.WhichOneof("outcome"), here.output, here.failure) == (
            there.WhichOneof("outcome"),
            there.output,
            there.failure,
        )
        assert here.child_id == ""
    assert steps["done"].HasField("output")
    assert steps["failed"].failure.type == "Broken"
    assert steps["cancelled"].failure.type == "Cancelled"
    assert stage.all("select count(*) from tasks where run_id = %s", forked) == [(1,)]
    stage.check()


async def test_fork__child_run_before_it__is_copied_with_its_output(
    client: Caller, stage: Stage
) -> None:
    one = lives.begin(stage)
    child = lives.start_child(stage, one)
    with stage.connect() as conn:
        conn.execute(
            "insert into steps (run_id, step_id, kind, name, child_id) values"
            " (%s, '1', 'CHILD', 'flow', %s)",
            [one.run_id, child],
        )
    record(stage, one, call("2"))
    early = await _fork(client, one.run_id, "2")
    assert step_ids(stage, early) == []
    done = {found.run_id: found for found in lives.hand_out(stage)}[child]
    lives.report(stage, done, Outcome.DONE, output=b"5")
    late = await _fork(client, one.run_id, "2")
    assert stage.all("select kind::text, child_id, output from steps where run_id = %s", late) == [
        ("CHILD", None, b"5")
    ]


async def test_fork__timeout__counts_anew(client: Caller, stage: Stage) -> None:
    (source,) = await calls.started(client, new(timeout=seconds(3600)))
    forked = await _fork(client, source)
    assert stage.all(
        "select total_by > now() + interval '59 minutes', deadline_at = total_by from ready_tasks"
        " where task_id = %s",
        forked,
    ) == [(True, True)]


async def test_fork__request_is_repeated__is_one_run(client: Caller, stage: Stage) -> None:
    (source,) = await calls.started(client)
    request_id = str(uuid.uuid4())
    first = await _fork(client, source, request_id=request_id)
    assert await _fork(client, source, request_id=request_id) == first
    assert stage.all("select count(*) from runs") == [(2,)]
    again = await refusals.refused(_fork(client, first, request_id=request_id))
    assert (again.status, again.reason) == ("ALREADY_EXISTS", "REQUEST_ID_REUSED")


@pytest.mark.parametrize("what", ["run", "step"])
async def test_fork__nothing_there__is_not_found_and_stores_nothing(
    client: Caller, stage: Stage, what: str
) -> None:
    (source,) = await calls.started(client)
    request_id = str(uuid.uuid4())
    run_id, step_id = (UNKNOWN, "") if what == "run" else (source, "1")
    refused = await refusals.refused(_fork(client, run_id, step_id, request_id))
    assert refused.reason == "RUN_NOT_FOUND"
    assert stage.all("select count(*) from runs") == [(1,)]
    assert stage.all("select count(*) from requests") == [(0,)]


# ---------------------------------------------------------------------------------- the record


async def test_record__runs_are_operated__tells_who_did_what(
    client: Caller, stage: Stage, conn: psycopg.Connection
) -> None:
    one = lives.begin(stage)
    end_all(stage.database, stage.catalogue, [lives.suspension(one, blocked=True)])
    await _resume(client, one.run_id, UNKNOWN)
    forked = await _fork(client, one.run_id)
    await _cancel(client, forked, UNKNOWN, reason="wrong customer")
    ended = lives.begin(stage, name="flow")
    lives.report(stage, ended, Outcome.DONE)
    await _cancel(client, *[ended.run_id] * 30)
    ((request, outcome),) = _events(conn, "ResumeRuns")
    assert (request, outcome) == ({"run_ids": [one.run_id, UNKNOWN]}, "OK: resumed 1 of 2")
    ((request, outcome),) = _events(conn, "ForkRun")
    assert (request["run_id"], outcome) == (one.run_id, f"OK: run {forked}")
    (first, second) = _events(conn, "CancelRuns")
    assert first[0] == {"run_ids": [forked, UNKNOWN], "reason": "wrong customer"}
    assert first[1] == "OK: cancel requested 1 of 2"
    assert (second[0]["run_count"], len(second[0]["run_ids"])) == (30, 20)
    assert second[1] == "OK: cancel requested 0 of 30"


async def test_record__resumed_again_and_again__is_bounded(
    client: Caller, conn: psycopg.Connection, caplog: pytest.LogCaptureFixture
) -> None:
    for _ in range(62):
        await _resume(client, UNKNOWN)
    assert len(_events(conn, "ResumeRuns")) == 60
    assert "anonymous resumes runs too often for each call to be recorded" in caplog.text
