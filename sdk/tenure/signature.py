"""What a handler takes and returns, read from its signature.

The shape is read once, when the function becomes a task; the types are resolved at the first use,
so that annotations may name classes that are defined further down.
"""

from __future__ import annotations

import contextlib
import functools
import inspect
import reprlib
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
        name: Its name, for error messages.
        kind: What it is, for error messages.
        takes_context: True if its first parameter is no argument of a call but the context of a
            workflow.

    Raises:
        HandlerRefused: the function takes `*args` or `**kwargs`, is a generator or a method, or
            takes no context.
    """

    def __init__(
        self,
        function: Callable[..., Any],
        name: str,
        kind: str = "task",
        *,
        takes_context: bool = False,
    ) -> None:
        self._function = function
        self._name = name
        self._kind = kind
        self._owner = f"{kind} {name!r}"
        self._context_name = ""
        self._defaults_checked = False
        if inspect.isgeneratorfunction(function) or inspect.isasyncgenfunction(function):
            raise errors.HandlerRefused(f"{self._owner} is a generator; return a value")
        self._signature = inspect.signature(function)
        _refuse_method(function, self._signature, self._owner)
        if takes_context:
            self._leave_out_context()
        for parameter in self._signature.parameters.values():
            if parameter.kind is _Kind.VAR_POSITIONAL:
                raise errors.HandlerRefused(
                    f"{self._owner} takes *{parameter.name}: arguments travel by name;"
                    " take a list instead"
                )
            if parameter.kind is _Kind.VAR_KEYWORD:
                raise errors.HandlerRefused(
                    f"{self._owner} takes **{parameter.name}: every parameter needs a name;"
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
            WrongType: the call does not fit the signature; Python's own text, after the task.
            ValueRefused: a value does not fit its annotation.
        """
        try:
            bound = self._signature.bind(*args, **kwargs)
        except TypeError as exc:
            raise errors.WrongType(f"arguments of {self._owner}: {exc}") from None
        return self.arguments.encode(bound.arguments)

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
            self._name,
            self._kind,
        )

    @functools.cached_property
    def result(self) -> codec.ValueCodec[Any]:
        """Codec of the result, built at the first use."""
        annotation = self._hints.get("return", Any)
        return codec.ValueCodec(annotation, f"result of {self._owner}")

    def resolve(self) -> None:
        """Builds both codecs now, so that a bad annotation shows before the first task.

        Raises:
            HandlerRefused: an annotation cannot be resolved or has no JSON form, or refuses the
                default of its parameter.
        """
        _ = self.arguments, self.result
        self._check_defaults()

    def resolve_early(self) -> None:
        """Does as `resolve`, but leaves names that are not defined to the next time.

        Codecs of types that no codec refuses are left to the first use as well: a program that
        imports hundreds of tasks and enqueues two would build all, a millisecond each.

        Raises:
            HandlerRefused: as of `resolve`, for a reason that no later definition cures.
        """
        with contextlib.suppress(codec.Unresolved):
            if all(map(codec.is_never_refused, self._hints.values())):
                self._check_defaults()
            else:
                self.resolve()

    def _check_defaults(self) -> None:
        if self._defaults_checked:
            return
        for name, parameter in self._signature.parameters.items():
            default, hint = parameter.default, self._hints.get(name, Any)
            # A codec costs 0.3 ms: most defaults need none.
            if default is _Kind.empty or hint is Any or type(default) is hint:
                continue
            if default is None and type(None) in typing.get_args(hint):
                continue
            where = f"default {reprlib.repr(default)} of parameter {name!r} of {self._owner}"
            try:
                codec.ValueCodec(hint, where).check(default)
            except errors.ValueRefused as exc:
                raise errors.HandlerRefused(f"{exc}; change it, or the annotation") from exc
        self._defaults_checked = True

    @functools.cached_property
    def _hints(self) -> dict[str, Any]:
        try:
            return typing.get_type_hints(self._annotated(), include_extras=True)
        except (NameError, AttributeError) as exc:
            raise codec.Unresolved(
                f"{self._owner}: its annotations cannot be resolved: {exc}"
            ) from exc
        except Exception as exc:
            raise errors.HandlerRefused(
                f"{self._owner}: its annotations cannot be resolved: {exc}"
            ) from exc

    def _annotated(self) -> Any:
        """Returns what has the annotations: the function, or what stands for it."""
        function: Any = inspect.unwrap(self._function)
        annotations = getattr(function, "__annotations__", {})
        if self._context_name not in annotations:
            return function
        # Not the context's: a program may import its type for type checkers only.
        named = _Annotated()
        named.__annotations__ = {
            name: hint for name, hint in annotations.items() if name != self._context_name
        }
        named.__globals__ = getattr(function, "__globals__", {})
        named.__type_params__ = getattr(function, "__type_params__", ())
        return named

    def _leave_out_context(self) -> None:
        parameters = list(self._signature.parameters.values())
        if not parameters or parameters[0].kind not in {
            _Kind.POSITIONAL_ONLY,
            _Kind.POSITIONAL_OR_KEYWORD,
        }:
            raise errors.HandlerRefused(
                f"{self._owner} takes no context: its first parameter is what it calls steps with,"
                " as in `async def fulfil(ctx: tenure.Context, order: Order)`"
            )
        self._context_name = parameters[0].name
        self._signature = self._signature.replace(parameters=parameters[1:])


class _Annotated:
    """_Annotated stands for a function before typing.get_type_hints."""

    __annotations__: dict[str, Any]
    __globals__: dict[str, Any]
    __type_params__: tuple[Any, ...]


def _refuse_method(function: Callable[..., Any], found: inspect.Signature, owner: str) -> None:
    first = next(iter(found.parameters.values()), None)
    if first is None or first.name not in {"self", "cls"} or first.annotation is not _Kind.empty:
        return
    scope = getattr(function, "__qualname__", "").rpartition(".")[0]
    if scope and not scope.endswith("<locals>"):
        raise errors.HandlerRefused(
            f"{owner} is a method of {scope}: a worker has no {first.name!r} to call it"
            " with; make it a function of a module"
        )
