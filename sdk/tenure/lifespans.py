"""Workers inside web programs: the lifespan of ASGI as a context manager, for any framework."""

from __future__ import annotations

import contextlib
import math
from typing import TYPE_CHECKING

from tenure import check

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable

    from tenure.app import App
    from tenure.worker import Worker


def make(
    app: App,
    worker: bool | Worker,  # noqa: FBT001 - as `App.lifespan` names it
    grace: float,
) -> Callable[[object], contextlib.AbstractAsyncContextManager[None]]:
    """Returns what a framework takes as its lifespan.

    Raises:
        WrongType, WrongValue: neither a bool nor a worker of this app; no time.
    """
    import tenure.worker

    check.number(grace, "grace", 0, math.inf)
    if not isinstance(worker, bool | tenure.worker.Worker):
        raise check.wrong_type("worker", "True, False or a tenure.Worker", worker)
    if not isinstance(worker, bool) and worker.app is not app:
        raise check.wrong_value("worker", f"one of the app {app.name!r}", worker)

    @contextlib.asynccontextmanager
    async def lifespan(web: object) -> AsyncIterator[None]:
        del web
        if worker is False:
            yield
            return
        # Made here and not before: servers that fork do so before they start the program.
        serving = tenure.worker.Worker(app) if worker is True else worker
        serving.start()
        try:
            yield
        finally:
            await serving.aclose(grace)

    return lifespan
