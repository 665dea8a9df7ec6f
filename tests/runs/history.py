"""Histories: what a release recorded of a run, kept as a file, and replayed without a server."""

import dataclasses
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Self

from google.protobuf import json_format

from tenure.v1 import payload_pb2, run_pb2, work_stream_pb2, worker_pb2, worker_service_pb2
from tenure.workflow.activation import Activation
from tenure.workflow.declaration import WorkflowDeclaration
from tenure.workflow.port import ActivationLost

FOLDER = Path(__file__).parent / "histories"
_ROOT = Path(__file__).parents[2]


@dataclasses.dataclass(frozen=True)
class History:
    """A run that completed, with its input and output, and its steps in the order of recording."""

    run: run_pb2.Run
    steps: Sequence[run_pb2.Step]

    @classmethod
    def read(cls, path: Path) -> Self:
        kept = json.loads(path.read_text(encoding="utf-8"))
        steps = [json_format.ParseDict(step, run_pb2.Step()) for step in kept["steps"]]
        return cls(json_format.ParseDict(kept["run"], run_pb2.Run()), steps)

    def write(self, path: Path) -> None:
        kept = {
            "run": json_format.MessageToDict(self.run),
            "steps": [json_format.MessageToDict(step) for step in self.steps],
        }
        # Stacks name files: whose copy of the project recorded them is nobody's business.
        text = json.dumps(kept, indent=1).replace(f"{_ROOT}/", "")
        path.write_text(text + "\n", encoding="utf-8")

    def assignment(self) -> worker_pb2.Assignment:
        """The run as a worker is handed it that has to go on where all of it is recorded."""
        run = self.run
        made = worker_pb2.Assignment(
            task_id=run.run_id, name=run.name, queue=run.queue, input=run.input
        )
        made.activation.version = run.version
        made.activation.created_at.CopyFrom(run.created_at)
        made.activation.steps.extend(self.steps)
        return made


class Record:
    """The port of a replay: it keeps what the code asks for, and gives nothing.

    Attributes:
        asked: Ids of the steps that it would record, and of the children that it would wait for.
    """

    def __init__(self) -> None:
        self.asked: list[str] = []

    async def record(
        self, steps: Sequence[run_pb2.NewStep]
    ) -> Sequence[work_stream_pb2.StepRecord]:
        self.asked += [step.step_id for step in steps]
        raise ActivationLost

    def wait(self, child_ids: Sequence[str]) -> None:
        self.asked += child_ids

    async def more_steps(self, page_token: str) -> worker_service_pb2.ListStepsResponse:
        raise AssertionError(f"all steps are there from the start, and no page {page_token!r}")


@dataclasses.dataclass(frozen=True)
class Replayed:
    """What came of a replay.

    Attributes:
        asked: What is not recorded, and was asked for.
        output: What the function returned; None: it did not come to that.
        mismatch: Where the code does not fit the record; empty: it fits.
    """

    asked: list[str]
    output: payload_pb2.Payload | None = None
    mismatch: str = ""


async def replay(history: History, workflow: WorkflowDeclaration) -> Replayed:
    """Gives a history to a worker's runtime."""
    record = Record()
    result = await Activation(history.assignment(), workflow, record).run()
    if result is None:
        return Replayed(record.asked)
    if result.HasField("completed"):
        return Replayed(record.asked, result.completed.output)
    return Replayed(record.asked, mismatch=result.blocked.failure.message)
