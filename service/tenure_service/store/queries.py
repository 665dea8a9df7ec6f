"""Loads the named SQL statements of store/sql/*.sql.

Owns: the file format. Must not know: what a statement does, or who runs it.

    -- name: task_get :one TaskRow
    -- What it does. Invariants. Locks and their order. The index it needs.
    select ...

A statement's text is bytes on purpose: psycopg asks for a LiteralString, which no text read from a
file can be, and takes bytes; ruff's S608 is the net under statements built from strings.
"""

from __future__ import annotations

import functools
import re
from dataclasses import dataclass
from importlib import resources
from typing import TYPE_CHECKING, Final, Literal, TypeAlias, cast

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

Arity: TypeAlias = Literal["one", "many", "exec"]

_HEADER: Final = re.compile(r"^-- name: *(.*)$", re.MULTILINE)
_DECLARATION: Final = re.compile(r"([a-z][a-z0-9_]*) :(one|many|exec)(?: ([A-Z][A-Za-z0-9]*))?")


class QueryError(Exception):
    """A file of store/sql breaks the format, or a name has no statement: a bug of this release."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Query:
    """One named statement.

    Attributes:
        arity: how many rows the caller expects: at most one, any number, or none at all.
        row_class_name: the class in store/rows that a row fits, None for `exec`.
        text: the statement without its header, for psycopg.
        source: the file it came from.
    """

    name: str
    arity: Arity
    row_class_name: str | None
    text: bytes
    source: str


def parse(source: str, text: str) -> list[Query]:
    """Returns the statements of one file in their order.

    Raises:
        QueryError: a header or a statement is malformed.
    """
    before, *blocks = _HEADER.split(text)
    if _without_comments(before):
        raise QueryError(f"{source}: SQL before the first `-- name:`")
    pairs = zip(blocks[::2], blocks[1::2], strict=True)
    return [_query(source, declaration.strip(), body) for declaration, body in pairs]


def _query(source: str, declaration: str, body: str) -> Query:
    match = _DECLARATION.fullmatch(declaration)
    if match is None:
        raise QueryError(
            f"{source}: `-- name: {declaration}` is not `name :one|:many|:exec RowClass`"
        )
    name, arity, row_class_name = match.groups()
    if (arity == "exec") != (row_class_name is None):
        raise QueryError(f"{source}: {name} is :{arity}, so it must{_row_rule(arity)} a row class")
    statement = _without_header(body).strip().removesuffix(";").rstrip()
    if not _without_comments(statement):
        raise QueryError(f"{source}: {name} has no statement")
    return Query(
        name=name,
        arity=cast("Arity", arity),
        row_class_name=row_class_name,
        text=statement.encode(),
        source=source,
    )


def _row_rule(arity: str) -> str:
    return " not name" if arity == "exec" else " name"


def _without_header(body: str) -> str:
    lines = body.strip("\n").split("\n")
    while lines and lines[0].startswith("--"):
        del lines[0]
    return "\n".join(lines)


def _without_comments(text: str) -> str:
    return re.sub(r"--[^\n]*", "", text).strip()


def merge(files: Iterable[tuple[str, str]]) -> Mapping[str, Query]:
    """Returns the statements of all files by name.

    Raises:
        QueryError: two statements have one name, or a file is malformed.
    """
    found: dict[str, Query] = {}
    for source, text in files:
        for query in parse(source, text):
            if query.name in found:
                raise QueryError(f"{source}: {query.name} is already in {found[query.name].source}")
            found[query.name] = query
    return found


@functools.cache
def load() -> Mapping[str, Query]:
    """Returns every statement of this release by name; read once a process."""
    folder = resources.files("tenure_service.store") / "sql"
    files = sorted((file for file in folder.iterdir() if file.name.endswith(".sql")), key=str)
    return merge((file.name, file.read_text(encoding="utf-8")) for file in files)


def get(name: str) -> Query:
    """Returns one statement; meant for module constants, so that a wrong name fails at import.

    Raises:
        QueryError: no file has the name.
    """
    try:
        return load()[name]
    except KeyError as exc:
        raise QueryError(f"no statement is called {name}") from exc
