"""A span of each unary call of our services, below the caller's; see `telemetry.spans`.

Stands in the way of calls only where spans are sent. Streams have none: they last as long as their
worker, and the attempts that they carry are spans of the worker, below that of the enqueueing.
"""

from collections.abc import Awaitable, Callable, Iterator
from typing import Any, Final

import grpc

from tenure.v1 import task_service_pb2, worker_service_pb2
from tenure_service.rpc.call import NAMESPACE_DEFAULT, NAMESPACE_KEY, Context
from tenure_service.telemetry import spans

_OURS: Final = "/tenure."
_CANCELLED: Final = 1


class Tracing(grpc.aio.ServerInterceptor):
    """Makes a span of each unary call, also of those that the guard refuses."""

    def __init__(self, made: spans.Spans) -> None:
        self._spans = made

    async def intercept_service(
        self,
        continuation: Callable[[grpc.HandlerCallDetails], Awaitable[Any]],
        handler_call_details: grpc.HandlerCallDetails,
    ) -> Any:
        """Gives the handler of a call, in a span."""
        path = handler_call_details.method
        handler = await continuation(handler_call_details)
        if handler is None or handler.unary_unary is None or not path.startswith(_OURS):
            return handler
        answer = handler.unary_unary
        metadata = dict(handler_call_details.invocation_metadata or ())
        caller = str(metadata.get("traceparent", ""))
        told: dict[str, str | int] = {
            "tenure.namespace": str(metadata.get(NAMESPACE_KEY, NAMESPACE_DEFAULT))
        }

        async def traced(request: Any, context: Context) -> Any:
            with self._spans.serving(path, caller, _enqueued(request)) as span:
                unsaid = _CANCELLED
                try:
                    response = await answer(request, context)
                    unsaid = 0
                    self._spans.handed_out(span, _handed_out(response))
                finally:
                    count = _count(request)
                    if count is not None:
                        told["messaging.batch.message_count"] = count
                    # gRPC gives a number, and 0 for a call that has said nothing of its end.
                    code: Any = context.code()
                    number = code.value[0] if isinstance(code, grpc.StatusCode) else code
                    spans.ended(span, number or unsaid, told)
            return response

        return handler._replace(unary_unary=traced)


def _enqueued(request: Any) -> Iterator[str]:
    if isinstance(request, task_service_pb2.EnqueueTasksRequest):
        yield from (task.traceparent for task in request.tasks if task.traceparent)


def _handed_out(response: Any) -> Iterator[str]:
    if isinstance(response, worker_service_pb2.LeaseTasksResponse):
        yield from (each.traceparent for each in response.assignments if each.traceparent)


def _count(request: Any) -> int | None:
    """Counts the tasks that a call speaks of, where it can speak of many."""
    for field in ("tasks", "task_ids", "results", "lease_tokens"):
        if hasattr(request, field):
            return len(getattr(request, field))
    return None
