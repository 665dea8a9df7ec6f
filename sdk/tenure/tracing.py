"""Traces: one from whoever enqueues a task through every attempt at it, by OpenTelemetry.

Enqueueing is a PRODUCER span, whose `traceparent` is stored with the task; each attempt is a CONSUMER
span below it, on whatever worker and after whatever time, and what the handler itself traces is
below that. `tracestate` and baggage are not stored: they end with the call that enqueues.

Nothing is imported and nothing is done unless the program itself has imported OpenTelemetry and set
up a tracer provider: what traces is then its choice, and a program without it pays one look into a
dictionary a task.
"""

from __future__ import annotations

import contextlib
import sys
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from collections.abc import Iterator
    from contextlib import AbstractContextManager
    from typing import Protocol

    from opentelemetry.trace import Span, Tracer, TracerProvider

    from tenure.v1 import worker_pb2
    from tenure.worker.job import Job

    class Traced(Protocol):
        """Traced is what a worker was handed: an attempt at a task, or an activation of a run."""

        span: Span | None

        @property
        def assignment(self) -> worker_pb2.Assignment:
            """As it was handed out."""
            raise NotImplementedError

        @property
        def worker(self) -> str:
            """Name of the worker."""
            raise NotImplementedError


_API: Final = "opentelemetry.trace"
_NOTHING: Final[AbstractContextManager[None]] = contextlib.nullcontext()

_known: tuple[TracerProvider, Tracer] | None = None


def traceparent() -> str:
    """Returns the W3C trace context of the running code; empty: nobody traces."""
    if _tracer() is None:
        return ""
    carrier: dict[str, str] = {}
    _propagator().inject(carrier)
    return carrier.get("traceparent", "")


def enqueueing(
    name: str, queue: str, count: int | None = None, *, verb: str = "enqueue"
) -> AbstractContextManager[Span | None]:
    """Returns the span of a call that enqueues, as a context; None inside if nobody traces.

    Args:
        name: Name of the task or workflow.
        queue: Its queue.
        count: Number of tasks or runs, where the call can carry many.
        verb: `enqueue`, or `start` for runs.
    """
    tracer = _tracer()
    if tracer is None:
        return _NOTHING
    from opentelemetry.trace import SpanKind

    attributes: dict[str, Any] = _attributes("send", verb, name, queue)
    if count is not None:
        attributes["messaging.batch.message_count"] = count
    return tracer.start_as_current_span(
        f"{verb} {name}", kind=SpanKind.PRODUCER, attributes=attributes
    )


def enqueued(span: Span | None, task_id: str) -> None:
    """Notes which task a call enqueued."""
    if span is not None:
        span.set_attribute("messaging.message.id", task_id)


def attempt(job: Traced) -> AbstractContextManager[None]:
    """Returns the span of an attempt, or of an activation, as a context that the handler runs in."""
    tracer = _tracer()
    return _NOTHING if tracer is None else _attempt(tracer, job)


def log_fields(job: Job) -> dict[str, str]:
    """Returns `trace_id` for what is logged of an attempt; nothing if nobody traces."""
    if _tracer() is None:
        return {}
    if job.span is not None:
        return {"trace_id": f"{job.span.get_span_context().trace_id:032x}"}
    # The span of a handler in a process of its own is there.
    parts = job.assignment.traceparent.split("-")
    return {"trace_id": parts[1]} if len(parts) > 1 else {}


def raised(span: Span | None, exc: BaseException) -> None:
    """Notes what failed an attempt."""
    if span is not None and span.is_recording():
        from opentelemetry.trace import Status, StatusCode

        span.set_attribute("tenure.outcome", "failed")
        span.record_exception(exc)
        span.set_status(Status(StatusCode.ERROR, f"{type(exc).__name__}: {exc}"))


def ended(span: Span | None, outcome: str) -> None:
    """Notes how an attempt ended that did not fail."""
    if span is not None:
        span.set_attribute("tenure.outcome", outcome)


@contextlib.contextmanager
def _attempt(tracer: Tracer, job: Traced) -> Iterator[None]:
    from opentelemetry.context import Context
    from opentelemetry.trace import SpanKind

    given = job.assignment
    # Of the task alone: this thread may have traced something before.
    parent = _propagator().extract({"traceparent": given.traceparent}, context=Context())
    attributes = _attributes("process", "run", given.name, given.queue)
    attributes |= {
        "messaging.message.id": given.task_id,
        "tenure.attempt": given.attempt,
        "tenure.delivery": given.delivery,
        "tenure.worker": job.worker,
    }
    with tracer.start_as_current_span(
        f"run {given.name}",
        context=parent,
        kind=SpanKind.CONSUMER,
        attributes=attributes,
        record_exception=False,
        set_status_on_exception=False,
    ) as span:
        job.span = span
        yield


def _attributes(kind: str, verb: str, name: str, queue: str) -> dict[str, Any]:
    return {
        "messaging.system": "tenure",
        "messaging.operation.type": kind,
        "messaging.operation.name": verb,
        "messaging.destination.name": queue or "default",
        "tenure.task": name,
    }


def _tracer() -> Tracer | None:
    global _known  # noqa: PLW0603 - one provider a process, asked for each task
    api = sys.modules.get(_API)
    if api is None:
        return None
    provider: TracerProvider = api.get_tracer_provider()
    known = _known
    if known is not None and known[0] is provider:
        return known[1]
    # What stands for a provider until the program sets one up.
    if isinstance(provider, (api.ProxyTracerProvider, api.NoOpTracerProvider)):
        return None
    tracer = provider.get_tracer("tenure")
    _known = provider, tracer
    return tracer


def _propagator() -> Any:
    from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

    return TraceContextTextMapPropagator()
