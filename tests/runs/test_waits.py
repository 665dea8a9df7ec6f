"""An activation records over its stream, and is told there when what it started is over."""

import time
from collections.abc import AsyncIterator, Iterable

import pytest
import pytest_asyncio

from tenure.v1 import payload_pb2 as payload
from tenure.v1 import run_pb2 as run
from tenure.v1 import work_stream_pb2 as stream
from tenure.v1 import worker_pb2 as worker
from tenure.v1 import worker_service_pb2 as service
from tenure_service.dispatch import waits
from tenure_service.main import Server
from tests.eventually import eventually_async
from tests.fix_server import server_config
from tests.protocol import refusals
from tests.protocol.caller import TIMEOUT_SECONDS, Caller, completed, failed, released
from tests.runs import flows
from tests.runs.run_worker import RunWorker
from tests.usecase.stage import Stage


@pytest_asyncio.fixture
async def running(database: str) -> AsyncIterator[Server]:
    """A server whose waits a test looks at."""
    started = Server(server_config(database))
    await started.start()
    yield started
    await started.stop()


@pytest_asyncio.fixture
async def caller(running: Server) -> AsyncIterator[Caller]:
    """A client of it."""
    opened = Caller(running.address)
    yield opened
    await opened.close()


def task(step_id: str, name: str = "work") -> run.NewStep:
    """A task to enqueue."""
    asked = run.StepTask(name=name, input=payload.Payload(data=b"[1]"))
    return run.NewStep(step_id=step_id, name=name, task=asked)


def _nameless(step_id: str) -> run.NewStep:
    new = task(step_id)
    new.task.name = ""
    return new


def call(step_id: str, data: bytes = b"1", name: str = "reserve") -> run.NewStep:
    """A function that ran."""
    result = run.StepResult(output=payload.Payload(data=data))
    return run.NewStep(step_id=step_id, name=name, call=result)


def child_ids(ack: stream.StepAck | service.RecordStepsResponse) -> list[str]:
    """The ids of what steps have started."""
    return [record.step.child_id for record in ack.records]


def tasks(assigned: Iterable[worker.Assignment]) -> list[worker.Assignment]:
    """Leaves activations out."""
    return [one for one in assigned if not one.HasField("activation")]


async def opened(stage: Stage, client: Caller, *, slots: int = 1) -> RunWorker:
    """A worker that has an activation of a new run."""
    flows.place(stage)
    raw = await RunWorker.open(client, "work", slots=slots)
    await raw.activation()
    return raw


async def one_task(raw: RunWorker, count: int = 1) -> worker.Assignment:
    """Waits until so many tasks have come in all; gives the last."""
    await raw.until(lambda: len(tasks(raw.assigned)) >= count)
    await raw.accept()
    return tasks(raw.assigned)[-1]


# ------------------------------------------------------------------------------------ recording


async def test_record__a_task_over_the_stream__is_handed_out_and_its_end_told(
    stage: Stage, client: Caller
) -> None:
    raw = await opened(stage, client)
    activation = await raw.activation()
    ack = await raw.record(activation, call("1"), task("2"))
    assert not ack.HasField("error")
    assert [record.step.kind for record in ack.records] == [run.STEP_KIND_CALL, run.STEP_KIND_TASK]
    _, child = child_ids(ack)
    await raw.wait_for(activation, child)
    assigned = await one_task(raw)
    assert assigned.task_id == child
    assert await raw.report(completed(assigned, b"42")) == ["RECORDED"]
    await raw.until(lambda: child in raw.children)
    told = raw.children[child]
    assert told.output.data == b"42"
    assert told.HasField("ended_at")
    again = await raw.record(activation, call("1"), task("2"))
    assert [record.existing for record in again.records] == [True, True]
    assert again.records[1].step.output.data == b"42"
    await raw.close()


async def test_record__under_a_token_that_is_stale__gets_lease_lost(
    stage: Stage, client: Caller
) -> None:
    raw = await opened(stage, client)
    old = await raw.activation()
    assert await raw.report(released(old)) == ["RECORDED"]
    await raw.until(lambda: old.task_id in raw.out)
    new = await raw.activation()
    assert (new.task_id, new.delivery) == (old.task_id, old.delivery + 1)
    refusal = refusals.read((await raw.record(old, call("1"), task("2"))).error)
    assert refusal.reason == "LEASE_LOST"
    assert stage.all("select step_id from steps") == []
    assert not (await raw.record(new, call("1"))).HasField("error")
    await raw.close()


async def test_record__wrong_steps__are_refused_one_by_one(stage: Stage, client: Caller) -> None:
    raw = await opened(stage, client)
    activation = await raw.activation()
    late = run.NewStep(step_id="5")
    late.sleep.seconds = 10**9
    ack = await raw.record(
        activation,
        call(""),
        call("2", bytes(2 * 1024 * 1024 + 1)),
        run.NewStep(step_id="3"),
        _nameless("4"),
        late,
        call("6"),
    )
    answers = [record.WhichOneof("outcome") for record in ack.records]
    assert answers == ["error"] * 5 + ["step"]
    found = [refusals.read(record.error) for record in ack.records[:5]]
    assert [one.reason for one in found] == [
        "FIELD_INVALID",
        "PAYLOAD_TOO_LARGE",
        "FIELD_INVALID",
        "FIELD_INVALID",
        "FIELD_INVALID",
    ]
    assert [one.fields for one in found if one.fields] == [
        ("steps[0].step_id",),
        ("steps[2].operation",),
        ("steps[3].task.name",),
        ("steps[4].sleep",),
    ]
    assert stage.all("select step_id from steps") == [("6",)]
    await raw.close()


async def test_record__without_a_stream__does_the_same(stage: Stage, client: Caller) -> None:
    raw = await opened(stage, client)
    activation = await raw.activation()
    wanted = [call(f"{number:03}", bytes(20_000)) for number in range(600)]
    for part in (wanted[:300], wanted[300:]):
        request = service.RecordStepsRequest(
            run_id=activation.task_id, lease_token=activation.lease_token, steps=part
        )
        answer = await client.work.RecordSteps(request, timeout=TIMEOUT_SECONDS)
        assert not [record for record in answer.records if record.HasField("error")]
    listed: list[str] = []
    token, page_count = "", 0
    while token or not page_count:
        page = await client.work.ListSteps(
            service.ListStepsRequest(
                run_id=activation.task_id, lease_token=activation.lease_token, page_token=token
            ),
            timeout=TIMEOUT_SECONDS,
        )
        listed += [step.step_id for step in page.steps]
        token, page_count = page.next_page_token, page_count + 1
    assert listed == [step.step_id for step in wanted]
    assert page_count > 1
    stale = service.ListStepsRequest(
        run_id=activation.task_id, lease_token=activation.lease_token[::-1]
    )
    assert (await refusals.refused(client.work.ListSteps(stale))).reason == "LEASE_LOST"
    await raw.close()


# -------------------------------------------------------------------------------------- waiting


async def test_wait__for_what_is_over__is_told_at_once(stage: Stage, client: Caller) -> None:
    raw = await opened(stage, client)
    activation = await raw.activation()
    children = child_ids(await raw.record(activation, task("1"), task("2")))
    assert await raw.report(completed(await one_task(raw, 1), b"1")) == ["RECORDED"]
    second = await one_task(raw, 2)
    failure = failed(second, type="Broken", message="no", non_retryable=True)
    assert await raw.report(failure) == ["RECORDED"]
    await raw.wait_for(activation, *children)
    await raw.until(lambda: len(raw.children) == 2)
    assert raw.children[children[0]].output.data == b"1"
    assert raw.children[children[1]].failure.type == "Broken"
    assert len(raw.resolved) == 1
    await raw.close()


async def test_wait__for_a_task_that_is_cancelled__is_told_so(stage: Stage, client: Caller) -> None:
    raw = await opened(stage, client, slots=0)
    activation = await raw.activation()
    (child,) = child_ids(await raw.record(activation, task("1")))
    await raw.wait_for(activation, child)
    await client.cancel(child, reason="not needed")
    await raw.until(lambda: child in raw.children)
    failure = raw.children[child].failure
    assert (failure.type, failure.message) == ("Cancelled", "not needed")
    await raw.close()


async def test_wait__for_what_it_did_not_start__is_told_that_it_is_none(
    stage: Stage, client: Caller
) -> None:
    raw = await opened(stage, client)
    activation = await raw.activation()
    (foreign,) = await client.enqueue("elsewhere")
    await raw.wait_for(activation, foreign)
    await raw.until(lambda: foreign in raw.children)
    assert raw.children[foreign].failure.type == "NotFound"
    await raw.close()


async def test_wait__with_an_id_of_another_form__ends_the_stream(
    stage: Stage, client: Caller
) -> None:
    raw = await opened(stage, client)
    await raw.wait_for(await raw.activation(), "x")
    refusal = await raw.ended()
    assert refusal is not None
    assert (refusal.reason, refusal.fields) == ("FIELD_INVALID", ("wait.child_ids[0]",))


async def test_wait__for_what_ends_on_another_server__is_told(
    stage: Stage, pair: tuple[Caller, Caller]
) -> None:
    here, there = pair
    raw = await opened(stage, here, slots=0)
    activation = await raw.activation()
    (child,) = child_ids(await raw.record(activation, task("1")))
    await raw.wait_for(activation, child)
    other = await RunWorker.open(there, "work")
    assert await other.report(completed(await one_task(other))) == ["RECORDED"]
    await raw.until(lambda: child in raw.children)
    await other.close()
    await raw.close()


async def test_wait__once_the_activation_is_over__is_dropped(
    stage: Stage, running: Server, caller: Caller
) -> None:
    hub = running._hub
    assert hub is not None
    raw = await opened(stage, caller, slots=0)
    activation = await raw.activation()
    (child,) = child_ids(await raw.record(activation, task("1")))
    await raw.wait_for(activation, child)
    assert await eventually_async(lambda: len(hub.waits) == len(hub.waiters) == 1)
    assert await raw.report(released(activation)) == ["RECORDED"]
    assert await eventually_async(lambda: not len(hub.waits) and not len(hub.waiters))
    # A Wait under its token is of no use any more, and says so to nobody.
    await raw.wait_for(activation, child)
    new = await raw.activation()
    await raw.wait_for(new, child)
    assert await eventually_async(lambda: len(hub.waits) == len(hub.waiters) == 1)
    await raw.cut()
    assert await eventually_async(lambda: not len(hub.waits) and not len(hub.waiters))


async def test_wait__for_many_that_end_one_by_one__takes_few_messages(
    stage: Stage, client: Caller, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(waits, "_GATHER_SECONDS_EACH", 1.0)
    count = 200
    raw = await opened(stage, client, slots=1)
    activation = await raw.activation()
    ack = await raw.record(activation, *(task(str(number)) for number in range(count)))
    children = child_ids(ack)
    await raw.wait_for(activation, *children)
    began = time.monotonic()
    for number in range(1, count + 1):
        assert await raw.report(completed(await one_task(raw, number))) == ["RECORDED"]
        if number % 20 == 0:
            await raw.beat(activation.lease_token)
    await raw.until(lambda: len(raw.children) == count)
    took = time.monotonic() - began
    assert set(raw.children) == set(children)
    assert sum(len(told.children) for told in raw.resolved) == count
    assert len(raw.resolved) <= 2 + took / waits._GATHER_SECONDS_MAX
    await raw.close()


async def test_wait__for_large_outputs__are_told_in_parts(stage: Stage, client: Caller) -> None:
    raw = await opened(stage, client, slots=4)
    activation = await raw.activation()
    children = child_ids(await raw.record(activation, *(task(str(n)) for n in range(4))))
    await one_task(raw, 4)
    for assigned in tasks(raw.assigned):
        assert await raw.report(completed(assigned, bytes(700_000))) == ["RECORDED"]
    await raw.wait_for(activation, *children)
    await raw.until(lambda: len(raw.children) == 4)
    assert [len(told.children) for told in raw.resolved] == [1, 1, 1, 1]
    await raw.close()
