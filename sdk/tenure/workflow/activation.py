"""One activation of a run: a workflow function from its first line to an outcome.

A worker makes one of an assignment, awaits `run()` on the loop of its handlers, and calls the other
methods on that loop, too. Any number of them live on one loop. What comes of one is the Result that
is reported, or nothing where the lease was lost; then nothing of it stays in memory.
"""

from __future__ import annotations

import asyncio
import contextvars
import logging
from typing import TYPE_CHECKING, Any

from tenure import context, errors, failure, payload_codec
from tenure.v1 import worker_pb2
from tenure.workflow import flow, idleness, journal
from tenure.workflow.branches import Branch, Branches, watch
from tenure.workflow.context import Context
from tenure.workflow.flow import Unwinding
from tenure.workflow.parking import Parking
from tenure.workflow.port import ActivationLost
from tenure.workflow.sync_context import SyncContext, Threads
from tenure.workflow.verbs import Verbs

if TYPE_CHECKING:
    from collections.abc import Iterable

    from tenure.v1 import payload_pb2, work_stream_pb2
    from tenure.workflow.branches import Owner
    from tenure.workflow.port import Port, Workflow

_log = logging.getLogger("tenure.worker")

# A shorter wait is cheaper in memory than an activation more.
SUSPEND_AFTER = 1.0
# Time that branches get to end by themselves once the function is over or unwound, twice: before
# they are cancelled, and before they are left alone.
UNWIND_SECONDS = 10.0


class Activation:
    """Activation is one activation while this worker holds it.

    Args:
        assignment: The run as it was handed out.
        workflow: Its workflow.
        port: Way to the server.
    """

    def __init__(self, assignment: worker_pb2.Assignment, workflow: Workflow, port: Port) -> None:
        self._assignment = assignment
        self._workflow = workflow
        self._port = port
        self._loop = asyncio.get_running_loop()
        self._flow = flow.Flow()
        self._journal = journal.Journal(port, self._broken)
        self._parking = Parking(self._flow, self._journal, port, self._parked)
        created_at = journal.instant(assignment.activation.created_at)
        root = Branch(assignment.task_id, "", self._journal.extent, created_at)
        self._branches = Branches(root, self._branch_ended, threaded=not workflow.is_async)
        self._verbs = Verbs(
            self._branches,
            self._flow,
            self._journal,
            self._parking,
            hook=workflow.codec,
            block=self._block,
            deliver_cancel=self._deliver_cancel,
        )
        self._threads = Threads(self._loop, self._verbs, self._branch_ended)
        self._root: Owner | None = None
        self._over: asyncio.Future[None] = self._loop.create_future()
        self._value: Any = None
        self._raised: BaseException | None = None
        self._problem: payload_pb2.Failure | None = None
        self._suspension: worker_pb2.Suspended | None = None
        self._lines: dict[Owner, str] = {}
        self._swallowed: str | None = None
        self._cancel_delivered = False
        self._considering = False
        self._timer: asyncio.TimerHandle | None = None

    # What a worker calls.

    async def run(self) -> worker_pb2.Result | None:
        """Runs the function and says what came of it.

        Returns:
            The result, with its outcome alone: whose it is, is the worker's to say. None: the lease
            is gone, and nothing is reported.
        """
        try:
            await self._load()
            if self._flow.unwinding is None:
                self._begin()
            if self._root is not None:
                await self._over
                await self._clear()
        except asyncio.CancelledError:
            self.drop()
            raise
        finally:
            self._journal.close()
            if self._timer is not None:
                self._timer.cancel()
        try:
            return self._result()
        finally:
            self._flow.raised.clear()
            self._value = self._raised = None

    def resolve(self, children: Iterable[work_stream_pb2.ResolvedChild]) -> None:
        """Takes how tasks and runs were over that the function waits for."""
        for child in children:
            if self._journal.note(child):
                self._parking.resolve(child.child_id)

    def cancel(self, reason: str) -> None:
        """Cancels the run: the function may clean up, with verbs that work as ever.

        An `async def` workflow gets CancelledError where it waits once it has repeated what is
        recorded; a `def` workflow CancelRequested from a verb that waits, or the next one.
        """
        if self._flow.cancel_reason is not None:
            return
        self._flow.cancel_reason = reason
        if self._workflow.is_async:
            self._cancel_when_settled()
            return
        for future, owner in self._flow.waiting():
            if self._parking.holds(owner):
                request = self._flow.tell(owner)
                if request is not None:
                    flow.interrupt(future, request)

    def release(self) -> None:
        """Unwinds the function, to give the run back as it is recorded."""
        self._unwind(Unwinding.RELEASED)

    def drop(self) -> None:
        """Unwinds the function of a run that is no longer this worker's."""
        self._unwind(Unwinding.DROPPED)

    # The function's life.

    async def _load(self) -> None:
        activation = self._assignment.activation
        self._journal.load(activation.steps)
        token = activation.next_page_token
        try:
            while token:
                page = await self._port.more_steps(token)
                self._journal.load(page.steps)
                token = page.next_page_token
        except Exception as exc:  # noqa: BLE001 - whatever the port raises ends the activation
            self._broken(exc)
        self._journal.loaded()

    def _begin(self) -> None:
        try:
            positional, named = self._arguments()
        except errors.UsageError as exc:
            problem = failure.from_exception(exc)
            if len(self._journal):
                # Code that could read them has begun: this code does not fit the run.
                self._problem = problem
                self._unwind(Unwinding.BLOCKED)
            else:
                self._raised = exc
            return
        root, function = self._branches.root, self._workflow.function
        if self._workflow.is_async:
            watch(self._loop)
            ctx = Context(self._assignment, self._verbs)
            coroutine = function(ctx, *positional, **named)
            copied = contextvars.copy_context()
            self._root = self._branches.create_task(coroutine, root, copied)
            if self._flow.cancel_reason is not None:
                self._cancel_when_settled()
            return
        self._root = root
        sync_ctx = SyncContext(self._assignment, self._verbs, self._threads)
        self._threads.start(root, function, (sync_ctx, *positional), named)

    def _arguments(self) -> tuple[list[Any], dict[str, Any]]:
        where = f"arguments of workflow {self._workflow.name!r}"
        data = payload_codec.read(self._assignment.input, where, self._workflow.codec)
        try:
            return self._workflow.shape.decode_call(data)
        except errors.ValueRefused as exc:
            raise errors.ArgumentsRefused(where, exc.problem) from None

    def _branch_ended(self, owner: Owner, value: Any, exc: BaseException | None) -> None:
        """Takes how a branch ended, the function itself among them."""
        settled = owner is self._root or self._flow.unwinding is not None
        if settled and isinstance(owner, asyncio.Task) and not owner.cancelled():
            # It is reported, or of no interest: asyncio need not tell of it.
            owner.exception()
        told = owner in self._flow.raised or owner in self._lines
        if self._flow.unwinding is Unwinding.SUSPENDED and told and not _passes(exc):
            raised = self._flow.raised.get(owner)
            line = flow.line_of(raised) if raised is not None else None
            self._swallowed = self._swallowed or line or self._lines.get(owner)
        if owner is self._root and not self._over.done():
            self._value, self._raised = value, exc
            self._over.set_result(None)

    async def _clear(self) -> None:
        """Waits for branches that the function has left behind, or that are being unwound."""
        self._unwind(Unwinding.OVER)
        for patience in (UNWIND_SECONDS, UNWIND_SECONDS):
            tasks = set(self._branches.tasks)
            if tasks:
                await asyncio.wait(tasks, timeout=patience)
            for task in self._branches.tasks:
                task.cancel()
        await self._threads.ended()
        if self._branches.tasks:
            _log.warning(
                "run %s: %d asyncio tasks of workflow %s did not end",
                self._assignment.task_id,
                len(self._branches.tasks),
                self._workflow.name,
            )

    # Outcomes.

    def _result(self) -> worker_pb2.Result | None:
        unwinding = self._flow.unwinding
        if unwinding is Unwinding.DROPPED:
            return None
        if unwinding is Unwinding.RELEASED:
            return worker_pb2.Result(released=worker_pb2.Released())
        if unwinding is Unwinding.BLOCKED:
            return worker_pb2.Result(blocked=worker_pb2.Blocked(failure=self._problem))
        if self._suspension is not None:
            if self._swallowed is None:
                return worker_pb2.Result(suspended=self._suspension)
            return _failed(
                failure.failure_message(
                    "SuspendedSwallowed",
                    f"the workflow swallowed Suspended at {self._swallowed}; let it pass: catch"
                    " Exception, not BaseException, and return nothing from `finally`",
                )
            )
        return self._ended()

    def _ended(self) -> worker_pb2.Result:
        """Returns what the function returned or raised by itself."""
        exc = self._raised
        if exc is None:
            where = f"result of workflow {self._workflow.name!r}"
            try:
                data = self._workflow.shape.encode_result(self._value)
                output = payload_codec.write(data, where, self._workflow.codec)
            except (errors.UsageError, errors.PayloadTooLarge) as refused:
                return _failed(failure.from_exception(refused))
            return worker_pb2.Result(completed=worker_pb2.Completed(output=output))
        is_cancel = isinstance(exc, asyncio.CancelledError | context.CancelRequested)
        if is_cancel and self._flow.cancel_reason is not None:
            message = failure.failure_message("Cancelled", str(exc) or self._flow.cancel_reason)
            return worker_pb2.Result(cancelled=worker_pb2.CancelledOutcome(failure=message))
        _log.error(
            "run %s of workflow %s failed: %s: %s",
            self._assignment.task_id,
            self._workflow.name,
            type(exc).__name__,
            exc,
            exc_info=exc,
            extra={"run_id": self._assignment.task_id, "workflow_name": self._workflow.name},
        )
        return _failed(failure.from_exception(exc))

    # Cancellation of an `async def` workflow.

    def _cancel_when_settled(self) -> None:
        """Cancels the function once it has come to where it stood: each branch waits."""
        root = self._root
        if self._cancel_delivered or not isinstance(root, asyncio.Task) or root.done():
            return
        if self._flow.unwinding is not None:
            return
        if all(idleness.waiter_of(task) is not None for task in self._branches.tasks):
            self._cancel_root(root)
        else:
            context = contextvars.Context()
            self._loop.call_soon(self._cancel_when_settled, context=context)

    def _cancel_root(self, root: asyncio.Task[Any]) -> None:
        self._cancel_delivered = True
        root.cancel(self._flow.cancel_reason)

    def _deliver_cancel(self) -> asyncio.Future[None] | None:
        """Cancels the function where it would do something new; None: that is done."""
        root = self._root
        if self._cancel_delivered or not isinstance(root, asyncio.Task):
            return None
        self._cancel_root(root)
        return self._loop.create_future()

    # Unwinding.

    def _broken(self, exc: Exception) -> None:
        if isinstance(exc, ActivationLost):
            self.drop()
            return
        _log.warning("run %s is given back: %s", self._assignment.task_id, exc)
        self.release()

    def _block(self, problem: str) -> None:
        if self._problem is None:
            self._problem = failure.failure_message("HistoryMismatch", problem)
            self._unwind(Unwinding.BLOCKED)

    def _unwind(self, reason: Unwinding) -> None:
        waiting = {owner for _, owner in self._flow.waiting()}
        if not self._flow.unwind(reason):
            return
        tasks = self._branches.tasks
        for task in list(tasks):
            if task in waiting:
                continue
            self._lines[task] = idleness.outer_line(task)
            made = flow.Suspended(str(reason.name))
            force = reason is not Unwinding.SUSPENDED
            if idleness.unwind(task, tasks, made, force=force):
                self._flow.raised.setdefault(task, made)

    # Suspension.

    def _parked(self) -> None:
        if not self._considering:
            self._considering = True
            self._loop.call_soon(self._consider, context=contextvars.Context())

    def _consider(self) -> None:
        """Suspends the function if it waits for long, and looks again if it may come to that."""
        self._considering = False
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        wait = self._time_to_suspend()
        context = contextvars.Context()
        if wait is None:
            return
        if wait > 0:
            self._timer = self._loop.call_later(wait, self._consider, context=context)
        else:
            # What this turn of the loop still brings may end a wait, a timer of the function even
            # unseen: it is no longer among those that are scheduled.
            self._loop.call_soon(self._suspend, context=context)

    def _suspend(self) -> None:
        wait = self._time_to_suspend()
        if wait is None:
            return
        suspension = self._parking.suspension(self._loop.time())
        if wait > 0 or not (suspension.waits or suspension.HasField("wake_after")):
            self._parked()
            return
        self._suspension = suspension
        self._unwind(Unwinding.SUSPENDED)

    def _time_to_suspend(self) -> float | None:
        """Returns for how long not to look, 0 to suspend the function; None: nothing is parked."""
        parked = self._parking.parked
        ended = self._flow.unwinding is not None or self._over.done()
        if ended or not parked or self._flow.cancel_reason is not None:
            return None
        now, wakes_at = self._loop.time(), self._parking.wakes_at()
        wakes_soon = wakes_at is not None and wakes_at - now <= SUSPEND_AFTER
        if wakes_soon or not self._is_idle():
            return SUSPEND_AFTER
        if not self._parking.waits_for_children():
            return 0.0
        youngest_at = max(each.since for each in parked.values())
        return max(0.0, youngest_at + SUSPEND_AFTER - now)

    def _is_idle(self) -> bool:
        if not self._workflow.is_async:
            return all(map(self._parking.holds, list(self._threads.live)))
        parked, tasks = self._parking.parked, self._branches.tasks
        return all(
            idleness.is_idle(task, parked, tasks) for task in tasks
        ) and not idleness.has_timers(self._loop, self._branches)


def _failed(message: payload_pb2.Failure) -> worker_pb2.Result:
    return worker_pb2.Result(failed=worker_pb2.Failed(failure=message))


def _passes(exc: BaseException | None) -> bool:
    """Says whether a branch that was unwound let Suspended pass."""
    if isinstance(exc, BaseExceptionGroup):
        return exc.subgroup(flow.Suspended) is not None
    return isinstance(exc, flow.Suspended | asyncio.CancelledError)
