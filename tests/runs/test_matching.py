"""Which worker is given a run, and what it is given with it."""

from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from tenure.v1 import admin_service_pb2 as admin
from tenure.v1 import policy_pb2 as policy
from tenure.v1 import run_pb2 as run
from tenure.v1 import worker_pb2 as worker
from tenure.v1 import worker_service_pb2 as service
from tenure_service.dispatch import history
from tenure_service.engine import limits
from tests.protocol import refusals
from tests.protocol.caller import Caller
from tests.protocol.raw_worker import RawWorker
from tests.runs import flows
from tests.usecase.stage import Stage

_STEPS = b"""
    insert into steps (run_id, step_id, kind, name, output, output_encoding)
    select %s::uuid, i::text, 'CALL', 'reserve', %s, 'json'
    from generate_series(1, %s) as i
    order by i
"""


async def test_assign__run_that_nobody_had__goes_to_any_version(
    client: Caller, stage: Stage
) -> None:
    (run_id,) = flows.place(stage, key="order-1")
    one = await flows.serve(client, flows.flow("v7"))
    (given,) = await one.tasks()
    assert (given.task_id, given.name, given.queue) == (run_id, "flow", "default")
    assert (given.attempt, given.delivery, given.input.data) == (1, 1, b'"in"')
    assert given.HasField("activation")
    assert (given.activation.key, dict(given.activation.attributes)) == (
        "order-1",
        {"order": "A-1"},
    )
    assert (given.activation.version, given.activation.recovery_count) == ("", 0)
    assert (list(given.activation.steps), given.activation.next_page_token) == ([], "")
    age = datetime.now(UTC) - given.activation.created_at.ToDatetime(UTC)
    assert abs(age) < timedelta(minutes=1)
    await one.close()


async def test_assign__run_of_a_version__goes_to_who_has_it_or_goes_on_with_it(
    client: Caller, stage: Stage
) -> None:
    other = await flows.serve(client, flows.flow("v2"))
    (first,) = flows.place(stage, version="v1")
    await other.nothing_comes(seconds=1.5)
    same = await flows.serve(client, flows.flow("v1"))
    (given,) = await same.tasks()
    assert (given.task_id, given.activation.version) == (first, "v1")
    await flows.finish(same)
    await same.close()
    (second,) = flows.place(stage, version="v1")
    later = await flows.serve(client, flows.flow("v3", compatible_versions=["v0", "v1"]))
    assert [one.task_id for one in await later.tasks()] == [second]
    assert not other.assigned
    await later.close()
    await other.close()


async def test_assign__task_and_workflow_of_one_name__each_goes_to_its_handler(
    client: Caller, stage: Stage
) -> None:
    (run_id,) = flows.place(stage, name="both")
    (task_id,) = await client.enqueue("both")
    tasks = await RawWorker.open(client, "both", slots=5)
    assert [one.task_id for one in await tasks.tasks()] == [task_id]
    await tasks.nothing_comes(seconds=1.2)
    flow = await flows.serve(client, flows.flow(name="both"), slots=5)
    assert [one.task_id for one in await flow.tasks()] == [run_id]
    (task_id,) = await client.enqueue("both")
    await tasks.tasks(2)
    assert len(flow.assigned) == 1
    await tasks.close()
    await flow.close()


async def test_lease__handler_of_a_workflow__is_refused_and_runs_stay(
    client: Caller, stage: Stage
) -> None:
    flows.place(stage)
    request = service.LeaseTasksRequest(
        worker=worker.WorkerIdentity(name="poller"), handlers=[flows.flow()], task_count_max=1
    )
    refused = await refusals.refused(client.work.LeaseTasks(request))
    assert (refused.reason, refused.fields) == ("FIELD_INVALID", ("handlers[0].kind",))
    assert not (await client.lease("flow", count=10)).assignments
    assert len(flows.waiting(stage)) == 1


async def test_assign__recorded_steps__come_in_order_as_many_as_fit(
    client: Caller, stage: Stage
) -> None:
    (run_id,) = flows.place(stage, version="v1")
    size = limits.ACTIVATION_STEPS_BYTES // 4
    with stage.connect() as conn:
        conn.execute(_STEPS, [run_id, b"s" * size, 6])
    one = await flows.serve(client, flows.flow("v1"))
    (given,) = await one.tasks()
    found = given.activation.steps
    assert [step.step_id for step in found] == [str(number + 1) for number in range(len(found))]
    assert 2 < len(found) < 6
    assert {(step.kind, step.name, step.output.encoding) for step in found} == {
        (run.STEP_KIND_CALL, "reserve", "json")
    }
    assert sum(len(step.output.data) for step in found) <= limits.ACTIVATION_STEPS_BYTES
    assert history.page_token_parse(given.activation.next_page_token)
    await one.close()


async def test_open__resumed_with_an_activation__counts_it_as_one(
    client: Caller, stage: Stage
) -> None:
    flows.place(stage)
    message = flows.open_message([flows.flow()], tasks=["work"], activations=1)
    first = await flows.go_on(client, message)
    await first.tasks()
    await first.accept()
    await first.cut()
    message.resume.session_id = first.opened.session_id
    message.resume.session_secret = first.opened.session_secret
    message.resume.lease_tokens.append(first.token)
    again = await flows.go_on(client, message)
    assert again.opened.resumed
    flows.place(stage)
    (task_id,) = await client.enqueue()
    assert [one.task_id for one in await again.tasks()] == [task_id]
    await again.nothing_comes(seconds=1.2)
    again.out = first.out
    await flows.finish(again)
    await again.tasks(2)
    await again.close()


async def test_list_workers__workflow__shows_its_version(client: Caller, stage: Stage) -> None:
    del stage
    declared = flows.flow("v1", queue="q", compatible_versions=["v0"], pinned=True)
    one = await flows.serve(client, declared, tasks=["work"], activations=7)
    (shown,) = (await client.admin.ListWorkers(admin.ListWorkersRequest())).workers
    assert [*shown.handlers] == [worker.Handler(name="work", queue="default"), declared]
    assert (shown.slots.total, shown.slots.activations) == (1, 7)
    await one.close()


UNKNOWN_KIND: Any = 9
REFUSED: dict[str, tuple[worker.Handler, str]] = {
    "no version": (flows.flow(""), "version"),
    "any version": (flows.flow("*"), "version"),
    "a long version": (flows.flow("v" * 101), "version"),
    "any compatible version": (flows.flow(compatible_versions=["*"]), "compatible_versions[0]"),
    "many versions": (flows.flow(compatible_versions=map(str, range(101))), "compatible_versions"),
    "a policy": (flows.flow(policy=policy.TaskPolicy()), "policy"),
    "an unknown kind": (worker.Handler(name="x", kind=UNKNOWN_KIND), "kind"),
    "a task's version": (worker.Handler(name="x", version="v1"), "version"),
    "a pinned task": (worker.Handler(name="x", pinned=True), "pinned"),
}


@pytest.mark.parametrize("case", REFUSED)
async def test_open__workflow_that_cannot_be__is_refused(client: Caller, case: str) -> None:
    handler, field = REFUSED[case]
    raw = RawWorker(client)
    await raw.send(open=flows.open_message([handler]))
    refused = await raw.ended()
    assert refused is not None
    assert (refused.reason, refused.fields) == ("FIELD_INVALID", (f"open.handlers[0].{field}",))


async def test_open__two_versions_of_a_workflow__is_refused(client: Caller) -> None:
    raw = RawWorker(client)
    await raw.send(open=flows.open_message([flows.flow("v1"), flows.flow("v2")]))
    refused = await raw.ended()
    assert refused is not None
    assert refused.fields == ("open.handlers[1].name",)
