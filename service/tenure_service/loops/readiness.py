"""Whether this server can do its work, told to those who ask its health.

A server whose PostgreSQL is away, or takes no writes any more (a demoted primary answers every
read), must not be sent traffic. Streams stay: their workers' leases may outlive the trouble.
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
_POLL_SECONDS = 2.0


class SetReady(Protocol):
    """Tells health checks whether to send traffic here."""

    def __call__(self, *, ready: bool) -> Awaitable[None]: ...  # noqa: D102 - the class says it


async def run(hub: Hub, set_ready: SetReady, health: Health) -> None:
    """Looks until it is cancelled; tells of changes only."""
    said = True
    while True:
        await asyncio.sleep(_POLL_SECONDS)
        try:
            ready = await asyncio.to_thread(maintain.is_writable, hub.database)
            health.succeeded()
        except TenureError as exc:
            ready = False
            health.last_error = str(exc)
        if ready != said and not hub.draining:
            said = ready
            _log.warning("the database takes %s", "writes again" if ready else "no writes")
            await set_ready(ready=ready)
