"""Reports that meet other reports, stepped by hand: two transactions on one lease."""

import pytest

from tenure_service.engine.states import Outcome
from tenure_service.store import leases
from tenure_service.store.database import Conn
from tenure_service.usecase import cancel, end, report
from tenure_service.usecase.end import Recorded
from tests.usecase.stage import Gate, Stage, completion, completions, ending, in_thread


def test_complete__fast_path_waited_for_another_report__spends_the_whole_lease(
    stage: Stage,
) -> None:
    """The second statement's snapshot is from before the first one's decrement: what it decides
    from the lease row that it sees, and not from the one it has locked, leaves a lease with
    nothing in it, which no sweep can end."""
    stage.tasks(10)
    opened = stage.session()
    tasks = stage.lease(10, opened=opened)
    gate = Gate()

    def hold(conn: Conn) -> int:
        count = leases.complete(conn, completions(tasks[:5], opened.session_id))
        gate.wait()
        return count

    first = in_thread(lambda: stage.database.transact(hold))
    gate.reached()
    second = in_thread(
        lambda: report.complete(stage.database, completions(tasks[5:], opened.session_id))
    )
    stage.waiting_for_a_lock()
    gate.open()
    assert first.result(20) == 5
    assert second.result(20)
    stage.check()
    assert stage.all("select count(*) from leases") == [(0,)]


def test_complete__same_hand_outs_at_once__one_records_and_the_other_records_nothing(
    stage: Stage,
) -> None:
    stage.tasks(4)
    opened = stage.session()
    tasks = stage.lease(4, opened=opened)
    gate = Gate()

    def hold(conn: Conn) -> int:
        count = leases.complete(conn, completions(tasks[:2], opened.session_id))
        gate.wait()
        return count

    first = in_thread(lambda: stage.database.transact(hold))
    gate.reached()
    second = in_thread(
        lambda: report.complete(stage.database, completions(tasks[1:3], opened.session_id))
    )
    stage.waiting_for_a_lock()
    gate.open()
    assert first.result(20) == 2
    assert second.result(20) is False
    stage.check()
    assert stage.all("select count(*) from deliveries") == [(2,)]
    careful = stage.end(*[ending(task, Outcome.DONE) for task in tasks[1:3]])
    assert careful == [Recorded.ALREADY_RECORDED, Recorded.RECORDED]
    stage.check()


def test_complete__lease_is_gone__records_nothing_of_the_batch(stage: Stage) -> None:
    stage.tasks(2)
    opened = stage.session()
    (one,) = stage.lease(1, opened=opened)
    (other,) = stage.lease(1, opened=opened)
    assert stage.report(one, Outcome.RELEASED) is Recorded.RECORDED
    batch = completions([one, other], opened.session_id)
    assert report.complete(stage.database, batch) is False
    assert stage.outcomes(other) == []
    stage.check()


@pytest.mark.parametrize("outcome", [Outcome.DONE, Outcome.FAILED, Outcome.RELEASED])
def test_report__sent_again__is_already_recorded_and_follows_up_once(
    stage: Stage, outcome: Outcome
) -> None:
    stage.tasks(2)
    task, other = stage.lease(2)
    assert stage.report(task, outcome) is Recorded.RECORDED
    assert stage.report(task, outcome) is Recorded.ALREADY_RECORDED
    stage.check()
    # And when the lease is gone altogether.
    assert stage.report(other, Outcome.DONE) is Recorded.RECORDED
    assert stage.report(task, outcome) is Recorded.ALREADY_RECORDED
    stage.check()


def test_report__twice_in_one_batch__follows_up_once(stage: Stage) -> None:
    stage.tasks(1)
    (task,) = stage.lease(1)
    twice = [ending(task, Outcome.FAILED), ending(task, Outcome.FAILED)]
    assert stage.end(*twice) == [Recorded.RECORDED, Recorded.ALREADY_RECORDED]
    assert stage.all("select count(*) from ready_tasks") == [(1,)]
    stage.check()


@pytest.mark.parametrize("first_at", range(3))
def test_report__contradiction_in_one_batch__the_first_stands_with_what_follows_from_it(
    stage: Stage, first_at: int
) -> None:
    """The insert sorts its rows, so what it took of two equal keys is not what came first."""
    stage.tasks(6)
    tasks = stage.lease(6)
    outcomes = [Outcome.DONE, Outcome.FAILED, Outcome.RELEASED]
    order = outcomes[first_at:] + outcomes[:first_at]
    rest = [ending(task, outcome) for task in tasks[::-1] for outcome in order]
    recorded = stage.end(*rest)
    assert recorded == [Recorded.RECORDED, Recorded.LEASE_LOST, Recorded.LEASE_LOST] * 6
    assert [stage.outcomes(task) for task in tasks] == [[order[0]]] * 6
    stage.check()


def test_report__two_outcomes_of_one_hand_out__the_first_stands(stage: Stage) -> None:
    stage.tasks(1)
    (task,) = stage.lease(1)
    assert stage.report(task, Outcome.DONE) is Recorded.RECORDED
    assert stage.report(task, Outcome.FAILED) is Recorded.LEASE_LOST
    assert stage.outcomes(task) == ["DONE"]
    stage.check()


def test_report__same_outcome_waited_for_the_first__is_already_recorded(stage: Stage) -> None:
    stage.tasks(2)
    task, _ = stage.lease(2)
    gate = Gate()

    def hold(conn: Conn) -> end.Ends:
        ends = end.end(conn, stage.catalogue, [ending(task, Outcome.FAILED)])
        gate.wait()
        return ends

    first = in_thread(lambda: stage.database.transact(hold))
    gate.reached()
    second = in_thread(lambda: stage.report(task, Outcome.FAILED))
    stage.waiting_for_a_lock()
    gate.open()
    assert first.result(20).recorded == [Recorded.RECORDED]
    assert second.result(20) is Recorded.ALREADY_RECORDED
    stage.check()


@pytest.mark.parametrize("outcome", [Outcome.DONE, Outcome.FAILED])
def test_report__with_another_secret__is_lease_lost_and_writes_nothing(
    stage: Stage, outcome: Outcome
) -> None:
    stage.tasks(1)
    (task,) = stage.lease(1)
    forged = ending(task, outcome, secret=b"x" * 16)
    assert stage.end(forged) == [Recorded.LEASE_LOST]
    assert stage.outcomes(task) == []
    stage.check()


def test_complete__cancellation_was_requested__drops_the_request(stage: Stage) -> None:
    (key,) = stage.tasks(1)
    opened = stage.session()
    (task,) = stage.lease(1, opened=opened)
    cancel.cancel(stage.database, stage.namespace_id, [key], reason="", grace_ms=60_000)
    assert report.complete(stage.database, [completion(task, opened.session_id)])
    stage.check()


def test_complete__cancellation_is_requested_while_it_waits__drops_the_request(
    stage: Stage,
) -> None:
    (key, _) = stage.tasks(2)
    opened = stage.session()
    task, _ = stage.lease(2, opened=opened)
    with stage.connect() as holder, holder.transaction():
        holder.execute("select from leases for update")
        waiter = in_thread(
            lambda: report.complete(stage.database, [completion(task, opened.session_id)])
        )
        stage.waiting_for_a_lock()
        # What `cancel` writes, committed before the report has the lease.
        with stage.connect() as conn:
            conn.execute(
                "insert into cancel_requests (run_id, task_id, namespace_id, deadline_at)"
                " values (%s, %s, %s, now() + interval '1 minute')",
                [key.run_id, key.task_id, stage.namespace_id],
            )
    assert waiter.result(20)
    stage.check()


def test_report__nul_and_lone_surrogate_in_a_failure__are_replaced_and_mates_stored(
    stage: Stage,
) -> None:
    stage.tasks(3)
    bad, worse, good = stage.lease(3)
    recorded = stage.end(
        ending(bad, Outcome.FAILED, failure={"type": "E\x00", "message": "a\x00b"}),
        ending(worse, Outcome.FAILED, failure={"type": "E", "message": "x\ud800y"}),
        ending(good, Outcome.DONE, output=b"\x00\xff"),
    )
    assert recorded == [Recorded.RECORDED] * 3
    stored = stage.all("select failure ->> 'message' from deliveries where failure is not null")
    assert all("\ufffd" in message for (message,) in stored)
    stage.check()
