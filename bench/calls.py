"""Calls without an SDK, for the crowds of a measurement: cheap enough for thousands a process."""

from collections.abc import Iterable
from typing import Any

from google.protobuf import duration_pb2
from grpc import aio

from tenure.v1 import payload_pb2, task_service_pb2_grpc, worker_pb2, worker_service_pb2_grpc
from tenure.v1 import task_service_pb2 as tasks
from tenure.v1 import worker_service_pb2 as workers

#: What the crowd's tasks are named; nobody else serves them.
NAME = "crowd"
_SECONDS = 60.0


class Calls:
    """One channel of its own."""

    def __init__(self, address: str) -> None:
        options = [("grpc.use_local_subchannel_pool", 1), ("grpc.max_reconnect_backoff_ms", 1000)]
        self.channel = aio.insecure_channel(address, options=options)
        # The generated stubs take only synchronous channels by their types.
        self.task: Any = task_service_pb2_grpc.TaskServiceStub(self.channel)
        self.work: Any = worker_service_pb2_grpc.WorkerServiceStub(self.channel)

    async def enqueue(self, count: int = 1, name: str = NAME, data: bytes = b"{}") -> list[str]:
        """Enqueues tasks; gives their ids."""
        task = tasks.NewTask(name=name, input=payload_pb2.Payload(data=data, encoding="json"))
        request = tasks.EnqueueTasksRequest(tasks=[task] * count)
        answer = await self.task.EnqueueTasks(request, timeout=_SECONDS)
        return [result.task.task_id for result in answer.results]

    async def get(self, task_id: str) -> None:
        """Reads a task."""
        await self.task.GetTask(tasks.GetTaskRequest(task_id=task_id), timeout=_SECONDS)

    async def over(self, task_ids: Iterable[str], seconds: int) -> list[str]:
        """Waits until some of the tasks are over; gives which."""
        request = tasks.AwaitTasksRequest(
            task_ids=task_ids, wait_duration=duration_pb2.Duration(seconds=seconds)
        )
        answer = await self.task.AwaitTasks(request, timeout=_SECONDS + seconds)
        return [result.task_id for result in answer.results]

    async def end_one(self, poller: str) -> str | None:
        """Leases one task and completes it; gives its id."""
        lease = workers.LeaseTasksRequest(
            worker=worker_pb2.WorkerIdentity(name=poller),
            handlers=[worker_pb2.Handler(name=NAME)],
            task_count_max=1,
        )
        leased = await self.work.LeaseTasks(lease, timeout=_SECONDS)
        for found in leased.assignments:
            output = payload_pb2.Payload(data=b"null", encoding="json")
            result = worker_pb2.Result(
                task_id=found.task_id,
                lease_token=found.lease_token,
                completed=worker_pb2.Completed(output=output),
            )
            report = workers.ReportTasksRequest(results=[result])
            await self.work.ReportTasks(report, timeout=_SECONDS)
            return str(found.task_id)
        return None
