"""The collector of cycles as a server keeps it."""

import asyncio
import gc
import weakref
from collections.abc import AsyncIterator

import pytest

from tenure_service.loops import garbage
from tests.eventually import eventually_async


class Cycle:
    """Something that only the collector can free."""

    def __init__(self, size: int) -> None:
        self.itself = self
        self.weight = b"x" * size


@pytest.fixture
async def kept() -> AsyncIterator[None]:
    keeping = asyncio.create_task(garbage.run(0.01))
    assert await eventually_async(lambda: not gc.isenabled())
    yield
    keeping.cancel()
    await asyncio.gather(keeping, return_exceptions=True)
    assert gc.isenabled()


def lost(count: int, size: int = 0) -> "weakref.ref[Cycle]":
    """Leaves garbage behind, and gives a way to see whether it is there."""
    cycles = [Cycle(size) for _ in range(count)]
    return weakref.ref(cycles[0])


@pytest.mark.usefixtures("kept")
async def test_garbage__many_objects__are_collected() -> None:
    seen = lost(1_000_000)
    assert await eventually_async(lambda: seen() is None)


@pytest.mark.usefixtures("kept")
async def test_garbage__few_large_objects__are_collected() -> None:
    before = garbage.Size.now()
    if not before.memory_bytes:
        pytest.skip("this system does not tell the memory of a process")
    size = int(before.memory_bytes * 0.6) + 60 * 1024**2
    seen = lost(1, size)
    assert await eventually_async(lambda: seen() is None)
