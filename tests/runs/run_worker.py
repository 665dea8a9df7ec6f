"""A worker of runs and tasks without an SDK: what its stream tells of steps and children."""

import itertools
from typing import Any

from tenure.v1 import run_pb2 as run
from tenure.v1 import work_stream_pb2 as stream
from tenure.v1 import worker_pb2 as worker
from tests.protocol.caller import Caller
from tests.protocol.raw_worker import RawWorker

VERSION = "v1"


class RunWorker(RawWorker):
    """A stream whose workflow is `flow`, and whose tasks are those that it is opened for."""

    def __init__(self, client: Caller) -> None:
        self.step_acks: dict[int, stream.StepAck] = {}
        self.resolved: list[stream.Resolved] = []
        self._record_ids = itertools.count(1)
        super().__init__(client)

    @staticmethod
    def open_message(
        *names: str, slots: int = 1, by_queue: dict[str, int] | None = None
    ) -> stream.Open:
        """Gives an Open."""
        message = RawWorker.open_message(*names, slots=slots, by_queue=by_queue)
        message.handlers.add(name="flow", kind=worker.HANDLER_KIND_WORKFLOW, version=VERSION)
        message.slots.activations = 10
        return message

    async def activation(self) -> worker.Assignment:
        """Waits for a run; gives the latest that came, accepted."""
        await self.until(lambda: any(one.HasField("activation") for one in self.out.values()))
        await self.accept()
        return next(one for one in reversed(self.assigned) if one.HasField("activation"))

    async def record(self, one: worker.Assignment, *steps: run.NewStep) -> stream.StepAck:
        """Records steps; gives the answer."""
        number = await self.send_steps(one, *steps)
        await self.until(lambda: number in self.step_acks)
        return self.step_acks[number]

    async def send_steps(self, one: worker.Assignment, *steps: run.NewStep) -> int:
        """Sends steps; gives the number of the message."""
        number = next(self._record_ids)
        message = stream.RecordSteps(
            record_id=number, run_id=one.task_id, lease_token=one.lease_token, steps=steps
        )
        await self.send(record_steps=message)
        return number

    async def wait_for(self, one: worker.Assignment, *child_ids: str) -> None:
        """Asks to be told of children."""
        message = stream.Wait(run_id=one.task_id, lease_token=one.lease_token, child_ids=child_ids)
        await self.send(wait=message)

    @property
    def children(self) -> dict[str, stream.ResolvedChild]:
        """What was told of children, by their ids."""
        return {child.child_id: child for told in self.resolved for child in told.children}

    def _take(self, message: Any) -> None:
        kind = message.WhichOneof("message")
        if kind == "step_ack":
            self.step_acks[message.step_ack.record_id] = message.step_ack
        elif kind == "resolved":
            self.resolved.append(message.resolved)
        super()._take(message)
