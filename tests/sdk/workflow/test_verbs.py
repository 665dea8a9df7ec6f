"""What each verb does, the first time and on replay."""

import asyncio
import contextlib
import datetime
import json
import logging
from dataclasses import dataclass
from typing import Any

import pydantic
import pytest

from tenure import NonRetryable, Retry, TaskCancelled, TaskFailed, TaskTimedOut
from tenure.errors import RunFailed, StepFailed
from tenure.v1 import run_pb2
from tenure.workflow.context import Context
from tenure.workflow.sync_context import SyncContext
from tests.sdk.workflow.storage import EPOCH, Flow, Storage, add


@dataclass
class Point:
    x: int
    y: int


class Model(pydantic.BaseModel):
    at: datetime.datetime
    raw: bytes


class CardDeclined(Exception):
    """What a step of a user raises."""


def one() -> int:
    return 1


def other() -> int:
    return 2


async def replayed(storage: Storage, function: Any) -> Any:
    """The output of a run that starts from the top once all is recorded."""
    before = dict(storage.sent)
    output = storage.output(await storage.run(Flow(function)))
    assert storage.sent == before
    return output


async def test_step__typed_values__are_of_the_same_type_on_replay() -> None:
    async def point() -> Point:
        return Point(1, 2)

    def model() -> Model:
        return Model(at=EPOCH, raw=b"raw")

    def untyped():  # type: ignore[no-untyped-def] # noqa: ANN202 - what the test is about
        return (1, 2)

    async def flow(ctx: Context) -> list[str]:
        values = [await ctx.step(point), await ctx.step(model), await ctx.step(untyped)]
        return [repr(value) for value in values]

    storage = Storage()
    first = storage.output(await storage.run(Flow(flow)))
    assert first[0] == "Point(x=1, y=2)"
    assert first[2] == "[1, 2]"
    assert await replayed(storage, flow) == first


async def test_step__raises__is_caught_alike_on_the_first_run_and_on_replay() -> None:
    causes, stacks = [], []

    def charge() -> None:
        raise CardDeclined("no money")

    async def flow(ctx: Context) -> list[str]:
        try:
            await ctx.step(charge)
        except StepFailed as exc:
            causes.append(exc.__cause__)
            stacks.append(exc.failure.stack)
            return [exc.name, exc.type, exc.message]
        return []

    storage = Storage()
    first = storage.output(await storage.run(Flow(flow)))
    assert first == ["charge", "CardDeclined", "no money"]
    assert await replayed(storage, flow) == first
    assert all("CardDeclined: no money" in stack for stack in stacks)
    assert [type(cause) for cause in causes] == [CardDeclined, type(None)]


@pytest.mark.parametrize("is_async", [True, False])
async def test_step__with_retries__tries_again_in_memory_and_records_once(
    *, is_async: bool
) -> None:
    attempts = []

    def flaky() -> int:
        attempts.append(1)
        if len(attempts) < 3:
            raise ConnectionError("again")
        return len(attempts)

    async def flaky_async() -> int:
        return flaky()

    async def flow(ctx: Context) -> int:
        verb = ctx.using(retry=Retry(5, initial_delay=0.001), name="flaky")
        return await verb.step(flaky_async if is_async else flaky)

    storage = Storage()
    assert storage.output(await storage.run(Flow(flow))) == 3
    assert storage.record_count == 1
    assert storage.steps["1"].name == "flaky"


@pytest.mark.parametrize(
    ("retry", "raised", "count"),
    [
        (None, ConnectionError, 1),
        (Retry(3, initial_delay=0), ConnectionError, 3),
        (Retry(3, initial_delay=0), NonRetryable, 1),
        (Retry(3, initial_delay=0, unless=[ConnectionError]), ConnectionRefusedError, 1),
        (Retry(3, initial_delay=0, unless=["OSError"]), OSError, 1),
        (Retry(initial_delay=0), OSError, 3),
    ],
)
async def test_step__always_raises__is_attempted_as_often_as_the_options_say(
    retry: Retry | None, raised: type[Exception], count: int
) -> None:
    attempts = []

    def failing() -> None:
        attempts.append(1)
        raise raised

    async def flow(ctx: Context) -> None:
        await ctx.using(retry=retry).step(failing)

    result = await Storage().run(Flow(flow))
    assert result.failed.failure.type == "StepFailed"
    assert result.failed.failure.cause.type == raised.__name__
    assert len(attempts) == count


async def test_step__takes_longer_than_its_timeout__has_failed() -> None:
    async def endless() -> None:
        await asyncio.Event().wait()

    async def flow(ctx: Context) -> str:
        try:
            await ctx.using(timeout=0.01).step(endless)
        except StepFailed as exc:
            return exc.type
        return ""

    storage = Storage()
    assert storage.output(await storage.run(Flow(flow))) == "TimeoutError"


async def test_step__result_that_json_cannot_carry__has_failed_and_is_recorded() -> None:
    def odd() -> float:
        return float("nan")

    async def flow(ctx: Context) -> str:
        try:
            await ctx.step(odd)
        except StepFailed as exc:
            return exc.type
        return ""

    storage = Storage()
    assert storage.output(await storage.run(Flow(flow))) == "ValueRefused"
    assert await replayed(storage, flow) == "ValueRefused"


async def test_replay__another_name_or_kind__is_blocked_and_records_nothing() -> None:
    async def flow(ctx: Context) -> None:
        await ctx.step(one)
        await ctx.task(add, 1)

    async def renamed(ctx: Context) -> None:
        await ctx.step(other)

    async def swapped(ctx: Context) -> None:
        await ctx.step(one)
        with contextlib.suppress(BaseException):
            await ctx.sleep(5)
        with contextlib.suppress(BaseException):
            await ctx.step(other)

    async def inside(ctx: Context) -> None:
        await ctx.step(one)
        await ctx.step(add, 1)

    storage = Storage()
    await storage.run(Flow(flow))
    before = dict(storage.sent)
    result = await storage.run(Flow(renamed))
    failure = result.blocked.failure
    assert failure.type == "HistoryMismatch"
    line = f"{__file__}:{renamed.__code__.co_firstlineno + 1}, in renamed"
    for part in ("step '1'", "CALL 'one'", "CALL 'other'", line):
        assert part in failure.message
    result = await storage.run(Flow(swapped))
    for part in ("step '2'", "TASK 'add'", "SLEEP 'sleep'"):
        assert part in result.blocked.failure.message
    result = await storage.run(Flow(inside))
    assert "CALL 'add'" in result.blocked.failure.message
    assert storage.sent == before


async def test_replay__recorded_value_does_not_fit_any_more__is_blocked() -> None:
    async def flow(ctx: Context) -> None:
        await ctx.step(one)

    async def changed(ctx: Context) -> None:
        def one() -> Point:
            return Point(1, 2)

        await ctx.step(one)

    storage = Storage()
    await storage.run(Flow(flow))
    result = await storage.run(Flow(changed))
    assert "does not fit" in result.blocked.failure.message


async def test_decode__arguments_do_not_fit__fails_at_first_and_blocks_a_run_that_has_begun() -> (
    None
):
    async def flow(ctx: Context, value: int) -> None:
        await ctx.step(one)

    async def changed(ctx: Context, text: str) -> None:
        await ctx.step(one)

    storage = Storage(arguments=b'{"value": 1}')
    result = await storage.run(Flow(changed))
    assert result.failed.failure.type == "ArgumentsRefused"
    await storage.run(Flow(flow))
    result = await storage.run(Flow(changed))
    assert result.blocked.failure.type == "ArgumentsRefused"


@pytest.mark.parametrize(
    ("ending", "expected"),
    [("ValueError", TaskFailed), ("Cancelled", TaskCancelled), ("TimedOut", TaskTimedOut)],
)
async def test_task__over_without_output__raises_as_a_handle_does(
    ending: str, expected: type[Exception]
) -> None:
    async def flow(ctx: Context) -> str:
        try:
            await ctx.task(add, 1)
        except (TaskFailed, TaskCancelled, TaskTimedOut) as exc:
            return f"{type(exc).__name__} {exc.task_id} {exc.failure and exc.failure.type}"
        return ""

    storage = Storage()
    storage.outcomes["child-1"] = lambda _: ending
    first = storage.output(await storage.run(Flow(flow)))
    assert first == f"{expected.__name__} child-1 {ending}"
    assert await replayed(storage, flow) == first


async def test_task__with_options__is_sent_with_them_and_refuses_a_key() -> None:
    async def flow(ctx: Context) -> int:
        return await ctx.task(add.using(priority=7, lane="a", delay=3, retry=Retry(9)), 1, more=2)

    async def keyed(ctx: Context) -> int:
        return await ctx.task(add.using(key="a"), 1)

    storage = Storage()
    assert storage.output(await storage.run(Flow(flow))) == 3
    task = storage.sent["1"].task
    assert (task.priority, task.lane, task.delay.seconds) == (7, "a", 3)
    assert task.policy.retry.max_attempts == 9
    assert json.loads(task.input.data) == {"value": 1, "more": 2}
    result = await Storage().run(Flow(keyed))
    assert "takes no key" in result.failed.failure.message


async def test_child__a_workflow__is_started_and_awaited() -> None:
    async def ship(ctx: Context, order: int) -> int:
        raise AssertionError("another worker runs it")

    shipping = Flow(ship, "ship")

    async def flow(ctx: Context) -> list[Any]:
        handle = await ctx.start(shipping, 4)
        try:
            await ctx.child(shipping, order=1)
        except RunFailed as exc:
            return [await handle, exc.run_id, exc.failure.type]
        return []

    storage = Storage()
    storage.outcomes["child-2"] = lambda _: "OutOfPaper"
    assert storage.output(await storage.run(Flow(flow))) == [4, "child-2", "OutOfPaper"]
    assert storage.sent["1"].child.name == "ship"
    assert storage.steps["1"].kind == run_pb2.STEP_KIND_CHILD


@pytest.mark.parametrize("limit", [None, 1, 3])
async def test_map__one_fails__raises_the_first_by_order_on_each_replay(limit: int | None) -> None:
    async def flow(ctx: Context) -> str:
        try:
            await ctx.map(add, range(8), limit=limit)
        except TaskFailed as exc:
            return exc.task_id
        return ""

    storage = Storage()
    for child_id in ("child-1.3", "child-1.5"):
        storage.outcomes[child_id] = lambda _: "Broken"
    assert storage.output(await storage.run(Flow(flow))) == "child-1.3"
    assert await replayed(storage, flow) == "child-1.3"
    started = [step_id for step_id in storage.steps if step_id.startswith("1.")]
    if limit == 1:
        assert len(started) == 3


async def test_map__collecting__gives_errors_in_place() -> None:
    async def flow(ctx: Context) -> list[Any]:
        found = await ctx.map(add, range(4), limit=2, on_error="collect")
        return [each if isinstance(each, int) else type(each).__name__ for each in found]

    storage = Storage()
    storage.outcomes["child-1.2"] = lambda _: "Broken"
    assert storage.output(await storage.run(Flow(flow))) == [0, "TaskFailed", 2, 3]


async def test_map__nothing_or_very_many__is_recorded_in_few_messages() -> None:
    async def flow(ctx: Context) -> int:
        assert await ctx.map(add, []) == []
        return sum(await ctx.map(add, range(2500)))

    storage = Storage()
    assert storage.output(await storage.run(Flow(flow))) == sum(range(2500))
    assert storage.record_count == 3


async def test_gather__many_steps_of_one_moment__share_a_message() -> None:
    async def flow(ctx: Context) -> list[int]:
        return await asyncio.gather(*(ctx.task(add, value) for value in range(100)))

    storage = Storage()
    assert storage.output(await storage.run(Flow(flow))) == list(range(100))
    assert storage.record_count <= 2
    assert len(storage.waits) == 100


async def test_patch__old_and_new_runs__take_their_own_way() -> None:
    async def before(ctx: Context) -> str:
        await ctx.step(one)
        await ctx.sleep(3600)
        await ctx.step(one)
        return "before"

    async def patched(ctx: Context) -> str:
        early = await ctx.patch("early")
        await ctx.step(other if early else one)
        await ctx.sleep(3600)
        late = await ctx.patch("late")
        await ctx.step(other if late else one)
        return f"{early} {late}"

    async def after(ctx: Context) -> str:
        ctx.deprecate_patch("early")
        await ctx.step(other)
        await ctx.sleep(3600)
        ctx.deprecate_patch("late")
        await ctx.step(other)
        return "after"

    old, new, newest = Storage(), Storage(), Storage()
    await old.activate(Flow(before))
    old.now += 4000
    assert old.output(await old.run(Flow(patched))) == "False True"
    assert await replayed(old, patched) == "False True"
    await new.activate(Flow(patched))
    new.now += 4000
    assert new.output(await new.run(Flow(patched))) == "True True"
    assert await replayed(new, after) == "after"
    assert newest.output(await newest.run(Flow(after))) == "after"
    assert len(newest.steps) == 3


async def test_patch__the_record_goes_on_in_branches_alone__is_not_taken() -> None:
    async def branch(ctx: Context) -> None:
        await ctx.step(one)

    async def before(ctx: Context) -> str:
        await asyncio.gather(branch(ctx), branch(ctx))
        await ctx.sleep(3600)
        return "before"

    async def patched(ctx: Context) -> str:
        took = await ctx.patch("change")
        await asyncio.gather(branch(ctx), branch(ctx))
        await ctx.sleep(3600)
        return str(took)

    storage = Storage()
    storage.kill_at = 2
    storage.kill_before_commit = True
    assert await storage.activate(Flow(before)) is None
    assert sorted(storage.steps) == ["1.1", "2.1"]
    assert storage.output(await storage.run(Flow(patched))) == "False"


async def test_now__replayed__is_the_time_of_the_latest_step_of_the_branch() -> None:
    async def branch(ctx: Context) -> str:
        await ctx.task(add, 1)
        return ctx.now().isoformat()

    async def flow(ctx: Context) -> list[str]:
        found = [ctx.now().isoformat()]
        await ctx.sleep(3600)
        found.append(ctx.now().isoformat())
        found += await asyncio.gather(branch(ctx), branch(ctx))
        await ctx.step(one)
        return [*found, ctx.now().isoformat(), str(ctx.uuid()), str(ctx.random().random())]

    storage = Storage()
    first = storage.output(await storage.run(Flow(flow)))
    assert first[0] == EPOCH.isoformat()
    slept = datetime.datetime.fromisoformat(first[1])
    assert slept == EPOCH + datetime.timedelta(seconds=3600.001)
    assert first[1] < min(first[2:4]) <= max(first[2:4]) < first[4]
    assert await replayed(storage, flow) == first


@pytest.mark.parametrize("blocking", [False, True])
async def test_logger__replayed__is_silent_until_the_place_is_new(
    caplog: pytest.LogCaptureFixture, *, blocking: bool
) -> None:
    async def flow(ctx: Context) -> None:
        ctx.logger.info("first")
        await ctx.sleep(3600)
        ctx.logger.info("second")
        await ctx.step(one)
        ctx.logger.info("third")

    def flow_blocking(ctx: SyncContext) -> None:
        ctx.logger.info("first")
        ctx.sleep(3600)
        ctx.logger.info("second")
        ctx.step(one)
        ctx.logger.info("third")

    storage = Storage()
    with caplog.at_level(logging.INFO, logger="tenure.workflow"):
        await storage.run(Flow(flow_blocking if blocking else flow))
    said = [record for record in caplog.records if record.name == "tenure.workflow"]
    assert [record.getMessage() for record in said] == [
        f"[flow run-1] {text}" for text in ("first", "second", "third")
    ]
    assert storage.activation_count == 2


@pytest.mark.parametrize("verb", ["wait_any", "as_completed"])
async def test_choose__something_else_is_over_first_by_then__gives_the_recorded_one(
    verb: str,
) -> None:
    async def flow(ctx: Context) -> list[int]:
        handles = [await ctx.start(add, value) for value in range(3)]
        if verb == "wait_any":
            first = await ctx.wait_any(handles)
        else:
            first = await anext(ctx.as_completed(handles))
        await ctx.sleep(3600)
        return [handles.index(first), await first]

    storage = Storage()
    storage.held = {"child-1", "child-3"}
    result = await storage.activate(Flow(flow))
    assert result is not None
    assert result.WhichOneof("outcome") == "suspended"
    for child_id in ("child-1", "child-3"):
        storage.finish(child_id)
        storage.over[child_id].ended_at.CopyFrom(storage.instant(0))
    storage.now += 4000
    assert storage.output(await storage.run(Flow(flow))) == [1, 1]
