"""Why a task stands where it stands, while somebody holds it."""

import dataclasses
import uuid

import pytest

from tenure_service.engine.policy import PartialPolicy
from tenure_service.engine.states import Outcome, TaskState
from tenure_service.usecase import expire, operate, read
from tenure_service.usecase.session import open_session
from tests.usecase.stage import Stage, later


def told(stage: Stage) -> list[str]:
    """Leases a task and asks why it stands there."""
    (key,) = stage.tasks(1)
    stage.lease(1)
    explained = read.explain(stage.database, stage.catalogue, stage.namespace_id, key)
    assert explained.state is TaskState.LEASED
    return explained.reasons


def moment(stage: Stage, query: str) -> str:
    ((found,),) = stage.all(
        f"select to_char(({query}) at time zone 'utc', 'YYYY-MM-DD HH24:MI:SS') || ' UTC'"
    )
    return str(found)


def test_explain__leased_by_a_worker_that_is_there__tells_since_when(stage: Stage) -> None:
    granted = told(stage)
    since = moment(stage, "select granted_at from leases")
    assert granted == [f"It is leased by worker 'worker' since {since}, attempt 1."]


@pytest.mark.parametrize(
    "change",
    [
        b"update sessions set receiving = false",
        b"update sessions set seen_at = now() - interval '1 minute'",
    ],
)
def test_explain__worker_is_away__tells_since_when_and_when_the_lease_ends(
    stage: Stage, change: bytes
) -> None:
    (key,) = stage.tasks(1)
    stage.lease(1)
    with stage.transaction() as conn:
        conn.execute(change)
    explained = read.explain(stage.database, stage.catalogue, stage.namespace_id, key)
    seen = moment(stage, "select seen_at from sessions")
    ends = moment(stage, "select expires_at from leases")
    (reason,) = explained.reasons[1:]
    assert reason == (
        f"No server hears of that worker since {seen}: unless it comes back, the task is handed "
        f"out again when its lease ends, at {ends}."
    )


def keyed(stage: Stage, *, ended: bool) -> str:
    """Opens a session with a key that has ended or will; gives its id."""
    key_id = str(uuid.uuid4())
    with stage.transaction() as conn:
        conn.execute(
            "insert into api_keys (api_key_id, name, hash, scopes, revoked_at, expires_at)"
            " values (%s, 'k1', %s, '{worker}', %s, now() + interval '1 hour')",
            (key_id, key_id.encode(), "2026-01-01 00:00:00+00" if ended else None),
        )
    return key_id


@pytest.mark.parametrize("ended", [False, True])
def test_expire__key_of_the_worker_has_ended__is_no_loss(stage: Stage, *, ended: bool) -> None:
    new = dataclasses.replace(stage.new_session("w1"), key_id=keyed(stage, ended=ended))
    (key,) = stage.tasks(1)
    stage.lease(1, opened=open_session(stage.database, new, []))
    explained = read.explain(stage.database, stage.catalogue, stage.namespace_id, key)
    assert len(explained.reasons) == 1, "a worker that a server has is not asked for its key"
    assert expire.expire(stage.database, stage.catalogue, now=later(hours=1)) is not None
    assert stage.outcomes(key) == [Outcome.RELEASED if ended else Outcome.LOST]
    ((lost_count,),) = stage.all("select lost_count from ready_tasks")
    assert lost_count == (0 if ended else 1)
    stage.check()


def test_explain__key_of_the_worker_has_ended__names_it(stage: Stage) -> None:
    new = dataclasses.replace(stage.new_session("w1"), key_id=keyed(stage, ended=True))
    opened = open_session(stage.database, new, [])
    held, waiting = stage.tasks(2)
    stage.lease(1, opened=opened)
    with stage.transaction() as conn:
        conn.execute("update sessions set receiving = false")
    explained = read.explain(stage.database, stage.catalogue, stage.namespace_id, held)
    ended = "key 'k1' ended at 2026-01-01 00:00:00 UTC"
    assert explained.reasons[1] == f"Its {ended}: give the worker another one."
    explained = read.explain(stage.database, stage.catalogue, stage.namespace_id, waiting)
    assert f"Worker 'w1' serves it, but its {ended}: give it another one." in explained.reasons


def test_explain__beside_a_task_that_lost_its_workers__says_so(stage: Stage) -> None:
    (suspect,) = stage.tasks(1)

    def told() -> list[str]:
        found = read.explain(stage.database, stage.catalogue, stage.namespace_id, neighbour)
        assert found.state is TaskState.READY
        return found.reasons

    for _ in range(2):
        stage.lease(1)
        expire.expire(stage.database, stage.catalogue, now=later(hours=1))
        expire.fire_timers(stage.database, now=later(hours=2))
    (neighbour,) = stage.tasks(1)
    assert any("waits for a worker that holds nothing else" in each for each in told())
    stage.lease(1, suspect=True)
    explained = read.explain(stage.database, stage.catalogue, stage.namespace_id, suspect)
    assert explained.state is TaskState.LEASED
    assert any("takes nothing beside it" in each for each in told())


def test_explain__dead_letter__says_why_and_what_became_of_it(stage: Stage) -> None:
    (key,) = stage.tasks(1, policy=PartialPolicy(max_attempts=1))
    (task,) = stage.lease(1)
    stage.report(task, Outcome.FAILED)

    def told() -> str:
        found = read.explain(stage.database, stage.catalogue, stage.namespace_id, key)
        assert found.state is TaskState.DEAD
        return found.reasons[1]

    assert told() == "As a dead letter (ATTEMPTS_EXHAUSTED) it waits to be replayed or discarded."
    operate.discard(stage.database, stage.namespace_id, [key])
    assert told() == "As a dead letter (ATTEMPTS_EXHAUSTED) it was discarded."
