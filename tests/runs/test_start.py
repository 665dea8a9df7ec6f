"""Starting runs: what is stored, what answers twice, what is refused."""

import asyncio
import uuid
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from typing import Any

import psycopg
import pytest

from tenure.v1 import run_pb2 as run
from tenure_service.store import statements
from tests.eventually import eventually_awaited
from tests.protocol import refusals
from tests.protocol.caller import Caller, seconds
from tests.runs import calls, flows
from tests.runs.calls import new
from tests.usecase.stage import Stage


async def test_start__new_run__is_queued_with_what_was_said(client: Caller, stage: Stage) -> None:
    traceparent = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"
    (result,) = await calls.start(
        client,
        new(
            data=b'{"order": 1}',
            queue="orders",
            priority=7,
            key="order-1",
            lane="customer-1",
            attributes={"customer": "c-7", "shop": "de"},
            traceparent=traceparent,
            recovery_attempts=3,
            timeout=seconds(3600),
        ),
    )
    assert not result.run.existing
    found = await calls.get(client, result.run.run_id)
    assert calls.state_name(found.state) == "QUEUED"
    assert (found.name, found.queue, found.lane, found.priority) == (
        "flow",
        "orders",
        "customer-1",
        7,
    )
    assert (found.key, dict(found.attributes)) == ("order-1", {"customer": "c-7", "shop": "de"})
    assert (found.input.data, found.input.encoding) == (b'{"order": 1}', "json")
    assert (found.parent_run_id, found.root_run_id) == ("", result.run.run_id)
    assert (found.activation_count, found.recovery_count, found.step_count) == (0, 0, 0)
    assert not found.HasField("ended_at")
    assert not found.HasField("wakes_at")
    age = datetime.now(UTC) - found.created_at.ToDatetime(UTC)
    assert abs(age) < timedelta(minutes=1)
    assert stage.all("select recovery_attempts, version from runs") == [(3, None)]
    assert stage.all("select traceparent from tasks") == [(traceparent,)]
    ((total,),) = stage.all("select total_by - now() from ready_tasks")
    assert timedelta(minutes=59) < total <= timedelta(hours=1)
    stage.check()


async def test_start__nothing_said__has_the_defaults(client: Caller, stage: Stage) -> None:
    (run_id,) = await calls.started(client, run.NewRun(name="flow"))
    found = await calls.get(client, run_id)
    assert (found.queue, found.lane, found.key, dict(found.attributes)) == ("default", "", "", {})
    assert found.input.data == b""
    assert stage.all("select recovery_attempts from runs") == [(10,)]
    assert stage.all("select body ->> 'max_attempts' from task_policies") == [("1",)]
    assert stage.all("select total_by from ready_tasks") == [(None,)]


async def test_start__delay__is_delayed_and_then_given_to_a_worker(client: Caller) -> None:
    worker = await flows.serve(client, flows.flow())
    before = datetime.now(UTC)
    (run_id,) = await calls.started(client, new(delay=seconds(0.5)))
    found = await calls.get(client, run_id)
    assert calls.state_name(found.state) == "DELAYED"
    assert found.wakes_at.ToDatetime(UTC) >= before + timedelta(seconds=0.4)
    (given,) = await worker.tasks()
    assert given.task_id == run_id
    assert datetime.now(UTC) >= found.wakes_at.ToDatetime(UTC)
    assert await calls.state(client, run_id) == "RUNNING"
    await flows.finish(worker)
    await worker.close()


async def test_start__worker_is_idle__is_given_the_run_at_once(
    pair: tuple[Caller, Caller],
) -> None:
    here, there = pair
    worker = await flows.serve(there, flows.flow(), activations=2)
    (run_id,) = await calls.started(here, new(priority=1))
    (given,) = await worker.tasks(seconds=5)
    assert (given.task_id, given.HasField("activation")) == (run_id, True)
    await flows.finish(worker)
    assert await calls.state(here, run_id) == "COMPLETED"
    await worker.close()


async def test_start__one_key_at_once_from_everywhere__is_one_run(
    pair: tuple[Caller, Caller], conn: psycopg.Connection
) -> None:
    more = [Caller(one.address) for one in pair for _ in range(4)]
    callers = [*pair, *more]
    answers = await asyncio.gather(
        *(calls.start(callers[n % len(callers)], new(key="order-1")) for n in range(50))
    )
    for one in more:
        await one.close()
    results = [result for (result,) in answers]
    assert len({result.run.run_id for result in results}) == 1
    assert sum(not result.run.existing for result in results) == 1
    (counts,) = conn.execute(
        "select (select count(*) from runs), (select count(*) from tasks),"
        " (select count(*) from ready_tasks), (select count(*) from idempotency_keys)"
    ).fetchall()
    assert counts == (1, 1, 1, 1)


@pytest.mark.parametrize("other", [new(data=b'{"a": 2}', key="k"), new("ship", key="k")])
async def test_start__key_stands_for_something_else__is_refused_and_the_first_untouched(
    client: Caller, stage: Stage, other: run.NewRun
) -> None:
    (first,) = await calls.started(client, new(key="k", attributes={"a": "1"}))
    before = await calls.get(client, first)
    results = await calls.start(client, other, new(key="k"), new("free"))
    refused = refusals.read(results[0].error)
    assert (refused.status, refused.reason) == ("ALREADY_EXISTS", "KEY_TAKEN")
    assert refused.metadata == {
        "key": "k",
        "name": other.name,
        "existing_name": "flow",
        "existing_run_id": first,
    }
    assert (results[1].run.run_id, results[1].run.existing) == (first, True)
    assert results[2].HasField("run")
    assert await calls.get(client, first) == before
    assert stage.all("select count(*) from runs") == [(2,)]
    stage.check()


async def test_start__same_key_twice_in_one_call__is_one_run(client: Caller) -> None:
    results = await calls.start(client, new(key="k"), new(key="k"), new("ship", key="k"))
    assert results[0].run.run_id == results[1].run.run_id
    assert [results[0].run.existing, results[1].run.existing] == [False, True]
    assert refusals.read(results[2].error).reason == "KEY_TAKEN"


async def test_start__key_of_a_task_or_of_another_namespace__is_another_key(
    client: Caller,
) -> None:
    await client.create_namespace("other")
    other = Caller(client.address, "other")
    (task_id,) = await client.enqueue("flow", key="k")
    (here,) = await calls.started(client, new(key="k"))
    (there,) = await calls.started(other, new(key="k"))
    assert len({task_id, here, there}) == 3
    assert await client.enqueue("flow", key="k") == [task_id]
    assert (await calls.get(other, key="k")).run_id == there
    await other.close()


async def test_start__key_is_out_of_force__starts_another_run(client: Caller) -> None:
    (first,) = await calls.started(client, new(key="k", key_duration=seconds(0)))
    (second,) = await calls.started(client, new("ship", key="k"))
    assert second != first
    assert (await calls.get(client, key="k")).run_id == second


async def test_start__request_is_repeated__answers_the_same_and_stores_nothing(
    pair: tuple[Caller, Caller], stage: Stage
) -> None:
    request_id = str(uuid.uuid4())
    runs = [new(), new(key="k"), new("ship")]
    answers = await asyncio.gather(
        *(calls.started(pair[n % 2], *runs, request_id=request_id) for n in range(10))
    )
    assert len({tuple(ids) for ids in answers}) == 1
    assert len(set(answers[0])) == 3
    assert stage.all("select count(*) from runs") == [(3,)]
    stage.check()


async def test_start__request_id_of_another_call__is_refused(client: Caller) -> None:
    request_id = str(uuid.uuid4())
    # A task and a run of this name are the same bytes on the wire.
    (first,) = await calls.started(client, run.NewRun(name="flow"), request_id=request_id)
    for again in (
        calls.start(client, new("ship"), request_id=request_id),
        client.enqueue("flow", request_id=request_id),
    ):
        refused = await refusals.refused(again)
        assert (refused.status, refused.reason) == ("ALREADY_EXISTS", "REQUEST_ID_REUSED")
    again_ids = await calls.started(client, run.NewRun(name="flow"), request_id=request_id)
    assert again_ids == [first]
    assert len((await calls.listed(client))[0]) == 1


TOO_MUCH: dict[str, Callable[[], dict[str, Any]]] = {
    "name": lambda: {"name": ""},
    "queue": lambda: {"queue": "q" * 201},
    "priority": lambda: {"priority": 101},
    "delay": lambda: {"delay": seconds(-1)},
    "key": lambda: {"key": "k" * 501},
    "key_duration": lambda: {"key_duration": seconds(3651 * 86400)},
    "lane": lambda: {"lane": "l" * 201},
    "timeout": lambda: {"timeout": seconds(0)},
    "recovery_attempts": lambda: {"recovery_attempts": 1001},
    "traceparent": lambda: {"traceparent": "t" * 201},
    "attributes": lambda: {"attributes": {f"a{n}": "" for n in range(21)}},
    "attributes key": lambda: {"attributes": {"a" * 101: ""}},
    "attributes no key": lambda: {"attributes": {"": "x"}},
    "attributes value": lambda: {"attributes": {"a": "b" * 501}},
}


@pytest.mark.parametrize("field", TOO_MUCH)
async def test_start__field_out_of_bounds__is_refused_and_its_mates_are_stored(
    client: Caller, field: str
) -> None:
    one = new(key="mate")
    one.MergeFrom(run.NewRun(**{"name": "flow"} | TOO_MUCH[field]()))
    if field == "name":
        one.ClearField("name")
    results = await calls.start(client, new(), one, new())
    refused = refusals.read(results[1].error)
    assert (refused.status, refused.reason) == ("INVALID_ARGUMENT", "FIELD_INVALID")
    assert refused.fields == (f"runs[1].{field.partition(' ')[0]}",)
    assert results[0].HasField("run")
    assert results[2].HasField("run")


async def test_start__at_the_bounds__is_stored(client: Caller) -> None:
    (run_id,) = await calls.started(
        client,
        new(
            key="k" * 500,
            priority=-100,
            lane="l" * 200,
            timeout=seconds(3650 * 86400),
            delay=seconds(3650 * 86400),
            recovery_attempts=1000,
            attributes={f"{n:0100}": "v" * 500 for n in range(20)},
        ),
    )
    assert len((await calls.get(client, run_id)).attributes) == 20


@pytest.mark.parametrize("count", [0, 10_001])
async def test_start__too_few_or_too_many__is_refused(client: Caller, count: int) -> None:
    refused = await refusals.refused(calls.start(client, *[run.NewRun(name="flow")] * count))
    assert (refused.reason, refused.fields) == ("FIELD_INVALID", ("runs",))
    assert (await calls.listed(client))[0] == []


async def test_start__input_too_large__is_refused_alone(client: Caller) -> None:
    results = await calls.start(client, new(data=b"1" * (2 * 1024 * 1024 + 1)), new())
    assert refusals.read(results[0].error).reason == "PAYLOAD_TOO_LARGE"
    assert results[1].HasField("run")


async def test_start__thousands_in_one_call__take_as_many_statements_as_one(
    client: Caller, stage: Stage, monkeypatch: pytest.MonkeyPatch
) -> None:
    ran: list[str] = []
    for name in ("many", "execute"):
        run_statement = getattr(statements, name)

        def counted(conn: Any, query: str, *rest: Any, run_statement: Any = run_statement) -> Any:
            if query in {"id_make", "task_insert", "run_insert", "key_claim", "request_claim"}:
                ran.append(query)
            return run_statement(conn, query, *rest)

        monkeypatch.setattr(statements, name, counted)
    await calls.started(client, new(key="a"), request_id=str(uuid.uuid4()))
    alone, ran[:] = list(ran), []
    ids = await calls.started(
        client,
        *(new(data=b"%d" % n, key=f"k{n}") for n in range(3_000)),
        request_id=str(uuid.uuid4()),
    )
    assert sorted(ran) == sorted(alone)
    assert len(alone) == 5
    assert stage.all("select count(*) from runs") == [(3_001,)]
    waiting = [run_id for run_id, _ in flows.waiting(stage)]
    assert waiting[1:] == ids, "they do not wait in the order of the call"


async def test_start__timeout_passes_before_a_worker_comes__is_timed_out(client: Caller) -> None:
    (run_id,) = await calls.started(client, new(timeout=seconds(0.2)))

    async def over() -> bool:
        return await calls.state(client, run_id) == "TIMED_OUT"

    assert await eventually_awaited(over)
    found = await calls.get(client, run_id)
    assert found.HasField("ended_at")
    assert not found.HasField("output")
