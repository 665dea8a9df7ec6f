"""Slow upkeep: partitions ahead of time, and forgetting what is out of force."""

import asyncio
import random

from tenure_service.dispatch.hub import Hub
from tenure_service.loops.supervisor import Health
from tenure_service.usecase import maintain

PARTITION_SECONDS = 3600.0
FORGET_SECONDS = 60.0
#: Open streams of a revoked key end within twice this time.
KEYS_SECONDS = 4.0


def _jittered(seconds: float) -> float:
    return seconds * random.uniform(0.8, 1.2)  # noqa: S311 - keeps replicas out of step


async def keys(hub: Hub, health: Health) -> None:
    """Looks for keys that have ended, every few seconds."""
    while True:
        await hub.check_keys()
        health.succeeded()
        await asyncio.sleep(_jittered(KEYS_SECONDS))


async def partitions(hub: Hub, health: Health) -> None:
    """Creates partitions ahead, every hour."""
    while True:
        await asyncio.to_thread(maintain.ensure_partitions, hub.database)
        health.succeeded()
        await asyncio.sleep(_jittered(PARTITION_SECONDS))


async def forget(hub: Hub, health: Health) -> None:
    """Forgets old requests, keys and sessions, every minute."""
    while True:
        await asyncio.sleep(_jittered(FORGET_SECONDS))
        hub.leaser.forget_lanes()
        await asyncio.to_thread(maintain.forget, hub.database)
        health.succeeded()
