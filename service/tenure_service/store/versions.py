"""Versions of workflow functions: which workers came with, and what becomes of runs of lost ones."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Final, NamedTuple

from tenure_service.store import arrays, rows, statements
from tenure_service.store.database import Conn
from tenure_service.store.jsonb import clean, jsonb
from tenure_service.store.registry import Lane

_KIND: Final = "WORKFLOW"


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkflowHandler:
    """A workflow function as a worker has it."""

    queue: str
    name: str
    version: str
    compatible_versions: tuple[str, ...] = ()
    pinned: bool = False

    @property
    def versions(self) -> tuple[str, ...]:
        """The versions whose runs it goes on with."""
        return (self.version, *self.compatible_versions)

    def to_json(self) -> dict[str, object]:
        """Gives what a session remembers of it."""
        return {
            "kind": _KIND,
            "name": self.name,
            "queue": self.queue,
            "version": self.version,
            "compatible_versions": list(self.compatible_versions),
            "pinned": self.pinned,
        }


class Served(NamedTuple):
    """A version of a workflow function."""

    namespace_id: int
    queue: str
    name: str
    version: str


class SessionHandler(NamedTuple):
    """A workflow function of a session, without its version."""

    session_id: str
    queue: str
    name: str


def note(conn: Conn, namespace_id: int, handlers: Sequence[WorkflowHandler]) -> None:
    """Notes the versions that a worker comes with, and that those it goes on with are served."""
    parameters = {
        "namespace_id": namespace_id,
        "handlers": jsonb([handler.to_json() for handler in handlers]),
    }
    statements.execute(conn, "version_note", parameters)
    touch(
        conn,
        (
            Served(namespace_id, handler.queue, handler.name, version)
            for handler in handlers
            for version in handler.versions
        ),
    )


def touch(conn: Conn, served: Iterable[Served], *, now: datetime | None = None) -> None:
    """Notes that workers serve versions."""
    found = list(served)
    parameters = _names(found) | {
        "versions": [clean(one.version) for one in found],
        "now": now,
    }
    statements.execute(conn, "version_touch", parameters)


def of_sessions(conn: Conn, wanted: Iterable[SessionHandler]) -> dict[SessionHandler, str]:
    """Gives the versions that sessions came with; what a session does not serve is missing."""
    asked = list(wanted)
    parameters = {
        "session_ids": arrays.uuids(one.session_id for one in asked),
        "queues": [clean(one.queue) for one in asked],
        "names": [clean(one.name) for one in asked],
    }
    found = statements.many(conn, "version_of_session", rows.SessionVersion, parameters)
    return {SessionHandler(row.session_id, row.queue, row.name): row.version for row in found}


def orphans(
    conn: Conn, served: Sequence[Served], grace_ms: int, *, now: datetime | None = None
) -> dict[int, Lane]:
    """Finds lanes whose runs wait in vain, of the workflows that are served, with where to go."""
    parameters = _names(list(dict.fromkeys(one._replace(version="") for one in served)))
    found = statements.many(
        conn,
        "version_orphan",
        rows.OrphanedLane,
        parameters | {"grace_ms": grace_ms, "now": now},
    )
    return {
        row.lane_id: Lane(
            row.namespace_id, row.queue, row.name, row.lane_key, row.suspect, row.version
        )
        for row in found
    }


def adopt(
    conn: Conn,
    targets: Mapping[int, int],
    grace_ms: int,
    run_count_max: int,
    *,
    now: datetime | None = None,
) -> list[rows.RunAdopted]:
    """Moves runs of orphaned lanes to others, where nobody has come back meanwhile."""
    parameters = {
        "lane_ids": arrays.numbers(targets.keys()),
        "target_lane_ids": arrays.numbers(targets.values()),
        "grace_ms": grace_ms,
        "run_count_max": run_count_max,
        "now": now,
    }
    return statements.many(conn, "version_adopt", rows.RunAdopted, parameters)


def _names(served: Sequence[Served]) -> dict[str, object]:
    return {
        "namespace_ids": arrays.numbers(one.namespace_id for one in served),
        "queues": [clean(one.queue) for one in served],
        "names": [clean(one.name) for one in served],
    }
