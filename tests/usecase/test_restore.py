"""A database that was restored: made by copying one with leases, sessions and timers, and going on
in the copy, as workers and servers do that knew more than it does."""

import dataclasses
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from datetime import UTC, datetime, timedelta

import psycopg
import pytest
from psycopg import conninfo

from tenure_service.engine.policy import Backoff, PartialPolicy, Timeout, TimeoutAction
from tenure_service.engine.states import Outcome
from tenure_service.engine.tokens import TaskKey
from tenure_service.store import invariants, leases, restores, rows, timers
from tenure_service.store.database import Conn
from tenure_service.usecase import cancel, expire, maintain, read, restore, timeouts
from tenure_service.usecase.end import Recorded
from tenure_service.usecase.lease import renew
from tenure_service.usecase.restore import Voided
from tenure_service.usecase.session import Presence, open_session, touch
from tests import fix_db
from tests.eventually import eventually
from tests.usecase.stage import AT_ONCE, Stage, in_thread, later

Restored = Callable[[], Stage]

#: A retry that waits.
LATER = PartialPolicy(
    max_attempts=3, backoff=Backoff.FIXED, initial_delay_ms=60_000, max_delay_ms=60_000, jitter=0.0
)
TOTAL = dataclasses.replace(AT_ONCE, total=Timeout(60_000, TimeoutAction.TIME_OUT))


@pytest.fixture
def restored(stage: Stage, postgres: str, _admin: psycopg.Connection) -> Iterator[Restored]:
    """Gives a copy of the stage's database; the stage itself is closed by then."""
    with ExitStack() as stack:

        def copy() -> Stage:
            stage.close()
            name = str(conninfo.conninfo_to_dict(stage.dsn)["dbname"])
            opened = Stage(stack.enter_context(fix_db._checked_clone(postgres, _admin, name)))
            stack.callback(opened.close)
            stack.callback(opened.check)
            return opened

        yield copy


def check(stage: Stage, told: list[Voided] | None = None) -> restore.Findings:
    say = (lambda _: None) if told is None else told.append
    return restore.check(stage.database, stage.catalogue, checked_by="ada@ops", say=say)


def release(stage: Stage) -> rows.RestoreRow | None:
    released, _ = restore.release(stage.database, released_by="bob@ops")
    return released


def due(stage: Stage, *, days: float = 0) -> rows.Due:
    served = [(stage.namespace_id, "default", "work", "")]
    now = datetime.now(UTC) + timedelta(days=days)
    return stage.database.read(lambda conn: timers.due(conn, served, now=now))


def state(stage: Stage, key: TaskKey) -> str:
    view, _ = read.get(
        stage.database, stage.catalogue, stage.namespace_id, key, include_payloads=False
    )
    return view.row.state


def why(stage: Stage, key: TaskKey) -> list[str]:
    return read.explain(stage.database, stage.catalogue, stage.namespace_id, key).reasons


# ------------------------------------------------------------------------ sessions and leases


def test_check__leases_of_the_restored_moment__go_back_unspent_to_their_places(
    stage: Stage, restored: Restored
) -> None:
    keys = stage.tasks(4)
    opened = stage.session()
    first, second, third = stage.lease(3, opened=opened)
    assert stage.report(first, Outcome.DONE) is Recorded.RECORDED
    before = {task.task_id: task.seq for task in (second, third)}
    copy = restored()

    findings = check(copy)

    assert findings.voided == Voided(session_count=1, lease_count=1, task_count=2)
    assert copy.outcomes(first) == ["DONE"]
    for task in (second, third):
        assert copy.outcomes(task) == ["RELEASED"]
        lane_id = copy.lane_id()
        assert copy.ready(task) == (1, 2, 0, before[task.task_id], lane_id)
    # The copy goes on in the old order, before what had not been handed out.
    again = copy.lease(3)
    assert [task.task_id for task in again] == [second.task_id, third.task_id, keys[3].task_id]
    assert [(task.attempt, task.delivery) for task in again] == [(1, 2), (1, 2), (1, 1)]


def test_check__old_worker_comes_back__is_refused_and_gets_a_new_session(
    stage: Stage, restored: Restored
) -> None:
    stage.tasks(1)
    opened = stage.session()
    (task,) = stage.lease(1, opened=opened)
    copy = restored()
    check(copy)

    came = open_session(copy.database, copy.new_session(), [], resume_session_id=opened.session_id)
    assert not came.resumed
    assert came.session_id != opened.session_id
    token = leases.Token(task.lease_id, b"s" * 16, copy.namespace_id)
    assert renew(copy.database, [token], [], 60_000) == set()
    assert copy.report(task, Outcome.DONE) is Recorded.LEASE_LOST
    assert copy.lease(1, opened=opened) == [], "the old session was handed something"
    (again,) = copy.lease(1, opened=came)
    assert copy.report(again, Outcome.DONE) is Recorded.RECORDED
    assert copy.outcomes(task) == ["RELEASED", "DONE"]


def test_check__request_to_cancel_stands__ends_it_as_cancelled(
    stage: Stage, restored: Restored
) -> None:
    (key,) = stage.tasks(1)
    stage.lease(1)
    cancel.cancel(stage.database, stage.namespace_id, [key], reason="", grace_ms=86_400_000)
    copy = restored()
    check(copy)
    assert copy.outcomes(key) == ["CANCELLED"]
    assert state(copy, key) == "CANCELLED"


def test_check__again_while_held__leaves_what_was_handed_out_since(
    stage: Stage, restored: Restored
) -> None:
    stage.tasks(2)
    stage.lease(1)
    copy = restored()
    check(copy)
    (new, _) = copy.lease(2)
    again = check(copy)
    assert again.voided == Voided()
    assert again.restore is not None
    assert (again.restore.lease_count, again.restore.task_count) == (1, 1)
    assert (again.found.session_count, again.found.lease_count) == (0, 0)
    assert copy.report(new, Outcome.DONE) is Recorded.RECORDED
    assert copy.all("select count(*) from restores") == [(1,)]


def test_check__after_a_release__is_another_restore(stage: Stage, restored: Restored) -> None:
    stage.tasks(1)
    stage.lease(1)
    copy = restored()
    check(copy)
    assert release(copy) is not None
    copy.lease(1)
    assert check(copy).voided == Voided(session_count=1, lease_count=1, task_count=1)
    assert copy.all("select released_by from restores order by restore_id") == [
        ("bob@ops",),
        (None,),
    ]


def test_check__cut_short__goes_on_when_it_is_run_again(
    stage: Stage, restored: Restored, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(restore, "_SESSIONS_A_PASS", 2)
    monkeypatch.setattr(restore, "_LEASES_A_PASS", 2)
    stage.tasks(5)
    taken = [stage.lease(1) for _ in range(5)]
    copy = restored()

    class Cut(Exception):
        pass

    def cut_at_a_lease(voided: Voided) -> None:
        if voided.lease_count:
            raise Cut

    with pytest.raises(Cut):
        restore.check(copy.database, copy.catalogue, checked_by="ada@ops", say=cut_at_a_lease)
    with copy.connect() as conn:
        assert invariants.check_invariants(conn) == {}
    assert copy.all("select count(*) from leases") == [(3,)]

    told: list[Voided] = []
    findings = check(copy, told)
    assert findings.voided == Voided(session_count=0, lease_count=3, task_count=3)
    assert [voided.lease_count for voided in told] == [2, 3]
    assert findings.restore is not None
    assert findings.restore.session_count == 5
    assert findings.restore.lease_count == 5
    assert [copy.outcomes(task) for (task,) in taken] == [["RELEASED"]] * 5


def test_check__server_hands_out_meanwhile__voids_that_too(
    stage: Stage, restored: Restored
) -> None:
    stage.tasks(1)
    opened = stage.session()
    copy = restored()
    with copy.transaction() as conn:
        (task,) = leases.take(conn, copy.pick(opened, copy.lane_id()))
        checking = in_thread(lambda: check(copy))
        copy.waiting_for_a_lock()
    assert checking.result(20).voided == Voided(session_count=1, lease_count=1, task_count=1)
    assert copy.outcomes(task) == ["RELEASED"]


def test_check__old_session_is_handed_something_before_it_is_closed__voids_that_too(
    stage: Stage, restored: Restored, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(restore, "_SESSIONS_A_PASS", 1)
    stage.tasks(1)
    sessions = [stage.session(), stage.session()]
    copy = restored()
    handed_out: list[rows.LeasedTask] = []

    def hand_out(voided: Voided) -> None:
        if voided.session_count == 1 and not handed_out:
            handed_out.extend(task for one in sessions for task in copy.lease(1, opened=one))

    findings = restore.check(copy.database, copy.catalogue, checked_by="ada@ops", say=hand_out)
    assert len(handed_out) == 1
    assert findings.voided == Voided(session_count=2, lease_count=1, task_count=1)
    assert copy.outcomes(handed_out[0]) == ["RELEASED"]


def test_check__clock_behind_the_restored_data__voids_all_the_same(
    stage: Stage, restored: Restored
) -> None:
    stage.tasks(1)
    stage.lease(1)
    with stage.connect() as conn:
        conn.execute("update leases set granted_at = now() + interval '1 day'")
        conn.execute("update sessions set opened_at = now() + interval '1 day'")
    copy = restored()
    assert check(copy).voided == Voided(session_count=1, lease_count=1, task_count=1)


def test_touch__session_closed_or_unknown_to_the_database__is_told(
    stage: Stage, restored: Restored
) -> None:
    old = stage.session()
    copy = restored()
    check(copy)
    new = copy.session()
    unknown = "00000000-0000-7000-8000-000000000000"
    presences = [
        Presence(session_id=session_id, epoch=1, receiving=True, slots={})
        for session_id in (old.session_id, new.session_id, unknown)
    ]
    assert touch(copy.database, presences) == {old.session_id, unknown}


# ------------------------------------------------------------------------------------ timers


def test_fire__timers_held__waits_for_the_release(stage: Stage, restored: Restored) -> None:
    (delayed,) = stage.tasks(1, delay_ms=60_000)
    (retried,) = stage.tasks(1, policy=LATER)
    (task,) = stage.lease(1)
    stage.report(task, Outcome.FAILED)
    copy = restored()
    check(copy)

    held = due(copy, days=30)
    assert held.timers_held_at is not None
    assert (held.timer_due_ms, held.timeout_due) == (None, False)
    assert expire.fire_timers(copy.database, now=later()) == []
    assert [state(copy, key) for key in (delayed, retried)] == ["DELAYED", "BACKOFF"]

    assert release(copy) is not None
    assert release(copy) is None
    free = due(copy, days=30)
    assert free.timers_held_at is None
    assert free.timer_due_ms is not None
    assert free.timer_due_ms < 0
    assert len(expire.fire_timers(copy.database, now=later())) == 2
    assert [state(copy, key) for key in (delayed, retried)] == ["READY", "READY"]


@pytest.mark.parametrize("place", ["ready", "leased", "timed"])
def test_time_out__timers_held__waits_for_the_release(
    stage: Stage, restored: Restored, place: str
) -> None:
    delay_ms = 120_000 if place == "timed" else None
    (key,) = stage.tasks(1, policy=TOTAL, delay_ms=delay_ms)
    copy = restored()
    check(copy)
    if place == "leased":
        copy.lease(1)

    assert timeouts.sweep(copy.database, copy.catalogue, now=later()) is None
    assert not due(copy, days=30).timeout_due
    assert copy.outcomes(key) == []

    release(copy)
    assert timeouts.sweep(copy.database, copy.catalogue, now=later()) is not None
    assert copy.outcomes(key) == ["TIMED_OUT"]


def test_expire__timers_held__still_ends_leases_of_new_hand_outs(
    stage: Stage, restored: Restored
) -> None:
    (key,) = stage.tasks(1)
    copy = restored()
    check(copy)
    copy.lease(1)
    assert due(copy, days=30).lease_expired
    assert expire.expire(copy.database, copy.catalogue, now=later()) is not None
    assert copy.outcomes(key) == ["LOST"]
    assert state(copy, key) == "READY"


def test_explain__timers_held__names_the_command(stage: Stage, restored: Restored) -> None:
    (delayed,) = stage.tasks(1, delay_ms=60_000)
    (retried,) = stage.tasks(1, policy=LATER)
    (task,) = stage.lease(1)
    stage.report(task, Outcome.FAILED)
    (ready,) = stage.tasks(1)
    copy = restored()
    check(copy)
    for key in (delayed, retried):
        assert why(copy, key)[0].startswith("Timers are held since 2")
        assert "`tenure restore-check --release`" in why(copy, key)[0]
    assert not any("Timers" in reason for reason in why(copy, ready))
    release(copy)
    assert not any("Timers" in reason for key in (delayed, retried) for reason in why(copy, key))


# ---------------------------------------------------------------------------------- findings


def test_look__restored_database__counts_and_changes_nothing(
    stage: Stage, restored: Restored
) -> None:
    stage.tasks(3)
    taken = stage.lease(2)
    stage.report(taken[0], Outcome.DONE)
    stage.tasks(1, delay_ms=60_000)
    stage.tasks(1, delay_ms=60_000)
    with stage.connect() as conn:
        conn.execute(
            "update timers set fire_at = now() where timer_id = (select min(timer_id) from timers)"
        )
        conn.execute("update sessions set seen_at = now() - interval '1 minute'")
        conn.execute("update deliveries set ended_at = now() + interval '1 minute'")
    copy = restored()

    findings = restore.look(copy.database)

    assert findings.restore is None
    found = findings.found
    assert (found.session_count, found.lease_count, found.task_count) == (1, 1, 1)
    assert (found.timer_count, found.timer_due_count, found.timeout_due_count) == (2, 1, 0)
    assert found.present_count == 0
    assert [(row.queue, row.ready_count) for row in findings.ready] == [("default", 1)]
    assert findings.data.delivery_ended_at == findings.data.data_until
    assert copy.all("select count(*) from restores") == [(0,)]
    assert copy.all("select count(*) from sessions where closed_at is null") == [(1,)]
    assert copy.all("select count(*) from leases") == [(1,)]


def test_look__statement_timeout_is_short__counts_all_the_same(stage: Stage) -> None:
    stage.tasks(1)

    def look(conn: Conn) -> tuple[int, int]:
        conn.execute("set statement_timeout = '1s'")
        found = restores.counts(conn, void_until=None), restores.ready(conn)
        return found[0].lease_count, found[1][0].ready_count

    waited = """
        select 1 from pg_stat_activity
        where
            datname = current_database() and cardinality(pg_blocking_pids(pid)) > 0
            and now() - query_start > interval '1.5 s'
    """
    with stage.connect() as holder, holder.transaction():
        # The counting waits for this lock, longer than the connection's own limit allows.
        holder.execute("lock table ready_tasks in access exclusive mode")
        looking = in_thread(lambda: stage.database.read(look))
        assert eventually(lambda: stage.all(waited) or looking.done())
    assert looking.result(20) == (0, 1)


def test_check__restored_database__keeps_the_moment_that_the_data_stood_at(
    stage: Stage, restored: Restored
) -> None:
    stage.tasks(1)
    stage.lease(1)
    copy = restored()
    until = restore.look(copy.database).data.data_until
    first, second = check(copy), check(copy)
    assert until is not None
    assert first.restore is not None
    assert first.restore.data_until == until
    assert second.restore is not None
    assert second.restore.data_until == until
    assert second.data.data_until == until
    assert second.data.session_seen_at == first.data.session_seen_at


def test_look__timers_are_held__leaves_out_what_was_written_since(
    stage: Stage, restored: Restored
) -> None:
    stage.tasks(2)
    (done,) = stage.lease(1)
    stage.report(done, Outcome.DONE)
    stage.lease(1)
    copy = restored()
    before = check(copy).data
    copy.tasks(1)
    (task, _) = copy.lease(2)
    copy.report(task, Outcome.DONE)
    found = restore.look(copy.database).data
    assert found.data_until == before.data_until
    assert found.delivery_ended_at == before.delivery_ended_at
    assert found.task_enqueued_at == before.task_enqueued_at
    assert release(copy) is not None
    after = restore.look(copy.database).data.data_until
    assert before.data_until is not None
    assert after is not None
    assert after > before.data_until


def test_look__held_for_a_database_that_was_empty__says_so_still(
    stage: Stage, restored: Restored
) -> None:
    copy = restored()
    assert check(copy).data.data_until is None
    copy.tasks(1)
    found = restore.look(copy.database).data
    assert (found.data_until, found.task_enqueued_at) == (None, None)


def test_due__not_restored__holds_nothing(stage: Stage) -> None:
    stage.tasks(1, delay_ms=60_000)
    found = maintain.due(stage.database, [])
    assert found.timers_held_at is None
    assert found.timer_due_ms is not None
