"""The columns, functions, indexes, constraints and triggers that the migrations make, as the golden dump tells them.

The dump is compared with a migrated database by a test, and goes with the migrations wherever the
package goes. Only what has a name of its own counts: parts of partitions come and go with those of
their parents.
"""

import re
from dataclasses import dataclass
from enum import StrEnum
from typing import Final

from tenure_service.store import migrate

_DUMP: Final = "schema.sql"
_SCHEMA: Final = "tenure."
_TABLE: Final = re.compile(r"^CREATE TABLE tenure\.(\w+) \((.*?)^\)", re.DOTALL | re.MULTILINE)
_INLINE: Final = re.compile(r"^ {4}CONSTRAINT (\w+) (.*?),?$", re.MULTILINE)
_ADDED: Final = re.compile(
    r"^ALTER TABLE (?:ONLY )?tenure\.(\w+)\s+ADD CONSTRAINT (\w+) (.*?);$", re.DOTALL | re.MULTILINE
)
_INDEX: Final = re.compile(
    r"^CREATE (?:UNIQUE )?INDEX (\w+) ON (?:ONLY )?tenure\.(\w+) .*?;$", re.DOTALL | re.MULTILINE
)
_TRIGGER: Final = re.compile(
    r"^CREATE TRIGGER (\w+) [^;]*? ON tenure\.(\w+) .*?;$", re.DOTALL | re.MULTILINE
)
_COLUMN: Final = re.compile(
    r"^ {4}(?!CONSTRAINT )(\w+) (.+?)(?: DEFAULT (.+?))?(?: CONSTRAINT \w+)?( NOT NULL)?,?$",
    re.MULTILINE,
)
_FUNCTION: Final = re.compile(
    r"^CREATE (FUNCTION tenure\.(\w+)\(\).*?\$\$(.*?)\$\$);$", re.DOTALL | re.MULTILINE
)
_TABLE_OF_PARTITION: Final = re.compile(r" ATTACH PARTITION tenure\.(\w+) FOR VALUES")
_OF_PARTITION: Final = re.compile(r" ATTACH PARTITION tenure\.(\w+);$", re.MULTILINE)


class Kind(StrEnum):
    """What a part is."""

    INDEX = "index"
    CONSTRAINT = "constraint"
    TRIGGER = "trigger"


@dataclass(frozen=True, slots=True, kw_only=True)
class Part:
    """One part of a table, with the statement that makes it."""

    kind: Kind
    table: str
    name: str
    statement: str

    @property
    def guards(self) -> bool:
        """True if it keeps rows from being wrong; other parts make reading quick."""
        return self.kind is not Kind.INDEX or "UNIQUE" in self.statement


@dataclass(frozen=True, slots=True, kw_only=True)
class Column:
    """One column of a table; `initial` is its default."""

    table: str
    name: str
    type: str
    required: bool
    initial: str | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Function:
    """One function, with the statement that makes it."""

    name: str
    body: str
    statement: str


def columns(schema: str) -> list[Column]:
    """Gives every column of a migrated schema of this release."""
    text = _dump()
    of_partitions = set(_TABLE_OF_PARTITION.findall(text))
    return [
        Column(
            table=table,
            name=name,
            type=plain(kind, schema),
            required=bool(required),
            initial=plain(initial, schema) or None,
        )
        for table, body in _TABLE.findall(text)
        if table not in of_partitions
        for name, kind, initial, required in _COLUMN.findall(body)
    ]


def functions(schema: str) -> list[Function]:
    """Gives every function of a migrated schema of this release."""
    return [
        Function(
            name=name,
            body=plain(body, schema),
            statement=_of(f"CREATE OR REPLACE {statement}", schema),
        )
        for statement, name, body in _FUNCTION.findall(_dump())
    ]


def plain(text: str, schema: str) -> str:
    """Gives a text of the catalogue or the dump as both say it: on one line, without the schema."""
    return " ".join(text.replace(_SCHEMA, "").replace(f"{schema}.", "").split())


def _dump() -> str:
    return (migrate.directory() / _DUMP).read_text(encoding="utf-8")


def expected(schema: str) -> list[Part]:
    """Gives every part of a migrated schema of this release, in the order of the dump."""
    text = _dump()
    of_partitions = set(_OF_PARTITION.findall(text))
    found = [
        Part(
            kind=Kind.CONSTRAINT,
            table=table,
            name=name,
            statement=f"ALTER TABLE {_SCHEMA}{table} ADD CONSTRAINT {name} {what}",
        )
        for table, body in _TABLE.findall(text)
        for name, what in _INLINE.findall(body)
    ]
    for kind, pattern in (
        (Kind.CONSTRAINT, _ADDED),
        (Kind.INDEX, _INDEX),
        (Kind.TRIGGER, _TRIGGER),
    ):
        for match in pattern.finditer(text):
            first, second = match[1], match[2]
            table, name = (first, second) if kind is Kind.CONSTRAINT else (second, first)
            found.append(Part(kind=kind, table=table, name=name, statement=match[0].rstrip(";")))
    return [
        Part(
            kind=part.kind,
            table=part.table,
            name=part.name,
            statement=_of(part.statement, schema),
        )
        for part in found
        if part.name not in of_partitions
    ]


def _of(statement: str, schema: str) -> str:
    """Gives a statement of the dump for a schema, on one line, and for partitions as well."""
    one_line = " ".join(statement.replace(_SCHEMA, f"{schema}.").split())
    return one_line.replace(" ON ONLY ", " ON ").replace("ALTER TABLE ONLY ", "ALTER TABLE ")
