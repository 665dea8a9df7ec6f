"""Spans of servers: exported to a real collector's service, below those of their callers."""

import socket
import time
import uuid
from collections.abc import AsyncIterator, Iterator

import grpc
import pytest
import pytest_asyncio
from opentelemetry import trace
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.trace import SpanKind

from tenure import App, AsyncClient, NewTask, Worker
from tenure_service.main import Server
from tenure_service.telemetry import spans
from tests.fix_server import server_config
from tests.protocol.caller import Caller
from tests.sdk import traced_app
from tests.telemetry.collector import SpanCollector, attributes

TRACES = [f"{number:032x}" for number in (1, 2, 3)]
PARENTS = [f"00-{text}-{number:016x}-01" for number, text in enumerate(TRACES, 7)]


@pytest.fixture
def own_spans() -> Iterator[InMemorySpanExporter]:
    """The spans of this process's own tracing, in which client and worker take part."""
    traced_app.trace_here()
    provider = trace.get_tracer_provider()
    assert isinstance(provider, TracerProvider)
    memory = InMemorySpanExporter()
    provider.add_span_processor(SimpleSpanProcessor(memory))
    yield memory
    memory.shutdown()


@pytest_asyncio.fixture
async def collector(monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[SpanCollector]:
    made = SpanCollector()
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_TRACES_ENDPOINT", await made.start())
    yield made
    await made.stop()


async def test_trace__enqueue_serve_run__is_one(
    database: str, own_spans: InMemorySpanExporter, collector: SpanCollector
) -> None:
    running = Server(server_config(database))
    await running.start()
    app = App("traced", address=running.address)

    @app.task(name="mail")
    def mail() -> int:
        return 1

    async with Worker(app, concurrency=1):
        await (await mail.aenqueue()).aresult(30)
    await running.stop()

    own = {span.name: span for span in own_spans.get_finished_spans()}
    sent, run = own["enqueue mail"], own["run mail"]
    (served,) = collector.named("EnqueueTasks")
    assert sent.context is not None
    assert run.context is not None
    assert served.kind == served.SPAN_KIND_SERVER
    assert served.trace_id.hex() == f"{sent.context.trace_id:032x}"
    assert served.parent_span_id.hex() == f"{sent.context.span_id:016x}"
    assert run.context.trace_id == sent.context.trace_id
    assert run.kind is SpanKind.CONSUMER
    assert served.start_time_unix_nano < served.end_time_unix_nano
    assert collector.services == {"tenure-server"}
    told = attributes(served)
    assert told["rpc.grpc.status_code"] == 0
    assert told["messaging.batch.message_count"] == 1
    assert told["tenure.namespace"] == "default"


async def test_serve__tasks_of_several_traces__first_is_the_parent_and_others_are_linked(
    database: str, collector: SpanCollector
) -> None:
    running = Server(server_config(database))
    await running.start()
    await AsyncClient(running.address).enqueue_many(
        [NewTask(name="mail", traceparent=given) for given in [*PARENTS, PARENTS[1], "nonsense"]]
    )
    await running.stop()
    (served,) = collector.named("EnqueueTasks")
    assert served.trace_id.hex() == TRACES[0]
    assert [link.trace_id.hex() for link in served.links] == TRACES[1:]


async def test_serve__traceparent_of_the_call__is_the_parent_and_tasks_are_linked(
    database: str, collector: SpanCollector
) -> None:
    running = Server(server_config(database))
    await running.start()
    client = Caller(running.address)
    client.metadata = [("traceparent", PARENTS[2])]
    await client.enqueue("mail", traceparent=PARENTS[0])
    with pytest.raises(grpc.aio.AioRpcError):
        await client.get(str(uuid.uuid4()))
    leased = await client.lease("mail")
    await client.close()
    await running.stop()
    (served,) = collector.named("EnqueueTasks")
    assert served.trace_id.hex() == TRACES[2]
    assert [link.trace_id.hex() for link in served.links] == [TRACES[0]]
    (refused,) = collector.named("GetTask")
    assert refused.trace_id.hex() == TRACES[2]
    # What the caller did wrong is no fault of the server.
    assert attributes(refused)["rpc.grpc.status_code"] in {3, 5}
    assert refused.status.code == refused.status.STATUS_CODE_UNSET
    (handed_out,) = collector.named("LeaseTasks")
    assert len(leased.assignments) == 1
    assert [link.trace_id.hex() for link in handed_out.links] == [TRACES[0]]


async def test_serve__no_endpoint_or_none_wanted__makes_no_span(
    database: str, collector: SpanCollector, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OTEL_TRACES_EXPORTER", "none")
    running = Server(server_config(database))
    await running.start()
    client = Caller(running.address)
    await client.enqueue("mail", traceparent=PARENTS[0])
    await client.close()
    await running.stop()
    assert collector.spans == []
    assert running._spans is None


def test_close__collector_is_away__gives_up_soon(monkeypatch: pytest.MonkeyPatch) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", f"http://127.0.0.1:{port}")
    made = spans.from_environment()
    assert made is not None
    for _ in range(600):
        with made.serving("/tenure.v1.TaskService/GetTask", "", ()):
            pass
    began = time.monotonic()
    made.close()
    assert time.monotonic() - began < 8
