"""Handlers as data: calls bound as Python binds them, shapes refused at registration."""

from collections.abc import AsyncIterator, Iterator
from typing import Any

import pytest

from tenure import App, HandlerRefused
from tenure.signature import Signature


def scale(path: str, width: int = 200, *, sharp: bool = False) -> None: ...


def positional_only(first: int, second: int = 2, /, third: int = 3) -> None: ...


def test_encode_call__positional_and_named__travel_by_name() -> None:
    signature = Signature(scale, "scale")
    assert signature.encode_call(("a",), {"sharp": True}) == b'{"path":"a","sharp":true}'
    assert signature.encode_call(("a", 1), {}) == b'{"path":"a","width":1}'


@pytest.mark.parametrize(("args", "kwargs"), [((), {}), (("a", 1, 2), {}), (("a",), {"x": 1})])
def test_encode_call__does_not_fit__raises_as_python_does(
    args: tuple[Any, ...], kwargs: dict[str, Any]
) -> None:
    with pytest.raises(TypeError):
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


def test_declare__lambda_without_a_name__is_refused() -> None:
    with pytest.raises(HandlerRefused, match="pass name="):
        App("test").task(lambda: None)


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
