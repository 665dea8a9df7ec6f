"""Transactions whose COMMIT is sent and not answered: the wire is cut at that very moment."""

import contextlib
import socket
import threading
from collections.abc import Callable, Iterator
from typing import Literal

import psycopg
import pytest
from psycopg import conninfo

from tenure_service.engine.errors import Reason, TenureError
from tenure_service.store.commits import Commits, Fate, Incarnation, Mark
from tenure_service.store.database import Conn, Database

Moment = Literal["before", "after"]


class Cutter:
    """Stands between a pool and PostgreSQL, and cuts one connection at its COMMIT.

    Attributes:
        cut_at: "before" the COMMIT is passed on, or "after" PostgreSQL has answered it; reset by the
            cut.
    """

    def __init__(self, dsn: str) -> None:
        parts = conninfo.conninfo_to_dict(dsn)
        self._host, self._port = str(parts["host"]), int(str(parts["port"]))
        self._listener = socket.create_server(("127.0.0.1", 0))
        self._sockets = [self._listener]
        self.cut_at: Moment | None = None
        self.dsn = conninfo.make_conninfo(
            dsn, host="127.0.0.1", port=self._listener.getsockname()[1]
        )
        threading.Thread(target=self._accept, daemon=True).start()

    def close(self) -> None:
        for one in self._sockets:
            with contextlib.suppress(OSError):
                one.shutdown(socket.SHUT_RDWR)
            one.close()

    def _accept(self) -> None:
        with contextlib.suppress(OSError):
            while True:
                near, _ = self._listener.accept()
                far = self._far()
                self._sockets += [near, far]
                for pump in (self._up, self._down):
                    threading.Thread(target=pump, args=(near, far), daemon=True).start()

    def _far(self) -> socket.socket:
        if self._host.startswith("/"):
            far = socket.socket(socket.AF_UNIX)
            far.connect(f"{self._host}/.s.PGSQL.{self._port}")
            return far
        return socket.create_connection((self._host, self._port))

    def _up(self, near: socket.socket, far: socket.socket) -> None:
        with contextlib.suppress(OSError):
            while data := near.recv(65536):
                if b"COMMIT" in data and self.cut_at == "before":
                    self.cut_at = None
                    break
                far.sendall(data)
        self._end(near, far)

    def _down(self, near: socket.socket, far: socket.socket) -> None:
        with contextlib.suppress(OSError):
            while data := far.recv(65536):
                if b"COMMIT" in data and self.cut_at == "after":
                    self.cut_at = None
                    break
                near.sendall(data)
        self._end(near, far)

    @staticmethod
    def _end(*ends: socket.socket) -> None:
        for end in ends:
            with contextlib.suppress(OSError):
                end.shutdown(socket.SHUT_RDWR)


@pytest.fixture
def cutter(database: str) -> Iterator[Cutter]:
    made = Cutter(database)
    yield made
    made.close()


@pytest.fixture
def pool(cutter: Cutter, conn: psycopg.Connection) -> Iterator[Database]:
    conn.execute("create table public.marks (number integer not null)")
    opened = Database(cutter.dsn, schema="tenure", connection_count=2, name="cut")
    opened.open()
    yield opened
    opened.close()


class Work:
    """Writes one row a call, and counts its calls; arms the cut first."""

    def __init__(self, cutter: Cutter, moment: Moment) -> None:
        self._arm: Callable[[], None] = lambda: setattr(cutter, "cut_at", moment)
        self.call_count = 0

    def __call__(self, conn: Conn) -> int:
        self.call_count += 1
        conn.execute("insert into public.marks values (%s)", [self.call_count])
        if self.call_count == 1:
            self._arm()
        return self.call_count


def _marks(conn: psycopg.Connection) -> list[int]:
    return [row[0] for row in conn.execute("select number from public.marks order by number")]


def test_transact__commit_done_and_answer_lost__answers_once_and_runs_once(
    pool: Database, cutter: Cutter, conn: psycopg.Connection
) -> None:
    work = Work(cutter, "after")
    assert pool.transact(work) == 1
    assert cutter.cut_at is None
    assert (work.call_count, _marks(conn)) == (1, [1])


def test_transact__commit_never_arrived__runs_again(
    pool: Database, cutter: Cutter, conn: psycopg.Connection
) -> None:
    work = Work(cutter, "before")
    assert pool.transact(work) == 2
    assert (work.call_count, _marks(conn)) == (2, [2])


def test_transact__server_is_another_one_by_then__does_not_guess(
    pool: Database, cutter: Cutter, conn: psycopg.Connection, monkeypatch: pytest.MonkeyPatch
) -> None:
    # What a crash does to the ids of a server's own processes.
    monkeypatch.setattr(Incarnation, "same_as", lambda *_: False)
    work = Work(cutter, "after")
    with pytest.raises(TenureError) as caught:
        pool.transact(work)
    assert caught.value.reason is Reason.DATABASE_UNAVAILABLE
    assert (work.call_count, _marks(conn)) == (1, [1])


def test_read__answer_lost__reads_again(pool: Database, cutter: Cutter) -> None:
    calls = 0

    def work(conn: Conn) -> int:
        nonlocal calls
        calls += 1
        if calls == 1:
            cutter.cut_at = "after"
        # What the cutter looks for.
        return len(conn.execute("select 'COMMIT'").fetchall())

    assert pool.read(work) == 1
    assert calls == 2


@pytest.fixture
def commits(conn: psycopg.Connection) -> Commits:
    found = Commits()
    found.meet(conn)
    return found


def _fate(commits: Commits, conn: psycopg.Connection, mark: Mark) -> Fate:
    return commits.fate(mark, lambda work: work(conn))


def test_mark__nothing_written__is_none(commits: Commits, conn: psycopg.Connection) -> None:
    assert commits.mark(conn) is None


def test_fate__id_never_given_out__was_not_committed(
    commits: Commits, conn: psycopg.Connection
) -> None:
    with conn.transaction():
        conn.execute("create temp table scratch ()")
        mark = commits.mark(conn)
    assert mark is not None
    assert _fate(commits, conn, mark) is Fate.COMMITTED
    later = Mark(str(int(mark.xid) + 10**6), mark.incarnation)
    assert _fate(commits, conn, later) is Fate.ABORTED


def test_fate__under_way_at_first__is_waited_for(
    commits: Commits, conn: psycopg.Connection, database: str
) -> None:
    with psycopg.connect(database) as other:
        commits.meet(other)
        other.execute("create temp table scratch ()")
        mark = commits.mark(other)
        assert mark is not None
        answers: list[Fate | None] = []

        def ask(work: Callable[[Conn], Fate | None]) -> Fate | None:
            answer = work(conn)
            if not answers:
                other.rollback()
            answers.append(answer)
            return answer

        assert commits.fate(mark, ask) is Fate.ABORTED
        assert answers[0] is None


def test_same_as__processes_all_new__is_another_life(conn: psycopg.Connection) -> None:
    commits = Commits()
    commits.meet(conn)
    before = commits._incarnations[conn]
    assert before.own_pids
    crashed = Incarnation(before.started_at, frozenset({max(before.own_pids) + 1}))
    assert before.same_as(before)
    assert not before.same_as(crashed)


def test_transact__all_connections_lost_while_fresh__runs_on_a_new_one(
    pool: Database, conn: psycopg.Connection
) -> None:
    """Two connections that just worked are gone at once; only one more try is made."""
    both = threading.Barrier(2)

    def work(one: Conn) -> None:
        both.wait(10)
        one.execute("insert into public.marks values (1)")

    threads = [threading.Thread(target=pool.transact, args=(work,)) for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(pool._used_at) == 2
    conn.execute(
        "select pg_terminate_backend(pid, 5000) from pg_stat_activity where application_name = 'cut'"
    )
    pool.transact(lambda one: one.execute("insert into public.marks values (2)"))
    assert _marks(conn) == [1, 1, 2]
