"""Values to JSON and back: what comes back equals what went, or is refused by name."""

import dataclasses
import datetime
import decimal
import enum
import json
import math
import uuid
from collections.abc import Callable
from pathlib import Path
from typing import Any, NotRequired, Union, cast

import pydantic
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from typing_extensions import TypedDict

from tenure import (
    App,
    NewTask,
    PayloadTooLarge,
    ValueRefused,
    WrongValue,
    codec,
    reading,
    signature,
)


class Colour(enum.Enum):
    RED = "red"


class Size(TypedDict):
    width: int
    note: NotRequired[str]


@dataclasses.dataclass
class Point:
    x: float
    data: bytes = b""


class Order(pydantic.BaseModel):
    id: int
    at: datetime.datetime
    total: decimal.Decimal


json_values = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(), inner, max_size=4),
    max_leaves=12,
)


class Named(pydantic.BaseModel):
    by_name: dict[str, int]


def _ship(a: str, more: Any = None, by_name: dict[str, int] | None = None) -> None: ...


@pytest.mark.parametrize(
    ("arguments", "name"),
    [
        ({"a": "\ud800"}, "a"),
        ({"a": "x", "more": [{"deep": "\udfff"}]}, "more"),
        ({"a": "x", "more": {"\ud800": 1}}, "more"),
        ({"a": "x", "more": Named(by_name={"\ud800": 1})}, "more"),
        ({"a": "x", "by_name": {"k\ud800": 1}}, "by_name"),
    ],
    ids=ascii,
)
def test_encode__lone_surrogate_in_an_argument__names_it(
    arguments: dict[str, Any], name: str
) -> None:
    said = f"argument {name!r} of task 'ship': text with a lone surrogate has no UTF-8 form"
    with pytest.raises(ValueRefused, match=said):
        signature.Signature(_ship, "ship").encode_call((), arguments)
    with pytest.raises(ValueRefused, match=said):
        codec.encode_named(arguments, "ship")
    with pytest.raises(ValueRefused, match=said):
        reading.new_task(NewTask(name="ship", arguments=arguments))
    with pytest.raises(ValueRefused, match=said):
        App("shop").remote("ship").enqueue(**arguments)


def test_encode__text_that_somebody_replaced_before__is_taken() -> None:
    value = {"\ufffd" * 3: ["\ufffd" * 4]}
    assert codec.any_json.decode(codec.any_json.encode(value)) == value


@pytest.mark.parametrize("field", ["name", "queue", "key", "lane"])
def test_new_task__lone_surrogate_in_a_text__names_it(field: str) -> None:
    with pytest.raises(WrongValue, match=f"NewTask: {field} is a text without lone surrogates"):
        NewTask(**cast("Any", {"name": "ship", field: "a\ud800"}))


def test_app__queue_with_a_lone_surrogate__is_refused() -> None:
    with pytest.raises(WrongValue, match="queue is a text without lone surrogates"):
        App("shop").remote("ship", queue="a\ud800")


@settings(deadline=None)
@given(json_values)
def test_encode__any_json_value__comes_back_equal(value: Any) -> None:
    again = codec.any_json.decode(codec.any_json.encode(value))
    assert again == value
    assert json.dumps(again) == json.dumps(value)


@pytest.mark.parametrize(
    "number", [0, -1, 2**53 + 1, 2**63, 2**64, 10**30, -(10**30)], ids=lambda each: str(each)[:12]
)
@pytest.mark.parametrize("annotation", [int, Any], ids=["int", "Any"])
def test_encode__integers_of_any_size__are_exact(number: int, annotation: Any) -> None:
    value: codec.ValueCodec[int] = codec.ValueCodec(annotation, "value")
    assert value.decode(value.encode(number)) == number


def test_encode__floats__keep_sign_and_kind() -> None:
    value: codec.ValueCodec[Any] = codec.ValueCodec(Any, "value")
    assert math.copysign(1, value.decode(value.encode(-0.0))) == -1
    assert value.encode(1.0) == b"1.0"
    assert value.encode(1) == b"1"


@pytest.mark.parametrize(
    ("annotation", "value"),
    [
        (str, "a\0b \N{GRINNING FACE}"),
        (bytes, b"\xff\x00\xfe"),
        (uuid.UUID, uuid.UUID(int=7)),
        (datetime.datetime, datetime.datetime(2026, 1, 2, 3, 4, 5, 6, datetime.UTC)),
        (datetime.timedelta, datetime.timedelta(days=1, microseconds=3)),
        (decimal.Decimal, decimal.Decimal("1.500")),
        (Colour, Colour.RED),
        (Size, {"width": 3}),
        (Point, Point(1.5, b"\xff")),
        (list[Point], [Point(0.1), Point(2.0, b"\xfe\xff")]),
        (Order, Order(id=2**60, at=datetime.datetime.now(datetime.UTC), total=decimal.Decimal(3))),
        (dict[str, list[bytes]], {"a": [b"\x80"]}),
        (int | None, None),
        (tuple[int, str], (1, "x")),
        (set[int], {1, 2}),
    ],
    ids=lambda each: getattr(each, "__name__", "")[:20] if isinstance(each, type) else "",
)
def test_encode__annotated_value__comes_back_typed(annotation: Any, value: Any) -> None:
    each: codec.ValueCodec[Any] = codec.ValueCodec(annotation, "value")
    again = each.decode(each.encode(value))
    assert again == value
    assert type(again) is type(value)


@pytest.mark.parametrize("number", [math.nan, math.inf, -math.inf])
@pytest.mark.parametrize(
    "place",
    [
        lambda number: (float, number),
        lambda number: (Any, {"a": [number]}),
        lambda number: (Point, Point(number)),
        lambda number: (list[float], [1.0, number]),
    ],
    ids=["float", "inside Any", "dataclass", "list"],
)
def test_encode__nan_or_infinity__is_refused(number: float, place: Any) -> None:
    annotation, value = place(number)
    with pytest.raises(ValueRefused, match="NaN and infinity"):
        codec.ValueCodec(annotation, "value").encode(value)


def test_encode__nan_in_a_model__is_refused_not_null() -> None:
    class Reading(pydantic.BaseModel):
        celsius: float

    value: codec.ValueCodec[Reading] = codec.ValueCodec(Reading, "value")
    with pytest.raises(ValueRefused, match="NaN and infinity"):
        value.encode(Reading(celsius=math.nan))


@pytest.mark.parametrize("annotation", [str, Any, list[str]])
def test_encode__lone_surrogate__is_refused(annotation: Any) -> None:
    value: Any = ["\ud800"] if annotation == list[str] else "\ud800"
    with pytest.raises(ValueRefused, match="lone surrogate"):
        codec.ValueCodec(annotation, "value").encode(value)


@pytest.mark.parametrize(
    ("annotation", "value"),
    [
        (int, "1"),
        (list[int], (1,)),
        (Any, object()),
        (Point, {"x": 1}),
        (int, None),
        (Point, None),
        (list[int], None),
    ],
)
def test_encode__value_of_another_type__is_refused(annotation: Any, value: Any) -> None:
    with pytest.raises(ValueRefused):
        codec.ValueCodec(annotation, "value").encode(value)


def test_encode__value_that_contains_itself__is_refused() -> None:
    value: list[Any] = []
    value.append(value)
    with pytest.raises(ValueRefused):
        codec.any_json.encode(value)


def test_encode_arguments__bad_parameter__is_named() -> None:
    arguments = codec.ArgumentsCodec({"a": int, "b": float}, {"a"}, "scale")
    with pytest.raises(ValueRefused, match="argument 'b' of task 'scale'") as caught:
        arguments.encode({"a": 1, "b": math.nan})
    assert caught.value.where == "argument 'b' of task 'scale'"


@pytest.mark.parametrize(
    ("data", "match"),
    [
        (b"", "a: Field required"),
        (b'{"a": "x"}', "a: Input should be a valid integer"),
        (b'{"a": 1, "c": 2}', "c: Extra inputs are not permitted"),
        (b"[1]", "of task .scale.: Input should be an object"),
        (b"{", "JSON"),
        (b"\xff", "JSON|unicode"),
    ],
)
def test_decode_arguments__not_of_the_signature__is_refused(data: bytes, match: str) -> None:
    arguments = codec.ArgumentsCodec({"a": int, "b": float}, {"a"}, "scale")
    with pytest.raises(ValueRefused, match=match):
        arguments.decode(data)


def test_decode_arguments__without_those_that_have_defaults__leaves_them_out() -> None:
    arguments = codec.ArgumentsCodec({"a": int, "b": bytes}, {"a"}, "scale")
    assert arguments.decode(b'{"a": 3}') == {"a": 3}
    assert arguments.decode(arguments.encode({"a": 3, "b": b"\xff"})) == {"a": 3, "b": b"\xff"}


def test_payload__over_the_limit__is_refused_with_both_sizes() -> None:
    codec.payload(b"x" * codec.PAYLOAD_BYTES_MAX, "value")
    with pytest.raises(PayloadTooLarge) as caught:
        codec.payload(b"x" * (codec.PAYLOAD_BYTES_MAX + 1), "value")
    assert caught.value.size_bytes == codec.PAYLOAD_BYTES_MAX + 1
    assert caught.value.limit_bytes == codec.PAYLOAD_BYTES_MAX


KNOWN: list[Any] = [str, int, float, bool, bytes, type(None), Any, decimal.Decimal, uuid.UUID]
KNOWN += [datetime.datetime, datetime.date, datetime.timedelta]


def of(kind: Any, *arguments: Any) -> Any:
    return kind[arguments]


@given(
    st.recursive(
        st.sampled_from(KNOWN),
        lambda inner: st.one_of(
            inner.map(lambda each: of(list, each)),
            inner.map(lambda each: of(tuple, each, ...)),
            inner.map(lambda each: of(Union, each, type(None))),
            st.tuples(inner, inner).map(lambda two: of(dict, *two)),
            st.tuples(inner, inner).map(lambda two: of(tuple, *two)),
        ),
        max_leaves=5,
    )
)
@settings(max_examples=60, deadline=None)
def test_is_never_refused__whatever_it_says_so_of__has_a_codec(annotation: Any) -> None:
    assert codec.is_never_refused(annotation)
    codec.ValueCodec(annotation, "value")
    codec.ArgumentsCodec({"value": annotation}, {"value"}, "task")


@pytest.mark.parametrize("annotation", [object, set[object], list[Path], Callable[[], int], "int"])
def test_is_never_refused__anything_else__has_to_be_seen(annotation: Any) -> None:
    assert not codec.is_never_refused(annotation)
