"""Who is looked up when it asks again, and who was just told."""

import asyncio
import uuid
from types import SimpleNamespace

import pytest

from tenure_service.dispatch.waiters import Waiter, Waiters, bucket
from tenure_service.engine.tokens import TaskKey
from tenure_service.store.leases import Completion


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    now = [100.0]
    stub = SimpleNamespace(monotonic=lambda: now[0])
    monkeypatch.setattr("tenure_service.dispatch.waiters.time", stub)
    return now


def one(namespace_id: int = 1, task_id: str | None = None) -> Waiter:
    task_id = task_id or str(uuid.uuid4())
    return Waiter(namespace_id, [TaskKey(task_id, task_id)])


def say(all_: Waiters, waiter: Waiter) -> None:
    all_.said(waiter.namespace_id, waiter.keys.values())


def test_heard__never_told__is_looked_up(clock: list[float]) -> None:
    waiter = one()
    assert Waiters().heard(waiter) == list(waiter.keys.values())


def test_heard__just_told__is_not_looked_up_for_some_seconds(clock: list[float]) -> None:
    all_, waiter = Waiters(), one()
    say(all_, waiter)
    clock[0] += 4.9
    assert not all_.heard(waiter)
    clock[0] += 0.2
    assert all_.heard(waiter)


def test_heard__told_of_some__the_others_are_looked_up(clock: list[float]) -> None:
    all_, told, new = Waiters(), one(), one()
    say(all_, told)
    both = Waiter(1, [*told.keys.values(), *new.keys.values()])
    assert all_.heard(both) == list(new.keys.values())


def test_heard__another_namespace_or_run__is_looked_up(clock: list[float]) -> None:
    all_, waiter = Waiters(), one()
    say(all_, waiter)
    (task_id,) = waiter.keys
    assert all_.heard(one(2, task_id))
    assert all_.heard(Waiter(1, [TaskKey(str(uuid.uuid4()), task_id)]))


@pytest.mark.parametrize("elsewhere", [False, True])
def test_heard__over_in_between__is_looked_up(clock: list[float], *, elsewhere: bool) -> None:
    """Between two calls nobody waits whom a hint could wake: it is kept."""
    all_, waiter = Waiters(), one()
    say(all_, waiter)
    (task_id,) = waiter.keys
    if elsewhere:
        all_.over_in({bucket(task_id)})
    else:
        all_.over([task_id])
    assert all_.heard(waiter)


def completion(key: TaskKey) -> Completion:
    return Completion("lease", "session", *key, 1, 2, 3.0, b"7", "json", None)


async def test_completed__waited_for__gives_the_output_and_wakes() -> None:
    all_, waiter = Waiters(), one()
    all_.add(waiter)
    (key,) = waiter.keys.values()
    waking = asyncio.create_task(waiter.event.wait())
    all_.completed([(1, completion(key)), (1, completion(TaskKey("other", "other")))])
    assert await waking
    (row,) = waiter.known.values()
    assert (row.task_id, row.outcome, row.attempt, row.output) == (key.task_id, "DONE", 2, b"7")


def test_completed__another_namespace_or_run__is_told_nothing() -> None:
    all_, waiter = Waiters(), one()
    all_.add(waiter)
    (key,) = waiter.keys.values()
    all_.completed([(2, completion(key)), (1, completion(key._replace(run_id="another")))])
    assert not waiter.known
    assert not waiter.event.is_set()
