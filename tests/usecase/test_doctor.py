"""Each check of `tenure doctor` is shown a real cause, and a database without one is in order."""

import contextlib
import re
import secrets
import subprocess
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path

import psycopg
import pytest
from psycopg import conninfo, sql

from tenure_service.config import ServerConfig
from tenure_service.embedded import EmbeddedPostgres, accounts, homes
from tenure_service.engine import limits
from tenure_service.engine.policy import PartialPolicy, Timeout
from tenure_service.engine.states import Outcome
from tenure_service.store import doctor as store
from tenure_service.store import leases, migrate, rows
from tenure_service.usecase import doctor, lease, poll, session
from tenure_service.usecase.doctor import server as server_checks
from tests.eventually import eventually
from tests.usecase.stage import AT_ONCE, Stage

MINUTE = timedelta(minutes=1)
LATE = timedelta(minutes=11)
HOUR = timedelta(hours=1)
NON_RETRYABLE = {"type": "E", "message": "", "non_retryable": True}
#: A server for tests is not durable; what says so is right.
OF_TESTS = {"durability"}


def examine(
    dsn: str, *, limit: timedelta = MINUTE, after: timedelta | None = None
) -> list[doctor.Finding]:
    """Makes all checks, so much later than now where that is said."""
    now = None if after is None else datetime.now(UTC) + after
    return doctor.examine(dsn, "tenure", limit=limit, now=now)


def found(
    dsn: str, name: str, *, limit: timedelta = MINUTE, after: timedelta | None = None
) -> list[tuple[str, str]]:
    """(level, found) of one check."""
    findings = examine(dsn, limit=limit, after=after)
    return [(each.level.value, each.found) for each in findings if each.name == name]


def advice(dsn: str, name: str, *, after: timedelta | None = None) -> str:
    return next(each.advice for each in examine(dsn, after=after) if each.name == name)


def level(dsn: str, name: str, *, after: timedelta | None = None) -> str:
    """The level of a check that has one finding."""
    ((level, _),) = found(dsn, name, after=after)
    return level


def set_for_database(conn: psycopg.Connection, name: str, value: str) -> None:
    statement = sql.SQL("alter database {} set {} = {}").format(
        sql.Identifier(conn.info.dbname), sql.Identifier(name), sql.Literal(value)
    )
    conn.execute(statement)


# ---------------------------------------------------------------------------- in good order


def test_examine__work_of_every_kind_in_good_order__finds_nothing(stage: Stage) -> None:
    session.open_session(stage.database, stage.new_session(), [("work", {})])
    stage.tasks(4)
    stage.tasks(1, delay_ms=60_000)
    done, held, *_ = stage.lease(3)
    stage.report(done, Outcome.DONE)
    start(stage, held)
    findings = examine(stage.dsn)
    assert {each.name for each in findings if each.level is not doctor.Level.OK} <= OF_TESTS
    assert [each.name for each in findings] == [
        "version",
        "schema",
        "writable",
        "rights",
        "durability",
        "autovacuum",
        "timeouts",
        "connections",
        "memory",
        "clock",
        "snapshots",
        "partitions",
        "structure",
        "options",
        "bloat",
        "timers",
        "running",
        "listening",
        "unserved",
        "dead-letters",
        "invariants",
    ]
    assert all(each.found for each in findings)
    assert all(bool(each.advice) is (each.level is not doctor.Level.OK) for each in findings)


def test_connected__any_write__is_refused(database: str) -> None:
    with (
        store.connected(database, "tenure") as conn,
        pytest.raises(psycopg.errors.ReadOnlySqlTransaction),
        conn.transaction(),
    ):
        conn.execute("delete from tasks")


# ------------------------------------------------------------------------------- PostgreSQL


@pytest.mark.parametrize("dsn", ["host=/no/such/folder", "no conninfo"])
def test_examine__no_database_answers__is_the_one_failure(dsn: str) -> None:
    (finding,) = examine(dsn)
    assert (finding.level, finding.name) == (doctor.Level.FAIL, "connection")
    assert "TENURE_DATABASE" in finding.advice


UNKNOWN = """
    insert into schema_migrations (id, name, checksum, breaking)
    values ('9999_pre', '9999_pre_more', '', {})
"""


@pytest.mark.parametrize(
    ("change", "expected", "part"),
    [
        ("update schema_migrations set checksum = ''", "fail", "edited"),
        ("delete from schema_migrations where id like '0002%'", "fail", "0002_pre_tasks not"),
        (UNKNOWN.format("true"), "fail", "must not run: 9999_pre_more"),
        (UNKNOWN.format("false"), "warn", "harmless here: 9999_pre_more"),
    ],
)
def test_schema__not_of_this_release__says_how(
    database: str, conn: psycopg.Connection, change: str, expected: str, part: str
) -> None:
    conn.execute(change.encode())
    ((level, text),) = found(database, "schema")
    assert level == expected
    assert part in text
    # Tables that may be another release's are not looked at.
    assert bool(found(database, "options")) is (expected == "warn")


def test_schema__nothing_migrated__fails_and_other_checks_are_made(empty_database: str) -> None:
    assert level(empty_database, "schema") == "fail"
    assert advice(empty_database, "schema") == "run `tenure migrate`"
    assert level(empty_database, "rights") == "ok"
    assert found(empty_database, "invariants") == []


@pytest.mark.parametrize(
    ("name", "setting", "value", "expected"),
    [
        ("writable", "default_transaction_read_only", "on", "fail"),
        ("autovacuum", "track_counts", "off", "warn"),
        ("timeouts", "transaction_timeout", "5s", "warn"),
    ],
)
def test_setting__hurts__is_named_with_its_source(
    database: str, conn: psycopg.Connection, name: str, setting: str, value: str, expected: str
) -> None:
    assert setting not in found(database, name)[0][1]
    set_for_database(conn, setting, value)
    ((level, text),) = found(database, name)
    assert level == expected
    assert setting in text
    assert "(database)" in text


def test_timeouts__longer_than_a_batch__are_fine(database: str, conn: psycopg.Connection) -> None:
    set_for_database(conn, "transaction_timeout", "10min")
    # Servers and migrations bring these themselves.
    set_for_database(conn, "statement_timeout", "1s")
    assert level(database, "timeouts") == "ok"


def test_connections__fewer_than_a_server_takes__warns(
    database: str, conn: psycopg.Connection
) -> None:
    assert level(database, "connections") == "ok"
    name = sql.Identifier(conn.info.dbname)
    conn.execute(sql.SQL("alter database {} connection limit 17").format(name))
    ((level_now, text),) = found(database, "connections")
    assert level_now == "warn"
    assert "17 can be had" in text
    others = re.search(r"(\d+) more by others", text)
    assert others is not None
    assert int(others[1]) >= 1, "this test has a connection itself"


def test_connections__of_a_server_process__are_what_it_has_by_default() -> None:
    pool = ServerConfig.model_fields["connections"].default
    assert pool + 2 == server_checks.SERVER_CONNECTION_COUNT


@pytest.fixture(scope="module")
def poor(tmp_path_factory: pytest.TempPathFactory) -> Iterator[EmbeddedPostgres]:
    """A server with settings that hurt, on which Tenure is migrated."""
    settings = {
        "autovacuum": "off",
        "fsync": "off",
        "io_method": "sync",
        "max_prepared_transactions": "2",
        "shared_buffers": "128kB",
    }
    folder = tmp_path_factory.mktemp("poor")
    started = EmbeddedPostgres.start(folder / "pg", durable=True, settings=settings)
    try:
        migrate.migrate(started.dsn())
        yield started
    finally:
        started.remove()


def test_settings__of_the_whole_server__are_found(poor: EmbeddedPostgres) -> None:
    assert found(poor.dsn(), "durability") == [("fail", "fsync is off (command line)")]
    assert found(poor.dsn(), "autovacuum") == [("warn", "autovacuum is off (command line)")]
    buffers, method = found(poor.dsn(), "memory")
    assert buffers[0] == method[0] == "warn"
    assert "shared_buffers is 128 kB" in buffers[1]
    assert "io_method is sync" in method[1]


def test_snapshots__prepared_and_forgotten__says_how_to_end_it(poor: EmbeddedPostgres) -> None:
    with psycopg.connect(poor.dsn(), autocommit=True) as conn:
        conn.execute("begin")
        conn.execute("create table forgotten ()")
        conn.execute("prepare transaction 'two''s'")
        assert level(poor.dsn(), "snapshots") == "ok"
        ((level_then, text),) = found(poor.dsn(), "snapshots", after=LATE)
        assert level_then == "warn"
        assert text.startswith("prepared transaction two's (tenure), 11 min old")
        ending = advice(poor.dsn(), "snapshots", after=LATE).partition(", or: ")[2]
        conn.execute(ending.encode())
    assert level(poor.dsn(), "snapshots", after=LATE) == "ok"


def test_writable__standby__fails(tmp_path: Path) -> None:
    made = EmbeddedPostgres.start(tmp_path / "pg", durable=False)
    try:
        made.stop()
        signal = made.data / "standby.signal"
        signal.touch()
        accounts.give(signal, made._account)
        with _standby(made):
            # It answers after it has started, and reads after it has replayed its log.
            assert eventually(
                lambda: found(made.dsn(), "writable") == [("fail", "this server is a standby")],
                seconds=30,
            )
    finally:
        made.remove()


@contextlib.contextmanager
def _standby(made: EmbeddedPostgres) -> Iterator[None]:
    """Runs the server itself: a standby never becomes ready in the way that `start` waits for."""
    made._socket.mkdir(exist_ok=True)
    accounts.give(made._socket, made._account)
    settings = {
        "listen_addresses": "",
        "max_connections": "200",  # a standby must not have fewer than its primary had
        "port": str(homes.PORT),
        "unix_socket_directories": str(made._socket),
    }
    command = [str(made._bin / "postgres"), "-D", str(made.data), *made._options(settings)]
    process = subprocess.Popen(
        accounts.as_account(command, made._account),
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        cwd="/",
    )
    try:
        yield
    finally:
        process.terminate()
        process.wait(30)


# ----------------------------------------------------------------------------------- a role


@pytest.fixture
def role(postgres: str, database: str, conn: psycopg.Connection) -> Iterator[str]:
    """The dsn of a role that may do nothing but connect."""
    name = f"tenure_test_{secrets.token_hex(6)}"
    identifier = sql.Identifier(name)
    password = secrets.token_hex(8)
    made = sql.SQL("create role {} login password {}").format(identifier, sql.Literal(password))
    conn.execute(made)
    try:
        yield conninfo.make_conninfo(database, user=name, password=password)
    finally:
        conn.execute(sql.SQL("drop owned by {}").format(identifier))
        conn.execute(sql.SQL("drop role {}").format(identifier))


def _grant(conn: psycopg.Connection, dsn: str, what: str) -> None:
    user = str(conninfo.conninfo_to_dict(dsn)["user"])
    conn.execute(sql.SQL(f"grant {what} to {{}}").format(sql.Identifier(user)))


def test_rights__role_without_any__fails_and_says_which(
    role: str, conn: psycopg.Connection
) -> None:
    ((level_now, text),) = found(role, "rights")
    assert level_now == "fail"
    assert "create, delete, insert, ownership, select, update, usage on schema tenure" in text
    assert level(role, "schema") == "fail"
    _grant(conn, role, "usage on schema tenure")
    _grant(conn, role, "select on all tables in schema tenure")
    ((_, text),) = found(role, "rights")
    assert "no right to create, delete, insert, ownership, update, usage on" in text
    opening, _, statements = advice(role, "rights").partition(", or: ")
    assert opening == "use the role that migrated"
    for statement in statements.split("; "):
        conn.execute(statement.encode())
    assert level(role, "dead-letters") == "ok"
    assert level(role, "rights") == "ok"


def test_check__table_not_readable__is_a_warning_of_its_own(
    role: str, conn: psycopg.Connection
) -> None:
    _grant(conn, role, "usage on schema tenure")
    _grant(conn, role, "select on schema_migrations")
    assert found(role, "dead-letters") == [
        ("warn", "not checked: permission denied for table namespaces")
    ]
    assert level(role, "clock") == "ok"
    ((_, text),) = found(role, "invariants")
    assert "permission denied" in text
    assert advice(role, "invariants") == "try again, as the role that the servers use"


def test_rights__to_make_the_schema__are_asked_where_there_is_none(
    role: str, database: str, conn: psycopg.Connection
) -> None:
    conn.execute("drop schema tenure cascade")
    assert level(database, "rights") == "ok"
    ((level_now, text),) = found(role, "rights")
    assert level_now == "fail"
    assert text == f"no right to create on database {conn.info.dbname}"


def test_version__role_may_make_no_ids__fails_at_once(role: str, conn: psycopg.Connection) -> None:
    conn.execute("revoke execute on function pg_catalog.uuidv7() from public")
    (finding,) = examine(role)
    assert (finding.level, finding.name) == (doctor.Level.FAIL, "version")
    assert "permission denied for function uuidv7" in finding.found


def test_snapshots__of_a_role_not_seen__says_so(role: str, conn: psycopg.Connection) -> None:
    assert "of other roles not seen" in found(role, "snapshots")[0][1]


# ------------------------------------------------------------------------- what holds vacuum


def test_snapshots__transaction_open_for_long__names_it_and_its_end(stage: Stage) -> None:
    reader = psycopg.connect(stage.dsn, application_name="report")
    with contextlib.closing(reader):
        reader.execute("select 1")
        assert level(stage.dsn, "snapshots") == "ok"
        ((level_then, text),) = found(stage.dsn, "snapshots", after=LATE)
        assert level_then == "warn"
        assert f"transaction {reader.info.backend_pid} (report, " in text
        assert "idle in transaction), 11 min old" in text
        ending = advice(stage.dsn, "snapshots", after=LATE).partition(", or: ")[2]
        stage.all(ending)
        assert eventually(lambda: level(stage.dsn, "snapshots", after=LATE) == "ok")


def test_snapshots__slot_nobody_reads__names_it_and_its_end(stage: Stage) -> None:
    name = f"tenure_test_{secrets.token_hex(4)}"
    stage.all("select pg_create_physical_replication_slot(%s, true)", name)
    try:
        assert level(stage.dsn, "snapshots") == "ok"
        ((level_then, text),) = found(stage.dsn, "snapshots", after=LATE)
        assert level_then == "warn"
        assert text.startswith(f"replication slot {name} (physical, reserved), 11 min old")
        assert f"pg_drop_replication_slot('{name}')" in advice(stage.dsn, "snapshots", after=LATE)
    finally:
        stage.all("select pg_drop_replication_slot(%s)", name)


# ------------------------------------------------------------------------------- our tables


def _drop_partitions(stage: Stage, kept: int) -> None:
    """Drops partitions of `tasks` but for the oldest few."""
    names = stage.all(
        "select inhrelid::regclass::text from pg_inherits"
        " where inhparent = 'tasks'::regclass order by 1"
    )
    with stage.connect() as conn:
        for (name,) in names[kept:]:
            conn.execute(sql.SQL("drop table {}").format(sql.Identifier(name)))


@pytest.mark.parametrize(
    ("kept", "expected", "part"),
    [
        (limits.PARTITIONS_AHEAD + 2, "ok", "days"),
        (3, "warn", "only"),
        (1, "fail", "no task can be enqueued"),
        (0, "warn", "no server has run"),
    ],
)
def test_partitions__so_many_left__says_how_long_they_last(
    stage: Stage, kept: int, expected: str, part: str
) -> None:
    _drop_partitions(stage, kept)
    ((level_now, text),) = found(stage.dsn, "partitions")
    assert level_now == expected
    assert part in text


def test_options__of_a_migrated_database__are_all_that_any_table_has(
    conn: psycopg.Connection, database: str
) -> None:
    found_options = conn.execute(
        "select relname, reloptions from pg_class where reloptions is not null"
        " and relnamespace = 'tenure'::regnamespace and relkind in ('r', 'p')"
    ).fetchall()
    migrated = {
        name.rstrip("01234567"): dict(option.split("=") for option in options)
        for name, options in found_options
    }
    assert migrated == store.TABLE_OPTIONS
    assert level(database, "options") == "ok"


@pytest.mark.parametrize(
    ("change", "part"),
    [
        ("alter table leases reset (fillfactor, toast_tuple_target)", "toast_tuple_target = 256"),
        ("alter table timers set (autovacuum_vacuum_scale_factor = 0.2)", "= 0.01"),
        ("alter table ready_tasks_p3 reset (fillfactor)", "ready_tasks_p3 has not fillfactor"),
        ("alter table dead_letters set (autovacuum_enabled = false)", "autovacuum_enabled = on"),
        ("alter table leases set (autovacuum_enabled = off)", "autovacuum_enabled = on"),
    ],
)
def test_options__of_a_table_were_changed__advice_restores_them(
    database: str, conn: psycopg.Connection, change: str, part: str
) -> None:
    conn.execute(change.encode())
    ((level_now, text),) = found(database, "options")
    assert level_now == "warn"
    assert part in text
    conn.execute(advice(database, "options").encode())
    assert level(database, "options") == "ok"


def test_options__autovacuum_on_in_other_words__is_fine(
    database: str, conn: psycopg.Connection
) -> None:
    conn.execute("alter table leases set (autovacuum_enabled = on)")
    assert level(database, "options") == "ok"


def test_bloat__dead_rows_and_no_vacuum__warns_until_it_came(stage: Stage) -> None:
    with stage.connect() as conn:
        # Vacuum would come by itself within a minute.
        conn.execute("alter table timers set (autovacuum_enabled = off)")
        conn.execute(
            "insert into timers (fire_at, run_id, task_id, namespace_id, lane_id, attempt,"
            " delivery, lost_count, rank, kind)"
            " select now() + interval '1 day', uuidv7(), uuidv7(), 1, 1, 1, 1, 0, 0, 'DELAY'"
            " from generate_series(1, 25000)"
        )
        conn.execute("delete from timers")
    assert eventually(lambda: level(stage.dsn, "bloat", after=HOUR) == "warn")
    ((_, text),) = found(stage.dsn, "bloat", after=HOUR)
    assert text.startswith("timers has 25,000 dead rows and 0 live, no vacuum for")
    vacuum = advice(stage.dsn, "bloat", after=HOUR).partition("then: ")[2]
    with stage.connect() as conn:
        conn.execute(vacuum.encode())
    assert eventually(lambda: level(stage.dsn, "bloat", after=HOUR) == "ok")


def test_invariants__broken_by_hand__fail_and_name_one(stage: Stage) -> None:
    first, second = stage.tasks(2)
    stage.all("delete from ready_tasks returning 1")
    ((level_now, text),) = found(stage.dsn, "invariants")
    assert level_now == "fail"
    assert text.startswith("task_place_broken: 2, such as ")
    assert text.partition("such as ")[2].partition(":")[0] in {first.task_id, second.task_id}
    assert "task_place_broken" in advice(stage.dsn, "invariants")


def test_invariants__one_takes_too_long__is_named_and_the_others_are_made(stage: Stage) -> None:
    stage.tasks(1)
    stage.all("delete from ready_tasks returning 1")
    with psycopg.connect(stage.dsn) as holder:
        holder.execute("lock table tenure.idempotency_keys in access exclusive mode")
        broken, late = found(stage.dsn, "invariants", limit=timedelta(seconds=2))
    assert broken[1].startswith("task_place_broken: 1,")
    assert late[0] == "warn"
    # Those behind it had no time left.
    assert late[1] == (
        "not checked: key_broken (it took too long), run_state_broken, run_wait_broken;"
        " the limit is 2 s"
    )


# ----------------------------------------------------------------------- what stands in them


def start(stage: Stage, task: rows.LeasedTask, run_ms: float = 0.0) -> None:
    one = leases.Started(task.lease_id, b"s" * 16, task.task_id, run_ms)
    lease.renew(stage.database, [], [one], 60_000)


def test_timers__held_for_a_restore__warns(database: str, conn: psycopg.Connection) -> None:
    assert level(database, "timers") == "ok"
    conn.execute("insert into restores (checked_by, void_until) values ('ada', now())")
    ((level_now, text),) = found(database, "timers")
    assert level_now == "warn"
    assert "held since" in text
    assert "--release" in advice(database, "timers")


def test_running__an_hour_without_a_timeout__is_named_until_it_ends(stage: Stage) -> None:
    stage.tasks(3)
    oldest, old, young = stage.lease()
    start(stage, oldest, 7_300_000)
    start(stage, old, 3_700_000)
    start(stage, young, 1_000)
    ((level_now, text),) = found(stage.dsn, "running")
    assert level_now == "warn"
    assert text.startswith("2 tasks named work on queue default without a timeout, the oldest, ")
    assert text.endswith(f"{oldest.task_id}, since 2 h")
    stage.report(oldest, Outcome.DONE)
    stage.report(old, Outcome.DONE)
    assert level(stage.dsn, "running") == "ok"


@pytest.mark.parametrize("kind", ["start_to_close", "total"])
def test_running__an_hour_with_a_limit__is_fine(stage: Stage, kind: str) -> None:
    policy = PartialPolicy(max_attempts=3, **{kind: Timeout(86_400_000)})  # type: ignore[arg-type]
    stage.tasks(1, policy=policy)
    (task,) = stage.lease()
    start(stage, task, 7_300_000)
    assert level(stage.dsn, "running") == "ok"


def test_listening__renews_without_a_stream__is_named(stage: Stage) -> None:
    stage.tasks(2)
    opened = stage.session("deaf")
    stage.lease(2, opened=opened)
    assert level(stage.dsn, "listening") == "ok"
    stage.all("update sessions set seen_at = now() - interval '3 minutes' returning 1")
    assert found(stage.dsn, "listening") == [
        ("warn", "worker deaf of default renews 2 tasks and has had no stream for 3 min")
    ]
    stage.all("update leases set expires_at = now() returning 1")
    assert level(stage.dsn, "listening") == "ok", "one that no longer renews is lost, not deaf"


def test_listening__worker_polls__is_fine(stage: Stage) -> None:
    stage.tasks(1)
    stage.lease(1, opened=stage.session())
    stage.all(
        "update sessions set seen_at = now() - interval '3 minutes', secret_hash = %s returning 1",
        poll.POLLING_SECRET_HASH,
    )
    assert level(stage.dsn, "listening") == "ok"


def test_unserved__name_nobody_registered__is_named_until_somebody_does(stage: Stage) -> None:
    stage.tasks(2, name="misspelt")
    stage.all(
        "insert into task_defs (namespace_id, name, override) values (1, 'misspelt', '{}')"
        " returning 1"
    )
    ((level_now, text),) = found(stage.dsn, "unserved", after=LATE)
    assert level_now == "warn"
    assert text.startswith("tasks named misspelt on queue default wait for ")
    session.open_session(stage.database, stage.new_session(), [("misspelt", {})])
    assert level(stage.dsn, "unserved") == "ok"


def test_dead_letters__open_and_of_late__are_counted(stage: Stage) -> None:
    stage.tasks(2, policy=AT_ONCE)
    for task in stage.lease():
        stage.report(task, Outcome.FAILED, failure=NON_RETRYABLE)
    assert found(stage.dsn, "dead-letters") == [
        ("warn", "2 tasks named work on queue default died of NON_RETRYABLE within a day")
    ]
    assert "--name work" in advice(stage.dsn, "dead-letters")
    assert level(stage.dsn, "dead-letters", after=timedelta(days=2)) == "ok"
