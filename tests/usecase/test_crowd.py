"""One transaction of picks for many sessions: what it costs, and that nobody is passed over."""

import dataclasses
from collections.abc import Sequence

from tenure_service.store.leases import Pick
from tenure_service.usecase.lease import lease
from tests.usecase.stage import Stage


def counts(stage: Stage, picks: Sequence[Pick]) -> list[int]:
    """How many tasks each pick got."""
    return [len(grant.tasks) for grant in lease(stage.database, stage.catalogue, picks)]


def scans(stage: Stage) -> int:
    """How often tasks were looked for so far: PostgreSQL counts it, and is asked to tell at once."""
    stage.database.read(lambda conn: conn.execute("select pg_stat_force_next_flush()"))
    ((count,),) = stage.all(
        "select sum(idx_scan) from pg_stat_user_indexes where relname like 'ready_tasks%%'"
    )
    return int(count)


def test_lease__one_task_and_fifty_sessions__looks_twice(stage: Stage) -> None:
    stage.tasks()
    sessions = [stage.session(f"worker-{number}") for number in range(50)]
    picks = [stage.pick(one, stage.lane_id(), 1) for one in sessions]
    before = scans(stage)
    assert counts(stage, picks) == [1] + [0] * 49
    assert 2 <= scans(stage) - before <= 6


def test_lease__sessions_that_are_gone_come_first__others_get_the_tasks(stage: Stage) -> None:
    stage.tasks(2)
    sessions = [stage.session(f"worker-{number}") for number in range(14)]
    picks = [stage.pick(one, stage.lane_id(), 1) for one in sessions]
    gone = [dataclasses.replace(pick, epoch=pick.epoch + 1) for pick in picks[:12]]
    assert counts(stage, [*gone, *picks[12:]]) == [0] * 12 + [1, 1]


def test_lease__one_of_two_lanes_is_dry__takes_from_the_other(stage: Stage) -> None:
    stage.tasks(1, "short")
    stage.tasks(3, "long")
    lanes = [stage.lane_id("short"), stage.lane_id("long")]
    sessions = [stage.session(f"worker-{number}") for number in range(3)]
    picks = [stage.pick(one, lane_id, 1) for one in sessions for lane_id in lanes]
    assert counts(stage, picks) == [1, 1, 0, 1, 0, 1]
