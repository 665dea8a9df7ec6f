"""Runs of versions that no worker has any more: the newest version there is tries them by replay."""

from collections.abc import Sequence
from datetime import timedelta

from tenure_service.engine import limits
from tenure_service.store import versions
from tenure_service.store.database import Database
from tenure_service.store.versions import Served
from tenure_service.usecase.catalogue import Catalogue


def touch(database: Database, served: Sequence[Served]) -> None:
    """Notes which versions this server's workers serve."""
    database.transact(lambda conn: versions.touch(conn, served))


def adopt(
    database: Database, catalogue: Catalogue, served: Sequence[Served], grace: timedelta
) -> dict[int, int]:
    """Moves runs that have waited in vain to the newest version, of the workflows that are served.

    A run that is suspended is moved once it is woken, since it is ready then.

    Returns:
        The best rank that was moved, by lane.
    """
    grace_ms = int(grace.total_seconds() * 1000)
    orphaned = database.read(lambda conn: versions.orphans(conn, served, grace_ms))
    if not orphaned:
        return {}
    # Lanes are made before anything refers to them, in a transaction of their own.
    lane_ids = catalogue.lane_ids(orphaned.values())
    targets = {lane_id: lane_ids[target] for lane_id, target in orphaned.items()}
    moved = database.transact(
        lambda conn: versions.adopt(conn, targets, grace_ms, limits.ADOPT_COUNT_MAX)
    )
    ranks: dict[int, int] = {}
    for row in moved:
        ranks[row.lane_id] = min(row.rank, ranks.get(row.lane_id, row.rank))
    return ranks
