"""Says, once each, that tasks wait for a handler that nobody has registered."""

from __future__ import annotations

import asyncio
import contextlib
from typing import TYPE_CHECKING, Final

from tenure_service.engine.errors import TenureError

if TYPE_CHECKING:
    from collections.abc import Callable

    from tenure_service.main import Server

_PAUSE_SECONDS: Final = 2.0


async def tell(server: Server, namespace: str, say: Callable[[str], None]) -> None:
    """Looks each few seconds, until it is cancelled.

    A name is told at the second look in a row that finds it without a worker: while a worker is
    replaced there is none for a moment.
    """
    suspected: set[tuple[str, str]] = set()
    told: set[tuple[str, str]] = set()
    while True:
        await asyncio.sleep(_PAUSE_SECONDS)
        try:
            statistics = await server.queue_statistics(namespace)
        except TenureError:
            continue  # the database is away for now: the server's own log says so
        counts = {
            (row.queue, row.name): row.ready_count
            for row in statistics
            if row.ready_count and not row.worker_count
        }
        for queue, name in sorted((counts.keys() & suspected) - told):
            told.add((queue, name))
            count = counts[queue, name]
            tasks = "1 task waits" if count == 1 else f"{count} tasks wait"
            elsewhere: list[str] = []
            with contextlib.suppress(TenureError):
                elsewhere = await server.served_queues(namespace, name)
            say(
                f"  waiting   {tasks} on queue {queue} for a handler named {name!r}, and no worker"
                f" has one{_advice(name, queue, elsewhere)}"
            )
        suspected = set(counts)


def _advice(name: str, queue: str, elsewhere: list[str]) -> str:
    if elsewhere:
        return (
            f" there.\n            It is served on queue {', '.join(elsewhere)}: enqueue it with"
            f" `--queue {elsewhere[0]}`, or declare it with queue={queue!r}."
        )
    return (
        f".\n            Add `@app.task def {name}(...)` to a module that the app's own imports, or"
        " correct the name: `tenure task why ID`."
    )
