"""Runs loops one by one: one that raises is started again after a pause, alone, and counted."""

import asyncio
import logging
import random
import time
from collections.abc import Awaitable, Callable, Iterator
from dataclasses import dataclass, field

from tenure_service.engine.errors import TenureError
from tenure_service.telemetry import metrics
from tenure_service.telemetry.instruments import Observed

_log = logging.getLogger(__name__)

_PAUSE_FIRST_SECONDS = 0.2
_PAUSE_MAX_SECONDS = 10.0
#: A pass ends at the latest with its statements, which PostgreSQL ends after a minute each.
_STUCK_SECONDS = 180.0
#: Of a loop that fails at every try: often enough to see that it goes on. While PostgreSQL is away
#: a handful of loops fail every few seconds, which hides what else is said.
_TELL_SECONDS = 30.0


class Trouble:
    """Tells the log of a loop that fails: the first time, how often it did since, and the end."""

    def __init__(self, name: str, clock: Callable[[], float] = time.monotonic) -> None:
        self._name = name
        self._clock = clock
        self._count = 0
        self._since = self._told_at = 0.0
        #: Told since it began: another error beside the expected one must not be overlooked.
        self._kinds: set[object] = set()

    def failed(self, error: Exception) -> None:
        """Notes a failure, inside the handler of its exception."""
        now = self._clock()
        if not self._count:
            self._since = self._told_at = now
        self._count += 1
        expected = isinstance(error, TenureError)
        kind = error.reason if isinstance(error, TenureError) else type(error)
        if kind not in self._kinds:
            self._kinds.add(kind)
            if expected:
                _log.warning("loop %s failed and starts again: %s", self._name, error)
            else:
                _log.exception("loop %s failed and starts again", self._name)
        elif now - self._told_at >= _TELL_SECONDS:
            self._told_at = now
            _log.warning(
                "loop %s has failed %d times in %.0f s, and starts again: %s",
                self._name,
                self._count,
                now - self._since,
                error if expected else repr(error),
            )

    def over(self) -> None:
        """Notes that the loop works."""
        if not self._count:
            return
        seconds = self._clock() - self._since
        _log.warning(
            "loop %s works again; it failed %d times in %.0f s", self._name, self._count, seconds
        )
        self._count = 0
        self._kinds.clear()


@dataclass(slots=True)
class Health:
    """How one loop fares."""

    name: str
    #: The pause between its passes; None for a loop that waits for something to do.
    every_seconds: float | None = None
    failure_count: int = 0
    succeeded_at: float | None = None
    #: When it last showed that it lives, well or not.
    stirred_at: float = field(default_factory=time.monotonic)
    last_error: str = ""
    trouble: Trouble = field(init=False)

    def __post_init__(self) -> None:
        """Begins without trouble."""
        self.trouble = Trouble(self.name)

    def succeeded(self) -> None:
        """Notes a pass that ended well."""
        self.succeeded_at = self.stirred_at = time.monotonic()
        if self.every_seconds is not None:
            self.trouble.over()

    def stirred(self) -> None:
        """Notes a pass that could not end well, and is no sign of a loop that hangs."""
        self.stirred_at = time.monotonic()


class Supervisor:
    """Keeps loops running until it is stopped."""

    def __init__(self) -> None:
        self.health: dict[str, Health] = {}
        self._began_at = time.monotonic()
        self._tasks: list[asyncio.Task[None]] = []

    def start(
        self,
        name: str,
        loop: Callable[[Health], Awaitable[None]],
        *,
        every_seconds: float | None = None,
    ) -> None:
        """Runs a loop that never returns by itself; it tells its Health of each pass."""
        health = Health(name, every_seconds)
        self.health[name] = health
        self._tasks.append(
            asyncio.get_running_loop().create_task(self._run(health, loop), name=f"loop-{name}")
        )

    def stuck(self, since: float) -> list[str]:
        """Names the loops that hang: nothing was heard of them for longer than any pass may take.

        Args:
            since: Monotonic time from which on the database has answered; who waits for it does
                not hang.
        """
        now = time.monotonic()
        return [
            name
            for name, health in self.health.items()
            if health.every_seconds is not None
            and now - max(health.stirred_at, since) > health.every_seconds * 1.5 + _STUCK_SECONDS
        ]

    def observe(self) -> Iterator[Observed]:
        """Tells how long ago each loop did its work."""
        now = time.monotonic()
        for name, health in self.health.items():
            if health.every_seconds is not None:
                at = self._began_at if health.succeeded_at is None else health.succeeded_at
                yield metrics.LOOP_AGE, now - at, (name,)
            yield metrics.LOOP_FAILURES, health.failure_count, (name,)

    async def stop(self) -> None:
        """Cancels all loops and waits for them."""
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        self._tasks.clear()

    async def _run(self, health: Health, loop: Callable[[Health], Awaitable[None]]) -> None:
        pause = _PAUSE_FIRST_SECONDS
        running = asyncio.get_running_loop()
        while True:
            before, began_at = health.succeeded_at, time.monotonic()
            # A loop without passes works if it goes on for longer than a try to connect takes.
            settled = None
            if health.every_seconds is None:
                settled = running.call_later(_PAUSE_MAX_SECONDS, health.trouble.over)
            try:
                await loop(health)
            except Exception as exc:  # noqa: BLE001 - a loop never ends by itself
                health.trouble.failed(exc)
                health.last_error = str(exc) if isinstance(exc, TenureError) else repr(exc)
            finally:
                if settled is not None:
                    settled.cancel()
            health.failure_count += 1
            health.stirred()
            # One that only ever begins, such as listening while PostgreSQL is away, did no work.
            if health.succeeded_at != before and time.monotonic() - began_at > _PAUSE_MAX_SECONDS:
                pause = _PAUSE_FIRST_SECONDS
            # Jitter keeps replicas that lost one database from coming back in step.
            await asyncio.sleep(pause * random.uniform(0.5, 1.5))  # noqa: S311 - no secret
            pause = min(pause * 2, _PAUSE_MAX_SECONDS)
