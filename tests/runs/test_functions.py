"""Workflow functions on a real server with real workers."""

import asyncio
from collections.abc import Callable

import pytest

import tenure
from tenure import App, Context, RunState, SyncContext, Worker
from tests.fix_server import RunningServer


@pytest.fixture
def app(server: RunningServer) -> App:
    return App("runs", server.address, server.namespace)


async def test_start__steps_and_a_task__gives_the_result_and_its_steps(app: App) -> None:
    calls: list[str] = []

    def reserve(order: int) -> str:
        calls.append("reserve")
        return f"stock-{order}"

    @app.task
    def charge(order: int) -> int:
        calls.append("charge")
        return order * 100

    @app.workflow
    async def fulfil(ctx: Context, order: int) -> str:
        stock = await ctx.step(reserve, order)
        paid = await ctx.task(charge, order)
        return f"{stock} paid {paid}"

    async with Worker(app):
        handle = await fulfil.using(key="order-7", attributes={"customer": "c"}).astart(7)
        assert await handle.aresult(20) == "stock-7 paid 700"
        status = await handle.astatus(payloads=True)
        steps = await handle.asteps()
    assert calls == ["reserve", "charge"]
    assert (status.state, status.key, status.step_count) == (RunState.COMPLETED, "order-7", 2)
    assert [(each.id, each.name, each.kind.value) for each in steps] == [
        ("1", "reserve", "CALL"),
        ("2", "charge", "TASK"),
    ]
