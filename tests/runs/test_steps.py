"""Steps are recorded once, by the activation that holds the run, with what they ask for."""

import asyncio
from collections.abc import Sequence
from datetime import timedelta

import psycopg
import pytest

from tenure_service.dispatch import history
from tenure_service.dispatch.memory import Memory
from tenure_service.dispatch.recorder import Recorder
from tenure_service.engine import limits
from tenure_service.engine.errors import FieldInvalid, Reason, TenureError
from tenure_service.engine.states import Outcome
from tenure_service.engine.tokens import TaskKey
from tenure_service.store import queries
from tenure_service.store import steps as stored
from tenure_service.store.registry import ANY_VERSION
from tenure_service.usecase import cancel, end, enqueue, expire, steps
from tenure_service.usecase.steps import Call, Counts, Step
from tests.runs import flows
from tests.runs.activations import (
    Activation,
    activate,
    again,
    call,
    nap,
    record,
    recorded,
    step_ids,
    task,
)
from tests.usecase.stage import Stage, ending, in_thread, later


def refused(stage: Stage, one: Activation, *new: Step) -> TenureError:
    """Records steps; gives the error of the whole call."""
    (answer,) = steps.record(
        stage.database, stage.catalogue, Counts(), [Call(claim=one.claim, steps=new)]
    )
    assert isinstance(answer, TenureError), answer
    return answer


def live_tasks(stage: Stage, run_id: str) -> list[tuple[str, str, bool]]:
    """(task id, step id, ready) of the tasks of a run that wait."""
    return stage.all(
        """
        select t.task_id::text, t.ref, r.task_id is not null
        from tasks as t
        left join ready_tasks as r on r.task_id = t.task_id
        left join timers as m on m.task_id = t.task_id
        where t.run_id = %s and t.task_id <> t.run_id and coalesce(r.task_id, m.task_id) is not null
        order by t.ref
        """,
        run_id,
    )


# ------------------------------------------------------------------------------------ recording


def test_record__steps_of_each_kind__stand_with_what_they_ask_for(stage: Stage) -> None:
    (one,) = activate(stage)
    new = [call("1"), task("2"), task("3", delay_ms=60_000), nap("4", 60)]
    answers = recorded(record(stage, one, *new))
    assert step_ids(stage, one.run_id) == ["1", "2", "3", "4"]
    assert [answer.existing for answer in answers] == [False] * 4
    ready, delayed = answers[1].view.row.child_id, answers[2].view.row.child_id
    assert live_tasks(stage, one.run_id) == [(ready, "2", True), (delayed, "3", False)]
    assert [answer.lane_id for answer in answers] == [None, stage.lane_id(), stage.lane_id(), None]
    told = [history.step(answer.view) for answer in answers]
    assert [step.WhichOneof("outcome") for step in told] == ["output", None, None, None]
    assert told[0].output.data == b"1"
    assert told[1].child_id == f"{one.run_id}:{ready}"
    assert told[3].remaining.ToMilliseconds() == 60_000
    stage.check()


def test_record__sent_again__answers_as_it_stands(stage: Stage) -> None:
    (one,) = activate(stage)
    first = recorded(record(stage, one, call("1", output=b"first"), task("2"), nap("3", 60)))
    second = recorded(record(stage, one, call("1", output=b"other"), task("2"), nap("3", 5)))
    assert [answer.existing for answer in second] == [True] * 3
    assert [answer.lane_id for answer in second] == [None] * 3
    assert second[0].view.row.output == b"first"
    assert second[1].view.row.child_id == first[1].view.row.child_id
    assert second[2].view.row.wake_at == first[2].view.row.wake_at
    assert len(live_tasks(stage, one.run_id)) == 1


def test_record__one_id_twice_in_a_call__is_one_step(stage: Stage) -> None:
    (one,) = activate(stage)
    answers = recorded(record(stage, one, task("1"), task("1")))
    assert [answer.existing for answer in answers] == [False, True]
    assert answers[0].view.row.child_id == answers[1].view.row.child_id
    assert len(live_tasks(stage, one.run_id)) == 1


def test_record__another_name_or_kind__is_refused_alone(stage: Stage) -> None:
    (one,) = activate(stage)
    record(stage, one, call("1", "reserve"), call("2", "charge"))
    name, kind, fine = record(stage, one, call("1", "refund"), task("2", "charge"), call("3"))
    for answer, existing in ((name, "CALL 'reserve'"), (kind, "CALL 'charge'")):
        assert isinstance(answer, TenureError)
        assert answer.reason is Reason.HISTORY_MISMATCH
        assert existing in answer.message
    assert isinstance(name, TenureError)
    assert name.metadata["existing_name"] == "reserve"
    assert name.metadata["name"] == "refund"
    assert recorded([fine])
    assert live_tasks(stage, one.run_id) == []
    assert step_ids(stage, one.run_id) == ["1", "2", "3"]


def test_record__many_activations__cost_as_many_statements_as_two(
    stage: Stage, monkeypatch: pytest.MonkeyPatch
) -> None:
    activations = activate(stage, 42)
    asked: list[str] = []
    get = queries.get

    def asking(name: str) -> queries.Query:
        asked.append(name)
        return get(name)

    monkeypatch.setattr(queries, "get", asking)

    def batch(some: Sequence[Activation]) -> list[str]:
        asked.clear()
        calls = [Call(claim=one.claim, steps=[call("1"), task("2"), call("1")]) for one in some]
        answers = steps.record(stage.database, stage.catalogue, Counts(), calls)
        assert not [answer for answer in answers if isinstance(answer, TenureError)]
        return list(asked)

    batch(activations[:1])  # lanes and policies are remembered from now on
    assert batch(activations[1:3]) == batch(activations[3:])
    found = stage.all("select count(*) from steps")
    assert found == [(84,)]


# -------------------------------------------------------------------------------------- fencing


def test_record__activation_over__gets_lease_lost_and_writes_nothing(stage: Stage) -> None:
    (old,) = activate(stage)
    record(stage, old, call("1"))
    stage.report(old.task, Outcome.RELEASED)
    ((_, version),) = flows.waiting(stage)
    (new,) = again(stage, version)
    assert new.run_id == old.run_id
    assert refused(stage, old, call("2"), task("3")).reason is Reason.LEASE_LOST
    assert step_ids(stage, old.run_id) == ["1"]
    assert live_tasks(stage, old.run_id) == []
    answers = recorded(record(stage, new, call("1"), call("2")))
    assert [answer.existing for answer in answers] == [True, False]


def test_record__one_of_two_runs_of_a_lease_over__only_that_is_refused(stage: Stage) -> None:
    over, runs = activate(stage, 2)
    assert over.claim.lease_id == runs.claim.lease_id
    stage.report(over.task, Outcome.RELEASED)
    assert refused(stage, over, call("1")).reason is Reason.LEASE_LOST
    assert recorded(record(stage, runs, call("1")))


def test_record__with_no_right_to_it__gets_lease_lost(stage: Stage) -> None:
    one, other = activate(stage), activate(stage)
    (mine,), (theirs,) = one, other
    wrong = [
        mine.claim._replace(secret=b"x" * 16),
        mine.claim._replace(namespace_id=mine.claim.namespace_id + 1),
        mine.claim._replace(lease_id=theirs.claim.lease_id),
        mine.claim._replace(run_id=theirs.run_id),
    ]
    for claim in wrong:
        answer = refused(stage, mine._replace(claim=claim), call("1"), task("2"))
        assert answer.reason is Reason.LEASE_LOST
    assert stage.all("select step_id from steps") == []


def test_record__while_its_lease_is_ended__waits_and_is_refused(stage: Stage) -> None:
    (one,) = activate(stage)
    with stage.transaction() as conn:
        end.end(conn, stage.catalogue, [ending(one.task, Outcome.RELEASED)])
        recording = in_thread(lambda: refused(stage, one, task("1")))
        stage.waiting_for_a_lock()
    assert recording.result(20).reason is Reason.LEASE_LOST
    assert step_ids(stage, one.run_id) == []


def test_record__while_its_lease_runs_out__is_finished_first(stage: Stage) -> None:
    (one,) = activate(stage)
    calls = [Call(claim=one.claim, steps=[call("1")])]
    with stage.transaction() as conn:
        (answers,), _ = steps._record(conn, Counts(), calls, {}, None)
        assert isinstance(answers, list)
        # Nobody waits for anybody: the sweep comes by again.
        assert expire.expire(stage.database, stage.catalogue, now=later()) is None
    assert expire.expire(stage.database, stage.catalogue, now=later()) is not None
    assert refused(stage, one, call("2")).reason is Reason.LEASE_LOST
    assert step_ids(stage, one.run_id) == ["1"]


def test_record__of_one_step_by_two_calls_at_once__happens_once(stage: Stage) -> None:
    (one,) = activate(stage)
    with stage.connect() as conn, conn.transaction():
        conn.execute("select 1 from runs where run_id = %s for update", [one.run_id])
        both = [in_thread(lambda: recorded(record(stage, one, task("1")))) for _ in range(2)]
        stage.waiting_for_a_lock(2)
    (first,), (second,) = (future.result(20) for future in both)
    assert sorted([first.existing, second.existing]) == [False, True]
    assert first.view.row.child_id == second.view.row.child_id
    assert len(live_tasks(stage, one.run_id)) == 1


def test_record__killed_before_its_commit__leaves_neither_step_nor_task(stage: Stage) -> None:
    (one,) = activate(stage)
    calls = [Call(claim=one.claim, steps=[call("1"), task("2")])]
    commons = steps._commons(stage.catalogue, calls)

    def killed() -> None:
        with stage.transaction() as conn:
            answers, _ = steps._record(conn, Counts(), calls, commons, None)
            assert isinstance(answers[0], list)
            stage.all("select pg_terminate_backend(%s)", conn.info.backend_pid)
            conn.execute("select 1")

    with pytest.raises(psycopg.OperationalError):
        killed()
    assert step_ids(stage, one.run_id) == []
    assert live_tasks(stage, one.run_id) == []
    answers = [answer.existing for answer in recorded(record(stage, one, call("1"), task("2")))]
    assert answers == [False, False]
    stage.check()


# --------------------------------------------------------------------------------------- limits


def test_record__more_steps_than_a_run_may_have__refuses_the_new_ones(
    stage: Stage, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(limits, "STEP_COUNT_MAX", 3)
    (one,) = activate(stage)
    record(stage, one, call("1"), call("2"))
    old, last, new, again_ = record(stage, one, call("2"), call("3"), call("4"), call("3"))
    assert [answer.existing for answer in recorded([old, last, again_])] == [True, False, True]
    assert isinstance(new, FieldInvalid)
    assert "more than the 3" in new.message
    assert step_ids(stage, one.run_id) == ["1", "2", "3"]


def test_record__many_steps__warns_once(
    stage: Stage, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(limits, "STEP_COUNT_WARN", 2)
    (one,) = activate(stage)
    counts = Counts()
    for number in range(4):
        calls = [Call(claim=one.claim, steps=[call(str(number))])]
        steps.record(stage.database, stage.catalogue, counts, calls)
    assert [
        record_.getMessage() for record_ in caplog.records if "steps" in record_.getMessage()
    ] == [
        f"run {one.run_id} has 2 steps, which each of its activations replays; 50000 are the most"
    ]


async def test_record__what_postgresql_refuses__is_refused_alone(stage: Stage) -> None:
    one, other = activate(stage, 2)
    bad = call("2", output_schema="\x00")

    async def started(answers: Sequence[enqueue.Answer]) -> None:
        del answers

    recorder = Recorder(stage.database, stage.catalogue, Memory(10**9), started=started)
    try:
        mixed, fine = await asyncio.gather(
            recorder.record(Call(claim=one.claim, steps=[call("1"), bad, call("3")]), 0),
            recorder.record(Call(claim=other.claim, steps=[call("1")]), 0),
        )
    finally:
        recorder.close()
    assert isinstance(mixed[1], FieldInvalid)
    assert recorded([mixed[0], mixed[2], *fine])
    assert step_ids(stage, one.run_id) == ["1", "3"]


# -------------------------------------------------------------------------------------- reading


def outcome(stage: Stage, one: Activation, step_id: str) -> str:
    """How a step is told to stand: what is set, and the type of a failure."""
    with stage.transaction() as conn:
        page = stored.pages(conn, [one.run_id], 10**6)[one.run_id]
    (view,) = [view for view in page.steps if view.row.step_id == step_id]
    told = history.step(view)
    assert told.HasField("ended_at") == (told.WhichOneof("outcome") is not None)
    if told.HasField("failure"):
        return f"{told.failure.type}: {told.failure.message}"
    return told.output.data.decode() if told.HasField("output") else "-"


def test_read__steps_whose_tasks_are_over__say_how(stage: Stage) -> None:
    (one,) = activate(stage)
    tasks = recorded(record(stage, one, *(task(str(number)) for number in range(1, 6))))
    assert [outcome(stage, one, str(number)) for number in range(1, 6)] == ["-"] * 5
    leased = {found.task_id: found for found in stage.lease()}
    done, failed, cancelled, lost, _ = (leased[str(each.view.row.child_id)] for each in tasks)
    stage.report(done, Outcome.DONE, output=b"42")
    failure = {"type": "ValueError", "message": "no", "non_retryable": True}
    stage.report(failed, Outcome.FAILED, failure=failure)
    key = TaskKey(cancelled.run_id, cancelled.task_id)
    cancel.cancel(stage.database, stage.namespace_id, [key], reason="not needed", grace_ms=0)
    stage.report(cancelled, Outcome.CANCELLED)
    stage.report(lost, Outcome.RELEASED)
    assert [outcome(stage, one, str(number)) for number in range(1, 6)] == [
        "42",
        "ValueError: no",
        "Cancelled: not needed",
        "-",
        "-",
    ]
    (again_,) = recorded(record(stage, one, task("1")))
    assert history.step(again_.view).output.data == b"42"


def test_read__a_run_that_is_over__is_told_to_its_parent_alone(stage: Stage) -> None:
    parent, stranger = activate(stage, 2)
    (child_id,) = flows.place(stage)
    with stage.connect() as conn:
        conn.execute(
            "update runs set parent_run_id = %s where run_id = %s", [parent.run_id, child_id]
        )
    key = TaskKey(child_id, child_id)
    asked = [stored.Child(parent.run_id, key), stored.Child(stranger.run_id, key)]

    def read() -> dict[tuple[str, str], str | None]:
        found = steps.results(stage.database, asked, bytes_max=10**6)
        return {names: row.outcome for names, row in found.items()}

    assert read() == {(parent.run_id, child_id): None}
    (child,) = again(stage, ANY_VERSION)
    stage.report(child.task, Outcome.DONE, output=b"42")
    assert read() == {(parent.run_id, child_id): "DONE"}
    found = steps.results(stage.database, asked, bytes_max=0)
    assert found[parent.run_id, child_id].output == b"42"


def test_read__a_task_that_is_tried_again__is_not_over(stage: Stage) -> None:
    (one,) = activate(stage)
    record(stage, one, task("1"))
    (leased,) = stage.lease()
    stage.report(leased, Outcome.FAILED)
    assert outcome(stage, one, "1") == "-"


def test_read__a_replayed_dead_letter__is_not_over(stage: Stage) -> None:
    (one,) = activate(stage)
    record(stage, one, task("1"))
    (leased,) = stage.lease()
    failure = {"type": "ValueError", "message": "no", "non_retryable": True}
    stage.report(leased, Outcome.FAILED, failure=failure)
    assert outcome(stage, one, "1") == "ValueError: no"
    with stage.connect() as conn:
        conn.execute("update dead_letters set state = 'REPLAYED'")
    assert outcome(stage, one, "1") == "-"


def test_read__a_sleep__tells_the_time_left_by_the_database(stage: Stage) -> None:
    (one,) = activate(stage)
    (answer,) = recorded(record(stage, one, nap("1", 60)))
    wake_at = answer.view.row.wake_at
    assert wake_at is not None

    def told(now_ms: int) -> tuple[int, str | None]:
        with stage.transaction() as conn:
            now = wake_at + timedelta(milliseconds=now_ms)
            (view,) = stored.pages(conn, [one.run_id], 10**6, now=now)[one.run_id].steps
        step = history.step(view)
        return step.remaining.ToMilliseconds(), step.WhichOneof("outcome")

    assert told(-1500) == (1500, None)
    assert told(0) == (0, "output")
    assert told(5000) == (0, "output")


def test_read__more_than_fits__comes_in_pages_in_order(stage: Stage) -> None:
    one, other, empty = activate(stage, 3)
    large = [call(f"{number:02}", output=bytes(1000)) for number in reversed(range(20))]
    record(stage, one, *large)
    record(stage, other, call("1"))
    wanted = [step.step_id for step in large]
    run_ids = [one.run_id, other.run_id, empty.run_id]
    with stage.transaction() as conn:
        first = stored.pages(conn, run_ids, 5000)
        assert [view.row.step_id for view in first[one.run_id].steps] == wanted[:4]
        assert [view.row.step_id for view in first[other.run_id].steps] == ["1"]
        assert first[other.run_id].next_seq is None
        assert first[empty.run_id] == stored.Page([])
        found = []
        after: int | None = 0
        while after is not None:
            page = stored.pages(conn, [one.run_id], 5000, after_seqs=[after], step_count_max=3)
            found += [view.row.step_id for view in page[one.run_id].steps]
            after = page[one.run_id].next_seq
    assert found == wanted


def test_read__outputs_of_tasks__count_for_the_size_of_a_page(stage: Stage) -> None:
    (one,) = activate(stage)
    record(stage, one, *(task(str(number)) for number in range(6)))
    for leased in stage.lease():
        stage.report(leased, Outcome.DONE, output=bytes(1000))
    with stage.transaction() as conn:
        page = stored.pages(conn, [one.run_id], 2500)[one.run_id]
        assert [view.row.step_id for view in page.steps] == ["0", "1"]
        assert page.next_seq == page.steps[-1].row.seq
        tiny = stored.pages(conn, [one.run_id], 1)[one.run_id]
        assert [view.row.step_id for view in tiny.steps] == ["0"]


def test_page__of_a_stale_activation__is_refused(stage: Stage) -> None:
    (one,) = activate(stage)
    record(stage, one, call("1"))
    page = steps.page(stage.database, one.claim, after_seq=0, bytes_max=10**6)
    assert [view.row.step_id for view in page.steps] == ["1"]
    stage.report(one.task, Outcome.RELEASED)
    with pytest.raises(TenureError) as refusal:
        steps.page(stage.database, one.claim, after_seq=0, bytes_max=10**6)
    assert refusal.value.reason is Reason.LEASE_LOST


def test_parse__page_tokens__takes_only_its_own() -> None:
    assert history.page_token_parse(history.page_token(7)) == 7
    assert history.page_token_parse("") == 0
    assert history.page_token(None) == ""
    for text in ("x", "é", "c3RlcHM6", "c3RlcHM6LTE=", "eyJ4Ijog"):
        assert history.page_token_parse(text) is None
