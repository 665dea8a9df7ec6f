"""TaskService."""

import dataclasses
from collections.abc import Sequence

from tenure.v1 import run_pb2 as run
from tenure.v1 import task_pb2 as task
from tenure.v1 import task_service_pb2 as service
from tenure.v1 import task_service_pb2_grpc as service_grpc
from tenure_service.engine import limits
from tenure_service.engine.errors import TenureError, not_found, shutting_down
from tenure_service.engine.states import TaskState
from tenure_service.engine.tokens import TaskKey
from tenure_service.rpc import errors, pages, policies, storing, views
from tenure_service.rpc.call import PRINCIPAL, Calls, Context, unary
from tenure_service.rpc.check import Check
from tenure_service.rpc.operated import paced
from tenure_service.store.jsonb import clean
from tenure_service.usecase import cancel, enqueue, read


def _read_task(check: Check, message: service.NewTask) -> enqueue.Shape:
    return read_shape(check, message, storing.key_ms(check, message))


def read_shape(
    check: Check, message: service.NewTask | run.StepTask, keyed_ms: int = 0
) -> enqueue.Shape:
    """Reads all of a task to enqueue but its input and key."""
    return dataclasses.replace(
        storing.read_shape(check, message, keyed_ms),
        policy=policies.read(check, "policy", message.policy)
        if message.HasField("policy")
        else None,
        declared=policies.read(check, "declared_policy", message.declared_policy)
        if message.HasField("declared_policy")
        else None,
    )


class TaskServicer(service_grpc.TaskServiceServicer):
    """Enqueues tasks, reads them, waits for them and cancels them."""

    def __init__(self, calls: Calls) -> None:
        self._calls = calls
        self._hub = calls.hub

    @unary
    async def EnqueueTasks(
        self, request: service.EnqueueTasksRequest, context: Context
    ) -> service.EnqueueTasksResponse:
        """Stores tasks; see the protocol."""
        if self._hub.draining:
            raise shutting_down()
        check = Check()
        check.count("tasks", request.tasks, limits.ENQUEUE_COUNT_MAX)
        request_id = check.request_id("request_id", request.request_id)
        check.done()
        namespace_id = await self._calls.namespace_id(context)
        answers = await storing.store(
            self._hub,
            namespace_id,
            request.tasks,
            storing.Items("tasks", _read_task),
            request_id,
            storing.digest_of(request, request_id),
        )
        response = service.EnqueueTasksResponse()
        for answer in answers:
            result = response.results.add()
            if isinstance(answer, TenureError):
                result.error.CopyFrom(errors.status(answer))
            else:
                result.task.task_id = answer.task_id
                if answer.existing:
                    result.task.existing = True
        return response

    @unary
    async def GetTask(
        self, request: service.GetTaskRequest, context: Context
    ) -> service.GetTaskResponse:
        """Reads one task; see the protocol."""
        key = _task_key(request.task_id)
        namespace_id = await self._calls.namespace_id(context)
        await self._check_visible(namespace_id, request.task_id, key)
        view, deliveries = await self._calls.run(
            read.get,
            self._hub.database,
            self._hub.catalogue,
            namespace_id,
            key,
            include_payloads=request.include_payloads,
        )
        return service.GetTaskResponse(
            task=views.task_message(view),
            deliveries=[views.delivery_message(row) for row in deliveries],
        )

    @unary
    async def AwaitTasks(
        self, request: service.AwaitTasksRequest, context: Context
    ) -> service.AwaitTasksResponse:
        """Waits for tasks; see the protocol."""
        check = Check()
        check.count("task_ids", request.task_ids, limits.AWAIT_COUNT_MAX)
        wait_ms = check.duration_ms(
            "wait_duration", request.wait_duration, high=limits.WAIT_DURATION_MAX
        )
        keys, unknown = _task_keys(check, request.task_ids)
        check.done()
        namespace_id = await self._calls.namespace_id(context)
        keys, hidden = await self._visible(namespace_id, keys)
        unknown += hidden
        found = await self._hub.await_results(
            namespace_id, list(keys.values()), 0 if unknown else wait_ms / 1000
        )
        response = service.AwaitTasksResponse()
        for text in unknown:
            response.results.add(task_id=text, error=errors.status(not_found(text)))
        size = response.ByteSize()
        for text, key in keys.items():
            if key.task_id not in found:
                continue
            row = found[key.task_id]
            if row is None:
                response.results.add(task_id=text, error=errors.status(not_found(text)))
            else:
                result = views.result_message(row)
                size += result.ByteSize() + len(text)
                if response.results and size > limits.MESSAGE_BYTES_MAX - pages.HEADROOM_BYTES:
                    # The rest is for the next call, which is answered at once.
                    break
                response.results.add(task_id=text, result=result)
        return response

    @paced
    async def CancelTasks(
        self, request: service.CancelTasksRequest, context: Context
    ) -> service.CancelTasksResponse:
        """Asks for the end of tasks; see the protocol."""
        check = Check()
        check.count("task_ids", request.task_ids, limits.CANCEL_COUNT_MAX)
        grace_ms = storing.grace_ms(check, request)
        keys, _ = _task_keys(check, request.task_ids)
        check.done()
        namespace_id = await self._calls.namespace_id(context)
        keys, _ = await self._visible(namespace_id, keys)
        states: dict[str, TaskState] = {}
        if keys:
            states = await self._calls.run(
                cancel.cancel,
                self._hub.database,
                namespace_id,
                list(keys.values()),
                reason=clean(request.reason),
                grace_ms=grace_ms,
            )
            self._cancelled(states)
            await self._hub.tell_cancels()
        response = service.CancelTasksResponse()
        for text in request.task_ids:
            key = keys.get(text)
            state = states.get(key.task_id) if key is not None else None
            if state is None:
                response.results.add(error=errors.status(not_found(text)))
            else:
                response.results.add(state=views.state(state))
        return response

    async def _visible(
        self, namespace_id: int, keys: dict[str, TaskKey]
    ) -> tuple[dict[str, TaskKey], list[str]]:
        """Parts the tasks that the caller may know of from those that do not exist for it."""
        principal = PRINCIPAL.get()
        if not principal.restricted or not keys:
            return keys, []
        shown = await self._calls.run(
            self._hub.keys.visible, principal, namespace_id, list(keys.values())
        )
        kept = {text: key for text, key in keys.items() if key in shown}
        return kept, [text for text in keys if text not in kept]

    async def _check_visible(self, namespace_id: int, text: str, key: TaskKey) -> None:
        shown, _ = await self._visible(namespace_id, {text: key})
        if not shown:
            raise not_found(text)

    def _cancelled(self, states: dict[str, TaskState]) -> None:
        """Tells waiters, and other servers, what a cancellation ended."""
        over = [task_id for task_id, state in states.items() if state is TaskState.CANCELLED]
        self._hub.waiters.over(over)
        self._hub.wake.over(over)
        self._hub.wake.cancels()

    @unary
    async def ListTasks(
        self, request: service.ListTasksRequest, context: Context
    ) -> service.ListTasksResponse:
        """Lists tasks of one state; see the protocol."""
        check = Check()
        page_size = check.page_size(request.page_size)
        if request.state == task.TASK_STATE_UNSPECIFIED:
            check.wrong("state", "must be set")
        elif request.state not in task.TaskState.values():
            check.wrong("state", f"is {request.state}, which this server does not know")
        check.text("queue", request.queue, limits.NAME_BYTES_MAX)
        check.text("name", request.name, limits.NAME_BYTES_MAX)
        check.done()
        PRINCIPAL.get().check_queue(request.queue)
        state = TaskState(task.TaskState.Name(request.state).removeprefix("TASK_STATE_"))
        place = pages.read(f"tasks.{state}", request.page_token, 1)
        namespace_id = await self._calls.namespace_id(context)
        found = await self._calls.run(
            read.list_tasks,
            self._hub.database,
            self._hub.catalogue,
            namespace_id,
            state,
            queue=request.queue or None,
            name=request.name or None,
            before=pages.row_id(place[0]) if place else None,
            row_count_max=page_size,
        )
        listed = pages.fitting(views.task_message(view) for view in found)
        token = ""
        if len(found) == page_size or len(listed) < len(found):
            token = pages.write(f"tasks.{state}", found[len(listed) - 1].row.task_id)
        return service.ListTasksResponse(tasks=listed, next_page_token=token)

    @unary
    async def ExplainTask(
        self, request: service.ExplainTaskRequest, context: Context
    ) -> service.ExplainTaskResponse:
        """Explains one task; see the protocol."""
        key = _task_key(request.task_id)
        namespace_id = await self._calls.namespace_id(context)
        await self._check_visible(namespace_id, request.task_id, key)
        found = await self._calls.run(
            read.explain,
            self._hub.database,
            self._hub.catalogue,
            namespace_id,
            key,
            may_name=PRINCIPAL.get().may_use,
        )
        response = service.ExplainTaskResponse(
            state=views.state(found.state),
            reasons=found.reasons,
            ahead_count=found.ahead_count,
            worker_count=found.worker_count,
        )
        if found.ready_at is not None:
            response.ready_at.CopyFrom(views.timestamp(found.ready_at))
        return response


def _task_key(text: str) -> TaskKey:
    check = Check()
    key = check.task_key("task_id", text)
    check.done()
    if key is None:
        raise not_found(text)
    return key


def _task_keys(check: Check, texts: Sequence[str]) -> tuple[dict[str, TaskKey], list[str]]:
    """Reads task ids: those of our form, and the others, which do not exist."""
    keys: dict[str, TaskKey] = {}
    unknown: list[str] = []
    for place, text in enumerate(texts):
        key = check.item_key(f"task_ids[{place}]", text)
        if key is not None:
            keys[text] = key
        elif text:
            unknown.append(text)
    return keys, unknown
