"""Waits for a condition that another process or thread brings about."""

import asyncio
import threading
import time
from collections.abc import Callable
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
    deadline = time.monotonic() + seconds
    never = asyncio.Event()
    while not (answer := probe()) and time.monotonic() < deadline:
        try:
            await asyncio.wait_for(never.wait(), _PAUSE_SECONDS)
        except TimeoutError:
            continue
    return answer
