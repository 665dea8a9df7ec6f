"""Spans of the calls that a server answers, sent to an OpenTelemetry collector.

Where OTEL_EXPORTER_OTLP_ENDPOINT, or the one for traces, is set and OTEL_TRACES_EXPORTER is not
`none`. The provider is the server's own: a program that runs a server beside its own tracing keeps
both apart. What is sampled is the caller's choice where it traces, else OTEL_TRACES_SAMPLER's.
"""

from __future__ import annotations

import contextlib
import os
import threading
from typing import TYPE_CHECKING, Any, Final

from tenure_service.telemetry import logs, otlp

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping

    from opentelemetry.sdk.trace.export import SpanExporter
    from opentelemetry.trace import Link, Span

_ENDPOINTS: Final = ("OTEL_EXPORTER_OTLP_TRACES_ENDPOINT", "OTEL_EXPORTER_OTLP_ENDPOINT")
_EXPORTER: Final = "opentelemetry.exporter.otlp.proto.grpc.trace_exporter"
#: What OpenTelemetry keeps of a span's links unless told otherwise; a batch may have 10,000 tasks.
_LINK_COUNT_MAX: Final = 128
#: With a collector that was away 600 spans took 15 s to be given up.
_CLOSE_SECONDS: Final = 2.0
#: Statuses that tell of the server; the others tell of the call (semantic conventions of gRPC):
#: UNKNOWN, DEADLINE_EXCEEDED, UNIMPLEMENTED, INTERNAL, UNAVAILABLE, DATA_LOSS.
_FAULTS: Final = frozenset({2, 4, 12, 13, 14, 15})


class Spans:
    """Makes spans, and hands them to an exporter from a thread of its own."""

    def __init__(self, exporter: SpanExporter) -> None:
        from opentelemetry.sdk.resources import Resource
        from opentelemetry.sdk.trace import TracerProvider
        from opentelemetry.sdk.trace.export import BatchSpanProcessor
        from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

        self._exporter = exporter
        resource = Resource.create({"service.name": "tenure-server"})
        self._provider = TracerProvider(resource=resource, shutdown_on_exit=False)
        self._provider.add_span_processor(BatchSpanProcessor(exporter))
        self._tracer = self._provider.get_tracer("tenure")
        self._propagator = TraceContextTextMapPropagator()

    @contextlib.contextmanager
    def serving(self, path: str, caller: str, tasks: Iterable[str]) -> Iterator[Span]:
        """Gives the span of a call; what runs inside it, and its lines of the log, are of its trace.

        Args:
            path: `/service/method`.
            caller: The `traceparent` that came with the call; empty: none.
            tasks: Those that came with its tasks. Without the caller's the first is the parent,
                since a client that traces only what it enqueues says it there; others are links.
        """
        from opentelemetry.context import Context
        from opentelemetry.trace import SpanKind

        links, known = self._links(tasks)
        parent = self._propagator.extract({"traceparent": caller}, context=Context())
        if not parent and links:
            parent = self._propagator.extract({"traceparent": known[0]}, context=Context())
            del links[0]
        service, _, method = path.lstrip("/").partition("/")
        with self._tracer.start_as_current_span(
            f"{service}/{method}",
            context=parent,
            kind=SpanKind.SERVER,
            attributes={"rpc.system": "grpc", "rpc.service": service, "rpc.method": method},
            links=links,
            record_exception=False,
            set_status_on_exception=False,
        ) as span:
            logs.bound(trace_id=f"{span.get_span_context().trace_id:032x}")
            yield span

    def handed_out(self, span: Span, tasks: Iterable[str]) -> None:
        """Links the span of a call to the traces of the tasks that it answers with."""
        for link in self._links(tasks)[0]:
            span.add_link(link.context)

    def _links(self, tasks: Iterable[str]) -> tuple[list[Link], list[str]]:
        """Gives each trace context once, and the text that it was read from."""
        from opentelemetry.context import Context
        from opentelemetry.trace import Link, get_current_span

        links: list[Link] = []
        known: list[str] = []
        for text in dict.fromkeys(tasks):
            if len(links) == _LINK_COUNT_MAX:
                break
            found = self._propagator.extract({"traceparent": text}, context=Context())
            context = get_current_span(found).get_span_context()
            if context.is_valid:
                links.append(Link(context))
                known.append(text)
        return links, known

    def close(self) -> None:
        """Sends what is left, and ends; a collector that is away holds nobody up for long."""
        ending = threading.Thread(target=self._provider.shutdown, daemon=True)
        ending.start()
        ending.join(_CLOSE_SECONDS)
        if ending.is_alive():
            # Ends the exporter's own tries, of which each batch that is left would make several.
            self._exporter.shutdown()
            ending.join(_CLOSE_SECONDS)


def ended(span: Span, code: int, attributes: Mapping[str, Any]) -> None:
    """Notes how a call ended.

    Args:
        span: The call's.
        code: The number of its gRPC status.
        attributes: What else is to be told of it.
    """
    from opentelemetry.trace import Status, StatusCode

    span.set_attribute("rpc.grpc.status_code", code)
    span.set_attributes(attributes)
    if code in _FAULTS:
        span.set_status(Status(StatusCode.ERROR))


def from_environment(environment: Mapping[str, str] = os.environ) -> Spans | None:
    """Gives who makes spans, if an endpoint is set and the exporter is installed."""
    if environment.get("OTEL_TRACES_EXPORTER") == "none":
        return None
    endpoint = otlp.endpoint(_ENDPOINTS, "spans", environment)
    if endpoint is None or not otlp.installed(_EXPORTER, "spans", endpoint):
        return None
    from opentelemetry.exporter.otlp.proto.grpc.trace_exporter import OTLPSpanExporter

    return Spans(OTLPSpanExporter())
