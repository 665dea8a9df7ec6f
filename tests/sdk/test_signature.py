"""Handlers as data: calls bound as Python binds them, shapes refused at registration."""

import copy
import dataclasses
import datetime
import math
from collections.abc import AsyncIterator, Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tenure import App, HandlerRefused, ValueRefused, Worker, WrongType
from tenure.signature import Signature


def scale(path: str, width: int = 200, *, sharp: bool = False) -> None: ...


@dataclasses.dataclass
class Point:
    x: int


def takes_a_point(point: Point) -> None: ...


def positional_only(first: int, second: int = 2, /, third: int = 3) -> None: ...


def test_encode_call__positional_and_named__travel_by_name() -> None:
    signature = Signature(scale, "scale")
    assert signature.encode_call(("a",), {"sharp": True}) == b'{"path":"a","sharp":true}'
    assert signature.encode_call(("a", 1), {}) == b'{"path":"a","width":1}'


@pytest.mark.parametrize(("args", "kwargs"), [((), {}), (("a", 1, 2), {}), (("a",), {"x": 1})])
def test_encode_call__does_not_fit__raises_as_python_does(
    args: tuple[Any, ...], kwargs: dict[str, Any]
) -> None:
    with pytest.raises(WrongType, match=r"^arguments of task 'scale': (missing|too many|got an)"):
        Signature(scale, "scale").encode_call(args, kwargs)


@pytest.mark.parametrize("args", [(1,), (1, 5), (1, 5, 6)])
def test_decode_call__positional_only__are_passed_by_position(args: tuple[int, ...]) -> None:
    signature = Signature(positional_only, "positional_only")
    positional, named = signature.decode_call(signature.encode_call(args, {}))
    assert (*positional, *named.values()) == args
    positional_only(*positional, **named)


def test_declare__star_arguments__are_refused() -> None:
    app = App("test")

    def stars(*values: int) -> None: ...
    def double_stars(**values: int) -> None: ...
    def generator() -> Iterator[int]:
        yield 1

    async def async_generator() -> AsyncIterator[int]:
        yield 1

    for function in (stars, double_stars, generator, async_generator):
        with pytest.raises(HandlerRefused):
            app.task(function)
    assert not app.tasks


def test_declare__same_name_twice__is_refused() -> None:
    app = App("test")
    app.task(scale)
    with pytest.raises(HandlerRefused, match="has a task 'scale' already"):
        app.task(scale)
    app.task(name="scale again")(scale)
    assert list(app.tasks) == ["scale", "scale again"]


class Opaque:
    """A class that pydantic knows nothing of."""

    def method(self, x: int) -> None: ...

    @classmethod
    def of_class(cls, x: int) -> None: ...


def wrong_default(y: int = "no") -> None: ...  # type: ignore[assignment]
def wrong_none(y: int = None) -> None: ...  # type: ignore[assignment]  # noqa: RUF013 - refused
def opaque_parameter(x: list[Opaque] | None = None) -> None: ...
def opaque_result() -> Opaque: ...  # type: ignore[empty-body]
def right_defaults(
    a: float = math.inf,
    b: Path = Path("a"),
    c: float = 1,
    d: int | None = None,
    e: datetime.timedelta = datetime.timedelta(1),
    f: object = None,
) -> None: ...


@pytest.mark.parametrize(
    ("function", "message"),
    [
        (Opaque.method, "task 'method' is a method of Opaque: a worker has no 'self' to call it"),
        (vars(Opaque)["of_class"].__func__, "task 'of_class' is a method of Opaque: a worker has"),
        (Opaque, "^Opaque is a class, and a task is a function$"),
        (wrong_default, "default 'no' of parameter 'y' of task 'wrong_default': Input should be"),
        (wrong_none, "default None of parameter 'y' of task 'wrong_none': Input should be a valid"),
        (opaque_parameter, "parameter 'x' of task 'opaque_parameter': no JSON form is known for"),
        (opaque_result, "result of task 'opaque_result': no JSON form is known for Opaque; use"),
    ],
)
def test_declare__cannot_be_a_task__is_refused_where_it_stands(
    function: Callable[..., Any], message: str
) -> None:
    app = App("test")
    with pytest.raises(HandlerRefused, match=message) as caught:
        app.task(function)
    assert "\n" not in str(caught.value)
    assert "ydantic-core" not in str(caught.value)
    assert not app.tasks


def test_declare__bound_method_and_right_defaults__are_taken() -> None:
    app = App("test")
    app.task(Opaque().method)
    app.task(Opaque.of_class)
    app.task(right_defaults)
    assert list(app.tasks) == ["method", "of_class", "right_defaults"]


def test_start__names_never_defined__refuses_all_handlers_at_once() -> None:
    app = App("test", "127.0.0.1:1")

    @app.task
    def first(x: "NeverDefined") -> None: ...  # type: ignore[name-defined]  # noqa: F821
    @app.task
    def second() -> "NorThis": ...  # type: ignore[name-defined]  # noqa: F821

    with pytest.raises(HandlerRefused, match=r"'first'.*NeverDefined.*; .*'second'.*NorThis"):
        Worker(app).start()


def test_encode_call__model_of_an_undefined_class__is_refused_by_parameter() -> None:
    @dataclasses.dataclass
    class Half:
        x: "Undefined"  # type: ignore[name-defined]  # noqa: F821

    def half(value: Half) -> None: ...

    half.__annotations__["value"] = Half
    with pytest.raises(HandlerRefused, match=r"parameter 'value' of task 'half': .*not defined"):
        Signature(half, "half").resolve()


def test_declare__lambda_without_a_name__is_refused() -> None:
    with pytest.raises(HandlerRefused, match="pass name="):
        App("test").task(lambda: None)


def test_resolve_early__types_that_are_never_refused__leaves_codecs_to_the_first_use() -> None:
    plain, other = Signature(scale, "scale"), Signature(takes_a_point, "takes_a_point")
    plain.resolve_early()
    other.resolve_early()
    assert "arguments" not in vars(plain)
    assert "arguments" in vars(other)
    assert plain.encode_call(("a",), {}) == b'{"path":"a"}'


def test_resolve__name_defined_later__works_at_first_use() -> None:
    def late(value: "Later") -> "Later":
        return value

    signature = Signature(late, "late")
    signature.resolve()
    assert signature.decode_call(b'{"value": {"x": 1}}')[1]["value"] == Later(1)


def test_resolve__unknown_name_or_type__is_refused_by_task() -> None:
    def unknown(value: "NoSuchType") -> None: ...  # type: ignore[name-defined]  # noqa: F821
    def untypable(value: object) -> None: ...

    with pytest.raises(HandlerRefused, match=r"'unknown'.*NoSuchType"):
        Signature(unknown, "unknown").resolve()
    untypable.__annotations__["value"] = Iterator[int].__class__
    with pytest.raises(HandlerRefused, match="untypable"):
        Signature(untypable, "untypable").resolve()


@dataclasses.dataclass
class Line:
    count: int


def lines(
    first: str,
    count: int = 1,
    line: Line | None = None,
    several: list[int] | None = None,
    either: int | str = 1,
    anything: Any = None,
) -> None: ...


@pytest.mark.parametrize(
    ("kwargs", "message"),
    [
        ({"first": 1}, "argument 'first' of task 'lines': expected str, not int"),
        ({"first": None}, "argument 'first' of task 'lines': Input should be a valid string"),
        ({"first": "", "count": "secret"}, "argument 'count' of task 'lines': expected int, not s"),
        ({"first": "", "line": 3}, "argument 'line' of task 'lines': expected Line, not int"),
        ({"first": "", "line": Line("secret")}, "'line' of .*: count: expected int, not str$"),  # type: ignore[arg-type]
        ({"first": "", "several": ["secret"] * 50}, "'several' of .*: expected int, not str$"),
        ({"first": "", "either": [1]}, "'either' of .*: expected int, not list; expected str, not"),
        ({"first": "", "anything": Opaque()}, "argument 'anything' of task 'lines': Unable to ser"),
    ],
)
def test_encode_call__wrong_value__names_task_and_parameter_and_shows_no_value(
    kwargs: dict[str, Any], message: str
) -> None:
    with pytest.raises(ValueRefused, match=message) as caught:
        Signature(lines, "lines").encode_call((), kwargs)
    for unwanted in ("ydantic", "secret", "\n"):
        assert unwanted not in str(caught.value)


def test_enqueue__option_among_the_arguments__is_told_the_way() -> None:
    app = App("test", "127.0.0.1:1")
    task: Any = app.task(scale)
    with pytest.raises(WrongType, match=r"'delay'; .*: scale\.using\(delay=\.\.\.\)\.enqueue\("):
        task.enqueue("a", delay=2)
    with pytest.raises(WrongType, match=r"unexpected keyword argument 'height'$"):
        task.enqueue("a", height=2)


def test_using__option_of_other_queues__is_told_ours() -> None:
    app = App("test", "127.0.0.1:1")
    task: Any = app.task(scale)
    remote: Any = app.remote("x")
    for each in (task, remote):
        with pytest.raises(WrongType, match=r"no option 'countdown'; say delay=SECONDS$"):
            each.using(countdown=5)
        with pytest.raises(
            WrongType, match=r"'expires'; say .*Timeout\(SECONDS, \"time_out\"\)\)$"
        ):
            each.using(delay=1, expires=5)
        with pytest.raises(WrongType, match=r"no option 'colour'; it takes key, .*, timeout$"):
            each.using(colour=5)
    with pytest.raises(
        WrongType, match=r"using\(delay=max\(eta - datetime\.now\(UTC\), timedelta\(\)\)\)\.enqueue"
    ):
        task.enqueue("a", eta=1)


def test_task__declared_as_elsewhere__is_told_the_way() -> None:
    task: Any = App("test", "127.0.0.1:1").task
    for option, hint in (
        ({"bind": True}, r"current_task\(\) stands for self"),
        ({"max_retries": 5}, r"say retry=Retry\(N \+ 1\)"),
        ({"queue": "q", "colour": 1}, r"'colour'; it takes name, queue, retry, timeout and mode"),
    ):
        with pytest.raises(WrongType, match=hint):
            task(**option)


@pytest.mark.parametrize("name", ["delay", "apply_async", "send", "defer"])
def test_getattr__name_of_other_queues__is_told_the_way(name: str) -> None:
    app = App("test", "127.0.0.1:1")
    for each in (app.task(scale), app.tasks["scale"].using(delay=1), app.remote("x")):
        with pytest.raises(AttributeError, match=rf"'{name}'; call enqueue\(\.\.\.\), or using\("):
            getattr(each, name)
        assert not hasattr(each, "other")
    assert copy.copy(app.tasks["scale"]).name == "scale"


def test_call__task__is_still_the_function() -> None:
    app = App("test")

    @app.task(queue="images")
    def add(a: int, b: int = 1) -> int:
        """Adds."""
        return a + b

    assert add(1) == 2
    assert add.__name__ == add.name == "add"
    assert add.__doc__ == "Adds."


class Later:
    """Defined after its first use; pydantic knows it by its schema."""

    def __init__(self, x: int) -> None:
        self.x = x

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Later) and other.x == self.x

    def __hash__(self) -> int:
        return hash(self.x)

    @classmethod
    def __get_pydantic_core_schema__(cls, source: Any, handler: Any) -> Any:
        from pydantic_core import core_schema

        return core_schema.no_info_plain_validator_function(
            lambda value: value if isinstance(value, cls) else cls(**value)
        )
