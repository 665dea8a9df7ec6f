"""Slots of activations: counted apart from those of tasks, in both directions."""

from tenure.v1 import work_stream_pb2 as stream
from tenure.v1 import worker_pb2 as worker
from tenure_service.dispatch.lanes import Handled
from tenure_service.dispatch.session import Held, Session, Slots
from tenure_service.store.registry import ANY_VERSION
from tenure_service.store.versions import WorkflowHandler
from tests.protocol.caller import Caller
from tests.protocol.raw_worker import RawWorker
from tests.runs import flows
from tests.usecase.stage import Stage

TASKS = Handled(1, "default", "work")
RUNS = Handled(1, "default", "flow", ANY_VERSION)


def kinds(raw: RawWorker) -> tuple[int, int]:
    """How many tasks and activations are out."""
    activations = sum(one.HasField("activation") for one in raw.out.values())
    return len(raw.out) - activations, activations


async def test_assign__worker_full_of_tasks__still_gets_activations(
    client: Caller, stage: Stage
) -> None:
    one = await flows.serve(client, flows.flow(), tasks=["work"], slots=1, activations=3)
    await client.enqueue(count=2)
    await one.tasks(1)
    flows.place(stage, 5)
    await one.until(lambda: kinds(one) == (1, 3))
    await one.nothing_comes(seconds=1.2)
    await one.close()


async def test_assign__worker_full_of_activations__still_gets_tasks(
    client: Caller, stage: Stage
) -> None:
    flows.place(stage, 101)
    one = await flows.serve(client, flows.flow(), tasks=["work"], slots=2, activations=100)
    await one.until(lambda: kinds(one) == (0, 100))
    await client.enqueue(count=3)
    await one.until(lambda: kinds(one) == (2, 100))
    await one.nothing_comes(seconds=1.2)
    # The first that are out are runs: their end makes room for the last one, and for no task.
    await flows.finish(one, 2)
    await one.until(lambda: kinds(one) == (2, 99))
    await one.nothing_comes()
    await one.close()


async def test_assign__bound_of_a_queue__is_for_its_tasks(client: Caller, stage: Stage) -> None:
    one = await flows.serve(
        client,
        flows.flow(),
        tasks=["work"],
        slots=5,
        by_queue={"default": 1},
        activations=4,
    )
    flows.place(stage, 6)
    await one.until(lambda: kinds(one) == (0, 4))
    await client.enqueue(count=3)
    await one.until(lambda: kinds(one) == (1, 4))
    await one.nothing_comes()
    await one.close()


async def test_set_slots__activations__are_granted_and_taken_back(
    client: Caller, stage: Stage
) -> None:
    flows.place(stage, 3)
    one = await flows.serve(client, flows.flow(), slots=5, activations=0)
    await one.nothing_comes(seconds=1.2)
    await one.send(set_slots=stream.SetSlots(slots=worker.Slots(total=0, activations=2)))
    await one.until(lambda: kinds(one) == (0, 2))
    await one.send(set_slots=stream.SetSlots(slots=worker.Slots(total=0, activations=1)))
    await flows.finish(one)
    await one.nothing_comes()
    await flows.finish(one)
    await one.until(lambda: kinds(one) == (0, 1))
    await one.close()


async def test_assign__suspected_run__comes_alone(client: Caller, stage: Stage) -> None:
    """Were it to kill the worker, neither tasks nor other runs would be lost with it."""
    (suspect,) = flows.place(stage, suspect=True)
    flows.place(stage, 2)
    one = await flows.serve(client, flows.flow(), tasks=["work"], slots=5, activations=5)
    assert [given.task_id for given in await one.tasks()] == [suspect]
    await client.enqueue(count=2)
    await one.nothing_comes(seconds=1.2)
    assert kinds(one) == (0, 1)
    await flows.finish(one)
    await one.until(lambda: kinds(one) == (2, 2))
    await one.close()


async def test_set_slots__none_for_runs_any_more__gives_up_waiting_for_a_suspected_one(
    client: Caller, stage: Stage
) -> None:
    """A worker that is kept for a run that it cannot be given would be given nothing for ever."""
    one = await flows.serve(client, flows.flow(), tasks=["work"], slots=3, activations=1)
    await client.enqueue()
    await one.tasks(1)
    flows.place(stage, suspect=True)
    # The server finds the run within a second, and keeps the worker for it.
    await one.nothing_comes(seconds=1.5)
    await client.enqueue()
    await one.nothing_comes()
    await one.send(set_slots=stream.SetSlots(slots=worker.Slots(total=3, activations=0)))
    await one.until(lambda: kinds(one) == (2, 0))
    await one.close()


def new_session(*, total: int = 2, activations: int = 2) -> Session:
    return Session(
        session_id="s",
        epoch=1,
        namespace_id=1,
        worker="w",
        served=[("default", "work")],
        workflows=[WorkflowHandler(queue="default", name="flow", version="v1")],
        slots=Slots(total, {}, activations),
    )


def held(task_id: str, lease_id: str, *, activation: bool) -> Held:
    return Held(lease_id, "token", task_id, task_id, 1, 1, "default", False, activation)


def test_hold__run_out_again_before_its_report_was_seen__takes_one_slot() -> None:
    session = new_session()
    session.hold([held("r", "first", activation=True)], accept_timeout=None)
    session.hold([held("r", "second", activation=True)], accept_timeout=None)
    session.drop_reported("r", "first")
    assert (session.free(RUNS), session.free(TASKS)) == (1, 2)
    session.drop_reported("r", "second")
    assert (session.free(RUNS), session.free(TASKS)) == (2, 2)


def test_receiving__slots_of_one_kind_only__is_so_for_that_kind() -> None:
    runs_only = new_session(total=0)
    assert (runs_only.receiving, runs_only.free(RUNS), runs_only.free(TASKS)) == (True, 2, 0)
    tasks_only = new_session(activations=0)
    assert (tasks_only.receiving, tasks_only.free(RUNS), tasks_only.free(TASKS)) == (True, 0, 2)
    assert not new_session(total=0, activations=0).receiving
