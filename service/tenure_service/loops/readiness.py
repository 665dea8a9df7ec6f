"""Whether this server can do its work, told to those who ask its health.

A server whose PostgreSQL is away, answers no more, or takes no writes (a demoted primary answers
every read) must not be sent traffic. Streams stay: their workers' leases may outlive the trouble.
"""

import asyncio
import logging
from collections.abc import Awaitable
from typing import Protocol

from tenure_service.dispatch.hub import Hub
from tenure_service.engine.errors import TenureError
from tenure_service.loops.supervisor import Health
from tenure_service.usecase import maintain

_log = logging.getLogger(__name__)

#: An idle server asks its database little; with the wait for a connection it is told within 7 s.
POLL_SECONDS = 2.0
#: Longer than a wait for a connection; a PostgreSQL that hangs has not even refused it.
_ANSWER_SECONDS = 7.0


class SetReady(Protocol):
    """Tells health checks whether to send traffic here."""

    def __call__(self, *, ready: bool) -> Awaitable[None]: ...  # noqa: D102 - the class says it


async def run(hub: Hub, set_ready: SetReady, health: Health) -> None:
    """Looks until it is cancelled; tells of changes only."""
    said = True
    question: asyncio.Future[bool] | None = None
    while True:
        await asyncio.sleep(POLL_SECONDS)
        # One question at a time: each that hangs keeps a thread.
        if question is None:
            question = asyncio.ensure_future(asyncio.to_thread(maintain.is_writable, hub.database))
        await asyncio.wait({question}, timeout=_ANSWER_SECONDS)
        ready = False
        if question.done():
            try:
                ready = question.result()
                health.succeeded()
            except TenureError as exc:
                health.last_error = str(exc)
                health.stirred()
            question = None
        else:
            health.last_error = "the database does not answer"
            health.stirred()
        if ready != said and not hub.draining:
            said = ready
            _log.warning("the database takes %s", "writes again" if ready else "no writes")
            await set_ready(ready=ready)
