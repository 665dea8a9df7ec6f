"""What the verbs of a workflow's context do: one half for both kinds of functions.

A verb has two parts. The first runs where it is called: it takes the place of the verb, an id, and
compares the record under it with what the code asks for. The second is a coroutine: it answers from
the record, or does the work and records it, and may wait.
"""

from __future__ import annotations

import asyncio
import dataclasses
import datetime
import json
from typing import TYPE_CHECKING, Any, TypeAlias

from tenure import check, errors, failure, payload_codec, status
from tenure.task import Enqueueing
from tenure.v1 import run_pb2
from tenure.workflow import flow, journal, parking
from tenure.workflow.calls import Call, StepOptions

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from tenure import policy
    from tenure.v1 import work_stream_pb2
    from tenure.workflow.branches import Branch, Branches, Owner
    from tenure.workflow.journal import Journal
    from tenure.workflow.parking import Parking
    from tenure.workflow.port import Startable

    Target: TypeAlias = Enqueueing[..., Any] | Startable[..., Any]

Kind: TypeAlias = "run_pb2.StepKind.ValueType"


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Place:
    """Place is where a verb stands.

    Attributes:
        branch: Branch that called it.
        step_id: Its id.
        name: Name of the step.
        recorded: What is recorded under the id; None: nothing.
        fits: False if the function is being unwound, for this record or for another reason.
    """

    branch: Branch
    step_id: str
    name: str
    recorded: run_pb2.Step | None
    fits: bool


@dataclasses.dataclass(slots=True, kw_only=True)
class Child:
    """Child is a task or run that a step started.

    Attributes:
        target: What it is one of.
        child_id: Id of the task or run.
        is_run: True for a run.
    """

    target: Target
    child_id: str
    is_run: bool


class Verbs:
    """Verbs is what the contexts of one activation call."""

    def __init__(
        self,
        branches: Branches,
        flow: flow.Flow,
        journal: Journal,
        parking: Parking,
        *,
        hook: payload_codec.PayloadCodec | None,
        block: Callable[[str], None],
        deliver_cancel: Callable[[], asyncio.Future[None] | None],
    ) -> None:
        self.branches = branches
        self.flow = flow
        self.journal = journal
        self.parking = parking
        self._hook = hook
        self._block = block
        self._deliver_cancel = deliver_cancel
        self._loaded_at = asyncio.get_running_loop().time()

    # Steps.

    def call(
        self, function: Any, args: tuple[Any, ...], kwargs: dict[str, Any], options: StepOptions
    ) -> Any:
        """Runs a function as a step."""
        branch = self.branches.current()
        call = Call(function, options)
        return self._call(self.take(branch, run_pb2.STEP_KIND_CALL, call.name), call, args, kwargs)

    async def _call(
        self, place: Place, call: Call, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> Any:
        owner = self.enter(place)
        step, raised = place.recorded, None
        if step is None:
            await self.frontier(owner)
            task = self.branches.create_step(call.run(args, kwargs, self._hook))
            result, raised = await self.flow.until(owner, task)
            step = await self._record(
                owner,
                run_pb2.NewStep(step_id=place.step_id, name=place.name, call=result),
            )
        place.branch.saw(journal.instant(step.recorded_at))
        if step.HasField("failure"):
            failed = errors.StepFailed(name=place.name, failure=failure.from_proto(step.failure))
            raise failed from raised
        try:
            return call.decode(step, self._hook)
        except errors.ValueRefused as exc:
            self._block(f"what is recorded of step {place.step_id!r} does not fit the code: {exc}")
            raise self.flow.suspended(owner) from exc

    # Tasks and child runs.

    def start(
        self, target: Target, args: tuple[Any, ...], kwargs: Mapping[str, Any]
    ) -> tuple[Place, Any]:
        """Starts a task or a run; gives its place, and the coroutine that gives the child."""
        branch = self.branches.current()
        place = self.take(branch, kind_of(target), target.name)
        new = None
        if place.recorded is None and place.fits:
            new = new_step(place.step_id, target, args, kwargs)
        return place, self._start(place, new, target)

    async def _start(self, place: Place, new: run_pb2.NewStep | None, target: Target) -> Child:
        owner = self.enter(place)
        step = place.recorded
        if step is None and new is not None:
            await self.frontier(owner)
            step = await self._record(owner, new)
        if step is None:
            raise AssertionError("a step that is not recorded is made")
        place.branch.saw(journal.instant(step.recorded_at))
        is_run = kind_of(target) == run_pb2.STEP_KIND_CHILD
        return Child(target=target, child_id=step.child_id, is_run=is_run)

    def run(self, target: Target, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Any:
        """Starts a task or a run and waits for its result."""
        place, starting = self.start(target, args, kwargs)
        return self._run(place, starting)

    async def _run(self, place: Place, starting: Any) -> Any:
        return await self._result(await starting, place.branch)

    def result(self, child: Child) -> Any:
        """Waits for the result of a child."""
        return self._result(child, self.branches.current())

    async def _result(self, child: Child, branch: Branch) -> Any:
        owner = self.branches.owner(branch)
        self.flow.check(owner)
        outcome = self.journal.outcome(child.child_id)
        while outcome is None:
            await self.settled(owner)
            await self.parking.until_over(owner, [child.child_id], 1)
            outcome = self.journal.outcome(child.child_id)
        branch.saw(ended_at(outcome))
        return self.read(child, outcome)

    def read(self, child: Child, outcome: work_stream_pb2.ResolvedChild) -> Any:
        """Returns what a child gave, typed as its handler returns it.

        Raises:
            TaskNotCompleted, RunNotCompleted: it is over without an output.
            ValueRefused, CodecFailed: the output is not what the annotation or the codec says.
        """
        if outcome.WhichOneof("outcome") == "failure":
            raise not_completed(child, failure.from_proto(outcome.failure))
        kind = "run" if child.is_run else "task"
        return child.target.decode_result(outcome.output, f"result of {kind} {child.target.name!r}")

    # Waits.

    def pause(self, seconds: policy.Seconds) -> Any:
        """Waits for a time."""
        length = check.seconds(seconds, "sleep")
        branch = self.branches.current()
        return self._pause(self.take(branch, run_pb2.STEP_KIND_SLEEP, "sleep"), length)

    async def _pause(self, place: Place, length: float) -> None:
        owner = self.enter(place)
        loop = asyncio.get_running_loop()
        step, received_at = place.recorded, self._loaded_at
        if step is None:
            await self.frontier(owner)
            new = run_pb2.NewStep(step_id=place.step_id, name=place.name)
            new.sleep.CopyFrom(parking.duration(length))
            step = await self._record(owner, new)
            received_at = loop.time()
        remaining = step.remaining.seconds + step.remaining.nanos / 1e9
        if not step.HasField("ended_at") and received_at + remaining > loop.time():
            await self.settled(owner)
            await self.parking.until_time(owner, received_at + remaining)
        began = journal.instant(step.recorded_at)
        place.branch.saw(began + datetime.timedelta(seconds=length))

    def choose(self, children: Sequence[Child], name: str, most: int | None = None) -> Any:
        """Waits for the first of some children; gives the indexes of those that are over.

        Args:
            children: What it waits for.
            name: Name of the step.
            most: How many it gives at most; None: all that are over.
        """
        if not children:
            raise errors.WrongValue(f"{name}: there is nothing to wait for")
        branch = self.branches.current()
        place = self.take(branch, run_pb2.STEP_KIND_CHOICE, name)
        return self._choose(place, list(children), most)

    async def _choose(self, place: Place, children: list[Child], most: int | None) -> list[int]:
        owner = self.enter(place)
        step = place.recorded
        if step is None:
            await self.settled(owner)
            while not (over := self._over(children)):
                await self.parking.until_over(owner, {each.child_id for each in children}, 1)
            await self.frontier(owner)
            new = run_pb2.NewStep(step_id=place.step_id, name=place.name)
            new.choice.output.data = json.dumps(over[:most]).encode()
            new.choice.output.encoding = "json"
            step = await self._record(owner, new)
        chosen: list[int] = json.loads(step.output.data)
        for index in chosen:
            outcome = self.journal.outcome(children[index].child_id)
            if outcome is not None:
                place.branch.saw(ended_at(outcome))
        place.branch.saw(journal.instant(step.recorded_at))
        return chosen

    def _over(self, children: list[Child]) -> list[int]:
        """Returns the children that are over, by index, the first first."""
        found = []
        for index, child in enumerate(children):
            outcome = self.journal.outcome(child.child_id)
            if outcome is not None:
                found.append((outcome.ended_at.seconds, outcome.ended_at.nanos, index))
        return [index for _, _, index in sorted(found)]

    # Changes of the code.

    def patch(self, name: str) -> Any:
        """Says whether the run takes part in a change of the code."""
        check.text(name, "the name of a patch")
        branch = self.branches.current()
        step = self.journal.find(branch.next_id)
        is_patch = step is not None and step.kind == run_pb2.STEP_KIND_PATCH and step.name == name
        if not is_patch and (step is not None or branch.replaying):
            return self._unpatched(self.branches.owner(branch))
        return self._patch(self.take(branch, run_pb2.STEP_KIND_PATCH, name))

    async def _unpatched(self, owner: Owner) -> bool:
        self.flow.check(owner)
        return False

    async def _patch(self, place: Place) -> bool:
        owner = self.enter(place)
        step = place.recorded
        if step is None:
            await self.frontier(owner)
            new = run_pb2.NewStep(step_id=place.step_id, name=place.name)
            new.patch.output.data = b"true"
            new.patch.output.encoding = "json"
            step = await self._record(owner, new)
        place.branch.saw(journal.instant(step.recorded_at))
        return True

    def deprecate_patch(self, name: str) -> None:
        """Passes a recorded patch, and records none."""
        check.text(name, "the name of a patch")
        branch = self.branches.current()
        step = self.journal.find(branch.next_id)
        if step is not None and step.kind == run_pb2.STEP_KIND_PATCH and step.name == name:
            branch.take_id()

    # What they share; `mapping` uses it, too.

    def take(self, branch: Branch, kind: Kind, name: str) -> Place:
        """Takes the next place of a branch; blocks the run where another step is recorded."""
        if self.flow.unwinding is not None:
            return Place(branch=branch, step_id="", name=name, recorded=None, fits=False)
        step_id = branch.take_id()
        recorded = self.journal.find(step_id)
        problem = None
        if recorded is not None:
            problem = journal.difference(recorded, kind, name, flow.calling_line)
        if problem is not None:
            self._block(problem)
        return Place(
            branch=branch,
            step_id=step_id,
            name=name,
            recorded=recorded,
            fits=problem is None,
        )

    def enter(self, place: Place) -> Owner:
        """Returns who waits from now on."""
        owner = self.branches.owner(place.branch)
        self.flow.check(owner)
        if not place.fits:
            raise self.flow.suspended(owner)
        return owner

    async def settled(self, owner: Owner) -> None:
        """Lets a request for cancellation be raised before a thread parks."""
        if isinstance(owner, asyncio.Task):
            return
        request = self.flow.tell(owner)
        if request is not None:
            raise request

    async def frontier(self, owner: Owner) -> None:
        """Is passed before anything is done that is not recorded."""
        self.flow.check(owner)
        await self.settled(owner)
        if self.flow.cancel_reason is not None:
            forever = self._deliver_cancel()
            if forever is not None:
                await self.flow.until(owner, forever)

    async def _record(self, owner: Owner, new: run_pb2.NewStep) -> run_pb2.Step:
        record = await self.flow.until(owner, self.journal.record(new))
        return self.answered(owner, record)

    def answered(self, owner: Owner, record: work_stream_pb2.StepRecord) -> run_pb2.Step:
        """Returns the step of an answer.

        Raises:
            FieldInvalid, PayloadTooLarge, KeyTaken: it was refused.
            Suspended: another step stands there.
        """
        if record.WhichOneof("outcome") == "step":
            return record.step
        error = status.from_status(record.error)
        if error.reason == "HISTORY_MISMATCH":
            self._block(str(error))
            raise self.flow.suspended(owner) from error
        raise error


def kind_of(target: Target) -> Kind:
    """Returns whether a task or a run is started.

    Raises:
        WrongType: neither.
    """
    if isinstance(target, Enqueueing):
        return run_pb2.STEP_KIND_TASK
    if hasattr(target, "new_run"):
        return run_pb2.STEP_KIND_CHILD
    raise check.wrong_type("what a workflow starts", "a task or a workflow", target)


def new_step(
    step_id: str, target: Target, args: tuple[Any, ...], kwargs: Mapping[str, Any]
) -> run_pb2.NewStep:
    """Returns the step that starts a task or a run.

    Raises:
        UsageError: a task with an idempotency key; or as `enqueue` and `start`.
    """
    step = run_pb2.NewStep(step_id=step_id, name=target.name)
    if not isinstance(target, Enqueueing):
        step.child.CopyFrom(target.new_run(args, kwargs))
        return step
    task = target.new_task(args, kwargs)
    if task.key or task.HasField("key_duration"):
        raise errors.UsageError(
            f"task {target.name!r} takes no key inside a workflow: its step names it"
        )
    step.task.name = task.name
    step.task.queue = task.queue
    step.task.input.CopyFrom(task.input)
    step.task.priority = task.priority
    step.task.lane = task.lane
    step.task.traceparent = task.traceparent
    for field in ("delay", "policy", "declared_policy"):
        if task.HasField(field):
            getattr(step.task, field).CopyFrom(getattr(task, field))
    return step


def not_completed(
    child: Child, reason: failure.Failure
) -> errors.TaskNotCompleted | errors.RunNotCompleted:
    """Returns the error for a child that is over without an output."""
    child_id = child.child_id
    if child.is_run:
        if reason.type == "Cancelled":
            text = f"run {child_id} was cancelled: {reason.message}"
            return errors.RunCancelled(text, run_id=child_id, failure=reason)
        if reason.type == "TimedOut":
            text = f"run {child_id} timed out: {reason.message}"
            return errors.RunTimedOut(text, run_id=child_id, failure=reason)
        return errors.RunFailed(run_id=child_id, failure=reason)
    if reason.type == "Cancelled":
        text = f"task {child_id} was cancelled: {reason.message}"
        return errors.TaskCancelled(text, task_id=child_id, failure=reason, attempt=0)
    if reason.type == "TimedOut":
        text = f"task {child_id} timed out: {reason.message}"
        return errors.TaskTimedOut(text, task_id=child_id, failure=reason, attempt=0)
    return errors.TaskFailed(task_id=child_id, failure=reason, attempt=0)


def ended_at(outcome: work_stream_pb2.ResolvedChild) -> datetime.datetime | None:
    """Returns when a child was over, by the database's clock; None: it is not known."""
    return journal.instant(outcome.ended_at) if outcome.HasField("ended_at") else None
