"""What the commands tell of tasks, workers and names that stand in some special way."""

import asyncio
import contextlib
import json
import threading
from collections.abc import AsyncIterator

import psycopg
import pytest_asyncio

from tenure import App, AsyncClient, Client, NewTask, TaskState, Worker, current_task
from tests.cli.command import Done, run, run_here
from tests.eventually import eventually
from tests.fix_server import RunningServer


class Shop:
    """A worker with one slot whose handler goes on until it is let go."""

    def __init__(self, server: RunningServer) -> None:
        self.server = server
        self.app = App("shop", address=server.address)
        self.begun = threading.Event()
        self.let_go = threading.Event()
        self.app.task(name="pack")(self._pack)

    def _pack(self) -> None:
        current_task().heartbeat({"packed": 3})
        self.begun.set()
        assert self.let_go.wait(20)

    async def ask(self, *words: str) -> Done:
        return await run_here(*words, "--address", self.server.address)

    async def enqueue(self, *words: str) -> str:
        done = await self.ask("task", "enqueue", *words)
        assert done.code == 0, done.err
        return done.out.strip()

    @contextlib.asynccontextmanager
    async def working(self) -> AsyncIterator[None]:
        worker = Worker(self.app, concurrency=1, name="w1")
        await asyncio.to_thread(worker.start)
        client = Client(self.server.address)
        try:
            assert await asyncio.to_thread(
                eventually, lambda: [x.name for x in client.list_workers() if x.receiving] == ["w1"]
            )
            yield
        finally:
            self.let_go.set()
            await asyncio.to_thread(worker.close, 5)


@pytest_asyncio.fixture
async def shop(server: RunningServer) -> Shop:
    return Shop(server)


async def test_get__handler_runs__shows_since_when_and_its_progress(shop: Shop) -> None:
    async with shop.working():
        task_id = await shop.enqueue("pack")
        assert await asyncio.to_thread(eventually, shop.begun.is_set)

        def told() -> bool:
            # The handler's start and its progress travel apart.
            task = Client(shop.server.address).get_task(task_id).task
            return task.state is TaskState.RUNNING and task.details is not None

        assert await asyncio.to_thread(eventually, told, seconds=20)
        lines = (await shop.ask("task", "get", task_id)).out.splitlines()
        facts = {line.split()[0]: line for line in lines}
        assert facts["state"].split() == ["state", "RUNNING"]
        assert "started" in facts
        assert '{"packed": 3} (at 2' in facts["progress"]
        listed = json.loads((await shop.ask("task", "list", "--json")).out)
        assert [(each["started_at"] is None, each["details"]) for each in listed] == [(False, None)]
        cancelled = await shop.ask("task", "cancel", task_id, "--grace", "5m")
        assert cancelled.code == 0, cancelled.err
        with psycopg.connect(shop.server.dsn) as conn:
            asked = "select extract(epoch from deadline_at - now()) from tenure.cancel_requests"
            row = conn.execute(asked).fetchone()
        assert row is not None
        assert 200 < row[0] <= 300
    over = json.loads((await shop.ask("task", "get", task_id, "--json")).out)["task"]
    assert (over["started_at"], over["details"]) == (None, None)


async def test_why__every_slot_is_taken__says_so_before_the_tasks_ahead(shop: Shop) -> None:
    async with shop.working():
        await shop.enqueue("pack")
        assert await asyncio.to_thread(eventually, shop.begun.is_set)
        following, last = await shop.enqueue("pack"), await shop.enqueue("pack")
        why = (await shop.ask("task", "why", following)).out.splitlines()
        full = "  All 1 worker(s) that serve it are full: none has a free slot."
        assert why == ["READY", full, "  It is next in its lane."]
        why = (await shop.ask("task", "why", last)).out.splitlines()
        assert why == ["READY", full, "  1 task(s) stand before it in its lane."]


async def test_why__served_on_another_queue__names_worker_and_queue(shop: Shop) -> None:
    async with shop.working():
        why = (await shop.ask("task", "why", await shop.enqueue("pack", "--queue", "mial"))).out
        assert (
            "No worker serves 'pack' on queue 'mial' now; worker 'w1' serves it on queue 'default'."
        ) in why


async def test_why__only_an_operator_named_it__is_not_registered(shop: Shop) -> None:
    done = await shop.ask("policy", "set", "pakc", "--max-attempts", "2")
    assert "no worker has registered a task named 'pakc' yet" in done.err
    why = (await shop.ask("task", "why", await shop.enqueue("pakc"))).out
    assert "No worker ever registered a task named 'pakc'" in why


async def test_policy_and_pause__name_in_use__have_no_remark(shop: Shop) -> None:
    async with shop.working():
        done = await shop.ask("policy", "set", "pack", "--max-attempts", "2")
        assert (done.code, done.err) == (0, "")
        done = await shop.ask("queue", "pause", "default")
        assert (done.code, done.err) == (0, "")


async def test_pause__name_nobody_used__is_done_with_a_remark(shop: Shop) -> None:
    done = await shop.ask("queue", "pause", "mial")
    assert done.code == 0
    assert "mial is paused since" in done.out
    assert "nobody has used a queue of the name 'mial' yet" in done.err


async def test_list__no_state__shows_all_newest_first(shop: Shop) -> None:
    ids = [
        await shop.enqueue("pack", "--delay", "1h"),
        await shop.enqueue("pack"),
        await shop.enqueue("pack", "--queue", "mail"),
    ]
    await shop.ask("task", "cancel", ids[1])
    tasks = json.loads((await shop.ask("task", "list", "--json")).out)
    assert [(each["id"], each["state"]) for each in tasks] == [
        (ids[2], "READY"),
        (ids[1], "CANCELLED"),
        (ids[0], "DELAYED"),
    ]
    assert all(each["ready_at"] is not None for each in tasks if each["state"] != "CANCELLED")
    some = await shop.ask("task", "list", "--limit", "2")
    assert [line.split()[0] for line in some.out.splitlines()[1:]] == [ids[2], ids[1]]
    assert "these are the newest 2" in some.err
    of_queue = json.loads((await shop.ask("task", "list", "--queue", "mail", "--json")).out)
    assert [each["id"] for each in of_queue] == [ids[2]]


async def test_enqueue__policy_flags__are_the_policy_of_the_task(shop: Shop) -> None:
    flags = ("--max-attempts", "8", "--start-to-close", "30s", "--total", "1h")
    task_id = await shop.enqueue("pack", *flags)
    policy = json.loads((await shop.ask("task", "get", task_id, "--json")).out)["task"]["policy"]
    assert policy["retry"]["max_attempts"] == 8
    assert policy["timeouts"]["start_to_close"]["after"] == 30
    assert policy["timeouts"]["total"]["after"] == 3600
    refused = await shop.ask("task", "enqueue", "pack", "--max-attempts", "1001")
    assert refused.code == 2


async def test_list_workers__silent_for_a_minute__is_gone_unless_it_renews(shop: Shop) -> None:
    with psycopg.connect(shop.server.dsn) as conn:
        conn.execute("set search_path = tenure")
        conn.execute(
            "insert into workers (namespace_id, name, sdk, sdk_version)"
            " values (1, 'w2', 'go', '1'), (1, 'w3', 'go', '1')"
        )
        conn.execute(
            "insert into sessions (namespace_id, worker, secret_hash, handlers, slots, seen_at)"
            " select 1, w.name, '', '[]', '{}', now() - interval '61 seconds'"
            " from (values ('w2'), ('w3')) as w (name)"
        )
        conn.execute("insert into lanes (namespace_id, queue, name) values (1, 'default', 'x')")
        conn.execute(
            "insert into leases (session_id, expires_at, namespace_id, lane_id, remaining, secret,"
            " run_ids, task_ids, seqs, attempts, deliveries, ranks, lost_counts)"
            " select s.session_id, now() + interval '1 hour', 1, l.lane_id, 1, '', array[i.id],"
            " array[i.id], array[1], array[1], array[1], array[0], array[0]"
            " from sessions as s, lanes as l, (select uuidv7() as id) as i where s.worker = 'w3'"
        )
    async with shop.working():
        head, *lines = (await shop.ask("worker", "list")).out.splitlines()
        assert "LAST SEEN" in head
        assert {line.split()[0]: line.split()[3] for line in lines} == {
            "w1": "yes",
            "w2": "gone",
            "w3": "no",
        }
    with psycopg.connect(shop.server.dsn) as conn:
        conn.execute("delete from tenure.leases")


async def test_replay__same_id_twice__is_one_task(shop: Shop) -> None:
    task_id = await shop.enqueue("pack", "--delay", "1h")
    done = await shop.ask("dead-letter", "replay", task_id, task_id)
    assert (done.code, done.out) == (1, "replayed 0 of 1\n")


async def test_get__enqueued_in_a_trace__tells_its_id(shop: Shop) -> None:
    trace_id = "0af7651916cd43dd8448eb211c80319c"
    traced = NewTask(name="pack", traceparent=f"00-{trace_id}-b7ad6b7169203331-01")
    task_id = (await AsyncClient(shop.server.address).enqueue(traced)).id
    shown = (await shop.ask("task", "get", task_id)).out
    assert f"trace     {trace_id}" in shown
    told = json.loads((await shop.ask("task", "get", task_id, "--json")).out)["task"]
    assert (told["trace_id"], told["traceparent"]) == (trace_id, traced.traceparent)
    # Without a trace, unless something of this process has set up tracing for all of it.
    other = await shop.enqueue("pack")
    told = json.loads((await shop.ask("task", "get", other, "--json")).out)["task"]
    shown = (await shop.ask("task", "get", other)).out
    assert ("\ntrace " in shown) == bool(told["traceparent"])


async def test_list_queues__worker_and_nothing_to_do__shows_what_it_serves(shop: Shop) -> None:
    empty = await shop.ask("queue", "list")
    assert (empty.out, "no worker serves one" in empty.err) == ("", True)
    async with shop.working():
        done = await shop.ask("queue", "list")
        (_, line) = done.out.splitlines()
        assert line.split() == ["default", "pack", "0", "0", "0", "0", "1", "-", "-"]
        told = json.loads((await shop.ask("queue", "list", "--json")).out)
        assert [(each["name"], each["worker_count"]) for each in told["statistics"]] == [
            ("pack", 1)
        ]


async def test_audit__filters__reads_are_left_out_until_asked_for(shop: Shop) -> None:
    async def actions(*words: str) -> list[str]:
        done = await shop.ask("audit", "--json", *words)
        assert done.code == 0, done.err
        return [each["action"] for each in json.loads(done.out)["events"]]

    await shop.ask("queue", "pause", "mail")
    await shop.ask("namespace", "create", "No Name")
    assert await actions() == ["CreateNamespace", "SetQueue"]
    assert {"SetQueue", "ListAuditEvents"} <= set(await actions("--all"))
    assert await actions("--refused") == ["CreateNamespace"]
    assert len(await actions("--operation", "ListAuditEvents")) == 3
    assert await actions("--principal", "anonymous", "--limit", "1") == ["CreateNamespace"]
    assert await actions("--key", "nobody") == []
    assert await actions("--since", "1h") == ["CreateNamespace", "SetQueue"]
    assert await actions("--since", "2999-01-01") == []
    assert await actions("--until", "2000-01-01T00:00:00+01:00") == []
    wrong = await asyncio.to_thread(run, "audit", "--since", "yesterday")
    assert wrong.code == 2
    assert "'yesterday' is no instant such as 2026-03-01" in wrong.err
