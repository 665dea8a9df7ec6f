"""`tenure doctor`: what it prints, how it exits, and that a new database needs no doctor."""

import asyncio
import json
import shutil

import psycopg
import pytest

from tenure_service.embedded import EmbeddedPostgres
from tenure_service.store import migrate
from tests.cli.command import run, run_here, running
from tests.cli.test_dev import _made_project
from tests.fix_server import RunningServer


def test_doctor__of_a_new_dev_database__is_all_ok() -> None:
    project = _made_project()
    try:
        with running("dev", "app:app", "--port", "0", cwd=project) as dev:
            dev.until("serves greet, flaky on queue default")
            # The one that runs is found; `tenure dev` stops it.
            dsn = EmbeddedPostgres.start(project / ".tenure" / "postgres").dsn()
            done = run("doctor", "--strict", "--json", TENURE_DATABASE=dsn)
            assert {each["level"] for each in json.loads(done.out)} == {"ok"}, done.out
            assert done.code == 0
    finally:
        shutil.rmtree(project.parent)


async def test_doctor__server_runs__counts_its_connections(server: RunningServer) -> None:
    done = await run_here("doctor", "--database", server.dsn, "--json")
    found = {each["name"]: each for each in json.loads(done.out)}
    assert found["connections"]["found"].startswith("1 server process may want 18; ")
    assert found["partitions"]["level"] == "ok"
    assert set(found["version"]) == {"level", "name", "found", "advice"}


@pytest.mark.parametrize(("flags", "code"), [((), 0), (("--strict",), 1)])
async def test_doctor__warning__fails_only_when_strict(
    durable: str, flags: tuple[str, ...], code: int
) -> None:
    await asyncio.to_thread(migrate.migrate, durable)
    done = await run_here("doctor", "--database", durable, *flags)
    assert done.code == code
    head, *lines = done.out.splitlines()
    assert head.split() == ["LEVEL", "CHECK", "FOUND", "DO"]
    (partitions,) = [line for line in lines if line.split()[1] == "partitions"]
    assert partitions.startswith("warn   partitions ")
    assert "start a server" in partitions
    assert {line.split()[0] for line in lines} == {"ok", "warn"}


async def test_doctor__commits_do_not_reach_the_disk__fails(database: str) -> None:
    done = await run_here("doctor", "--database", database)
    assert done.code == 1
    (line,) = [line for line in done.out.splitlines() if line.split()[1] == "durability"]
    assert line.startswith("fail   durability")
    assert "fsync is off" in line
    assert "full_page_writes is off" in line


async def test_doctor__failure__exits_with_1(database: str, conn: psycopg.Connection) -> None:
    conn.execute("delete from schema_migrations where id = '0001_pre'")
    done = await run_here("doctor", "--database", database)
    assert done.code == 1
    assert "fail   schema" in done.out
    assert "run `tenure migrate`" in done.out


async def test_doctor__time_for_the_invariants_is_over__names_what_is_left(
    database: str, conn: psycopg.Connection
) -> None:
    with psycopg.connect(database) as holder:
        holder.execute("lock table tenure.idempotency_keys in access exclusive mode")
        done = await run_here("doctor", "--database", database, "--timeout", "1s", "--json")
    (found,) = [each for each in json.loads(done.out) if each["name"] == "invariants"]
    assert found["level"] == "warn"
    assert "key_broken (it took too long), run_state_broken" in found["found"]
    assert found["found"].endswith("; the limit is 1 s")


def test_doctor__database_not_given__is_wrong_usage() -> None:
    done = run("doctor")
    assert done.code == 2
    assert "TENURE_DATABASE" in done.err
