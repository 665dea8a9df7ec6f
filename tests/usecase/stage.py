"""A database with one namespace on which tests act through the use cases, and look at its tables.

Two actors meet in a window in one of two ways: the work of a transaction is written out in the
test with a `Gate` in it, or a connection of the test's own holds a row lock and the other actor's
backend is seen to wait for it.
"""

import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from typing import Any, TypeVar

import psycopg
import pytest

from tenure_service.engine.policy import Backoff, PartialPolicy
from tenure_service.engine.states import Outcome
from tenure_service.engine.tokens import TaskKey
from tenure_service.store import invariants, rows
from tenure_service.store.database import Database
from tenure_service.store.leases import Completion, Pick
from tenure_service.store.registry import Lane
from tenure_service.store.sessions import NewSession
from tenure_service.usecase import maintain
from tenure_service.usecase.catalogue import Catalogue
from tenure_service.usecase.end import Ending, Recorded
from tenure_service.usecase.enqueue import Answer, Call, Enqueued, Item, Shape, enqueue
from tenure_service.usecase.lease import lease
from tenure_service.usecase.report import end_all
from tenure_service.usecase.session import Opened, open_session, secret_hash
from tests.eventually import eventually

R = TypeVar("R")

#: Attempts follow each other at once, so that a test need not fire timers.
AT_ONCE = PartialPolicy(
    max_attempts=3, backoff=Backoff.FIXED, initial_delay_ms=0, max_delay_ms=0, jitter=0.0
)


def later(**kwargs: float) -> datetime:
    """An instant after now, past every lease and timer of a test unless told otherwise."""
    return datetime.now(UTC) + timedelta(**(kwargs or {"days": 30}))


class Gate:
    """A place in one thread where it waits until the test lets it go on."""

    def __init__(self) -> None:
        self._reached = threading.Event()
        self._opened = threading.Event()

    def wait(self) -> None:
        """Is called by the thread that is to be held; goes on when `open` was called."""
        self._reached.set()
        assert self._opened.wait(20), "nobody opened the gate"

    def reached(self) -> None:
        """Is called by the test: returns once the thread is there."""
        assert self._reached.wait(20), "nobody came to the gate"

    def open(self) -> None:
        self._opened.set()


def in_thread(work: Callable[[], R]) -> Future[R]:
    """Runs work beside the test; its result is asked for with a timeout."""
    future: Future[R] = Future()

    def run() -> None:
        try:
            future.set_result(work())
        except BaseException as exc:  # noqa: BLE001 - it is raised where the result is asked for
            future.set_exception(exc)

    threading.Thread(target=run, daemon=True).start()
    return future


class Stage:
    """One server's view of a database, without the server."""

    def __init__(self, dsn: str, *, connection_count: int = 8) -> None:
        self.dsn = dsn
        self.database = Database(
            dsn, schema="tenure", connection_count=connection_count, name="stage"
        )
        self.database.open()
        maintain.ensure_partitions(self.database)
        self.catalogue = Catalogue(self.database)
        self.namespace_id = self.catalogue.namespace_id("default")

    def close(self) -> None:
        self.database.close()

    # -------------------------------------------------------------------------------- acting

    def item(self, name: str = "work", **fields: Any) -> Item:
        values: dict[str, Any] = {"queue": "default", "input": b"{}", "policy": AT_ONCE} | fields
        data, key = values.pop("input"), values.pop("key", None)
        return Item(Shape(name=name, **values), data, key)

    def call(self, *items: Item, **fields: Any) -> Call:
        return Call(namespace_id=self.namespace_id, items=items, **fields)

    def enqueue(self, *items: Item, now: datetime | None = None) -> list[Answer]:
        (answers,) = enqueue(self.database, self.catalogue, [self.call(*items)], now=now)
        assert not isinstance(answers, Exception), answers
        return answers

    def tasks(self, count: int = 1, name: str = "work", **fields: Any) -> list[TaskKey]:
        """Enqueues equal tasks; gives their keys in the order of their lane."""
        answers = self.enqueue(*[self.item(name, **fields)] * count)
        return [TaskKey(task_id, task_id) for task_id in map(task_id_of, answers)]

    def session(self, worker: str = "worker") -> Opened:
        return open_session(self.database, self.new_session(worker), [])

    def new_session(self, worker: str = "worker") -> NewSession:
        return NewSession(
            namespace_id=self.namespace_id,
            worker=worker,
            sdk="",
            sdk_version="",
            app_version="",
            secret_hash=secret_hash(worker),
            handlers=[{"name": "work", "queue": "default"}],
            slots={},
        )

    def lane_id(self, name: str = "work", *, suspect: bool = False) -> int:
        lane = Lane(self.namespace_id, "default", name, "", suspect)
        return self.catalogue.lane_ids([lane])[lane]

    def pick(self, opened: Opened, lane_id: int, count: int = 100) -> Pick:
        return Pick(
            session_id=opened.session_id,
            epoch=opened.epoch,
            namespace_id=self.namespace_id,
            lane_id=lane_id,
            task_count_max=count,
            secret=b"s" * 16,
            lease_ms=60_000,
        )

    def lease(
        self,
        count: int = 100,
        name: str = "work",
        *,
        opened: Opened | None = None,
        suspect: bool = False,
    ) -> list[rows.LeasedTask]:
        """Hands tasks of one lane to a session, under one lease."""
        pick = self.pick(opened or self.session(), self.lane_id(name, suspect=suspect), count)
        (grant,) = lease(self.database, self.catalogue, [pick])
        return grant.tasks

    def end(self, *endings: Ending, now: datetime | None = None) -> list[Recorded]:
        if now is not None:
            raise AssertionError("reports take the database's time")
        return end_all(self.database, self.catalogue, endings).recorded

    def report(self, task: rows.LeasedTask, outcome: Outcome, **fields: Any) -> Recorded:
        (recorded,) = self.end(ending(task, outcome, **fields))
        return recorded

    # ------------------------------------------------------------------------------- looking

    def all(self, query: str, *parameters: object) -> list[tuple[Any, ...]]:
        with self.connect() as conn:
            return conn.execute(query.encode(), parameters).fetchall()

    def connect(self) -> psycopg.Connection:
        return psycopg.connect(self.dsn, autocommit=True, options="-c search_path=tenure")

    def outcomes(self, key: TaskKey | rows.LeasedTask) -> list[str]:
        """The outcomes of a task's ended hand-outs, in order."""
        found = self.all(
            "select outcome::text from deliveries where task_id = %s order by delivery", key.task_id
        )
        return [outcome for (outcome,) in found]

    def ready(self, key: TaskKey | rows.LeasedTask) -> tuple[int, int, int, int, int] | None:
        """(attempt, delivery, lost count, seq, lane) of a waiting task."""
        found = self.all(
            "select attempt, delivery, lost_count, seq, lane_id from ready_tasks where task_id = %s",
            key.task_id,
        )
        return found[0] if found else None

    def check(self) -> None:
        """Fails when an invariant is broken."""
        with self.connect() as conn:
            broken = invariants.check_invariants(conn)
        lines = [f"{name}: {breach}" for name, found in broken.items() for breach in found[:5]]
        if lines:
            pytest.fail("\n".join(lines))

    def waiting_for_a_lock(self, count: int = 1) -> None:
        """Returns once so many backends of this database wait for a lock."""
        query = b"""
            select count(*) from pg_stat_activity
            where datname = current_database() and cardinality(pg_blocking_pids(pid)) > 0
        """
        with self.connect() as conn:
            assert eventually(lambda: (conn.execute(query).fetchone() or (0,))[0] >= count), (
                "nobody waits for a lock"
            )

    @contextmanager
    def transaction(self) -> Iterator[psycopg.Connection]:
        """A transaction on a connection with the store's settings, for acting step by step."""
        with self.database._pool.connection() as conn:
            conn.autocommit = False  # whatever it was used for before
            yield conn


def task_id_of(answer: Answer) -> str:
    assert isinstance(answer, Enqueued), answer
    return answer.task_id


def ending(task: rows.LeasedTask, outcome: Outcome, **fields: Any) -> Ending:
    if outcome is Outcome.FAILED:
        fields.setdefault("failure", {"type": "ValueError", "message": "no"})
    if outcome is Outcome.DONE:
        fields.setdefault("output", b"1")
    return Ending(
        lease_id=task.lease_id,
        key=TaskKey(task.run_id, task.task_id),
        outcome=outcome,
        **({"secret": b"s" * 16} | fields),
    )


def completion(task: rows.LeasedTask, session_id: str) -> Completion:
    return Completion(
        lease_id=task.lease_id,
        session_id=session_id,
        run_id=task.run_id,
        task_id=task.task_id,
        delivery=task.delivery,
        attempt=task.attempt,
        run_ms=1.5,
        output=b"1",
        output_encoding=None,
        output_schema=None,
    )


def completions(tasks: Sequence[rows.LeasedTask], session_id: str) -> list[Completion]:
    return [completion(task, session_id) for task in tasks]


@pytest.fixture
def stage(database: str) -> Iterator[Stage]:
    opened = Stage(database)
    try:
        yield opened
    finally:
        opened.close()


__all__ = ["AT_ONCE", "Gate", "Stage", "ending", "in_thread", "stage"]
