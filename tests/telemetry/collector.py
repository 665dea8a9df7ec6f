"""An OpenTelemetry collector's services for spans, in this process."""

from typing import Any

import grpc
from opentelemetry.proto.collector.trace.v1 import trace_service_pb2 as collector
from opentelemetry.proto.collector.trace.v1 import trace_service_pb2_grpc as collector_grpc
from opentelemetry.proto.trace.v1 import trace_pb2


class SpanCollector(collector_grpc.TraceServiceServicer):
    """Keeps the spans that are exported to it."""

    def __init__(self) -> None:
        self.spans: list[trace_pb2.Span] = []
        self.services: set[str] = set()
        self._serving = grpc.aio.server()

    async def start(self) -> str:
        """Listens; gives its address as an endpoint."""
        add: Any = collector_grpc.add_TraceServiceServicer_to_server
        add(self, self._serving)
        port = self._serving.add_insecure_port("127.0.0.1:0")
        await self._serving.start()
        return f"http://127.0.0.1:{port}"

    async def stop(self) -> None:
        await self._serving.stop(None)

    async def Export(  # noqa: N802 - the protocol's name
        self, request: collector.ExportTraceServiceRequest, _context: Any
    ) -> collector.ExportTraceServiceResponse:
        for resource in request.resource_spans:
            self.services |= {
                each.value.string_value
                for each in resource.resource.attributes
                if each.key == "service.name"
            }
            for scope in resource.scope_spans:
                self.spans += scope.spans
        return collector.ExportTraceServiceResponse()

    def named(self, method: str) -> list[trace_pb2.Span]:
        """Gives the spans of one method."""
        return [span for span in self.spans if span.name.rpartition("/")[2] == method]


def attributes(span: trace_pb2.Span) -> dict[str, Any]:
    """Gives what a span tells, by name."""
    return {
        each.key: getattr(each.value, each.value.WhichOneof("value") or "string_value")
        for each in span.attributes
    }
