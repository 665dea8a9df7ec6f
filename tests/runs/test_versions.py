"""Versions of workflow functions: who has which, and what becomes of runs whose version is gone."""

import contextlib
import dataclasses
import time
from collections.abc import AsyncIterator
from datetime import UTC, datetime, timedelta

import pytest_asyncio

from tenure_service.main import Server
from tenure_service.store import versions
from tenure_service.store.database import Conn
from tenure_service.store.registry import Lane
from tenure_service.store.versions import Served, SessionHandler, WorkflowHandler
from tenure_service.usecase import session as sessions
from tenure_service.usecase import versions as usecase
from tests.fix_server import server_config
from tests.protocol.caller import Caller
from tests.runs import flows
from tests.usecase.stage import Stage

GRACE = timedelta(minutes=10)
GRACE_MS = 600_000


def came(
    stage: Stage,
    version: str,
    *compatible: str,
    pinned: bool = False,
    name: str = "flow",
    queue: str = "default",
) -> str:
    """Opens a session of a worker of a version; gives its id."""
    handler = WorkflowHandler(
        queue=queue, name=name, version=version, compatible_versions=compatible, pinned=pinned
    )
    new = stage.new_session(f"worker of {version}")
    new = dataclasses.replace(new, handlers=[*new.handlers, handler.to_json()])
    return sessions.open_session(stage.database, new, [], workflows=[handler]).session_id


def gone(stage: Stage, version: str, *, minutes: float = 11) -> None:
    """Moves back when a version was seen."""
    with stage.connect() as conn:
        conn.execute(
            "update app_versions set seen_at = now() - %s where version = %s",
            [timedelta(minutes=minutes), version],
        )


def first_came(stage: Stage, version: str, *, minutes: float) -> None:
    """Opens a session of a worker of a version that first came so long ago."""
    came(stage, version)
    with stage.connect() as conn:
        conn.execute(
            "update app_versions set first_seen_at = now() - %s where version = %s",
            [timedelta(minutes=minutes), version],
        )


def served(stage: Stage, *found: str) -> list[Served]:
    return [Served(stage.namespace_id, "default", "flow", version) for version in found]


def moved(stage: Stage, *live: str) -> list[str]:
    """Makes one pass for a server whose workers serve versions; gives the lanes of all runs."""
    usecase.touch(stage.database, served(stage, *live))
    usecase.adopt(stage.database, stage.catalogue, served(stage, *live), GRACE)
    stage.check()
    return [version for _, version in flows.waiting(stage)]


def test_adopt__version_not_seen_for_the_grace__goes_to_the_newest_that_is(stage: Stage) -> None:
    for version, minutes in (("v1", 90), ("v2", 60), ("v4", 30), ("v3", 40)):
        first_came(stage, version, minutes=minutes)
    flows.place(stage, 3, version="v1")
    gone(stage, "v1", minutes=9.9)
    assert moved(stage, "v2", "v3", "v4") == ["v1"] * 3
    gone(stage, "v1", minutes=10.1)
    gone(stage, "v4", minutes=1)
    assert moved(stage, "v2", "v3") == ["v3"] * 3


def test_adopt__nobody_serves_another_version__leaves_the_run_for_who_comes(stage: Stage) -> None:
    came(stage, "v1")
    flows.place(stage, version="v1")
    gone(stage, "v1")
    came(stage, "v2")
    gone(stage, "v2", minutes=1)
    # A server that has nothing but an older word of its workers.
    assert (
        stage.database.read(lambda conn: versions.orphans(conn, served(stage, "v2"), GRACE_MS))
        == {}
    )
    assert moved(stage, "v2") == ["v2"]


def test_adopt__pinned_version__waits_for_its_own(stage: Stage) -> None:
    came(stage, "v1", pinned=True)
    flows.place(stage, version="v1")
    gone(stage, "v1")
    came(stage, "v2")
    assert moved(stage, "v2") == ["v1"]


def test_adopt__version_that_another_one_goes_on_with__is_not_orphaned(stage: Stage) -> None:
    came(stage, "v1")
    gone(stage, "v1")
    came(stage, "v2", "v1")
    came(stage, "v3")
    flows.place(stage, version="v1")
    assert moved(stage, "v2", "v1", "v3") == ["v1"]
    gone(stage, "v1")
    assert moved(stage, "v3") == ["v3"]


def test_adopt__other_workflow_or_queue__does_not_count(stage: Stage) -> None:
    came(stage, "v1")
    gone(stage, "v1")
    came(stage, "v2", name="other")
    came(stage, "v2", queue="other")
    flows.place(stage, version="v1")
    other = Served(stage.namespace_id, "default", "other", "v2")
    elsewhere = Served(stage.namespace_id, "other", "flow", "v2")
    usecase.touch(stage.database, [other, elsewhere])
    usecase.adopt(stage.database, stage.catalogue, [other, elsewhere, *served(stage, "v1")], GRACE)
    assert [version for _, version in flows.waiting(stage)] == ["v1"]


def test_adopt__runs_of_several_lanes__keep_their_places_and_numbers(stage: Stage) -> None:
    came(stage, "v1")
    flows.place(stage, 2, version="v1", rank=3)
    flows.place(stage, 1, version="v1", rank=-5, lane_key="tenant")
    flows.place(stage, 1, version="v1", suspect=True)
    with stage.connect() as conn:
        conn.execute("update ready_tasks set delivery = 7, lost_count = 1, total_by = now()")
    query = """
        select run_id, seq, rank, attempt, delivery, lost_count, ready_at, total_by, deadline_at
        from ready_tasks
        order by run_id
    """
    before, order = stage.all(query), [run_id for run_id, _ in flows.waiting(stage)]
    gone(stage, "v1")
    came(stage, "v2")
    assert usecase.adopt(stage.database, stage.catalogue, served(stage, "v2"), GRACE) == {
        stage.catalogue.lane_ids([lane])[lane]: rank
        for lane, rank in (
            (Lane(stage.namespace_id, "default", "flow", "", False, "v2"), 3),
            (Lane(stage.namespace_id, "default", "flow", "tenant", False, "v2"), -5),
            (Lane(stage.namespace_id, "default", "flow", "", True, "v2"), 0),
        )
    }
    assert stage.all(query) == before
    assert [run_id for run_id, _ in flows.waiting(stage)] == order


def test_adopt__worker_came_back_after_the_look__leaves_the_run_to_it(stage: Stage) -> None:
    came(stage, "v1")
    flows.place(stage, version="v1")
    gone(stage, "v1")
    came(stage, "v2")
    orphaned = stage.database.read(
        lambda conn: versions.orphans(conn, served(stage, "v2"), GRACE_MS)
    )
    lane_ids = stage.catalogue.lane_ids(orphaned.values())
    targets = {lane_id: lane_ids[lane] for lane_id, lane in orphaned.items()}
    assert targets
    came(stage, "v1")
    assert not stage.database.transact(lambda conn: versions.adopt(conn, targets, GRACE_MS, 1_000))
    assert [version for _, version in flows.waiting(stage)] == ["v1"]


def test_adopt__run_that_a_worker_takes_now__is_left_to_it(stage: Stage) -> None:
    came(stage, "v1")
    first, second = flows.place(stage, 2, version="v1")
    gone(stage, "v1")
    came(stage, "v2")
    with stage.transaction() as conn:
        conn.execute("select 1 from ready_tasks where run_id = %s for update", [first])
        usecase.adopt(stage.database, stage.catalogue, served(stage, "v2"), GRACE)
    assert flows.waiting(stage) == [(first, "v1"), (second, "v2")]


def test_adopt__suspended_run__is_moved_once_it_is_ready(stage: Stage) -> None:
    came(stage, "v1")
    (run_id,) = flows.place(stage, version="v1")
    with stage.connect() as conn:
        conn.execute(
            """
            with gone as (delete from ready_tasks returning run_id, task_id, lane_id, rank)
            insert into timers (
                fire_at, run_id, task_id, namespace_id, lane_id, attempt, delivery, lost_count,
                rank, kind
            )
            select '9999-01-01', run_id, task_id, %s, lane_id, 1, 2, 0, rank, 'WAIT' from gone
            """,
            [stage.namespace_id],
        )
    gone(stage, "v1")
    came(stage, "v2")
    usecase.adopt(stage.database, stage.catalogue, served(stage, "v2"), GRACE)
    with stage.connect() as conn:
        conn.execute(
            """
            with gone as (delete from timers returning run_id, task_id, lane_id, rank, delivery)
            insert into ready_tasks (run_id, task_id, lane_id, rank, delivery)
            select run_id, task_id, lane_id, rank, delivery from gone
            """
        )
    assert flows.waiting(stage) == [(run_id, "v1")]
    usecase.adopt(stage.database, stage.catalogue, served(stage, "v2"), GRACE)
    assert flows.waiting(stage) == [(run_id, "v2")]


def test_note__same_worker_again__writes_only_what_is_new(stage: Stage) -> None:
    came(stage, "v1", "v0")
    query = "select version, compatible_versions, pinned, xmin::text from app_versions"
    before = stage.all(query)
    came(stage, "v1", "v0")
    assert stage.all(query) == before
    came(stage, "v1", pinned=True)
    assert [row[:3] for row in stage.all(query)] == [("v1", [], True)]


def test_touch__version_that_was_not_seen_for_seconds__is_seen_now(stage: Stage) -> None:
    came(stage, "v1")
    first = stage.all("select seen_at from app_versions")
    soon, later = (datetime.now(UTC) + timedelta(seconds=seconds) for seconds in (2, 4))
    for now, seen in ((soon, first), (later, [(later,)])):

        def touch(conn: Conn, at: datetime = now) -> None:
            versions.touch(conn, served(stage, "v1", "v9"), now=at)

        stage.database.transact(touch)
        assert stage.all("select seen_at from app_versions") == seen


def test_of_sessions__what_they_came_with__tells_their_versions(stage: Stage) -> None:
    one, two = came(stage, "v1", "v0"), came(stage, "v2", name="other")
    plain = stage.session().session_id
    asked = [
        SessionHandler(session_id, "default", name)
        for session_id in (one, two, plain)
        for name in ("flow", "other", "work")
    ]
    found = stage.database.read(lambda conn: versions.of_sessions(conn, asked))
    assert found == {asked[0]: "v1", asked[4]: "v2"}


@contextlib.asynccontextmanager
async def serving(database: str, **settings: object) -> AsyncIterator[Caller]:
    """A client of a server with these settings."""
    running = Server(server_config(database, **settings))
    await running.start()
    opened = Caller(running.address)
    try:
        yield opened
    finally:
        await opened.close()
        await running.stop()


@pytest_asyncio.fixture
async def impatient(database: str) -> AsyncIterator[Caller]:
    """A client of a server that gives up on a version after two seconds."""
    async with serving(database, version_grace_seconds=2) as opened:
        yield opened


async def test_assign__version_gone_for_the_grace__goes_to_the_newest_worker(
    impatient: Caller, stage: Stage
) -> None:
    own = await flows.serve(impatient, flows.flow("v1"))
    first, second = flows.place(stage, 2, version="v1")
    newer = await flows.serve(impatient, flows.flow("v2"))
    assert {one.task_id for one in await own.tasks(2)} == {first, second}
    await newer.nothing_comes(seconds=2.5)
    assert len(own.out) == 2
    await flows.finish(own)
    # What a closed session held goes back at once, to the version that had it.
    await own.close()
    await newer.nothing_comes(seconds=1.0)
    (given,) = await newer.tasks(1)
    assert given.task_id in {first, second}
    assert given.activation.version == "v1"
    await newer.close()


async def test_assign__server_that_just_came__gives_other_versions_their_grace(
    database: str, stage: Stage
) -> None:
    """After an hour without a server no version was seen, and whose workers come first is chance."""
    came(stage, "v1")
    gone(stage, "v1")
    flows.place(stage, version="v1")
    began = time.monotonic()
    async with serving(database, version_grace_seconds=4) as client:
        newer = await flows.serve(client, flows.flow("v2"))
        await newer.tasks(1)
        assert time.monotonic() - began > 4
        await newer.close()
