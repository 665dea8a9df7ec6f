"""One client without an SDK: the stubs of all services over one channel, in one namespace."""

from collections.abc import Iterable, Sequence
from typing import Any

from google.protobuf import duration_pb2
from grpc import aio
from grpc_health.v1 import health_pb2, health_pb2_grpc

from tenure.v1 import admin_service_pb2 as admin
from tenure.v1 import admin_service_pb2_grpc as admin_grpc
from tenure.v1 import payload_pb2 as payload
from tenure.v1 import registry_service_pb2_grpc as registry_grpc
from tenure.v1 import task_pb2 as task
from tenure.v1 import task_service_pb2 as tasks
from tenure.v1 import task_service_pb2_grpc as tasks_grpc
from tenure.v1 import worker_pb2 as worker
from tenure.v1 import worker_service_pb2 as workers
from tenure.v1 import worker_service_pb2_grpc as workers_grpc
from tenure.v1 import workflow_service_pb2_grpc as workflows_grpc

#: What docs/protocol.md tells worker authors to allow.
RECEIVE_BYTES_MAX = 20 * 1024 * 1024
TIMEOUT_SECONDS = 30.0
Metadata = Sequence[tuple[str, str]]


def seconds(value: float) -> duration_pb2.Duration:
    """Gives a duration."""
    message = duration_pb2.Duration()
    message.FromNanoseconds(int(value * 1e9))
    return message


def handlers(names: Iterable[str]) -> list[worker.Handler]:
    """Reads handlers written as `name` or `queue/name`."""
    found = []
    for text in names:
        queue, slash, name = text.rpartition("/")
        found.append(worker.Handler(name=name, queue=queue if slash else ""))
    return found


class Caller:
    """A channel of its own, and every stub on it."""

    def __init__(self, address: str, namespace: str | None = None) -> None:
        options = [
            ("grpc.max_receive_message_length", RECEIVE_BYTES_MAX),
            ("grpc.use_local_subchannel_pool", 1),
        ]
        self.address = address
        self.channel = aio.insecure_channel(address, options=options)
        self.metadata: Metadata = () if namespace is None else (("tenure-namespace", namespace),)
        self.work = workers_grpc.WorkerServiceStub(self.channel)
        self.task = tasks_grpc.TaskServiceStub(self.channel)
        self.workflow = workflows_grpc.WorkflowServiceStub(self.channel)
        self.registry = registry_grpc.RegistryServiceStub(self.channel)
        self.admin = admin_grpc.AdminServiceStub(self.channel)
        self._health = health_pb2_grpc.HealthStub(self.channel)

    async def close(self) -> None:
        """Closes the channel."""
        await self.channel.close()

    def method(self, service: str, name: str) -> Any:
        """Gives a unary call by the names of its service and method."""
        stubs: dict[str, Any] = {
            "WorkerService": self.work,
            "TaskService": self.task,
            "WorkflowService": self.workflow,
            "RegistryService": self.registry,
            "AdminService": self.admin,
        }
        return getattr(stubs[service], name)

    async def healthy(self) -> bool:
        """Says whether the server says that it serves."""
        stub: Any = self._health
        answer = await stub.Check(health_pb2.HealthCheckRequest(), timeout=TIMEOUT_SECONDS)
        return bool(answer.status == health_pb2.HealthCheckResponse.SERVING)

    async def create_namespace(self, name: str) -> None:
        """Creates a namespace."""
        await self.admin.CreateNamespace(admin.CreateNamespaceRequest(name=name))

    async def enqueue(
        self, name: str = "work", count: int = 1, *, request_id: str = "", **fields: Any
    ) -> list[str]:
        """Enqueues tasks of one form; gives their ids."""
        request = tasks.EnqueueTasksRequest(
            request_id=request_id,
            tasks=[tasks.NewTask(name=name, **fields) for _ in range(count)],
        )
        return await self.enqueue_all(request)

    async def enqueue_all(self, request: tasks.EnqueueTasksRequest) -> list[str]:
        """Enqueues tasks; gives their ids."""
        answer = await self.task.EnqueueTasks(
            request, metadata=self.metadata, timeout=TIMEOUT_SECONDS
        )
        assert not [result for result in answer.results if result.HasField("error")]
        return [result.task.task_id for result in answer.results]

    async def cancel(
        self, *task_ids: str, reason: str = "", grace_seconds: float = 30
    ) -> tasks.CancelTasksResponse:
        """Asks for the end of tasks."""
        request = tasks.CancelTasksRequest(
            task_ids=task_ids, reason=reason, grace_duration=seconds(grace_seconds)
        )
        return await self.task.CancelTasks(request, metadata=self.metadata, timeout=TIMEOUT_SECONDS)

    async def get(self, task_id: str) -> tasks.GetTaskResponse:
        """Reads a task with its payloads."""
        request = tasks.GetTaskRequest(task_id=task_id, include_payloads=True)
        return await self.task.GetTask(request, metadata=self.metadata, timeout=TIMEOUT_SECONDS)

    async def state(self, task_id: str) -> str:
        """Gives the state of a task, without its prefix."""
        answer = await self.get(task_id)
        return task.TaskState.Name(answer.task.state).removeprefix("TASK_STATE_")

    async def wait(self, *task_ids: str, wait_seconds: float = 10) -> tasks.AwaitTasksResponse:
        """Waits until one of the tasks is over."""
        request = tasks.AwaitTasksRequest(task_ids=task_ids, wait_duration=seconds(wait_seconds))
        return await self.task.AwaitTasks(request, metadata=self.metadata, timeout=TIMEOUT_SECONDS)

    async def lease(
        self, *names: str, count: int = 1, wait_seconds: float = 0, request_id: str = ""
    ) -> workers.LeaseTasksResponse:
        """Leases tasks by the unary call; names are `name` or `queue/name`."""
        request = workers.LeaseTasksRequest(
            request_id=request_id,
            worker=worker.WorkerIdentity(name="poller"),
            handlers=handlers(names or ("work",)),
            task_count_max=count,
            wait_duration=seconds(wait_seconds),
        )
        return await self.work.LeaseTasks(request, metadata=self.metadata, timeout=TIMEOUT_SECONDS)

    async def renew(self, *lease_tokens: str) -> workers.RenewLeasesResponse:
        """Renews leases by the unary call."""
        request = workers.RenewLeasesRequest(lease_tokens=lease_tokens)
        return await self.work.RenewLeases(request, metadata=self.metadata, timeout=TIMEOUT_SECONDS)

    async def report(self, *results: worker.Result) -> list[str]:
        """Reports by the unary call; gives the statuses, without their prefix."""
        answer = await self.report_fully(*results)
        return [status_name(result.status) for result in answer.results]

    async def report_fully(self, *results: worker.Result) -> workers.ReportTasksResponse:
        """Reports by the unary call; gives the whole answer."""
        request = workers.ReportTasksRequest(results=results)
        return await self.work.ReportTasks(request, metadata=self.metadata, timeout=TIMEOUT_SECONDS)


def status_name(status: worker.ReportStatus.ValueType) -> str:
    """Gives what became of a result, without the prefix."""
    return worker.ReportStatus.Name(status).removeprefix("REPORT_STATUS_")


def completed(assignment: worker.Assignment, data: bytes = b"1") -> worker.Result:
    """Gives the result of a handler that returned."""
    return worker.Result(
        task_id=assignment.task_id,
        lease_token=assignment.lease_token,
        run_duration=seconds(0.001),
        completed=worker.Completed(output=payload.Payload(data=data)),
    )


def failed(assignment: worker.Assignment, **failure: Any) -> worker.Result:
    """Gives the result of a handler that raised."""
    return worker.Result(
        task_id=assignment.task_id,
        lease_token=assignment.lease_token,
        run_duration=seconds(0.001),
        failed=worker.Failed(failure=payload.Failure(**({"type": "Broken"} | failure))),
    )


def released(assignment: worker.Assignment) -> worker.Result:
    """Gives the result of a handler that never started."""
    return worker.Result(
        task_id=assignment.task_id,
        lease_token=assignment.lease_token,
        released=worker.Released(),
    )


def rescheduled(assignment: worker.Assignment, delay: float, data: bytes = b"") -> worker.Result:
    """Gives the result of a handler that wants another run."""
    return worker.Result(
        task_id=assignment.task_id,
        lease_token=assignment.lease_token,
        rescheduled=worker.Rescheduled(
            delay=seconds(delay), details=payload.Payload(data=data) if data else None
        ),
    )
