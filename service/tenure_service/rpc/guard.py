"""Who may call what: one table, asked before every call.

A method without a row cannot be called, and a test proves that each method of the protocol has one.
"""

from collections.abc import Awaitable, Callable
from typing import Any, Final

import grpc

from tenure_service.engine.access import Principal, Scope, scope_missing
from tenure_service.engine.errors import TenureError
from tenure_service.rpc import errors
from tenure_service.rpc.call import PRINCIPAL, Calls, Context
from tenure_service.rpc.refusals import Refusals
from tenure_service.usecase.access import Keys

_WORKER: Final = "/tenure.v1.WorkerService/"
_TASK: Final = "/tenure.v1.TaskService/"
_WORKFLOW: Final = "/tenure.v1.WorkflowService/"
_REGISTRY: Final = "/tenure.v1.RegistryService/"
_ADMIN: Final = "/tenure.v1.AdminService/"

#: What a caller needs for each method. None: any key; what is not listed is refused to everybody.
SCOPES: Final[dict[str, Scope | None]] = {
    f"{_WORKER}Work": Scope.WORKER,
    f"{_WORKER}LeaseTasks": Scope.WORKER,
    f"{_WORKER}RenewLeases": Scope.WORKER,
    f"{_WORKER}ReportTasks": Scope.WORKER,
    f"{_WORKER}RecordSteps": Scope.WORKER,
    f"{_WORKER}ListSteps": Scope.WORKER,
    f"{_WORKFLOW}StartRuns": Scope.CLIENT,
    f"{_WORKFLOW}GetRun": Scope.CLIENT,
    f"{_WORKFLOW}AwaitRuns": Scope.CLIENT,
    f"{_WORKFLOW}ListRuns": Scope.CLIENT,
    f"{_WORKFLOW}ListRunSteps": Scope.CLIENT,
    f"{_WORKFLOW}CancelRuns": Scope.CLIENT,
    f"{_WORKFLOW}ResumeRuns": Scope.CLIENT,
    f"{_WORKFLOW}ForkRun": Scope.CLIENT,
    f"{_TASK}EnqueueTasks": Scope.CLIENT,
    f"{_TASK}GetTask": Scope.CLIENT,
    f"{_TASK}AwaitTasks": Scope.CLIENT,
    f"{_TASK}CancelTasks": Scope.CLIENT,
    f"{_TASK}ListTasks": Scope.CLIENT,
    f"{_TASK}ExplainTask": Scope.CLIENT,
    f"{_REGISTRY}SetTaskDefinition": Scope.ADMIN,
    f"{_REGISTRY}ListTaskDefinitions": Scope.ADMIN,
    f"{_REGISTRY}SetQueue": Scope.ADMIN,
    f"{_REGISTRY}ListQueues": Scope.ADMIN,
    f"{_ADMIN}CreateNamespace": Scope.ADMIN,
    f"{_ADMIN}ListNamespaces": Scope.ADMIN,
    f"{_ADMIN}ListWorkers": Scope.ADMIN,
    f"{_ADMIN}GetQueueStatistics": Scope.ADMIN,
    f"{_ADMIN}ListDeadLetters": Scope.ADMIN,
    f"{_ADMIN}ReplayDeadLetters": Scope.ADMIN,
    f"{_ADMIN}DiscardDeadLetters": Scope.ADMIN,
    f"{_ADMIN}CreateApiKey": Scope.ADMIN,
    f"{_ADMIN}ListApiKeys": Scope.ADMIN,
    f"{_ADMIN}RevokeApiKey": Scope.ADMIN,
    f"{_ADMIN}ListAuditEvents": Scope.ADMIN,
    "/grpc.reflection.v1alpha.ServerReflection/ServerReflectionInfo": None,
}
#: What the record of operators may hold, by the last part of the method's name.
RECORDED: Final = frozenset(
    method.rpartition("/")[2] for method, scope in SCOPES.items() if scope is Scope.ADMIN
) | {"CancelTasks", "CancelRuns", "ResumeRuns", "ForkRun"}
#: Balancers ask it, and it tells nothing of anybody.
_OPEN: Final = "/grpc.health.v1.Health/"
_BEARER: Final = "bearer "


class Guard(grpc.aio.ServerInterceptor):
    """Lets calls in, or refuses them."""

    def __init__(self, keys: Keys, calls: Calls) -> None:
        self._keys = keys
        self._calls = calls
        self._refusals = Refusals(keys, calls)

    async def intercept_service(
        self,
        continuation: Callable[[grpc.HandlerCallDetails], Awaitable[Any]],
        handler_call_details: grpc.HandlerCallDetails,
    ) -> Any:
        """Gives the handler of a call, or one that refuses it."""
        method = handler_call_details.method
        handler = await continuation(handler_call_details)
        if handler is None or method.startswith(_OPEN):
            return handler
        secret = _secret(handler_call_details.invocation_metadata)
        try:
            principal = await self._identify(secret)
        except TenureError as exc:
            error = exc

            async def tell(_: Any, context: Context) -> None:
                await self._refusals.tell(secret, error, context)

            return _refusing(handler, error, tell)
        # The handler runs in the same task, and so in this context.
        PRINCIPAL.set(principal)
        try:
            _check(principal, method)
        except TenureError as exc:
            denied = exc

            async def record(request: Any, context: Context) -> None:
                if SCOPES.get(method) is Scope.ADMIN:
                    action = method.rpartition("/")[2]
                    await self._refusals.record(action, request, context, denied)

            return _refusing(handler, denied, record)
        return handler

    async def _identify(self, secret: str | None) -> Principal:
        principal = self._keys.known(secret)
        if principal is None:
            principal = await self._calls.run(self._keys.identify, secret)
        return principal


def _check(principal: Principal, method: str) -> None:
    if method not in SCOPES:
        raise scope_missing("none", f"{method} may not be called")
    scope = SCOPES[method]
    if scope is not None:
        principal.check_scope(scope)


def _secret(metadata: Any) -> str | None:
    for key, value in metadata or ():
        if key == "authorization":
            text = value.decode("ascii", "replace") if isinstance(value, bytes) else str(value)
            if text[: len(_BEARER)].lower() == _BEARER:
                return text[len(_BEARER) :].strip()
            return text.strip()
    return None


def _refusing(
    handler: Any, error: TenureError, note: Callable[[Any, Context], Awaitable[None]]
) -> Any:
    """Gives a handler of the same kind that notes a call and answers it with an error."""

    async def refuse(request: Any, context: Context) -> Any:
        await note(request, context)
        await errors.abort(context, error)

    async def refuse_stream(request: Any, context: Context) -> Any:
        await note(request, context)
        await errors.abort(context, error)
        yield  # pragma: no cover - makes it a stream

    if handler.request_streaming and handler.response_streaming:
        return handler._replace(stream_stream=refuse_stream)
    if handler.request_streaming:
        return handler._replace(stream_unary=refuse)
    if handler.response_streaming:
        return handler._replace(unary_stream=refuse_stream)
    return handler._replace(unary_unary=refuse)
