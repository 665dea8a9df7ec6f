"""The wake pass: each cause counts once, no run is woken twice, and none is forgotten."""

import pytest

from tenure_service.engine.states import Outcome
from tenure_service.store import inbox as store_inbox
from tenure_service.store import queries
from tenure_service.store.inbox import WaitSet
from tenure_service.usecase import cancel, expire, timeouts, wake
from tenure_service.usecase.end_runs import INBOX_ROWS_A_RUN
from tests.runs.lives import (
    all_of,
    any_of,
    begin,
    hand_out,
    hold_wake,
    inbox,
    key,
    start_child,
    start_tasks,
    state,
    suspend,
    waits,
    wake_up,
    work,
)
from tests.runs.lives import report as report_run
from tests.usecase.stage import Gate, Stage, ending, in_thread, later


def test_wake__one_of_all__waits_on(stage: Stage) -> None:
    one = begin(stage)
    children = start_tasks(stage, one, 2)
    suspend(stage, one, all_of(children))
    work(stage)
    assert wake_up(stage, one.run_id) == []
    assert waits(stage, one.run_id) == [(0, 1, 1)]
    assert inbox(stage, one.run_id) == []
    work(stage)
    assert wake_up(stage, one.run_id) == [one.run_id]
    assert waits(stage, one.run_id) == []
    stage.check()


def test_wake__any_of_several_sets__goes_on_with_the_first(stage: Stage) -> None:
    one = begin(stage)
    children = start_tasks(stage, one, 4)
    suspend(stage, one, all_of(children), any_of(children[:1]), WaitSet(children[1:], 2))
    done = work(stage, 1)
    assert done[0].task_id == children[0]
    assert wake_up(stage, one.run_id) == [one.run_id]
    assert state(stage, one.run_id) == ("OPEN", None, "ready")
    stage.check()


@pytest.mark.parametrize(
    "outcome", [Outcome.DONE, Outcome.FAILED, Outcome.CANCELLED, Outcome.TIMED_OUT]
)
def test_wake__task_ends_in_whatever_way__goes_on(stage: Stage, outcome: Outcome) -> None:
    one = begin(stage)
    (child_id,) = start_tasks(stage, one, 1)
    suspend(stage, one, all_of([child_id]))
    child = key(one.run_id)._replace(task_id=child_id)
    if outcome is Outcome.CANCELLED:
        cancel.cancel(stage.database, stage.namespace_id, [child], reason="", grace_ms=0)
    elif outcome is Outcome.TIMED_OUT:
        with stage.connect() as conn:
            conn.execute("update ready_tasks set total_by = now(), deadline_at = now()")
        ends = timeouts.sweep(stage.database, stage.catalogue, now=later(seconds=1))
        assert ends is not None
        assert ends.inboxes == {one.run_id}
    else:
        (task,) = stage.lease()
        failure = {"type": "E", "message": "", "non_retryable": True}
        stage.report(task, outcome, failure=failure if outcome is Outcome.FAILED else None)
    assert inbox(stage, one.run_id) == [child_id]
    assert wake_up(stage, one.run_id) == [one.run_id]
    stage.check()


def test_wake__child_run_ends_where_it_waits__goes_on(stage: Stage) -> None:
    one = begin(stage)
    child_id = start_child(stage, one)
    suspend(stage, one, all_of([child_id]))
    with stage.connect() as conn:
        conn.execute("update ready_tasks set total_by = now(), deadline_at = now()")
    ends = timeouts.sweep(stage.database, stage.catalogue, now=later(seconds=1))
    assert ends is not None
    assert (ends.over, ends.inboxes) == ([child_id], {one.run_id})
    assert state(stage, child_id) == ("TIMED_OUT", None, "over")
    assert wake_up(stage, one.run_id) == [one.run_id]
    stage.check()


def test_wake__two_at_once__one_wakes(stage: Stage) -> None:
    """The second one finds the run locked, and is told to come again; then nothing is left."""
    one = begin(stage)
    suspend(stage, one, all_of(start_tasks(stage, one, 1)))
    work(stage)
    gate = Gate()
    first = hold_wake(stage, one.run_id, gate)
    second = wake.wake(stage.database, [one.run_id])
    assert (second.run_ids, second.left) == ([], [one.run_id])
    gate.open()
    assert first.result(20) == [one.run_id]
    assert wake.wake(stage.database, [one.run_id]) == wake.Woken()
    stage.check()


def test_wake__child_ends_during_the_pass__is_found_by_the_next(stage: Stage) -> None:
    one = begin(stage)
    suspend(stage, one, all_of(start_tasks(stage, one, 2)))
    work(stage)
    gate = Gate()
    first = hold_wake(stage, one.run_id, gate)
    work(stage)
    gate.open()
    assert first.result(20) == []
    stage.check()
    assert wake_up(stage, one.run_id) == [one.run_id]
    stage.check()


def test_wake__timer_fires_at_the_same_moment__is_ready_once(stage: Stage) -> None:
    one = begin(stage)
    suspend(stage, one, all_of(start_tasks(stage, one, 1)), wake_ms=1_000)
    work(stage)
    with stage.transaction() as conn:
        # The timer is taken by somebody who fires it.
        conn.execute(
            "with gone as (delete from timers returning *) insert into ready_tasks"
            " (lane_id, rank, run_id, task_id, attempt, delivery)"
            " select lane_id, rank, run_id, task_id, attempt, delivery from gone"
        )
        waking = in_thread(lambda: wake_up(stage, one.run_id))
        stage.waiting_for_a_lock()
    assert waking.result(20) == []
    assert state(stage, one.run_id) == ("WAITING", None, "ready")
    stage.check()


def test_wake__told_twice_of_one_child__counts_it_once(stage: Stage) -> None:
    one = begin(stage)
    children = start_tasks(stage, one, 2)
    suspend(stage, one, all_of(children))
    work(stage)
    with stage.connect() as conn:
        conn.execute(
            "insert into run_inbox (run_id, child_id) select run_id, child_id from run_inbox"
        )
    assert wake_up(stage, one.run_id) == []
    assert waits(stage, one.run_id) == [(0, 1, 1)]


def test_wake__run_is_over__empties_its_inbox(stage: Stage) -> None:
    one = begin(stage)
    start_tasks(stage, one, 1)
    report_run(stage, one, Outcome.DONE)
    work(stage)
    assert len(inbox(stage, one.run_id)) == 1
    assert wake_up(stage, one.run_id) == []
    assert inbox(stage, one.run_id) == []
    stage.check()


def test_wake__any__goes_through_all_inboxes_and_drops_those_of_nobody(
    stage: Stage, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(wake, "RUNS_A_PASS", 2)
    runs = [begin(stage) for _ in range(5)]
    for one in runs:
        suspend(stage, one, all_of(start_tasks(stage, one, 2)))
    work(stage, 10)
    with stage.connect() as conn:
        conn.execute("insert into run_inbox (run_id, child_id) values (uuidv7(), uuidv7())")
    woken: list[str] = []
    after: str | None = store_inbox.FIRST
    while after is not None:
        found, after = wake.wake_any(stage.database, after=after)
        woken += found.run_ids
    assert sorted(woken) == sorted(one.run_id for one in runs)
    assert stage.all("select 1 from run_inbox") == []
    stage.check()


def test_wake__locked_runs_come_first__do_not_hide_the_others(
    stage: Stage, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(wake, "RUNS_A_PASS", 1)
    first, second = sorted((begin(stage) for _ in range(2)), key=lambda one: one.run_id)
    for one in (first, second):
        suspend(stage, one, all_of(start_tasks(stage, one, 1)))
    work(stage, 2)
    with stage.transaction() as conn:
        conn.execute("select 1 from runs where run_id = %s for update", [first.run_id])
        woken, after = wake.wake_any(stage.database)
        assert (woken.run_ids, after) == ([], first.run_id)
        woken, after = wake.wake_any(stage.database, after=first.run_id)
        assert woken.run_ids == [second.run_id]
    # What was locked keeps its inbox.
    assert wake_up(stage, first.run_id) == [first.run_id]


def test_wake__fan_out_of_1000__wakes_once(stage: Stage) -> None:
    one = begin(stage)
    children = start_tasks(stage, one, 1_000)
    suspend(stage, one, all_of(children))
    woken: list[str] = []
    while tasks := stage.lease(125):
        stage.end(*(ending(task, Outcome.DONE) for task in tasks))
        found = wake.wake(stage.database, [one.run_id])
        assert found.left == []
        woken += found.run_ids
    assert woken == [one.run_id]
    assert len(hand_out(stage, "v1")) == 1
    stage.check()


def test_wake__more_rows_than_a_pass_takes__says_that_there_is_more(stage: Stage) -> None:
    one = begin(stage)
    suspend(stage, one, wake_ms=1_000_000)
    with stage.connect() as conn:
        conn.execute(
            "insert into run_inbox (run_id, child_id) select %s, uuidv7() from generate_series(1, %s)",
            [one.run_id, INBOX_ROWS_A_RUN + 1],
        )
    assert wake.wake(stage.database, [one.run_id]).left == [one.run_id]
    assert len(inbox(stage, one.run_id)) == 1
    assert wake.wake(stage.database, [one.run_id]).left == []


def test_wake__many_runs__takes_as_many_statements_as_one(
    stage: Stage, monkeypatch: pytest.MonkeyPatch
) -> None:
    names: list[str] = []
    get = queries.get

    def noted(name: str) -> queries.Query:
        names.append(name)
        return get(name)

    monkeypatch.setattr(queries, "get", noted)
    counts: list[int] = []
    for run_count in (1, 20):
        runs = [begin(stage) for _ in range(run_count)]
        for one in runs:
            suspend(stage, one, all_of(start_tasks(stage, one, 1)))
        work(stage, run_count)
        names.clear()
        assert len(wake_up(stage, *(one.run_id for one in runs))) == run_count
        counts.append(len(names))
    assert counts[0] == counts[1] > 3


def test_wake__run_waits_in_memory__drops_the_word_of_it(stage: Stage) -> None:
    one = begin(stage)
    start_tasks(stage, one, 1)
    work(stage)
    assert wake_up(stage, one.run_id) == []
    assert inbox(stage, one.run_id) == []
    assert state(stage, one.run_id) == ("OPEN", None, "leased")
    expire.expire(stage.database, stage.catalogue, now=later())
    stage.check()
