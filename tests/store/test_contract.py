"""Prepares and describes every named statement on the migrated database: no stale SQL, no row
class that disagrees with its columns."""

import ast
import dataclasses
import datetime
import decimal
import enum
import importlib
import re
import types
import typing
import uuid
from collections.abc import Sequence
from pathlib import Path

import psycopg
import pytest
from psycopg import pq

from tenure_service import store
from tenure_service.store import queries

SCALARS: dict[object, set[str]] = {
    bool: {"bool"},
    int: {"int2", "int4", "int8"},
    float: {"float4", "float8"},
    decimal.Decimal: {"numeric"},
    str: {"text", "varchar"},
    bytes: {"bytea"},
    uuid.UUID: {"uuid"},
    datetime.datetime: {"timestamptz"},
    datetime.date: {"date"},
    datetime.timedelta: {"interval"},
}
JSON = {typing.Any, object, dict, list}
NAMES = {
    "datetime": datetime,
    "decimal": decimal,
    "uuid": uuid,
    "UUID": uuid.UUID,
    "Any": typing.Any,
    "Sequence": Sequence,
}
# What libpq describes: the type's name, its element's name for an array, an enum's labels.
DESCRIBE_TYPE = """
    select
        t.typname,
        e.typname,
        (
            select array_agg(v.enumlabel::text)
            from pg_enum as v
            where v.enumtypid = coalesce(nullif(t.typelem, 0), t.oid)
        )
    from pg_type as t
    left join pg_type as e on e.oid = t.typelem and t.typcategory = 'A'
    where t.oid = %s
"""


def _numbered(text: bytes) -> bytes:
    """Turns psycopg's named placeholders into the protocol's numbers."""
    names: list[bytes] = []

    def number(match: re.Match[bytes]) -> bytes:
        if match[0] == b"%%":
            return b"%"
        if match[1] not in names:
            names.append(match[1])
        return b"$%d" % (names.index(match[1]) + 1)

    return re.sub(rb"%%|%\((\w+)\)[sbt]", number, text)


def _describe(conn: psycopg.Connection, query: queries.Query) -> list[tuple[str, int]]:
    name = query.name.encode()
    prepared = conn.pgconn.prepare(name, _numbered(query.text))
    assert prepared.status == pq.ExecStatus.COMMAND_OK, prepared.get_error_message()
    described = conn.pgconn.describe_prepared(name)
    assert described.status == pq.ExecStatus.COMMAND_OK, described.get_error_message()
    columns = range(described.nfields)
    return [((described.fname(i) or b"").decode(), described.ftype(i)) for i in columns]


def _without_none(annotation: object) -> object:
    if isinstance(annotation, types.UnionType) or typing.get_origin(annotation) is typing.Union:
        (found,) = [a for a in typing.get_args(annotation) if a is not types.NoneType]
        return _without_none(found)
    if isinstance(annotation, typing.NewType):
        return _without_none(annotation.__supertype__)
    return annotation


def _fits(conn: psycopg.Connection, annotation: object, oid: int) -> bool:
    row = conn.execute(DESCRIBE_TYPE, [oid]).fetchone()
    assert row is not None, f"no type {oid}"
    name, element, labels = row
    annotation = _without_none(annotation)
    if name in {"json", "jsonb"}:
        return (typing.get_origin(annotation) or annotation) in JSON
    origin = typing.get_origin(annotation)
    if origin in {list, tuple, Sequence} and element is not None:
        annotation, name = _without_none(typing.get_args(annotation)[0]), element
    if isinstance(annotation, type) and issubclass(annotation, enum.Enum):
        return sorted(labels or []) == sorted(str(member.value) for member in annotation)
    if annotation is str and labels is not None:
        return True
    if origin is typing.Literal:
        return labels is None or sorted(typing.get_args(annotation)) == sorted(labels)
    return name in SCALARS.get(typing.get_origin(annotation) or annotation, set())


@pytest.mark.parametrize("name", sorted(queries.load()))
def test_describe__named_query__agrees_with_its_row_class(
    read_only_conn: psycopg.Connection, name: str
) -> None:
    query = queries.get(name)
    columns = _describe(read_only_conn, query)
    if query.row_class_name is None:
        assert columns == [], f"{name} is :exec and returns columns"
        return
    rows = importlib.import_module("tenure_service.store.rows")
    row_class = getattr(rows, query.row_class_name)
    hints = typing.get_type_hints(row_class, localns=NAMES)
    found = [column for column, _ in columns]
    if issubclass(row_class, tuple):
        assert found == list(row_class._fields), "a tuple takes its columns by position"
    else:
        parameters = row_class.__dataclass_params__
        assert parameters.frozen, f"{query.row_class_name} must be frozen"
        assert sorted(found) == sorted(field.name for field in dataclasses.fields(row_class))
    misfits = [
        f"{column}: {hints[column]} for oid {oid}"
        for column, oid in columns
        if not _fits(read_only_conn, hints[column], oid)
    ]
    assert misfits == []


def _calls() -> list[tuple[str, str, str | None, str]]:
    """Returns the statement, function, row class and place of every call in the store."""
    found = []
    for path in sorted(Path(store.__path__[0]).glob("*.py")):
        for node in ast.walk(ast.parse(path.read_text())):
            match node:
                case ast.Call(
                    func=ast.Attribute(value=ast.Name(id="statements"), attr=function),
                    args=[_, ast.Constant(value=str(name)), *rest],
                ):
                    row_class = (
                        rest[0].attr if rest and isinstance(rest[0], ast.Attribute) else None
                    )
                    found.append((name, function, row_class, f"{path.name}:{node.lineno}"))
    return found


def test_call__statement_with_rows__names_the_row_class_of_its_header() -> None:
    wrong = [
        (where, name, row_class)
        for name, function, row_class, where in _calls()
        if function != "execute" and queries.get(name).row_class_name != row_class
    ]
    assert wrong == []
