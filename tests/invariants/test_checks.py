"""Each check of store/sql/invariants.sql finds the breach it is for; a sound database has none.

A check that cannot fail is worse than none, so every one is shown a database that was damaged by
hand, and nothing else complains that should not.
"""

import psycopg
import pytest

from tenure_service.engine.states import Outcome
from tenure_service.engine.tokens import TaskKey
from tenure_service.store import invariants
from tenure_service.usecase import cancel, expire, operate
from tests.runs import lives
from tests.usecase.stage import Stage, later

READY_AGAIN = """
    insert into ready_tasks (lane_id, run_id, task_id, delivery)
    select lane_id, run_id, task_id, 2 from tasks limit 1
"""
SECOND_DONE = """
    insert into deliveries (run_id, task_id, delivery, attempt, outcome, final)
    select run_id, task_id, 2, 1, 'DONE', true from deliveries
"""
ENDED_BY_ANOTHER = """
    insert into deliveries (run_id, task_id, delivery, attempt, outcome, final, lease_id)
    select run_id, task_id, 1, 1, 'DONE', true, uuidv7() from tasks limit 1
"""
ENDED_UNCOUNTED = """
    insert into deliveries (run_id, task_id, delivery, attempt, outcome, final, lease_id)
    select run_id, task_id, 1, 1, 'DONE', true, (select lease_id from leases) from tasks
"""
REQUEST = """
    insert into cancel_requests (run_id, task_id, namespace_id, deadline_at)
    select run_id, task_id, 1, now() from tasks
"""
REQUEST_OF_NONE = """
    insert into cancel_requests (run_id, task_id, namespace_id, deadline_at)
    values (uuidv7(), uuidv7(), 1, now())
"""
BLOCKED_WITH_WAITS = "update runs set status = 'BLOCKED', blocked = 'HISTORY_MISMATCH'"
RUN_READY = """
    with gone as (delete from timers returning *)
    insert into ready_tasks (lane_id, run_id, task_id, delivery)
    select lane_id, run_id, task_id, delivery from gone
"""

BREACHES = [
    # (what happens to three tasks that are held, done or waiting; what finds it)
    ("waiting", "delete from ready_tasks", {"task_place_broken"}),
    ("held", "delete from leases", {"task_place_broken"}),
    ("held", READY_AGAIN, {"task_place_broken", "delivery_number_broken"}),
    ("done", READY_AGAIN, {"task_place_broken"}),
    ("waiting", "delete from tasks", {"task_place_broken"}),
    ("waiting", "update ready_tasks set delivery = 2", {"delivery_number_broken"}),
    ("failed", "update deliveries set delivery = 2", {"delivery_number_broken"}),
    ("done", "delete from tasks", {"delivery_number_broken", "key_broken"}),
    ("done", "update deliveries set outcome = 'RELEASED'", {"delivery_final_broken"}),
    (
        "done",
        SECOND_DONE,
        {"delivery_final_broken"},
    ),
    ("held", "update leases set remaining = 2", {"lease_remaining_broken"}),
    ("held", "update leases set seqs = seqs[2:]", {"lease_remaining_broken"}),
    (
        "held",
        ENDED_BY_ANOTHER,
        {"lease_remaining_broken", "lease_delivery_broken"},
    ),
    (
        "held",
        ENDED_UNCOUNTED,
        {"lease_remaining_broken"},
    ),
    ("dead", "delete from dead_letters", {"dead_letter_broken"}),
    ("dead", "update dead_letters set delivery = 7", {"dead_letter_broken"}),
    ("dead", "update dead_letters set reason = 'LEASE_LOST'", {"dead_letter_broken"}),
    ("dead", "update dead_letters set state = 'REPLAYED'", {"task_place_broken"}),
    ("dead", "update deliveries set outcome = 'CANCELLED'", {"dead_letter_broken"}),
    ("replayed", "update dead_letters set state = 'OPEN'", {"task_place_broken"}),
    (
        "done",
        REQUEST,
        {"cancel_request_broken"},
    ),
    (
        "waiting",
        REQUEST_OF_NONE,
        {"cancel_request_broken"},
    ),
    (
        "waiting",
        REQUEST,
        {"cancel_request_broken"},
    ),
    ("waiting", "update ready_tasks set attempt = 2", {"attempt_broken"}),
    ("failed", "update ready_tasks set attempt = 1", {"attempt_broken"}),
    ("failed", "update ready_tasks set lost_count = 1", {"attempt_broken"}),
    ("lost", "update ready_tasks set attempt = 2", {"attempt_broken"}),
    ("done", "update deliveries set attempt = 4", {"attempt_broken"}),
    (
        "waiting",
        "update ready_tasks set lane_id = (select max(lane_id) from lanes)",
        {"live_lane_broken"},
    ),
    ("waiting", "update tasks set key = null", {"key_broken"}),
    # Of a run that waits for two tasks of which one is over.
    ("suspended", "update runs set status = 'OPEN'", {"run_state_broken"}),
    ("suspended", "update runs set ended_at = now()", {"run_state_broken"}),
    ("suspended", "update runs set status = 'FAILED', ended_at = now()", {"run_state_broken"}),
    ("suspended", BLOCKED_WITH_WAITS, {"run_state_broken"}),
    ("suspended", "delete from runs", {"run_state_broken"}),
    ("suspended", "update timers set kind = 'BACKOFF'", {"run_state_broken"}),
    ("suspended", "delete from tasks where run_id = task_id", {"run_state_broken"}),
    ("suspended", "update run_wait_sets set needed_count = 0", {"run_wait_broken"}),
    ("suspended", "update run_wait_sets set needed_count = 3", {"run_wait_broken"}),
    ("suspended", "delete from run_waits", {"run_wait_broken"}),
    ("suspended", "delete from run_inbox", {"run_wait_broken"}),
    ("ended", "update runs set status = 'FAILED'", {"run_state_broken"}),
    ("ended", "update runs set status = 'OPEN', ended_at = null", {"run_state_broken"}),
    ("blocked", "update timers set kind = 'BACKOFF'", {"run_state_broken"}),
    ("blocked", RUN_READY, {"run_state_broken"}),
]


def _sweep(stage: Stage) -> None:
    expire.expire(stage.database, stage.catalogue, now=later())


def _prepare_run(stage: Stage, state: str) -> None:
    one = lives.begin(stage)
    if state == "suspended":
        lives.suspend(stage, one, lives.all_of(lives.start_tasks(stage, one, 2)))
        lives.work(stage)
    elif state == "blocked":
        stage.end(lives.suspension(one, blocked=True))
    else:
        lives.report(stage, one, Outcome.DONE)


def _prepare(stage: Stage, state: str) -> None:
    if state in {"suspended", "blocked", "ended"}:
        _prepare_run(stage, state)
        return
    for number in range(3):
        stage.tasks(1, key=f"k{number}", key_ms=3_600_000)
    stage.lane_id("other")
    if state == "waiting":
        return
    tasks = stage.lease()
    non_retryable = {"type": "E", "message": "", "non_retryable": True}
    for task in tasks:
        if state == "done":
            stage.report(task, Outcome.DONE)
        elif state == "failed":
            stage.report(task, Outcome.FAILED)
        elif state in {"dead", "replayed"}:
            stage.report(task, Outcome.FAILED, failure=non_retryable)
    if state == "lost":
        _sweep(stage)
    if state == "replayed":
        keys = [key for (key,) in stage.all("select task_id::text from tasks")]
        operate.replay(stage.database, stage.namespace_id, [TaskKey(key, key) for key in keys])


@pytest.mark.parametrize(("state", "damage", "found"), BREACHES)
def test_check__damaged_by_hand__finds_it(
    stage: Stage, state: str, damage: str, found: set[str]
) -> None:
    _prepare(stage, state)
    stage.check()
    with stage.connect() as conn:
        conn.execute(damage.encode())
        assert found <= set(invariants.check_invariants(conn))


def test_check__every_check__is_shown_a_breach() -> None:
    assert set(invariants.CHECKS) == set().union(*(found for _, _, found in BREACHES))


def test_check__inside_a_transaction_of_the_caller__leaves_it_open(
    conn: psycopg.Connection,
) -> None:
    with conn.transaction():
        assert invariants.check_invariants(conn) == {}
        assert conn.execute("select 1").fetchone() == (1,)


def test_check__all_that_tasks_go_through__is_sound(stage: Stage) -> None:
    """Every outcome, and what the tables look like after it."""
    keys = stage.tasks(9)
    tasks = stage.lease(8)
    for task, outcome in zip(
        tasks, ("DONE", "FAILED", "RELEASED", "RESCHEDULED", "CANCELLED"), strict=False
    ):
        stage.report(task, Outcome(outcome), delay_ms=1_000)
        stage.check()
    cancel.cancel(stage.database, stage.namespace_id, keys[5:], reason="", grace_ms=0)
    stage.check()
    _sweep(stage)
    stage.check()
