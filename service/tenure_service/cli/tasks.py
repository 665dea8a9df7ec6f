"""`tenure task`: enqueue, get, list, cancel, why."""

from __future__ import annotations

import functools
import json
import math
import pathlib
import sys
from typing import TYPE_CHECKING, Any

from tenure_service.cli import exits, flags, policies, remote, show
from tenure_service.telemetry import logs

if TYPE_CHECKING:
    import argparse

    from tenure import Client, NewTask, Page, TaskDetails, TaskOutcome, TaskSnapshot, TaskState
    from tenure.errors import ServiceError


def enqueue(values: argparse.Namespace) -> int:
    """Enqueues one task, and waits for its result where that is asked for."""
    task = _new_task(values)
    with remote.client(values) as client:
        stored = client.enqueue(task)
        answer: dict[str, Any] = {"id": stored.id, "existing": stored.existing}
        if values.wait is None:
            if values.json:
                show.document(answer)
            else:
                print(stored.id)
                if stored.existing:
                    show.note(f"it stood under the key {values.key!r} before: nothing is new")
            return exits.OK
        if not values.json:
            print(stored.id, flush=True)
        outcome = _wait(client, stored.id, values.wait)
        if values.json:
            show.document(answer | _outcome(outcome))
        return _told(client, stored.id, outcome, values)


def _new_task(values: argparse.Namespace) -> NewTask:
    data = read_input(values)
    import tenure

    return tenure.NewTask(
        name=values.name,
        arguments=tenure.Payload(data=data),
        queue=values.queue,
        priority=values.priority,
        delay=values.delay,
        key=values.key,
        lane=values.lane,
        policy=policies.given(values),
    )


def read_input(values: argparse.Namespace) -> bytes:
    """Reads the parameters and checks that they are one JSON object; the text goes as it is.

    Raises:
        CommandFailed: they are not, or the file cannot be read.
    """
    where = "--input"
    data: bytes = (values.input if values.input is not None else "{}").encode()
    if values.input_file is not None:
        where = values.input_file
        try:
            data = (
                sys.stdin.buffer.read()
                if where == "-"
                else pathlib.Path(values.input_file).read_bytes()
            )
        except OSError as exc:
            raise exits.CommandFailed(
                f"{where} cannot be read: {exc.strerror}", exits.USAGE
            ) from exc
    try:
        # Decoded here: `json` alone would also read UTF-16, which workers do not.
        value = json.loads(data.decode(), parse_constant=_refuse_constant, parse_float=_finite)
    except (ValueError, RecursionError) as exc:
        raise exits.CommandFailed(
            f"{where} is no JSON: {exc}\n"
            'Quote it for the shell, such as --input \'{"name": "Ada"}\'.',
            exits.USAGE,
        ) from exc
    if not isinstance(value, dict):
        raise exits.CommandFailed(
            f"{where} is {json.dumps(value)[:60]}: parameters travel by name, as a JSON object"
            ' such as {"name": "Ada"}',
            exits.USAGE,
        )
    for name, each in value.items():
        if not flags.encodes(json.dumps([name, each], ensure_ascii=False)):
            raise exits.CommandFailed(
                f"{where}: text with a lone surrogate has no UTF-8 form, in parameter"
                f" {json.dumps(name)[:60]}",
                exits.USAGE,
            )
    return data


def _refuse_constant(text: str) -> Any:
    raise ValueError(f"{text} is no JSON number")


def _finite(text: str) -> float:
    """Reads a number; one that no float holds would come out as Infinity, which is not JSON."""
    number = float(text)
    if math.isinf(number):
        raise ValueError(f"{text} is larger than a float can hold")
    return number


def _wait(client: Client, task_id: str, seconds: float) -> TaskOutcome | None:
    """Waits until a task is over; None when the time is."""

    def ask(step: float) -> TaskOutcome | ServiceError | None:
        return client.await_tasks([task_id], step).get(task_id)

    def tell() -> str:
        task = client.get_task(task_id).task
        return f"{task.state}, attempt {task.attempt}"

    return remote.until_over(task_id, seconds, ask, tell)


def _outcome(outcome: TaskOutcome | None) -> dict[str, Any]:
    if outcome is None:
        return {"state": None, "output": None, "failure": None, "attempt": None}
    return {
        "state": outcome.state.value,
        "output": outcome.output,
        "failure": outcome.failure,
        "attempt": outcome.attempt,
    }


def _told(
    client: Client, task_id: str, outcome: TaskOutcome | None, values: argparse.Namespace
) -> int:
    """Prints how the wait ended, and returns the exit code."""
    if outcome is None:
        reasons = client.explain_task(task_id).reasons
        raise exits.CommandFailed(
            "\n".join([f"not over after {values.wait:g} s; it goes on.", *reasons])
        )
    if outcome.state.value == "COMPLETED":
        if not values.json:
            print(show.payload_text(outcome.output))
        return exits.OK
    why = f": {outcome.failure}" if outcome.failure is not None else ""
    raise exits.CommandFailed(
        f"{outcome.state.value} after attempt {outcome.attempt}{why}\n"
        f"More: tenure dead-letter show {task_id}"
    )


def get(values: argparse.Namespace) -> None:
    """Shows one task and its deliveries."""
    with remote.client(values) as client:
        details = client.get_task(values.id, payloads=values.payloads)
    if values.json:
        task = show.plain(details.task) | {"trace_id": details.task.trace_id}
        show.document({"task": task, "deliveries": details.deliveries})
    else:
        print_details(details)


def print_details(details: TaskDetails) -> None:
    """Prints a task with the traceback of its failure, and its deliveries, for people."""
    task = details.task
    failure = task.failure
    retry = task.policy.retry
    run_id, colon, _ = task.id.partition(":")
    show.facts(
        [
            ("id", task.id),
            ("run", run_id if colon else None),
            ("name", task.name),
            ("queue", task.queue),
            ("lane", task.lane),
            ("key", task.key),
            ("state", f"{task.state}{' (cancel requested)' if task.cancel_requested else ''}"),
            ("attempt", f"{task.attempt} of {retry.max_attempts if retry else '?'}"),
            ("lost", task.lost_count or None),
            ("priority", task.priority or None),
            ("worker", task.worker),
            ("enqueued", show.instant(task.enqueued_at)),
            ("ready", show.instant(task.ready_at)),
            ("started", show.instant(task.started_at)),
            ("progress", _progress(task)),
            ("trace", task.trace_id),
            ("ended", show.instant(task.ended_at)),
            ("input", show.payload_text(task.input)),
            ("output", show.payload_text(task.output)),
            ("failure", failure.format() if failure else None),
        ]
    )
    if details.deliveries:
        print()
        show.table(
            ["delivery", "attempt", "outcome", "worker", "started", "ended", "failure"],
            [
                (
                    each.delivery,
                    each.attempt,
                    each.outcome.value,
                    each.worker,
                    show.instant(each.started_at),
                    show.instant(each.ended_at),
                    each.failure,
                )
                for each in details.deliveries
            ],
            empty="",
        )


def _progress(task: TaskSnapshot) -> str | None:
    if task.details is None:
        return None
    return f"{show.payload_text(task.details)} (at {show.instant(task.details_at)})"


def list_(values: argparse.Namespace) -> None:
    """Lists tasks of one state, or of all."""
    import tenure

    states: list[TaskState] = [x for x in tenure.TaskState if x is not tenure.TaskState.UNKNOWN]
    if values.state is not None:
        states = [tenure.TaskState(values.state)]
    # States are read in the order in which tasks pass through them, and the later look counts.
    found: dict[str, TaskSnapshot] = {}
    more = False
    with remote.client(values) as client:
        for state in states:
            page, left = remote.collect(
                functools.partial(_page, client, state, values), values.limit
            )
            found.update((task.id, task) for task in page)
            more = more or left
    # Ids are in the order of time; of a task of a run the last part is its own.
    newest = sorted(found.values(), key=lambda task: task.id.rpartition(":")[2], reverse=True)
    items, more = newest[: values.limit], more or len(newest) > values.limit
    if values.json:
        show.document(items)
    else:
        show.table(
            ["id", "name", "queue", "state", "attempt", "ready", "ended", "failure"],
            [
                (
                    task.id,
                    task.name,
                    task.queue,
                    task.state.value,
                    task.attempt,
                    show.instant(task.ready_at),
                    show.instant(task.ended_at),
                    task.failure,
                )
                for task in items
            ],
            empty="no task was found" if values.state is None else f"no task is {values.state}",
        )
    if more:
        show.note(f"these are the newest {len(items)}; --limit shows more")


def _page(
    client: Client, state: TaskState, values: argparse.Namespace, size: int, token: str
) -> Page[TaskSnapshot]:
    return client.list_tasks(
        state, queue=values.queue, name=values.name, page_size=size, page_token=token
    )


def cancel(values: argparse.Namespace) -> int:
    """Asks for the end of tasks."""
    remote.check_ids(values.ids)
    with remote.client(values) as client:
        answers = client.cancel_tasks(values.ids, reason=values.reason, grace=values.grace)
    return print_states(values, answers, client.target.namespace)


def print_states(values: argparse.Namespace, answers: list[Any], namespace: str) -> int:
    """Prints the state of each task or run of a batch, and returns the exit code."""
    _, worst = remote.settle(values.ids, answers, namespace)
    states = [
        {"id": each_id, "state": answer.value if hasattr(answer, "value") else None}
        for each_id, answer in zip(values.ids, answers, strict=True)
    ]
    if values.json:
        show.document(states)
    else:
        for each in states:
            if each["state"] is not None:
                print(f"{each['id']}  {each['state']}")
    return worst


def why(values: argparse.Namespace) -> None:
    """Says why a task stands where it stands."""
    with remote.client(values) as client:
        answer = client.explain_task(values.id)
    if values.json:
        show.document(answer)
        return
    print(answer.state.value)
    for reason in answer.reasons:
        print(f"  {logs.printable(reason)}")
