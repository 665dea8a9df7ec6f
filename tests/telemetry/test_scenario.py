"""A day in the life of two servers, after which every measure has moved."""

import asyncio
from collections.abc import AsyncIterator, Callable
from typing import Any

import grpc
import psycopg
import pytest
import pytest_asyncio

from tenure.v1 import admin_service_pb2 as admin
from tenure.v1 import policy_pb2 as policy
from tenure.v1 import run_pb2 as run
from tenure.v1 import work_stream_pb2 as stream
from tenure.v1 import worker_pb2 as worker
from tenure.v1 import workflow_service_pb2 as workflows
from tenure_service.engine.access import ANYBODY, Scope
from tenure_service.main import Server
from tenure_service.store.database import Conn, Database
from tenure_service.telemetry import metrics
from tenure_service.telemetry.instruments import Instrument, Kind
from tests.eventually import eventually_async
from tests.fix_server import server_config
from tests.protocol import caller
from tests.protocol.caller import Caller
from tests.protocol.raw_worker import RawWorker
from tests.runs.run_worker import RunWorker
from tests.runs.test_waits import child_ids, task
from tests.store.test_commits import Cutter, Work
from tests.telemetry import readings


@pytest_asyncio.fixture
async def servers(database: str) -> AsyncIterator[list[Server]]:
    """Three servers on one database; the third requires keys."""
    quick = server_config(database, accept_seconds=0.5)
    found = [Server(quick), Server(quick), Server(server_config(database, require_keys=True))]
    for one in found:
        await one.start()
    yield found
    for one in found:
        await one.stop()


@pytest_asyncio.fixture
async def clients(servers: list[Server]) -> AsyncIterator[list[Caller]]:
    found = [Caller(one.address) for one in servers]
    yield found
    for one in found:
        await one.close()


def soon_retried(**timeouts: Any) -> policy.TaskPolicy:
    """A policy of two attempts without a pause, and of a limit."""
    retry = policy.RetryPolicy(max_attempts=2, initial_delay=caller.seconds(0.01))
    return policy.TaskPolicy(retry=retry, **timeouts)


async def produce(first: Caller, second: Caller) -> None:
    """Enqueues, finds again, delays, cancels."""
    await first.enqueue("nobody", key="k")
    await first.enqueue("nobody", key="k")
    await first.enqueue("nobody", delay=caller.seconds(0.05))
    (waiting,) = await first.enqueue("nobody")
    await second.cancel(waiting)


async def work(first: Caller) -> None:
    """Has a worker end tasks in every way, over one stream."""
    raw = await RawWorker.open(first, "work", slots=20)
    await first.enqueue("work", 5, policy=soon_retried())
    tasks = list(await raw.tasks(5))
    await raw.accept()
    started = [
        stream.StartedTask(task_id=one.task_id, lease_token=one.lease_token) for one in tasks
    ]
    await raw.send(started=stream.Started(tasks=started))
    assert not (await raw.beat(*{one.lease_token for one in tasks})).lost_lease_tokens
    await raw.send(set_slots=stream.SetSlots(slots=worker.Slots(total=21)))
    done, broken, back, again, wrong = tasks
    assert await raw.report(caller.completed(done)) == ["RECORDED"]
    assert await raw.report(caller.completed(done)) == ["ALREADY_RECORDED"]
    await raw.report(caller.failed(broken))
    await raw.report(caller.released(back), caller.rescheduled(again, 3600))
    await raw.report(caller.failed(wrong, non_retryable=True))
    nothing = worker.Result(task_id=done.task_id, lease_token=done.lease_token)
    assert await raw.report(nothing) == ["REFUSED"]
    assert await raw.report(caller.completed(broken)) == ["LEASE_LOST"]
    await raw.tasks(7)
    await raw.accept()
    await raw.send(pause=stream.Pause(paused=True))
    resumed = await RawWorker.open(first, "work", resume=raw, holding=[*_tokens(raw)])
    await resumed.close()
    dead = admin.ReplayDeadLettersRequest(task_ids=[wrong.task_id])
    await first.admin.ReplayDeadLetters(dead)


def _tokens(raw: RawWorker) -> set[str]:
    return {one.lease_token for one in raw.out.values()}


async def run_a_workflow(first: Caller) -> None:
    """Has a run enqueue a task, and wait for it."""
    await first.workflow.StartRuns(workflows.StartRunsRequest(runs=[run.NewRun(name="flow")]))
    raw = await RunWorker.open(first, "counted")
    one = await raw.activation()
    (child_id,) = child_ids(await raw.record(one, task("1", "counted")))
    await raw.wait_for(one, child_id)
    await raw.until(lambda: any(not each.HasField("activation") for each in raw.out.values()))
    (counted,) = [each for each in raw.out.values() if not each.HasField("activation")]
    await raw.report(caller.completed(counted))
    await raw.until(lambda: child_id in raw.children)
    await raw.report(caller.completed(one))
    await raw.close()


async def discard(first: Caller) -> None:
    """Has a task die, and its letter dealt with."""
    raw = await RawWorker.open(first, "mortal")
    (task_id,) = await first.enqueue("mortal")
    (task,) = await raw.tasks()
    await raw.report(caller.failed(task, non_retryable=True))
    await first.admin.DiscardDeadLetters(admin.DiscardDeadLettersRequest(task_ids=[task_id]))
    await raw.close()


async def run_out_of_time(first: Caller, raised: Callable[[Instrument], float]) -> None:
    """Lets time run out: of a task that nobody takes, and of one that nobody accepts."""
    limits = policy.TimeoutPolicy(schedule_to_start=policy.Timeout(after=caller.seconds(0.2)))
    await first.enqueue("nobody", policy=soon_retried(timeouts=limits))
    silent = await RawWorker.open(first, "unheard")
    await first.enqueue("unheard")
    await silent.tasks()
    for instrument in (
        metrics.TIMERS_FIRED,
        metrics.TASKS_TIMED_OUT,
        metrics.LEASES_UNACCEPTED,
        metrics.TASKS_LOST,
    ):
        assert await eventually_async(lambda one=instrument: raised(one) > 0), instrument.name  # type: ignore[misc]
    await silent.cut()


async def refuse(server: Server, client: Caller) -> None:
    """Calls without a key, and with one that may not."""
    assert server._hub is not None
    _, secret = await asyncio.to_thread(
        server._hub.keys.create,
        ANYBODY,
        namespace_id=None,
        name="workers",
        scopes=[Scope.WORKER],
        queue_globs=(),
        lifetime=None,
    )
    for metadata, code in (
        ((), grpc.StatusCode.UNAUTHENTICATED),
        ((("authorization", f"Bearer {secret}"),), grpc.StatusCode.PERMISSION_DENIED),
    ):
        client.metadata = metadata
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await client.enqueue("work")
        assert caught.value.code() is code


def trouble_the_database(dsn: str) -> None:
    """Meets a deadlock once, and has a commit cut off."""
    met: list[int] = []

    def meet(_conn: Conn) -> None:
        met.append(1)
        if len(met) == 1:
            raise psycopg.errors.DeadlockDetected

    cutter = Cutter(dsn)
    pool = Database(cutter.dsn, schema="tenure", connection_count=2, name="cut")
    try:
        pool.open()
        pool.transact(lambda conn: conn.execute("create table public.marks (number integer)"))
        pool.transact(meet)
        assert pool.transact(Work(cutter, "before")) == 2
    finally:
        pool.close()
        cutter.close()


def break_listening(dsn: str) -> None:
    """Ends the connections that listen: their loops fail, and start again."""
    with psycopg.connect(dsn, autocommit=True) as conn:
        conn.execute(
            "select pg_terminate_backend(pid) from pg_stat_activity"
            " where datname = current_database() and query ilike 'listen%'"
        )


async def test_count__a_day_of_two_servers__every_measure_has_moved(
    servers: list[Server], clients: list[Caller], database: str
) -> None:
    before = readings.counts()
    # Other tests of this process send what no worker would.
    outside = readings.labels_outside()

    def raised(instrument: Instrument) -> float:
        return readings.risen(before, instrument)

    first, second, locked = clients
    await produce(first, second)
    await work(first)
    await run_a_workflow(first)
    await discard(first)
    await run_out_of_time(first, raised)
    await refuse(servers[2], locked)
    await asyncio.to_thread(trouble_the_database, database)
    await asyncio.to_thread(break_listening, database)
    assert await eventually_async(lambda: raised(metrics.LOOP_FAILURES) > 0)

    unmoved = [
        name
        for name, instrument in metrics.REGISTRY.instruments.items()
        if instrument.kind is not Kind.GAUGE and raised(instrument) <= 0
    ]
    assert unmoved == []
    assert readings.labels_outside() == outside
    for instrument, values in (
        *((metrics.REPORTS, (status,)) for status in metrics.STATUSES),
        *((metrics.CALLS_REFUSED, (reason,)) for reason in metrics.REFUSALS),
        (metrics.TASKS_DEAD_LETTERED, ("NON_RETRYABLE",)),
        (metrics.TASKS_TIMED_OUT, ("schedule_to_start",)),
        (metrics.TRANSACTIONS_RETRIED, ("deadlock",)),
        (metrics.TRANSACTIONS_RETRIED, ("commit",)),
        (metrics.COMMITS_UNANSWERED, ("aborted",)),
        (metrics.RPC_SECONDS, ("EnqueueTasks", "OK")),
        (metrics.RPC_SECONDS, ("EnqueueTasks", "PERMISSION_DENIED")),
        (metrics.TASK_RUN, ("DONE",)),
        *((metrics.MESSAGES_RECEIVED, (kind,)) for kind in metrics.RECEIVED),
    ):
        assert readings.risen(before, instrument, *values) > 0, (instrument.name, values)
    # Counted once, by the server that committed it.
    assert readings.risen(before, metrics.TASKS_EXISTING) == 1
    assert readings.risen(before, metrics.TASKS_REPLAYED) == 1
    assert readings.risen(before, metrics.TASKS_DISCARDED) == 1
    assert readings.risen(before, metrics.TASKS_RESCHEDULED) == 1
    assert readings.risen(before, metrics.TASKS_CANCELLED) == 1
    # A task, a task of a run, and the run.
    assert readings.risen(before, metrics.TASKS_COMPLETED) == 3
