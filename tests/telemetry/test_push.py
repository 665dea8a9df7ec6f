"""Measures pushed to an OpenTelemetry collector: a real one's service, in this process."""

from collections.abc import AsyncIterator
from typing import Any

import grpc
import pytest
import pytest_asyncio
from opentelemetry.proto.collector.metrics.v1 import (
    metrics_service_pb2 as collector,
)
from opentelemetry.proto.collector.metrics.v1 import (
    metrics_service_pb2_grpc as collector_grpc,
)

from tenure_service.main import Server
from tenure_service.telemetry import metrics, otlp, spans
from tests.eventually import eventually_async
from tests.fix_server import server_config
from tests.protocol.caller import Caller


class Collector(collector_grpc.MetricsServiceServicer):
    """Keeps what is exported to it."""

    def __init__(self) -> None:
        self.requests: list[collector.ExportMetricsServiceRequest] = []

    async def Export(  # noqa: N802 - the protocol's name
        self, request: collector.ExportMetricsServiceRequest, _context: Any
    ) -> collector.ExportMetricsServiceResponse:
        self.requests.append(request)
        return collector.ExportMetricsServiceResponse()

    def names(self) -> set[str]:
        return {
            metric.name
            for request in self.requests
            for resource in request.resource_metrics
            for scope in resource.scope_metrics
            for metric in scope.metrics
        }


@pytest_asyncio.fixture
async def collecting(monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Collector]:
    made = Collector()
    serving = grpc.aio.server()
    add: Any = collector_grpc.add_MetricsServiceServicer_to_server
    add(made, serving)
    port = serving.add_insecure_port("127.0.0.1:0")
    await serving.start()
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", f"http://127.0.0.1:{port}")
    monkeypatch.setenv("OTEL_METRIC_EXPORT_INTERVAL", "1000")
    monkeypatch.setenv("OTEL_RESOURCE_ATTRIBUTES", "deployment.environment.name=test")
    yield made
    await serving.stop(None)


async def test_push__endpoint_set__the_collector_gets_every_kind(
    database: str, collecting: Collector
) -> None:
    running = Server(server_config(database))
    await running.start()
    client = Caller(running.address)
    await client.enqueue("mail")
    wanted = {"tenure_tasks_enqueued_total", "tenure_queue_ready", "tenure_batch_seconds"}
    assert await eventually_async(lambda: wanted <= collecting.names(), seconds=30)
    resource = collecting.requests[-1].resource_metrics[0].resource
    named = {each.key: each.value.string_value for each in resource.attributes}
    assert named["service.name"] == "tenure-server"
    assert named["deployment.environment.name"] == "test"
    count = len(collecting.requests)
    await client.close()
    await running.stop()
    # What was counted since the last time is not lost with the process.
    assert len(collecting.requests) > count


@pytest.mark.parametrize(
    "name", ["garbage", "http://", "ftp://collector:4317", "host:port", "a b:1"]
)
def test_endpoint__value_that_names_no_collector__is_told(
    caplog: pytest.LogCaptureFixture, name: str
) -> None:
    environment = {"OTEL_EXPORTER_OTLP_ENDPOINT": name}
    assert otlp.from_environment(metrics.REGISTRY, environment) is None
    assert spans.from_environment(environment) is None
    told = [record.getMessage() for record in caplog.records]
    said = f"OTEL_EXPORTER_OTLP_ENDPOINT is {name!r}, and no URL such as http://collector:4317"
    assert told == [f"{what} are not pushed: {said}" for what in ("metrics", "spans")]


@pytest.mark.parametrize(
    "name",
    [
        "http://collector:4317",
        "https://collector",
        "https://collector/v1/metrics",
        "http://[::1]:4317/",
        "collector:4317",
        "unix:/run/collector.sock",
        "dns:///collector:4317",
    ],
)
def test_endpoint__form_that_the_exporter_takes__is_taken(
    caplog: pytest.LogCaptureFixture, name: str
) -> None:
    variables = ("OTEL_EXPORTER_OTLP_ENDPOINT",)
    assert otlp.endpoint(variables, "metrics", {variables[0]: name}) == name
    assert not caplog.records
