"""Bad values for every field of a message, by its descriptor.

`mutations(base)` gives copies of a message, each with one field changed, with the path of the field
and a name of the value: every string empty, 1 MB, with NUL and so on; every number at its bounds and
beyond; every enum unknown; every duration negative, huge, and inconsistent; every list with nothing
in it and with more than any of them allows. `encoded(base)` gives what only the wire can carry: every
string that is no UTF-8.
"""

from collections.abc import Iterator
from typing import Any

from google.protobuf import duration_pb2
from google.protobuf.descriptor import FieldDescriptor
from google.protobuf.message import Message

_DEPTH_MAX = 5
STRINGS: dict[str, str] = {
    "empty": "",
    "space": " ",
    "1 MB": "x" * 1_000_000,
    "nul": "a\x00b",
    "control": "\x01\x7f\r\n",
    "emoji": "\U0001f600\U0001f468‍\U0001f469" * 20,
    "edges of unicode": "\ufeff\uffff\U0010ffff\u202e\ud7ff",
    "path": "../../etc/passwd",
    "quotes": "'\";{}[]--\\%s%(name)s$1,null",
}
BYTES: dict[str, bytes] = {
    "empty": b"",
    "nul": b"\x00" * 9,
    "every byte": bytes(range(256)),
    "above 2 MiB": b"x" * (2 * 1024 * 1024 + 1),
}
#: No UTF-8, each as long as its place holder.
ENCODED: dict[str, bytes] = {
    "lone surrogate": b"\xed\xa0\x80",
    "other surrogate": b"\xed\xbf\xbf",
    "overlong": b"\xe0\x80\xaf",
    "cut short": b"ab\xc3",
    "no byte of UTF-8": b"\xff\xfe\xff",
}
_PLACE_HOLDER = "\x01\x02\x03"
#: More than any list allows.
_MANY = 10_001
#: The bounds of this protocol, and the next number on either side of them.
_BOUNDS = (-101, -100, 100, 101, 1000, 1001, 10_000, 10_001)
_SIGNED = (-(2**31), -1, 0, 1, 2**31 - 1, *_BOUNDS)
_NUMBERS: dict[int, tuple[float, ...]] = {
    FieldDescriptor.CPPTYPE_INT32: _SIGNED,
    FieldDescriptor.CPPTYPE_INT64: (-(2**63), -1, 0, 1, 2**63 - 1, *_BOUNDS),
    FieldDescriptor.CPPTYPE_UINT32: (0, 1, 2**31, 2**32 - 1, *_BOUNDS[2:]),
    FieldDescriptor.CPPTYPE_UINT64: (0, 1, 2**63, 2**64 - 1, *_BOUNDS[2:]),
    FieldDescriptor.CPPTYPE_DOUBLE: (
        float("nan"),
        float("inf"),
        float("-inf"),
        -1.0,
        -0.0,
        5e-324,
        1e308,
    ),
    FieldDescriptor.CPPTYPE_ENUM: (-1, 0, 99, 2**31 - 1),
    FieldDescriptor.CPPTYPE_BOOL: (True, False),
}
DURATIONS = {
    "zero": (0, 0),
    "negative": (-1, 0),
    "just negative": (0, -1),
    "least": (-(2**63), 0),
    "most": (2**63 - 1, 0),
    "10,000 years": (315_576_000_000, 999_999_999),
    "too many nanos": (0, 2_000_000_000),
    "signs differ": (1, -1),
    "other signs differ": (-1, 1),
}

Mutation = tuple[str, str, Any]
Path = tuple[FieldDescriptor, ...]


def mutations(base: Message) -> Iterator[Mutation]:
    """Yields (path, name of the value, message)."""
    for path in _paths(base.DESCRIPTOR, ()):
        text = ".".join(field.name for field in path)
        for name, value in _values(path[-1]):
            changed = type(base)()
            changed.CopyFrom(base)
            _put(changed, path, value)
            yield text, name, changed
    for path in _lists(base.DESCRIPTOR, ()):
        text = ".".join(field.name for field in path)
        for name, count in (("none", 0), (f"{_MANY:,}", _MANY)):
            changed = type(base)()
            changed.CopyFrom(base)
            _repeat(changed, path, count)
            yield text, name, changed


def encoded(base: Message) -> Iterator[tuple[str, str, bytes]]:
    """Yields (path, name of the value, encoded message) for all strings, also those of maps."""
    for path in _paths(base.DESCRIPTOR, ()):
        field = path[-1]
        if not _is_map(field) and field.type != FieldDescriptor.TYPE_STRING:
            continue
        changed = type(base)()
        changed.CopyFrom(base)
        _put(changed, path, _entry(field, _PLACE_HOLDER) if _is_map(field) else _PLACE_HOLDER)
        raw = changed.SerializeToString()
        if raw.count(_PLACE_HOLDER.encode()) != 1:
            raise AssertionError(f"{path[-1].full_name} is not on the wire")
        for name, value in ENCODED.items():
            text = ".".join(part.name for part in path)
            yield text, name, raw.replace(_PLACE_HOLDER.encode(), value)


def strings(base: Message) -> set[str]:
    """Gives the paths of all fields of a message that are strings."""
    return {
        ".".join(field.name for field in path)
        for path in _paths(base.DESCRIPTOR, ())
        if path[-1].cpp_type == FieldDescriptor.CPPTYPE_STRING
    }


def _paths(descriptor: Any, above: Path) -> Iterator[Path]:
    for field in descriptor.fields:
        path = (*above, field)
        inner = field.message_type
        if inner is None or _is_map(field) or inner.full_name == "google.protobuf.Duration":
            yield path
        elif inner not in {f.containing_type for f in above} and len(path) <= _DEPTH_MAX:
            yield from _paths(inner, path)


def _lists(descriptor: Any, above: Path) -> Iterator[Path]:
    for field in descriptor.fields:
        path = (*above, field)
        if field.is_repeated and not _is_map(field):
            yield path
        inner = field.message_type
        if (
            inner is not None
            and not _is_map(field)
            and inner not in {f.containing_type for f in above}
            and len(path) <= _DEPTH_MAX
        ):
            yield from _lists(inner, path)


def _is_map(field: FieldDescriptor) -> bool:
    return field.message_type is not None and field.message_type.GetOptions().map_entry


def _value_of(field: FieldDescriptor) -> FieldDescriptor:
    if field.message_type is None:
        raise AssertionError(f"{field.full_name} is no map")
    return field.message_type.fields_by_name["value"]


def _entry(field: FieldDescriptor, key: str) -> dict[str, Any]:
    """Gives an entry of a map of strings or numbers."""
    value = _value_of(field)
    return {key: "v" if value.type == FieldDescriptor.TYPE_STRING else 1}


def _values(field: FieldDescriptor) -> Iterator[tuple[str, Any]]:
    if _is_map(field):
        for name, text in STRINGS.items():
            yield f"key {name}", _entry(field, text)
        for name, value in _values(_value_of(field)):
            yield f"value {name}", {"k": value}
        many: dict[str, Any] = {}
        for place in range(5000):
            many |= _entry(field, str(place))
        yield "5,000 entries", many
    elif field.message_type is not None:
        for name, (seconds, nanos) in DURATIONS.items():
            yield name, duration_pb2.Duration(seconds=seconds, nanos=nanos)
    elif field.type == FieldDescriptor.TYPE_STRING:
        yield from STRINGS.items()
    elif field.type == FieldDescriptor.TYPE_BYTES:
        yield from BYTES.items()
    else:
        for number in _NUMBERS[field.cpp_type]:
            yield str(number), number


def _repeat(message: Any, path: Path, count: int) -> None:
    """Makes a list that long, of copies of its first item."""
    message = _holder(message, path)
    items = getattr(message, path[-1].name)
    if path[-1].message_type is not None:
        first = items[0] if len(items) else items.add()
        copies = [type(first).FromString(first.SerializeToString()) for _ in range(count)]
    else:
        empty = {FieldDescriptor.CPPTYPE_STRING: "x"}.get(path[-1].cpp_type, 1)
        copies = [items[0] if len(items) else empty] * count
    message.ClearField(path[-1].name)
    getattr(message, path[-1].name).extend(copies)


def _holder(message: Any, path: Path) -> Any:
    """Gives the message that has the last field of a path; makes those above it."""
    for field in path[:-1]:
        found = getattr(message, field.name)
        if field.is_repeated:
            found = found[0] if len(found) else found.add()
        else:
            found.SetInParent()
        message = found
    return message


def _put(message: Any, path: Path, value: Any) -> None:
    message = _holder(message, path)
    last = path[-1]
    if _is_map(last):
        getattr(message, last.name).clear()
        getattr(message, last.name).update(value)
    elif last.is_repeated:
        del getattr(message, last.name)[:]
        getattr(message, last.name).append(value)
    elif last.message_type is not None:
        getattr(message, last.name).CopyFrom(value)
    else:
        setattr(message, last.name, value)
