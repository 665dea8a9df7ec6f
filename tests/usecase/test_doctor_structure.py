"""`tenure doctor` on tables that lack what the migrations gave them, and what the disk is asked."""

from datetime import timedelta

import psycopg
import pytest
from psycopg import sql

from tenure_service.embedded import EmbeddedPostgres
from tenure_service.store import migrate, parts
from tenure_service.usecase import doctor


def structure(dsn: str, schema: str = "tenure") -> list[doctor.Finding]:
    found = doctor.examine(dsn, schema, limit=timedelta(minutes=1))
    return [each for each in found if each.name == "structure"]


def test_expected__migrated_database__is_all_that_it_has(conn: psycopg.Connection) -> None:
    there = conn.execute(
        """
        select c.relname, x.relname
        from pg_index as i
        inner join pg_class as c on c.oid = i.indrelid
        inner join pg_class as x on x.oid = i.indexrelid
        where c.relnamespace = 'tenure'::regnamespace and not x.relispartition
        union
        select c.relname, k.conname
        from pg_constraint as k
        inner join pg_class as c on c.oid = k.conrelid
        where c.relnamespace = 'tenure'::regnamespace and k.contype <> 'n' and k.conparentid = 0
        union
        select c.relname, g.tgname
        from pg_trigger as g
        inner join pg_class as c on c.oid = g.tgrelid
        where c.relnamespace = 'tenure'::regnamespace and not g.tgisinternal
        """
    ).fetchall()
    assert {(part.table, part.name) for part in parts.expected("tenure")} == set(there)
    columns = conn.execute(
        """
        select c.relname, a.attname, a.attnotnull
        from pg_attribute as a
        inner join pg_class as c on c.oid = a.attrelid
        where
            c.relnamespace = 'tenure'::regnamespace and c.relkind in ('r', 'p')
            and not c.relispartition and a.attnum > 0
        """
    ).fetchall()
    told = {(column.table, column.name, column.required) for column in parts.columns("tenure")}
    assert told == set(columns)
    functions = conn.execute(
        "select proname from pg_proc where pronamespace = 'tenure'::regnamespace"
    ).fetchall()
    assert [(function.name,) for function in parts.functions("tenure")] == functions


@pytest.mark.parametrize(
    ("change", "level", "part"),
    [
        ("drop index leases_task_idx", "warn", "missing: index leases_task_idx of leases"),
        ("drop index ready_tasks_task_idx", "warn", "missing: index ready_tasks_task_idx"),
        ("drop index restores_held_unique", "fail", "missing: index restores_held_unique"),
        (
            "alter table leases drop constraint leases_remaining_positive",
            "fail",
            "missing: constraint leases_remaining_positive of leases",
        ),
        (
            "alter table deliveries drop constraint deliveries_pkey",
            "fail",
            "missing: constraint deliveries_pkey of deliveries",
        ),
        (
            "alter table lanes drop constraint lanes_identity_unique",
            "fail",
            "missing: constraint lanes_identity_unique of lanes",
        ),
        (
            "drop trigger audit_events_append_only on audit_events",
            "fail",
            "missing: trigger audit_events_append_only of audit_events",
        ),
        (
            "alter table audit_events disable trigger audit_events_append_only",
            "fail",
            "disabled: trigger audit_events_append_only of audit_events",
        ),
        ("alter table sessions drop column api_key_id", "fail", "missing: column api_key_id of"),
        (
            "alter table lanes alter column queue drop not null",
            "fail",
            "changed: column queue of lanes takes null",
        ),
        (
            "alter table lanes alter column suspect drop default",
            "fail",
            "changed: column suspect of lanes has no default",
        ),
        (
            "alter table ready_tasks alter column seq set default 7",
            "fail",
            "changed: column seq of ready_tasks has the default 7",
        ),
        (
            "alter table leases alter column granted_at set default null",
            "fail",
            "changed: column granted_at of leases has",
        ),
        (
            "alter table api_keys alter column name type varchar(200)",
            "fail",
            "changed: column name of api_keys is character varying(200), not text",
        ),
        (
            "alter table api_keys alter column namespace_id set not null",
            "fail",
            "changed: column namespace_id of api_keys takes no null",
        ),
        (
            "alter table api_keys alter column name set default 'x'",
            "fail",
            "changed: column name of api_keys has the default 'x'::text",
        ),
        (
            """
            create or replace function audit_events_refuse() returns trigger language plpgsql
            as 'begin return null; end'
            """,
            "fail",
            "changed: function audit_events_refuse",
        ),
        (
            """
            alter table tasks drop constraint tasks_priority_range,
            add constraint tasks_priority_range check (priority between -100 and 100) not valid
            """,
            "fail",
            "not validated: constraint tasks_priority_range of tasks",
        ),
    ],
)
def test_structure__part_missing_or_out_of_force__advice_brings_it_back(
    database: str, conn: psycopg.Connection, change: str, level: str, part: str
) -> None:
    (before,) = structure(database)
    assert before.level is doctor.Level.OK
    conn.execute(change.encode())
    (found,) = structure(database)
    assert (found.level.value, part in found.found) == (level, True), found
    conn.execute(found.advice.encode())
    assert structure(database) == [before]


@pytest.mark.parametrize(
    ("name", "level", "advice"),
    [
        ("sessions_seen_idx", "warn", "reindex index concurrently tenure.sessions_seen_idx"),
        ("sessions_seen_idx_ccnew", "warn", "drop index tenure.sessions_seen_idx_ccnew"),
        ("own_idx", "warn", "reindex index concurrently tenure.own_idx"),
        ("restores_held_unique", "fail", "reindex index concurrently tenure.restores_held_unique"),
    ],
)
def test_structure__index_not_valid__is_named(
    database: str, conn: psycopg.Connection, name: str, level: str, advice: str
) -> None:
    if name not in {part.name for part in parts.expected("tenure")}:
        statement = sql.SQL("create index {} on sessions (seen_at)")
        conn.execute(statement.format(sql.Identifier(name)))
    # What a build that was cut short leaves.
    conn.execute(
        "update pg_index set indisvalid = false where indexrelid = %s::text::regclass", [name]
    )
    (found,) = structure(database)
    assert (found.level.value, found.advice) == (level, advice)
    conn.execute(found.advice.encode())
    assert structure(database)[0].level is doctor.Level.OK


def test_structure__schema_of_another_name__is_compared_in_it(empty_database: str) -> None:
    migrate.migrate(empty_database, "elsewhere")
    (found,) = structure(empty_database, "elsewhere")
    assert found.level is doctor.Level.OK
    with psycopg.connect(empty_database) as conn:
        conn.execute("drop index elsewhere.deliveries_ended_otherwise_idx")
    (found,) = structure(empty_database, "elsewhere")
    with psycopg.connect(empty_database) as conn:
        conn.execute(found.advice.encode())
    assert structure(empty_database, "elsewhere")[0].level is doctor.Level.OK


def test_structure__migrations_of_a_newer_release__are_not_compared(
    database: str, conn: psycopg.Connection
) -> None:
    conn.execute(
        """
        insert into schema_migrations (id, name, checksum, breaking)
        values ('9999_pre', '9999_pre_more', '', false)
        """
    )
    conn.execute("drop index leases_task_idx")
    (found,) = structure(database)
    assert found.level is doctor.Level.OK
    assert "not compared" in found.found


def test_durability__only_synchronous_commit_is_off__warns(
    tmp_path_factory: pytest.TempPathFactory,
) -> None:
    folder = tmp_path_factory.mktemp("asynchronous") / "pg"
    started = EmbeddedPostgres.start(folder, durable=True, settings={"synchronous_commit": "off"})
    try:
        migrate.migrate(started.dsn())
        found = doctor.examine(started.dsn(), "tenure", limit=timedelta(minutes=1))
    finally:
        started.remove()
    (durability,) = [each for each in found if each.name == "durability"]
    assert durability.level is doctor.Level.WARN
    assert durability.found == "synchronous_commit is off (command line)"
