"""Traces: one from enqueueing through every attempt, wherever it runs."""

import asyncio
import subprocess
import sys
from collections.abc import AsyncIterator, Iterator, Sequence

import psycopg
import pytest
import pytest_asyncio
from opentelemetry import trace
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.trace import SpanKind, StatusCode

import tenure
from tenure import App, AsyncClient, NewTask, Retry, Worker
from tenure_service.main import Server
from tests.eventually import eventually_async
from tests.fix_server import RunningServer, server_config
from tests.sdk import traced_app

_memory = InMemorySpanExporter()


@pytest.fixture
def spans() -> Iterator[InMemorySpanExporter]:
    """The spans of a test. A process has one provider, which stays."""
    traced_app.trace_here()
    provider = trace.get_tracer_provider()
    assert isinstance(provider, TracerProvider)
    if not getattr(provider, "_tests_listen", False):
        provider.add_span_processor(SimpleSpanProcessor(_memory))
        provider._tests_listen = True  # type: ignore[attr-defined]
    _memory.clear()
    yield _memory
    _memory.clear()


@pytest_asyncio.fixture
async def other(server: RunningServer) -> AsyncIterator[Server]:
    """A second server on the same database."""
    made = Server(server_config(server.dsn))
    await made.start()
    yield made
    await made.stop()


def named(found: Sequence[ReadableSpan], name: str) -> list[ReadableSpan]:
    return [span for span in found if span.name == name]


def trace_ids(found: Sequence[ReadableSpan]) -> set[int]:
    return {span.context.trace_id for span in found if span.context is not None}


def parent_id(span: ReadableSpan) -> int | None:
    return None if span.parent is None else span.parent.span_id


async def test_trace__retry_on_another_server__is_one(
    server: RunningServer, other: Server, spans: InMemorySpanExporter
) -> None:
    tracer = trace.get_tracer("test")
    app = App("traced", address=server.address)

    @app.task(name="flaky", retry=Retry(100, initial_delay=0.1, backoff="fixed"))
    def flaky() -> int:
        with tracer.start_as_current_span("inside"):
            raise ValueError("this worker never can")

    elsewhere = App("traced", address=other.address)

    @elsewhere.task(name="flaky")
    def works() -> int:
        with tracer.start_as_current_span("inside"):
            return tenure.current_task().attempt

    first = Worker(app, concurrency=1, name="first")
    first.start()
    with tracer.start_as_current_span("request"):
        handle = await flaky.aenqueue()
    assert await eventually_async(lambda: bool(named(spans.get_finished_spans(), "run flaky")))
    await first.aclose(grace=5)
    second = Worker(elsewhere, concurrency=1, name="second")
    second.start()
    assert await handle.aresult(timeout=30) >= 2
    await second.aclose(grace=5)

    found = spans.get_finished_spans()
    (request,), (sent,) = named(found, "request"), named(found, "enqueue flaky")
    runs = named(found, "run flaky")
    assert len(trace_ids(found)) == 1
    assert request.context is not None
    assert sent.context is not None
    assert (sent.kind, parent_id(sent)) == (SpanKind.PRODUCER, request.context.span_id)
    assert {run.kind for run in runs} == {SpanKind.CONSUMER}
    assert {parent_id(run) for run in runs} == {sent.context.span_id}
    assert {run.context.span_id for run in runs if run.context} == {
        parent_id(inside) for inside in named(found, "inside")
    }
    told = [run.attributes or {} for run in runs]
    assert [each["tenure.attempt"] for each in told] == list(range(1, len(runs) + 1))
    assert [each["tenure.worker"] for each in (told[0], told[-1])] == ["first", "second"]
    assert {each["messaging.message.id"] for each in told} == {handle.id}
    assert {each["tenure.outcome"] for each in told[:-1]} == {"failed"}
    assert told[-1]["tenure.outcome"] == "completed"
    assert sent.attributes is not None
    assert sent.attributes["messaging.message.id"] == handle.id
    assert runs[0].status.status_code is StatusCode.ERROR
    assert [event.name for event in runs[0].events] == ["exception"]
    assert runs[-1].status.status_code is StatusCode.UNSET


async def test_trace__async_handler_enqueues__its_task_is_of_the_same_trace(
    server: RunningServer, spans: InMemorySpanExporter
) -> None:
    app = App("traced", address=server.address)

    @app.task(name="leaf")
    async def leaf() -> None:
        return None

    @app.task(name="root")
    async def root() -> str:
        return (await leaf.aenqueue()).id

    async with Worker(app, concurrency=2):
        leaf_id = await (await root.aenqueue()).aresult(timeout=30)
        await leaf.handle(leaf_id).aresult(timeout=30)
    found = spans.get_finished_spans()
    assert len(trace_ids(found)) == 1
    (run,) = named(found, "run root")
    (sent,) = named(found, "enqueue leaf")
    assert run.context is not None
    assert parent_id(sent) == run.context.span_id


async def test_trace__handler_in_a_process__runs_in_it(
    server: RunningServer, spans: InMemorySpanExporter, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TENURE_ADDRESS", server.address)
    worker = Worker(traced_app.app, concurrency=1, mode="process")
    worker.start()
    told = await (await traced_app.own_trace.aenqueue()).aresult(timeout=60)
    await worker.aclose(grace=5)
    (sent,) = named(spans.get_finished_spans(), "enqueue own_trace")
    assert sent.context is not None
    assert told[0] == trace.format_trace_id(sent.context.trace_id)
    assert {"tenure.attempt", "tenure.worker"} <= set(told)


async def test_enqueue_many__clients__one_span_whose_trace_the_tasks_carry(
    server: RunningServer, spans: InMemorySpanExporter
) -> None:
    client = AsyncClient(server.address)
    given = "00-11111111111111111111111111111111-2222222222222222-01"
    own, others = NewTask(name="mail"), NewTask(name="mail", traceparent=given)
    stored = await client.enqueue_many([own, others])
    (sent,) = named(spans.get_finished_spans(), "enqueue mail")
    assert sent.attributes is not None
    assert sent.attributes["messaging.batch.message_count"] == 2
    assert len([each for each in stored if isinstance(each, tenure.EnqueuedTask)]) == 2
    assert sent.context is not None
    own_ids = f"{sent.context.trace_id:032x}-{sent.context.span_id:016x}"
    made = f"00-{own_ids}-{sent.context.trace_flags:02x}"
    with psycopg.connect(server.dsn) as conn:
        rows = conn.execute("select traceparent from tenure.tasks").fetchall()
    assert sorted(row[0] for row in rows) == sorted([made, given])


async def test_fail__traced_handler__log_names_the_trace(
    server: RunningServer, spans: InMemorySpanExporter, caplog: pytest.LogCaptureFixture
) -> None:
    app = App("traced", address=server.address)

    @app.task(name="broken", retry=Retry(1))
    def broken() -> None:
        raise ValueError("no")

    async with Worker(app, concurrency=1):
        with pytest.raises(tenure.TaskFailed):
            await (await broken.aenqueue()).aresult(30)
    (run,) = named(spans.get_finished_spans(), "run broken")
    (record,) = (each for each in caplog.records if "task broken" in each.getMessage())
    assert run.context is not None
    assert vars(record)["trace_id"] == f"{run.context.trace_id:032x}"


async def test_die__process_of_a_traced_handler__log_names_the_trace(
    server: RunningServer,
    spans: InMemorySpanExporter,
    caplog: pytest.LogCaptureFixture,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("TENURE_ADDRESS", server.address)
    monkeypatch.setattr(traced_app.app, "_connection", None)
    async with Worker(traced_app.app, concurrency=1, mode="process"):
        with pytest.raises(tenure.TaskFailed, match="HandlerProcessDied"):
            await (await traced_app.die.aenqueue()).aresult(60)
    (sent,) = named(spans.get_finished_spans(), "enqueue die")
    (record,) = (each for each in caplog.records if "task die" in each.getMessage())
    assert sent.context is not None
    assert vars(record)["trace_id"] == f"{sent.context.trace_id:032x}"


async def test_cancel__traced_handler__the_attempt_is_no_error(
    server: RunningServer, spans: InMemorySpanExporter
) -> None:
    app = App("traced", address=server.address)
    client = AsyncClient(server.address)
    asked = asyncio.get_running_loop()
    started = asyncio.Event()

    @app.task(name="patient")
    async def patient() -> None:
        asked.call_soon_threadsafe(started.set)
        await asyncio.Event().wait()

    async with Worker(app, concurrency=1):
        handle = await patient.aenqueue()
        await asyncio.wait_for(started.wait(), 30)
        await client.cancel_tasks([handle.id], grace=20)
        await client.await_tasks([handle.id], 30)
    (run,) = named(spans.get_finished_spans(), "run patient")
    assert run.attributes is not None
    assert run.attributes["tenure.outcome"] == "cancelled"
    assert run.status.status_code is StatusCode.UNSET


_WITHOUT = """
import sys

class Blocked:
    def find_spec(self, name, path=None, target=None):
        if name.split(".")[0] == "opentelemetry":
            raise ImportError(name)

sys.meta_path.insert(0, Blocked())
import tenure
app = tenure.App("plain", address={address!r})

@app.task
def double(number: int) -> int:
    return 2 * number

with tenure.Worker(app, concurrency=1):
    print(double.enqueue(21).result(timeout=30))
assert not any(name.startswith("opentelemetry") for name in sys.modules)
"""


async def test_run__no_opentelemetry__works_and_imports_nothing(server: RunningServer) -> None:
    done = await asyncio.to_thread(
        subprocess.run,
        [sys.executable, "-c", _WITHOUT.format(address=server.address)],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert (done.stdout.strip(), done.returncode) == ("42", 0), done.stderr
