"""Stubs for tasks whose handlers live in another program, in whatever language.

Nothing of them is registered by a worker of this app: the name is the whole connection, and the
arguments travel as one JSON object by parameter name, as those of every task do.
"""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import inspect
import typing
from typing import TYPE_CHECKING, Any, ParamSpec, TypeVar

import pydantic
import typing_extensions

from tenure import check, codec, errors
from tenure.task import Enqueueing, Options, Reference

if TYPE_CHECKING:
    from collections.abc import Mapping

    from tenure import policy
    from tenure.app import App

P = ParamSpec("P")
R = TypeVar("R")

_INPUT = "a pydantic model, a dataclass or a TypedDict, whose fields are the parameters"


class Remote(Enqueueing[P, R]):
    """Remote is a task of another program: it can be enqueued, not called."""

    def __init__(
        self,
        app: App,
        name: str,
        *,
        input_type: Any,
        output_type: Any,
        queue: str,
        retry: policy.Retry | None,
        timeout: policy.Seconds | policy.Timeouts | None,
    ) -> None:
        shape = RemoteShape(input_type, output_type, name)
        reference = Reference(app, shape, name=name, queue=queue, retry=retry, timeout=timeout)
        super().__init__(reference, Options())

    def __repr__(self) -> str:
        return f"<Remote {self.name} of {self._reference.app.name}>"


class RemoteShape:
    """RemoteShape writes and reads for a handler of which only types are known.

    Args:
        input_type: Type whose fields are the parameters; None: any parameters by name.
        output_type: Type of the result; None: any JSON value.
        task_name: For error messages.

    Raises:
        WrongType: the input is no type with fields.
        HandlerRefused: a type has no JSON form.
    """

    def __init__(self, input_type: Any, output_type: Any, task_name: str) -> None:
        if input_type is not None and not _has_fields(input_type):
            raise check.wrong_type("input", _INPUT, input_type)
        self._input: Any = input_type
        self._output = Any if output_type is None else output_type
        self._task_name = task_name
        self._where = f"arguments of task {task_name!r}"
        # A type may name classes that are defined further down: then the first use decides.
        with contextlib.suppress(codec.Unresolved):
            _ = self.arguments, self.result

    @functools.cached_property
    def arguments(self) -> codec.ValueCodec[Any]:
        """Codec of the object of arguments."""
        return codec.ValueCodec(dict[str, Any] if self._input is None else self._input, self._where)

    @functools.cached_property
    def result(self) -> codec.ValueCodec[Any]:
        """Codec of the result."""
        return codec.ValueCodec(self._output, f"result of task {self._task_name!r}")

    def encode_call(self, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> bytes:
        """Returns one instance of the input, or arguments by name, as a JSON object.

        Raises:
            WrongType: something else was given, or names that the input does not have.
            ValueRefused: a value is not of its type.
        """
        if self._input is None:
            if args:
                raise errors.WrongType(f"{self._where} go by name, such as enqueue(path='a')")
            return codec.encode_named(kwargs, self._task_name)
        if len(args) > 1 or (args and kwargs):
            raise errors.WrongType(
                f"{self._where} are one {self._kind.__name__}, or its fields by name"
            )
        if not typing_extensions.is_typeddict(self._kind):
            given = args[0] if args else self._made(kwargs)
            check.instance(given, self._where, self._kind, f"of the type {self._kind.__name__}")
        else:
            given = args[0] if args else dict(kwargs)
            self._check_keys(given)
        return self.arguments.encode(given)

    @property
    def _kind(self) -> Any:
        return typing.get_origin(self._input) or self._input

    def _made(self, fields: Mapping[str, Any]) -> Any:
        try:
            # pydantic's models ignore names that they do not know, unless told otherwise.
            inspect.signature(self._input).bind(**fields)
        except TypeError as exc:
            raise errors.WrongType(f"{self._where}: {exc}") from None
        return codec.make(self._input, fields, self._where)

    def _check_keys(self, given: Any) -> None:
        # pydantic's writer takes a TypedDict without its keys, or with others.
        kind = self._kind
        check.instance(given, self._where, dict, f"of the type {kind.__name__}")
        for name in sorted(kind.__required_keys__ - given.keys()):
            raise errors.WrongType(f"{self._where}: missing a required argument: {name!r}")
        for name in sorted(given.keys() - kind.__required_keys__ - kind.__optional_keys__):
            raise errors.WrongType(f"{self._where}: got an unexpected keyword argument {name!r}")


def _has_fields(kind: Any) -> bool:
    kind = typing.get_origin(kind) or kind
    if not isinstance(kind, type):
        return False
    if issubclass(kind, pydantic.RootModel):
        return False
    return (
        issubclass(kind, pydantic.BaseModel)
        or dataclasses.is_dataclass(kind)
        or typing_extensions.is_typeddict(kind)
    )
