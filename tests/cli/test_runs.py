"""`tenure run`: what the commands do to runs, and tell of them, on a real server."""

import asyncio
import contextlib
import json
import textwrap
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
import pytest_asyncio

from tenure import App, AsyncClient, Client, Context, RunState, Worker
from tests.cli.command import Done, run, run_here, running
from tests.eventually import eventually, eventually_awaited
from tests.fix_server import RunningServer

NO_RUN = "01890000-0000-7000-8000-000000000000"


class Desk:
    """Asks a server by commands, and runs an app's workflows beside it."""

    def __init__(self, server: RunningServer) -> None:
        self.server = server
        self.app = App("desk", address=server.address)
        self.client = AsyncClient(server.address)
        self.app.task(name="ship", queue="nobody")(_ship)
        self.app.workflow(name="checkout")(self._checkout)
        self.app.workflow(name="refuse")(_refuse)
        self.app.workflow(name="answer")(_answer)

    async def _checkout(self, ctx: Context, order: int) -> str:
        reservation = await ctx.step(_reserve, order)
        return await ctx.task(self.app.tasks["ship"], reservation)

    async def ask(self, *words: str) -> Done:
        return await run_here("run", *words, "--address", self.server.address)

    async def start(self, *words: str) -> str:
        done = await self.ask("start", *words, "--input", '{"order": 7}')
        assert (done.code, done.err) == (0, "")
        return done.out.strip()

    async def reaches(self, run_id: str, state: RunState) -> None:
        async def there() -> bool:
            return (await self.client.get_run(run_id)).state is state

        assert await eventually_awaited(there, seconds=20), await self.client.get_run(run_id)

    @contextlib.asynccontextmanager
    async def working(self) -> AsyncIterator[None]:
        worker = Worker(self.app, name="w1", queues=["default"])
        await asyncio.to_thread(worker.start)
        try:
            yield
        finally:
            await asyncio.to_thread(worker.close, 5)


def _reserve(order: int) -> str:
    return f"r-{order}"


def _ship(reservation: str) -> str:
    return reservation


async def _answer(ctx: Context, order: int) -> dict[str, str]:
    return {"order": str(order), "run": ctx.run_id}


async def _refuse(ctx: Context, order: int) -> None:
    raise ValueError(f"{ctx.name}: not {order}")


@pytest_asyncio.fixture
async def desk(server: RunningServer) -> Desk:
    return Desk(server)


async def test_start__with_wait__prints_the_id_and_the_result(desk: Desk) -> None:
    words = ("start", "answer", "--input", '{"order": 7}', "--wait", "20")
    async with desk.working():
        done = await desk.ask(*words)
        run_id, output = done.out.splitlines()
        assert done.code == 0
        assert json.loads(output) == {"order": "7", "run": run_id}
        told = json.loads((await desk.ask(*words, "--json")).out)
        assert told["state"] == "COMPLETED"
        assert told["output"]["order"] == "7"


async def test_wait__run_fails__says_why_and_exits_with_1(desk: Desk) -> None:
    run_id = await desk.start("refuse")
    done = await desk.ask("wait", run_id, "--timeout", "0")
    assert done.code == 1
    assert "not over after 0 s; it goes on" in done.err
    async with desk.working():
        done = await desk.ask("wait", run_id)
    assert (done.code, done.out) == (1, "")
    assert "FAILED: ValueError: refuse: not 7" in done.err
    assert f"tenure run show {run_id}" in done.err


async def test_start__key_and_options__are_kept_and_found(desk: Desk) -> None:
    words = ("checkout", "--key", "order-7", "--delay", "1h", "--priority", "5")
    run_id = await desk.start(*words, "--attribute", "customer=c-7", "--attribute", "note=a=b")
    again = await desk.ask("start", *words, "--input", '{"order": 7}')
    assert (again.code, again.out.strip()) == (0, run_id)
    assert "it stood under the key 'order-7' before" in again.err
    taken = await desk.ask("start", *words, "--input", '{"order": 8}')
    assert taken.code == 3
    lines = (await desk.ask("show", "--key", "order-7", "--payloads")).out.splitlines()
    facts = {line.split()[0]: line.split(maxsplit=1)[1] for line in lines}
    assert (facts["id"], facts["state"], facts["key"]) == (run_id, "DELAYED", "order-7")
    assert (facts["attributes"], facts["priority"]) == ("customer=c-7, note=a=b", "5")
    assert facts["input"] == '{"order": 7}'
    other = await desk.start("checkout", "--attribute", "customer=c-8")
    listed = json.loads((await desk.ask("list", "--attribute", "customer=c-8", "--json")).out)
    assert [each["id"] for each in listed] == [other]
    done = await desk.ask("list", "--limit", "1", "--name", "checkout")
    assert other in done.out
    assert run_id not in done.out
    assert "these are the newest 1; --limit shows more" in done.err
    done = await desk.ask("list", "--state", "waiting", "--state", "BLOCKED")
    assert (done.code, done.out, done.err) == (0, "", "no run is WAITING or BLOCKED\n")


async def test_steps__waiting_run__names_its_task_which_names_the_run(desk: Desk) -> None:
    run_id = await desk.start("checkout")
    async with desk.working():
        await desk.reaches(run_id, RunState.WAITING)
        steps = json.loads((await desk.ask("steps", run_id, "--json")).out)
        workers = await run_here("worker", "list", "--address", desk.server.address)
    assert [(each["id"], each["kind"], each["output"]) for each in steps] == [
        ("1", "CALL", "r-7"),
        ("2", "TASK", None),
    ]
    heading, first, second = (await desk.ask("steps", run_id)).out.splitlines()
    assert heading.split()[:4] == ["STEP", "NAME", "KIND", "CHILD"]
    assert first.split()[:3] == ["1", "_reserve", "CALL"]
    assert steps[1]["child_id"] in second
    got = await run_here("task", "get", steps[1]["child_id"], "--address", desk.server.address)
    facts = {line.split()[0]: line.split(maxsplit=1)[1] for line in got.out.splitlines()[:3]}
    assert facts["run"] == run_id
    assert "checkout (workflow on default)" in workers.out
    assert "ship (default)" in workers.out


async def test_cancel__one_unknown__ends_the_other_and_exits_with_1(desk: Desk) -> None:
    run_id = await desk.start("checkout")
    done = await desk.ask("cancel", run_id, NO_RUN, "--reason", "wrong customer")
    assert (done.code, done.out) == (1, f"{run_id}  CANCELLED\n")
    assert NO_RUN in done.err
    assert "(namespace 'default')" in done.err
    shown = (await desk.ask("show", run_id)).out
    assert "wrong customer" in shown


async def test_resume__run_that_is_not_blocked__is_a_conflict(desk: Desk) -> None:
    run_id = await desk.start("checkout")
    done = await desk.ask("resume", run_id)
    assert (done.code, done.out) == (3, "")
    assert run_id in done.err


async def test_fork__before_a_step__starts_with_those_ahead_of_it(desk: Desk) -> None:
    run_id = await desk.start("checkout")
    async with desk.working():
        await desk.reaches(run_id, RunState.WAITING)
    done = await desk.ask("fork", run_id, "--before", "2")
    assert done.code == 0, done.err
    forked = done.out.strip()
    assert forked != run_id
    steps = json.loads((await desk.ask("steps", forked, "--json")).out)
    assert [each["id"] for each in steps] == ["1"]
    done = await desk.ask("fork", run_id, "--before", "9")
    assert (done.code, done.out) == (1, "")


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (("start", "x", "--attribute", "customer"), "is no NAME=VALUE"),
        (("start", "x", "--attribute", "a=1", "--attribute", "a=2"), "given as '1' and as '2'"),
        (("start", "x", "--input", "[]"), "parameters travel by name"),
        (("start", "x", "--timeout", "0"), "is no time above 0"),
        (("show",), "one of the arguments"),
        (("show", NO_RUN, "--key", "k"), "not allowed with"),
        (("cancel", "me"), "'me' is no id of a run"),
        (("resume", f"{NO_RUN}:{NO_RUN}"), "is no id of a run"),
        (("list", "--state", "READY"), "invalid choice"),
    ],
)
async def test_run__wrong_usage__is_refused_with_2(words: tuple[str, ...], told: str) -> None:
    done = await run_here("run", *words, "--address", "127.0.0.1:1")
    assert done.code == 2, done.err
    assert told in done.err


async def test_show__no_such_run__says_where_it_looked(desk: Desk) -> None:
    done = await desk.ask("show", NO_RUN)
    assert (done.code, done.out) == (1, "")
    assert "(namespace 'default')" in done.err


FLOWS = """
    from pathlib import Path

    from tenure import App, Context, SyncContext

    app = App("flows")

    def reserve(order: int) -> str:
        with Path("done.txt").open("a") as file:
            file.write("x")
        return "r"

    def bill(order: int) -> str:
        return reserve(order)

    @app.task(queue="nobody")
    def ship(order: int) -> str:
        return "s"

    @app.workflow
    async def checkout(ctx: Context, order: int) -> str:
        await ctx.step(reserve, order)
        return await ctx.task(ship, order)

    @app.workflow
    def plain(ctx: SyncContext, order: int) -> str:
        ctx.step(reserve, order)
        return ctx.task(ship, order)
"""


class Folder:
    """A folder with an app whose code changes, and runs that its first form has begun."""

    def __init__(self, server: RunningServer, folder: Path) -> None:
        self.server = server
        self.folder = folder
        self.ids: list[str] = []

    def begin(self) -> None:
        """Lets a worker bring a run of each workflow to where it waits, and stops it."""
        self.write(FLOWS)
        client = Client(self.server.address)
        words = ("worker", "flows:app", "--queue", "default", "--address", self.server.address)
        for name in ("checkout", "plain"):
            args = ("run", "start", name, "--input", '{"order": 7}')
            done = run(*args, "--address", self.server.address)
            self.ids.append(done.out.strip())
        with running(*words, cwd=self.folder) as worker:
            worker.until("serves ship, workflow checkout, workflow plain on queue default")

            def waiting() -> bool:
                found = [client.get_run(each).state for each in self.ids]
                return found == [RunState.WAITING, RunState.WAITING]

            assert eventually(waiting, seconds=20), worker.text
        assert self.done() == "xx"

    def write(self, text: str) -> None:
        (self.folder / "flows.py").write_text(textwrap.dedent(text))

    def done(self) -> str:
        return (self.folder / "done.txt").read_text()

    def check(self, *words: str) -> Done:
        base = ("run", "check", "--app", "flows:app", "--address", self.server.address)
        return run(*base, *words, cwd=self.folder)


@pytest_asyncio.fixture
async def folder(server: RunningServer, tmp_path: Path) -> Folder:
    made = Folder(server, tmp_path)
    await asyncio.to_thread(made.begin)
    return made


async def test_check__code_that_fits__runs_nothing_and_exits_with_0(folder: Folder) -> None:
    done = await asyncio.to_thread(folder.check)
    assert (done.code, done.out) == (0, ""), done.err
    assert done.err == "2 open runs of flows checked: no that the code does not fit\n"


async def test_check__code_that_goes_on_differently__stops_before_what_is_new(
    folder: Folder,
) -> None:
    # While it waits for the task, the code comes to a step that nothing is recorded of.
    changed = FLOWS.replace("return await ctx.task(ship, order)", "return await more(ctx, order)")
    changed += """
    async def more(ctx: Context, order: int) -> str:
        first = ctx.task(ship, order)
        await ctx.step(reserve, order)
        return await first
    """
    folder.write(changed)
    done = await asyncio.to_thread(folder.check)
    assert (done.code, done.out) == (0, ""), done.err
    assert folder.done() == "xx"
    steps = Client(folder.server.address).list_run_steps
    assert len((await asyncio.to_thread(steps, folder.ids[0])).items) == 2


async def test_check__other_step_in_its_place__names_run_step_names_and_line(
    folder: Folder,
) -> None:
    folder.write(FLOWS.replace("ctx.step(reserve, order)", "ctx.step(bill, order)"))
    done = await asyncio.to_thread(folder.check)
    assert done.code == 1
    lines = sorted(done.out.splitlines())
    assert [line.split()[:2] for line in lines] == [
        [folder.ids[0], "checkout"],
        [folder.ids[1], "plain"],
    ]
    assert "step '1' is recorded as CALL 'reserve', and the code asks for CALL 'bill'" in lines[0]
    assert f"{folder.folder / 'flows.py'}:22, in checkout" in lines[0]
    assert f"{folder.folder / 'flows.py'}:27, in plain" in lines[1]
    assert folder.done() == "xx"
    client = Client(folder.server.address)
    found = [await asyncio.to_thread(client.get_run, each) for each in folder.ids]
    assert [each.state for each in found] == [RunState.WAITING, RunState.WAITING]
    one = await asyncio.to_thread(folder.check, "--name", "plain", "--json")
    told = json.loads(one.out)
    assert (one.code, told["checked"]) == (1, 1)
    assert [each["id"] for each in told["mismatches"]] == [folder.ids[1]]
    missing = await asyncio.to_thread(folder.check, "--name", "chekcout")
    assert missing.code == 2
    assert "no workflow 'chekcout': it has checkout, plain" in missing.err


async def test_check__runs_that_the_code_is_not_given__are_left_out(folder: Folder) -> None:
    changed = FLOWS.replace("ctx.step(reserve, order)", "ctx.step(bill, order)")
    folder.write(changed.replace("@app.workflow", '@app.workflow(versioning="pinned")'))
    pinned = await asyncio.to_thread(folder.check)
    assert (pinned.code, pinned.out) == (0, "")
    assert pinned.err.startswith("0 open runs of flows checked")
    folder.write(changed)
    client = AsyncClient(folder.server.address)
    await client.cancel_runs(folder.ids[:1], grace=600)
    cancelled = await asyncio.to_thread(folder.check)
    assert (cancelled.code, cancelled.out.split()[:2]) == (1, [folder.ids[1], "plain"])
    assert cancelled.err.startswith("1 open run of flows checked: 1 that")


async def test_check__code_that_raises__is_a_remark(folder: Folder) -> None:
    raising = 'raise ValueError("no")'
    folder.write(FLOWS.replace("return ctx.task(ship, order)", raising))
    done = await asyncio.to_thread(folder.check)
    assert (done.code, done.out) == (0, "")
    assert f"{folder.ids[1]}  plain  fits its record, and would fail: ValueError: no" in done.err
