"""A run that begins with the steps of another one: what a program sees."""

from tenure import App, AsyncClient, Context, StepKind, Worker
from tests.fix_server import RunningServer


async def test_fork__behind_a_task_and_a_child__goes_on_with_what_they_came_to(
    server: RunningServer,
) -> None:
    app = App("forks", server.address, server.namespace)
    calls: list[str] = []

    @app.task
    def double(number: int) -> int:
        calls.append("double")
        return number * 2

    @app.workflow
    async def half(ctx: Context, number: int) -> int:
        calls.append("half")
        return number // 2

    def add(number: int) -> int:
        calls.append("add")
        return number + 1

    @app.workflow
    async def flow(ctx: Context, number: int) -> int:
        doubled = await ctx.task(double, number)
        halved = await ctx.child(half, doubled)
        return await ctx.step(add, halved)

    client = AsyncClient(server.address, server.namespace)
    async with Worker(app):
        first = await flow.astart(7)
        assert await first.aresult(20) == 8
        last = (await first.asteps())[-1]
        forked = flow.handle(await client.fork_run(first.id, before_step_id=last.id))
        assert await forked.aresult(20) == 8
        steps = await forked.asteps()
        assert calls == ["double", "half", "add", "add"]
        assert [step.kind for step in steps] == [StepKind.TASK, StepKind.CHILD, StepKind.CALL]
        anew = flow.handle(await client.fork_run(first.id))
        assert await anew.aresult(20) == 8
    assert calls == ["double", "half", "add", "add", "double", "half", "add"]
