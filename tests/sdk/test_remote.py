"""Stubs of tasks that another program handles: typed calls without the handler's code."""

import dataclasses
import math
from collections.abc import Callable
from typing import Any, NotRequired

import pydantic
import pytest
from typing_extensions import TypedDict

import tenure
from tenure import App, HandlerRefused, Retry, Timeouts, Worker
from tenure.remote import RemoteShape
from tests.fix_server import RunningServer


@dataclasses.dataclass
class Order:
    id: int
    item: str = "lamp"


class OrderModel(pydantic.BaseModel):
    id: int
    item: str = "lamp"


class OrderDict(TypedDict):
    id: int
    item: NotRequired[str]


class Label(pydantic.BaseModel):
    text: str


KINDS = [Order, OrderModel, OrderDict]


@dataclasses.dataclass
class Programs:
    """Two programs that share a server and nothing else."""

    sender: App
    other: App
    attempts: list[tuple[int, int]]


@pytest.fixture
def programs(server: RunningServer) -> Programs:
    sender = App("sender", server.address, server.namespace)
    other = App("other", server.address, server.namespace)
    attempts: list[tuple[int, int]] = []

    @other.task(queue="shipping")
    def ship(id: int, item: str = "chair") -> dict[str, str]:  # noqa: A002 - a name on the wire
        task = tenure.current_task()
        attempts.append((task.attempt, task.max_attempts))
        return {"text": f"{id}: {item}"}

    return Programs(sender, other, attempts)


async def test_enqueue__handler_in_another_program__is_typed_both_ways(programs: Programs) -> None:
    ship = programs.sender.remote("ship", input=Order, output=Label, queue="shipping")
    async with Worker(programs.other):
        assert await (await ship.aenqueue(Order(17))) == Label(text="17: lamp")
        handles = await ship.aenqueue_many([(Order(1, "a"),), {"id": 2, "item": "b"}])
        assert [await each for each in handles] == [Label(text="1: a"), Label(text="2: b")]
        again = ship.handle(handles[0].id)
        assert await again.aresult(20) == Label(text="1: a")
        keyed = await ship.using(key="k", retry=Retry(7)).aenqueue(Order(3))
        assert (await keyed).text == "3: lamp"
    assert programs.attempts[-1] == (1, 7)
    assert not programs.sender.tasks


async def test_enqueue__no_types__takes_and_gives_any_json(programs: Programs) -> None:
    ship = programs.sender.remote("ship", queue="shipping")
    async with Worker(programs.other):
        assert await (await ship.aenqueue(id=5)) == {"text": "5: chair"}


async def test_result__not_of_the_output__is_refused(programs: Programs) -> None:
    ship = programs.sender.remote("ship", input=Order, output=int, queue="shipping")
    async with Worker(programs.other):
        handle = await ship.aenqueue(Order(1))
        with pytest.raises(tenure.ValueRefused, match="result of task"):
            await handle.aresult(20)


@pytest.mark.parametrize("kind", KINDS)
def test_encode_call__instance_or_fields__are_one_object_by_name(kind: Any) -> None:
    shape = RemoteShape(kind, Label, "ship")
    expected = b'{"id":1,"item":"x"}'
    assert shape.encode_call((kind(id=1, item="x"),), {}) == expected
    assert shape.encode_call((), {"id": 1, "item": "x"}) == expected


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(
    ("args", "kwargs"),
    [
        ((), {}),
        ((), {"item": "x"}),
        ((), {"id": "one"}),
        ((), {"id": 1, "size": 2}),
        ((5,), {}),
        ((None,), {}),
        ((Label(text="x"),), {}),
        (({"id": 1}, {"id": 2}), {}),
        (({"id": 1},), {"item": "x"}),
        (({"id": "one"},), {}),
        (({"id": 1, "size": 2},), {}),
    ],
)
def test_encode_call__does_not_fit__is_refused_in_one_sentence_with_the_task(
    kind: Any, args: tuple[Any, ...], kwargs: dict[str, Any]
) -> None:
    with pytest.raises(tenure.UsageError, match="arguments of task 'ship'") as caught:
        RemoteShape(kind, None, "ship").encode_call(args, kwargs)
    assert "\n" not in str(caught.value)
    assert "ydantic" not in str(caught.value)


def test_encode_call__no_input__takes_names_only() -> None:
    shape = RemoteShape(None, None, "ship")
    assert shape.encode_call((), {}) == b"{}"
    assert shape.encode_call((), {"a": [1, None], "b": {"c": 2}}) == b'{"a":[1,null],"b":{"c":2}}'
    with pytest.raises(tenure.WrongType, match="arguments of task 'ship' go by name"):
        shape.encode_call((1,), {})
    with pytest.raises(tenure.ValueRefused, match="argument 'a' of task 'ship'"):
        shape.encode_call((), {"a": math.nan})


class Row(pydantic.RootModel[list[int]]):
    """A model without fields."""


def remote(*args: Any, **options: Any) -> Callable[[], object]:
    return lambda: App("x").remote(*args, **options)


@pytest.mark.parametrize(
    ("declare", "message"),
    [
        (remote(5), "name is a text of 1 to 200 bytes, not 5 of type int"),
        (remote("x", input=int), "input is a pydantic model, a dataclass or a TypedDict, whose"),
        (remote("x", input=Row), "input is a pydantic model, a dataclass or a TypedDict, whose"),
        (remote("x", input=Order(1)), "input is a pydantic model, a dataclass or a TypedDict"),
        (remote("x", output=5), "result of task 'x': no JSON form is known for 5;"),
        (remote("x", output=App), "result of task 'x': no JSON form is known for App;"),
        (remote("x", queue=""), "queue is a text of 1 to 200 bytes, not ''"),
        (remote("x", retry=3), r"retry is a tenure.Retry, such as Retry\(3\), not 3"),
        (remote("x", timeout=Timeouts), "timeout is a time in seconds or a timedelta"),
    ],
)
def test_remote__wrong_option__is_refused_in_one_sentence(
    declare: Callable[[], object], message: str
) -> None:
    with pytest.raises((tenure.WrongType, tenure.WrongValue, HandlerRefused), match=message) as got:
        declare()
    assert "\n" not in str(got.value)


def test_remote__type_defined_later__works_at_first_use() -> None:
    @dataclasses.dataclass
    class Parcel:
        size: "Size"  # type: ignore[name-defined]  # noqa: F821

    shape = RemoteShape(Parcel, None, "ship")
    with pytest.raises(HandlerRefused, match="names a type that is not defined"):
        shape.encode_call((Parcel(Label(text="x")),), {})
    globals()["Size"] = Label
    assert shape.encode_call((Parcel(Label(text="x")),), {}) == b'{"size":{"text":"x"}}'
