"""Counts calls by method and status, and says to the log which call a line belongs to."""

import time
from collections.abc import Awaitable, Callable
from typing import Any, Final

import grpc

from tenure_service.rpc.call import Context
from tenure_service.telemetry import logs, metrics

_NAMES: Final[dict[Any, str]] = {code.value[0]: code.name for code in grpc.StatusCode} | {
    code: code.name for code in grpc.StatusCode
}


class Metering(grpc.aio.ServerInterceptor):
    """Stands before all others, so that what they refuse is counted, too.

    Streams are not timed: they last as long as their worker; `tenure_streams` counts them.
    """

    async def intercept_service(
        self,
        continuation: Callable[[grpc.HandlerCallDetails], Awaitable[Any]],
        handler_call_details: grpc.HandlerCallDetails,
    ) -> Any:
        """Gives the handler of a call; a unary one is timed."""
        path = handler_call_details.method
        # The handler runs in the same task, and so in this context.
        logs.entered(path, handler_call_details.invocation_metadata)
        handler = await continuation(handler_call_details)
        if handler is None or handler.unary_unary is None:
            return handler
        answer = handler.unary_unary
        method = path.rpartition("/")[2]

        async def timed(request: Any, context: Context) -> Any:
            began = time.perf_counter()
            unsaid = "CANCELLED"
            try:
                response = await answer(request, context)
                unsaid = "OK"
            finally:
                # gRPC gives a number, and 0 for a call that has said nothing of its end.
                code: Any = context.code()
                name = _NAMES.get(code, "UNKNOWN") if code else unsaid
                metrics.RPC_SECONDS.observe(time.perf_counter() - began, method, name)
            return response

        return handler._replace(unary_unary=timed)
