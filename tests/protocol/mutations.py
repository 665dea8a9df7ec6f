"""Bad values for every field of a message, by its descriptor.

`mutations(base)` gives copies of a message, each with one field changed, with the path of the field
and a name of the value: every string empty, 1 MB, with NUL and so on; every number at its bounds and
beyond; every enum unknown; every duration negative, huge, and inconsistent.
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
BYTES: dict[str, bytes] = {"empty": b"", "nul": b"\x00" * 9, "every byte": bytes(range(256))}
_SIGNED = (-(2**31), -1, 0, 1, 2**31 - 1)
_NUMBERS: dict[int, tuple[float, ...]] = {
    FieldDescriptor.CPPTYPE_INT32: _SIGNED,
    FieldDescriptor.CPPTYPE_INT64: (-(2**63), -1, 0, 1, 2**63 - 1),
    FieldDescriptor.CPPTYPE_UINT32: (0, 1, 10_001, 2**31, 2**32 - 1),
    FieldDescriptor.CPPTYPE_UINT64: (0, 1, 2**63, 2**64 - 1),
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


def _is_map(field: FieldDescriptor) -> bool:
    return field.message_type is not None and field.message_type.GetOptions().map_entry


def _values(field: FieldDescriptor) -> Iterator[tuple[str, Any]]:
    if _is_map(field):
        for name, text in STRINGS.items():
            yield f"key {name}", {text: 1}
        yield "value 2**32-1", {"k": 2**32 - 1}
        yield "5,000 entries", {str(number): 1 for number in range(5000)}
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


def _put(message: Any, path: Path, value: Any) -> None:
    for field in path[:-1]:
        found = getattr(message, field.name)
        if field.is_repeated:
            found = found[0] if len(found) else found.add()
        else:
            found.SetInParent()
        message = found
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
