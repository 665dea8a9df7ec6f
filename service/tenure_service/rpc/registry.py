"""RegistryService."""

from tenure.v1 import registry_service_pb2 as service
from tenure.v1 import registry_service_pb2_grpc as service_grpc
from tenure_service.engine.policy import PartialPolicy, resolve
from tenure_service.rpc import pages, policies, views
from tenure_service.rpc.call import PRINCIPAL, Calls, Context
from tenure_service.rpc.check import Check
from tenure_service.rpc.operated import operated
from tenure_service.store import rows
from tenure_service.usecase import operate

_DEFINITIONS = "task definitions"


class RegistryServicer(service_grpc.RegistryServiceServicer):
    """Keeps task definitions and queues."""

    def __init__(self, calls: Calls) -> None:
        self._calls = calls
        self._hub = calls.hub

    @operated
    async def SetTaskDefinition(
        self, request: service.SetTaskDefinitionRequest, context: Context
    ) -> service.SetTaskDefinitionResponse:
        """Stores an override; see the protocol."""
        check = Check()
        PRINCIPAL.get().check_every_queue(_DEFINITIONS)
        check.name("name", request.name, required=True)
        override = policies.read(check, "override", request.override) or PartialPolicy()
        check.done()
        row = await self._calls.run(
            operate.set_task_definition,
            self._hub.database,
            self._hub.catalogue,
            await self._calls.namespace_id(context),
            request.name,
            override,
        )
        return service.SetTaskDefinitionResponse(definition=_definition(row))

    @operated
    async def ListTaskDefinitions(
        self, request: service.ListTaskDefinitionsRequest, context: Context
    ) -> service.ListTaskDefinitionsResponse:
        """Lists task definitions; see the protocol."""
        PRINCIPAL.get().check_every_queue(_DEFINITIONS)
        check = Check()
        page_size = check.page_size(request.page_size)
        check.done()
        place = pages.read("task_defs", request.page_token, 1)
        found = await self._calls.run(
            operate.list_task_definitions,
            self._hub.database,
            await self._calls.namespace_id(context),
            after=place[0] if place else "",
            row_count_max=page_size,
        )
        token = pages.write("task_defs", found[-1].name) if len(found) == page_size else ""
        return service.ListTaskDefinitionsResponse(
            definitions=[_definition(row) for row in found], next_page_token=token
        )

    @operated
    async def SetQueue(
        self, request: service.SetQueueRequest, context: Context
    ) -> service.SetQueueResponse:
        """Pauses or opens a queue; see the protocol."""
        check = Check()
        check.name("name", request.name, required=True)
        check.done()
        PRINCIPAL.get().check_queue(request.name)
        row = await self._calls.run(
            operate.set_queue,
            self._hub.database,
            await self._calls.namespace_id(context),
            request.name,
            paused=request.paused,
        )
        return service.SetQueueResponse(queue=_queue(row))

    @operated
    async def ListQueues(
        self, request: service.ListQueuesRequest, context: Context
    ) -> service.ListQueuesResponse:
        """Lists queues; see the protocol."""
        check = Check()
        page_size = check.page_size(request.page_size)
        check.done()
        place = pages.read("queues", request.page_token, 1)
        found = await self._calls.run(
            operate.list_queues,
            self._hub.database,
            await self._calls.namespace_id(context),
            after=place[0] if place else "",
            row_count_max=page_size,
        )
        token = pages.write("queues", found[-1].name) if len(found) == page_size else ""
        return service.ListQueuesResponse(
            queues=[_queue(row) for row in found if PRINCIPAL.get().may_use(row.name)],
            next_page_token=token,
        )


def _definition(row: rows.TaskDefRow) -> service.TaskDefinition:
    declared = PartialPolicy.from_json(row.declared)
    override = PartialPolicy.from_json(row.override)
    message = service.TaskDefinition(
        name=row.name,
        effective=policies.write(resolve(override, declared)),
        app_version=row.app_version,
        updated_at=views.timestamp(row.updated_at),
        registered=row.declared is not None,
    )
    if row.declared:
        message.declared.CopyFrom(policies.write_partial(declared))
    if row.override:
        message.override.CopyFrom(policies.write_partial(override))
    return message


def _queue(row: rows.QueueRow) -> service.Queue:
    message = service.Queue(name=row.name)
    if row.paused_at is not None:
        message.paused_at.CopyFrom(views.timestamp(row.paused_at))
    return message
