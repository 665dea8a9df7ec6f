"""`tenure queue`, `tenure worker list`, `tenure namespace`."""

from __future__ import annotations

import collections
from typing import TYPE_CHECKING

from tenure_service.cli import remote, show

if TYPE_CHECKING:
    import argparse

    from tenure import Client, HandlerInfo, QueueStatistics, WorkerInfo

_QUEUE_COUNT_MAX = 10_000


def list_queues(values: argparse.Namespace) -> None:
    """Counts what stands where."""
    with remote.client(values) as client:
        queues, _ = remote.collect(
            lambda size, token: client.list_queues(page_size=size, page_token=token),
            _QUEUE_COUNT_MAX,
        )
        statistics = _with_idle(client.queue_statistics(), client.list_workers())
    if values.json:
        show.document({"queues": queues, "statistics": statistics})
        return
    paused = {queue.name: show.instant(queue.paused_at) for queue in queues}
    rows: list[tuple[object, ...]] = [
        (
            each.queue,
            each.name,
            each.ready_count,
            each.delayed_count,
            each.leased_count,
            each.dead_count,
            each.worker_count,
            show.instant(each.oldest_ready_at),
            paused.get(each.queue),
        )
        for each in statistics
    ]
    busy = {each.queue for each in statistics}
    rows += [
        (name, None, 0, 0, 0, 0, None, None, since)
        for name, since in paused.items()
        if name not in busy
    ]
    show.table(
        ["queue", "task", "ready", "delayed", "leased", "dead", "workers", "oldest", "paused"],
        rows,
        empty="no queue holds anything, and no worker serves one",
    )


def _with_idle(
    statistics: list[QueueStatistics], workers: list[WorkerInfo]
) -> list[QueueStatistics]:
    """Adds what workers serve and nothing waits for, in the order of the others."""
    import tenure

    counts = collections.Counter(
        (handler.queue, handler.name)
        for worker in workers
        if worker.receiving
        for handler in worker.handlers
    )
    for each in statistics:
        counts.pop((each.queue, each.name), None)
    idle = [
        tenure.QueueStatistics(
            queue=queue,
            name=name,
            ready_count=0,
            delayed_count=0,
            leased_count=0,
            oldest_ready_at=None,
            worker_count=count,
            dead_count=0,
        )
        for (queue, name), count in counts.items()
    ]
    return sorted([*statistics, *idle], key=lambda each: (each.queue, each.name))


def pause_queue(values: argparse.Namespace) -> None:
    """Hands nothing out of a queue from now on."""
    _set_queue(values, paused=True)


def resume_queue(values: argparse.Namespace) -> None:
    """Hands out of a queue again."""
    _set_queue(values, paused=False)


def _set_queue(values: argparse.Namespace, *, paused: bool) -> None:
    with remote.client(values) as client:
        # Asked before: the call makes the name known.
        known = not paused or _is_known(client, values.name)
        queue = client.set_queue(values.name, paused=paused)
    if values.json:
        show.document(queue)
    elif queue.paused_at is not None:
        print(f"{queue.name} is paused since {show.instant(queue.paused_at)}")
    else:
        print(f"{queue.name} is not paused")
    if not known:
        show.note(f"nobody has used a queue of the name {queue.name!r} yet: is it spelt right?")


def _is_known(client: Client, name: str) -> bool:
    """Says whether tasks were ever enqueued into a queue, or a worker serves it."""
    queues, _ = remote.collect(
        lambda size, token: client.list_queues(page_size=size, page_token=token), _QUEUE_COUNT_MAX
    )
    return name in {queue.name for queue in queues} or any(
        each.queue == name for worker in client.list_workers() for each in worker.handlers
    )


def list_workers(values: argparse.Namespace) -> None:
    """Lists workers that hold a session."""
    with remote.client(values) as client:
        workers = client.list_workers()
    if values.json:
        show.document(workers)
        return
    show.table(
        ["name", "sdk", "receiving", "slots", "held", "since", "last seen", "key", "serves"],
        [
            (
                worker.name,
                f"{worker.sdk} {worker.sdk_version}",
                "gone" if worker.gone else "yes" if worker.receiving else "no",
                worker.slots,
                worker.held_count,
                show.instant(worker.opened_at),
                show.instant(worker.seen_at),
                worker.key_name,
                ", ".join(map(_served, worker.handlers)),
            )
            for worker in workers
        ],
        empty="no worker holds a session; start one with `tenure worker MODULE:NAME`",
    )


def _served(handler: HandlerInfo) -> str:
    what = "workflow on " if handler.is_workflow else ""
    return f"{handler.name} ({what}{handler.queue})"


def list_namespaces(values: argparse.Namespace) -> None:
    """Lists namespaces."""
    with remote.client(values) as client:
        namespaces = client.list_namespaces()
    if values.json:
        show.document(namespaces)
    else:
        show.table(
            ["name", "created"],
            [(each.name, show.instant(each.created_at)) for each in namespaces],
            empty="there is no namespace",
        )


def create_namespace(values: argparse.Namespace) -> None:
    """Creates a namespace, or answers with the one that exists."""
    with remote.client(values) as client:
        namespace = client.create_namespace(values.name)
    if values.json:
        show.document(namespace)
    else:
        print(f"{namespace.name}, created {show.instant(namespace.created_at)}")
