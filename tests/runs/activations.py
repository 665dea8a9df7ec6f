"""Runs that are with a worker, and steps to record, for tests that act through the use cases."""

from typing import Any, NamedTuple

from tenure_service.engine.states import StepKind
from tenure_service.store import rows
from tenure_service.store.registry import ANY_VERSION, Lane
from tenure_service.store.steps import Claim
from tenure_service.usecase import steps
from tenure_service.usecase.enqueue import Item, Shape
from tenure_service.usecase.lease import lease
from tenure_service.usecase.steps import Answer, Call, Counts, Recorded, Step
from tests.runs import flows
from tests.usecase.stage import AT_ONCE, Stage


class Activation(NamedTuple):
    """A run as it was handed out."""

    task: rows.LeasedTask
    claim: Claim

    @property
    def run_id(self) -> str:
        return self.claim.run_id


def activate(stage: Stage, count: int = 1) -> list[Activation]:
    """Starts runs, and hands them to one session under one lease."""
    flows.place(stage, count)
    return again(stage, ANY_VERSION)


def again(stage: Stage, version: str) -> list[Activation]:
    """Hands out the runs that wait for a version."""
    lane = Lane(stage.namespace_id, "default", "flow", app_version=version)
    pick = stage.pick(stage.session(), stage.catalogue.lane_ids([lane])[lane])
    (grant,) = lease(stage.database, stage.catalogue, [pick])
    return [
        Activation(task, Claim(task.lease_id, pick.secret, stage.namespace_id, task.run_id))
        for task in grant.tasks
    ]


def call(step_id: str, name: str = "reserve", output: bytes = b"1", **fields: Any) -> Step:
    """A function that ran."""
    return Step(step_id=step_id, name=name, kind=StepKind.CALL, output=output, **fields)


def task(step_id: str, name: str = "work", **fields: Any) -> Step:
    """A task to enqueue."""
    shape = Shape(name=name, queue="default", policy=AT_ONCE, **fields)
    return Step(step_id=step_id, name=name, kind=StepKind.TASK, task=Item(shape, b"[1]"))


def nap(step_id: str, seconds: float) -> Step:
    """A time to wait."""
    return Step(step_id=step_id, name="sleep", kind=StepKind.SLEEP, sleep_ms=round(seconds * 1000))


def record(stage: Stage, one: Activation, *new: Step, **fields: Any) -> list[Answer]:
    """Records steps of one activation; fails if the whole call is refused."""
    (answers,) = steps.record(
        stage.database, stage.catalogue, Counts(), [Call(claim=one.claim, steps=new)], **fields
    )
    assert isinstance(answers, list), answers
    return answers


def recorded(answers: list[Answer]) -> list[Recorded]:
    """Gives answers of which none is an error."""
    found = [answer for answer in answers if isinstance(answer, Recorded)]
    assert len(found) == len(answers), answers
    return found


def step_ids(stage: Stage, run_id: str) -> list[str]:
    """The ids of the recorded steps of a run, in their order."""
    found = stage.all("select step_id from steps where run_id = %s order by seq", run_id)
    return [step_id for (step_id,) in found]
