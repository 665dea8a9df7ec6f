"""Runs loops one by one: one that raises is started again after a pause, alone, and counted."""

import asyncio
import logging
import random
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass

from tenure_service.engine.errors import TenureError

_log = logging.getLogger(__name__)

_PAUSE_FIRST_SECONDS = 0.2
_PAUSE_MAX_SECONDS = 10.0


@dataclass(slots=True)
class Health:
    """How one loop fares."""

    name: str
    failure_count: int = 0
    succeeded_at: float | None = None
    last_error: str = ""

    def succeeded(self) -> None:
        """Notes a pass that ended well."""
        self.succeeded_at = time.monotonic()


class Supervisor:
    """Keeps loops running until it is stopped."""

    def __init__(self) -> None:
        self.health: dict[str, Health] = {}
        self._tasks: list[asyncio.Task[None]] = []

    def start(self, name: str, loop: Callable[[Health], Awaitable[None]]) -> None:
        """Runs a loop that never returns by itself; it tells its Health of each pass."""
        health = Health(name)
        self.health[name] = health
        self._tasks.append(
            asyncio.get_running_loop().create_task(self._run(health, loop), name=f"loop-{name}")
        )

    async def stop(self) -> None:
        """Cancels all loops and waits for them."""
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        self._tasks.clear()

    async def _run(self, health: Health, loop: Callable[[Health], Awaitable[None]]) -> None:
        pause = _PAUSE_FIRST_SECONDS
        while True:
            before = health.succeeded_at
            try:
                await loop(health)
            except TenureError as exc:
                _log.warning("loop %s failed and starts again: %s", health.name, exc)
                health.last_error = str(exc)
            except Exception as exc:  # noqa: BLE001 - a loop never ends by itself
                _log.exception("loop %s failed and starts again", health.name)
                health.last_error = repr(exc)
            health.failure_count += 1
            if health.succeeded_at != before:
                pause = _PAUSE_FIRST_SECONDS
            # Jitter keeps replicas that lost one database from coming back in step.
            await asyncio.sleep(pause * random.uniform(0.5, 1.5))  # noqa: S311 - no secret
            pause = min(pause * 2, _PAUSE_MAX_SECONDS)
