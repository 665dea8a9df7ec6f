"""Runs named statements and gives typed rows; the only place that touches a cursor."""

from collections.abc import Mapping
from typing import Any, TypeVar

from psycopg.rows import args_row, class_row

from tenure_service.store import queries
from tenure_service.store.connections import Conn

R = TypeVar("R")
Parameters = Mapping[str, Any]


def many(conn: Conn, name: str, row_class: type[R], parameters: Parameters) -> list[R]:
    """Gives all rows of a statement."""
    with conn.cursor(row_factory=class_row(row_class)) as cursor:
        cursor.execute(queries.get(name).text, parameters)
        return cursor.fetchall()


def one(conn: Conn, name: str, row_class: type[R], parameters: Parameters) -> R:
    """Gives the row of a statement that always has one."""
    rows = many(conn, name, row_class, parameters)
    if len(rows) != 1:
        raise AssertionError(f"{name} gave {len(rows)} rows instead of one")
    return rows[0]


def execute(conn: Conn, name: str, parameters: Parameters) -> int:
    """Runs a statement and gives the number of rows that it changed."""
    with conn.cursor() as cursor:
        cursor.execute(queries.get(name).text, parameters)
        return cursor.rowcount


def tuples(conn: Conn, name: str, row_class: type[R], parameters: Parameters) -> list[R]:
    """Gives all rows of a statement whose row class is a tuple with names: the hot path's form."""
    with conn.cursor(row_factory=args_row(row_class)) as cursor:
        cursor.execute(queries.get(name).text, parameters)
        return cursor.fetchall()
