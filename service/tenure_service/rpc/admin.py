"""AdminService."""

import re
from collections.abc import Sequence
from datetime import datetime, timedelta

from tenure.v1 import admin_service_pb2 as service
from tenure.v1 import admin_service_pb2_grpc as service_grpc
from tenure_service.engine import limits, tokens
from tenure_service.engine.access import Principal, Scope, scope_missing
from tenure_service.engine.errors import FieldInvalid, Reason, TenureError
from tenure_service.engine.states import DeadLetterState
from tenure_service.engine.tokens import TaskKey
from tenure_service.rpc import errors, pages, views
from tenure_service.rpc.call import PRINCIPAL, Calls, Context, namespace
from tenure_service.rpc.check import Check
from tenure_service.rpc.operated import operated
from tenure_service.store import rows
from tenure_service.usecase import operate
from tenure_service.usecase.access import DeedsWanted

_NAMESPACE = re.compile(r"[a-z0-9_-]{1,100}")
_NUMBER = re.compile(r"[0-9]{1,18}")
_LAST_EVENT = 2**63 - 1
_SCOPES = {
    service.SCOPE_WORKER: Scope.WORKER,
    service.SCOPE_CLIENT: Scope.CLIENT,
    service.SCOPE_ADMIN: Scope.ADMIN,
}


class AdminServicer(service_grpc.AdminServiceServicer):
    """Shows and steers what a namespace holds."""

    def __init__(self, calls: Calls) -> None:
        self._calls = calls
        self._hub = calls.hub

    @operated
    async def CreateNamespace(
        self,
        request: service.CreateNamespaceRequest,
        context: Context,  # noqa: ARG002 - the signature is the protocol's
    ) -> service.CreateNamespaceResponse:
        """Creates a namespace; see the protocol."""
        principal = PRINCIPAL.get()
        if principal.namespace_id is not None:
            raise scope_missing("every namespace", "this key is for one namespace only")
        principal.check_every_queue("namespaces")
        if not _NAMESPACE.fullmatch(request.name):
            raise FieldInvalid(
                [("name", "must be 1 to 100 lower case letters, digits, `-` and `_`")]
            )
        row = await self._calls.run(
            operate.create_namespace, self._hub.database, self._hub.catalogue, request.name
        )
        return service.CreateNamespaceResponse(namespace=_namespace(row))

    @operated
    async def ListNamespaces(
        self,
        request: service.ListNamespacesRequest,  # noqa: ARG002 - the signature is the protocol's
        context: Context,  # noqa: ARG002 - the signature is the protocol's
    ) -> service.ListNamespacesResponse:
        """Lists namespaces; see the protocol."""
        own = PRINCIPAL.get().namespace_id
        every = await self._calls.run(self._hub.catalogue.namespaces)
        found = [row for row in every if own is None or row.namespace_id == own]
        return service.ListNamespacesResponse(namespaces=[_namespace(row) for row in found])

    @operated
    async def ListWorkers(
        self,
        request: service.ListWorkersRequest,  # noqa: ARG002 - the signature is the protocol's
        context: Context,
    ) -> service.ListWorkersResponse:
        """Lists workers; see the protocol."""
        found = await self._calls.run(
            operate.list_workers, self._hub.database, await self._calls.namespace_id(context)
        )
        principal = PRINCIPAL.get()
        shown = (_of_queues(views.worker_message(row), principal) for row in found)
        return service.ListWorkersResponse(workers=[one for one in shown if one is not None])

    @operated
    async def GetQueueStatistics(
        self, request: service.GetQueueStatisticsRequest, context: Context
    ) -> service.GetQueueStatisticsResponse:
        """Counts what stands where; see the protocol."""
        check = Check()
        check.text("queue", request.queue, limits.NAME_BYTES_MAX)
        check.done()
        principal = PRINCIPAL.get()
        if request.queue:
            principal.check_queue(request.queue)
        found = await self._calls.run(
            operate.queue_statistics,
            self._hub.database,
            await self._calls.namespace_id(context),
            queue=request.queue or None,
        )
        return service.GetQueueStatisticsResponse(
            statistics=[
                views.queue_statistics_message(row) for row in found if principal.may_use(row.queue)
            ]
        )

    @operated
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
        PRINCIPAL.get().check_queue(request.queue)
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
        listed = pages.fitting(views.dead_letter_message(row) for row in found)
        token = ""
        if found and (found[0].page_count == page_size or len(listed) < found[0].page_count):
            last = found[len(listed) - 1]
            token = pages.write(kind, last.died_at.isoformat(), last.task_id)
        return service.ListDeadLettersResponse(dead_letters=listed, next_page_token=token)

    @operated
    async def ReplayDeadLetters(
        self, request: service.ReplayDeadLettersRequest, context: Context
    ) -> service.ReplayDeadLettersResponse:
        """Makes dead tasks ready again; see the protocol."""
        keys = _keys(request.task_ids)
        namespace_id = await self._calls.namespace_id(context)
        keys = await self._visible(namespace_id, keys)
        answers, lanes = await self._calls.run(
            operate.replay,
            self._hub.database,
            namespace_id,
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

    @operated
    async def DiscardDeadLetters(
        self, request: service.DiscardDeadLettersRequest, context: Context
    ) -> service.DiscardDeadLettersResponse:
        """Marks dead letters as dealt with; see the protocol."""
        keys = _keys(request.task_ids)
        namespace_id = await self._calls.namespace_id(context)
        keys = await self._visible(namespace_id, keys)
        answers = await self._calls.run(
            operate.discard,
            self._hub.database,
            namespace_id,
            [key for key in keys if key is not None],
        )
        response = service.DiscardDeadLettersResponse()
        for answer in _spread(request.task_ids, keys, answers):
            if isinstance(answer, TenureError):
                response.results.add(error=errors.status(answer))
            else:
                response.results.add(state=_state(answer))
        return response

    @operated
    async def CreateApiKey(
        self, request: service.CreateApiKeyRequest, context: Context
    ) -> service.CreateApiKeyResponse:
        """Makes a key; see the protocol."""
        check = Check()
        check.name("name", request.name, required=True)
        check.count("scopes", request.scopes, len(Scope))
        scopes = [_SCOPES.get(scope) for scope in request.scopes]
        if None in scopes:
            check.wrong("scopes", "has one that this server does not know")
        check.count("queue_globs", request.queue_globs, limits.KEY_GLOB_COUNT_MAX, low=0)
        for place, glob in enumerate(request.queue_globs):
            check.text(f"queue_globs[{place}]", glob, limits.NAME_BYTES_MAX, required=True)
        lifetime = None
        if request.HasField("lifetime"):
            lifetime = timedelta(
                milliseconds=check.duration_ms(
                    "lifetime", request.lifetime, high=limits.KEY_DURATION_MAX
                )
            )
        check.done()
        namespace_id = None if request.every_namespace else await self._calls.namespace_id(context)
        row, secret = await self._calls.run(
            self._hub.keys.create,
            PRINCIPAL.get(),
            namespace_id=namespace_id,
            name=request.name,
            scopes=[scope for scope in scopes if scope is not None],
            queue_globs=list(request.queue_globs),
            lifetime=lifetime,
        )
        return service.CreateApiKeyResponse(key=_api_key(row), secret=secret)

    @operated
    async def ListApiKeys(
        self,
        request: service.ListApiKeysRequest,
        context: Context,
    ) -> service.ListApiKeysResponse:
        """Lists keys; see the protocol."""
        namespace_id = await self._calls.namespace_id(context)
        found = await self._calls.run(
            self._hub.keys.list_, PRINCIPAL.get(), include_ended=request.include_ended
        )
        counts = await self._calls.run(self._hub.keys.worker_counts)
        return service.ListApiKeysResponse(
            keys=[
                _api_key(row, counts.get(row.key_id, 0))
                for row in found
                if row.namespace_id in {None, namespace_id}
            ]
        )

    @operated
    async def RevokeApiKey(
        self, request: service.RevokeApiKeyRequest, context: Context
    ) -> service.RevokeApiKeyResponse:
        """Ends a key; see the protocol."""
        if not tokens.is_uuid(request.key_id):
            raise FieldInvalid([("key_id", "is not an id of this server")])
        await self._calls.namespace_id(context)
        row = await self._calls.run(self._hub.keys.revoke, PRINCIPAL.get(), request.key_id)
        await self._hub.check_keys()
        return service.RevokeApiKeyResponse(key=_api_key(row))

    @operated
    async def ListAuditEvents(
        self, request: service.ListAuditEventsRequest, context: Context
    ) -> service.ListAuditEventsResponse:
        """Lists what operators did; see the protocol."""
        PRINCIPAL.get().check_every_queue("events of the record")
        check = Check()
        page_size = check.page_size(request.page_size)
        wanted = _deeds_wanted(check, request)
        check.done()
        place = pages.read("audit", request.page_token, 1)
        if place is not None and not _NUMBER.fullmatch(place[0]):
            raise FieldInvalid([("page_token", "is not a token of this list")])
        await self._calls.namespace_id(context)
        found = await self._calls.run(
            self._hub.keys.deeds,
            namespace(context),
            wanted,
            include_general=PRINCIPAL.get().namespace_id is None,
            before=int(place[0]) if place else _LAST_EVENT,
            row_count_max=page_size,
        )
        token = ""
        if len(found) == page_size:
            token = pages.write("audit", str(found[-1].audit_event_id))
        return service.ListAuditEventsResponse(
            events=[_audit_event(row) for row in found], next_page_token=token
        )

    async def _visible(
        self, namespace_id: int, keys: Sequence[TaskKey | None]
    ) -> list[TaskKey | None]:
        """Gives None in the place of tasks that do not exist for the caller."""
        if not PRINCIPAL.get().restricted:
            return list(keys)
        there = [key for key in keys if key is not None]
        shown = await self._calls.run(self._hub.keys.visible, PRINCIPAL.get(), namespace_id, there)
        return [key if key in shown else None for key in keys]


def _of_queues(message: service.Worker, principal: Principal) -> service.Worker | None:
    """Leaves out what a worker serves on queues that the caller may not use; None: all of it."""
    if not principal.restricted:
        return message
    kept = [each for each in message.handlers if principal.may_use(each.queue)]
    del message.handlers[:]
    message.handlers.extend(kept)
    for queue in list(message.slots.by_queue):
        if not principal.may_use(queue):
            del message.slots.by_queue[queue]
    return message if kept else None


def _api_key(row: rows.ApiKeyRow, worker_count: int = 0) -> service.ApiKey:
    message = service.ApiKey(
        key_id=row.key_id,
        name=row.name,
        namespace=row.namespace or "",
        scopes=[scope for scope, name in _SCOPES.items() if name in row.scopes],
        queue_globs=row.queue_globs,
        created_at=views.timestamp(row.created_at),
        worker_count=worker_count,
        created_by=row.created_by or "",
    )
    if row.expires_at is not None:
        message.expires_at.CopyFrom(views.timestamp(row.expires_at))
    if row.revoked_at is not None:
        message.revoked_at.CopyFrom(views.timestamp(row.revoked_at))
    if row.used_at is not None:
        message.used_at.CopyFrom(views.timestamp(row.used_at))
    return message


def _deeds_wanted(check: Check, request: service.ListAuditEventsRequest) -> DeedsWanted:
    return DeedsWanted(
        actor=check.text("actor", request.actor, limits.ACTOR_BYTES_MAX) or None,
        action=check.text("action", request.action, limits.NAME_BYTES_MAX) or None,
        since=check.instant("since", request.since) if request.HasField("since") else None,
        until=check.instant("until", request.until) if request.HasField("until") else None,
        refused_only=request.refused_only,
        changes_only=request.changes_only,
    )


def _audit_event(row: rows.AuditEventRow) -> service.AuditEvent:
    return service.AuditEvent(
        at=views.timestamp(row.at),
        actor=row.actor,
        action=row.action,
        namespace=row.namespace or "",
        request=row.request,
        outcome=row.outcome,
        peer=row.peer,
    )


def _namespace(row: rows.NamespaceRow) -> service.Namespace:
    return service.Namespace(name=row.name, created_at=views.timestamp(row.created_at))


def _state(state: DeadLetterState) -> service.DeadLetterState.ValueType:
    return service.DeadLetterState.Value(f"DEAD_LETTER_STATE_{state}")


def _keys(texts: Sequence[str]) -> list[TaskKey | None]:
    check = Check()
    check.count("task_ids", texts, limits.CANCEL_COUNT_MAX)
    keys = [check.item_key(f"task_ids[{place}]", text) for place, text in enumerate(texts)]
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
