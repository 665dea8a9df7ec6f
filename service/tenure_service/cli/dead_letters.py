"""`tenure dead-letter`: list, show, replay, discard."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from tenure_service.cli import exits, remote, show, tasks

if TYPE_CHECKING:
    import argparse
    from collections.abc import Callable, Sequence

    from tenure import Client, DeadLetter

# The most that one call takes.
_BATCH_COUNT = 1_000


def list_(values: argparse.Namespace) -> None:
    """Lists dead letters, newest first."""
    import tenure

    state = tenure.DeadLetterState(values.state)
    with remote.client(values) as client:
        items, more = remote.collect(
            lambda size, token: client.list_dead_letters(
                queue=values.queue,
                name=values.name,
                state=state,
                page_size=size,
                page_token=token,
            ),
            values.limit,
        )
    if values.json:
        show.document([_shown(letter) for letter in items])
    else:
        show.table(
            ["id", "name", "queue", "reason", "attempt", "died", "failure"],
            [
                (
                    letter.task_id,
                    letter.name,
                    letter.queue,
                    letter.reason.value,
                    letter.attempt,
                    show.instant(letter.died_at),
                    letter.failure,
                )
                for letter in items
            ],
            empty=f"no dead letter is {state.value}",
        )
    if more:
        show.note(f"these are the newest {len(items)}; --limit shows more")


def _shown(letter: DeadLetter) -> dict[str, Any]:
    """Gives a dead letter without what a list does not load."""
    found: dict[str, Any] = show.plain(letter)
    return {
        name: value
        for name, value in found.items()
        if not (name == "input" and value is None)
        and not (name == "task_state" and value == "UNKNOWN")
    }


def show_(values: argparse.Namespace) -> None:
    """Shows a dead task with its input and the whole failure."""
    with remote.client(values) as client:
        details = client.get_task(values.id, payloads=True)
    if values.json:
        show.document({"task": details.task, "deliveries": details.deliveries})
    else:
        tasks.print_details(details)


def replay(values: argparse.Namespace) -> int:
    """Makes dead tasks ready again."""
    with remote.client(values) as client:
        return _change(values, client, client.replay_dead_letters, "replayed", _policy_kept)


def discard(values: argparse.Namespace) -> int:
    """Marks dead letters as dealt with."""
    with remote.client(values) as client:
        return _change(values, client, client.discard_dead_letters, "discarded")


def _change(
    values: argparse.Namespace,
    client: Client,
    change: Callable[[Sequence[str]], Sequence[Any]],
    done: str,
    remark: Callable[[Client, Sequence[str]], str] | None = None,
) -> int:
    if bool(values.ids) == values.all:
        raise exits.CommandFailed("say either ids or --all", exits.USAGE)
    if not values.all and (values.queue or values.name):
        raise exits.CommandFailed("--queue and --name go with --all", exits.USAGE)
    remote.check_ids(values.ids)
    ids = list(dict.fromkeys(values.ids))
    if values.all:
        items, _ = remote.collect(
            lambda size, token: client.list_dead_letters(
                queue=values.queue, name=values.name, page_size=size, page_token=token
            ),
            10**9,
        )
        ids = [letter.task_id for letter in items]
    states: list[dict[str, Any]] = []
    worst = exits.OK
    with show.progress(f"{len(ids)} dead letters") as say:
        for start in range(0, len(ids), _BATCH_COUNT):
            batch = ids[start : start + _BATCH_COUNT]
            answers = change(batch)
            worst = max(worst, remote.settle(batch, answers, client.target.namespace)[1])
            states += [
                {"id": task_id, "state": getattr(answer, "value", None)}
                for task_id, answer in zip(batch, answers, strict=True)
            ]
            if len(ids) > _BATCH_COUNT:
                say(f"{start + len(batch)} of {len(ids)} dead letters")
    if values.json:
        show.document(states)
    else:
        changed = [each["id"] for each in states if each["state"] is not None]
        more = remark(client, changed) if remark is not None and changed else ""
        print(f"{done} {len(changed)} of {len(ids)}{more}")
    return worst


def _policy_kept(client: Client, ids: Sequence[str]) -> str:
    if len(ids) > 1:
        return ", each with the policy it was enqueued with"
    import tenure

    try:
        retry = client.get_task(ids[0]).task.policy.retry
    except tenure.ServiceError:
        retry = None  # such as for a key of the scope admin alone, which may not read tasks
    attempts = retry.max_attempts if retry is not None else None
    said = "" if attempts is None else f": {attempts} attempt{'' if attempts == 1 else 's'}"
    return f", with the policy it was enqueued with{said}"
