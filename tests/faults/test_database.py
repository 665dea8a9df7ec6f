"""PostgreSQL stopped, killed, read-only, or with its connections cut, under working servers."""

import asyncio
import contextlib
import time
import uuid
from collections import Counter
from collections.abc import AsyncIterator, Iterator

import grpc
import psycopg
import pytest
import pytest_asyncio
from psycopg import conninfo

from tenure import App, AsyncClient, Worker, current_task
from tenure.v1 import payload_pb2 as payload
from tenure_service.embedded import EmbeddedPostgres
from tenure_service.main import Server
from tests.eventually import eventually
from tests.faults.conftest import StartServer
from tests.faults.processes import LONG, Troupe, by_hand
from tests.protocol import refusals
from tests.protocol.caller import Caller

#: Longer than the pool tries; its pauses double meanwhile. The field case asks for recovery within 30.
AWAY_SECONDS = 20.0 if LONG else 3.7
RECOVERY_SECONDS = 5.0


@pytest_asyncio.fixture
async def frail_server(frail: str, start_server: StartServer) -> Server:
    made = await start_server(frail)
    made._database._pool.timeout = 1.0  # a call that is refused waits as long
    return made


@pytest_asyncio.fixture
async def frail_client(frail_server: Server) -> AsyncIterator[Caller]:
    opened = Caller(frail_server.address)
    yield opened
    await opened.close()


@pytest.fixture
def admin(own_postgres: EmbeddedPostgres) -> Iterator[psycopg.Connection]:
    with psycopg.connect(own_postgres.dsn("postgres"), autocommit=True) as opened:
        yield opened


class Producer:
    """Enqueues one task after another; each is asked for again until it is stored."""

    def __init__(self, client: Caller) -> None:
        self.client = client
        self.ids: list[str] = []
        self.refused: Counter[str] = Counter()
        self._stop = asyncio.Event()
        self._request_id = str(uuid.uuid4())

    @contextlib.asynccontextmanager
    async def working(self) -> AsyncIterator[None]:
        """Enqueues while the block runs."""
        run = asyncio.create_task(self._run())
        try:
            yield
        finally:
            self._stop.set()
            await run

    async def _run(self) -> None:
        while not self._stop.is_set():
            try:
                self.ids += await note(self.client, self._request_id)
                self._request_id = str(uuid.uuid4())
            except grpc.RpcError as error:
                self.refused[refusals.of(error).reason] += 1
            await asyncio.sleep(0.01)  # tidy: the pace of the load


async def note(client: Caller, request_id: str) -> list[str]:
    """Asks for one task."""
    empty = payload.Payload(data=b"{}")
    return await client.enqueue("note", request_id=request_id, input=empty)


def noting(address: str) -> tuple[App, Counter[str]]:
    """Gives an app that counts how often each of its tasks ran."""
    app = App("faults", address)
    runs: Counter[str] = Counter()

    @app.task
    def note() -> None:
        runs[current_task().id] += 1

    return app, runs


async def until_over(client: AsyncClient, ids: list[str]) -> None:
    """Waits until all tasks are over."""
    left = set(ids)
    give_up_at = time.monotonic() + 40
    while left and time.monotonic() < give_up_at:
        left -= set(await client.await_tasks(sorted(left), 5))
    assert not left


def one_end_each(dsn: str, ids: list[str]) -> None:
    """Looks that each task was completed, once."""
    with psycopg.connect(dsn, options="-c search_path=tenure") as conn:
        found = conn.execute(
            "select task_id::text, count(*) filter (where final and outcome = 'DONE') "
            "from deliveries group by task_id"
        ).fetchall()
    assert {task_id: count for task_id, count in found if count} == dict.fromkeys(ids, 1)


async def becomes(client: Caller, *, healthy: bool, seconds: float = 12.0) -> None:
    """Waits until the health of a server is so."""
    async with asyncio.timeout(seconds):
        while await client.healthy() != healthy:  # noqa: ASYNC110 - no event
            await asyncio.sleep(0.05)  # tidy: polls the server, bounded


async def test_stop__longer_than_the_pool_tries__serves_again_without_a_restart(
    own_postgres: EmbeddedPostgres, frail_server: Server, frail_client: Caller, frail: str
) -> None:
    app, runs = noting(frail_server.address)
    before = await frail_client.enqueue("unserved", count=3)
    request_id = str(uuid.uuid4())
    assert frail_server._database._pool.reconnect_timeout < min(AWAY_SECONDS, RECOVERY_SECONDS)
    await asyncio.to_thread(own_postgres.stop, "immediate")
    try:
        gone_at = time.monotonic()
        reasons: set[str] = set()
        while time.monotonic() - gone_at < AWAY_SECONDS:
            with pytest.raises(grpc.RpcError) as refused:
                await note(frail_client, request_id)
            reasons.add(refusals.of(refused.value).reason)
        assert reasons == {"DATABASE_UNAVAILABLE"}
        await becomes(frail_client, healthy=False)
    finally:
        await asyncio.to_thread(own_postgres.restart)
    began = time.monotonic()
    ids: list[str] = []
    while not ids:
        with contextlib.suppress(grpc.RpcError):
            ids = await note(frail_client, request_id)
        assert time.monotonic() - began < RECOVERY_SECONDS
    await becomes(frail_client, healthy=True)
    async with Worker(app):
        await until_over(AsyncClient(frail_server.address), ids)
    assert runs == Counter(ids)
    assert [await frail_client.state(one) for one in before] == ["READY"] * 3
    one_end_each(frail, ids)


async def test_stop__longer_than_the_leases_of_what_ends_meanwhile__runs_nothing_again(
    own_postgres: EmbeddedPostgres, frail: str, start_server: StartServer
) -> None:
    durations = {"lease_seconds": 3.0, "first_lease_seconds": 3.0, "heartbeat_seconds": 1.0}
    server = await start_server(frail, **durations)
    app = App("faults", server.address)
    started: Counter[str] = Counter()

    @app.task
    async def nap() -> None:
        started[current_task().id] += 1
        await asyncio.sleep(1.0)  # tidy: it ends while PostgreSQL is away

    async with Worker(app):
        handles = await nap.aenqueue_many(() for _ in range(8))
        assert await asyncio.to_thread(eventually, lambda: len(started) == 8)
        await asyncio.to_thread(own_postgres.stop, "immediate")
        try:
            await asyncio.sleep(5.0)  # tidy: past every lease
        finally:
            await asyncio.to_thread(own_postgres.restart)
        ids = [handle.id for handle in handles]
        await until_over(AsyncClient(server.address), ids)
    assert started == Counter(ids)
    one_end_each(frail, ids)


async def test_demote__under_load__refuses_tells_and_recovers(
    admin: psycopg.Connection, frail_server: Server, frail_client: Caller, frail: str
) -> None:
    app, runs = noting(frail_server.address)
    producer = Producer(frail_client)
    async with Worker(app):
        async with producer.working():
            await asyncio.to_thread(eventually, lambda: len(runs) > 20)
            admin.execute("alter system set default_transaction_read_only = on")
            admin.execute("select pg_reload_conf()")
            try:
                await becomes(frail_client, healthy=False)
                assert await asyncio.to_thread(eventually, lambda: producer.refused)
            finally:
                admin.execute("set default_transaction_read_only = off")
                admin.execute("alter system reset default_transaction_read_only")
                admin.execute("select pg_reload_conf()")
            stored = len(producer.ids)
            await becomes(frail_client, healthy=True)
            assert await asyncio.to_thread(eventually, lambda: len(producer.ids) > stored + 20)
        await until_over(AsyncClient(frail_server.address), producer.ids)
    assert set(producer.refused) == {"DATABASE_UNAVAILABLE"}
    assert set(runs) == set(producer.ids)
    one_end_each(frail, producer.ids)


@by_hand
async def test_terminate__every_connection_again_and_again__loses_nothing(
    admin: psycopg.Connection, frail_server: Server, frail_client: Caller, frail: str
) -> None:
    app, runs = noting(frail_server.address)
    name = conninfo.conninfo_to_dict(frail)["dbname"]
    producer = Producer(frail_client)
    ended: Counter[str] = Counter()
    async with Worker(app):
        async with producer.working():
            for round_number in range(1, 6):
                rows = admin.execute(
                    "select application_name, pg_terminate_backend(pid) from pg_stat_activity "
                    "where datname = %s and backend_type = 'client backend'",
                    [name],
                ).fetchall()
                ended.update(kind for kind, _ in rows)
                assert await asyncio.to_thread(
                    eventually, lambda least=round_number * 15: len(runs) >= least
                )
        await until_over(AsyncClient(frail_server.address), producer.ids)
    assert set(ended) == {"tenure server", "tenure listen", "tenure notify"}
    assert set(producer.refused) <= {"DATABASE_UNAVAILABLE"}
    one_end_each(frail, producer.ids)


@by_hand
async def test_kill__postgres_while_leases_of_a_dead_worker_run_out__all_are_done(
    own_postgres: EmbeddedPostgres,
    frail_server: Server,
    frail_client: Caller,
    frail: str,
    troupe: Troupe,
) -> None:
    dead = troupe.worker(frail_server.address, "dead", 250, FAULT_FACTOR="1000")
    data = b'{"seconds": 0.02}'
    ids = await frail_client.enqueue("once", 250, input=payload.Payload(data=data))
    assert await asyncio.to_thread(
        eventually, lambda: len(troupe.lines("start")) == 250, seconds=30
    )
    dead.kill()
    with psycopg.connect(frail, autocommit=True, options="-c search_path=tenure") as conn:
        oldest = b"select coalesce(min(expires_at) < now() + interval '0.1 s', true) from leases"
        assert await asyncio.to_thread(
            eventually, lambda: conn.execute(oldest).fetchone() == (True,)
        )
    await asyncio.to_thread(own_postgres.stop, "immediate")
    await asyncio.to_thread(own_postgres.restart)
    troupe.worker(frail_server.address, "next", 50)
    await until_over(AsyncClient(frail_server.address), ids)
    one_end_each(frail, ids)
    assert set(troupe.counts("end").values()) == {1}


async def test_take_over__other_numbers_of_lanes__tasks_stay_in_their_queues(
    frail_server: Server, frail_client: Caller, own_postgres: EmbeddedPostgres, frail: str
) -> None:
    """A standby that took over without the last commits: what it lacks is numbered anew."""
    await frail_client.enqueue("first", queue="a")
    await frail_client.enqueue("second", queue="b")
    # The server that took over has the two lanes the other way round.
    with psycopg.connect(frail, autocommit=True, options="-c search_path=tenure") as conn:
        conn.execute("truncate tasks, ready_tasks, lanes")
        own_postgres.kill()
        own_postgres.restart()
    with psycopg.connect(frail, autocommit=True, options="-c search_path=tenure") as conn:
        conn.execute(
            "insert into lanes (lane_id, namespace_id, queue, name) overriding system value "
            "values (1, 1, 'b', 'second'), (2, 1, 'a', 'first')"
        )
    refused = 0
    while refused < 50:
        try:
            await frail_client.enqueue("first", queue="a")
            break
        except grpc.RpcError:
            refused += 1
    (item,) = (await frail_client.lease("a/first", "b/second", wait_seconds=10)).assignments
    assert (item.queue, item.name) == ("a", "first")
    assert not (await frail_client.lease("b/second")).assignments
