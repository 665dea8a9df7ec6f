"""LISTEN and NOTIFY: one connection each, outside the pool and outside every hot transaction."""

import threading
from collections.abc import AsyncGenerator
from typing import TYPE_CHECKING

import psycopg
from psycopg import AsyncConnection, Connection, sql

from tenure_service.engine.errors import database_unavailable
from tenure_service.store import connections

if TYPE_CHECKING:
    from psycopg.rows import TupleRow


class Channel:
    """One channel of notifications in one database."""

    def __init__(self, dsn: str, name: str) -> None:
        self._dsn = dsn
        self._name = name
        self._conn: Connection[TupleRow] | None = None
        self._lock = threading.Lock()

    def notify(self, text: str) -> None:
        """Sends one notification of at most 8,000 bytes.

        Raises:
            TenureError: DATABASE_UNAVAILABLE; the notification is lost, which is harmless.
        """
        with self._lock:
            try:
                if self._conn is None or self._conn.closed:
                    self._conn = psycopg.connect(
                        self._dsn, **connections.for_hints("tenure notify")
                    )
                self._conn.execute("select pg_notify(%s::text, %s::text)", [self._name, text])
            except psycopg.Error as exc:
                if self._conn is not None:
                    self._conn.close()
                raise database_unavailable("a notification could not be sent") from exc

    async def listen(self) -> AsyncGenerator[str]:
        """Gives notifications as they come.

        Raises:
            TenureError: DATABASE_UNAVAILABLE, once the connection is lost.
        """
        try:
            conn = await AsyncConnection.connect(
                self._dsn, **connections.for_hints("tenure listen")
            )
            async with conn:
                await conn.execute(sql.SQL("listen {}").format(sql.Identifier(self._name)))
                async for notification in conn.notifies():
                    yield notification.payload
        except psycopg.Error as exc:
            raise database_unavailable("the listening connection was lost") from exc

    def close(self) -> None:
        """Closes the connection that notifies."""
        with self._lock:
            if self._conn is not None:
                self._conn.close()
