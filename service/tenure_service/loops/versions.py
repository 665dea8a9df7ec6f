"""Gives runs whose version no worker has any more to another one, once the grace is over."""

import asyncio
import random
import time
from datetime import timedelta
from typing import Final

from tenure_service.dispatch.hub import Hub
from tenure_service.loops.supervisor import Health
from tenure_service.store.versions import Served
from tenure_service.usecase import versions

POLL_SECONDS: Final = 4.0
#: A pass that comes so late was held up, as all others were: workers may not have been seen.
_LATE_SECONDS: Final = 30.0


async def run(hub: Hub, grace: timedelta, health: Health) -> None:
    """Looks every few seconds, where this server has workers with workflows; else never asks.

    The grace is also that of this server: while none was there, or the database was away, which
    ends the loop and starts it again, workers that live were not seen either.
    """
    seconds = grace.total_seconds()
    pause = min(POLL_SECONDS, seconds / 4)
    since = passed_at = time.monotonic()
    while True:
        served = sorted(_served(hub))
        if served:
            await asyncio.to_thread(versions.touch, hub.database, served)
        now = time.monotonic()
        if now - passed_at > _LATE_SECONDS:
            since = now
        passed_at = now
        if served and now - since > seconds:
            ranks = await asyncio.to_thread(
                versions.adopt, hub.database, hub.catalogue, served, grace
            )
            if ranks:
                await hub.readied(ranks, anywhere=True)
        health.succeeded()
        await asyncio.sleep(pause * random.uniform(0.8, 1.2))  # noqa: S311 - out of step


def _served(hub: Hub) -> set[Served]:
    return {
        Served(one.namespace_id, handler.queue, handler.name, version)
        for one in hub.leaser.sessions.values()
        for handler in one.workflows
        for version in handler.versions
    }
