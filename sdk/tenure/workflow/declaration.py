"""Workflows: functions whose runs workers run, and the ways to start them.

A `Workflow` is made by `@app.workflow`. `using` gives the same with options for the starts to come.
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Generic, Literal, Never, ParamSpec, TypeAlias, TypeVar

from tenure import check, errors, payload_codec, policy, runs, signature, tracing
from tenure.enqueuer import in_batches, send_ahead
from tenure.io_thread import io_thread, refuse_in_loop
from tenure.v1 import run_pb2, worker_pb2
from tenure.workflow import branches, version
from tenure.workflow.run_handle import RunHandle

if TYPE_CHECKING:
    from collections.abc import Coroutine, Iterator
    from contextlib import AbstractContextManager

    from opentelemetry.trace import Span

    from tenure.app import App
    from tenure.enqueuer import RunAnswer
    from tenure.task import Call
    from tenure.v1 import payload_pb2
    from tenure.v1 import workflow_service_pb2 as workflows

P = ParamSpec("P")
R = TypeVar("R")

Versioning: TypeAlias = Literal["replay", "pinned"]
VERSIONINGS = ("replay", "pinned")
VERSION_BYTES_MAX = 100
COMPATIBLE_COUNT_MAX = 100
# Lanes of runs that no worker has had have this in place of a version.
_ANY_VERSION = "*"


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class RunOptions:
    """RunOptions is what `using` said for the starts to come; None: nothing."""

    key: str | None = None
    key_duration: policy.Seconds | None = None
    delay: policy.Seconds | None = None
    priority: int | None = None
    lane: str | None = None
    queue: str | None = None
    timeout: policy.Seconds | None = None
    attributes: Mapping[str, str] | None = None

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
        if self.timeout is not None:
            check.seconds(self.timeout, "timeout", above_zero=True)
        if self.attributes is not None:
            runs.check_attributes(self.attributes, "attributes")


_OPTION_NAMES = tuple(field.name for field in dataclasses.fields(RunOptions))


class WorkflowDeclaration:
    """WorkflowDeclaration is what `@app.workflow` knows of one function.

    Raises:
        HandlerRefused: the function cannot be a workflow.
    """

    def __init__(
        self,
        app: App,
        function: Callable[..., Any],
        *,
        name: str,
        queue: str,
        timeout: policy.Seconds | None,
        recovery_attempts: int | None,
        versioning: Versioning,
        compatible_with: Sequence[str],
        is_async: bool,
    ) -> None:
        self.app = app
        self.function = function
        self.name = name
        self.queue = queue
        self.timeout = timeout
        self.recovery_attempts = recovery_attempts
        self.versioning = versioning
        self.compatible_with = compatible_with
        self.is_async = is_async
        self.signature = signature.Signature(function, name, "workflow", takes_context=True)

    @property
    def shape(self) -> _Shape:
        """Reads the arguments and writes the result, for an activation."""
        return _Shape(self.signature)

    @property
    def codec(self) -> payload_codec.PayloadCodec | None:
        """Codec of the app."""
        return self.app.codec

    @functools.cached_property
    def version(self) -> str:
        """Version of the code: the app's, if it says one, or else that of the function's source."""
        return self.app.version or version.of(self.function)

    def handler(self, queue: str) -> worker_pb2.Handler:
        """Returns the workflow as a worker registers it."""
        return worker_pb2.Handler(
            name=self.name,
            queue=queue,
            kind=worker_pb2.HANDLER_KIND_WORKFLOW,
            version=self.version,
            compatible_versions=self.compatible_with,
            pinned=self.versioning == "pinned",
        )

    def decode_result(self, output: payload_pb2.Payload, where: str) -> Any:
        """Reads what the function returned.

        Raises:
            ValueRefused, CodecFailed: it is not what the annotation or the codec says.
        """
        return self.signature.result.decode(payload_codec.read(output, where, self.app.codec))


class _Shape:
    """_Shape is a signature as an activation uses it."""

    def __init__(self, found: signature.Signature) -> None:
        self._signature = found

    def decode_call(self, data: bytes) -> tuple[list[Any], dict[str, Any]]:
        """Reads a JSON object into positional and named arguments, the context left out."""
        return self._signature.decode_call(data)

    def encode_result(self, value: Any) -> bytes:
        """Returns what the function returned as JSON."""
        return self._signature.result.encode(value)


class Starting(Generic[P, R]):
    """Starting is the half of a workflow that starts runs: the same for `using(...)`."""

    def __init__(self, declaration: WorkflowDeclaration, options: RunOptions) -> None:
        self.declaration = declaration
        self._options = options

    @property
    def name(self) -> str:
        """Name of the workflow, by which workers and other programs know it."""
        return self.declaration.name

    def start(self, *args: P.args, **kwargs: P.kwargs) -> RunHandle[R]:
        """Starts a run with these arguments for its function, the context left out.

        Returns once the run is stored. Concurrent calls of one process share commits.

        Raises:
            WrongType: an argument is missing, or not of the function; nothing was sent.
            ValueRefused: an argument does not fit its annotation; nothing was sent.
            CodecFailed: the app's codec could not encode the arguments; nothing was sent.
            PayloadTooLarge: the arguments are longer than 2 MiB; nothing was sent.
            BlockingCallInLoop: an event loop runs here; use `astart`.
            KeyTaken: another workflow or other arguments stand under the key.
            Unavailable: no server answered within 30 s.
            ServiceError: any other refusal, as the class of its reason.
        """
        refuse_in_loop(f"{self.name}.start", f"{self.name}.astart")
        with self._traced() as span:
            new = self.new_run(args, kwargs)
            stored = io_thread.run(self.declaration.app.connection.starter.start(new))
            tracing.enqueued(span, stored.run_id)
        return self._handle(stored)

    async def astart(self, *args: P.args, **kwargs: P.kwargs) -> RunHandle[R]:
        """Awaitable form of `start`."""
        with self._traced() as span:
            new = self.new_run(args, kwargs)
            stored = await io_thread.arun(self.declaration.app.connection.starter.start(new))
            tracing.enqueued(span, stored.run_id)
        return self._handle(stored)

    def start_many(self, calls: Iterable[Call]) -> list[RunHandle[R]]:
        """Starts many runs, up to 1,000 in one commit, in order.

        Args:
            calls: For each run a tuple of positional arguments or a mapping of named ones. May be
                a generator of any length; it is read as it is sent.

        Returns:
            One handle a run, in order.

        Raises:
            UsageError: with a key, which names one run; or a call that is neither.
            WrongType, ValueRefused, CodecFailed, PayloadTooLarge: as `start`, for one of the
                calls; those of batches before it are started.
            StartManyFailed: some runs were refused; it has the handles of the others.
            ServiceError: a whole call failed; those before it are started.
        """
        refuse_in_loop(f"{self.name}.start_many", f"{self.name}.astart_many")
        with self._traced():
            answers = send_ahead(in_batches(self._made(calls)), self._send)
        return self._handles(answers)

    async def astart_many(self, calls: Iterable[Call]) -> list[RunHandle[R]]:
        """Awaitable form of `start_many`."""
        answers: list[RunAnswer] = []
        with self._traced():
            for batch in in_batches(self._made(calls)):
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
        timeout: policy.Seconds | None = None,
        attributes: Mapping[str, str] | None = None,
        **unknown: Never,
    ) -> Starting[P, R]:
        """Returns the workflow with options for the starts to come; those given before stay.

        Args:
            key: Idempotency key, at most 500 bytes: while it is in force, the same start answers
                with the same run, and one with other arguments is refused (KeyTaken).
            key_duration: Time the key stays in force, seconds or a timedelta; the server's default
                is 24 hours.
            delay: Time before the run may begin, seconds or a timedelta, up to 10 years.
            priority: -100 to 100, larger first.
            lane: Lane key within the queue, at most 200 bytes: lanes of a queue take turns.
            queue: Queue, in place of the declared one.
            timeout: Time from the start until the run ends as TIMED_OUT.
            attributes: What people search runs by: at most 20 texts by name.
            unknown: Nothing; it is refused with what there is.

        Raises:
            WrongType, WrongValue: an option that no server would take.
        """
        for name in unknown:
            known = ", ".join(_OPTION_NAMES)
            raise errors.WrongType(f"using() has no option {name!r}; it takes {known}")
        given = RunOptions(
            key=key,
            key_duration=key_duration,
            delay=delay,
            priority=priority,
            lane=lane,
            queue=queue,
            timeout=timeout,
            attributes=attributes,
        )
        said = {
            name: getattr(given, name) for name in _OPTION_NAMES if getattr(given, name) is not None
        }
        return Starting(self.declaration, dataclasses.replace(self._options, **said))

    def handle(
        self,
        id: str | None = None,  # noqa: A002 - the word of the API
        *,
        key: str | None = None,
    ) -> RunHandle[R]:
        """Returns a handle for a run that was started elsewhere; asks nothing.

        Args:
            id: Id of the run.
            key: Key it was started with, in place of the id.

        Raises:
            UsageError: neither or both are given.
            WrongType, WrongValue: no text, or an empty one.
        """
        if (id is None) == (key is None):
            raise errors.UsageError(
                "handle() takes the id of a run, or the key it was started with"
            )
        if id is not None:
            check.text(id, "id")
        if key is not None:
            check.text(key, "key", check.KEY_BYTES_MAX)
        return self._handle_of(id or "", key=key or "")

    def new_run(self, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> run_pb2.NewRun:
        """Returns the run that `start` would start.

        Raises:
            WrongType, ValueRefused, CodecFailed, PayloadTooLarge: as `start`.
        """
        declaration, options = self.declaration, self._options
        try:
            data = declaration.signature.encode_call(args, kwargs)
        except errors.WrongType as exc:
            raise _with_hint(exc, self.name, kwargs) from None
        timeout = options.timeout if options.timeout is not None else declaration.timeout
        new = run_pb2.NewRun(
            name=declaration.name,
            queue=options.queue or declaration.queue,
            input=payload_codec.write(
                data, f"arguments of workflow {declaration.name!r}", declaration.codec
            ),
            priority=options.priority or 0,
            key=options.key or "",
            lane=options.lane or "",
            attributes=options.attributes,
            traceparent=tracing.traceparent(),
            recovery_attempts=declaration.recovery_attempts or 0,
        )
        if options.delay is not None:
            new.delay.CopyFrom(policy.duration(options.delay, "delay"))
        if options.key_duration is not None:
            new.key_duration.CopyFrom(policy.duration(options.key_duration, "key_duration"))
        if timeout is not None:
            new.timeout.CopyFrom(policy.duration(timeout, "timeout"))
        return new

    def decode_result(self, output: payload_pb2.Payload, where: str) -> R:
        """Reads what the function returned.

        Raises:
            ValueRefused, CodecFailed: it is not what the annotation or the codec says.
        """
        result: R = self.declaration.decode_result(output, where)
        return result

    def _traced(self) -> AbstractContextManager[Span | None]:
        queue = self._options.queue or self.declaration.queue
        return tracing.enqueueing(self.name, queue, verb="start")

    def _send(self, batch: list[run_pb2.NewRun]) -> Coroutine[Any, Any, list[RunAnswer]]:
        # The connection is made for the first batch: whoever has none connects to nobody.
        return self.declaration.app.connection.starter.start_batch(batch)

    def _made(self, calls: Iterable[Call]) -> Iterator[run_pb2.NewRun]:
        if self._options.key:
            raise errors.UsageError("a key names one run: it cannot be used with start_many")
        for call in calls:
            if isinstance(call, Mapping):
                yield self.new_run((), call)
            elif isinstance(call, tuple):
                yield self.new_run(call, {})
            else:
                raise errors.UsageError(
                    f"start_many takes tuples or mappings of arguments, not {type(call).__name__}"
                )

    def _handle(self, stored: workflows.StartedRun) -> RunHandle[R]:
        return self._handle_of(stored.run_id, existing=stored.existing)

    def _handle_of(self, run_id: str, *, key: str = "", existing: bool = False) -> RunHandle[R]:
        return RunHandle(
            self.declaration.app.connection,
            run_id,
            self.decode_result,
            key=key,
            existing=existing,
            codec=self.declaration.codec,
        )

    def _handles(self, answers: list[RunAnswer]) -> list[RunHandle[R]]:
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
            raise errors.StartManyFailed(handles, failed, next(iter(failed.values())))
        return [handle for handle in handles if handle is not None]


def _with_hint(error: errors.WrongType, name: str, kwargs: Mapping[str, Any]) -> errors.WrongType:
    """Adds the way to give an option to an error about arguments."""
    for option in _OPTION_NAMES:
        if option in kwargs and f"unexpected keyword argument {option!r}" in str(error):
            return errors.WrongType(
                f"{error}; {option} is an option of the start: {name}.using({option}=...).start(...)"
            )
    return error


class Workflow(Starting[P, R]):
    """Workflow is a function whose runs workers run, step by step, over any number of crashes."""

    __name__: str

    def __init__(self, declaration: WorkflowDeclaration) -> None:
        super().__init__(declaration, RunOptions())
        functools.update_wrapper(self, declaration.function)

    def __repr__(self) -> str:
        return f"<Workflow {self.name} of {self.declaration.app.name}>"

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Calls the function itself, with a context of yours; nothing is started.

        Raises:
            NotCheckpointed: inside a workflow.
        """
        branches.refuse_direct_call("workflow", self.name)
        return self.declaration.function(*args, **kwargs)


def check_options(
    *,
    queue: object,
    timeout: object,
    recovery_attempts: object,
    versioning: object,
    compatible_with: object,
) -> tuple[str, ...]:
    """Checks what `@app.workflow(...)` was given; returns the compatible versions.

    Raises:
        WrongType, WrongValue: an option that no server would take.
    """
    check.text(queue, "queue")
    if timeout is not None:
        check.seconds(timeout, "timeout", above_zero=True)
    if recovery_attempts is not None:
        check.whole(recovery_attempts, "recovery_attempts", 1, 1_000)
    check.choice(versioning, "versioning", VERSIONINGS)
    expected = "a list of versions, such as ['2026-11']"
    if isinstance(compatible_with, str | bytes) or not isinstance(compatible_with, Iterable):
        raise check.wrong_type("compatible_with", expected, compatible_with)
    found = tuple(compatible_with)
    for each in found:
        check_version(each, "a version in compatible_with")
    if len(found) > COMPATIBLE_COUNT_MAX:
        raise check.wrong_value(
            "compatible_with", f"at most {COMPATIBLE_COUNT_MAX} versions", found
        )
    return found


def check_version(value: object, name: str) -> None:
    """Checks a version of a workflow's code.

    Raises:
        WrongType, WrongValue: no text, an empty or long one, or the one that means any.
    """
    check.text(value, name, VERSION_BYTES_MAX)
    if value == _ANY_VERSION:
        raise check.wrong_value(name, f"a text other than {_ANY_VERSION!r}", value)
