"""Every unary RPC of the server, for programs that run an event loop.

`tenure.Client` is the same for programs that do not; its methods run these.
"""

from __future__ import annotations

import asyncio
import logging
from typing import TYPE_CHECKING, TypeVar

from google.protobuf.message import Message

from tenure import (
    access,
    awaiter,
    channel,
    connection,
    errors,
    methods,
    payload_codec,
    policy,
    reading,
    records,
    status,
    tracing,
)
from tenure.run_client import WAIT_SECONDS_MAX, AsyncRunCalls
from tenure.v1 import admin_service_pb2 as admin
from tenure.v1 import registry_service_pb2 as registry
from tenure.v1 import task_service_pb2 as tasks

if TYPE_CHECKING:
    import datetime
    from collections.abc import Iterable, Sequence

    from tenure import security

T = TypeVar("T")
Record = TypeVar("Record", records.TaskSnapshot, records.TaskOutcome, records.DeadLetter)
Request = TypeVar("Request", bound=Message)
Response = TypeVar("Response", bound=Message)

_log = logging.getLogger("tenure.client")


class AsyncClient(AsyncRunCalls):
    """AsyncClient calls the server by names of tasks and workflows, without an `App`.

    It needs no closing: connections belong to the process, one for each server and namespace.

    Args:
        address: `host:port`; default TENURE_ADDRESS, then 127.0.0.1:7711.
        namespace: Default TENURE_NAMESPACE, then `default`.
        api_key: Default TENURE_API_KEY, then none.
        tls: True, the path of a CA file, or `tenure.TLS(...)`; default TENURE_TLS_CA,
            TENURE_TLS_CLIENT_CERT and TENURE_TLS_CLIENT_KEY, then plain text.
        codec: Encodes and decodes all payloads but those given as `Payload`.

    Every method raises `ServiceError`s: the class says the reason, `Unavailable` that the server
    did not answer within 30 s.
    """

    def __init__(
        self,
        address: str | None = None,
        namespace: str | None = None,
        api_key: str | None = None,
        *,
        tls: security.Argument = None,
        codec: payload_codec.PayloadCodec | None = None,
    ) -> None:
        self.target = channel.target(address, namespace, api_key, tls)
        self._codec = payload_codec.from_argument(codec)

    async def enqueue(self, new_task: records.NewTask) -> records.EnqueuedTask:
        """Enqueues one task by name; concurrent calls share commits.

        Raises:
            KeyTaken: another name or input stands under the key.
            ValueRefused: JSON cannot carry an argument.
        """
        with tracing.enqueueing(new_task.name, new_task.queue) as span:
            (task,) = await self._written([new_task])
            stored = await self._on_loop(connection.connect(self.target).enqueuer.enqueue(task))
            tracing.enqueued(span, stored.task_id)
        return records.EnqueuedTask(id=stored.task_id, existing=stored.existing)

    async def enqueue_many(
        self, new_tasks: Sequence[records.NewTask]
    ) -> list[records.EnqueuedTask | errors.ServiceError]:
        """Enqueues 1 to 1,000 tasks in one call and answers each, in order."""
        name, queue = (new_tasks[0].name, new_tasks[0].queue) if new_tasks else ("", "")
        with tracing.enqueueing(name, queue, len(new_tasks)):
            batch = await self._written(new_tasks)
            answers = await self._on_loop(
                connection.connect(self.target).enqueuer.enqueue_batch(batch)
            )
        return [
            answer
            if isinstance(answer, errors.ServiceError)
            else records.EnqueuedTask(id=answer.task_id, existing=answer.existing)
            for answer in answers
        ]

    async def get_task(self, task_id: str, *, payloads: bool = False) -> records.TaskDetails:
        """Reads a task and its deliveries; with input and output if `payloads`.

        Raises:
            NotFound: no such task in the namespace.
        """
        request = tasks.GetTaskRequest(task_id=task_id, include_payloads=payloads)
        response = await self._call(methods.GET_TASK, request)
        return records.TaskDetails(
            task=await self._plain(reading.task(response.task)),
            deliveries=[reading.delivery(each) for each in response.deliveries],
        )

    async def await_tasks(
        self, task_ids: Sequence[str], timeout: float = 0.0
    ) -> dict[str, records.TaskOutcome | errors.ServiceError]:
        """Waits until at least one of 1 to 10,000 tasks is over, for `timeout` seconds.

        Returns:
            All that are over or unknown by then, by id; empty if none is.
        """
        link = connection.connect(self.target)
        seconds = min(timeout, WAIT_SECONDS_MAX)
        outcomes = await self._on_loop(awaiter.fetch(link, task_ids, seconds))
        if not outcomes and timeout > seconds:
            return await self.await_tasks(task_ids, timeout - seconds)
        return {
            task_id: outcome
            if isinstance(outcome, errors.ServiceError)
            else await self._plain(reading.outcome(outcome))
            for task_id, outcome in outcomes.items()
        }

    async def cancel_tasks(
        self,
        task_ids: Sequence[str],
        *,
        reason: str = "",
        grace: policy.Seconds | None = None,
    ) -> list[records.TaskState | errors.ServiceError]:
        """Asks for the end of 1 to 1,000 tasks; running handlers get `grace` (30 s) to end.

        Returns:
            The state after the call, or why nothing was done, for each in order.
        """
        request = tasks.CancelTasksRequest(task_ids=task_ids, reason=reason)
        if grace is not None:
            request.grace_duration.CopyFrom(policy.duration(grace, "grace"))
        response = await self._call(methods.CANCEL_TASKS, request)
        return [
            status.from_status(each.error)
            if each.HasField("error")
            else reading.task_state(each.state)
            for each in response.results
        ]

    async def list_tasks(
        self,
        state: records.TaskState,
        *,
        queue: str = "",
        name: str = "",
        page_size: int = 0,
        page_token: str = "",
    ) -> records.Page[records.TaskSnapshot]:
        """Lists tasks of one state, newest first; 100 a page unless said otherwise."""
        request = tasks.ListTasksRequest(
            state=reading.state_number(state),
            queue=queue,
            name=name,
            page_size=page_size,
            page_token=page_token,
        )
        response = await self._call(methods.LIST_TASKS, request)
        return records.Page(
            [await self._plain(reading.task(each)) for each in response.tasks],
            response.next_page_token,
        )

    async def explain_task(self, task_id: str) -> records.TaskExplanation:
        """Says why a task stands where it stands.

        Raises:
            NotFound: no such task in the namespace.
        """
        request = tasks.ExplainTaskRequest(task_id=task_id)
        return reading.explanation(await self._call(methods.EXPLAIN_TASK, request))

    async def set_task_definition(
        self, name: str, override: records.Policy | None
    ) -> records.TaskDefinition:
        """Stores an operator's override for tasks enqueued from now on; None clears it."""
        request = registry.SetTaskDefinitionRequest(
            name=name, override=reading.policy_message(override)
        )
        response = await self._call(methods.SET_TASK_DEFINITION, request)
        return reading.definition(response.definition)

    async def list_task_definitions(
        self, *, page_size: int = 0, page_token: str = ""
    ) -> records.Page[records.TaskDefinition]:
        """Lists what is known of task names, in order of name."""
        request = registry.ListTaskDefinitionsRequest(page_size=page_size, page_token=page_token)
        response = await self._call(methods.LIST_TASK_DEFINITIONS, request)
        return records.Page(
            [reading.definition(each) for each in response.definitions], response.next_page_token
        )

    async def set_queue(self, name: str, *, paused: bool) -> records.Queue:
        """Creates or changes a queue; while paused, nothing is handed out of it."""
        request = registry.SetQueueRequest(name=name, paused=paused)
        return reading.queue((await self._call(methods.SET_QUEUE, request)).queue)

    async def list_queues(
        self, *, page_size: int = 0, page_token: str = ""
    ) -> records.Page[records.Queue]:
        """Lists queues, in order of name."""
        request = registry.ListQueuesRequest(page_size=page_size, page_token=page_token)
        response = await self._call(methods.LIST_QUEUES, request)
        return records.Page(
            [reading.queue(each) for each in response.queues], response.next_page_token
        )

    async def create_namespace(self, name: str) -> records.Namespace:
        """Creates a namespace, or answers with the one that exists."""
        request = admin.CreateNamespaceRequest(name=name)
        response = await self._call(methods.CREATE_NAMESPACE, request)
        return reading.namespace(response.namespace)

    async def list_namespaces(self) -> list[records.Namespace]:
        """Lists namespaces, in order of name."""
        response = await self._call(methods.LIST_NAMESPACES, admin.ListNamespacesRequest())
        return [reading.namespace(each) for each in response.namespaces]

    async def list_workers(self) -> list[records.WorkerInfo]:
        """Lists workers that hold a session, in order of name."""
        response = await self._call(methods.LIST_WORKERS, admin.ListWorkersRequest())
        return [reading.worker(each) for each in response.workers]

    async def queue_statistics(self, queue: str = "") -> list[records.QueueStatistics]:
        """Counts what stands where, by queue and task name; empty `queue`: all."""
        request = admin.GetQueueStatisticsRequest(queue=queue)
        response = await self._call(methods.GET_QUEUE_STATISTICS, request)
        return [reading.statistics(each) for each in response.statistics]

    async def list_dead_letters(
        self,
        *,
        queue: str = "",
        name: str = "",
        state: records.DeadLetterState | None = None,
        payloads: bool = False,
        page_size: int = 0,
        page_token: str = "",
    ) -> records.Page[records.DeadLetter]:
        """Lists tasks that ended without success, newest first; open ones unless `state` is set."""
        request = admin.ListDeadLettersRequest(
            queue=queue,
            name=name,
            state=reading.dead_letter_state_number(state),
            include_payloads=payloads,
            page_size=page_size,
            page_token=page_token,
        )
        response = await self._call(methods.LIST_DEAD_LETTERS, request)
        return records.Page(
            [await self._plain(reading.dead_letter(each)) for each in response.dead_letters],
            response.next_page_token,
        )

    async def replay_dead_letters(
        self, task_ids: Sequence[str]
    ) -> list[records.DeadLetterState | errors.ServiceError]:
        """Makes 1 to 1,000 dead tasks ready again, attempts counted from 1.

        Returns:
            The state after the call, or why nothing was done, for each in order.
        """
        request = admin.ReplayDeadLettersRequest(task_ids=task_ids)
        response = await self._call(methods.REPLAY_DEAD_LETTERS, request)
        return _dead_letter_answers(response.results)

    async def discard_dead_letters(
        self, task_ids: Sequence[str]
    ) -> list[records.DeadLetterState | errors.ServiceError]:
        """Marks 1 to 1,000 dead letters as dealt with; the tasks stay DEAD and readable.

        Returns:
            The state after the call, or why nothing was done, for each in order.
        """
        request = admin.DiscardDeadLettersRequest(task_ids=task_ids)
        response = await self._call(methods.DISCARD_DEAD_LETTERS, request)
        return _dead_letter_answers(response.results)

    async def create_api_key(
        self,
        name: str,
        scopes: Iterable[access.Scope | str],
        *,
        queues: Iterable[str] = (),
        every_namespace: bool = False,
        lifetime: datetime.timedelta | None = None,
    ) -> access.NewApiKey:
        """Makes a key for this client's namespace, or every one; no `queues`: all queues.

        It may do no more than the key that this client sends.
        """
        request = admin.CreateApiKeyRequest(
            name=name,
            scopes=access.scope_numbers(scopes),
            queue_globs=queues,
            every_namespace=every_namespace,
        )
        if lifetime is not None:
            request.lifetime.FromTimedelta(lifetime)
        response = await self._call(methods.CREATE_API_KEY, request)
        return access.NewApiKey(key=access.api_key(response.key), secret=response.secret)

    async def list_api_keys(self, *, include_ended: bool = False) -> list[access.ApiKey]:
        """Lists the keys that are for this client's namespace, oldest first."""
        request = admin.ListApiKeysRequest(include_ended=include_ended)
        response = await self._call(methods.LIST_API_KEYS, request)
        return [access.api_key(each) for each in response.keys]

    async def revoke_api_key(self, key_id: str) -> access.ApiKey:
        """Ends a key: calls are refused within 5 s, open streams end within 10 s."""
        response = await self._call(
            methods.REVOKE_API_KEY, admin.RevokeApiKeyRequest(key_id=key_id)
        )
        return access.api_key(response.key)

    async def list_audit_events(
        self,
        *,
        actor: str = "",
        action: str = "",
        since: datetime.datetime | None = None,
        until: datetime.datetime | None = None,
        refused_only: bool = False,
        changes_only: bool = False,
        page_size: int = 0,
        page_token: str = "",
    ) -> records.Page[access.AuditEvent]:
        """Lists what operators did, newest first.

        Args:
            actor: Only by this one: as events name it, or a key by its name or id.
            action: Only this action, such as `SetQueue`.
            since: Only from this instant on.
            until: Only before this instant.
            refused_only: Only what did not end with `OK`.
            changes_only: Without what only reads.
            page_size: Events wanted at most; 0: 100.
            page_token: Token of the previous page.
        """
        request = admin.ListAuditEventsRequest(
            page_size=page_size,
            page_token=page_token,
            actor=actor,
            action=action,
            refused_only=refused_only,
            changes_only=changes_only,
        )
        if since is not None:
            request.since.FromDatetime(since)
        if until is not None:
            request.until.FromDatetime(until)
        response = await self._call(methods.LIST_AUDIT_EVENTS, request)
        return records.Page(
            [access.audit_event(each) for each in response.events], response.next_page_token
        )

    async def _written(self, new_tasks: Sequence[records.NewTask]) -> list[tasks.NewTask]:
        if self._codec is None:
            written = [reading.new_task(each) for each in new_tasks]
        else:
            # The program's code, which may block, and this may be the I/O loop.
            written = await asyncio.to_thread(
                lambda: [reading.new_task(each, self._codec) for each in new_tasks]
            )
        own = tracing.traceparent()
        for task in written if own else ():
            # What the program says of the task goes before what runs around the call.
            task.traceparent = task.traceparent or own
        return written


def _dead_letter_answers(
    results: Iterable[admin.ReplayDeadLettersResult] | Iterable[admin.DiscardDeadLettersResult],
) -> list[records.DeadLetterState | errors.ServiceError]:
    return [
        status.from_status(each.error)
        if each.HasField("error")
        else reading.dead_letter_state(each.state)
        for each in results
    ]
