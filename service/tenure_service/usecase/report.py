"""Reports of workers: the fast path for outputs, the careful form for everything else."""

from collections.abc import Sequence

from tenure_service.engine.tokens import TaskKey
from tenure_service.store import cancels, leases
from tenure_service.store.database import Conn, Database, DataRefused
from tenure_service.store.leases import Completion
from tenure_service.usecase import end
from tenure_service.usecase.catalogue import Catalogue


class _Disagreement(Exception):
    """The fast path ended fewer hand-outs than it was given; nothing of it is kept."""


def complete(database: Database, completions: Sequence[Completion]) -> bool:
    """Records outputs of hand-outs that this server made, in one statement.

    Returns:
        True if all are recorded. False if nothing is: a lease is gone or a hand-out had ended, and
        the careful form must tell which.
    """

    def work(conn: Conn) -> None:
        if leases.complete(conn, completions) != len(completions):
            raise _Disagreement
        # In a statement of its own: a request may have been committed while the first one waited
        # for the lease, and nobody else would drop it before its grace is over.
        cancels.delete_any(conn, [TaskKey(item.run_id, item.task_id) for item in completions])

    try:
        database.transact(work)
    except (_Disagreement, DataRefused):
        return False
    return True


def end_all(database: Database, catalogue: Catalogue, endings: Sequence[end.Ending]) -> end.Ends:
    """Ends hand-outs in one transaction, by the careful form."""
    return database.transact(lambda conn: end.end(conn, catalogue, endings))
