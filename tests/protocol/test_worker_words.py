"""What workers say of themselves and report: the key they come with, names, failures, encodings."""

from collections.abc import AsyncIterator
from typing import Any

import pytest
import pytest_asyncio

from tenure.v1 import admin_service_pb2 as admin
from tenure.v1 import registry_service_pb2 as registry
from tenure.v1 import worker_pb2 as worker
from tenure_service.engine.access import ANYBODY, Scope
from tenure_service.main import Server
from tests.fix_server import server_config
from tests.protocol import refusals
from tests.protocol.caller import Caller, completed, status_name
from tests.protocol.raw_worker import RawWorker


class Locked:
    """A server that requires keys, with callers that have one each."""

    def __init__(self, server: Server) -> None:
        self.server = server
        self.callers: list[Caller] = []
        self.ids: dict[str, str] = {}

    def caller(self, name: str) -> Caller:
        assert self.server._hub is not None
        row, secret = self.server._hub.keys.create(
            ANYBODY, namespace_id=None, name=name, scopes=list(Scope), queue_globs=(), lifetime=None
        )
        made = Caller(self.server.address)
        made.metadata = (("authorization", f"Bearer {secret}"),)
        self.callers.append(made)
        self.ids[name] = row.key_id
        return made

    async def workers(self, asker: Caller) -> list[tuple[str, str]]:
        answer = await asker.admin.ListWorkers(admin.ListWorkersRequest(), metadata=asker.metadata)
        return [(each.key_id, each.key_name) for each in answer.workers]

    async def counts(self, asker: Caller) -> dict[str, int]:
        answer = await asker.admin.ListApiKeys(admin.ListApiKeysRequest(), metadata=asker.metadata)
        return {each.name: each.worker_count for each in answer.keys}


@pytest_asyncio.fixture
async def locked(database: str) -> AsyncIterator[Locked]:
    running = Server(server_config(database, require_keys=True))
    await running.start()
    made = Locked(running)
    yield made
    for each in made.callers:
        await each.close()
    await running.stop()


async def test_list__worker_with_a_stream__names_the_key_until_it_comes_with_another(
    locked: Locked,
) -> None:
    first, second = locked.caller("first"), locked.caller("second")
    one = await RawWorker.open(first, "work")
    assert await locked.workers(first) == [(locked.ids["first"], "first")]
    assert await locked.counts(first) == {"first": 1, "second": 0}
    await one.cut()
    again = await RawWorker.open(second, "work", resume=one)
    assert await locked.workers(first) == [(locked.ids["second"], "second")]
    assert await locked.counts(first) == {"first": 0, "second": 1}
    await again.close()
    assert await locked.workers(first) == []
    assert await locked.counts(first) == {"first": 0, "second": 0}


async def test_list__worker_that_polls__names_the_key_of_its_last_call(locked: Locked) -> None:
    first, second = locked.caller("first"), locked.caller("second")
    for caller, name in ((first, "first"), (second, "second")):
        await caller.lease("work")
        assert await locked.workers(first) == [(locked.ids[name], name)]


async def test_list__no_keys_asked_for__names_none(client: Caller) -> None:
    await client.lease("work")
    answer = await client.admin.ListWorkers(admin.ListWorkersRequest())
    assert [(each.key_id, each.key_name) for each in answer.workers] == [("", "")]


@pytest.mark.parametrize("name", ["pay\u202eroll", " "], ids=ascii)
async def test_open__handler_of_a_name_that_shows_nothing__is_refused(
    client: Caller, name: str
) -> None:
    one = RawWorker(client)
    await one.send(open=RawWorker.open_message(name))
    refusal = await one.ended()
    assert refusal is not None
    assert (refusal.reason, refusal.fields) == ("FIELD_INVALID", ("open.handlers[0].name",))
    for made in (
        client.registry.SetQueue(registry.SetQueueRequest(name=name)),
        client.registry.SetTaskDefinition(registry.SetTaskDefinitionRequest(name=name)),
    ):
        assert (await refusals.refused(made)).fields == ("name",)


@pytest.mark.parametrize(
    ("outcome", "field"),
    [
        ({"failed": worker.Failed()}, "failed.failure"),
        ({"completed": {"output": {"encoding": "é"}}}, "completed.output.encoding"),
        ({"rescheduled": {"details": {"encoding": "é"}}}, "rescheduled.details.encoding"),
    ],
    ids=str,
)
@pytest.mark.parametrize("streams", [True, False])
async def test_report__no_failure_or_no_encoding__is_refused_alone(
    client: Caller,
    outcome: dict[str, Any],
    field: str,
    streams: bool,  # noqa: FBT001 - a table
) -> None:
    await client.enqueue("work", 2)
    one = await RawWorker.open(client, "work", slots=2) if streams else None
    bad, good = (
        (await client.lease("work", count=2)).assignments if one is None else await one.tasks(2)
    )
    result = worker.Result(task_id=bad.task_id, lease_token=bad.lease_token, **outcome)
    if one is None:
        answers = (await client.report_fully(result, completed(good))).results
        statuses, error = [each.status for each in answers], answers[0].error
    else:
        ack = await one.report_fully(result, completed(good))
        statuses, error = list(ack.statuses), ack.errors[0].error
        await one.close()
    assert [status_name(status) for status in statuses] == ["REFUSED", "RECORDED"]
    assert refusals.read(error).fields == (field,)
