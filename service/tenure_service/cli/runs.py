"""`tenure run`: start, list, show, steps, wait, cancel, resume, fork."""

from __future__ import annotations

import functools
import math
from typing import TYPE_CHECKING, Any

from tenure_service.cli import exits, remote, show, tasks

if TYPE_CHECKING:
    import argparse

    from tenure import Client, NewRun, Page, RunOutcome, RunSnapshot, RunStep
    from tenure.errors import ServiceError


def start(values: argparse.Namespace) -> int:
    """Starts one run, and waits for its result where that is asked for."""
    run = _new_run(values)
    with remote.client(values) as client:
        stored = client.start(run)
        answer: dict[str, Any] = {"id": stored.id, "existing": stored.existing}
        if values.wait is None:
            if values.json:
                show.document(answer)
            else:
                print(stored.id)
                _note_existing(values, existing=stored.existing)
            return exits.OK
        if not values.json:
            print(stored.id, flush=True)
            _note_existing(values, existing=stored.existing)
        return _wait(client, stored.id, values.wait, values, answer)


def _note_existing(values: argparse.Namespace, *, existing: bool) -> None:
    if existing:
        show.note(f"it stood under the key {values.key!r} before: nothing is new")


def _new_run(values: argparse.Namespace) -> NewRun:
    data = tasks.read_input(values)
    attributes = _attributes(values)
    import tenure

    try:
        return tenure.NewRun(
            name=values.name,
            arguments=tenure.Payload(data=data),
            queue=values.queue,
            priority=values.priority,
            delay=values.delay,
            key=values.key,
            lane=values.lane,
            timeout=values.timeout,
            attributes=attributes,
        )
    except tenure.UsageError as exc:
        raise exits.CommandFailed(str(exc), exits.USAGE) from exc


def _attributes(values: argparse.Namespace) -> dict[str, str]:
    """Gives the attributes by name.

    Raises:
        CommandFailed: a name is given twice with different values.
    """
    found: dict[str, str] = {}
    for name, value in values.attributes:
        if found.setdefault(name, value) != value:
            raise exits.CommandFailed(
                f"--attribute {name} is given as {found[name]!r} and as {value!r}", exits.USAGE
            )
    return found


def list_(values: argparse.Namespace) -> None:
    """Lists runs, newest first."""
    import tenure

    if values.parent:
        remote.check_run_ids([values.parent])
    states = [tenure.RunState(each) for each in values.state or ()]
    attributes = _attributes(values)

    def page(client: Client, size: int, token: str) -> Page[RunSnapshot]:
        return client.list_runs(
            states,
            name=values.name,
            attributes=attributes,
            parent_run_id=values.parent,
            page_size=size,
            page_token=token,
        )

    with remote.client(values) as client:
        items, more = remote.collect(functools.partial(page, client), values.limit)
    if values.json:
        show.document(items)
    else:
        show.table(
            ["id", "name", "queue", "state", "steps", "created", "wakes", "ended", "failure"],
            [
                (
                    run.id,
                    run.name,
                    run.queue,
                    run.state.value,
                    run.step_count,
                    show.instant(run.created_at),
                    show.instant(run.wakes_at),
                    show.instant(run.ended_at),
                    run.failure,
                )
                for run in items
            ],
            empty="no run was found" if not states else f"no run is {' or '.join(states)}",
        )
    if more:
        show.note(f"these are the newest {len(items)}; --limit shows more")


def show_(values: argparse.Namespace) -> None:
    """Shows one run."""
    with remote.client(values) as client:
        run = client.get_run(values.id or "", key=values.key or "", payloads=values.payloads)
    if values.json:
        show.document(run)
        return
    blocked = f" ({run.blocked})" if run.blocked is not None else ""
    cancelling = " (cancel requested)" if run.cancel_requested else ""
    show.facts(
        [
            ("id", run.id),
            ("name", run.name),
            ("queue", run.queue),
            ("lane", run.lane),
            ("key", run.key),
            ("state", f"{run.state}{blocked}{cancelling}"),
            ("steps", run.step_count or None),
            ("version", run.version),
            ("activations", run.activation_count or None),
            ("lost", run.recovery_count or None),
            ("priority", run.priority or None),
            ("worker", run.worker),
            ("parent", run.parent_run_id),
            ("root", run.root_run_id if run.root_run_id != run.id else None),
            (
                "attributes",
                ", ".join(f"{name}={text}" for name, text in sorted(run.attributes.items())),
            ),
            ("created", show.instant(run.created_at)),
            ("wakes", show.instant(run.wakes_at)),
            ("ended", show.instant(run.ended_at)),
            ("input", show.payload_text(run.input)),
            ("output", show.payload_text(run.output)),
            ("failure", run.failure.format() if run.failure else None),
        ]
    )


def steps(values: argparse.Namespace) -> None:
    """Lists what is recorded of a run."""

    def page(client: Client, size: int, token: str) -> Page[RunStep]:
        return client.list_run_steps(values.id, page_size=size, page_token=token)

    with remote.client(values) as client:
        items, more = remote.collect(functools.partial(page, client), values.limit)
    if values.json:
        show.document(items)
    else:
        show.table(
            ["step", "name", "kind", "child", "recorded", "ended", "came to"],
            [
                (
                    step.id,
                    step.name,
                    step.kind.value,
                    step.child_id,
                    show.instant(step.recorded_at),
                    show.instant(step.ended_at),
                    step.failure or show.payload_text(step.output),
                )
                for step in items
            ],
            empty="nothing is recorded of it yet",
        )
    if more:
        show.note(f"these are the first {len(items)}; --limit shows more")


def wait(values: argparse.Namespace) -> int:
    """Waits until a run is over."""
    remote.check_run_ids([values.id])
    seconds = math.inf if values.timeout is None else values.timeout
    with remote.client(values) as client:
        return _wait(client, values.id, seconds, values, {"id": values.id})


def _wait(
    client: Client,
    run_id: str,
    seconds: float,
    values: argparse.Namespace,
    answer: dict[str, Any],
) -> int:
    """Waits, prints how it ended, and returns the exit code."""
    outcome = _outcome(client, run_id, seconds)
    if values.json:
        show.document(
            answer
            | {
                "state": outcome.state.value if outcome else None,
                "output": outcome.output if outcome else None,
                "failure": outcome.failure if outcome else None,
            }
        )
    if outcome is None:
        raise exits.CommandFailed(
            f"not over after {seconds:g} s; it goes on.\nMore: tenure run show {run_id}"
        )
    if outcome.state.value == "COMPLETED":
        if not values.json:
            print(show.payload_text(outcome.output))
        return exits.OK
    why = f": {outcome.failure}" if outcome.failure is not None else ""
    raise exits.CommandFailed(f"{outcome.state.value}{why}\nMore: tenure run show {run_id}")


def _outcome(client: Client, run_id: str, seconds: float) -> RunOutcome | None:
    """Waits until a run is over; None when the time is."""

    def ask(step: float) -> RunOutcome | ServiceError | None:
        return client.await_runs([run_id], step).get(run_id)

    def tell() -> str:
        run = client.get_run(run_id)
        blocked = f" ({run.blocked}): it waits for `tenure run resume`" if run.blocked else ""
        return f"{run.state}{blocked}, {run.step_count} steps"

    return remote.until_over(run_id, seconds, ask, tell)


def cancel(values: argparse.Namespace) -> int:
    """Asks for the end of runs."""
    remote.check_run_ids(values.ids)
    with remote.client(values) as client:
        answers = client.cancel_runs(values.ids, reason=values.reason, grace=values.grace)
    return tasks.print_states(values, answers, client.target.namespace)


def resume(values: argparse.Namespace) -> int:
    """Lets BLOCKED runs go on."""
    remote.check_run_ids(values.ids)
    with remote.client(values) as client:
        answers = client.resume_runs(values.ids)
    return tasks.print_states(values, answers, client.target.namespace)


def fork(values: argparse.Namespace) -> None:
    """Starts a new run with the steps of another one."""
    remote.check_run_ids([values.id])
    with remote.client(values) as client:
        run_id = client.fork_run(values.id, before_step_id=values.before)
    if values.json:
        show.document({"id": run_id})
    else:
        print(run_id)
