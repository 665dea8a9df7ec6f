"""What the tests of the runtime share."""

import asyncio
from collections.abc import AsyncIterator

import pytest

from tenure.workflow import activation


@pytest.fixture(autouse=True)
def soon(monkeypatch: pytest.MonkeyPatch) -> None:
    """Has functions suspended after 5 ms of waiting in place of a second."""
    monkeypatch.setattr(activation, "SUSPEND_AFTER", 0.005)


@pytest.fixture(autouse=True)
async def noiseless() -> AsyncIterator[None]:
    """Fails on what asyncio could only tell the loop's handler of."""
    told: list[dict[str, object]] = []
    asyncio.get_running_loop().set_exception_handler(lambda _, noise: told.append(noise))
    yield
    assert told == []
