"""Replays recorded runs against the code at hand, without recording or doing anything.

Each verb whose step is recorded answers from the record, as on a worker. Before the first thing that
is not recorded a branch waits, for good; when all of them wait, the function is unwound. What runs
of the program is the function between its verbs, and no step, task or child run.
"""

from __future__ import annotations

import asyncio
import dataclasses
from typing import TYPE_CHECKING

from tenure import connection, failure, methods
from tenure.io_thread import io_thread
from tenure.v1 import run_pb2, worker_pb2, worker_service_pb2
from tenure.v1 import workflow_service_pb2 as workflows
from tenure.workflow.activation import Activation
from tenure.workflow.sync_context import Threads
from tenure.workflow.verbs import Verbs

if TYPE_CHECKING:
    from collections.abc import Sequence

    from tenure.channel import Target
    from tenure.v1 import work_stream_pb2
    from tenure.workflow.branches import Owner
    from tenure.workflow.declaration import WorkflowDeclaration

# A function that has not come to rest by then waits for something of its own, such as a server.
REHEARSAL_SECONDS = 30.0
# What the branches wait for that have nothing recorded ahead of them: it has the id of no child.
_NEVER = "what is not recorded"


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Rehearsal:
    """Rehearsal is what came of a replay.

    Attributes:
        mismatch: Where the code does not fit the record, with the line of the code; None: it fits.
        raised: What the function raised in the replay, which would end the run; None: nothing.
        unsettled: True if the function neither ended nor waited in time.
    """

    mismatch: str | None = None
    raised: failure.Failure | None = None
    unsettled: bool = False


async def rehearse(target: Target, workflow: WorkflowDeclaration, run_id: str) -> Rehearsal:
    """Replays a run as far as it is recorded.

    Args:
        target: Where the run is.
        workflow: Code to replay it with.
        run_id: The run.

    Raises:
        NotFound: no such run in the namespace.
    """
    activation = _Replay(await _read(target, run_id), workflow, _Nowhere())
    running = asyncio.ensure_future(activation.run())
    done, _ = await asyncio.wait([running], timeout=REHEARSAL_SECONDS)
    if not done:
        activation.drop()
        running.cancel()
        return Rehearsal(unsettled=True)
    result = running.result()
    if result is None:
        return Rehearsal(unsettled=True)
    if result.HasField("blocked"):
        return Rehearsal(mismatch=result.blocked.failure.message)
    if result.HasField("failed"):
        return Rehearsal(raised=failure.from_proto(result.failed.failure))
    return Rehearsal()


async def _read(target: Target, run_id: str) -> worker_pb2.Assignment:
    """Reads a run as a worker would be handed it."""
    link = connection.connect(target)
    asked = workflows.GetRunRequest(run_id=run_id, include_payloads=True)
    run = (await io_thread.arun(link.call(methods.GET_RUN, asked))).run
    assignment = worker_pb2.Assignment(
        task_id=run.run_id, name=run.name, queue=run.queue, input=run.input
    )
    activation = assignment.activation
    activation.version = run.version
    activation.key = run.key
    activation.recovery_count = run.recovery_count
    activation.created_at.CopyFrom(run.created_at)
    activation.parent_run_id = run.parent_run_id
    activation.attributes.update(run.attributes)
    request = workflows.ListRunStepsRequest(run_id=run_id)
    while True:
        page = await io_thread.arun(link.call(methods.LIST_RUN_STEPS, request))
        activation.steps.extend(page.steps)
        if not page.next_page_token:
            return assignment
        request.page_token = page.next_page_token


class _Held(Verbs):
    """_Held is verbs that stop where the record does."""

    async def frontier(self, owner: Owner) -> None:
        """Waits, as for a task that is never over: nothing that is not recorded is done."""
        self.flow.check(owner)
        while True:
            await self.parking.until_over(owner, [_NEVER], 1)


class _Replay(Activation):
    """_Replay is an activation that does nothing new."""

    def __init__(
        self, assignment: worker_pb2.Assignment, workflow: WorkflowDeclaration, port: _Nowhere
    ) -> None:
        super().__init__(assignment, workflow, port)
        self._verbs = _Held(
            self._branches,
            self._flow,
            self._journal,
            self._parking,
            hook=workflow.codec,
            block=self._block,
            deliver_cancel=self._deliver_cancel,
        )
        self._threads = Threads(self._loop, self._verbs, self._branch_ended)

    def _ended(self) -> worker_pb2.Result:
        # The activation's own way logs it as the failure of a run.
        if self._raised is None:
            return super()._ended()
        message = failure.from_exception(self._raised)
        return worker_pb2.Result(failed=worker_pb2.Failed(failure=message))


class _Nowhere:
    """_Nowhere is the port of an activation that neither records nor is told anything."""

    async def record(
        self, steps: Sequence[run_pb2.NewStep]
    ) -> Sequence[work_stream_pb2.StepRecord]:
        """Is not called: every verb waits before it records."""
        raise AssertionError(f"a replay records nothing, not {[each.step_id for each in steps]}")

    def wait(self, child_ids: Sequence[str]) -> None:
        """Tells of nothing: what was over when the run was read is known."""

    async def more_steps(self, page_token: str) -> worker_service_pb2.ListStepsResponse:
        """Is not called: all steps are there from the start."""
        raise AssertionError(f"a replay has all its steps, and no page {page_token!r}")
