"""Functions that steps call: what is read from them, and how they are run.

A step runs in this process, once on each way to its record: `async def` functions on the loop of
the worker's handlers, `def` functions on threads. Its retries happen in memory, inside the one step.
"""

from __future__ import annotations

import asyncio
import collections
import contextvars
import dataclasses
import functools
import inspect
import random
import threading
import typing
import weakref
from typing import TYPE_CHECKING, Any, Generic, ParamSpec, TypeVar

from tenure import check, codec, context, errors, failure, payload_codec, policy
from tenure.task import Task
from tenure.v1 import run_pb2
from tenure.workflow import branches

if TYPE_CHECKING:
    from collections.abc import Callable

P = ParamSpec("P")
R = TypeVar("R")

NAME_BYTES_MAX = 200
THREAD_COUNT_MAX = 100
# The server's defaults for tasks, for a Retry that leaves them out.
_ATTEMPT_COUNT = 3
_INITIAL_SECONDS = 1.0
_MAX_SECONDS = 60.0
_MULTIPLIER = 2.0
_JITTER = 0.2


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class StepOptions:
    """StepOptions is how a step is run; None: nothing said.

    Attributes:
        name: Name of the step; default the function's own.
        retry: Retries in memory; default none.
        timeout: Limit of each attempt, seconds or a timedelta.

    Raises:
        WrongType, WrongValue: an option that cannot be followed.
    """

    name: str | None = None
    retry: policy.Retry | None = None
    timeout: policy.Seconds | None = None

    def __post_init__(self) -> None:
        if self.name is not None:
            check.text(self.name, "name", NAME_BYTES_MAX)
        if self.retry is not None:
            check.kind(self.retry, "retry", policy.Retry, "Retry(3)")
        if self.timeout is not None:
            check.seconds(self.timeout, "timeout", above_zero=True)

    def over(self, below: StepOptions) -> StepOptions:
        """Returns these options, and those of `below` where these say nothing."""
        return StepOptions(
            name=self.name if self.name is not None else below.name,
            retry=self.retry if self.retry is not None else below.retry,
            timeout=self.timeout if self.timeout is not None else below.timeout,
        )


NO_OPTIONS = StepOptions()


class Step(Generic[P, R]):
    """Step is a function with options for `ctx.step`; called as a function, it runs here and now.

    Inside a workflow calling it raises NotCheckpointed.
    """

    def __init__(self, function: Callable[P, R], options: StepOptions) -> None:
        self.function = function
        self.options = options
        functools.update_wrapper(self, function)

    def __repr__(self) -> str:
        return f"<Step {_name_of(self)}>"

    def __call__(self, *args: P.args, **kwargs: P.kwargs) -> R:
        """Calls the function itself; nothing is recorded. Inside a workflow: NotCheckpointed."""
        branches.refuse_direct_call("step", _name_of(self))
        return self.function(*args, **kwargs)


class Call:
    """Call is one use of a function as a step.

    Attributes:
        name: Name of the step.
        function: What is called.
    """

    __slots__ = ("_options", "function", "name")

    def __init__(self, function: Any, options: StepOptions) -> None:
        if isinstance(function, Step):
            options = options.over(function.options)
            function = function.function
        if isinstance(function, Task):
            function = function.declaration.function
        if not callable(function):
            raise check.wrong_type("what ctx.step calls", "a function", function)
        self.function: Callable[..., Any] = function
        self.name = options.name or _name_of(function)
        self._options = options

    @property
    def where(self) -> str:
        """What the result is, for error messages."""
        return f"result of step {self.name!r}"

    def decode(self, step: run_pb2.Step, hook: payload_codec.PayloadCodec | None) -> Any:
        """Reads a recorded output, as the annotation says.

        Raises:
            ValueRefused, CodecFailed: it is not what the annotation or the codec says.
        """
        data = payload_codec.read(step.output, self.where, hook)
        return result_codec(self.function, self.where).decode(data)

    async def run(
        self,
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
        hook: payload_codec.PayloadCodec | None,
    ) -> tuple[run_pb2.StepResult, BaseException | None]:
        """Runs the function, again where the options say so, until it has returned or failed.

        Returns:
            What is recorded, and what the function raised.
        """
        retry = self._options.retry
        attempt_max = 1 if retry is None else retry.max_attempts or _ATTEMPT_COUNT
        for attempt in range(1, attempt_max + 1):
            try:
                value = await self._attempt(args, kwargs)
            except asyncio.CancelledError as exc:
                task = asyncio.current_task()
                if task is not None and task.cancelling():
                    raise
                raised: BaseException = exc
            except BaseException as exc:  # noqa: BLE001 - whatever user code raises is data
                raised = exc
            else:
                return self._returned(value, hook)
            if attempt == attempt_max or not _is_retryable(raised, retry):
                return run_pb2.StepResult(failure=failure.from_exception(raised)), raised
            await asyncio.sleep(_delay(raised, retry, attempt))
        raise AssertionError("the last attempt returns or raises")

    def _returned(
        self, value: Any, hook: payload_codec.PayloadCodec | None
    ) -> tuple[run_pb2.StepResult, BaseException | None]:
        try:
            data = result_codec(self.function, self.where).encode(value)
            return run_pb2.StepResult(output=payload_codec.write(data, self.where, hook)), None
        except (errors.UsageError, errors.PayloadTooLarge) as exc:
            # It has done its work: another attempt would do it twice for the same end.
            return run_pb2.StepResult(failure=failure.from_exception(exc)), exc

    async def _attempt(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        limit = self._options.timeout
        seconds = None if limit is None else check.seconds(limit, "timeout")
        async with asyncio.timeout(seconds):
            if is_async(self.function):
                return await self.function(*args, **kwargs)
            found = await _threads.run(self.function, args, kwargs)
            return await found if inspect.isawaitable(found) else found


class _Threads:
    """_Threads runs `def` steps: daemon threads, as many as are needed at once, up to 100."""

    def __init__(self) -> None:
        self._lock = threading.Condition()
        self._queue: collections.deque[Callable[[], None]] = collections.deque()
        self._idle_count = 0
        self._thread_count = 0

    async def run(
        self, function: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> Any:
        """Calls a function on a thread; one that is given up runs on, and is not heard."""
        loop = asyncio.get_running_loop()
        future: asyncio.Future[Any] = loop.create_future()
        copied = contextvars.copy_context()

        def call() -> None:
            try:
                value = copied.run(function, *args, **kwargs)
            except BaseException as exc:  # noqa: BLE001 - whatever user code raises is data
                _tell(loop, future, None, exc)
            else:
                _tell(loop, future, value, None)

        with self._lock:
            self._queue.append(call)
            if self._idle_count >= len(self._queue):
                self._lock.notify()
            elif self._thread_count < THREAD_COUNT_MAX:
                self._thread_count += 1
                name = f"tenure-step-{self._thread_count}"
                threading.Thread(target=self._work, name=name, daemon=True).start()
        return await future

    def _work(self) -> None:
        while True:
            with self._lock:
                while not self._queue:
                    self._idle_count += 1
                    self._lock.wait()
                    self._idle_count -= 1
                call = self._queue.popleft()
            call()
            # The thread may wait for long: it must not keep what it ran in memory.
            del call


_threads = _Threads()


def _tell(
    loop: asyncio.AbstractEventLoop,
    future: asyncio.Future[Any],
    value: Any,
    exc: BaseException | None,
) -> None:
    def tell() -> None:
        if future.done():
            return
        if isinstance(exc, StopIteration):
            # A future refuses it; a coroutine turns it into this, too.
            future.set_exception(RuntimeError(f"the step raised StopIteration: {exc}"))
        elif exc is not None:
            future.set_exception(exc)
        else:
            future.set_result(value)

    if not loop.is_closed():
        loop.call_soon_threadsafe(tell, context=contextvars.Context())


def is_async(function: Callable[..., Any]) -> bool:
    """Says whether calling a function gives a coroutine."""
    return inspect.iscoroutinefunction(function) or inspect.iscoroutinefunction(
        getattr(function, "__call__", None)  # noqa: B004 - the method is what is asked for
    )


_codecs: weakref.WeakKeyDictionary[Any, codec.ValueCodec[Any]] = weakref.WeakKeyDictionary()


def result_codec(function: Callable[..., Any], where: str) -> codec.ValueCodec[Any]:
    """Returns the codec of what a function returns, by its annotation.

    Raises:
        HandlerRefused: the annotation cannot be resolved, or has no JSON form.
    """
    key = getattr(function, "__func__", function)
    try:
        known = _codecs.get(key)
    except TypeError:
        return _make_codec(function, where)
    if known is None:
        known = _make_codec(function, where)
        try:
            _codecs[key] = known
        except TypeError:
            # Nothing to remember it by.
            return known
    return known


def _make_codec(function: Callable[..., Any], where: str) -> codec.ValueCodec[Any]:
    while isinstance(function, functools.partial):
        function = function.func
    plain = inspect.unwrap(function)
    if not inspect.isroutine(plain) and not isinstance(plain, type):
        plain = getattr(plain, "__call__", plain)  # noqa: B004 - the method has the annotations
    if isinstance(plain, type):
        return codec.ValueCodec(plain, where)
    if "return" not in getattr(plain, "__annotations__", {}):
        return codec.any_json
    try:
        annotation = typing.get_type_hints(plain, include_extras=True).get("return", Any)
    except Exception as exc:
        raise errors.HandlerRefused(f"{where}: its annotation cannot be resolved: {exc}") from exc
    return codec.ValueCodec(annotation, where)


def _name_of(function: Any) -> str:
    while isinstance(function, functools.partial):
        function = function.func
    if isinstance(function, Step):
        return function.options.name or _name_of(function.function)
    name = getattr(function, "__name__", None) or type(function).__name__
    return name.encode()[:NAME_BYTES_MAX].decode(errors="ignore")


def _is_retryable(raised: BaseException, retry: policy.Retry | None) -> bool:
    if retry is None or isinstance(raised, (errors.NonRetryable, *retry.unless_classes)):
        return False
    if type(raised).__name__ in retry.unless:
        return False
    return isinstance(raised, Exception | context.RetryAfter)


def _delay(raised: BaseException, retry: policy.Retry | None, attempt: int) -> float:
    if isinstance(raised, context.RetryAfter):
        return raised.seconds
    if retry is None:
        return 0.0
    first = _INITIAL_SECONDS
    if retry.initial_delay is not None:
        first = check.seconds(retry.initial_delay, "initial_delay")
    most = max(_MAX_SECONDS, first)
    if retry.max_delay is not None:
        most = check.seconds(retry.max_delay, "max_delay")
    if retry.backoff == "fixed":
        delay = first
    elif retry.backoff == "linear":
        delay = first * attempt
    else:
        factor = _MULTIPLIER if retry.multiplier is None else retry.multiplier
        delay = first * factor ** min(attempt - 1, 100)
    share = _JITTER if retry.jitter is None else retry.jitter
    spread = share * (2 * random.random() - 1)  # noqa: S311 - spreads load, guards nothing
    return min(min(delay, most) * (1 + spread), most)
