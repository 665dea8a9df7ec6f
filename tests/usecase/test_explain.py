"""Why a task stands where it stands, while somebody holds it."""

import pytest

from tenure_service.engine.states import TaskState
from tenure_service.usecase import read
from tests.usecase.stage import Stage


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
