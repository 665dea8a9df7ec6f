"""What a handler takes and returns, read from its signature.

The shape is read once, when the function becomes a task; the types are resolved at the first use,
so that annotations may name classes that are defined further down.
"""

from __future__ import annotations

import functools
import inspect
import typing
from typing import TYPE_CHECKING, Any

from tenure import codec, errors

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

_Kind = inspect.Parameter


class Signature:
    """Signature binds, writes and reads the arguments and the result of one handler.

    Args:
        function: The handler.
        task_name: For error messages.

    Raises:
        HandlerRefused: the function takes `*args` or `**kwargs`, or is a generator.
    """

    def __init__(self, function: Callable[..., Any], task_name: str) -> None:
        self._function = function
        self._task_name = task_name
        if inspect.isgeneratorfunction(function) or inspect.isasyncgenfunction(function):
            raise errors.HandlerRefused(f"task {task_name!r} is a generator; return a value")
        self._signature = inspect.signature(function)
        for parameter in self._signature.parameters.values():
            if parameter.kind is _Kind.VAR_POSITIONAL:
                raise errors.HandlerRefused(
                    f"task {task_name!r} takes *{parameter.name}: arguments travel by name;"
                    " take a list instead"
                )
            if parameter.kind is _Kind.VAR_KEYWORD:
                raise errors.HandlerRefused(
                    f"task {task_name!r} takes **{parameter.name}: every parameter needs a name;"
                    " take a dict instead"
                )
        self._positional_only = [
            parameter.name
            for parameter in self._signature.parameters.values()
            if parameter.kind is _Kind.POSITIONAL_ONLY
        ]

    def encode_call(self, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> bytes:
        """Binds a call as Python would and returns it as a JSON object.

        Raises:
            TypeError: the call does not fit the signature; the text is Python's own.
            ValueRefused: a value does not fit its annotation.
        """
        return self.arguments.encode(self._signature.bind(*args, **kwargs).arguments)

    def decode_call(self, data: bytes) -> tuple[list[Any], dict[str, Any]]:
        """Reads a JSON object into arguments for the handler: positional ones and named ones.

        Raises:
            ValueRefused: the object does not fit the signature.
        """
        arguments = self.arguments.decode(data)
        if not self._positional_only:
            return [], arguments
        positional = []
        for name in self._positional_only:
            if name not in arguments:
                break
            positional.append(arguments.pop(name))
        return positional, arguments

    @functools.cached_property
    def arguments(self) -> codec.ArgumentsCodec:
        """Codec of the arguments, built at the first use."""
        parameters = self._signature.parameters
        hints = self._hints
        return codec.ArgumentsCodec(
            {name: hints.get(name, Any) for name in parameters},
            {name for name, entry in parameters.items() if entry.default is _Kind.empty},
            self._task_name,
        )

    @functools.cached_property
    def result(self) -> codec.ValueCodec[Any]:
        """Codec of the result, built at the first use."""
        annotation = self._hints.get("return", Any)
        return codec.ValueCodec(annotation, f"result of task {self._task_name!r}")

    def resolve(self) -> None:
        """Builds both codecs now, so that a bad annotation shows before the first task.

        Raises:
            HandlerRefused: an annotation cannot be resolved or has no JSON form.
        """
        _ = self.arguments, self.result

    @functools.cached_property
    def _hints(self) -> dict[str, Any]:
        try:
            return typing.get_type_hints(inspect.unwrap(self._function), include_extras=True)
        except Exception as exc:
            raise errors.HandlerRefused(
                f"task {self._task_name!r}: its annotations cannot be resolved: {exc}"
            ) from exc
