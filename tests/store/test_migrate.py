import random
import subprocess
import sys
import threading
from pathlib import Path

import psycopg
import pytest

from tenure_service.store import migrate
from tests.eventually import eventually

SLOW_ENOUGH = "select count(*) from generate_series(1, 200000);"
IN_ANOTHER_PROCESS = """
import sys
from pathlib import Path
from tenure_service.store import migrate
print(len(migrate.migrate(sys.argv[1], folder=Path(sys.argv[2]))))
"""


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "0001_pre_first.sql").write_text("create table firsts (id int);")
    (tmp_path / "0002_post_later.sql").write_text("drop table seconds;")
    (tmp_path / "0002_pre_second.sql").write_text("create table seconds as table firsts;")
    return tmp_path


def _tables(dsn: str, schema: str = "tenure") -> list[str]:
    with psycopg.connect(dsn) as conn:
        rows = conn.execute(
            "select relname from pg_class where relkind = 'r' and relnamespace = to_regnamespace(%s)"
            " order by relname",
            [schema],
        ).fetchall()
    return [name for (name,) in rows]


def test_migrate__empty_database__applies_by_number_then_pre_before_post(
    empty_database: str, folder: Path
) -> None:
    applied = migrate.migrate(empty_database, folder=folder)
    assert [row.id for row in applied] == ["0001_pre", "0002_pre", "0002_post"]
    assert _tables(empty_database) == ["firsts", "schema_migrations"]
    assert migrate.check_ready(empty_database, folder=folder) == migrate.Readiness(
        problems=[], warnings=[]
    )


def test_migrate__repeated__applies_nothing(empty_database: str, folder: Path) -> None:
    migrate.migrate(empty_database, folder=folder)
    assert migrate.migrate(empty_database, folder=folder) == []


def test_migrate__other_schema__leaves_public_and_tenure_alone(
    empty_database: str, folder: Path
) -> None:
    migrate.migrate(empty_database, 'odd "name"', folder=folder)
    assert _tables(empty_database, '"odd ""name"""') == ["firsts", "schema_migrations"]
    assert _tables(empty_database) == _tables(empty_database, "public") == []


def test_migrate__only_pre__is_ready_with_a_warning(empty_database: str, folder: Path) -> None:
    assert not migrate.check_ready(empty_database, folder=folder).ready
    migrate.migrate(empty_database, folder=folder, phase="pre")
    readiness = migrate.check_ready(empty_database, folder=folder)
    assert readiness.ready
    assert "0002_post_later" in readiness.warnings[0]
    assert _tables(empty_database) == ["firsts", "schema_migrations", "seconds"]


def test_migrate__applied_file_edited__refuses(empty_database: str, folder: Path) -> None:
    migrate.migrate(empty_database, folder=folder)
    (folder / "0001_pre_first.sql").write_text("create table firsts (id bigint);")
    with pytest.raises(migrate.MigrationChanged, match="0001_pre_first"):
        migrate.migrate(empty_database, folder=folder)
    assert "0001_pre_first" in migrate.check_ready(empty_database, folder=folder).problems[0]


@pytest.mark.parametrize(("mark", "ready"), [("", True), ("--! breaking\n", False)])
def test_check_ready__unknown_migration__is_ready_unless_breaking(
    empty_database: str, folder: Path, mark: str, *, ready: bool
) -> None:
    newer = folder / "0003_pre_newer.sql"
    newer.write_text(f"{mark}create table thirds (id int);")
    migrate.migrate(empty_database, folder=folder)
    newer.unlink()
    readiness = migrate.check_ready(empty_database, folder=folder)
    assert readiness.ready is ready
    assert "0003_pre_newer" in (readiness.warnings if ready else readiness.problems)[0]


def test_migrate__statement_refused__keeps_earlier_files_only(
    empty_database: str, folder: Path
) -> None:
    (folder / "0002_pre_second.sql").write_text("create table seconds (id int); select 1 / 0;")
    with pytest.raises(migrate.MigrationFailed, match="0002_pre_second: 22012"):
        migrate.migrate(empty_database, folder=folder)
    assert _tables(empty_database) == ["firsts", "schema_migrations"]


def test_migrate__no_transaction_mark__runs_outside_one(empty_database: str, folder: Path) -> None:
    statement = "create index concurrently firsts_id on firsts (id);"
    (folder / "0003_pre_index.sql").write_text(f"--! no-transaction\n{statement}")
    assert len(migrate.migrate(empty_database, folder=folder)) == 4


def test_migrate__table_locked_for_a_while__retries_until_it_is_free(
    empty_database: str, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(migrate, "_LOCK_TIMEOUT", "20ms")
    monkeypatch.setattr(random, "uniform", lambda *_: 0)
    migrate.migrate(empty_database, folder=folder, phase="pre")
    failures: list[BaseException] = []

    def work() -> None:
        try:
            migrate.migrate(empty_database, folder=folder)
        except BaseException as exc:  # noqa: BLE001 - shown by the test
            failures.append(exc)

    with psycopg.connect(empty_database) as reader:
        reader.execute("select * from tenure.seconds")
        thread = threading.Thread(target=work)
        thread.start()
        waiting = "select 1 from pg_locks where not granted and mode = 'AccessExclusiveLock'"
        with psycopg.connect(empty_database, autocommit=True) as watcher:
            assert eventually(lambda: watcher.execute(waiting).fetchone())
    thread.join()
    assert failures == []
    assert _tables(empty_database) == ["firsts", "schema_migrations"]


def test_migrate__two_processes_at_once__each_file_is_applied_once(
    empty_database: str, folder: Path
) -> None:
    for number in range(3, 10):
        (folder / f"{number:04}_pre_more.sql").write_text(SLOW_ENOUGH)
    command = [sys.executable, "-c", IN_ANOTHER_PROCESS, empty_database, str(folder)]
    started = [subprocess.Popen(command, stdout=subprocess.PIPE, text=True) for _ in range(2)]
    counts = [int(process.communicate(timeout=60)[0]) for process in started]
    assert sorted(counts) == [0, 10]


@pytest.mark.parametrize(
    ("name", "text", "complaint"),
    [
        ("0003_later_x.sql", "", "is not named"),
        ("0002_pre_again.sql", "", "one number and phase"),
        ("0003_pre_x.sql", "--! braking\nselect 1;", "unknown mark: braking"),
    ],
)
def test_find__malformed_folder__raises(folder: Path, name: str, text: str, complaint: str) -> None:
    (folder / name).write_text(text)
    with pytest.raises(migrate.MigrationChanged, match=complaint):
        migrate.find(folder)


def test_migrate__no_server__says_so() -> None:
    with pytest.raises(migrate.DatabaseUnusable, match="no database answers"):
        migrate.migrate("host=/nonexistent dbname=tenure")


def test_find__this_release__every_file_tells_why_locks_and_versions() -> None:
    for item in migrate.find():
        for line in ("-- Why:", "-- Locks taken:", "-- Safe with versions:"):
            assert line in item.text, f"{item.name} has no line `{line}`"
