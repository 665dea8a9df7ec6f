"""A handler that tells, from a process of its own, which trace it runs in."""

import os

from opentelemetry import trace
from opentelemetry.sdk.trace import TracerProvider

from tenure import App, Retry

app = App("traced")


@app.task
def own_trace() -> list[str]:
    """Gives the trace of the running code, in hexadecimal, and the names of its span's attributes."""
    span = trace.get_current_span()
    found = span.get_span_context()
    names = sorted(getattr(span, "attributes", None) or {})
    return [trace.format_trace_id(found.trace_id), *names]


@app.task(retry=Retry(1))
def die() -> None:
    """Ends its process."""
    os._exit(3)


def trace_here() -> None:
    """Sets up a provider, unless the program has one."""
    if isinstance(trace.get_tracer_provider(), trace.ProxyTracerProvider):
        trace.set_tracer_provider(TracerProvider())


trace_here()
