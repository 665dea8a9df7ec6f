"""Idempotency keys and request ids, alone and under contention."""

import uuid
from collections.abc import Sequence

import pytest

from tenure_service.engine.errors import Reason, TenureError
from tenure_service.store import keys
from tenure_service.usecase.enqueue import Answer, Call, Enqueued, enqueue
from tests.usecase.stage import Stage, in_thread, later, task_id_of

HOUR_MS = 3_600_000


def _keyed(stage: Stage, *, name: str = "work", input_: bytes = b"{}", key: str = "k") -> Answer:
    (answer,) = stage.enqueue(stage.item(name, input=input_, key=key, key_ms=HOUR_MS))
    return answer


def _count(stage: Stage) -> int:
    ((count,),) = stage.all("select count(*) from tasks")
    assert isinstance(count, int)
    return count


def test_enqueue__key_stands_for_the_same__answers_with_that_task(stage: Stage) -> None:
    first = task_id_of(_keyed(stage))
    again = _keyed(stage)
    assert again == Enqueued(task_id=first, existing=True)
    assert _count(stage) == 1
    stage.check()


@pytest.mark.parametrize(
    ("name", "input_"), [("work", b"other"), ("other", b"{}"), ("other", b"other")]
)
def test_enqueue__key_stands_for_another__is_taken_and_names_both(
    stage: Stage, name: str, input_: bytes
) -> None:
    first = task_id_of(_keyed(stage))
    before = stage.all("select * from idempotency_keys, tasks, ready_tasks")
    refused = _keyed(stage, name=name, input_=input_)
    assert isinstance(refused, TenureError)
    assert refused.reason is Reason.KEY_TAKEN
    assert refused.metadata == {
        "key": "k",
        "name": name,
        "existing_name": "work",
        "existing_task_id": first,
    }
    assert stage.all("select * from idempotency_keys, tasks, ready_tasks") == before
    stage.check()


def test_enqueue__key_is_taken__leaves_its_batch_mates_alone(stage: Stage) -> None:
    _keyed(stage)
    refused, stored = stage.enqueue(
        stage.item(input=b"other", key="k", key_ms=HOUR_MS), stage.item(key="l", key_ms=HOUR_MS)
    )
    assert isinstance(refused, TenureError)
    assert not isinstance(stored, TenureError)
    assert _count(stage) == 2
    stage.check()


def test_enqueue__encoding_of_the_input_differs__is_taken(stage: Stage) -> None:
    _keyed(stage)
    (refused,) = stage.enqueue(stage.item(key="k", key_ms=HOUR_MS, input_encoding="binary"))
    assert isinstance(refused, TenureError)


def test_enqueue__key_has_expired__takes_it_over(stage: Stage) -> None:
    first = task_id_of(_keyed(stage))
    (second,) = stage.enqueue(stage.item("other", key="k", key_ms=HOUR_MS), now=later(hours=2))
    assert isinstance(second, Enqueued)
    assert not second.existing
    assert second.task_id != first
    assert stage.all("select task_id::text, name from idempotency_keys") == [
        (second.task_id, "other")
    ]
    stage.check()


def test_enqueue__expired_key_twice_in_one_call__takes_it_over_once(stage: Stage) -> None:
    _keyed(stage)
    item = stage.item(key="k", key_ms=HOUR_MS)
    one, same, other = stage.enqueue(
        item, item, stage.item(input=b"other", key="k", key_ms=HOUR_MS), now=later(hours=2)
    )
    assert task_id_of(one) == task_id_of(same)
    assert isinstance(other, TenureError)
    assert _count(stage) == 2
    stage.check()


def test_enqueue__key_twice_in_one_call__stores_one(stage: Stage) -> None:
    item = stage.item(key="k", key_ms=HOUR_MS)
    one, same, other = stage.enqueue(
        item, item, stage.item(input=b"other", key="k", key_ms=HOUR_MS)
    )
    assert task_id_of(one) == task_id_of(same)
    assert isinstance(same, Enqueued)
    assert same.existing
    assert isinstance(other, TenureError)
    assert _count(stage) == 1
    stage.check()


def test_enqueue__expired_key_is_forgotten_meanwhile__claims_it(stage: Stage) -> None:
    """The key is seen to stand, then swept by the maintenance of another server."""
    _keyed(stage)
    with stage.connect() as sweeper, sweeper.transaction():
        sweeper.execute("select from idempotency_keys for update")
        enqueuing = in_thread(
            lambda: stage.enqueue(stage.item(key="k", key_ms=HOUR_MS), now=later(hours=2))
        )
        stage.waiting_for_a_lock()
        sweeper.execute("delete from idempotency_keys")
    (answer,) = enqueuing.result(20)
    assert not isinstance(answer, TenureError)
    assert stage.all("select task_id::text from idempotency_keys") == [(answer.task_id,)]
    stage.check()


@pytest.mark.parametrize("input_", [b"{}", b"other"])
def test_enqueue__key_of_an_open_transaction__waits_for_its_end(
    stage: Stage, input_: bytes
) -> None:
    with stage.transaction() as conn:
        stage.catalogue.lane_ids([])
        new = keys.NewKey(
            namespace_id=stage.namespace_id,
            key="k",
            task_id=str(uuid.uuid4()),
            name="work",
            input_hash=b"",
            key_ms=HOUR_MS,
        )
        keys.claim(conn, [new])
        enqueuing = in_thread(lambda: _keyed(stage, input_=input_))
        stage.waiting_for_a_lock()
        conn.rollback()
    assert not isinstance(enqueuing.result(20), TenureError)
    stage.check()


def test_enqueue__fifty_at_once_with_one_key__store_one_task_and_all_get_its_id(
    database: str,
) -> None:
    stage = Stage(database, connection_count=50)
    try:
        futures = [in_thread(lambda: _keyed(stage)) for _ in range(50)]
        answers = [future.result(60) for future in futures]
        assert len({task_id_of(answer) for answer in answers}) == 1
        assert sum(isinstance(a, Enqueued) and not a.existing for a in answers) == 1
        assert _count(stage) == 1
        assert stage.all("select count(*) from ready_tasks") == [(1,)]
        stage.check()
    finally:
        stage.close()


def test_enqueue__same_keys_in_opposite_orders_at_once__store_each_once(stage: Stage) -> None:
    names = [f"k{i}" for i in range(50)]

    def many(order: Sequence[str]) -> list[Answer]:
        return stage.enqueue(*[stage.item(key=name, key_ms=HOUR_MS) for name in order])

    for _ in range(3):
        both = [in_thread(lambda: many(names)), in_thread(lambda: many(names[::-1]))]
        first, second = (future.result(20) for future in both)
        assert [task_id_of(a) for a in first] == [task_id_of(a) for a in second[::-1]]
    assert _count(stage) == 50
    stage.check()


# ------------------------------------------------------------------------------------ requests


def _ask(stage: Stage, *calls: Call) -> list[list[Answer] | TenureError]:
    return enqueue(stage.database, stage.catalogue, calls)


def _ids(answers: list[Answer] | TenureError) -> list[str]:
    assert not isinstance(answers, TenureError)
    return [task_id_of(answer) for answer in answers]


def test_enqueue__request_repeated__answers_the_same_and_stores_nothing(stage: Stage) -> None:
    call = stage.call(*[stage.item()] * 3, request_id=str(uuid.uuid4()), digest=b"d")
    (first,) = _ask(stage, call)
    (again,) = _ask(stage, call)
    assert _ids(first) == _ids(again)
    assert len(set(_ids(first))) == 3
    assert _count(stage) == 3
    stage.check()


def test_enqueue__request_twice_in_one_batch__stores_once(stage: Stage) -> None:
    call = stage.call(stage.item(), request_id=str(uuid.uuid4()), digest=b"d")
    first, again = _ask(stage, call, call)
    assert _ids(first) == _ids(again)
    assert _count(stage) == 1
    stage.check()


def test_enqueue__request_twice_in_one_batch_with_a_standing_key__answers_both_by_it(
    stage: Stage,
) -> None:
    existing = task_id_of(_keyed(stage))
    keyed = stage.item(key="k", key_ms=HOUR_MS)
    call = stage.call(keyed, stage.item(), request_id=str(uuid.uuid4()), digest=b"d")
    first, again = _ask(stage, call, call)
    assert _ids(first) == _ids(again)
    assert _ids(first)[0] == existing
    assert _count(stage) == 2
    stage.check()


def test_enqueue__request_twice_at_once__stores_once(stage: Stage) -> None:
    call = stage.call(*[stage.item()] * 5, request_id=str(uuid.uuid4()), digest=b"d")
    futures = [in_thread(lambda: _ask(stage, call)) for _ in range(8)]
    answers = {tuple(_ids(future.result(20)[0])) for future in futures}
    assert len(answers) == 1
    assert _count(stage) == 5
    stage.check()


def test_enqueue__request_id_of_another_call__is_refused_and_mates_are_stored(
    stage: Stage,
) -> None:
    request_id = str(uuid.uuid4())
    _ask(stage, stage.call(stage.item(), request_id=request_id, digest=b"d"))
    refused, stored = _ask(
        stage,
        stage.call(stage.item(), request_id=request_id, digest=b"other"),
        stage.call(stage.item(), request_id=str(uuid.uuid4()), digest=b"other"),
    )
    assert isinstance(refused, TenureError)
    assert refused.reason is Reason.REQUEST_ID_REUSED
    assert refused.metadata == {"request_id": request_id}
    assert len(_ids(stored)) == 1
    assert _count(stage) == 2
    stage.check()


def test_enqueue__request_whose_items_their_keys_answered__answers_the_same_again(
    stage: Stage,
) -> None:
    existing = task_id_of(_keyed(stage))
    call = stage.call(
        stage.item(key="k", key_ms=HOUR_MS),
        stage.item(),
        stage.item(input=b"other", key="k", key_ms=HOUR_MS),
        request_id=str(uuid.uuid4()),
        digest=b"d",
    )
    (first,) = _ask(stage, call)
    (again,) = _ask(stage, call)
    assert not isinstance(first, TenureError)
    assert not isinstance(again, TenureError)
    assert task_id_of(first[0]) == task_id_of(again[0]) == existing
    assert task_id_of(first[1]) == task_id_of(again[1])
    for answer in (first[2], again[2]):
        assert isinstance(answer, TenureError)
        assert answer.reason is Reason.KEY_TAKEN
    assert _count(stage) == 2
    stage.check()


def test_enqueue__request_of_keyed_items_repeated__says_that_they_are_not_new(
    stage: Stage,
) -> None:
    call = stage.call(
        stage.item(key="k", key_ms=HOUR_MS), request_id=str(uuid.uuid4()), digest=b"d"
    )
    (first,) = _ask(stage, call)
    (again,) = _ask(stage, call)
    assert _ids(first) == _ids(again)
    assert _count(stage) == 1
