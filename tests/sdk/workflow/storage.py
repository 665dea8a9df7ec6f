"""What a server keeps of one run, in memory, for tests of the runtime alone.

It records steps once, runs their tasks in time, forgets a worker at any record, and activates the
run again until it is over. Timing is random, by a seed.
"""

import asyncio
import datetime
import json
import random
from collections.abc import Callable, Sequence
from typing import Any

from google.protobuf import timestamp_pb2

from tenure import App
from tenure.signature import Signature
from tenure.v1 import payload_pb2, run_pb2, work_stream_pb2, worker_pb2, worker_service_pb2
from tenure.workflow.activation import Activation
from tenure.workflow.port import ActivationLost

app = App("workflows")
EPOCH = datetime.datetime(2030, 1, 1, tzinfo=datetime.UTC)
PAGE = 3


@app.task
def add(value: int, more: int = 1) -> int:
    """Runs nowhere: the storage knows what it gives."""
    return value + more


class Flow:
    """A workflow, as an activation needs it."""

    def __init__(self, function: Callable[..., Any], name: str = "flow") -> None:
        self.name = name
        self.function = function
        self.is_async = asyncio.iscoroutinefunction(function)
        self.codec = None
        self._signature = Signature(function, name, "workflow", takes_context=True)

    @property
    def shape(self) -> "Flow":
        return self

    def decode_call(self, data: bytes) -> tuple[list[Any], dict[str, Any]]:
        return self._signature.decode_call(data)

    def encode_result(self, value: Any) -> bytes:
        return self._signature.result.encode(value)

    def decode_result(self, output: payload_pb2.Payload, where: str) -> Any:
        assert where
        return json.loads(output.data)

    def new_run(self, args: tuple[Any, ...], kwargs: Any) -> run_pb2.NewRun:
        data = self._signature.encode_call(args, kwargs)
        return run_pb2.NewRun(name=self.name, input=payload_pb2.Payload(data=data))

    def start(self, *args: Any, **kwargs: Any) -> None:
        raise AssertionError(f"nothing starts it from outside: {args}, {kwargs}")


class Storage:
    """The rows of one run.

    Attributes:
        steps: Recorded steps by id, in their order.
        sent: What was recorded, by id.
        inputs: Input of each task and child run, by its id.
        now: Time of the database, seconds.
        alive: The activation that runs.
    """

    def __init__(self, seed: int = 0, arguments: bytes = b"{}") -> None:
        self.random = seeded(seed)
        self.arguments = arguments
        self.steps: dict[str, run_pb2.Step] = {}
        self.sent: dict[str, run_pb2.NewStep] = {}
        self.inputs: dict[str, bytes] = {}
        self.outcomes: dict[str, Callable[[bytes], bytes | str]] = {}
        self.over: dict[str, work_stream_pb2.ResolvedChild] = {}
        self.held: set[str] = set()
        self.now = 0.0
        self.alive: Activation | None = None
        self.activation_count = 0
        self.record_count = 0
        self.kill_at: int | None = None
        self.kill_before_commit = False
        self.waits: list[str] = []
        self.broken: Exception | None = None

    # What a worker is given.

    def assignment(self) -> worker_pb2.Assignment:
        found = worker_pb2.Assignment(task_id="run-1", name="flow")
        found.input.data = self.arguments
        found.activation.created_at.CopyFrom(self.instant(0.0))
        found.activation.steps.extend(self.page(0))
        found.activation.next_page_token = str(PAGE) if len(self.steps) > PAGE else ""
        return found

    def page(self, first: int) -> list[run_pb2.Step]:
        found = []
        for step in list(self.steps.values())[first : first + PAGE]:
            shown = run_pb2.Step()
            shown.CopyFrom(step)
            if step.child_id in self.over:
                child = self.over[step.child_id]
                if child.HasField("failure"):
                    shown.failure.CopyFrom(child.failure)
                else:
                    shown.output.CopyFrom(child.output)
                shown.ended_at.CopyFrom(child.ended_at)
            if step.kind == run_pb2.STEP_KIND_SLEEP:
                self._sleep(shown)
            found.append(shown)
        return found

    def _sleep(self, step: run_pb2.Step) -> None:
        length = self.sent[step.step_id].sleep.ToTimedelta().total_seconds()
        left = self.seconds(step.recorded_at) + length - self.now
        step.ClearField("remaining")
        if left <= 0:
            step.ended_at.CopyFrom(self.instant(self.now - left))
        else:
            step.remaining.FromMilliseconds(round(left * 1000))

    # What an activation does.

    def record(self, new: run_pb2.NewStep) -> work_stream_pb2.StepRecord:
        kind = run_pb2.StepKind.Value(f"STEP_KIND_{str(new.WhichOneof('operation')).upper()}")
        known = self.steps.get(new.step_id)
        if known is not None:
            assert (known.kind, known.name) == (kind, new.name)
            return work_stream_pb2.StepRecord(step=known, existing=True)
        self.now += 0.001
        step = run_pb2.Step(step_id=new.step_id, name=new.name, kind=kind)
        step.recorded_at.CopyFrom(self.instant(self.now))
        self.steps[new.step_id], self.sent[new.step_id] = step, new
        if new.WhichOneof("operation") in {"call", "choice", "patch"}:
            result = getattr(new, str(new.WhichOneof("operation")))
            if result.HasField("failure"):
                step.failure.CopyFrom(result.failure)
            else:
                step.output.CopyFrom(result.output)
        elif kind == run_pb2.STEP_KIND_SLEEP:
            step.remaining.CopyFrom(new.sleep)
        else:
            step.child_id = f"child-{new.step_id}"
            self.inputs[step.child_id] = (
                new.task.input.data if kind == run_pb2.STEP_KIND_TASK else new.child.input.data
            )
        return work_stream_pb2.StepRecord(step=step)

    def finish(self, child_id: str) -> work_stream_pb2.ResolvedChild:
        """Ends a task or child run."""
        if child_id not in self.over:
            self.now += 0.001
            child = work_stream_pb2.ResolvedChild(child_id=child_id)
            child.ended_at.CopyFrom(self.instant(self.now))
            answer = self.outcomes.get(child_id, _sum)(self.inputs[child_id])
            if isinstance(answer, str):
                child.failure.type, child.failure.message = answer, "it was asked to fail"
            else:
                child.output.data = answer
            self.over[child_id] = child
        return self.over[child_id]

    # The server's part between activations.

    async def activate(self, flow: Flow) -> worker_pb2.Result | None:
        """Hands the run to a worker; None: the worker died."""
        self.activation_count += 1
        port = _Port(self)
        port.activation = self.alive = Activation(self.assignment(), flow, port)
        try:
            return await port.activation.run()
        finally:
            self.alive = None

    async def run(self, flow: Flow) -> worker_pb2.Result:
        """Activates the run, whenever something wakes it, until it is over."""
        while True:
            result = await self.activate(flow)
            if result is None:
                continue
            if result.WhichOneof("outcome") != "suspended":
                return result
            self.wake(result.suspended)

    def wake(self, suspended: worker_pb2.Suspended) -> None:
        """Lets happen what one of the waits needs, a set or the time."""
        choices: list[tuple[list[str], int]] = []
        for one in suspended.waits:
            assert 1 <= one.needed_count <= len(one.child_ids)
            # Some may have come to be over while the function was unwound.
            still = [child_id for child_id in one.child_ids if child_id not in self.over]
            needed_count = one.needed_count - (len(one.child_ids) - len(still))
            if needed_count <= 0:
                return
            choices.append((still, needed_count))
        if suspended.HasField("wake_after"):
            choices.append(([], 0))
        assert choices, "nothing would wake the run"
        child_ids, count = self.random.choice(choices)
        if not count:
            # The time that the function was in memory has gone by for it alone.
            self.now += suspended.wake_after.ToTimedelta().total_seconds() + 1
        for child_id in self.random.sample(child_ids, count):
            self.finish(child_id)

    def output(self, result: worker_pb2.Result) -> Any:
        assert result.WhichOneof("outcome") == "completed", result
        return json.loads(result.completed.output.data)

    def asked(self) -> dict[str, tuple[str, bytes]]:
        """What stands under each id: the name and, of a task, its input."""
        return {
            step_id: (new.name, new.task.input.data or new.child.input.data)
            for step_id, new in self.sent.items()
        }

    @staticmethod
    def instant(seconds: float) -> timestamp_pb2.Timestamp:
        found = timestamp_pb2.Timestamp()
        found.FromDatetime(EPOCH + datetime.timedelta(seconds=seconds))
        return found

    @staticmethod
    def seconds(instant: timestamp_pb2.Timestamp) -> float:
        return (instant.ToDatetime(tzinfo=datetime.UTC) - EPOCH).total_seconds()


class _Port:
    """The way of one activation to the storage."""

    def __init__(self, storage: Storage) -> None:
        self._storage = storage
        self.activation: Activation | None = None
        self._dead = False

    async def record(
        self, steps: Sequence[run_pb2.NewStep]
    ) -> Sequence[work_stream_pb2.StepRecord]:
        storage = self._storage
        await some_turns(storage.random)
        self._check()
        if storage.broken is not None:
            raise storage.broken
        storage.record_count += 1
        dies = storage.record_count == storage.kill_at
        if dies and storage.kill_before_commit:
            self._die()
        records = [storage.record(step) for step in steps]
        if dies:
            self._die()
        await some_turns(storage.random)
        self._check()
        return records

    def wait(self, child_ids: Sequence[str]) -> None:
        self._storage.waits += child_ids
        for child_id in child_ids:
            if child_id not in self._storage.held:
                asyncio.get_running_loop().call_later(
                    self._storage.random.random() * 0.003, self._resolve, child_id
                )

    async def more_steps(self, page_token: str) -> worker_service_pb2.ListStepsResponse:
        first = int(page_token)
        found = worker_service_pb2.ListStepsResponse(steps=self._storage.page(first))
        if len(self._storage.steps) > first + PAGE:
            found.next_page_token = str(first + PAGE)
        return found

    def _resolve(self, child_id: str) -> None:
        if self._dead or self.activation is None or self._storage.alive is not self.activation:
            return
        self.activation.resolve([self._storage.finish(child_id)])

    def _check(self) -> None:
        if self._dead or self._storage.alive is not self.activation:
            raise ActivationLost

    def _die(self) -> None:
        self._dead = True
        raise ActivationLost


def seeded(seed: int) -> random.Random:
    """Random numbers that are the same in each run of a test."""
    return random.Random(seed)  # noqa: S311 - repeatable on purpose


async def some_turns(source: random.Random) -> None:
    """Lets the loop turn a few times."""
    for _ in range(source.randrange(4)):
        await turn()


async def turn() -> None:
    """Lets the loop turn once."""
    await asyncio.sleep(0)  # tidy: lets the loop turn once, waits for nothing


def _sum(data: bytes) -> bytes:
    found = json.loads(data)
    return json.dumps(sum(each for each in found.values() if isinstance(each, int))).encode()
