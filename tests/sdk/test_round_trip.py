"""Values of annotated types through a queue and back: what a handler gets and a caller reads."""

import dataclasses
import datetime
import decimal
import enum
import uuid
from typing import Any, Generic, TypeVar

import pydantic
import pytest

from tenure import App, ValueRefused, Worker
from tests.fix_server import RunningServer

T = TypeVar("T")


class Colour(enum.Enum):
    RED = "red"
    BLUE = 7


class Level(enum.IntEnum):
    LOW = 1


@dataclasses.dataclass(frozen=True)
class Line:
    item: str
    price: decimal.Decimal
    at: datetime.datetime | None = None
    raw: bytes = b""


class Order(pydantic.BaseModel):
    # Without it a model takes only bytes that are UTF-8, and the refusal says so.
    model_config = pydantic.ConfigDict(ser_json_bytes="base64", val_json_bytes="base64")

    id: uuid.UUID
    colour: Colour
    lines: list[Line]
    note: str | None = None
    parent: "Order | None" = None


class Envelope(pydantic.BaseModel, Generic[T]):
    model_config = pydantic.ConfigDict(ser_json_bytes="base64", val_json_bytes="base64")

    content: T


MOMENT = datetime.datetime(2026, 2, 3, 4, 5, 6, 789, datetime.timezone(datetime.timedelta(hours=2)))
LINE = Line("lamp", decimal.Decimal("19.90"), MOMENT, b"\xff\0")
ORDER = Order(id=uuid.UUID(int=7), colour=Colour.BLUE, lines=[LINE, Line("b", decimal.Decimal(1))])
VALUES: list[tuple[Any, Any]] = [
    (Order, ORDER),
    (Order, Order(id=uuid.UUID(int=8), colour=Colour.RED, lines=[], parent=ORDER)),
    (Envelope[Line], Envelope[Line](content=LINE)),
    (Line, LINE),
    (list[Line], [LINE]),
    (dict[str, Order], {"a": ORDER}),
    (datetime.datetime, MOMENT),
    (datetime.date, datetime.date(2026, 2, 3)),
    (datetime.timedelta, datetime.timedelta(days=-1, microseconds=1)),
    (uuid.UUID, uuid.UUID(int=2**127)),
    (decimal.Decimal, decimal.Decimal("-0.10")),
    (Colour, Colour.BLUE),
    (Level, Level.LOW),
    (bytes, bytes(range(256))),
    (str | None, None),
    (str | None, "text"),
    (int | str, "7"),
    (tuple[int, ...], (1, 2, 3)),
    (frozenset[str], frozenset({"a"})),
    (float, -0.0),
    (int, 2**70),
    (Any, {"a": [1, 1.0, None, "\N{GRINNING FACE}\0"]}),
]


async def test_call__annotated_values__reach_the_handler_and_come_back(
    server: RunningServer,
) -> None:
    app = App("types", server.address)
    seen: dict[str, Any] = {}
    calls = []
    for index, (annotation, value) in enumerate(VALUES):

        def echo(value: Any, *, name: str) -> Any:
            seen[name] = value
            return value

        name = str(index)
        echo.__annotations__.update({"value": annotation, "return": annotation})
        calls.append((name, value, app.task(name=name)(echo)))
    async with Worker(app):
        handles = [
            (name, value, await task.aenqueue(value, name=name)) for name, value, task in calls
        ]
        for name, value, handle in handles:
            answer = await handle.aresult(30)
            for each in (seen[name], answer):
                assert each == value
                assert type(each) is type(value)
                # -0.0 == 0.0 and Decimal("1.0") == Decimal(1), and are not the same.
                assert not isinstance(value, float | decimal.Decimal) or str(each) == str(value)


@pytest.mark.parametrize(
    ("annotation", "value"),
    [
        (int, "7"),
        (int, 7.0),
        (str, 7),
        (bool, 1),
        (Line, ORDER),
        (list[Line], [ORDER]),
        (Colour, "red"),
        (uuid.UUID, "7"),
        (str, None),
    ],
)
def test_enqueue__value_of_another_type__is_refused_before_it_is_sent(
    annotation: Any, value: Any
) -> None:
    app = App("types", "127.0.0.1:1")

    def take(value: Any) -> None: ...

    take.__annotations__["value"] = annotation
    with pytest.raises(ValueRefused, match="argument 'value' of task 'take'"):
        app.task(take).enqueue(value)
