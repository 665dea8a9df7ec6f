"""Keys: who may call what, in which namespace, on which queues; and the record of operators."""

import asyncio
import uuid
from collections.abc import AsyncIterator, Callable
from typing import Any

import grpc
import psycopg
import pytest
import pytest_asyncio
from google.protobuf import message_factory
from grpc_reflection.v1alpha import reflection_pb2, reflection_pb2_grpc

from tenure.v1 import admin_service_pb2 as admin
from tenure.v1 import registry_service_pb2 as registry
from tenure.v1 import task_pb2 as task
from tenure.v1 import task_service_pb2 as tasks
from tenure.v1 import worker_service_pb2 as workers
from tenure.v1 import workflow_service_pb2 as workflows
from tenure_service.engine.access import ANYBODY, Principal, Scope
from tenure_service.main import Server
from tenure_service.rpc import guard
from tests.eventually import eventually_awaited
from tests.fix_server import server_config
from tests.protocol import caller, contract, refusals
from tests.protocol.caller import Caller
from tests.protocol.raw_worker import RawWorker
from tests.protocol.refusals import Refusal
from tests.protocol.test_contract import check, methods, of, rpc_name
from tests.runs import calls

EVERY = [admin.SCOPE_WORKER, admin.SCOPE_CLIENT, admin.SCOPE_ADMIN]
Make = Callable[..., Caller]


@pytest_asyncio.fixture
async def make(locked: Server) -> AsyncIterator[Make]:
    """Makes callers with a key of their own, made as an operator at the database would."""
    opened: list[Caller] = []
    assert locked._hub is not None
    keys = locked._hub.keys

    def made(
        *scopes: Scope,
        namespace: str | None = None,
        namespace_id: int | None = None,
        queues: tuple[str, ...] = (),
        secret: str | None = None,
    ) -> Caller:
        if secret is None:
            _, secret = keys.create(
                ANYBODY,
                namespace_id=namespace_id,
                name=f"test {len(opened)}",
                scopes=scopes or list(Scope),
                queue_globs=queues,
                lifetime=None,
            )
        found = Caller(locked.address, namespace)
        found.metadata = (*found.metadata, ("authorization", f"Bearer {secret}"))
        opened.append(found)
        return found

    yield made
    for one in opened:
        await one.close()


def _admin(client: Caller) -> Any:
    return client.admin


def test_table__every_rpc__has_a_scope() -> None:
    ours = {name for name in guard.SCOPES if name.startswith("/tenure.")}
    assert ours == {f"/{method.containing_service.full_name}/{method.name}" for method in methods()}


@pytest.mark.parametrize("method", methods(), ids=rpc_name)
async def test_call__without_or_with_a_wrong_key__is_refused(
    locked: Server, make: Make, method: Any
) -> None:
    strangers = [
        Caller(locked.address),
        make(secret="tenure_" + "A" * 43),
        make(secret="no key"),  # noqa: S106 - it is none
    ]
    for stranger in strangers:
        if method.name == "Work":
            one = RawWorker(stranger)
            refusal = await one.ended()
            assert refusal is not None
        else:
            request = message_factory.GetMessageClass(method.input_type)()
            made = stranger.method(method.containing_service.name, method.name)
            refusal = await refusals.refused(made(request, metadata=stranger.metadata))
        assert (refusal.status, refusal.reason) == ("UNAUTHENTICATED", "UNAUTHENTICATED")
    await strangers[0].close()


async def test_health__without_a_key__is_told(locked: Server) -> None:
    stranger = Caller(locked.address)
    assert await stranger.healthy()
    await stranger.close()


async def test_reflection__without_a_key__is_refused(locked: Server, make: Make) -> None:
    async def ask(client: Caller) -> list[str]:
        channel: Any = client.channel
        stub: Any = reflection_pb2_grpc.ServerReflectionStub(channel)
        request = reflection_pb2.ServerReflectionRequest(list_services="")
        answers = stub.ServerReflectionInfo(iter([request]), metadata=client.metadata)
        found = [answer async for answer in answers]
        return [one.name for one in found[0].list_services_response.service]

    stranger = Caller(locked.address)
    with pytest.raises(grpc.RpcError) as caught:
        await ask(stranger)
    assert refusals.of(caught.value).status == "UNAUTHENTICATED"
    assert "tenure.v1.TaskService" in await ask(make(Scope.CLIENT))
    await stranger.close()


@pytest.mark.parametrize("method", methods(), ids=rpc_name)
async def test_call__key_of_another_scope__is_refused(make: Make, method: Any) -> None:
    needed = guard.SCOPES[f"/{method.containing_service.full_name}/{method.name}"]
    client = make(*(scope for scope in Scope if scope is not needed))
    if method.name == "Work":
        refusal = await RawWorker(client).ended()
        assert refusal is not None
    else:
        request = message_factory.GetMessageClass(method.input_type)()
        made = client.method(method.containing_service.name, method.name)
        refusal = await refusals.refused(made(request, metadata=client.metadata))
    assert (refusal.status, refusal.reason) == ("PERMISSION_DENIED", "SCOPE_MISSING")
    assert refusal.metadata == {"scope": needed}


async def test_call__key_with_the_scopes__works_end_to_end(make: Make) -> None:
    producer, operator = make(Scope.CLIENT), make(Scope.ADMIN)
    (task_id,) = await producer.enqueue()
    one = await RawWorker.open(make(Scope.WORKER))
    item = (await one.tasks())[0]
    assert await one.report(caller.completed(item)) == ["RECORDED"]
    assert await producer.state(task_id) == "COMPLETED"
    answer = await _admin(operator).ListWorkers(
        admin.ListWorkersRequest(), metadata=operator.metadata
    )
    assert len(answer.workers) == 1
    await one.close()


async def test_namespace__of_another_tenant__is_as_if_it_were_not_there(make: Make) -> None:
    operator = make()
    for name in ("ours", "theirs"):
        await _admin(operator).CreateNamespace(
            admin.CreateNamespaceRequest(name=name), metadata=operator.metadata
        )
    listed = await _admin(operator).ListNamespaces(
        admin.ListNamespacesRequest(), metadata=operator.metadata
    )
    assert {one.name for one in listed.namespaces} == {"default", "ours", "theirs"}
    created = await _admin(operator).CreateApiKey(
        admin.CreateApiKeyRequest(name="ours", scopes=EVERY),
        metadata=(("tenure-namespace", "ours"), operator.metadata[-1]),
    )
    assert created.key.namespace == "ours"
    theirs = make(secret=created.secret, namespace="theirs")
    nowhere = make(secret=created.secret, namespace="nowhere")
    for stranger, name in ((theirs, "theirs"), (nowhere, "nowhere")):
        refusal = await refusals.refused(stranger.enqueue())
        assert (refusal.status, refusal.reason) == ("NOT_FOUND", "NOT_REGISTERED")
        assert name in refusal.message
        assert refusal.message.replace(name, "") == (
            f"no namespace ''; create it with {_HINT}, or send a key of it if it exists: this key"
            " is for another namespace"
        )
    unbound = await refusals.refused(make(namespace="nowhere").enqueue())
    assert unbound.message == f"no namespace 'nowhere'; create it with {_HINT}"
    ours = make(secret=created.secret, namespace="ours")
    await ours.enqueue()
    own = await _admin(ours).ListNamespaces(admin.ListNamespacesRequest(), metadata=ours.metadata)
    assert [one.name for one in own.namespaces] == ["ours"]
    refusal = await refusals.refused(
        _admin(ours).CreateNamespace(
            admin.CreateNamespaceRequest(name="more"), metadata=ours.metadata
        )
    )
    assert refusal.reason == "SCOPE_MISSING"
    keys = await _admin(ours).ListApiKeys(admin.ListApiKeysRequest(), metadata=ours.metadata)
    assert [one.key_id for one in keys.keys] == [created.key.key_id]


_HINT = "`tenure namespace create`"


async def test_queues__outside_the_globs__are_refused_and_hidden(make: Make) -> None:
    everybody, some = make(), make(queues=("pay*", "m?il"))
    (hidden,) = await everybody.enqueue(queue="secret")
    (shown,) = await everybody.enqueue(queue="payments")
    request = tasks.EnqueueTasksRequest(
        tasks=[tasks.NewTask(name="n", queue=queue) for queue in ("mail", "maail", "pay", "")]
    )
    answer = await some.task.EnqueueTasks(request, metadata=some.metadata)
    refused = [one.HasField("error") for one in answer.results]
    assert refused == [False, True, False, True]
    assert refusals.read(answer.results[1].error).reason == "SCOPE_MISSING"
    assert await some.state(shown) == "READY"
    refusal = await refusals.refused(some.get(hidden))
    assert (refusal.status, refusal.reason) == ("NOT_FOUND", "TASK_NOT_FOUND")
    cancelled, waited = await some.cancel(hidden, contract.UNKNOWN), await some.wait(hidden)
    for error in (cancelled.results[0].error, waited.results[0].error):
        assert refusals.read(error).reason == "TASK_NOT_FOUND"
    assert await everybody.state(hidden) == "READY"
    refusal = await refusals.refused(
        some.task.ExplainTask(tasks.ExplainTaskRequest(task_id=hidden), metadata=some.metadata)
    )
    assert refusal.reason == "TASK_NOT_FOUND"
    for queue, reason in (("", "SCOPE_MISSING"), ("secret", "SCOPE_MISSING"), ("payments", None)):
        listing = some.task.ListTasks(
            tasks.ListTasksRequest(state=task.TASK_STATE_READY, queue=queue),
            metadata=some.metadata,
        )
        if reason is None:
            assert len((await listing).tasks) == 1
        else:
            assert (await refusals.refused(listing)).reason == reason
    for names in (("secret/work",), ("payments/work", "secret/work")):
        refusal = await refusals.refused(some.lease(*names))
        assert refusal.reason == "SCOPE_MISSING"
        one = RawWorker(some)
        await one.call.write(workers.WorkRequest(open=RawWorker.open_message(*names)))
        ended = await one.ended()
        assert ended is not None
        assert ended.reason == "SCOPE_MISSING"
    assert len((await some.lease("payments/work")).assignments) == 1


async def test_explain__served_on_queues_outside_the_globs__names_those_inside_only(
    make: Make,
) -> None:
    everybody, some = make(), make(queues=("pay*", "mail"))
    (task_id,) = await everybody.enqueue(queue="mail")
    one = await RawWorker.open(everybody, "secret/work", "payments/work")
    request = tasks.ExplainTaskRequest(task_id=task_id)
    for caller_, told in ((some, {"payments"}), (everybody, {"payments", "secret"})):
        found = await caller_.task.ExplainTask(request, metadata=caller_.metadata)
        (reason,) = found.reasons
        assert {
            queue for queue in ("payments", "secret") if f"on queue '{queue}'" in reason
        } == told
    await one.close()


async def test_runs__on_queues_outside_the_globs__do_not_exist(make: Make) -> None:
    everybody, some = make(), make(queues=("pay*",))
    (theirs,) = await calls.started(everybody, calls.new(queue="secret", key="k"))
    (own,) = await calls.started(some, calls.new(queue="payments"))
    (refused,) = await calls.start(some, calls.new(queue="secret"))
    assert refusals.read(refused.error).reason == "SCOPE_MISSING"
    for named in ({"run_id": theirs}, {"key": "k"}):
        refusal = await refusals.refused(calls.get(some, **named))
        assert (refusal.reason, theirs in refusal.message) == ("RUN_NOT_FOUND", "run_id" in named)
    waited = (await calls.wait(some, theirs))[theirs]
    assert isinstance(waited, Refusal)
    assert waited.reason == "RUN_NOT_FOUND"
    found, _ = await calls.listed(some)
    assert [one.run_id for one in found] == [own]
    for method in ("CancelRuns", "ResumeRuns"):
        request = getattr(workflows, f"{method}Request")(run_ids=[theirs])
        answer = await calls.call(some, method, request)
        assert calls.outcomes(answer.results) == ["RUN_NOT_FOUND"]
    for method in ("ListRunSteps", "ForkRun"):
        request = getattr(workflows, f"{method}Request")(run_id=theirs)
        refusal = await refusals.refused(calls.call(some, method, request))
        assert refusal.reason == "RUN_NOT_FOUND"
    assert await calls.state(everybody, theirs) == "QUEUED"


async def test_create__more_than_its_maker_may__is_refused(make: Make) -> None:
    for row in of("keyed"):
        check(row, await row.provoke(make(Scope.ADMIN)))
    some = make(queues=("pay*",))
    for request, allowed in (
        (admin.CreateApiKeyRequest(name="k", scopes=[admin.SCOPE_WORKER]), False),
        (
            admin.CreateApiKeyRequest(
                name="k", scopes=[admin.SCOPE_WORKER], queue_globs=["pay*", "x"]
            ),
            False,
        ),
        (
            admin.CreateApiKeyRequest(name="k", scopes=[admin.SCOPE_WORKER], queue_globs=["pay*"]),
            True,
        ),
    ):
        made = _admin(some).CreateApiKey(request, metadata=some.metadata)
        if allowed:
            assert (await made).secret
        else:
            assert (await refusals.refused(made)).reason == "SCOPE_MISSING"


async def test_create__lifetime_over__key_is_refused(
    make: Make, conn: psycopg.Connection, locked: Server
) -> None:
    operator = make()
    created = await _admin(operator).CreateApiKey(
        admin.CreateApiKeyRequest(
            name="short", scopes=[admin.SCOPE_CLIENT], lifetime=caller.seconds(3600)
        ),
        metadata=operator.metadata,
    )
    short = make(secret=created.secret)
    await short.enqueue()
    conn.execute("update api_keys set expires_at = now() where name = 'short'")
    assert locked._hub is not None
    await asyncio.to_thread(locked._hub.keys.refresh)
    refusal = await refusals.refused(short.enqueue())
    assert refusal.reason == "UNAUTHENTICATED"
    listed = await _admin(operator).ListApiKeys(
        admin.ListApiKeysRequest(include_ended=True), metadata=operator.metadata
    )
    (key,) = (key for key in listed.keys if key.name == "short")
    assert key.HasField("expires_at")
    assert not key.HasField("revoked_at")


async def _soon_known(far: Caller, operator: Caller) -> admin.ListApiKeysResponse:
    """Lists keys at another server, which may take a second to know a new one."""

    async def ask() -> admin.ListApiKeysResponse | None:
        try:
            answer: admin.ListApiKeysResponse = await _admin(far).ListApiKeys(
                admin.ListApiKeysRequest(), metadata=operator.metadata
            )
        except grpc.RpcError:
            return None
        return answer

    answer = await eventually_awaited(ask, seconds=5)
    assert answer is not None
    return answer


async def test_revoke__by_another_server__ends_open_streams_and_calls(
    locked: Server, make: Make, database: str
) -> None:
    worker_key = make(Scope.WORKER, Scope.CLIENT)
    other = Server(server_config(database, require_keys=True))
    await other.start()
    one = await RawWorker.open(worker_key)
    operator = make()
    far = Caller(other.address)
    keys = await _soon_known(far, operator)
    (key_id,) = (key.key_id for key in keys.keys if len(key.scopes) == 2)
    answer = await _admin(far).RevokeApiKey(
        admin.RevokeApiKeyRequest(key_id=key_id), metadata=operator.metadata
    )
    assert answer.key.HasField("revoked_at")
    refusal = await one.ended(seconds=10)
    assert refusal is not None
    assert refusal.reason == "UNAUTHENTICATED"
    assert (await refusals.refused(worker_key.enqueue())).reason == "UNAUTHENTICATED"
    # Again is no error, and changes nothing.
    again = await _admin(far).RevokeApiKey(
        admin.RevokeApiKeyRequest(key_id=key_id), metadata=operator.metadata
    )
    assert again.key.revoked_at == answer.key.revoked_at
    await far.close()
    await other.stop()


async def test_used__now_and_then__is_noted(
    make: Make, locked: Server, conn: psycopg.Connection
) -> None:
    client = make(Scope.CLIENT)
    await client.enqueue()
    await client.enqueue()
    assert locked._hub is not None
    await asyncio.to_thread(locked._hub.keys.refresh)
    used = conn.execute("select used_at is not null from api_keys where name = 'test 0'")
    assert used.fetchone() == (True,)


async def test_used__stream_stays_open__is_noted_too(
    make: Make, locked: Server, conn: psycopg.Connection
) -> None:
    one = await RawWorker.open(make(Scope.WORKER))
    hub = locked._hub
    assert hub is not None
    await asyncio.to_thread(hub.keys.refresh)
    conn.execute("update api_keys set used_at = now() - interval '1 hour'")
    await hub.check_keys()
    assert conn.execute(
        "select used_at > now() - interval '1 minute' from api_keys"
    ).fetchone() == (True,)
    await one.close()


async def test_secret__of_a_key__is_nowhere(make: Make, conn: psycopg.Connection) -> None:
    operator = make()
    created = await _admin(operator).CreateApiKey(
        admin.CreateApiKeyRequest(name="k", scopes=EVERY), metadata=operator.metadata
    )
    for table in ("api_keys", "audit_events"):
        rows = conn.execute(f"select t::text from {table} as t").fetchall()  # noqa: S608 - ours
        assert rows
        assert created.secret not in str(rows)
        assert created.secret.removeprefix("tenure_") not in str(rows)


@pytest.mark.parametrize(
    "method",
    [
        method
        for method in methods()
        if guard.SCOPES[f"/{method.containing_service.full_name}/{method.name}"] is Scope.ADMIN
    ],
    ids=rpc_name,
)
async def test_audit__every_call_of_an_operator__is_recorded(
    client: Caller, conn: psycopg.Connection, method: Any
) -> None:
    request = message_factory.GetMessageClass(method.input_type)()
    made = client.method(method.containing_service.name, method.name)
    try:
        await made(request, metadata=client.metadata)
        outcome = "OK"
    except grpc.RpcError as error:
        outcome = refusals.of(error).reason
    found = conn.execute("select action, actor, outcome, peer from audit_events").fetchall()
    assert [row[:3] for row in found] == [(method.name, "anonymous", outcome)]
    assert found[0][3].startswith("127.0.0.1:")


async def test_audit__listed__tells_who_did_what_newest_first(make: Make) -> None:
    operator = make()
    for paused in (True, False):
        await operator.registry.SetQueue(
            registry.SetQueueRequest(name="mail", paused=paused), metadata=operator.metadata
        )
    first = await _admin(operator).ListAuditEvents(
        admin.ListAuditEventsRequest(page_size=1), metadata=operator.metadata
    )
    second = await _admin(operator).ListAuditEvents(
        admin.ListAuditEventsRequest(page_size=10, page_token=first.next_page_token),
        metadata=operator.metadata,
    )
    events = [*first.events, *second.events]
    assert [event.action for event in events] == ["SetQueue", "SetQueue"]
    assert events[0].actor.startswith("key:test 0:")
    assert events[0].namespace == "default"
    assert [event.request for event in events] == [
        '{"name": "mail", "paused": false}',
        '{"name": "mail", "paused": true}',
    ]
    assert {event.outcome for event in events} == {"OK"}


@pytest.mark.parametrize(
    "statement",
    ["update audit_events set actor = 'x'", "delete from audit_events", "truncate audit_events"],
)
async def test_audit__changed_by_hand__is_refused(
    client: Caller, conn: psycopg.Connection, statement: str
) -> None:
    await client.registry.SetQueue(registry.SetQueueRequest(name="q"))
    with pytest.raises(psycopg.errors.RestrictViolation):
        conn.execute(statement)
    assert conn.execute("select count(*) from audit_events").fetchone() == (1,)


@pytest.mark.parametrize(
    ("globs", "queue", "allowed"),
    [
        ((), "any", True),
        (("*",), "any", True),
        (("pay*",), "pay", True),
        (("pay*",), "repay", False),
        (("p?y",), "pay", True),
        (("p?y",), "paay", False),
        (("a.b",), "aXb", False),
        (("[ab]",), "a", False),
        (("[ab]",), "[ab]", True),
        (("x", "y*"), "yes\nno", True),
    ],
)
def test_may_use__glob__matches_the_whole_name(
    globs: tuple[str, ...],
    queue: str,
    allowed: bool,  # noqa: FBT001 - a table
) -> None:
    principal = Principal(
        key_id=str(uuid.uuid4()),
        actor="key:k",
        namespace_id=None,
        namespace=None,
        scopes=frozenset(Scope),
        queue_globs=globs,
    )
    assert principal.may_use(queue) is allowed
