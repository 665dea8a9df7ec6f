"""The client without an app: every RPC, as values."""

import pytest

from tenure import (
    App,
    AsyncClient,
    DeadLetterState,
    DeliveryOutcome,
    FieldInvalid,
    NewTask,
    Payload,
    Policy,
    Retry,
    ServiceError,
    StateConflict,
    TaskState,
    Worker,
)
from tests.fix_server import RunningServer


@pytest.fixture
def client(server: RunningServer) -> AsyncClient:
    return AsyncClient(server.address, server.namespace)


async def test_tasks__enqueued_by_name__are_read_listed_explained(client: AsyncClient) -> None:
    first = await client.enqueue(
        NewTask(name="resize", arguments={"path": "a", "n": 2**60}, queue="q", priority=5, key="k")
    )
    answers = await client.enqueue_many(
        [NewTask(name="resize", arguments=Payload(data=b"\0\xff", encoding="binary"), delay=60)]
    )
    (second,) = answers
    assert not isinstance(second, ServiceError)
    details = await client.get_task(first.id, payloads=True)
    assert details.task.input is not None
    assert details.task.input.json() == {"path": "a", "n": 2**60}
    assert (details.task.queue, details.task.priority, details.task.key) == ("q", 5, "k")
    assert details.task.policy.retry is not None
    assert details.task.policy.retry.max_attempts == 3
    raw = (await client.get_task(second.id, payloads=True)).task
    assert raw.state is TaskState.DELAYED
    assert raw.input == Payload(data=b"\0\xff", encoding="binary")
    page = await client.list_tasks(TaskState.READY, name="resize")
    assert [each.id for each in page.items] == [first.id]
    assert (await client.explain_task(first.id)).reasons
    assert await client.await_tasks([first.id], 0.01) == {}
    cancelled, unknown = await client.cancel_tasks([second.id, "nothing"], reason="test")
    assert cancelled is TaskState.CANCELLED
    assert isinstance(unknown, ServiceError)
    outcomes = await client.await_tasks([first.id, second.id], 5)
    assert list(outcomes) == [second.id]


async def test_enqueue__bad_field__is_named(client: AsyncClient) -> None:
    with pytest.raises(FieldInvalid) as caught:
        await client.enqueue(NewTask(name="x", priority=1_000))
    assert any("priority" in field for field in caught.value.fields)


async def test_registry__overrides_and_queues__are_kept(client: AsyncClient) -> None:
    stored = await client.set_task_definition("resize", Policy(retry=Retry(9)))
    assert stored.override is not None
    assert stored.effective.retry is not None
    assert stored.effective.retry.max_attempts == 9
    page = await client.list_task_definitions()
    assert [each.name for each in page.items] == ["resize"]
    cleared = await client.set_task_definition("resize", None)
    assert cleared.override is None
    assert (await client.set_queue("q", paused=True)).paused_at is not None
    assert (await client.set_queue("q", paused=False)).paused_at is None
    assert "q" in [each.name for each in (await client.list_queues()).items]


async def test_admin__workers_statistics_and_dead_letters__are_shown_and_steered(
    client: AsyncClient, server: RunningServer
) -> None:
    app = App("test", server.address, server.namespace, version="v7")

    @app.task(retry=Retry(1))
    def fail() -> None:
        raise ValueError("no")

    async with Worker(app, name="worker one"):
        handle = await fail.aenqueue()
        assert await handle.await_(20) is TaskState.DEAD
        (worker,) = await client.list_workers()
        assert (worker.name, worker.app_version, worker.receiving) == ("worker one", "v7", True)
        assert [(each.name, each.queue) for each in worker.handlers] == [("fail", "default")]
        delivery = (await client.get_task(handle.id)).deliveries[0]
        assert delivery.outcome is DeliveryOutcome.FAILED
        assert delivery.worker == "worker one"
    (letter,) = (await client.list_dead_letters(payloads=True)).items
    assert (letter.task_id, letter.state) == (handle.id, DeadLetterState.OPEN)
    assert letter.failure is not None
    assert letter.failure.type == "ValueError"
    counts = {each.name: each for each in await client.queue_statistics()}
    assert counts["fail"].dead_count == 1
    assert await client.replay_dead_letters([handle.id]) == [DeadLetterState.REPLAYED]
    (again,) = await client.discard_dead_letters([handle.id])
    assert isinstance(again, StateConflict)


async def test_namespaces__created__are_listed_and_apart(
    client: AsyncClient, server: RunningServer
) -> None:
    created = await client.create_namespace("other")
    assert created.created_at is not None
    assert "other" in [each.name for each in await client.list_namespaces()]
    await client.enqueue(NewTask(name="here"))
    other = AsyncClient(server.address, "other")
    assert (await other.list_tasks(TaskState.READY)).items == []
