"""The floor: the store's own statements with the server's batch sizes, without gRPC.

One connection leases 400 tasks at a time and reports each lease in two halves, as a busy worker
does.
"""

import functools
import secrets
import time

from bench import rig
from tenure_service.embedded import EmbeddedPostgres
from tenure_service.engine.policy import Policy
from tenure_service.store import leases, sessions, tasks
from tenure_service.store.database import Conn, Database
from tenure_service.store.leases import Completion, Pick
from tenure_service.store.registry import Lane
from tenure_service.store.rows import LeasedTask
from tenure_service.store.sessions import NewSession
from tenure_service.usecase.catalogue import Catalogue

_LEASE = 400
_REPORT = 200


def enqueue(database: Database, count: int, name: str = "noop") -> float:
    """Stores tasks in batches of 500; gives tasks a second."""
    catalogue = Catalogue(database)
    lane = Lane(1, "default", name)
    lane_id = catalogue.lane_ids([lane])[lane]
    policy_id = catalogue.policy_ids([Policy()])[Policy()]
    common = tasks.Common(
        namespace_id=1,
        lane_id=lane_id,
        policy_id=policy_id,
        priority=0,
        input_encoding=None,
        input_schema=None,
        traceparent=None,
        delay_ms=None,
    )
    new = tasks.NewTask(common, b'{"number": 1}', None)

    def work(conn: Conn) -> None:
        tasks.insert(conn, tasks.make_ids(conn, 500), [new] * 500)

    began = time.perf_counter()
    for _ in range(count // 500):
        database.transact(work)
    return count / (time.perf_counter() - began)


def drain(database: Database, count: int) -> float:
    """Leases and completes everything on one connection; gives tasks a second."""
    catalogue = Catalogue(database)
    lane = Lane(1, "default", "noop")
    lane_id = catalogue.lane_ids([lane])[lane]
    session = database.transact(lambda conn: sessions.open_(conn, _session()))
    low = (leases.RANK_MIN, 0)
    done = 0
    began = time.perf_counter()
    while done < count:
        pick = Pick(
            session_id=session.session_id,
            epoch=session.epoch,
            namespace_id=1,
            lane_id=lane_id,
            task_count_max=_LEASE,
            secret=secrets.token_bytes(16),
            lease_ms=15_000,
            low_rank=low[0],
            low_seq=low[1],
        )
        taken = database.transact(functools.partial(_take, pick))
        low = (taken[-1].rank, taken[-1].seq)
        for at in range(0, len(taken), _REPORT):
            completions = [_completion(session.session_id, one) for one in taken[at : at + _REPORT]]
            database.transact(functools.partial(_complete, completions))
        done += len(taken)
    return count / (time.perf_counter() - began)


def _take(pick: Pick, conn: Conn) -> list[LeasedTask]:
    return leases.take(conn, pick)


def _complete(completions: list[Completion], conn: Conn) -> int:
    return leases.complete(conn, completions)


def _completion(session_id: str, task: LeasedTask) -> Completion:
    return Completion(
        lease_id=task.lease_id,
        session_id=session_id,
        run_id=task.run_id,
        task_id=task.task_id,
        delivery=task.delivery,
        attempt=task.attempt,
        run_ms=0.1,
        output=b"null",
        output_encoding=None,
        output_schema=None,
    )


def _session() -> NewSession:
    return NewSession(
        namespace_id=1,
        worker="floor",
        sdk="",
        sdk_version="",
        app_version="",
        secret_hash=b"",
        handlers=[],
        slots={},
    )


def measure(server: EmbeddedPostgres, count: int) -> tuple[float, float]:
    """Gives enqueues and completions a second, on a database of its own."""
    with rig.database(server, "floor") as dsn, rig.opened(dsn) as database:
        return enqueue(database, count), drain(database, count)
