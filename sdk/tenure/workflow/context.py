"""The context of an `async def` workflow: what it does through it is remembered.

    @app.workflow
    async def fulfil(ctx: Context, order: Order) -> Receipt:
        stock = await ctx.step(reserve_stock, order)
        payment = await ctx.task(charge, order)
        await ctx.sleep(timedelta(days=1))
        ...

The place of a verb is taken when it is called, not when it is awaited. Verbs may run at once, as
`asyncio.gather` and `asyncio.TaskGroup` have them; what depends on which of them is over first goes
through `wait_any` and `as_completed`, which record it.
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Any, Generic, Literal, ParamSpec, TypeAlias, TypeVar, overload

from tenure import errors
from tenure.workflow import mapping
from tenure.workflow.calls import NO_OPTIONS, StepOptions

if TYPE_CHECKING:
    import datetime
    import random
    import uuid
    from collections.abc import Callable, Coroutine, Generator, Iterable, MutableMapping

    from tenure import policy
    from tenure.task import Enqueueing
    from tenure.v1 import worker_pb2
    from tenure.workflow.port import Startable
    from tenure.workflow.verbs import Child, Verbs

P = ParamSpec("P")
R = TypeVar("R")
T = TypeVar("T")
OnError: TypeAlias = Literal["raise", "collect"]
NotCompleted: TypeAlias = errors.TaskNotCompleted | errors.RunNotCompleted


class BaseContext:
    """BaseContext is what the contexts of both kinds of workflows know of their run."""

    def __init__(
        self, assignment: worker_pb2.Assignment, verbs: Verbs, options: StepOptions = NO_OPTIONS
    ) -> None:
        self._assignment = assignment
        self._verbs = verbs
        self._options = options
        self._logger: logging.LoggerAdapter[logging.Logger] | None = None

    def __repr__(self) -> str:
        return f"<{type(self).__name__} of run {self.run_id}>"

    @property
    def run_id(self) -> str:
        """Id of the run."""
        return self._assignment.task_id

    @property
    def name(self) -> str:
        """Name of the workflow."""
        return self._assignment.name

    @property
    def key(self) -> str:
        """Idempotency key that the run was started with; empty: none."""
        return self._assignment.activation.key

    @property
    def attributes(self) -> dict[str, str]:
        """What people search the run by."""
        return dict(self._assignment.activation.attributes)

    @property
    def parent_run_id(self) -> str:
        """Id of the run that started this one; empty: none did."""
        return self._assignment.activation.parent_run_id

    @property
    def cancelled(self) -> bool:
        """True once the run is to be cancelled."""
        return self._verbs.flow.cancel_reason is not None

    @property
    def cancel_reason(self) -> str:
        """Why it is to be cancelled; empty if it is not or nobody said why."""
        return self._verbs.flow.cancel_reason or ""

    @property
    def logger(self) -> logging.LoggerAdapter[logging.Logger]:
        """Logger `tenure.workflow`, silent while the function repeats what it did before."""
        if self._logger is None:
            self._logger = _WorkflowLogger(
                logging.getLogger("tenure.workflow"),
                {"run_id": self.run_id, "workflow_name": self.name},
                self._verbs,
            )
        return self._logger

    def now(self) -> datetime.datetime:
        """Returns when the latest step of this branch was recorded or over, UTC.

        It is the database's clock, and the same on each replay; before the first step, it is when
        the run was started.
        """
        return self._verbs.branches.current().latest_at

    def random(self) -> random.Random:
        """Returns the random numbers of this branch, the same on each replay; for no secrets."""
        return self._verbs.branches.current().random

    def uuid(self) -> uuid.UUID:
        """Returns a new random id, the same on each replay."""
        return self._verbs.branches.current().uuid()

    def deprecate_patch(self, name: str) -> None:
        """Stands where `patch(name)` stood, once no run is left that went without the change.

        It passes what such runs recorded, and records nothing. When these are over, too, it can go.
        """
        self._verbs.deprecate_patch(name)


class StepHandle(Generic[R]):
    """StepHandle is a task or child run that a workflow has started: await it for its result."""

    def __init__(self, verbs: Verbs, child: Child) -> None:
        self._verbs = verbs
        self.child = child

    def __repr__(self) -> str:
        return f"<StepHandle {self.child.target.name} {self.id}>"

    def __await__(self) -> Generator[Any, None, R]:
        return self.result().__await__()

    @property
    def id(self) -> str:
        """Id of the task or run."""
        return self.child.child_id

    def result(self) -> Coroutine[Any, Any, R]:
        """Waits until it is over and returns what it returned; may be called again.

        Raises:
            TaskFailed, TaskCancelled, TaskTimedOut: the task is over without an output.
            RunFailed, RunCancelled, RunTimedOut: the run is.
            ValueRefused, CodecFailed: the output is not what the annotation or the codec says.
        """
        waiting: Coroutine[Any, Any, R] = self._verbs.result(self.child)
        return waiting


class Context(BaseContext):
    """Context is what an `async def` workflow does everything through that is to be remembered."""

    def using(
        self,
        *,
        name: str | None = None,
        retry: policy.Retry | None = None,
        timeout: policy.Seconds | None = None,
    ) -> Context:
        """Returns the context with options for steps; those given before stay.

        Args:
            name: Name of the step; default the function's own.
            retry: Retries, in memory, inside the step; default one attempt. `max_attempts` is 3
                where a Retry does not say.
            timeout: Limit of each attempt; the step has failed as `TimeoutError` then. A `def`
                function is given up, and its thread runs on.

        Raises:
            WrongType, WrongValue: an option that cannot be followed.
        """
        options = StepOptions(name=name, retry=retry, timeout=timeout).over(self._options)
        return Context(self._assignment, self._verbs, options)

    # A coroutine function also is a function that returns a coroutine: the first one wins.
    @overload
    def step(  # pyright: ignore[reportOverlappingOverload]
        self, function: Callable[P, Coroutine[Any, Any, R]], /, *args: P.args, **kwargs: P.kwargs
    ) -> Coroutine[Any, Any, R]: ...
    @overload
    def step(
        self, function: Callable[P, R], /, *args: P.args, **kwargs: P.kwargs
    ) -> Coroutine[Any, Any, R]: ...
    def step(
        self, function: Callable[..., Any], /, *args: Any, **kwargs: Any
    ) -> Coroutine[Any, Any, Any]:
        """Runs any function here, and remembers what it came to.

        `async def` functions run on the loop, `def` functions in a thread. Once it is recorded it
        never runs again; if the worker dies before, it does.

        Raises:
            StepFailed: the function raised; the same on each replay.
        """
        waiting: Coroutine[Any, Any, Any] = self._verbs.call(function, args, kwargs, self._options)
        return waiting

    def task(
        self, task: Enqueueing[P, R], /, *args: P.args, **kwargs: P.kwargs
    ) -> Coroutine[Any, Any, R]:
        """Has any worker run a task, and waits for its result.

        Raises:
            TaskFailed, TaskCancelled, TaskTimedOut: the task is over without an output.
            WrongType, ValueRefused, PayloadTooLarge: the arguments do not fit.
            UsageError: the task has a key: its step names it.
        """
        waiting: Coroutine[Any, Any, R] = self._verbs.run(task, args, kwargs)
        return waiting

    def child(
        self, workflow: Startable[P, R], /, *args: P.args, **kwargs: P.kwargs
    ) -> Coroutine[Any, Any, R]:
        """Starts a run of a workflow, and waits for its result.

        Raises:
            RunFailed, RunCancelled, RunTimedOut: the run is over without an output.
            KeyTaken: another run stands under its key.
            WrongType, ValueRefused, PayloadTooLarge: the arguments do not fit.
        """
        waiting: Coroutine[Any, Any, R] = self._verbs.run(workflow, args, kwargs)
        return waiting

    async def _started(self, starting: Any) -> StepHandle[Any]:
        return StepHandle(self._verbs, await starting)

    def start(
        self,
        target: Enqueueing[P, R] | Startable[P, R],
        /,
        *args: P.args,
        **kwargs: P.kwargs,
    ) -> Coroutine[Any, Any, StepHandle[R]]:
        """Starts a task or a run, and gives its handle, to await later.

        Raises:
            WrongType, ValueRefused, PayloadTooLarge, KeyTaken: as `task` and `child`.
        """
        _, starting = self._verbs.start(target, args, kwargs)
        return self._started(starting)

    @overload
    def map(
        self,
        target: Enqueueing[..., R] | Startable[..., R],
        items: Iterable[Any],
        *,
        limit: int | None = None,
        on_error: Literal["raise"] = "raise",
    ) -> Coroutine[Any, Any, list[R]]: ...
    @overload
    def map(
        self,
        target: Enqueueing[..., R] | Startable[..., R],
        items: Iterable[Any],
        *,
        limit: int | None = None,
        on_error: Literal["collect"],
    ) -> Coroutine[Any, Any, list[R | NotCompleted]]: ...
    def map(
        self,
        target: Enqueueing[..., Any] | Startable[..., Any],
        items: Iterable[Any],
        *,
        limit: int | None = None,
        on_error: OnError = "raise",
    ) -> Coroutine[Any, Any, list[Any]]:
        """Has a task, or a run, do each item; waits for all as one, and gives results in order.

        Args:
            target: A task or a workflow.
            items: The first argument of each.
            limit: How many may be under way at once; None: all.
            on_error: "raise" starts no more after a failure, waits for what is under way, and raises
                the first failure by order; "collect" does all, with errors in place of results.

        Raises:
            TaskNotCompleted, RunNotCompleted: one of them is over without an output.
            WrongType, WrongValue, ValueRefused, PayloadTooLarge: as `task` and `child`.
        """
        waiting: Coroutine[Any, Any, list[Any]] = mapping.start(
            self._verbs, target, items, limit, on_error
        )
        return waiting

    def sleep(self, seconds: policy.Seconds, /) -> Coroutine[Any, Any, None]:
        """Waits for a time, seconds or a timedelta, up to 10 years; no worker holds anything then.

        Raises:
            WrongType, WrongValue: another time.
        """
        waiting: Coroutine[Any, Any, None] = self._verbs.pause(seconds)
        return waiting

    def wait_any(self, handles: Iterable[StepHandle[T]], /) -> Coroutine[Any, Any, StepHandle[T]]:
        """Waits until one of the handles is over, and gives it: the same one on each replay.

        Raises:
            WrongValue: there are none.
        """
        found = list(handles)
        choosing = self._verbs.choose([each.child for each in found], "wait_any", 1)
        return self._chosen(found, choosing)

    async def _chosen(self, handles: list[StepHandle[T]], choosing: Any) -> StepHandle[T]:
        chosen: list[int] = await choosing
        return handles[chosen[0]]

    def as_completed(self, handles: Iterable[StepHandle[T]], /) -> AsCompleted[T]:
        """Gives the handles as they come to be over, in the same order on each replay.

        async for handle in ctx.as_completed(handles): ...
        """
        return AsCompleted(self._verbs, list(handles))

    def patch(self, name: str, /) -> Coroutine[Any, Any, bool]:
        """Says whether the run takes part in a change of the code: `if await ctx.patch("x"):`.

        False for a run that had come past this place without it; True, and recorded, for others.
        """
        waiting: Coroutine[Any, Any, bool] = self._verbs.patch(name)
        return waiting


class AsCompleted(Generic[T]):
    """AsCompleted gives handles as they come to be over; those over at once are one step."""

    def __init__(self, verbs: Verbs, handles: list[StepHandle[T]]) -> None:
        self._verbs = verbs
        self._left = handles
        self._ready: list[StepHandle[T]] = []

    def __aiter__(self) -> AsCompleted[T]:
        return self

    async def __anext__(self) -> StepHandle[T]:
        if not self._ready:
            if not self._left:
                raise StopAsyncIteration
            children = [each.child for each in self._left]
            chosen: list[int] = await self._verbs.choose(children, "as_completed")
            self._ready = [self._left[index] for index in chosen]
            gone = set(chosen)
            self._left = [each for at, each in enumerate(self._left) if at not in gone]
        return self._ready.pop(0)


class _WorkflowLogger(logging.LoggerAdapter[logging.Logger]):
    def __init__(self, logger: logging.Logger, extra: dict[str, object], verbs: Verbs) -> None:
        super().__init__(logger, extra)
        self._verbs = verbs

    def isEnabledFor(self, level: int) -> bool:  # noqa: N802 - the name that logging calls
        if not super().isEnabledFor(level):
            return False
        try:
            return not self._verbs.branches.current().replaying
        except errors.BranchUnknown:
            return True

    def process(
        self, msg: Any, kwargs: MutableMapping[str, Any]
    ) -> tuple[Any, MutableMapping[str, Any]]:
        own = dict(self.extra or {})
        kwargs["extra"] = {**own, **(kwargs.get("extra") or {})}
        return f"[{own.get('workflow_name')} {own.get('run_id')}] {msg}", kwargs
