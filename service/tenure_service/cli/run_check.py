"""`tenure run check`: which open runs the code at hand could not go on with."""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import sys
from typing import TYPE_CHECKING, Final

from tenure_service.cli import apps, exits, remote, show
from tenure_service.telemetry import logs

if TYPE_CHECKING:
    import argparse

    from tenure import App, Client, Page, RunSnapshot
    from tenure.workflow.declaration import WorkflowDeclaration
    from tenure.workflow.rehearsal import Rehearsal

#: Open, and past their beginning; a run that was RUNNING goes on with the new code all the same.
_STATES: Final = ("QUEUED", "RUNNING", "WAITING", "BLOCKED")
_RUN_COUNT_MAX: Final = 1_000_000
#: Replays at a time: each waits for a second to see that its function has come to rest.
_AT_ONCE: Final = 100


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Mismatch:
    """A run that the code at hand does not fit, as it is printed."""

    id: str
    name: str
    problem: str


def check(values: argparse.Namespace) -> int:
    """Replays open runs against an app's code."""
    app = apps.load(values.app)
    workflows = _workflows(app, values.name)
    # Without flags the runs are looked for where the app's own workers would.
    values.address = values.address or app.target.address
    values.namespace = values.namespace or app.target.namespace
    with remote.client(values) as client:
        runs = [run for each in workflows for run in _open(client, each)]
        found = asyncio.run(_rehearse(client, workflows, runs, quiet=values.json))
    mismatches = [
        Mismatch(id=run.id, name=run.name, problem=came.mismatch)
        for run, came in zip(runs, found, strict=True)
        if came is not None and came.mismatch is not None
    ]
    for run, came in zip(runs, found, strict=True):
        if came is not None:
            _remark(run, came)
    if values.json:
        show.document({"checked": len(runs), "mismatches": mismatches})
    else:
        for each in mismatches:
            print(f"{each.id}  {each.name}  {logs.printable(each.problem)}")
        counted = f"{len(runs)} open {'run' if len(runs) == 1 else 'runs'} of {app.name} checked"
        show.note(f"{counted}: {len(mismatches) or 'no'} that the code does not fit")
    return exits.FAILED if mismatches else exits.OK


def _workflows(app: App, name: str | None) -> list[WorkflowDeclaration]:
    known = {each: workflow.declaration for each, workflow in app.workflows.items()}
    if name is None and known:
        return list(known.values())
    if name is not None and name in known:
        return [known[name]]
    listed = f"it has {', '.join(known)}" if known else "it has none"
    wanted = "no workflow" if name is None else f"no workflow {name!r}"
    raise exits.CommandFailed(f"the app {app.name!r} has {wanted}: {listed}", exits.USAGE)


def _open(client: Client, workflow: WorkflowDeclaration) -> list[RunSnapshot]:
    """Lists the runs of a workflow that have steps, and that this code would be given."""
    import tenure

    states = [tenure.RunState(each) for each in _STATES]

    def page(size: int, token: str) -> Page[RunSnapshot]:
        return client.list_runs(states, name=workflow.name, page_size=size, page_token=token)

    found, _ = remote.collect(page, _RUN_COUNT_MAX)
    own = {"", workflow.version, *workflow.compatible_with}
    return [
        run
        for run in found
        if run.step_count
        and not run.cancel_requested
        and (workflow.versioning != "pinned" or run.version in own)
    ]


async def _rehearse(
    client: Client, workflows: list[WorkflowDeclaration], runs: list[RunSnapshot], *, quiet: bool
) -> list[Rehearsal | None]:
    """Replays runs; None for one that is gone meanwhile."""
    import tenure
    from tenure.workflow import rehearsal

    known = {each.name: each for each in workflows}
    places = asyncio.Semaphore(_AT_ONCE)
    done_count = 0

    async def one(run: RunSnapshot) -> Rehearsal | None:
        nonlocal done_count
        async with places:
            try:
                return await rehearsal.rehearse(client.target, known[run.name], run.id)
            except tenure.NotFound:
                return None
            finally:
                done_count += 1
                say(f"{done_count} of {len(runs)}")

    first = f"replaying {len(runs)} runs"
    # Elsewhere than on a terminal a line for each run would bury what is found.
    shown = sys.stderr.isatty() and not quiet
    with show.progress(first) if shown else contextlib.nullcontext(_silent) as say:
        return await asyncio.gather(*map(one, runs))


def _silent(text: str) -> None:
    """Says nothing."""


def _remark(run: RunSnapshot, came: Rehearsal) -> None:
    """Says what a replay came to that is no mismatch, and may surprise."""
    if came.raised is not None:
        show.note(f"{run.id}  {run.name}  fits its record, and would fail: {came.raised}")
    elif came.unsettled:
        show.note(
            f"{run.id}  {run.name}  was not checked to its end: the function neither ended nor"
            " waited for a verb"
        )
