"""Everything that this package raises.

    Exception
    +-- TenureError
    |   +-- UsageError                the program is wrong; raised before anything is sent
    |   |   +-- WrongType             an argument of a type that is not taken; also a TypeError
    |   |   +-- WrongValue            an argument out of its bounds; also a ValueError
    |   |   +-- HandlerRefused        a function that cannot be a task, or a name taken twice
    |   |   +-- ValueRefused          a value that does not fit its annotation or JSON
    |   |   |   +-- ArgumentsRefused  on a worker: the arguments of a task do not fit its handler
    |   |   +-- CodecFailed           the program's codec raised, or gave no payload
    |   |   +-- BlockingCallInLoop    a blocking form inside a running event loop
    |   |   +-- UsedAfterFork         a connection of the parent process
    |   |   +-- NoCurrentTask         `current_task()` outside a handler
    |   |   +-- NotCheckpointed       inside a workflow, a task, step or workflow called as a function
    |   |   +-- BranchUnknown         a verb of a workflow's context, called from an unknown place
    |   +-- ServiceError              a call was refused; decided on `reason`, never on text
    |   |   +-- Unavailable           no answer: no server, its database is away, it stops
    |   |   |   +-- TransportMismatch TLS against plain text, a foreign certificate, no gRPC
    |   |   +-- Overloaded            the server cannot take more now, or a quota is used up
    |   |   +-- Contention            transactions stood in each other's way
    |   |   +-- FieldInvalid          `fields` names each one
    |   |   +-- PayloadTooLarge       `size_bytes`, `limit_bytes`
    |   |   +-- NotFound              no such task, run, queue, dead letter ...
    |   |   +-- KeyTaken              another task stands under the idempotency key
    |   |   +-- RequestIdReused       the same request_id with another content
    |   |   +-- StateConflict         the thing's state does not allow this
    |   |   +-- VersionUnsupported    client and server do not speak the same version
    |   |   +-- Unauthenticated       no API key, or an unknown one
    |   |   +-- ScopeMissing          the API key does not allow this
    |   |   +-- ServerBug             `incident` stands in the server's log
    |   +-- EnqueueManyFailed         some tasks of `enqueue_many` were refused
    |   +-- StartManyFailed           some runs of `start_many` were refused
    |   +-- TaskNotCompleted          the task was over without an output
    |   |   +-- TaskFailed            `failure` says why
    |   |   +-- TaskCancelled
    |   |   +-- TaskTimedOut
    |   +-- RunNotCompleted           the run was over without an output
    |   |   +-- RunFailed             `failure` says why
    |   |   +-- RunCancelled
    |   |   +-- RunTimedOut
    |   +-- StepFailed                a step of a workflow raised; `type` names what
    |   +-- ResultTimeout             not over within the caller's timeout; also a TimeoutError
    +-- NonRetryable                  raised by handlers: fail without another attempt

Control flow of handlers (`RetryAfter`, `Reschedule`, `CancelRequested`) lives in `tenure.context`:
those are `BaseException`s, so that `except Exception` in a handler does not swallow them.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from tenure.failure import Failure


class TenureError(Exception):
    """Root of all errors of this package, except what handlers raise themselves."""


class UsageError(TenureError):
    """The program uses this package wrongly; nothing was sent."""


class WrongType(UsageError, TypeError):
    """An argument is of a type that is not taken; the text names both."""


class WrongValue(UsageError, ValueError):
    """An argument is out of its bounds; the text says what is taken and what was given."""


class HandlerRefused(UsageError, TypeError):
    """A function cannot be a task, or its name is taken."""


class ValueRefused(UsageError, ValueError):
    """A value does not fit its annotation, or JSON cannot carry it without loss.

    Attributes:
        where: What the value is: `argument 'width' of task 'resize'`, `result of task 'resize'`.
    """

    def __init__(self, where: str, problem: str) -> None:
        super().__init__(f"{where}: {problem}")
        self.where = where
        self.problem = problem


class ArgumentsRefused(ValueRefused):
    """The arguments of a task do not fit the handler of the worker that was given it.

    Its handler was not called. The attempt has failed and is tried again as after any other error,
    since during a deploy another worker may have the declaration that the producer had; with
    `Retry(unless=[ArgumentsRefused])` the first one is the last.
    """


class CodecFailed(UsageError):
    """The program's `codec` raised, or returned something else than a payload."""


class BlockingCallInLoop(UsageError, RuntimeError):
    """A blocking form was called inside a running event loop, which it would stop."""

    def __init__(self, blocking: str, awaitable: str) -> None:
        super().__init__(
            f"{blocking}() would block the running event loop; use `await {awaitable}()` there"
        )


class UsedAfterFork(UsageError, RuntimeError):
    """This process was forked after its parent had connected; gRPC does not survive that."""


class NoCurrentTask(UsageError, LookupError):
    """`current_task()` was called where no handler runs."""


class NotCheckpointed(UsageError, RuntimeError):
    """A task, step or workflow was called as a function inside a workflow.

    What it does would be done again on each replay.
    """

    def __init__(self, kind: str, name: str) -> None:
        ways = {
            "workflow": f"ctx.child({name}, ...) waits for its result, ctx.start({name}, ...) does not",
            "step": f"ctx.step({name}, ...) runs it here and remembers its result; "
            "ctx.task(...) is for tasks, which any worker runs",
        }
        way = ways.get(
            kind,
            f"ctx.task({name}, ...) has any worker run it from its queue, ctx.step({name}, ...) runs"
            " it here and remembers its result",
        )
        super().__init__(f"the {kind} {name!r} was called inside a workflow: {way}")


class BranchUnknown(UsageError, RuntimeError):
    """A verb of a workflow's context was called where its place in the order is not known.

    Inside a step, in a callback, in an asyncio task or a thread that the workflow did not start
    itself. Nothing was recorded.
    """


class ServiceError(TenureError):
    """A call, or one item of it, was refused by the server or could not reach it.

    Attributes:
        reason: Value of `tenure.v1.ErrorReason` without its prefix, such as `KEY_TAKEN`; empty if
            the answer did not come from a Tenure server.
        status: Name of the gRPC status, such as `ALREADY_EXISTS`.
        metadata: What the server said besides, by the keys that errors.proto documents.
        retry_after: Seconds the server asks to wait before the next try; None if it says nothing.
    """

    def __init__(
        self,
        message: str,
        *,
        reason: str = "",
        status: str = "",
        metadata: Mapping[str, str] | None = None,
        retry_after: float | None = None,
    ) -> None:
        super().__init__(message)
        self.reason = reason
        self.status = status
        self.metadata = dict(metadata or {})
        self.retry_after = retry_after


class Unavailable(ServiceError):
    """No answer came within the time for retries.

    Attributes:
        address: Address that was tried; empty where it is not known.
    """

    address = ""


class TransportMismatch(Unavailable):
    """Something answers at the address that cannot be spoken to like this; trying again is vain.

    TLS against plain text, a certificate that is not trusted, a protocol that is not gRPC.
    """


class Overloaded(ServiceError):
    """The server has more work than it can buffer, or a quota of the namespace is used up."""


class Contention(ServiceError):
    """Transactions stood in each other's way; the whole operation may be tried again."""


class FieldInvalid(ServiceError):
    """Fields are missing, malformed or out of their bounds.

    Attributes:
        fields: Problem by field path, such as `{"tasks[3].priority": "at most 100"}`.
    """

    fields: Mapping[str, str] = {}


class PayloadTooLarge(ServiceError):
    """A payload is larger than its limit; sending it again cannot help."""

    @property
    def size_bytes(self) -> int:
        """Size of the payload, 0 if unknown."""
        return _number(self.metadata.get("size_bytes"))

    @property
    def limit_bytes(self) -> int:
        """Largest size that is taken, 0 if unknown."""
        return _number(self.metadata.get("limit_bytes"))


class NotFound(ServiceError):
    """Nothing of this name or id exists in the namespace."""


class KeyTaken(ServiceError):
    """Another task or workflow, or another input, stands under the idempotency key."""

    @property
    def existing_task_id(self) -> str:
        """Id of the task that stands under the key."""
        return self.metadata.get("existing_task_id", "")

    @property
    def existing_run_id(self) -> str:
        """Id of the run that stands under the key, if it is the key of a run."""
        return self.metadata.get("existing_run_id", "")


class RequestIdReused(ServiceError):
    """The same request_id was used for another call."""


class StateConflict(ServiceError):
    """The thing is in a state that does not allow this."""


class VersionUnsupported(ServiceError):
    """Client and server do not speak the same version of the protocol."""


class Unauthenticated(ServiceError):
    """The call carried no API key, or an unknown one."""


class ScopeMissing(ServiceError):
    """The API key does not allow this."""


class ServerBug(ServiceError):
    """The server met a defect of its own.

    `metadata["incident"]` stands beside the stack trace in its log.
    """


class EnqueueManyFailed(TenureError):
    """Some tasks of `enqueue_many` were refused; the others are stored.

    Attributes:
        handles: One entry a task, in order; None where it was refused.
        errors: Error by index of the task.
    """

    def __init__(
        self, handles: Sequence[Any], errors: Mapping[int, TenureError], first: TenureError
    ) -> None:
        super().__init__(
            f"{len(errors)} of {len(handles)} tasks were refused, the first with: {first}"
        )
        self.handles = list(handles)
        self.errors = dict(errors)


class StartManyFailed(TenureError):
    """Some runs of `start_many` were refused; the others are started.

    Attributes:
        handles: One entry a run, in order; None where it was refused.
        errors: Error by index of the run.
    """

    def __init__(
        self, handles: Sequence[Any], errors: Mapping[int, TenureError], first: TenureError
    ) -> None:
        super().__init__(
            f"{len(errors)} of {len(handles)} runs were refused, the first with: {first}"
        )
        self.handles = list(handles)
        self.errors = dict(errors)


class TaskNotCompleted(TenureError):
    """The task is over and has no output.

    Attributes:
        task_id: Id of the task.
        failure: Failure that ended it; None if it was cancelled without one.
        attempt: Attempts that were started.
    """

    def __init__(
        self, message: str, *, task_id: str, failure: Failure | None, attempt: int
    ) -> None:
        super().__init__(message)
        self.task_id = task_id
        self.failure = failure
        self.attempt = attempt


class TaskFailed(TaskNotCompleted):
    """The task is in the dead letters: its last attempt failed."""

    failure: Failure

    def __init__(self, *, task_id: str, failure: Failure, attempt: int) -> None:
        super().__init__(
            f"task {task_id} failed: {failure}", task_id=task_id, failure=failure, attempt=attempt
        )


class TaskCancelled(TaskNotCompleted):
    """The task was cancelled."""


class TaskTimedOut(TaskNotCompleted):
    """The task's own time limit ended it."""


class RunNotCompleted(TenureError):
    """The run is over and has no output.

    Attributes:
        run_id: Id of the run.
        failure: Failure that ended it; None if it ended without one.
    """

    def __init__(self, message: str, *, run_id: str, failure: Failure | None) -> None:
        super().__init__(message)
        self.run_id = run_id
        self.failure = failure


class RunFailed(RunNotCompleted):
    """The workflow's function raised."""

    failure: Failure

    def __init__(self, *, run_id: str, failure: Failure) -> None:
        super().__init__(f"run {run_id} failed: {failure}", run_id=run_id, failure=failure)


class RunCancelled(RunNotCompleted):
    """The run was cancelled."""


class RunTimedOut(RunNotCompleted):
    """The run's own time limit ended it."""


class StepFailed(TenureError):
    """A step of a workflow raised; the same on its first run and on each replay.

    On the first run it is raised from the original exception.

    Attributes:
        name: Name of the step.
        type: Class name of the exception, such as `CardDeclined`.
        message: `str()` of the exception.
        failure: The exception with its stack and causes, as data.
    """

    def __init__(self, *, name: str, failure: Failure) -> None:
        super().__init__(f"step {name!r} failed: {failure}")
        self.name = name
        self.failure = failure
        self.type = failure.type
        self.message = failure.message


class ResultTimeout(TenureError, TimeoutError):
    """The task or run was not over within the time that the caller wanted to wait; it goes on."""


class NonRetryable(Exception):
    """Raise it, or a subclass, in a handler: the task fails and is not attempted again.

    Attributes:
        failure_details: JSON value that the failure carries for programs, at most 64 KiB (else a
            note of its size takes its place); None: none. No codec encodes it.
    """

    def __init__(self, *args: object, details: Any = None) -> None:
        super().__init__(*args)
        self.failure_details = details


def _number(text: str | None) -> int:
    return int(text) if text is not None and text.isdecimal() else 0
