"""Tasks: functions that workers run, and the ways to enqueue them.

A `Task` is made by `@app.task` and is still the function: calling it runs it here. `using` gives
the same with options for the calls to come.
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable, Coroutine, Iterable, Mapping
from typing import TYPE_CHECKING, Any, Generic, Never, ParamSpec, TypeAlias, TypeVar

from tenure import check, errors, payload_codec, policy, signature, tracing
from tenure.enqueuer import in_batches, send_ahead
from tenure.handle import Handle
from tenure.io_thread import io_thread, refuse_in_loop
from tenure.v1 import task_service_pb2 as tasks
from tenure.v1 import worker_pb2
from tenure.workflow import branches

if TYPE_CHECKING:
    from collections.abc import Iterator
    from contextlib import AbstractContextManager

    from opentelemetry.trace import Span

    from tenure import isolation
    from tenure.app import App
    from tenure.enqueuer import Answer
    from tenure.remote import RemoteShape
    from tenure.v1 import payload_pb2

P = ParamSpec("P")
R = TypeVar("R")

# What `enqueue_many` takes for one call of the handler: positional arguments or named ones.
Call: TypeAlias = tuple[Any, ...] | Mapping[str, Any]


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Options:
    """Options is what `using` said for the calls to come; None: nothing."""

    key: str | None = None
    key_duration: policy.Seconds | None = None
    delay: policy.Seconds | None = None
    priority: int | None = None
    lane: str | None = None
    queue: str | None = None
    retry: policy.Retry | None = None
    timeout: policy.Seconds | policy.Timeouts | None = None

    def __post_init__(self) -> None:
        if self.key is not None:
            check.text(self.key, "key", check.KEY_BYTES_MAX)
        if self.key_duration is not None:
            check.seconds(self.key_duration, "key_duration")
        if self.delay is not None:
            check.seconds(self.delay, "delay")
        if self.priority is not None:
            check.whole(self.priority, "priority", check.PRIORITY_MIN, check.PRIORITY_MAX)
        if self.lane is not None:
            check.text(self.lane, "lane")
        if self.queue is not None:
            check.text(self.queue, "queue")
        policy.check_policy(self.retry, self.timeout)


_OPTION_NAMES = frozenset(field.name for field in dataclasses.fields(Options))
# What other task queues call the same; somebody who comes from there tries them first.
_FOREIGN_NAMES = frozenset(
    {"apply", "apply_async", "defer", "defer_async", "delay", "delay_on_commit", "kiq", "schedule"}
    | {"s", "send", "send_with_options", "si", "signature"}
)

# Options of other task queues, with what to say here.
_FOREIGN_OPTIONS = {
    "countdown": "delay=SECONDS",
    "eta": "delay=max(eta - datetime.now(UTC), timedelta())",
    "expires": 'timeout=Timeouts(schedule_to_start=Timeout(SECONDS, "time_out"))',
    "max_retries": "retry=Retry(N + 1)",
    "soft_time_limit": "timeout=SECONDS",
    "task_id": "key=TEXT",
    "time_limit": "timeout=SECONDS",
}


# Declarations of other task queues, with what to say here.
_FOREIGN_DECLARATIONS = {
    "acks_late": "leave it out: handlers always run at least once",
    "autoretry_for": "leave it out: every exception is retried but those of retry=Retry(unless=[...])",
    "bind": "leave it out: current_task() stands for self",
    "countdown": "say using(delay=SECONDS).enqueue(...) where it is called",
    "default_retry_delay": "say retry=Retry(initial_delay=SECONDS)",
    "expires": 'say timeout=Timeouts(schedule_to_start=Timeout(SECONDS, "time_out"))',
    "ignore_result": "leave it out: a handler that returns nothing stores nothing but its end",
    "max_retries": "say retry=Retry(N + 1)",
    "priority": "say using(priority=N).enqueue(...) where it is called",
    "retries": "say retry=Retry(N + 1)",
    "retry_backoff": "say retry=Retry(initial_delay=SECONDS, max_delay=SECONDS)",
    "retry_kwargs": "say retry=Retry(N + 1)",
    "serializer": "leave it out: arguments are JSON by their annotations",
    "soft_time_limit": "say timeout=SECONDS",
    "time_limit": "say timeout=SECONDS",
}


class Reference:
    """Reference is what enqueueing needs to know of a task, whoever runs it."""

    def __init__(
        self,
        app: App,
        shape: signature.Signature | RemoteShape,
        *,
        name: str,
        queue: str,
        retry: policy.Retry | None,
        timeout: policy.Seconds | policy.Timeouts | None,
    ) -> None:
        self.app = app
        self.shape = shape
        self.name = name
        self.queue = queue
        self.policy = policy.to_proto(retry, timeout)

    def decode_result(self, output: payload_pb2.Payload, where: str) -> Any:
        """Reads what the handler returned.

        Raises:
            ValueRefused, CodecFailed: it is not what the annotation or the codec says.
        """
        return self.shape.result.decode(payload_codec.read(output, where, self.app.codec))


class Declaration(Reference):
    """Declaration is what `@app.task` knows of one handler."""

    def __init__(
        self,
        app: App,
        function: Callable[..., Any],
        *,
        name: str,
        queue: str,
        retry: policy.Retry | None,
        timeout: policy.Seconds | policy.Timeouts | None,
        mode: isolation.Mode | None,
        is_async: bool,
    ) -> None:
        self.signature = signature.Signature(function, name)
        super().__init__(app, self.signature, name=name, queue=queue, retry=retry, timeout=timeout)
        self.function = function
        self.retry = retry
        self.mode = mode
        self.is_async = is_async

    def handler(self, queue: str) -> worker_pb2.Handler:
        """Returns the handler as a worker registers it."""
        return worker_pb2.Handler(name=self.name, queue=queue, policy=self.policy)


class Enqueueing(Generic[P, R]):
    """Enqueueing is the half of a task that sends: the same for a task and for `using(...)`."""

    def __init__(self, reference: Reference, options: Options) -> None:
        self._reference = reference
        self._options = options
        self._call_policy = policy.to_proto(options.retry, options.timeout)

    if not TYPE_CHECKING:
        # Hidden from type checkers, which would take every name otherwise.
        def __getattr__(self, name: str) -> Any:
            hint = ""
            if name in _FOREIGN_NAMES:
                hint = (
                    "; call enqueue(...), or using(delay=..., queue=...).enqueue(...) for a call"
                    " with options"
                )
            message = f"{type(self).__name__!r} object has no attribute {name!r}{hint}"
            raise AttributeError(message, name=name, obj=self)

    @property
    def name(self) -> str:
        """Name of the task, by which workers and other programs know it."""
        return self._reference.name

    def enqueue(self, *args: P.args, **kwargs: P.kwargs) -> Handle[R]:
        """Stores the task for a worker to run, with these arguments for its handler.

        Returns once the task is stored. Concurrent calls of one process share commits.

        Raises:
            WrongType: an argument is missing, or not of the handler; nothing was sent.
            ValueRefused: an argument does not fit its annotation; nothing was sent.
            CodecFailed: the app's codec could not encode the arguments; nothing was sent.
            PayloadTooLarge: the arguments are longer than 2 MiB; nothing was sent.
            BlockingCallInLoop: an event loop runs here; use `aenqueue`.
            KeyTaken: another task or other arguments stand under the key.
            Unavailable: no server answered within 30 s.
            ServiceError: any other refusal, as the class of its reason.
        """
        refuse_in_loop(f"{self.name}.enqueue", f"{self.name}.aenqueue")
        with self._traced() as span:
            stored = io_thread.run(self._enqueue(args, kwargs))
            tracing.enqueued(span, stored.task_id)
        return self._handle(stored)

    async def aenqueue(self, *args: P.args, **kwargs: P.kwargs) -> Handle[R]:
        """Awaitable form of `enqueue`."""
        with self._traced() as span:
            stored = await io_thread.arun(self._enqueue(args, kwargs))
            tracing.enqueued(span, stored.task_id)
        return self._handle(stored)

    def enqueue_many(self, calls: Iterable[Call]) -> list[Handle[R]]:
        """Stores many tasks, up to 1,000 in one commit, in order.

        Args:
            calls: For each task a tuple of positional arguments or a mapping of named ones. May
                be a generator of any length; it is read as it is sent.

        Returns:
            One handle a task, in order.

        Raises:
            UsageError: with a key, which names one task; or a call that is neither.
            WrongType, ValueRefused, CodecFailed, PayloadTooLarge: as `enqueue`, for one of the
                calls; those of batches before it are stored.
            EnqueueManyFailed: some tasks were refused; it has the handles of the others.
            ServiceError: a whole call failed; those before it are stored.
        """
        refuse_in_loop(f"{self.name}.enqueue_many", f"{self.name}.aenqueue_many")
        with self._traced():
            answers = send_ahead(self._batches(calls), self._send)
        return self._handles(answers)

    async def aenqueue_many(self, calls: Iterable[Call]) -> list[Handle[R]]:
        """Awaitable form of `enqueue_many`."""
        answers: list[Answer] = []
        with self._traced():
            for batch in self._batches(calls):
                answers += await io_thread.arun(self._send(batch))
        return self._handles(answers)

    def using(
        self,
        *,
        key: str | None = None,
        key_duration: policy.Seconds | None = None,
        delay: policy.Seconds | None = None,
        priority: int | None = None,
        lane: str | None = None,
        queue: str | None = None,
        retry: policy.Retry | None = None,
        timeout: policy.Seconds | policy.Timeouts | None = None,
        **unknown: Never,
    ) -> Enqueueing[P, R]:
        """Returns the task with options for the calls to come; those given before stay.

        Args:
            key: Idempotency key, at most 500 bytes: while it is in force, the same call answers
                with the same task, and one with other arguments is refused (KeyTaken).
            key_duration: Time the key stays in force, seconds or a timedelta; the server's default
                is 24 hours.
            delay: Time before the task may run, seconds or a timedelta, up to 10 years.
            priority: -100 to 100, larger first.
            lane: Lane key within the queue, at most 200 bytes: lanes of a queue take turns.
            queue: Queue, in place of the declared one.
            retry: Retries, before every other source; a field that is left out stays as declared.
            timeout: Limit of each attempt, or a set of limits, before every other source.
            unknown: Nothing; words of other task queues are refused with ours.

        Raises:
            WrongType, WrongValue: an option that no server would take.
        """
        for name in unknown:
            raise _no_option(name)
        given = Options(
            key=key,
            key_duration=key_duration,
            delay=delay,
            priority=priority,
            lane=lane,
            queue=queue,
            retry=retry,
            timeout=timeout,
        )
        said = {
            field.name: getattr(given, field.name)
            for field in dataclasses.fields(Options)
            if getattr(given, field.name) is not None
        }
        return Enqueueing(self._reference, dataclasses.replace(self._options, **said))

    def handle(self, task_id: str) -> Handle[R]:
        """Returns a handle for a task of this name that was enqueued elsewhere; asks nothing."""
        return Handle(self._reference.app.connection, task_id, self._reference.decode_result)

    def decode_result(self, output: payload_pb2.Payload, where: str) -> R:
        """Reads what the handler returned.

        Raises:
            ValueRefused, CodecFailed: it is not what the annotation or the codec says.
        """
        result: R = self._reference.decode_result(output, where)
        return result

    def _traced(self) -> AbstractContextManager[Span | None]:
        return tracing.enqueueing(self.name, self._options.queue or self._reference.queue)

    def _enqueue(
        self, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> Coroutine[Any, Any, tasks.EnqueuedTask]:
        # Encoded here, on the caller's thread; only the coroutine goes to the I/O loop.
        task = self.new_task(args, kwargs)
        return self._reference.app.connection.enqueuer.enqueue(task)

    def new_task(self, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> tasks.NewTask:
        """Returns the task that `enqueue` would store.

        Raises:
            WrongType, ValueRefused, CodecFailed, PayloadTooLarge: as `enqueue`.
        """
        reference, options = self._reference, self._options
        try:
            data = reference.shape.encode_call(args, kwargs)
        except errors.WrongType as exc:
            raise _with_hint(exc, reference.name, kwargs) from None
        task = tasks.NewTask(
            name=reference.name,
            queue=options.queue or reference.queue,
            input=payload_codec.write(
                data, f"arguments of task {reference.name!r}", reference.app.codec
            ),
            priority=options.priority or 0,
            key=options.key or "",
            lane=options.lane or "",
            policy=self._call_policy,
            declared_policy=reference.policy,
            traceparent=tracing.traceparent(),
        )
        if options.delay is not None:
            task.delay.CopyFrom(policy.duration(options.delay, "delay"))
        if options.key_duration is not None:
            task.key_duration.CopyFrom(policy.duration(options.key_duration, "key_duration"))
        return task

    def _send(self, batch: list[tasks.NewTask]) -> Coroutine[Any, Any, list[Answer]]:
        # The connection is made for the first batch: whoever has none connects to nobody.
        return self._reference.app.connection.enqueuer.enqueue_batch(batch)

    def _batches(self, calls: Iterable[Call]) -> Iterator[list[tasks.NewTask]]:
        if self._options.key:
            raise errors.UsageError("a key names one task: it cannot be used with enqueue_many")
        return in_batches(self._made(calls))

    def _made(self, calls: Iterable[Call]) -> Iterator[tasks.NewTask]:
        for call in calls:
            if isinstance(call, Mapping):
                yield self.new_task((), call)
            elif isinstance(call, tuple):
                yield self.new_task(call, {})
            else:
                raise errors.UsageError(
                    f"enqueue_many takes tuples or mappings of arguments, not {type(call).__name__}"
                )

    def _handle(self, stored: tasks.EnqueuedTask) -> Handle[R]:
        return Handle(
            self._reference.app.connection,
            stored.task_id,
            self._reference.decode_result,
            existing=stored.existing,
        )

    def _handles(self, answers: list[Answer]) -> list[Handle[R]]:
        failed = {
            index: answer
            for index, answer in enumerate(answers)
            if isinstance(answer, errors.ServiceError)
        }
        handles = [
            None if isinstance(answer, errors.ServiceError) else self._handle(answer)
            for answer in answers
        ]
        if failed:
            raise errors.EnqueueManyFailed(handles, failed, next(iter(failed.values())))
        return [handle for handle in handles if handle is not None]


def _no_option(name: str) -> errors.WrongType:
    known = ", ".join(field.name for field in dataclasses.fields(Options))
    hint = f"say {_FOREIGN_OPTIONS[name]}" if name in _FOREIGN_OPTIONS else f"it takes {known}"
    return errors.WrongType(f"using() has no option {name!r}; {hint}")


def no_declaration(name: str) -> errors.WrongType:
    """Says of an option that no task is declared with what to say instead."""
    hint = _FOREIGN_DECLARATIONS.get(name, "it takes name, queue, retry, timeout and mode")
    return errors.WrongType(f"app.task has no option {name!r}; {hint}")


def _with_hint(
    error: errors.WrongType, task_name: str, kwargs: Mapping[str, Any]
) -> errors.WrongType:
    """Adds the way to give an option to an error about arguments."""
    for name in _FOREIGN_OPTIONS.keys() & kwargs.keys():
        if f"unexpected keyword argument {name!r}" in str(error):
            return errors.WrongType(
                f"{error}; options stand before the call:"
                f" {task_name}.using({_FOREIGN_OPTIONS[name]}).enqueue(...)"
            )
    for name in _OPTION_NAMES.intersection(kwargs):
        if f"unexpected keyword argument {name!r}" in str(error):
            return errors.WrongType(
                f"{error}; {name} is an option of the call:"
                f" {task_name}.using({name}=...).enqueue(...)"
            )
    return error


class Task(Enqueueing[P, R]):
    """Task is a function that workers run; called as a function, it runs here and now."""

    __name__: str

    def __init__(self, declaration: Declaration) -> None:
        super().__init__(declaration, Options())
        self.declaration = declaration
        functools.update_wrapper(self, declaration.function)

    def __repr__(self) -> str:
        return f"<Task {self.name} of {self.declaration.app.name}>"

    def __call__(self, *args: P.args, **kwargs: P.kwargs) -> Any:
        """Calls the function itself; nothing is enqueued. Inside a workflow: NotCheckpointed."""
        branches.refuse_direct_call("task", self.name)
        return self.declaration.function(*args, **kwargs)


class SyncTask(Task[P, R]):
    """SyncTask is a task made of a `def` function; workers run it in a thread."""

    def __call__(self, *args: P.args, **kwargs: P.kwargs) -> R:
        """Calls the function itself; nothing is enqueued. Inside a workflow: NotCheckpointed."""
        branches.refuse_direct_call("task", self.name)
        result: R = self.declaration.function(*args, **kwargs)
        return result


class AsyncTask(Task[P, R]):
    """AsyncTask is a task made of an `async def` function; workers run it on an event loop."""

    def __call__(self, *args: P.args, **kwargs: P.kwargs) -> Coroutine[Any, Any, R]:
        """Calls the function itself; nothing is enqueued. Inside a workflow: NotCheckpointed."""
        branches.refuse_direct_call("task", self.name)
        coroutine: Coroutine[Any, Any, R] = self.declaration.function(*args, **kwargs)
        return coroutine
