"""The database itself, for commands that work without a server."""

from __future__ import annotations

import contextlib
import getpass
import socket
from typing import TYPE_CHECKING, Final

from tenure_service.cli import schema

if TYPE_CHECKING:
    import argparse
    from collections.abc import Iterator

    from tenure_service.store.database import Database

_CONNECTIONS: Final = 2


@contextlib.contextmanager
def opened(values: argparse.Namespace, name: str) -> Iterator[Database]:
    """Connects to the database that the flags or variables name.

    Args:
        values: The flags.
        name: application_name in pg_stat_activity.

    Raises:
        MigrationError: its schema is not what this release needs.
        TenureError: DATABASE_UNAVAILABLE.
    """
    from tenure_service.store import database, migrate

    dsn, schema_name = schema.where(values)
    ready = migrate.check_ready(dsn, schema_name)
    if not ready.ready:
        raise migrate.MigrationError("; ".join(ready.problems))
    found = database.Database(dsn, schema=schema_name, connection_count=_CONNECTIONS, name=name)
    found.open()
    try:
        yield found
    finally:
        found.close()


def operator() -> str:
    """Names who runs the command, for those who ask later."""
    try:
        user = getpass.getuser()
    except (KeyError, OSError):  # an account without a name, as in some containers
        user = "unknown"
    return f"{user}@{socket.gethostname()}"
