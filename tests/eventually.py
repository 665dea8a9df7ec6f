"""Waits for a condition that another process or thread brings about."""

import asyncio
import contextlib
import threading
import time
from collections.abc import Awaitable, Callable
from typing import TypeVar

T = TypeVar("T")

_PAUSE_SECONDS = 0.01


def eventually(probe: Callable[[], T], *, seconds: float = 10.0) -> T:
    """Returns the probe's first true answer, or its last one when the time is over."""
    deadline = time.monotonic() + seconds
    never = threading.Event()
    while not (answer := probe()) and time.monotonic() < deadline:
        never.wait(_PAUSE_SECONDS)
    return answer


async def eventually_async(probe: Callable[[], T], *, seconds: float = 10.0) -> T:
    """Does the same, and lets the event loop run meanwhile."""

    async def ask() -> T:
        return probe()

    return await eventually_awaited(ask, seconds=seconds)


async def eventually_awaited(probe: Callable[[], Awaitable[T]], *, seconds: float = 10.0) -> T:
    """Does the same for a probe that has to wait for its answer itself."""
    deadline = time.monotonic() + seconds
    while not (answer := await probe()) and time.monotonic() < deadline:
        await time_passes(seconds=_PAUSE_SECONDS)
    return answer


async def time_passes(*, seconds: float) -> None:
    """Waits for nothing: for tests of what goes on, or must not happen, in a stretch of time."""
    with contextlib.suppress(TimeoutError):
        await asyncio.wait_for(asyncio.Event().wait(), seconds)
