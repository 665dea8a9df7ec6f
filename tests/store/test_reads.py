"""Reads go without a transaction of their own, and leave none behind for what is written next."""

from collections.abc import Iterator

import psycopg
import pytest
from psycopg.pq import TransactionStatus

from tenure_service.store.connections import Conn
from tenure_service.store.database import Database


@pytest.fixture
def pool(database: str, conn: psycopg.Connection) -> Iterator[Database]:
    """A pool of one connection, so that a read and a write share it."""
    conn.execute("create table public.marks (number integer not null)")
    opened = Database(database, schema="tenure", connection_count=1, name="reads")
    opened.open()
    yield opened
    opened.close()


def _status(conn: Conn) -> TransactionStatus:
    conn.execute("select 1")
    return conn.info.transaction_status


def _write_and_fail(conn: Conn) -> None:
    conn.execute("insert into public.marks values (1)")
    raise ValueError("after the first statement")


def test_read__one_statement__opens_no_transaction(pool: Database) -> None:
    assert pool.read(_status) is TransactionStatus.IDLE


def test_transact__read_before_on_its_connection__is_one_transaction(
    pool: Database, conn: psycopg.Connection
) -> None:
    pool.read(_status)
    assert pool.transact(_status) is TransactionStatus.INTRANS
    pool.read(_status)
    with pytest.raises(ValueError, match="after the first"):
        pool.transact(_write_and_fail)
    assert conn.execute("select count(*) from public.marks").fetchone() == (0,)
