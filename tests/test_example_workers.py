"""The example workers in other languages against the real server: the stream is not Python's own."""

import asyncio
import contextlib
import hashlib
import json
import os
import shutil
import signal
import subprocess
from collections.abc import AsyncIterator, Sequence
from pathlib import Path
from typing import Protocol

import grpc.aio
import pytest
from google.protobuf.duration_pb2 import Duration

from tenure.v1 import (
    payload_pb2,
    policy_pb2,
    run_pb2,
    task_pb2,
    task_service_pb2,
    task_service_pb2_grpc,
    workflow_service_pb2,
    workflow_service_pb2_grpc,
)

ROOT = Path(__file__).resolve().parent.parent
NODE_EXAMPLE = ROOT / "examples/workers/node"


class Server(Protocol):
    """What these tests need of the `server` fixture."""

    address: str


@pytest.fixture(scope="session")
def node_modules(pytestconfig: pytest.Config) -> Path:
    """The example's packages, installed once for each lock file."""
    node, npm = shutil.which("node"), shutil.which("npm")
    if node is None or npm is None:
        pytest.skip("no Node toolchain: node and npm are needed")
    version = subprocess.run([node, "--version"], capture_output=True, text=True, check=True).stdout
    if int(version.lstrip("v").split(".")[0]) < 20:
        pytest.skip(f"Node {version.strip()} is too old: 20 is needed")
    lock = (NODE_EXAMPLE / "package-lock.json").read_bytes()
    assert pytestconfig.cache is not None
    cache = pytestconfig.cache.mkdir("example-workers")
    home = cache / f"node-{hashlib.sha256(lock).hexdigest()[:16]}"
    if not home.exists():
        building = cache / f"building-{os.getpid()}"
        building.mkdir()
        for name in ("package.json", "package-lock.json", ".npmrc"):
            shutil.copy(NODE_EXAMPLE / name, building)
        # One retry, at once: where no registry answers, the tests skip in seconds.
        retries = (
            "--fetch-retries=1",
            "--fetch-retry-mintimeout=100",
            "--fetch-retry-maxtimeout=500",
        )
        done = subprocess.run(
            [npm, "ci", "--prefer-offline", "--loglevel=error", *retries],
            cwd=building,
            capture_output=True,
            text=True,
            check=False,
        )
        if done.returncode != 0:
            shutil.rmtree(building)
            reason = " ".join(done.stderr.split("\n")[:2])
            pytest.skip(f"npm ci cannot install the example's packages: {reason}")
        building.rename(home)
    return home / "node_modules"


class NodeWorker:
    """A running worker.mjs."""

    def __init__(self, process: asyncio.subprocess.Process) -> None:
        self.process = process
        self.lines: list[str] = []

    async def until(self, word: str) -> None:
        """Reads the worker's output up to a line that has `word`."""
        assert self.process.stdout is not None
        while line := (await self.process.stdout.readline()).decode():
            self.lines.append(line)
            if word in line:
                return
        pytest.fail(f"the worker ended before it said {word!r}:\n{''.join(self.lines)}")

    async def stop(self) -> int:
        """Asks for a clean stop; returns the exit status."""
        self.process.send_signal(signal.SIGTERM)
        return await self.process.wait()


@contextlib.asynccontextmanager
async def node_worker(
    folder: Path, node_modules: Path, address: str, script: str = "worker.mjs"
) -> AsyncIterator[NodeWorker]:
    """Runs a copy of the example beside the protocol's files, as in the repository."""
    example = folder / "examples/workers/node"
    shutil.copytree(NODE_EXAMPLE, example, ignore=shutil.ignore_patterns("node_modules"))
    (example / "node_modules").symlink_to(node_modules)
    for name in ("proto", "third_party"):
        (folder / name).symlink_to(ROOT / name)
    process = await asyncio.create_subprocess_exec(
        "node",
        str(example / script),
        env={**os.environ, "TENURE_ADDRESS": address, "TENURE_GRACE": "10"},
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.STDOUT,
    )
    try:
        yield NodeWorker(process)
    finally:
        if process.returncode is None:
            process.kill()
        await process.wait()


class Producer:
    """Enqueues tasks and waits for them."""

    def __init__(self, channel: grpc.aio.Channel) -> None:
        self.stub = task_service_pb2_grpc.TaskServiceStub(channel)

    async def enqueue(self, name: str, value: object, *, max_attempts: int = 3) -> str:
        policy = policy_pb2.RetryPolicy(
            max_attempts=max_attempts,
            backoff=policy_pb2.BACKOFF_KIND_FIXED,
            initial_delay=Duration(nanos=50_000_000),
        )
        task = task_service_pb2.NewTask(
            name=name,
            input=payload_pb2.Payload(data=json.dumps(value).encode(), encoding="json"),
            policy=policy_pb2.TaskPolicy(retry=policy),
        )
        answer = await self.stub.EnqueueTasks(task_service_pb2.EnqueueTasksRequest(tasks=[task]))
        return answer.results[0].task.task_id

    async def results(self, task_ids: Sequence[str]) -> list[task_pb2.TaskResult]:
        """Waits until all are over; in the order of `task_ids`."""
        over: dict[str, task_pb2.TaskResult] = {}
        while missing := [task_id for task_id in task_ids if task_id not in over]:
            request = task_service_pb2.AwaitTasksRequest(
                task_ids=missing, wait_duration=Duration(seconds=5)
            )
            for item in (await self.stub.AwaitTasks(request)).results:
                over[item.task_id] = item.result
        return [over[task_id] for task_id in task_ids]

    async def running(self, task_id: str) -> None:
        """Waits until the handler runs."""
        pace = task_service_pb2.AwaitTasksRequest(
            task_ids=[task_id], wait_duration=Duration(nanos=20_000_000)
        )
        while (await self.get(task_id)).task.state != task_pb2.TASK_STATE_RUNNING:
            assert not (await self.stub.AwaitTasks(pace)).results, "over before it was seen running"

    async def get(self, task_id: str) -> task_service_pb2.GetTaskResponse:
        return await self.stub.GetTask(task_service_pb2.GetTaskRequest(task_id=task_id))


class Runs:
    """Starts runs and waits for them."""

    def __init__(self, channel: grpc.aio.Channel) -> None:
        self.stub = workflow_service_pb2_grpc.WorkflowServiceStub(channel)

    async def start(self, name: str, value: object) -> str:
        new = run_pb2.NewRun(
            name=name, input=payload_pb2.Payload(data=json.dumps(value).encode(), encoding="json")
        )
        answer = await self.stub.StartRuns(workflow_service_pb2.StartRunsRequest(runs=[new]))
        return answer.results[0].run.run_id

    async def result(self, run_id: str) -> run_pb2.RunResult:
        request = workflow_service_pb2.AwaitRunsRequest(
            run_ids=[run_id], wait_duration=Duration(seconds=5)
        )
        while not (found := (await self.stub.AwaitRuns(request)).results):
            pass
        return found[0].result

    async def get(self, run_id: str) -> run_pb2.Run:
        return (await self.stub.GetRun(workflow_service_pb2.GetRunRequest(run_id=run_id))).run

    async def steps(self, run_id: str) -> Sequence[run_pb2.Step]:
        request = workflow_service_pb2.ListRunStepsRequest(run_id=run_id)
        return (await self.stub.ListRunSteps(request)).steps


class Wire:
    """A TCP relay between a worker and the server that can be cut."""

    def __init__(self, address: str) -> None:
        self.host, _, self.port = address.rpartition(":")
        self.writers: list[asyncio.StreamWriter] = []

    async def relay(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        there, back = await asyncio.open_connection(self.host, int(self.port))
        self.writers += [writer, back]
        async with asyncio.TaskGroup() as group:
            group.create_task(self.copy(reader, back))
            group.create_task(self.copy(there, writer))

    @staticmethod
    async def copy(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(ConnectionError):
            while data := await reader.read(65536):
                writer.write(data)
                await writer.drain()
        writer.close()

    def cut(self) -> None:
        """Resets every connection; new ones are relayed."""
        for writer in self.writers:
            writer.transport.abort()
        self.writers.clear()


async def test_node_worker__tasks_that_succeed_fail_and_die__are_recorded(
    server: Server, node_modules: Path, tmp_path: Path
) -> None:
    async with (
        asyncio.timeout(60),
        grpc.aio.insecure_channel(server.address) as channel,
        node_worker(tmp_path, node_modules, server.address) as worker,
    ):
        producer = Producer(channel)
        await worker.until("session")
        counted = await producer.enqueue("word_count", {"text": "to be or not to be"})
        failing = await producer.enqueue("fail_once", {"größe": "ü"})
        dying = await producer.enqueue("fail_once", {}, max_attempts=1)
        first, second, third = await producer.results([counted, failing, dying])

        assert json.loads(first.output.data) == {"words": 6, "distinct": 4}
        assert json.loads(second.output.data) == {"attempt": 2, "input": {"größe": "ü"}}
        deliveries = (await producer.get(failing)).deliveries
        assert [(one.attempt, one.outcome) for one in deliveries] == [
            (1, task_pb2.DELIVERY_OUTCOME_FAILED),
            (2, task_pb2.DELIVERY_OUTCOME_DONE),
        ]
        assert deliveries[0].failure.message == "the first attempt fails on purpose"
        assert "handlers.mjs" in deliveries[0].failure.stack
        assert third.state == task_pb2.TASK_STATE_DEAD
        assert third.failure.type == "RangeError"
        assert await worker.stop() == 0


async def test_node_worker__sigterm_while_a_handler_runs__reports_it_and_closes(
    server: Server, node_modules: Path, tmp_path: Path
) -> None:
    async with (
        asyncio.timeout(60),
        grpc.aio.insecure_channel(server.address) as channel,
        node_worker(tmp_path, node_modules, server.address) as worker,
    ):
        producer = Producer(channel)
        task_id = await producer.enqueue("sleep", {"seconds": 1})
        await producer.running(task_id)
        assert await worker.stop() == 0
        (result,) = await producer.results([task_id])
        assert result.state == task_pb2.TASK_STATE_COMPLETED
        assert result.attempt == 1


async def test_node_worker__stream_cut_while_a_handler_runs__resumes_and_reports_once(
    server: Server, node_modules: Path, tmp_path: Path
) -> None:
    wire = Wire(server.address)
    relay = await asyncio.start_server(wire.relay, "127.0.0.1", 0)
    host, port = relay.sockets[0].getsockname()
    async with (
        asyncio.timeout(60),
        relay,
        grpc.aio.insecure_channel(server.address) as channel,
        node_worker(tmp_path, node_modules, f"{host}:{port}") as worker,
    ):
        producer = Producer(channel)
        task_id = await producer.enqueue("sleep", {"seconds": 1})
        await producer.running(task_id)
        wire.cut()
        await worker.until("resumed")
        (result,) = await producer.results([task_id])
        assert result.state == task_pb2.TASK_STATE_COMPLETED
        assert [one.delivery for one in (await producer.get(task_id)).deliveries] == [1]
        assert await worker.stop() == 0


async def test_minimal_node_worker__stream_cut__reconnects_and_goes_on(
    server: Server, node_modules: Path, tmp_path: Path
) -> None:
    wire = Wire(server.address)
    relay = await asyncio.start_server(wire.relay, "127.0.0.1", 0)
    host, port = relay.sockets[0].getsockname()
    async with (
        asyncio.timeout(60),
        relay,
        grpc.aio.insecure_channel(server.address) as channel,
        node_worker(tmp_path, node_modules, f"{host}:{port}", "minimal.mjs") as worker,
    ):
        producer = Producer(channel)
        first = await producer.enqueue("word_count", {"text": "to be or not to be"})
        failing = await producer.enqueue("word_count", {}, max_attempts=2)
        outcomes = await producer.results([first, failing])
        assert json.loads(outcomes[0].output.data) == {"words": 6}
        assert (outcomes[1].failure.type, outcomes[1].attempt) == ("TypeError", 2)
        wire.cut()
        second = await producer.enqueue("word_count", {"text": "again"})
        (result,) = await producer.results([second])
        assert json.loads(result.output.data) == {"words": 1}
        assert await worker.stop() == 0


async def test_node_worker__workflow_that_sleeps__is_suspended_and_replayed(
    server: Server, node_modules: Path, tmp_path: Path
) -> None:
    async with (
        asyncio.timeout(60),
        grpc.aio.insecure_channel(server.address) as channel,
        node_worker(tmp_path, node_modules, server.address) as worker,
    ):
        runs = Runs(channel)
        names = [f"name-{number}" for number in range(1000)]
        run_id = await runs.start("raffle", {"names": names, "seconds": 2})
        result = await runs.result(run_id)
        run, steps = await runs.get(run_id), await runs.steps(run_id)
        assert result.state == run_pb2.RUN_STATE_COMPLETED, result
        assert json.loads(result.output.data) == {
            "winner": json.loads(steps[0].output.data),
            "of": 1000,
        }
        assert [(step.step_id, step.name, step.kind) for step in steps] == [
            ("1", "draw", run_pb2.STEP_KIND_CALL),
            ("2", "word_count", run_pb2.STEP_KIND_TASK),
            ("3", "sleep", run_pb2.STEP_KIND_SLEEP),
        ]
        assert (run.version, run.activation_count) == ("1", 2)
        assert await worker.stop() == 0
        assert worker.process.stdout is not None
        assert (await worker.process.stdout.read()).count(b"drawing") == 1


async def test_node_worker__streams_cut_under_workflows__records_and_waits_again(
    server: Server, node_modules: Path, tmp_path: Path
) -> None:
    wire = Wire(server.address)
    relay = await asyncio.start_server(wire.relay, "127.0.0.1", 0)
    host, port = relay.sockets[0].getsockname()
    async with (
        asyncio.timeout(60),
        relay,
        grpc.aio.insecure_channel(server.address) as channel,
        node_worker(tmp_path, node_modules, f"{host}:{port}") as worker,
    ):
        runs = Runs(channel)
        await worker.until("session")
        run_ids = [await runs.start("raffle", {"names": ["a"], "seconds": 0.1}) for _ in range(20)]
        for _ in range(4):
            await worker.until("drawing")
            wire.cut()
            await worker.until("resumed")
        for run_id in run_ids:
            result = await runs.result(run_id)
            assert json.loads(result.output.data) == {"winner": "a", "of": 1}, result
        assert await worker.stop() == 0


async def test_node_worker__workflow_cancelled_while_it_waits__is_woken_and_ends(
    server: Server, node_modules: Path, tmp_path: Path
) -> None:
    async with (
        asyncio.timeout(60),
        grpc.aio.insecure_channel(server.address) as channel,
        node_worker(tmp_path, node_modules, server.address) as worker,
    ):
        runs = Runs(channel)
        run_id = await runs.start("raffle", {"names": ["a"], "seconds": 600})
        pace = workflow_service_pb2.AwaitRunsRequest(
            run_ids=[run_id], wait_duration=Duration(nanos=20_000_000)
        )
        while (await runs.get(run_id)).state != run_pb2.RUN_STATE_WAITING:
            assert not (await runs.stub.AwaitRuns(pace)).results, "over before it was seen waiting"
        await runs.stub.CancelRuns(workflow_service_pb2.CancelRunsRequest(run_ids=[run_id]))
        assert (await runs.result(run_id)).state == run_pb2.RUN_STATE_CANCELLED
        assert await worker.stop() == 0
