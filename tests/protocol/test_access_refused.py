"""What is left of refused calls, and how far the queues and the end of a key bind an operator."""

import asyncio
import logging
from collections.abc import AsyncIterator, Callable, Sequence
from datetime import timedelta
from typing import Any

import psycopg
import pytest
import pytest_asyncio

from tenure.v1 import admin_service_pb2 as admin
from tenure.v1 import registry_service_pb2 as registry
from tenure_service.engine.access import ANYBODY, Scope
from tenure_service.main import Server
from tenure_service.rpc.pacing import Paced
from tenure_service.usecase.access import Keys
from tests.protocol import caller, refusals
from tests.protocol.caller import Caller
from tests.protocol.raw_worker import RawWorker

Make = Callable[..., Caller]


@pytest.fixture
def keys(locked: Server) -> Keys:
    """The keys of that server."""
    assert locked._hub is not None
    return locked._hub.keys


@pytest_asyncio.fixture
async def make(locked: Server, keys: Keys) -> AsyncIterator[Make]:
    """Makes callers with a key of their own."""
    opened: list[Caller] = []

    def made(
        *scopes: Scope,
        queues: Sequence[str] = (),
        lifetime: timedelta | None = None,
        secret: str | None = None,
    ) -> Caller:
        if secret is None:
            _, secret = keys.create(
                ANYBODY,
                namespace_id=None,
                name="one",
                scopes=scopes or list(Scope),
                queue_globs=list(queues),
                lifetime=lifetime,
            )
        found = Caller(locked.address)
        found.metadata = (("authorization", f"Bearer {secret}"),)
        opened.append(found)
        return found

    yield made
    for one in opened:
        await one.close()


def _paused(name: str) -> registry.SetQueueRequest:
    return registry.SetQueueRequest(name=name, paused=True)


async def test_audit__scope_is_missing__is_recorded_with_who_and_what(
    make: Make, conn: psycopg.Connection
) -> None:
    client = make(Scope.CLIENT)
    refusal = await refusals.refused(
        client.registry.SetQueue(_paused("mail"), metadata=client.metadata)
    )
    assert refusal.reason == "SCOPE_MISSING"
    found = conn.execute(
        "select actor, action, outcome, request, namespace, peer from audit_events"
    ).fetchall()
    assert [row[1:5] for row in found] == [
        ("SetQueue", "SCOPE_MISSING", '{"name": "mail", "paused": true}', "default")
    ]
    assert found[0][0].startswith("key:one:")
    assert found[0][5].startswith("127.0.0.1:")


async def test_audit__scope_is_missing_again_and_again__is_bounded(
    make: Make, conn: psycopg.Connection, caplog: pytest.LogCaptureFixture
) -> None:
    client = make(Scope.CLIENT)
    for _ in range(62):
        await refusals.refused(client.registry.SetQueue(_paused("mail"), metadata=client.metadata))
    assert conn.execute("select count(*) from audit_events").fetchone() == (60,)
    assert "is refused too often for each call to be recorded" in caplog.text


@pytest.mark.parametrize("ending", ["revoked", "expired", "unknown", "another form", "missing"])
async def test_log__credential_is_refused__says_from_where_and_why_once(
    make: Make,
    keys: Keys,
    locked: Server,
    conn: psycopg.Connection,
    caplog: pytest.LogCaptureFixture,
    ending: str,
) -> None:
    client = make()
    secret = dict(client.metadata)["authorization"].removeprefix("Bearer ")
    said = f"the key 'one' ({keys.list_(ANYBODY, include_ended=True)[0].key_id})"
    if ending in {"revoked", "expired"}:
        column = "revoked_at" if ending == "revoked" else "expires_at"
        conn.execute(f"update api_keys set {column} = now()")  # noqa: S608 - ours
        await asyncio.to_thread(keys.refresh)
        said += " was revoked" if ending == "revoked" else " has expired"
    elif ending == "missing":
        client = Caller(locked.address)
        said = "no key was sent"
    else:
        secret = "tenure_" + "A" * 43 if ending == "unknown" else "hunter2"
        client = make(secret=secret)
        unknown = ending == "unknown"
        said = "the key is not known" if unknown else "what it sent is not in the form of a key"
    for _ in range(3):
        refusal = await refusals.refused(
            client.registry.SetQueue(_paused("mail"), metadata=client.metadata)
        )
        assert refusal.reason == "UNAUTHENTICATED"
    lines = [
        record
        for record in caplog.records
        if record.levelno == logging.WARNING and "was refused" in record.getMessage()
    ]
    assert len(lines) == 1
    assert "a caller at 127.0.0.1:" in lines[0].getMessage()
    assert lines[0].getMessage().endswith(f"was refused: {said}")
    assert secret not in caplog.text
    await client.close()


def test_take__while_passes__says_how_many_did_not() -> None:
    now = 0.0
    paced = Paced(2, 10, clock=lambda: now)
    assert [paced.take() for _ in range(5)] == [0, 0, None, None, None]
    now = 10.0
    assert [paced.take() for _ in range(3)] == [3, 0, None]


async def _dead(everybody: Caller, queue: str) -> str:
    """Leaves a dead letter in a queue."""
    (task_id,) = await everybody.enqueue(queue=queue)
    one = await RawWorker.open(everybody, f"{queue}/work")
    item = (await one.tasks())[0]
    failed = caller.failed(item)
    failed.failed.failure.non_retryable = True
    assert await one.report(failed) == ["RECORDED"]
    await one.close()
    return task_id


async def test_operate__queues_outside_the_globs__are_as_if_they_were_not_there(
    make: Make,
) -> None:
    everybody, some = make(), make(queues=("mail*",))
    theirs, ours = await _dead(everybody, "default"), await _dead(everybody, "mail")
    serving = await RawWorker.open(everybody, "default/work", "mail/work")
    elsewhere = await RawWorker.open(everybody, "default/work")
    for name in ("default", "mail"):
        await everybody.registry.SetQueue(_paused(name), metadata=everybody.metadata)

    async def ask(client: Caller, service: str, name: str, request: Any) -> Any:
        return await client.method(service, name)(request, metadata=client.metadata)

    for name in ("ReplayDeadLetters", "DiscardDeadLetters"):
        request = getattr(admin, f"{name}Request")(task_ids=[theirs])
        answer = await ask(some, "AdminService", name, request)
        assert refusals.read(answer.results[0].error).reason == "NOT_REGISTERED"
    listed = await ask(
        some, "AdminService", "ListDeadLetters", admin.ListDeadLettersRequest(queue="mail")
    )
    assert [letter.task_id for letter in listed.dead_letters] == [ours]
    counted = await ask(
        some, "AdminService", "GetQueueStatistics", admin.GetQueueStatisticsRequest()
    )
    assert {row.queue for row in counted.statistics} == {"mail"}
    queues = await ask(some, "RegistryService", "ListQueues", registry.ListQueuesRequest())
    assert [queue.name for queue in queues.queues] == ["mail"]
    workers = await ask(some, "AdminService", "ListWorkers", admin.ListWorkersRequest())
    assert [[each.queue for each in one.handlers] for one in workers.workers] == [["mail"]]
    replayed = await ask(
        some, "AdminService", "ReplayDeadLetters", admin.ReplayDeadLettersRequest(task_ids=[ours])
    )
    assert not replayed.results[0].HasField("error")
    assert await everybody.state(theirs) == "DEAD"
    await serving.close()
    await elsewhere.close()


@pytest.mark.parametrize(
    ("service", "name", "request_"),
    [
        ("RegistryService", "SetQueue", _paused("default")),
        ("RegistryService", "SetTaskDefinition", registry.SetTaskDefinitionRequest(name="work")),
        ("RegistryService", "ListTaskDefinitions", registry.ListTaskDefinitionsRequest()),
        ("AdminService", "ListDeadLetters", admin.ListDeadLettersRequest()),
        ("AdminService", "ListDeadLetters", admin.ListDeadLettersRequest(queue="default")),
        ("AdminService", "GetQueueStatistics", admin.GetQueueStatisticsRequest(queue="default")),
        ("AdminService", "CreateNamespace", admin.CreateNamespaceRequest(name="new")),
        ("AdminService", "ListAuditEvents", admin.ListAuditEventsRequest()),
    ],
)
async def test_operate__outside_the_globs_or_of_no_queue__is_refused(
    make: Make, service: str, name: str, request_: Any
) -> None:
    some, everybody = make(queues=("mail*",)), make(queues=("*",))
    refusal = await refusals.refused(some.method(service, name)(request_, metadata=some.metadata))
    assert refusal.reason == "SCOPE_MISSING"
    await everybody.method(service, name)(request_, metadata=everybody.metadata)


async def test_revoke__key_of_other_queues__does_not_exist_for_it(make: Make, keys: Keys) -> None:
    some = make(queues=("mail*",))
    make()
    own, other = keys.list_(ANYBODY, include_ended=False)
    listed = await some.admin.ListApiKeys(admin.ListApiKeysRequest(), metadata=some.metadata)
    assert [key.key_id for key in listed.keys] == [own.key_id]
    refusal = await refusals.refused(
        some.admin.RevokeApiKey(
            admin.RevokeApiKeyRequest(key_id=other.key_id), metadata=some.metadata
        )
    )
    assert refusal.reason == "NOT_REGISTERED"
    assert len(keys.list_(ANYBODY, include_ended=False)) == 2


async def test_create__by_a_key_that_ends__ends_no_later(make: Make, keys: Keys) -> None:
    maker = make(lifetime=timedelta(hours=1))
    (own,) = keys.list_(ANYBODY, include_ended=False)

    def request(lifetime: float | None) -> Any:
        wanted = admin.CreateApiKeyRequest(name="made", scopes=[admin.SCOPE_ADMIN])
        if lifetime is not None:
            wanted.lifetime.CopyFrom(caller.seconds(lifetime))
        return maker.admin.CreateApiKey(wanted, metadata=maker.metadata)

    refusal = await refusals.refused(request(7_200))
    assert (refusal.reason, refusal.metadata) == ("SCOPE_MISSING", {"scope": "lifetime"})
    for lifetime in (None, 60.0):
        made = (await request(lifetime)).key
        assert own.expires_at is not None
        ends = own.expires_at.timestamp()
        assert made.expires_at.ToNanoseconds() / 1e9 <= ends + 0.001
        assert made.created_by == f"key:one:{own.key_id}"
    assert len(keys.list_(ANYBODY, include_ended=True)) == 3
