"""Workflows whose recorded histories stand beside them: every later release must replay these.

Nothing here may change once it is recorded: runs of the users' code outlive releases just so. What
a release adds is a workflow more; `tests.runs.record_histories` records it.
"""

import asyncio
from typing import Any

from tenure import App, Context, Retry, StepFailed, SyncContext, TaskFailed

app = App("histories")


@app.task(retry=Retry(max_attempts=1))
def double(number: int) -> int:
    """Doubles, and refuses what is below zero."""
    if number < 0:
        raise ValueError(f"{number} is below zero")
    return number * 2


def add(number: int, more: int = 1) -> int:
    """Is a step in a thread."""
    return number + more


async def join(*parts: str) -> str:
    """Is a step on the loop."""
    return "-".join(parts)


def refuse(why: str) -> None:
    """Is a step that fails."""
    raise LookupError(why)


@app.workflow
async def steps(ctx: Context, number: int) -> list[Any]:
    """Does steps of all kinds, and reads the clock and what is random in a replay's way."""
    found: list[Any] = [ctx.now().isoformat(), str(ctx.uuid())]
    found.append(await ctx.step(add, number, more=2))
    found.append(await ctx.step(join, "a", str(number)))
    found.append(await ctx.using(name="with options", retry=Retry(2), timeout=30).step(add, 1))
    try:
        await ctx.step(refuse, "no such thing")
    except StepFailed as exc:
        found.append(str(exc))
    found += [ctx.random().random(), str(ctx.uuid()), ctx.now().isoformat()]
    return [*found, await ctx.step(join, "the", "end")]


@app.workflow
async def task(ctx: Context, number: int) -> list[Any]:
    """Has tasks done, of which one fails."""
    found: list[Any] = [await ctx.task(double, number), ctx.now().isoformat()]
    try:
        await ctx.task(double, -number)
    except TaskFailed as exc:
        found += [exc.failure.type, exc.failure.message]
    handle = await ctx.start(double, number + 1)
    found.append(await ctx.step(add, number))
    return [*found, await handle, await handle]


@app.workflow
async def child(ctx: Context, number: int) -> list[Any]:
    """Starts runs, of which each starts one less."""
    if number == 0:
        return [await ctx.task(double, 21)]
    below = await ctx.child(child, number - 1)
    return [number, str(ctx.uuid()), below]


@app.workflow
async def many(ctx: Context, count: int) -> list[Any]:
    """Maps tasks, all at once, some at a time, and with one that fails; then runs."""
    found: list[Any] = [*await ctx.map(double, range(count))]
    found += await ctx.map(double, range(count), limit=2)
    collected = await ctx.map(double, [1, -1, 2], limit=2, on_error="collect")
    found += [each if isinstance(each, int) else type(each).__name__ for each in collected]
    return [*found, *await ctx.map(steps_of_one, [3, 4])]


@app.workflow
async def steps_of_one(ctx: Context, number: int) -> int:
    """Is the child run of `many`."""
    return await ctx.step(add, number)


async def _branch(ctx: Context, name: str, number: int) -> list[Any]:
    before = str(ctx.uuid())
    text = await ctx.step(join, name, before[:4])
    doubled = await ctx.task(double, number)
    return [before, text, doubled, await ctx.step(add, doubled), str(ctx.uuid())]


@app.workflow
async def gather(ctx: Context) -> list[Any]:
    """Runs branches at once, with verbs of its own before, between and after."""
    found: list[Any] = [await ctx.step(add, 1)]
    found += await asyncio.gather(*(_branch(ctx, name, at) for at, name in enumerate("abc")))
    found += await asyncio.gather(ctx.step(add, 5), ctx.task(double, 6), ctx.sleep(0.01))
    return [*found, await ctx.step(add, 7)]


async def _group(ctx: Context, depth: int) -> list[Any]:
    if depth == 0:
        return [await ctx.step(add, depth), await ctx.task(double, 4)]
    async with asyncio.TaskGroup() as group:
        branches = [group.create_task(_group(ctx, depth - 1)) for _ in range(2)]
        own = group.create_task(_branch(ctx, f"depth {depth}", depth))
    return [[each.result() for each in branches], own.result(), await ctx.step(add, depth)]


@app.workflow
async def group(ctx: Context) -> list[Any]:
    """Runs groups of branches within branches."""
    return await _group(ctx, 2)


@app.workflow
async def pause(ctx: Context) -> list[Any]:
    """Sleeps for less than a worker keeps it in memory, and for more."""
    found: list[Any] = [ctx.now().isoformat()]
    await ctx.sleep(0.05)
    found.append(ctx.now().isoformat())
    await ctx.sleep(2.5)
    return [*found, ctx.now().isoformat(), await ctx.step(add, 1)]


@app.workflow
async def first(ctx: Context) -> list[Any]:
    """Goes by what is over first."""
    handles = [await ctx.start(double, number) for number in range(4)]
    winner = await ctx.wait_any(handles)
    found: list[Any] = [handles.index(winner), await winner]
    left = [each for each in handles if each is not winner]
    async for handle in ctx.as_completed(left):
        found += [handles.index(handle), await ctx.step(add, await handle)]
    return found


@app.workflow
async def patched(ctx: Context) -> list[Any]:
    """Takes part in a change, inside a branch, too, and has forgotten another one."""
    found: list[Any] = [await ctx.step(add, 1), await ctx.patch("twice")]
    if found[-1]:
        found.append(await ctx.task(double, 2))
    ctx.deprecate_patch("long ago")

    async def branch() -> list[Any]:
        return [await ctx.patch("in a branch"), await ctx.step(add, 3)]

    return [*found, *await asyncio.gather(branch(), branch())]


@app.workflow
def plain(ctx: SyncContext, number: int) -> list[Any]:
    """Does in threads what the others do on the loop."""
    found: list[Any] = [str(ctx.uuid()), ctx.now().isoformat(), ctx.step(add, number)]

    def branch(name: str) -> list[Any]:
        return [str(ctx.uuid()), ctx.step(join, name, "x"), ctx.task(double, number)]

    branches = [ctx.thread(branch, name) for name in "abc"]
    found += [each.result() for each in branches]
    found += ctx.map(double, range(3), limit=2)
    ctx.sleep(0.01)
    handles = [ctx.start(double, at) for at in range(3)]
    winner = ctx.wait_any(handles)
    found += [handles.index(winner), winner.result()]
    found += [handles.index(each) for each in ctx.as_completed(handles)]
    found += [ctx.patch("plain"), ctx.child(steps_of_one, number), ctx.random().random()]
    try:
        ctx.step(refuse, "nothing")
    except StepFailed as exc:
        found.append(str(exc))
    return [*found, ctx.step(add, 2)]


ARGUMENTS: dict[str, tuple[int, ...]] = {
    "steps": (7,),
    "task": (5,),
    "child": (2,),
    "many": (5,),
    "steps_of_one": (1,),
    "gather": (),
    "group": (),
    "pause": (),
    "first": (),
    "patched": (),
    "plain": (4,),
}
