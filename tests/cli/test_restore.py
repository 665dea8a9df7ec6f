"""`tenure restore-check`."""

import json
from pathlib import Path

import psycopg

from tenure_service.engine.states import Outcome
from tenure_service.store import migrate
from tests.cli.command import Done, run, run_here
from tests.usecase.stage import Stage, stage

__all__ = ["stage"]


async def test_restore_check__database_with_leases_and_timers__voids_holds_and_releases(
    stage: Stage,
) -> None:
    stage.tasks(3)
    stage.lease(2)
    stage.tasks(1, delay_ms=3_600_000)
    where = ("--database", stage.dsn)

    dry = await run_here("restore-check", *where, "--dry-run", "--json")
    assert dry.code == 0
    shown = json.loads(dry.out)
    assert (shown["dry_run"], shown["restore"]) == (True, None)
    assert shown["found"]["task_count"] == 2
    assert shown["ready"] == [{"namespace": "default", "queue": "default", "ready_count": 1}]
    assert stage.all("select count(*) from leases") == [(1,)]

    busy = await run_here("restore-check", *where)
    assert (busy.code, "servers work on this database" in busy.err) == (3, True)
    done = await run_here("restore-check", *where, "--force")
    assert done.code == 0, done.err
    lines = done.out.splitlines()
    assert lines[0].startswith("data stands at")
    assert "sessions voided    1" in lines
    assert "leases voided      1, of 2 tasks" in lines
    assert "timers             1, 0 of them due already" in lines
    assert "timers held        since" in done.out
    assert "`tenure restore-check --release` lets them go" in done.out
    assert lines[-1].split() == ["default", "default", "3"]
    assert "heard from in the last 15 s" in done.err
    assert "closed 1 sessions, ended 1 leases, of 2 tasks" in done.err.splitlines()

    repeated = await run_here("restore-check", *where, "--json", "--force")
    assert "held already" in repeated.err
    assert "held already" not in done.err + dry.err
    again = json.loads(repeated.out)
    assert again["voided"] == {"session_count": 0, "lease_count": 0, "task_count": 0}
    assert again["restore"]["task_count"] == 2
    assert again["restore"]["released_at"] is None

    released = await run_here("restore-check", *where, "--release")
    assert (released.code, released.out[:9]) == (0, "released:")
    twice = await run_here("restore-check", *where, "--release", "--json")
    assert (twice.code, json.loads(twice.out)["released"]) == (0, None)
    stage.check()


def test_restore_check__piped__tells_the_same_numbers_on_both_streams(stage: Stage) -> None:
    stage.tasks(1)
    stage.lease(1)
    done = run("restore-check", "--force", TENURE_DATABASE=stage.dsn)
    assert done.code == 0, done.err
    told = [line for line in done.err.splitlines() if line.startswith("closed ")]
    assert told == ["closed 1 sessions, ended 1 leases, of 1 tasks"]
    assert "sessions voided    1" in done.out.splitlines()
    assert "leases voided      1, of 1 tasks" in done.out.splitlines()


async def test_restore_check__looked_at_again__still_tells_the_moment_that_was_found_first(
    stage: Stage,
) -> None:
    stage.tasks(2)
    (first, _) = stage.lease(2)
    stage.report(first, Outcome.DONE)
    with stage.connect() as conn:
        for change in (
            "update tasks set enqueued_at = enqueued_at - interval '1 hour'",
            "update leases set granted_at = granted_at - interval '1 hour'",
            "update sessions set seen_at = seen_at - interval '1 hour'",
            "update deliveries set ended_at = ended_at - interval '1 hour'",
        ):
            conn.execute(change.encode())
    where = ("restore-check", "--database", stage.dsn)

    def moments(done: Done) -> list[str]:
        assert done.code == 0, done.err
        return [line[:38] for line in done.out.splitlines()[:3]]

    before = await run_here(*where, "--dry-run")
    assert "found it" not in before.out
    checked = await run_here(*where)
    stage.tasks(1)
    again, dry = await run_here(*where), await run_here(*where, "--dry-run")
    assert [moments(each) for each in (checked, again, dry)] == [moments(before)] * 3
    for each in (again, dry):
        assert ", as the check of " in each.out.splitlines()[0]


async def test_restore_check__schema_of_an_older_release__says_to_migrate(
    empty_database: str, tmp_path: Path
) -> None:
    for each in migrate.find()[:2]:
        (tmp_path / f"{each.name}.sql").write_text(each.text)
    migrate.migrate(empty_database, folder=tmp_path)
    done = await run_here("restore-check", "--database", empty_database)
    assert done.code == 1
    assert "run `tenure migrate`: 0003_pre_restores" in done.err
    with psycopg.connect(empty_database) as conn:
        assert conn.execute("select to_regclass('tenure.restores')").fetchone() == (None,)


async def test_restore_check__wrong_usage__is_told(empty_database: str) -> None:
    both = await run_here("restore-check", "--release", "--dry-run", "--database", empty_database)
    assert both.code == 2
    nowhere = await run_here("restore-check", "--database", "postgresql://u:x@127.0.0.1:1/x")
    assert (nowhere.code, nowhere.err.count("\n")) == (1, 1)
    assert "no database answers" in nowhere.err


async def test_restore_check__keys_are_in_force__names_those_that_may_have_been_revoked(
    stage: Stage,
) -> None:
    where = ("--database", stage.dsn)
    without = await run_here("restore-check", *where, "--dry-run")
    assert "keys in force" not in without.out
    first = await run_here("key", "create", "ops", "--scope", "admin", *where)
    made = await run_here("key", "create", "gone", "--scope", "admin", *where, "--json")
    assert (first.code, made.code) == (0, 0), made.err
    secret, key = json.loads(made.out)["secret"], json.loads(made.out)["key"]
    assert key["created_by"].startswith("database:")
    both = json.loads((await run_here("restore-check", *where, "--dry-run", "--json")).out)
    assert [each["name"] for each in both["keys"]] == ["ops", "gone"]
    assert (await run_here("key", "revoke", key["id"], *where)).code == 0
    done = await run_here("restore-check", *where)
    assert f"keys in force    1: ops ({both['keys'][0]['id']})" in done.out.splitlines()
    assert "one that was revoked since that moment is in force again" in done.out
    assert secret not in done.out
    assert "gone" not in done.out
