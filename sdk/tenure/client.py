"""Every unary RPC of the server, for programs without an event loop.

Each method is the blocking form of the method of `tenure.AsyncClient` with the same name and
signature (a test compares them); arguments, answers and errors are described there.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, TypeVar

from tenure.async_client import AsyncClient
from tenure.run_client import AsyncRunCalls, RunCalls, blocking

if TYPE_CHECKING:
    import datetime
    from collections.abc import Iterable, Sequence

    from tenure import access, errors, payload_codec, policy, records, security
    from tenure.channel import Target

T = TypeVar("T")


class Client(RunCalls):
    """Client calls the server by names of tasks and workflows, without an `App`; it needs no closing.

    Args:
        address: `host:port`; default TENURE_ADDRESS, then 127.0.0.1:7711.
        namespace: Default TENURE_NAMESPACE, then `default`.
        api_key: Default TENURE_API_KEY, then none.
        tls: True, the path of a CA file, or `tenure.TLS(...)`; default TENURE_TLS_CA,
            TENURE_TLS_CLIENT_CERT and TENURE_TLS_CLIENT_KEY, then plain text.
        codec: Encodes and decodes all payloads but those given as `Payload`.

    Every method raises `BlockingCallInLoop` inside a running event loop, and `ServiceError`s.
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
        self._async = AsyncClient(address, namespace, api_key, tls=tls, codec=codec)

    @property
    def _runs(self) -> AsyncRunCalls:
        return self._async

    @property
    def target(self) -> Target:
        """Which namespace of which server it calls."""
        return self._async.target

    def enqueue(self, new_task: records.NewTask) -> records.EnqueuedTask:
        """Enqueues one task by name; concurrent calls share commits."""
        return blocking("enqueue", self._async.enqueue(new_task))

    def enqueue_many(
        self, new_tasks: Sequence[records.NewTask]
    ) -> list[records.EnqueuedTask | errors.ServiceError]:
        """Enqueues 1 to 1,000 tasks in one call and answers each, in order."""
        return blocking("enqueue_many", self._async.enqueue_many(new_tasks))

    def get_task(self, task_id: str, *, payloads: bool = False) -> records.TaskDetails:
        """Reads a task and its deliveries; with input and output if `payloads`."""
        return blocking("get_task", self._async.get_task(task_id, payloads=payloads))

    def await_tasks(
        self, task_ids: Sequence[str], timeout: float = 0.0
    ) -> dict[str, records.TaskOutcome | errors.ServiceError]:
        """Waits until at least one of 1 to 10,000 tasks is over, for `timeout` seconds."""
        return blocking("await_tasks", self._async.await_tasks(task_ids, timeout))

    def cancel_tasks(
        self, task_ids: Sequence[str], *, reason: str = "", grace: policy.Seconds | None = None
    ) -> list[records.TaskState | errors.ServiceError]:
        """Asks for the end of 1 to 1,000 tasks; running handlers get `grace` (30 s) to end."""
        return blocking(
            "cancel_tasks", self._async.cancel_tasks(task_ids, reason=reason, grace=grace)
        )

    def list_tasks(
        self,
        state: records.TaskState,
        *,
        queue: str = "",
        name: str = "",
        page_size: int = 0,
        page_token: str = "",
    ) -> records.Page[records.TaskSnapshot]:
        """Lists tasks of one state, newest first; 100 a page unless said otherwise."""
        return blocking(
            "list_tasks",
            self._async.list_tasks(
                state, queue=queue, name=name, page_size=page_size, page_token=page_token
            ),
        )

    def explain_task(self, task_id: str) -> records.TaskExplanation:
        """Says why a task stands where it stands."""
        return blocking("explain_task", self._async.explain_task(task_id))

    def set_task_definition(
        self, name: str, override: records.Policy | None
    ) -> records.TaskDefinition:
        """Stores an operator's override for tasks enqueued from now on; None clears it."""
        return blocking("set_task_definition", self._async.set_task_definition(name, override))

    def list_task_definitions(
        self, *, page_size: int = 0, page_token: str = ""
    ) -> records.Page[records.TaskDefinition]:
        """Lists what is known of task names, in order of name."""
        return blocking(
            "list_task_definitions",
            self._async.list_task_definitions(page_size=page_size, page_token=page_token),
        )

    def set_queue(self, name: str, *, paused: bool) -> records.Queue:
        """Creates or changes a queue; while paused, nothing is handed out of it."""
        return blocking("set_queue", self._async.set_queue(name, paused=paused))

    def list_queues(
        self, *, page_size: int = 0, page_token: str = ""
    ) -> records.Page[records.Queue]:
        """Lists queues, in order of name."""
        return blocking(
            "list_queues", self._async.list_queues(page_size=page_size, page_token=page_token)
        )

    def create_namespace(self, name: str) -> records.Namespace:
        """Creates a namespace, or answers with the one that exists."""
        return blocking("create_namespace", self._async.create_namespace(name))

    def list_namespaces(self) -> list[records.Namespace]:
        """Lists namespaces, in order of name."""
        return blocking("list_namespaces", self._async.list_namespaces())

    def list_workers(self) -> list[records.WorkerInfo]:
        """Lists workers that hold a session, in order of name."""
        return blocking("list_workers", self._async.list_workers())

    def queue_statistics(self, queue: str = "") -> list[records.QueueStatistics]:
        """Counts what stands where, by queue and task name; empty `queue`: all."""
        return blocking("queue_statistics", self._async.queue_statistics(queue))

    def list_dead_letters(
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
        return blocking(
            "list_dead_letters",
            self._async.list_dead_letters(
                queue=queue,
                name=name,
                state=state,
                payloads=payloads,
                page_size=page_size,
                page_token=page_token,
            ),
        )

    def replay_dead_letters(
        self, task_ids: Sequence[str]
    ) -> list[records.DeadLetterState | errors.ServiceError]:
        """Makes 1 to 1,000 dead tasks ready again, attempts counted from 1."""
        return blocking("replay_dead_letters", self._async.replay_dead_letters(task_ids))

    def discard_dead_letters(
        self, task_ids: Sequence[str]
    ) -> list[records.DeadLetterState | errors.ServiceError]:
        """Marks 1 to 1,000 dead letters as dealt with; the tasks stay DEAD and readable."""
        return blocking("discard_dead_letters", self._async.discard_dead_letters(task_ids))

    def create_api_key(
        self,
        name: str,
        scopes: Iterable[access.Scope | str],
        *,
        queues: Iterable[str] = (),
        every_namespace: bool = False,
        lifetime: datetime.timedelta | None = None,
    ) -> access.NewApiKey:
        """Makes a key for this client's namespace, or every one; no `queues`: all queues."""
        return blocking(
            "create_api_key",
            self._async.create_api_key(
                name,
                scopes,
                queues=queues,
                every_namespace=every_namespace,
                lifetime=lifetime,
            ),
        )

    def list_api_keys(self, *, include_ended: bool = False) -> list[access.ApiKey]:
        """Lists the keys that are for this client's namespace, oldest first."""
        return blocking("list_api_keys", self._async.list_api_keys(include_ended=include_ended))

    def revoke_api_key(self, key_id: str) -> access.ApiKey:
        """Ends a key: calls are refused within 5 s, open streams end within 10 s."""
        return blocking("revoke_api_key", self._async.revoke_api_key(key_id))

    def list_audit_events(
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
        """Lists what operators did, newest first; see `AsyncClient` for what may be asked."""
        return blocking(
            "list_audit_events",
            self._async.list_audit_events(
                actor=actor,
                action=action,
                since=since,
                until=until,
                refused_only=refused_only,
                changes_only=changes_only,
                page_size=page_size,
                page_token=page_token,
            ),
        )
