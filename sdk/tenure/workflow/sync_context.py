"""The context of a `def` workflow, and the threads that such a workflow runs in.

The verbs are those of `Context`, blocking. A workflow runs in a thread; `ctx.thread` starts a branch
of it in another one. The work of the verbs is done on the loop of the worker's handlers, where the
one half of all verbs lives.
"""

from __future__ import annotations

import asyncio
import contextvars
import threading
from typing import TYPE_CHECKING, Any, Generic, Literal, ParamSpec, TypeVar, overload

from tenure import context, errors
from tenure.workflow import mapping
from tenure.workflow.branches import running
from tenure.workflow.calls import NO_OPTIONS, StepOptions
from tenure.workflow.context import BaseContext, NotCompleted, OnError

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine, Iterable, Iterator, Mapping

    from tenure import policy
    from tenure.task import Enqueueing
    from tenure.v1 import worker_pb2
    from tenure.workflow.branches import Branch, Owner
    from tenure.workflow.port import Startable
    from tenure.workflow.verbs import Child, Verbs

P = ParamSpec("P")
R = TypeVar("R")
T = TypeVar("T")


class Threads:
    """Threads is the threads of one `def` workflow, one for each of its branches.

    Attributes:
        live: Branches whose threads have not ended.

    Args:
        loop: Where the verbs do their work.
        verbs: The verbs.
        ended: Called on the loop with how the function of a branch ended.
    """

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        verbs: Verbs,
        ended: Callable[[Owner, Any, BaseException | None], None],
    ) -> None:
        self.live: set[Branch] = set()
        self._loop = loop
        self._verbs = verbs
        self._ended = ended
        self._changed: list[asyncio.Future[None]] = []
        self._outcomes: dict[Branch, tuple[Any, BaseException | None]] = {}

    def start(
        self,
        branch: Branch,
        function: Callable[..., Any],
        args: tuple[Any, ...],
        kwargs: Mapping[str, Any],
    ) -> None:
        """Runs a function as a branch, in a thread of its own."""
        self.live.add(branch)
        branches = self._verbs.branches

        def body() -> None:
            value, raised = None, None
            ident = threading.get_ident()
            branches.threads[ident] = branch
            running.set(branches)
            try:
                value = function(*args, **kwargs)
            except BaseException as exc:  # noqa: BLE001 - whatever user code raises is data
                raised = exc
            finally:
                del branches.threads[ident]
            if not self._loop.is_closed():
                told = contextvars.Context()
                self._loop.call_soon_threadsafe(self._end, branch, value, raised, context=told)

        threading.Thread(
            target=contextvars.copy_context().run,
            args=(body,),
            name=f"tenure-workflow-{branch.path or 'root'}",
            daemon=True,
        ).start()

    def wait_for(self, verb: str, waiting: Coroutine[Any, Any, T]) -> T:
        """Has the second part of a verb done on the loop, and waits for it.

        Raises:
            BlockingCallInLoop: an event loop runs in the thread.
        """
        if asyncio._get_running_loop() is not None:  # noqa: SLF001 - asks without raising
            waiting.close()
            raise errors.BlockingCallInLoop(f"ctx.{verb}", f"Context.{verb}")
        return asyncio.run_coroutine_threadsafe(waiting, self._loop).result()

    async def join(self, branch: Branch, waiting: Branch) -> Any:
        """Waits for the end of a branch and gives what its function returned or raises it."""
        while branch in self.live:
            await self._verbs.parking.until_joined(waiting, self._change())
        self._verbs.flow.check(waiting)
        value, raised = self._outcomes[branch]
        waiting.saw(branch.latest_at)
        if isinstance(raised, context.CancelRequested):
            # The waiting branch learns of it by this, and may clean up.
            self._verbs.flow.tell(waiting)
        if raised is not None:
            raise raised
        return value

    async def ended(self) -> None:
        """Waits until all threads have ended."""
        while self.live:
            await self._change()
        self._outcomes.clear()

    def _change(self) -> asyncio.Future[None]:
        future = self._loop.create_future()
        self._changed.append(future)
        return future

    def _end(self, branch: Branch, value: Any, raised: BaseException | None) -> None:
        self.live.discard(branch)
        self._outcomes[branch] = (value, raised)
        self._ended(branch, value, raised)
        changed, self._changed = self._changed, []
        for future in changed:
            if not future.done():
                future.set_result(None)


class SyncStepHandle(Generic[R]):
    """SyncStepHandle is a task or child run that a `def` workflow has started."""

    def __init__(self, verbs: Verbs, threads: Threads, child: Child) -> None:
        self._verbs = verbs
        self._threads = threads
        self.child = child

    def __repr__(self) -> str:
        return f"<SyncStepHandle {self.child.target.name} {self.id}>"

    @property
    def id(self) -> str:
        """Id of the task or run."""
        return self.child.child_id

    def result(self) -> R:
        """Waits until it is over and returns what it returned; may be called again.

        Raises:
            TaskFailed, TaskCancelled, TaskTimedOut: the task is over without an output.
            RunFailed, RunCancelled, RunTimedOut: the run is.
            ValueRefused, CodecFailed: the output is not what the annotation or the codec says.
        """
        result: R = self._threads.wait_for("result", self._verbs.result(self.child))
        return result


class BranchHandle(Generic[R]):
    """BranchHandle is a branch of a `def` workflow that runs in a thread of its own."""

    def __init__(self, verbs: Verbs, threads: Threads, branch: Branch) -> None:
        self._verbs = verbs
        self._threads = threads
        self._branch = branch

    def result(self) -> R:
        """Waits for the function of the branch; returns what it returned, raises what it raised."""
        waiting = self._verbs.branches.current()
        result: R = self._threads.wait_for("result", self._threads.join(self._branch, waiting))
        return result


class SyncContext(BaseContext):
    """SyncContext is what a `def` workflow does everything through that is to be remembered."""

    def __init__(
        self,
        assignment: worker_pb2.Assignment,
        verbs: Verbs,
        threads: Threads,
        options: StepOptions = NO_OPTIONS,
    ) -> None:
        super().__init__(assignment, verbs, options)
        self._threads = threads

    def using(
        self,
        *,
        name: str | None = None,
        retry: policy.Retry | None = None,
        timeout: policy.Seconds | None = None,
    ) -> SyncContext:
        """Returns the context with options for steps; see `Context.using`."""
        options = StepOptions(name=name, retry=retry, timeout=timeout).over(self._options)
        return SyncContext(self._assignment, self._verbs, self._threads, options)

    # A coroutine function also is a function that returns a coroutine: the first one wins.
    @overload
    def step(  # pyright: ignore[reportOverlappingOverload]
        self, function: Callable[P, Coroutine[Any, Any, R]], /, *args: P.args, **kwargs: P.kwargs
    ) -> R: ...
    @overload
    def step(self, function: Callable[P, R], /, *args: P.args, **kwargs: P.kwargs) -> R: ...
    def step(self, function: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Any:
        """Runs any function here, and remembers what it came to; see `Context.step`."""
        return self._wait_for("step", self._verbs.call(function, args, kwargs, self._options))

    def task(self, task: Enqueueing[P, R], /, *args: P.args, **kwargs: P.kwargs) -> R:
        """Has any worker run a task, and waits for its result; see `Context.task`."""
        result: R = self._wait_for("task", self._verbs.run(task, args, kwargs))
        return result

    def child(self, workflow: Startable[P, R], /, *args: P.args, **kwargs: P.kwargs) -> R:
        """Starts a run of a workflow, and waits for its result; see `Context.child`."""
        result: R = self._wait_for("child", self._verbs.run(workflow, args, kwargs))
        return result

    def start(
        self,
        target: Enqueueing[P, R] | Startable[P, R],
        /,
        *args: P.args,
        **kwargs: P.kwargs,
    ) -> SyncStepHandle[R]:
        """Starts a task or a run, and gives its handle; see `Context.start`."""
        _, starting = self._verbs.start(target, args, kwargs)
        child = self._wait_for("start", starting)
        return SyncStepHandle(self._verbs, self._threads, child)

    @overload
    def map(
        self,
        target: Enqueueing[..., R] | Startable[..., R],
        items: Iterable[Any],
        *,
        limit: int | None = None,
        on_error: Literal["raise"] = "raise",
    ) -> list[R]: ...
    @overload
    def map(
        self,
        target: Enqueueing[..., R] | Startable[..., R],
        items: Iterable[Any],
        *,
        limit: int | None = None,
        on_error: Literal["collect"],
    ) -> list[R | NotCompleted]: ...
    def map(
        self,
        target: Enqueueing[..., Any] | Startable[..., Any],
        items: Iterable[Any],
        *,
        limit: int | None = None,
        on_error: OnError = "raise",
    ) -> list[Any]:
        """Has a task, or a run, do each item, and waits for all as one; see `Context.map`."""
        waiting = mapping.start(self._verbs, target, items, limit, on_error)
        results: list[Any] = self._wait_for("map", waiting)
        return results

    def thread(
        self, function: Callable[P, R], /, *args: P.args, **kwargs: P.kwargs
    ) -> BranchHandle[R]:
        """Runs a part of the workflow at the same time, in a thread: it may call verbs, too."""
        branch = self._verbs.branches.current().child()
        self._verbs.flow.check(self._verbs.branches.current())
        self._threads.start(branch, function, args, kwargs)
        return BranchHandle(self._verbs, self._threads, branch)

    def sleep(self, seconds: policy.Seconds, /) -> None:
        """Waits for a time; see `Context.sleep`."""
        self._wait_for("sleep", self._verbs.pause(seconds))

    def wait_any(self, handles: Iterable[SyncStepHandle[T]], /) -> SyncStepHandle[T]:
        """Waits until one of the handles is over, and gives it; see `Context.wait_any`."""
        found = list(handles)
        choosing = self._verbs.choose([each.child for each in found], "wait_any", 1)
        chosen: list[int] = self._wait_for("wait_any", choosing)
        return found[chosen[0]]

    def as_completed(self, handles: Iterable[SyncStepHandle[T]], /) -> Iterator[SyncStepHandle[T]]:
        """Gives the handles as they come to be over, in the same order on each replay."""
        left = list(handles)
        while left:
            choosing = self._verbs.choose([each.child for each in left], "as_completed")
            chosen: list[int] = self._wait_for("as_completed", choosing)
            yield from [left[index] for index in chosen]
            gone = set(chosen)
            left = [each for at, each in enumerate(left) if at not in gone]

    def patch(self, name: str, /) -> bool:
        """Says whether the run takes part in a change of the code; see `Context.patch`."""
        took: bool = self._wait_for("patch", self._verbs.patch(name))
        return took

    def _wait_for(self, verb: str, waiting: Any) -> Any:
        return self._threads.wait_for(verb, waiting)
