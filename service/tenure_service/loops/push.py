"""Sends measures to an OpenTelemetry collector, as often as its variables say."""

import asyncio
from collections.abc import Awaitable, Callable

from tenure_service.loops.supervisor import Health
from tenure_service.telemetry import otlp


async def run(push: otlp.Push, renew: Callable[[], Awaitable[None]], health: Health) -> None:
    """Runs until it is cancelled; a collector that is away is said by the exporter."""
    while True:
        await asyncio.sleep(otlp.interval_seconds())
        await renew()
        if await asyncio.to_thread(push.send):
            health.succeeded()
        else:
            health.stirred()
