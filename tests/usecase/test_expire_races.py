"""Expiry that meets reports, renewals and another hand-out, stepped by hand in both orders.

The window of the field cases (river 1302) is between the sweeper's look at a lease and its write.
Here the look is a lock, so who comes second waits or passes by; and even a sweeper that acts on what
it saw in an earlier transaction ends nothing, since each hand-out has one row and that stands.
"""

import pytest

from tenure_service.engine.states import Outcome
from tenure_service.store import leases
from tenure_service.store.database import Conn
from tenure_service.usecase import end, expire, report
from tenure_service.usecase.catalogue import Catalogue
from tenure_service.usecase.end import Recorded
from tenure_service.usecase.lease import renew
from tests.usecase.stage import Gate, Stage, completions, ending, in_thread, later


def test_expire__report_holds_the_lease__passes_by(stage: Stage) -> None:
    stage.tasks(2)
    tasks = stage.lease(2)
    gate = Gate()

    def hold(conn: Conn) -> end.Ends:
        ends = end.end(conn, stage.catalogue, [ending(tasks[0], Outcome.DONE)])
        gate.wait()
        return ends

    reporter = in_thread(lambda: stage.database.transact(hold))
    gate.reached()
    assert expire.expire(stage.database, stage.catalogue, now=later()) is None
    gate.open()
    assert reporter.result(20).recorded == [Recorded.RECORDED]
    assert expire.expire(stage.database, stage.catalogue, now=later()) is not None
    assert [stage.outcomes(task) for task in tasks] == [["DONE"], ["LOST"]]
    stage.check()


@pytest.mark.parametrize("fast", [False, True])
def test_report__sweeper_holds_the_lease__waits_and_is_lost(stage: Stage, *, fast: bool) -> None:
    stage.tasks(1)
    opened = stage.session()
    (task,) = stage.lease(1, opened=opened)
    gate = Gate()

    def sweep(conn: Conn) -> None:
        locked = leases.lock_expired(conn, 20, now=later())
        gate.wait()  # the window between the sweeper's look and its write
        expire._end_locked(conn, stage.catalogue, locked, Outcome.LOST)

    sweeper = in_thread(lambda: stage.database.transact(sweep))
    gate.reached()
    reporter = in_thread(
        lambda: (
            report.complete(stage.database, completions([task], opened.session_id))
            if fast
            else stage.report(task, Outcome.DONE)
        )
    )
    stage.waiting_for_a_lock()
    gate.open()
    sweeper.result(20)
    assert reporter.result(20) == (False if fast else Recorded.LEASE_LOST)
    assert stage.outcomes(task) == ["LOST"]
    stage.check()


def test_report__after_expires_at_before_the_sweep__is_recorded(stage: Stage) -> None:
    stage.tasks(1)
    (task,) = stage.lease(1)
    with stage.connect() as conn:
        conn.execute("update leases set expires_at = now() - interval '1 hour'")
    assert stage.report(task, Outcome.DONE) is Recorded.RECORDED
    assert expire.expire(stage.database, stage.catalogue) is None
    stage.check()


@pytest.mark.parametrize("outcome", [Outcome.DONE, Outcome.FAILED, Outcome.RELEASED])
def test_report__after_the_sweep__is_lost_and_writes_nothing(
    stage: Stage, outcome: Outcome
) -> None:
    stage.tasks(1)
    (task,) = stage.lease(1)
    expire.expire(stage.database, stage.catalogue, now=later())
    before = stage.ready(task)
    assert stage.report(task, outcome) is Recorded.LEASE_LOST
    assert stage.ready(task) == before
    assert stage.outcomes(task) == ["LOST"]
    stage.check()


@pytest.mark.parametrize("outcome", [Outcome.DONE, Outcome.FAILED])
def test_report__after_the_sweep_and_another_hand_out__is_lost(
    stage: Stage, outcome: Outcome
) -> None:
    stage.tasks(1)
    (task,) = stage.lease(1)
    expire.expire(stage.database, stage.catalogue, now=later())
    (again,) = stage.lease(1)
    assert (again.task_id, again.delivery, again.attempt) == (task.task_id, 2, 1)
    assert stage.report(task, outcome) is Recorded.LEASE_LOST
    stage.check()
    assert stage.report(again, Outcome.DONE) is Recorded.RECORDED
    assert stage.outcomes(task) == ["LOST", "DONE"]
    stage.check()


@pytest.mark.parametrize("released_again", [False, True])
def test_expire__acts_on_leases_it_saw_long_ago__changes_nothing(
    stage: Stage, *, released_again: bool
) -> None:
    stage.tasks(2)
    tasks = stage.lease(2)
    seen = stage.database.transact(lambda conn: leases.lock_expired(conn, 20, now=later()))
    outcome = Outcome.FAILED if released_again else Outcome.DONE
    stage.end(*[ending(task, outcome) for task in tasks])
    held = stage.lease(2) if released_again else []
    ends = stage.database.transact(
        lambda conn: expire._end_locked(conn, stage.catalogue, seen, Outcome.LOST)
    )
    assert ends.recorded == [Recorded.LEASE_LOST] * 2
    assert [stage.outcomes(task) for task in tasks] == [[outcome]] * 2
    stage.check()
    assert stage.end(*[ending(task, Outcome.DONE) for task in held]) == [Recorded.RECORDED] * len(
        held
    )


def test_expire__lease_is_being_renewed__lives_on(stage: Stage) -> None:
    stage.tasks(1)
    (task,) = stage.lease(1)
    with stage.connect() as conn:
        conn.execute("update leases set expires_at = now() - interval '1 hour'")
    gate = Gate()

    mine = leases.Token(task.lease_id, b"s" * 16, 1)

    def hold(conn: Conn) -> set[leases.Token]:
        alive = leases.renew(conn, [mine], 60_000)
        gate.wait()
        return alive

    renewer = in_thread(lambda: stage.database.transact(hold))
    gate.reached()
    assert expire.expire(stage.database, stage.catalogue) is None
    gate.open()
    assert renewer.result(20) == {mine}
    assert expire.expire(stage.database, stage.catalogue) is None
    assert stage.report(task, Outcome.DONE) is Recorded.RECORDED


def test_renew__lease_was_swept_or_secret_is_wrong__is_not_among_the_living(stage: Stage) -> None:
    stage.tasks(2)
    (swept,) = stage.lease(1)
    expire.expire(stage.database, stage.catalogue, now=later())
    (other,) = stage.lease(1)
    tokens = [
        leases.Token(swept.lease_id, b"s" * 16, 1),
        leases.Token(other.lease_id, b"x" * 16, 1),
        leases.Token(other.lease_id, b"s" * 16, 2),
    ]
    assert renew(stage.database, tokens, [], 60_000) == set()


def test_expire__by_a_server_that_knows_no_handler__puts_back_by_the_stored_policy(
    stage: Stage,
) -> None:
    stage.tasks(1, name="unknown")
    (task,) = stage.lease(1, "unknown")
    expire.expire(stage.database, Catalogue(stage.database), now=later())
    waiting = stage.ready(task)
    assert waiting is not None
    assert waiting[:3] == (1, 2, 1)
    stage.check()


def test_expire__twice_at_once__each_lease_is_swept_by_one(stage: Stage) -> None:
    stage.tasks(40)
    opened = stage.session()
    for _ in range(40):
        stage.lease(1, opened=opened)
    swept = [
        in_thread(lambda: expire.expire(stage.database, stage.catalogue, now=later()))
        for _ in range(4)
    ]
    recorded = [one for future in swept if (ends := future.result(20)) for one in ends.recorded]
    assert set(recorded) == {Recorded.RECORDED}
    while expire.expire(stage.database, stage.catalogue, now=later()):
        pass
    assert stage.all("select count(*), count(distinct task_id) from ready_tasks") == [(40, 40)]
    stage.check()
