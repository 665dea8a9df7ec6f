"""The unary RPCs that this package calls, by name, with the types that each takes and gives."""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING, Generic, TypeVar

from google.protobuf.message import Message

from tenure.v1 import admin_service_pb2 as admin
from tenure.v1 import registry_service_pb2 as registry
from tenure.v1 import task_service_pb2 as tasks
from tenure.v1 import worker_service_pb2 as workers
from tenure.v1 import workflow_service_pb2 as workflows

if TYPE_CHECKING:
    from collections.abc import Callable

Request = TypeVar("Request", bound=Message)
Response = TypeVar("Response", bound=Message)


@dataclasses.dataclass(frozen=True, slots=True)
class Method(Generic[Request, Response]):
    """Method is one unary RPC.

    Attributes:
        path: Full name, `/package.Service/Method`.
        read: Parser of the response.
    """

    path: str
    read: Callable[[bytes], Response]


_T = "/tenure.v1.TaskService/"
_F = "/tenure.v1.WorkflowService/"
_W = "/tenure.v1.WorkerService/"
_R = "/tenure.v1.RegistryService/"
_A = "/tenure.v1.AdminService/"

ENQUEUE_TASKS: Method[tasks.EnqueueTasksRequest, tasks.EnqueueTasksResponse] = Method(
    f"{_T}EnqueueTasks", tasks.EnqueueTasksResponse.FromString
)
GET_TASK: Method[tasks.GetTaskRequest, tasks.GetTaskResponse] = Method(
    f"{_T}GetTask", tasks.GetTaskResponse.FromString
)
AWAIT_TASKS: Method[tasks.AwaitTasksRequest, tasks.AwaitTasksResponse] = Method(
    f"{_T}AwaitTasks", tasks.AwaitTasksResponse.FromString
)
CANCEL_TASKS: Method[tasks.CancelTasksRequest, tasks.CancelTasksResponse] = Method(
    f"{_T}CancelTasks", tasks.CancelTasksResponse.FromString
)
LIST_TASKS: Method[tasks.ListTasksRequest, tasks.ListTasksResponse] = Method(
    f"{_T}ListTasks", tasks.ListTasksResponse.FromString
)
EXPLAIN_TASK: Method[tasks.ExplainTaskRequest, tasks.ExplainTaskResponse] = Method(
    f"{_T}ExplainTask", tasks.ExplainTaskResponse.FromString
)
START_RUNS: Method[workflows.StartRunsRequest, workflows.StartRunsResponse] = Method(
    f"{_F}StartRuns", workflows.StartRunsResponse.FromString
)
GET_RUN: Method[workflows.GetRunRequest, workflows.GetRunResponse] = Method(
    f"{_F}GetRun", workflows.GetRunResponse.FromString
)
AWAIT_RUNS: Method[workflows.AwaitRunsRequest, workflows.AwaitRunsResponse] = Method(
    f"{_F}AwaitRuns", workflows.AwaitRunsResponse.FromString
)
LIST_RUNS: Method[workflows.ListRunsRequest, workflows.ListRunsResponse] = Method(
    f"{_F}ListRuns", workflows.ListRunsResponse.FromString
)
LIST_RUN_STEPS: Method[workflows.ListRunStepsRequest, workflows.ListRunStepsResponse] = Method(
    f"{_F}ListRunSteps", workflows.ListRunStepsResponse.FromString
)
CANCEL_RUNS: Method[workflows.CancelRunsRequest, workflows.CancelRunsResponse] = Method(
    f"{_F}CancelRuns", workflows.CancelRunsResponse.FromString
)
RESUME_RUNS: Method[workflows.ResumeRunsRequest, workflows.ResumeRunsResponse] = Method(
    f"{_F}ResumeRuns", workflows.ResumeRunsResponse.FromString
)
FORK_RUN: Method[workflows.ForkRunRequest, workflows.ForkRunResponse] = Method(
    f"{_F}ForkRun", workflows.ForkRunResponse.FromString
)
LIST_STEPS: Method[workers.ListStepsRequest, workers.ListStepsResponse] = Method(
    f"{_W}ListSteps", workers.ListStepsResponse.FromString
)
SET_TASK_DEFINITION: Method[
    registry.SetTaskDefinitionRequest, registry.SetTaskDefinitionResponse
] = Method(f"{_R}SetTaskDefinition", registry.SetTaskDefinitionResponse.FromString)
LIST_TASK_DEFINITIONS: Method[
    registry.ListTaskDefinitionsRequest, registry.ListTaskDefinitionsResponse
] = Method(f"{_R}ListTaskDefinitions", registry.ListTaskDefinitionsResponse.FromString)
SET_QUEUE: Method[registry.SetQueueRequest, registry.SetQueueResponse] = Method(
    f"{_R}SetQueue", registry.SetQueueResponse.FromString
)
LIST_QUEUES: Method[registry.ListQueuesRequest, registry.ListQueuesResponse] = Method(
    f"{_R}ListQueues", registry.ListQueuesResponse.FromString
)
CREATE_NAMESPACE: Method[admin.CreateNamespaceRequest, admin.CreateNamespaceResponse] = Method(
    f"{_A}CreateNamespace", admin.CreateNamespaceResponse.FromString
)
LIST_NAMESPACES: Method[admin.ListNamespacesRequest, admin.ListNamespacesResponse] = Method(
    f"{_A}ListNamespaces", admin.ListNamespacesResponse.FromString
)
LIST_WORKERS: Method[admin.ListWorkersRequest, admin.ListWorkersResponse] = Method(
    f"{_A}ListWorkers", admin.ListWorkersResponse.FromString
)
GET_QUEUE_STATISTICS: Method[admin.GetQueueStatisticsRequest, admin.GetQueueStatisticsResponse] = (
    Method(f"{_A}GetQueueStatistics", admin.GetQueueStatisticsResponse.FromString)
)
LIST_DEAD_LETTERS: Method[admin.ListDeadLettersRequest, admin.ListDeadLettersResponse] = Method(
    f"{_A}ListDeadLetters", admin.ListDeadLettersResponse.FromString
)
REPLAY_DEAD_LETTERS: Method[admin.ReplayDeadLettersRequest, admin.ReplayDeadLettersResponse] = (
    Method(f"{_A}ReplayDeadLetters", admin.ReplayDeadLettersResponse.FromString)
)
DISCARD_DEAD_LETTERS: Method[admin.DiscardDeadLettersRequest, admin.DiscardDeadLettersResponse] = (
    Method(f"{_A}DiscardDeadLetters", admin.DiscardDeadLettersResponse.FromString)
)
CREATE_API_KEY: Method[admin.CreateApiKeyRequest, admin.CreateApiKeyResponse] = Method(
    f"{_A}CreateApiKey", admin.CreateApiKeyResponse.FromString
)
LIST_API_KEYS: Method[admin.ListApiKeysRequest, admin.ListApiKeysResponse] = Method(
    f"{_A}ListApiKeys", admin.ListApiKeysResponse.FromString
)
REVOKE_API_KEY: Method[admin.RevokeApiKeyRequest, admin.RevokeApiKeyResponse] = Method(
    f"{_A}RevokeApiKey", admin.RevokeApiKeyResponse.FromString
)
LIST_AUDIT_EVENTS: Method[admin.ListAuditEventsRequest, admin.ListAuditEventsResponse] = Method(
    f"{_A}ListAuditEvents", admin.ListAuditEventsResponse.FromString
)
