"""AdminService."""

import re
from collections.abc import Sequence
from datetime import datetime

from tenure.v1 import admin_service_pb2 as service
from tenure.v1 import admin_service_pb2_grpc as service_grpc
from tenure_service.engine import limits
from tenure_service.engine.errors import FieldInvalid, Reason, TenureError
from tenure_service.engine.states import DeadLetterState
from tenure_service.engine.tokens import TaskKey
from tenure_service.rpc import errors, pages, views
from tenure_service.rpc.call import Calls, Context, unary
from tenure_service.rpc.check import Check
from tenure_service.store import rows
from tenure_service.usecase import operate

_NAMESPACE = re.compile(r"[a-z0-9_-]{1,100}")


class AdminServicer(service_grpc.AdminServiceServicer):
    """Shows and steers what a namespace holds."""

    def __init__(self, calls: Calls) -> None:
        self._calls = calls
        self._hub = calls.hub

    @unary
    async def CreateNamespace(
        self,
        request: service.CreateNamespaceRequest,
        context: Context,  # noqa: ARG002 - the signature is the protocol's
    ) -> service.CreateNamespaceResponse:
        """Creates a namespace; see the protocol."""
        if not _NAMESPACE.fullmatch(request.name):
            raise FieldInvalid(
                [("name", "must be 1 to 100 lower case letters, digits, `-` and `_`")]
            )
        row = await self._calls.run(
            operate.create_namespace, self._hub.database, self._hub.catalogue, request.name
        )
        return service.CreateNamespaceResponse(namespace=_namespace(row))

    @unary
    async def ListNamespaces(
        self,
        request: service.ListNamespacesRequest,  # noqa: ARG002 - the signature is the protocol's
        context: Context,  # noqa: ARG002 - the signature is the protocol's
    ) -> service.ListNamespacesResponse:
        """Lists namespaces; see the protocol."""
        found = await self._calls.run(self._hub.catalogue.namespaces)
        return service.ListNamespacesResponse(namespaces=[_namespace(row) for row in found])

    @unary
    async def ListWorkers(
        self,
        request: service.ListWorkersRequest,  # noqa: ARG002 - the signature is the protocol's
        context: Context,
    ) -> service.ListWorkersResponse:
        """Lists workers; see the protocol."""
        found = await self._calls.run(
            operate.list_workers, self._hub.database, await self._calls.namespace_id(context)
        )
        return service.ListWorkersResponse(workers=[views.worker_message(row) for row in found])

    @unary
    async def GetQueueStatistics(
        self, request: service.GetQueueStatisticsRequest, context: Context
    ) -> service.GetQueueStatisticsResponse:
        """Counts what stands where; see the protocol."""
        check = Check()
        check.text("queue", request.queue, limits.NAME_BYTES_MAX)
        check.done()
        found = await self._calls.run(
            operate.queue_statistics,
            self._hub.database,
            await self._calls.namespace_id(context),
            queue=request.queue or None,
        )
        return service.GetQueueStatisticsResponse(
            statistics=[views.queue_statistics_message(row) for row in found]
        )

    @unary
    async def ListDeadLetters(
        self, request: service.ListDeadLettersRequest, context: Context
    ) -> service.ListDeadLettersResponse:
        """Lists dead letters; see the protocol."""
        check = Check()
        page_size = check.page_size(request.page_size)
        check.text("queue", request.queue, limits.NAME_BYTES_MAX)
        check.text("name", request.name, limits.NAME_BYTES_MAX)
        if request.state not in service.DeadLetterState.values():
            check.wrong("state", f"is {request.state}, which this server does not know")
        check.done()
        state = DeadLetterState.OPEN
        if request.state != service.DEAD_LETTER_STATE_UNSPECIFIED:
            name = service.DeadLetterState.Name(request.state)
            state = DeadLetterState(name.removeprefix("DEAD_LETTER_STATE_"))
        kind = f"dead_letters.{state}"
        found = await self._calls.run(
            operate.list_dead_letters,
            self._hub.database,
            await self._calls.namespace_id(context),
            state,
            queue=request.queue or None,
            name=request.name or None,
            include_payloads=request.include_payloads,
            before=_place(pages.read(kind, request.page_token, 2)),
            row_count_max=page_size,
        )
        token = ""
        if len(found) == page_size:
            token = pages.write(kind, found[-1].died_at.isoformat(), found[-1].task_id)
        return service.ListDeadLettersResponse(
            dead_letters=[views.dead_letter_message(row) for row in found],
            next_page_token=token,
        )

    @unary
    async def ReplayDeadLetters(
        self, request: service.ReplayDeadLettersRequest, context: Context
    ) -> service.ReplayDeadLettersResponse:
        """Makes dead tasks ready again; see the protocol."""
        keys = _keys(request.task_ids)
        answers, lanes = await self._calls.run(
            operate.replay,
            self._hub.database,
            await self._calls.namespace_id(context),
            [key for key in keys if key is not None],
        )
        if lanes:
            await self._hub.readied(lanes)
        response = service.ReplayDeadLettersResponse()
        for answer in _spread(request.task_ids, keys, answers):
            if isinstance(answer, TenureError):
                response.results.add(error=errors.status(answer))
            else:
                response.results.add(state=_state(answer))
        return response

    @unary
    async def DiscardDeadLetters(
        self, request: service.DiscardDeadLettersRequest, context: Context
    ) -> service.DiscardDeadLettersResponse:
        """Marks dead letters as dealt with; see the protocol."""
        keys = _keys(request.task_ids)
        answers = await self._calls.run(
            operate.discard,
            self._hub.database,
            await self._calls.namespace_id(context),
            [key for key in keys if key is not None],
        )
        response = service.DiscardDeadLettersResponse()
        for answer in _spread(request.task_ids, keys, answers):
            if isinstance(answer, TenureError):
                response.results.add(error=errors.status(answer))
            else:
                response.results.add(state=_state(answer))
        return response


def _namespace(row: rows.NamespaceRow) -> service.Namespace:
    return service.Namespace(name=row.name, created_at=views.timestamp(row.created_at))


def _state(state: DeadLetterState) -> service.DeadLetterState.ValueType:
    return service.DeadLetterState.Value(f"DEAD_LETTER_STATE_{state}")


def _keys(texts: Sequence[str]) -> list[TaskKey | None]:
    check = Check()
    check.count("task_ids", texts, limits.CANCEL_COUNT_MAX)
    keys = [check.task_key(f"task_ids[{place}]", text) for place, text in enumerate(texts)]
    check.done()
    return keys


def _spread(
    texts: Sequence[str],
    keys: Sequence[TaskKey | None],
    answers: Sequence[DeadLetterState | TenureError],
) -> list[DeadLetterState | TenureError]:
    """Puts answers beside the ids that were no ids, in the order of the call."""
    given = iter(answers)
    return [
        TenureError(
            Reason.NOT_REGISTERED,
            f"no dead letter {text} in this namespace",
            metadata={"kind": "dead_letter", "name": text},
        )
        if key is None
        else next(given)
        for text, key in zip(texts, keys, strict=True)
    ]


def _place(parts: Sequence[str] | None) -> tuple[datetime, str] | None:
    if parts is None:
        return None
    try:
        return datetime.fromisoformat(parts[0]), pages.row_id(parts[1])
    except ValueError as exc:
        raise FieldInvalid([("page_token", "is not a token of this list")]) from exc
