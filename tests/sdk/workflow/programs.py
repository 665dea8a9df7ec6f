"""Random workflow functions, for both kinds of workflows: trees of verbs and branches."""

import asyncio
import random
from collections.abc import Callable
from typing import Any, TypeAlias

from tenure.workflow.context import Context
from tenure.workflow.sync_context import SyncContext
from tests.sdk.workflow import storage

Program: TypeAlias = tuple[Any, ...]

LEAVES = ("call", "call", "async", "fail", "task", "map", "pause", "any", "completed", "patch")
NODES = ("line", "gather", "group")


def make(source: random.Random, depth: int = 3) -> Program:
    """Makes a program."""
    if depth == 0 or source.random() < 0.35:
        return (source.choice(LEAVES), source.randrange(1000), source.randrange(1, 5))
    kind = source.choice(NODES)
    return (kind, *(make(source, depth - 1) for _ in range(source.randrange(1, 4))))


def workflow(program: Program, timing: random.Random, ran: list[str]) -> Callable[..., Any]:
    """Makes an `async def` workflow that does what a program says."""

    async def flow(ctx: Context) -> Any:
        return await _do(ctx, program, timing, ran)

    return flow


def threaded(program: Program, ran: list[str]) -> Callable[..., Any]:
    """Makes a `def` workflow that does the same, with threads for branches."""

    def flow(ctx: SyncContext) -> Any:
        return _do_blocking(ctx, program, ran)

    return flow


async def _do(ctx: Context, program: Program, timing: random.Random, ran: list[str]) -> Any:
    kind, *parts = program
    await storage.some_turns(timing)
    if kind == "line":
        return [await _do(ctx, part, timing, ran) for part in parts]
    if kind == "gather":
        return await asyncio.gather(*(_do(ctx, part, timing, ran) for part in parts))
    if kind == "group":
        async with asyncio.TaskGroup() as group:
            tasks = [group.create_task(_do(ctx, part, timing, ran)) for part in parts]
        return [task.result() for task in tasks]
    label, count = parts
    if kind in {"call", "async", "fail"}:

        def step(value: int) -> int:
            ran.append(f"{label}")
            if kind == "fail":
                raise ValueError(value)
            return value + 1

        async def slow_step(value: int) -> int:
            await storage.some_turns(timing)
            return step(value)

        try:
            verb = ctx.using(name=f"step-{label}")
            return await (
                verb.step(slow_step, label) if kind == "async" else verb.step(step, label)
            )
        except Exception as exc:  # noqa: BLE001 - what is raised is the result
            return f"{type(exc).__name__}: {exc}"
    return await _wait(ctx, kind, label, count)


async def _wait(ctx: Context, kind: str, label: int, count: int) -> Any:
    if kind == "task":
        return [await ctx.task(storage.add, label), str(ctx.uuid())]
    if kind == "map":
        return await ctx.map(storage.add, range(label, label + count), limit=2)
    if kind == "pause":
        await ctx.sleep(label / 50_000)
        return ctx.random().random()
    if kind == "patch":
        return await ctx.patch(f"patch-{label}")
    handles = [await ctx.start(storage.add, label + each) for each in range(count)]
    if kind == "any":
        winner = await ctx.wait_any(handles)
        return [handles.index(winner), await winner]
    return [await handle async for handle in ctx.as_completed(handles)]


def _do_blocking(ctx: SyncContext, program: Program, ran: list[str]) -> Any:
    kind, *parts = program
    if kind == "line":
        return [_do_blocking(ctx, part, ran) for part in parts]
    if kind in {"gather", "group"}:
        branches = [ctx.thread(_do_blocking, ctx, part, ran) for part in parts]
        return [branch.result() for branch in branches]
    label, count = parts
    if kind in {"call", "async", "fail"}:

        def step(value: int) -> int:
            ran.append(f"{label}")
            if kind == "fail":
                raise ValueError(value)
            return value + 1

        try:
            return ctx.using(name=f"step-{label}").step(step, label)
        except Exception as exc:  # noqa: BLE001 - what is raised is the result
            return f"{type(exc).__name__}: {exc}"
    if kind == "task":
        return [ctx.task(storage.add, label), str(ctx.uuid())]
    if kind == "map":
        return ctx.map(storage.add, range(label, label + count), limit=2)
    if kind == "pause":
        ctx.sleep(label / 50_000)
        return ctx.random().random()
    if kind == "patch":
        return ctx.patch(f"patch-{label}")
    handles = [ctx.start(storage.add, label + each) for each in range(count)]
    if kind == "any":
        winner = ctx.wait_any(handles)
        return [handles.index(winner), winner.result()]
    return [handle.result() for handle in ctx.as_completed(handles)]
