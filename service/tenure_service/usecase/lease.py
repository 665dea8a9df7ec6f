"""Handing out tasks: picks of several sessions from several lanes, in one transaction."""

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from tenure_service.engine.policy import Policy
from tenure_service.engine.tokens import TaskKey
from tenure_service.store import activations, deliveries, leases, rows, sessions
from tenure_service.store.activations import Activation
from tenure_service.store.database import Conn, Database
from tenure_service.store.leases import Pick
from tenure_service.telemetry import metrics
from tenure_service.usecase.catalogue import Catalogue


@dataclass(frozen=True, slots=True)
class Grant:
    """What one pick took: tasks or runs under one lease, with their policies and left details."""

    pick: Pick
    tasks: list[rows.LeasedTask]
    policies: dict[int, Policy]
    details: dict[str, rows.DetailsRow]
    #: What runs are handed with, by their ids.
    activations: Mapping[str, Activation] = field(default_factory=dict)


_Taken = list[tuple[list[rows.LeasedTask], dict[str, rows.DetailsRow]]]


def lease(database: Database, catalogue: Catalogue, picks: Sequence[Pick]) -> list[Grant]:
    """Leases tasks for each pick, in the order of the picks; one may come back empty.

    A lane that has run dry is left, so that one task does not cost a statement for each of the
    thousands of workers that could have it.
    """

    def work(conn: Conn) -> tuple[_Taken, Mapping[str, Activation]]:
        taken: _Taken = []
        tried: dict[int, tuple[Pick, int]] = {}
        dry: set[int] = set()
        for pick in picks:
            before = tried.get(pick.lane_id)
            if before is not None and pick.lane_id not in dry and _ran_dry(conn, *before):
                dry.add(pick.lane_id)
            found = ([], {}) if pick.lane_id in dry else take(conn, pick)
            tried[pick.lane_id] = pick, len(found[0])
            taken.append(found)
        runs = [
            (task.lease_id, task.run_id)
            for pick, (tasks, _) in zip(picks, taken, strict=True)
            if pick.of_runs
            for task in tasks
        ]
        return taken, activations.read(conn, runs) if runs else {}

    taken, activated = database.transact(work)
    count(task for tasks, _ in taken for task in tasks)
    return [
        Grant(
            pick, tasks, catalogue.policies({task.policy_id for task in tasks}), details, activated
        )
        for pick, (tasks, details) in zip(picks, taken, strict=True)
    ]


def count(tasks: Iterable[rows.LeasedTask]) -> None:
    """Counts what was handed out, once that is committed."""
    waits = [max(task.wait_seconds, 0.0) for task in tasks]
    metrics.TASKS_LEASED.add(len(waits))
    metrics.TASK_WAIT.observe_many(waits)


def _ran_dry(conn: Conn, pick: Pick, task_count: int) -> bool:
    """Says whether a pick took the last of its lane: one of a session that is gone does not tell."""
    if task_count:
        return task_count < pick.task_count_max
    return sessions.takes(conn, pick.session_id, pick.epoch)


def take(conn: Conn, pick: Pick) -> tuple[list[rows.LeasedTask], dict[str, rows.DetailsRow]]:
    """Leases tasks for one pick inside the caller's transaction, with what was left for them."""
    tasks = leases.take(conn, pick)
    if pick.of_runs:
        # What an activation leaves for the next one are its steps.
        return tasks, {}
    again = [
        (TaskKey(task.run_id, task.task_id), task.delivery - 1)
        for task in tasks
        if task.delivery > 1
    ]
    return tasks, deliveries.details(conn, again) if again else {}


def heads(database: Database, lane_ids: Sequence[int]) -> list[rows.LaneHead]:
    """Finds the first waiting task of each lane, the most urgent lane first."""
    return database.read(lambda conn: leases.heads(conn, lane_ids))


def gone(database: Database, lease_ids: Collection[str]) -> set[str]:
    """Says which of these leases are not there any more."""
    return set(lease_ids) - database.read(lambda conn: leases.live(conn, sorted(lease_ids)))


def renew(
    database: Database,
    tokens: Sequence[leases.Token],
    started: Sequence[leases.Started],
    lease_ms: int,
    progress: Sequence[leases.Progress] = (),
) -> set[leases.Token]:
    """Renews leases, and notes started handlers and progress.

    Returns:
        The tokens of the leases that live on.
    """

    def work(conn: Conn) -> set[leases.Token]:
        alive = leases.renew(conn, tokens, lease_ms) if tokens else set()
        # A handler may be said to have started under a lease that this call does not renew.
        if started:
            leases.start(conn, started)
        if progress:
            leases.progress(conn, progress)
        return alive

    alive = database.transact(work)
    metrics.LEASES_RENEWED.add(len(alive))
    return alive
