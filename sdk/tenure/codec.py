"""Values to JSON and back, typed by annotations.

Arguments travel as one JSON object by parameter name, so that programs in other languages can
call; a result travels as one JSON value. Nothing is lost in silence: a float that JSON cannot say,
a lone surrogate, a value of another type than its annotation are refused before anything is sent;
integers of any size and bytes (base64, URL-safe alphabet) come back as they went.

pydantic turns values into JSON-like Python values and `json` writes them, in two steps on purpose:
pydantic's own writer turns NaN inside a model into null without a word.
"""

from __future__ import annotations

import datetime
import decimal
import json
import re
import types
import typing
import uuid
from typing import TYPE_CHECKING, Any, Generic, TypeVar, cast

import pydantic
import pydantic_core
import typing_extensions

from tenure import errors
from tenure.v1 import payload_pb2

if TYPE_CHECKING:
    from collections.abc import Mapping

T = TypeVar("T")

ENCODING = "json"
# The server's limit for one payload; checked here too, because a call of 2 MiB costs both sides.
PAYLOAD_BYTES_MAX = 2 * 1024 * 1024
# pydantic writes `warnings="error"` problems with this heading above what matters.
_WARNING_HEADING = "Pydantic serializer warnings:\n  "
_WARNING = "PydanticSerializationUnexpectedValue"
# One line of them. The value itself is left out: it may be long or secret.
_UNEXPECTED = re.compile(r"Expected `(.+?)` - serialized value .*input_type=(.+?)\]\)$")
_FIELD = re.compile(r"\[field_name='(.+?)', input_value=")

# A list of 10,000 wrong items is refused in one line, too.
_PROBLEM_COUNT_MAX = 5
_PROBLEM_CHARS_MAX = 1_000

_CONFIG = pydantic.ConfigDict(
    ser_json_bytes="base64",
    val_json_bytes="base64",
    ser_json_inf_nan="constants",
    arbitrary_types_allowed=False,
)
# Not more: the values of lists and dicts would have to be looked at.
_PLAIN_TYPES: tuple[type, ...] = (str, int, float, bool)
# Types that have a JSON form, alone and within each other.
_KNOWN_TYPES: frozenset[object] = frozenset(
    (
        str,
        int,
        float,
        bool,
        bytes,
        type(None),
        datetime.datetime,
        datetime.date,
        datetime.timedelta,
        decimal.Decimal,
        uuid.UUID,
    )
)
_KNOWN_CONTAINERS: frozenset[object] = frozenset((list, dict, tuple, types.UnionType, typing.Union))
_LOST = "\ufffd\ufffd\ufffd"
_encode_json = json.JSONEncoder(
    ensure_ascii=False, allow_nan=False, check_circular=False, separators=(",", ":")
).encode


def is_never_refused(annotation: Any) -> bool:
    """Says that a codec of the type can be built, without building it; False: one has to see."""
    if annotation is Any or (isinstance(annotation, type) and annotation in _KNOWN_TYPES):
        return True
    return typing.get_origin(annotation) in _KNOWN_CONTAINERS and all(
        argument is Ellipsis or is_never_refused(argument)
        for argument in typing.get_args(annotation)
    )


class Unresolved(errors.HandlerRefused):
    """A type names a class that is not defined, which it may be at the next use."""


class ValueCodec(Generic[T]):
    """ValueCodec writes and reads one value of an annotated type.

    Args:
        annotation: The type; `Any` takes and gives plain JSON values.
        where: What the value is, for error messages: `result of task 'resize'`.
    """

    def __init__(self, annotation: Any, where: str) -> None:
        self._where = where
        self._takes_none = annotation is None or annotation is type(None) or annotation is Any
        # Types of values that are JSON as they are, and need no check.
        self._plain_type = annotation if annotation in _PLAIN_TYPES else None
        self._adapter = _adapter(annotation, where)

    def encode(self, value: T) -> bytes:
        """Returns the value as JSON, UTF-8.

        Raises:
            ValueRefused: the value is not of the type, or JSON cannot carry it.
        """
        if value is None and self._takes_none:
            return b"null"
        try:
            if value is None:
                # pydantic writes None for any type without a word; its validators know better.
                self._adapter.validator.validate_python((None,))
            if type(value) is self._plain_type:
                return _encode_json(value).encode()
            return _written(self._adapter, value)
        except Exception as exc:
            skip = int(isinstance(exc, pydantic.ValidationError))
            raise errors.ValueRefused(self._where, _problem(exc, skip=skip)) from exc

    def check(self, value: object) -> None:
        """Refuses a value that is not of the type, be it that JSON could carry it or not.

        Raises:
            ValueRefused: neither the writer nor the validators of the type take it.
        """
        try:
            self.encode(cast("T", value))
        except errors.ValueRefused:
            try:
                self._adapter.validator.validate_python((value,), strict=True)
            except Exception as exc:  # noqa: BLE001 - whatever a validator of the program raises
                raise errors.ValueRefused(self._where, _problem(exc, skip=1)) from None

    def decode(self, data: bytes) -> T:
        """Reads the value; empty data reads as null.

        Raises:
            ValueRefused: the data is no JSON or does not fit the type.
        """
        try:
            (value,) = self._adapter.validator.validate_json(b"[" + (data or b"null") + b"]")
        except Exception as exc:  # noqa: BLE001 - whatever a validator of the program raises
            # pydantic's own text repeats the input, which may be long or secret.
            raise errors.ValueRefused(self._where, _problem(exc, skip=1)) from None
        return cast("T", value)


class ArgumentsCodec:
    """ArgumentsCodec writes and reads the arguments of one handler as a JSON object.

    Args:
        fields: Annotation by parameter name.
        required: Names that have no default.
        task_name: For error messages.
        kind: What carries the name, for error messages.
    """

    def __init__(
        self,
        fields: Mapping[str, Any],
        required: set[str],
        task_name: str,
        kind: str = "task",
    ) -> None:
        self._fields = dict(fields)
        # By parameter, as far as it was asked: whether None is a value of its type.
        self._nullable: dict[str, bool] = {}
        self._owner = f"{kind} {task_name!r}"
        shape = cast("Any", typing_extensions.TypedDict)(
            "Arguments",
            {
                name: (
                    typing_extensions.Required[annotation]
                    if name in required
                    else typing_extensions.NotRequired[annotation]
                )
                for name, annotation in fields.items()
            },
        )
        # Nested types without settings of their own take those of the object they stand in.
        settings = _CONFIG.copy()
        settings["extra"] = "forbid"
        shape.__pydantic_config__ = settings
        try:
            self._adapter = _adapter(shape, f"parameters of {self._owner}")
        except errors.HandlerRefused:
            for name, annotation in fields.items():
                _adapter(annotation, f"parameter {name!r} of {self._owner}")
            raise
        self._empty_is_enough = not required

    def encode(self, arguments: Mapping[str, Any]) -> bytes:
        """Returns the object as JSON, UTF-8.

        Args:
            arguments: Value by parameter name; those with defaults may be missing.

        Raises:
            ValueRefused: names the first parameter that is not of its type or that JSON cannot
                carry.
        """
        if not arguments:
            return b"{}"
        for name, value in arguments.items():
            if value is None and not self._takes_none(name):
                self._name_culprit(arguments)
        try:
            return _written(self._adapter, arguments)
        except Exception as exc:
            self._name_culprit(arguments)
            raise errors.ValueRefused(f"arguments of {self._owner}", _problem(exc)) from exc

    def decode(self, data: bytes) -> dict[str, Any]:
        """Reads the object; empty data reads as an object without members.

        Raises:
            ValueRefused: the data is no JSON object, a parameter is missing, unknown or not of
                its type.
        """
        if self._empty_is_enough and data in {b"", b"{}"}:
            return {}
        try:
            (arguments,) = self._adapter.validator.validate_json(b"[" + (data or b"{}") + b"]")
        except Exception as exc:  # noqa: BLE001 - whatever a validator of the program raises
            raise errors.ValueRefused(
                f"arguments of {self._owner}", _problem(exc, skip=1)
            ) from None
        return cast("dict[str, Any]", arguments)

    def _takes_none(self, name: str) -> bool:
        known = self._nullable.get(name)
        if known is None:
            try:
                value: ValueCodec[Any] = ValueCodec(self._fields.get(name, Any), name)
                value.encode(None)
                known = True
            except errors.ValueRefused:
                known = False
            self._nullable[name] = known
        return known

    def _name_culprit(self, arguments: Mapping[str, Any]) -> None:
        for name, value in arguments.items():
            where = f"argument {name!r} of {self._owner}"
            ValueCodec(self._fields.get(name, Any), where).encode(value)


def encode_named(arguments: Mapping[str, Any], task_name: str, kind: str = "task") -> bytes:
    """Returns arguments of which no types are known as a JSON object.

    Raises:
        ValueRefused: names the first parameter that JSON cannot carry.
    """
    try:
        return any_json.encode(arguments)
    except errors.ValueRefused as exc:
        for name, value in arguments.items():
            ValueCodec(Any, f"argument {name!r} of {kind} {task_name!r}").encode(value)
        raise errors.ValueRefused(f"arguments of {kind} {task_name!r}", exc.problem) from exc


def payload(data: bytes, where: str) -> payload_pb2.Payload:
    """Returns JSON data as a payload.

    Raises:
        PayloadTooLarge: the data is longer than 2 MiB.
    """
    check_size(len(data), where)
    return payload_pb2.Payload(data=data, encoding=ENCODING)


def check_size(size_bytes: int, where: str) -> None:
    """Raises PayloadTooLarge if data of this size would be refused."""
    if size_bytes > PAYLOAD_BYTES_MAX:
        raise errors.PayloadTooLarge(
            f"{where}: {size_bytes:,} bytes are more than the {PAYLOAD_BYTES_MAX:,} of a payload;"
            " store it elsewhere and pass a reference",
            reason="PAYLOAD_TOO_LARGE",
            status="RESOURCE_EXHAUSTED",
            metadata={"size_bytes": str(size_bytes), "limit_bytes": str(PAYLOAD_BYTES_MAX)},
        )


def json_data(message: payload_pb2.Payload, where: str) -> bytes:
    """Returns the data of a payload that is JSON.

    Raises:
        ValueRefused: the payload has another encoding.
    """
    if message.encoding not in {"", ENCODING}:
        raise errors.ValueRefused(
            where,
            f"the encoding {message.encoding!r} is not {ENCODING!r}; give the app or client the"
            " codec that wrote it, with codec=...",
        )
    return message.data


def make(kind: Any, fields: Mapping[str, Any], where: str) -> Any:
    """Makes an instance of a model or dataclass.

    Raises:
        ValueRefused: its validators refuse a field.
    """
    try:
        return kind(**fields)
    except pydantic.ValidationError as exc:
        raise errors.ValueRefused(where, _problem(exc)) from None


def _adapter(annotation: Any, where: str) -> pydantic.TypeAdapter[Any]:
    """Returns an adapter for a tuple of one value.

    The settings then hold for every annotation; a bare dataclass or model would refuse them.
    """
    try:
        wrapped: Any = types.GenericAlias(tuple, (annotation,))
        adapter: pydantic.TypeAdapter[Any] = pydantic.TypeAdapter(wrapped, config=_CONFIG)
        complete = adapter.pydantic_complete
    except NameError as exc:
        raise Unresolved(f"{where}: {exc}") from exc
    except pydantic.PydanticUserError as exc:
        raise _refused(annotation, where, exc) from exc
    except (pydantic_core.SchemaError, TypeError) as exc:
        raise errors.HandlerRefused(f"{where}: no JSON form is known for the type: {exc}") from exc
    if not complete:
        raise Unresolved(f"{where}: {_shown(annotation)} names a type that is not defined")
    return adapter


def _written(adapter: pydantic.TypeAdapter[Any], value: object) -> bytes:
    (plain,) = adapter.serializer.to_python((value,), mode="json", warnings="error")
    text = _encode_json(plain)
    if _LOST in text:
        # pydantic puts these for a lone surrogate in a key; values it leaves to the encoder below.
        kept = adapter.serializer.to_python((value,), mode="python", warnings=False)
        _check_keys(kept)
    return text.encode()


def _check_keys(value: object) -> None:
    """Raises UnicodeEncodeError for a key with a lone surrogate."""
    if isinstance(value, dict):
        for key, each in value.items():
            if isinstance(key, str):
                key.encode()
            _check_keys(each)
    elif isinstance(value, list | tuple):
        for each in value:
            _check_keys(each)


def _refused(annotation: Any, where: str, exc: pydantic.PydanticUserError) -> errors.HandlerRefused:
    if exc.code in {"class-not-fully-defined", "undefined-annotation"}:
        return Unresolved(f"{where}: {_shown(annotation)} names a type that is not defined")
    if exc.code == "typed-dict-version":
        return errors.HandlerRefused(
            f"{where}: take TypedDict from typing_extensions where Python is older than 3.12"
        )
    return errors.HandlerRefused(
        f"{where}: no JSON form is known for {_shown(annotation)}; use what JSON has, a dataclass,"
        " a TypedDict or a pydantic model"
    )


def _shown(annotation: Any) -> str:
    name = getattr(annotation, "__qualname__", None)
    return name if isinstance(annotation, type) and name else str(annotation)


def _problem(exc: Exception, *, skip: int = 0) -> str:
    """Says in one line what is wrong; `skip` levels of the path are our own wrapping."""
    if isinstance(exc, pydantic.ValidationError):
        lines = exc.errors(include_url=False, include_context=False, include_input=False)
        text = "; ".join(
            ": ".join(filter(None, (".".join(map(str, line["loc"][skip:])), line["msg"])))
            for line in lines[:_PROBLEM_COUNT_MAX]
        )
        left_off = len(lines) - _PROBLEM_COUNT_MAX
        clipped = text if len(text) <= _PROBLEM_CHARS_MAX else f"{text[:_PROBLEM_CHARS_MAX]}…"
        return f"{clipped}; and {left_off:,} more" if left_off > 0 else clipped
    if isinstance(exc, UnicodeEncodeError) or "surrogates not allowed" in str(exc):
        return "text with a lone surrogate has no UTF-8 form; clean or encode it first"
    if isinstance(exc, UnicodeDecodeError):
        return (
            "bytes that are no UTF-8 inside a pydantic model; give the model"
            " ser_json_bytes='base64' and val_json_bytes='base64'"
        )
    if isinstance(exc, ValueError) and "Out of range float" in str(exc):
        return "NaN and infinity have no JSON form; send None or text instead"
    if isinstance(exc, RecursionError):
        return "the value contains itself or is nested too deeply"
    return _warned(str(exc))


def _warned(text: str) -> str:
    """Says in one line, and in words of our own, what pydantic's writer did not expect."""
    problems: list[str] = []
    for line in text.removeprefix(_WARNING_HEADING).splitlines():
        found = _UNEXPECTED.search(line)
        if found is None:
            said = line.strip().removeprefix(f"{_WARNING}(").removesuffix(")")
        else:
            field = _FIELD.search(line)
            path = f"{field[1]}: " if field is not None else ""
            said = f"{path}expected {found[1]}, not {found[2]}"
        if said and said not in problems:
            problems.append(said)
    shown = "; ".join(problems[:_PROBLEM_COUNT_MAX])
    return shown if len(shown) <= _PROBLEM_CHARS_MAX else f"{shown[:_PROBLEM_CHARS_MAX]}…"


# For values that no annotation describes: details, arguments by task name.
any_json: ValueCodec[Any] = ValueCodec(Any, "JSON value")
