"""What bad input starts from: one decent request of every RPC, one decent message of every kind.

Whatever comes instead of them: a documented status, mates that are unaffected, a server that stays up,
and nothing half stored.
"""

from typing import Any

from google.protobuf.message import Message
from google.rpc import status_pb2

from tenure.v1 import admin_service_pb2 as admin
from tenure.v1 import payload_pb2 as payload
from tenure.v1 import registry_service_pb2 as registry
from tenure.v1 import run_pb2 as run
from tenure.v1 import task_pb2 as task
from tenure.v1 import task_service_pb2 as tasks
from tenure.v1 import work_stream_pb2 as stream
from tenure.v1 import worker_pb2 as worker
from tenure.v1 import worker_service_pb2 as service
from tests.protocol import contract, contract_runs, refusals

IDS: dict[str, Any] = {"task_ids": [contract.UNKNOWN]}
NEW = tasks.NewTask(name="bad", queue="q", input=payload.Payload(data=b"1", encoding="json"))
BASES: dict[str, Any] = {
    "WorkerService.LeaseTasks": contract.leasing(),
    "WorkerService.ReportTasks": contract.reporting(),
    "WorkerService.RenewLeases": service.RenewLeasesRequest(lease_tokens=[contract.TOKEN]),
    "WorkerService.RecordSteps": contract.recording(
        run.NewStep(step_id="1", name="s", call=run.StepResult()),
        run.NewStep(step_id="2", name="bad", task=run.StepTask(name="bad")),
    ),
    "WorkerService.ListSteps": contract.listing(),
    "TaskService.EnqueueTasks": contract.enqueueing(NEW, tasks.NewTask(name="mate")),
    "TaskService.GetTask": tasks.GetTaskRequest(task_id=contract.UNKNOWN),
    "TaskService.AwaitTasks": tasks.AwaitTasksRequest(**IDS),
    "TaskService.CancelTasks": tasks.CancelTasksRequest(**IDS),
    "TaskService.ListTasks": tasks.ListTasksRequest(state=task.TASK_STATE_READY),
    "TaskService.ExplainTask": tasks.ExplainTaskRequest(task_id=contract.UNKNOWN),
    "RegistryService.SetTaskDefinition": registry.SetTaskDefinitionRequest(name="bad"),
    "RegistryService.ListTaskDefinitions": registry.ListTaskDefinitionsRequest(),
    "RegistryService.SetQueue": registry.SetQueueRequest(name="bad"),
    "RegistryService.ListQueues": registry.ListQueuesRequest(),
    "AdminService.ListNamespaces": admin.ListNamespacesRequest(),
    "AdminService.CreateApiKey": admin.CreateApiKeyRequest(name="bad"),
    "AdminService.ListApiKeys": admin.ListApiKeysRequest(),
    "AdminService.RevokeApiKey": admin.RevokeApiKeyRequest(key_id=contract.UNKNOWN),
    "AdminService.ListAuditEvents": admin.ListAuditEventsRequest(),
    "AdminService.ListWorkers": admin.ListWorkersRequest(),
    "AdminService.CreateNamespace": admin.CreateNamespaceRequest(name="bad"),
    "AdminService.GetQueueStatistics": admin.GetQueueStatisticsRequest(),
    "AdminService.ListDeadLetters": admin.ListDeadLettersRequest(),
    "AdminService.ReplayDeadLetters": admin.ReplayDeadLettersRequest(**IDS),
    "AdminService.DiscardDeadLetters": admin.DiscardDeadLettersRequest(**IDS),
    **contract_runs.BASES,
}
REPORT = contract.reporting()
#: One message of each kind, by the name of its field.
STREAMED: dict[str, service.WorkRequest] = {
    "open": contract.opening(),
    "accept": contract.work(accept=stream.Accept(lease_tokens=["t"])),
    "started": contract.work(started=stream.Started(tasks=[stream.StartedTask()])),
    "heartbeat": contract.work(heartbeat=stream.Heartbeat(heartbeat_id=7)),
    "report": contract.work(report=stream.Report(report_id=7, results=REPORT.results)),
    "pause": contract.work(pause=stream.Pause(paused=True)),
    "set_slots": contract.work(set_slots=stream.SetSlots(slots=worker.Slots(total=1))),
    "close": contract.work(close=stream.Close()),
    "record_steps": contract.work(
        record_steps=stream.RecordSteps(
            record_id=7,
            run_id=contract.UNKNOWN,
            lease_token=contract.TOKEN,
            steps=[run.NewStep(step_id="1", name="bad", task=run.StepTask(name="bad"))],
        )
    ),
    "wait": contract.work(
        wait=stream.Wait(
            run_id=contract.UNKNOWN, lease_token=contract.TOKEN, child_ids=[contract.UNKNOWN]
        )
    ),
}
ALLOWED = {
    "FIELD_INVALID",
    "PAYLOAD_TOO_LARGE",
    "TASK_NOT_FOUND",
    "LEASE_LOST",
    "NOT_REGISTERED",
    "RUN_NOT_FOUND",
    "VERSION_UNSUPPORTED",
}


def statuses(message: Message) -> list[status_pb2.Status]:
    """Gives every status of an item that is inside an answer."""
    found: list[status_pb2.Status] = []
    for field, value in message.ListFields():
        for one in value if field.is_repeated else [value]:
            if isinstance(one, status_pb2.Status):
                found.append(one)
            elif isinstance(one, Message):
                found += statuses(one)
    return found


def wrong(where: str, refusal: refusals.Refusal) -> list[str]:
    """Says so if an answer is none that bad input may have."""
    return [] if refusal.reason in ALLOWED else [f"{where}: {refusal.status} {refusal.reason}"]
