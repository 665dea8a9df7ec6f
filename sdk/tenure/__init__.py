"""Tenure: durable tasks on PostgreSQL, for Python programs.

    from tenure import App

    app = App("thumbs")

    @app.task
    def resize(path: str, width: int = 200) -> int: ...

    print(resize.enqueue("cat.jpg", width=100).result(timeout=30))

Blocking forms have an awaitable one of the same name with an `a` in front. What a program may use
is listed in `__all__`, here and in `tenure.testing`; every other name may change.
"""

from tenure.access import ApiKey, AuditEvent, NewApiKey, Scope
from tenure.app import App
from tenure.async_client import AsyncClient
from tenure.client import Client
from tenure.context import (
    CancelRequested,
    ControlFlow,
    Reschedule,
    RetryAfter,
    TaskInfo,
    current_task,
)
from tenure.errors import (
    ArgumentsRefused,
    BlockingCallInLoop,
    CodecFailed,
    Contention,
    EnqueueManyFailed,
    FieldInvalid,
    HandlerRefused,
    KeyTaken,
    NoCurrentTask,
    NonRetryable,
    NotFound,
    Overloaded,
    PayloadTooLarge,
    RequestIdReused,
    ResultTimeout,
    ScopeMissing,
    ServerBug,
    ServiceError,
    StateConflict,
    TaskCancelled,
    TaskFailed,
    TaskNotCompleted,
    TaskTimedOut,
    TenureError,
    TransportMismatch,
    Unauthenticated,
    Unavailable,
    UsageError,
    UsedAfterFork,
    ValueRefused,
    VersionUnsupported,
    WrongType,
    WrongValue,
)
from tenure.failure import Failure
from tenure.handle import Handle, aas_completed, as_completed
from tenure.payload_codec import PayloadCodec
from tenure.policy import Retry, Timeout, Timeouts
from tenure.records import (
    DeadLetter,
    DeadLetterReason,
    DeadLetterState,
    Delivery,
    DeliveryOutcome,
    EnqueuedTask,
    HandlerInfo,
    Namespace,
    NewTask,
    Page,
    Payload,
    Policy,
    Queue,
    QueueStatistics,
    TaskDefinition,
    TaskDetails,
    TaskExplanation,
    TaskOutcome,
    TaskSnapshot,
    TaskState,
    WorkerInfo,
)
from tenure.remote import Remote
from tenure.security import TLS
from tenure.task import AsyncTask, Enqueueing, SyncTask, Task
from tenure.worker import Worker

__all__ = [
    "TLS",
    "ApiKey",
    "App",
    "ArgumentsRefused",
    "AsyncClient",
    "AsyncTask",
    "AuditEvent",
    "BlockingCallInLoop",
    "CancelRequested",
    "Client",
    "CodecFailed",
    "Contention",
    "ControlFlow",
    "DeadLetter",
    "DeadLetterReason",
    "DeadLetterState",
    "Delivery",
    "DeliveryOutcome",
    "EnqueueManyFailed",
    "EnqueuedTask",
    "Enqueueing",
    "Failure",
    "FieldInvalid",
    "Handle",
    "HandlerInfo",
    "HandlerRefused",
    "KeyTaken",
    "Namespace",
    "NewApiKey",
    "NewTask",
    "NoCurrentTask",
    "NonRetryable",
    "NotFound",
    "Overloaded",
    "Page",
    "Payload",
    "PayloadCodec",
    "PayloadTooLarge",
    "Policy",
    "Queue",
    "QueueStatistics",
    "Remote",
    "RequestIdReused",
    "Reschedule",
    "ResultTimeout",
    "Retry",
    "RetryAfter",
    "Scope",
    "ScopeMissing",
    "ServerBug",
    "ServiceError",
    "StateConflict",
    "SyncTask",
    "Task",
    "TaskCancelled",
    "TaskDefinition",
    "TaskDetails",
    "TaskExplanation",
    "TaskFailed",
    "TaskInfo",
    "TaskNotCompleted",
    "TaskOutcome",
    "TaskSnapshot",
    "TaskState",
    "TaskTimedOut",
    "TenureError",
    "Timeout",
    "Timeouts",
    "TransportMismatch",
    "Unauthenticated",
    "Unavailable",
    "UsageError",
    "UsedAfterFork",
    "ValueRefused",
    "VersionUnsupported",
    "Worker",
    "WorkerInfo",
    "WrongType",
    "WrongValue",
    "aas_completed",
    "as_completed",
    "current_task",
]
