"""Handlers of the measurements, on an app for one address."""

import time
from typing import NamedTuple

from tenure import App, Context, SyncTask, Workflow


class Bench(NamedTuple):
    """An app and its tasks."""

    app: App
    noop: SyncTask[[int], None]
    nap: SyncTask[[float], None]
    one_step: Workflow[[int], int]
    ten_steps: Workflow[[int], int]
    mapping: Workflow[[int], int]
    sleeper: Workflow[[float], None]
    long_history: Workflow[[int], int]


def make(address: str) -> Bench:
    """Makes the app of a server."""
    app = App("bench", address=address)

    @app.task
    def noop(number: int) -> None:
        """Does nothing."""

    @app.task
    def nap(seconds: float) -> None:
        """Takes its time."""
        time.sleep(seconds)

    def same(number: int) -> int:
        return number

    async def asame(number: int) -> int:
        return number

    @app.workflow
    async def one_step(ctx: Context, number: int) -> int:
        """Does one step."""
        return await ctx.step(asame, number)

    @app.workflow
    async def ten_steps(ctx: Context, number: int) -> int:
        """Does ten steps, one after the other."""
        for _ in range(10):
            number = await ctx.step(asame, number)
        return number

    @app.workflow
    async def mapping(ctx: Context, count: int) -> int:
        """Has many tasks done, and waits for all."""
        return len(await ctx.map(noop, range(count)))

    @app.workflow
    async def sleeper(ctx: Context, seconds: float) -> None:
        """Sleeps."""
        await ctx.sleep(seconds)

    @app.workflow
    async def long_history(ctx: Context, count: int) -> int:
        """Does many steps, and sleeps before the last."""
        for number in range(count):
            await ctx.step(asame, number)
        await ctx.sleep(86_400)
        return await ctx.step(same, count)

    return Bench(app, noop, nap, one_step, ten_steps, mapping, sleeper, long_history)
