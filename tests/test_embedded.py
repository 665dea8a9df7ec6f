import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import psycopg
import pytest

from tenure_service.embedded import (
    EmbeddedDataMissing,
    EmbeddedError,
    EmbeddedPostgres,
    EmbeddedStartFailed,
    EmbeddedUnavailable,
    accounts,
    binaries,
    homes,
)
from tests.eventually import eventually

OWNER_THAT_DIES = """
import os, signal, sys
from pathlib import Path
from tenure_service.embedded import EmbeddedPostgres
server = EmbeddedPostgres.start(Path(sys.argv[1]), durable=False)
print(server.pid, flush=True)
os.kill(os.getpid(), signal.SIGKILL)
"""


@pytest.fixture(scope="module")
def _shared(tmp_path_factory: pytest.TempPathFactory) -> Iterator[EmbeddedPostgres]:
    started = EmbeddedPostgres.start(tmp_path_factory.mktemp("shared") / "pg", durable=False)
    try:
        yield started
    finally:
        started.remove()


@pytest.fixture
def server(_shared: EmbeddedPostgres) -> EmbeddedPostgres:
    """A running server, whatever the test before did to it."""
    if not (_shared.data / "postmaster.pid").exists():
        _shared.restart()
    return _shared


def _ask(server: EmbeddedPostgres, statement: str) -> object:
    with psycopg.connect(server.dsn(), autocommit=True) as conn:
        cursor = conn.execute(statement.encode())
        row = cursor.fetchone() if cursor.description else None
    return row and row[0]


def test_start__empty_directory__serves_database_tenure(server: EmbeddedPostgres) -> None:
    assert _ask(server, "select current_database()") == "tenure"
    assert _ask(server, "select uuid_extract_version(uuidv7())") == 7
    assert _ask(server, "show listen_addresses") == ""
    assert _ask(server, "show server_encoding") == "UTF8"
    assert (server.home / "password").stat().st_mode & 0o777 == 0o600


def test_start__wrong_password__is_refused(server: EmbeddedPostgres) -> None:
    with pytest.raises(psycopg.OperationalError, match="authentication failed"):
        psycopg.connect(server.dsn().replace("password=", "password=0"))


def test_stop__running__ends_the_process_and_can_be_repeated(server: EmbeddedPostgres) -> None:
    server.stop()
    server.stop()
    assert not (server.data / "postmaster.pid").exists()
    with pytest.raises(EmbeddedError, match="stopped"):
        assert server.pid


def test_restart__after_stop__keeps_rows_password_and_socket(server: EmbeddedPostgres) -> None:
    dsn = server.dsn()
    _ask(server, "create table stopped as select 42 as answer")
    server.restart()
    assert server.dsn() == dsn
    assert _ask(server, "select answer from stopped") == 42


def test_restart__after_kill__recovers_what_was_committed(server: EmbeddedPostgres) -> None:
    _ask(server, "create table kept as select 42 as answer")
    with psycopg.connect(server.dsn()) as conn:
        conn.execute("insert into kept values (43)")
        server.kill()
        with pytest.raises(psycopg.OperationalError):
            conn.execute("select 1")
    server.restart()
    assert not server.adopted
    assert _ask(server, "select array_agg(answer) from kept") == [42]


def test_start__owner_was_killed__adopts_the_running_server(tmp_path: Path) -> None:
    home = tmp_path / "pg"
    command = [sys.executable, "-c", OWNER_THAT_DIES, str(home)]
    done = subprocess.run(command, check=False, capture_output=True, text=True)
    adopted = EmbeddedPostgres.start(home, durable=False)
    try:
        assert adopted.adopted
        assert adopted.pid == int(done.stdout)
        assert _ask(adopted, "select 1") == 1
        adopted.kill()
        adopted.restart()
        assert not adopted.adopted
    finally:
        adopted.remove()


def test_start__pid_file_names_a_stranger__starts_all_the_same(server: EmbeddedPostgres) -> None:
    server.kill()
    pid_file = server.data / "postmaster.pid"
    lines = pid_file.read_text().splitlines()
    stranger = subprocess.Popen(
        ["/bin/sh", "-c", "read forever"],
        stdin=subprocess.PIPE,
        user=pid_file.stat().st_uid if os.geteuid() == 0 else None,
    )
    with stranger:
        pid_file.write_text("\n".join([str(stranger.pid), *lines[1:]]))
        server.restart()
        stranger.kill()
    assert _ask(server, "select 1") == 1


def test_start__initdb_was_interrupted__begins_again(tmp_path: Path) -> None:
    home = tmp_path / "pg"
    started = EmbeddedPostgres.start(home, durable=False)
    started.stop()
    started.data.rename(started.home / "data.new")
    again = EmbeddedPostgres.start(home, durable=False)
    try:
        assert _ask(again, "select 1") == 1
    finally:
        again.remove()


def test_start__unknown_setting__shows_the_end_of_the_log(tmp_path: Path) -> None:
    home = tmp_path / "pg"
    with pytest.raises(EmbeddedStartFailed, match="no_such_setting"):
        EmbeddedPostgres.start(home, durable=False, settings={"no_such_setting": "1"})
    EmbeddedPostgres.start(home, durable=False).remove()


def test_start__long_path__puts_the_socket_elsewhere(tmp_path: Path) -> None:
    home = tmp_path / ("long" * 30)
    started = EmbeddedPostgres.start(home, durable=False)
    try:
        assert _ask(started, "select 1") == 1
    finally:
        started.remove()
    assert not home.exists()


def test_socket_directory__path_beyond_the_limit__is_private_under_tmp(tmp_path: Path) -> None:
    found = homes.socket_directory(tmp_path / ("long" * 30), None)
    try:
        assert found.parent == Path("/tmp")  # noqa: S108 - what is tested
        assert found.stat().st_mode & 0o777 == 0o700
        found.chmod(0o755)
        with pytest.raises(EmbeddedUnavailable, match="not ours alone"):
            homes.socket_directory(tmp_path / ("long" * 30), None)
    finally:
        found.rmdir()


@pytest.mark.skipif(os.geteuid() != 0, reason="only root runs the server as somebody else")
def test_start__as_root_in_a_closed_directory__places_data_elsewhere(tmp_path: Path) -> None:
    closed = tmp_path / "closed"
    closed.mkdir(mode=0o700)
    started = EmbeddedPostgres.start(closed / "pg", durable=False)
    try:
        assert closed.stat().st_mode & 0o777 == 0o700
        assert (closed / "pg" / "location").read_text().strip() == str(started.home)
        assert started.data.stat().st_uid != 0
        started.restart()
    finally:
        started.remove()
    assert not started.home.exists()


@pytest.mark.skipif(os.geteuid() != 0, reason="only root runs the server as somebody else")
def test_start__recorded_data_is_gone__does_not_start_empty(tmp_path: Path) -> None:
    closed = tmp_path / "closed"
    closed.mkdir(mode=0o700)
    started = EmbeddedPostgres.start(closed / "pg", durable=False)
    started.stop()
    moved = started.home.rename(started.home.with_name(f"{started.home.name}-moved"))
    try:
        with pytest.raises(EmbeddedDataMissing, match="which is gone"):
            EmbeddedPostgres.start(closed / "pg", durable=False)
    finally:
        moved.rename(started.home)
        started.remove()


@pytest.mark.skipif(os.geteuid() != 0, reason="only root runs the server as somebody else")
def test_reachable_by__closed_installation__copies_it_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    closed, shared = tmp_path / "closed", tmp_path / "shared"
    source = closed / "package" / "pginstall"
    (source / "bin").mkdir(parents=True)
    closed.chmod(0o700)
    (source / "bin" / "postgres").write_text("#!/bin/sh\n")
    (source / "bin" / "postgres").chmod(0o755)
    (closed / "package.libs").mkdir()
    shared.mkdir()
    monkeypatch.setattr(binaries, "installed", lambda: source)
    monkeypatch.setattr(accounts, "SHARED_ROOT", shared)
    account = accounts.for_server()
    found = binaries.reachable_by(account)
    assert found == binaries.reachable_by(account)
    assert [path.parent.parent for path in (found, found)] == [
        shared.joinpath(*found.parts[-3:-2])
    ] * 2
    assert (found / "bin" / "postgres").stat().st_mode & 0o777 == 0o755
    assert (found.parent.parent / "package.libs").is_dir()
    assert len(list(shared.iterdir())) == 1


def test_start__two_processes_at_once__one_starts_one_adopts(tmp_path: Path) -> None:
    script = (
        "import sys; from pathlib import Path; from tenure_service.embedded import EmbeddedPostgres;"
        "s = EmbeddedPostgres.start(Path(sys.argv[1]), durable=False); print(s.pid, s.adopted);"
        "s._process = None"
    )
    command = [sys.executable, "-W", "ignore", "-c", script, str(tmp_path / "pg")]
    both = [subprocess.Popen(command, stdout=subprocess.PIPE, text=True) for _ in range(2)]
    answers = [process.communicate(timeout=60)[0].split() for process in both]
    server = EmbeddedPostgres.start(tmp_path / "pg", durable=False)
    try:
        assert {pid for pid, _ in answers} == {str(server.pid)}
        assert sorted(adopted for _, adopted in answers) == ["False", "True"]
    finally:
        server.remove()
    assert eventually(lambda: not server.home.exists())
