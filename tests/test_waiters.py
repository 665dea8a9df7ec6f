"""Who is looked up when it asks again, and who was just told."""

import uuid
from types import SimpleNamespace

import pytest

from tenure_service.dispatch.waiters import Waiter, Waiters, bucket
from tenure_service.engine.tokens import TaskKey


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    now = [100.0]
    stub = SimpleNamespace(monotonic=lambda: now[0])
    monkeypatch.setattr("tenure_service.dispatch.waiters.time", stub)
    return now


def one(namespace_id: int = 1, task_id: str | None = None) -> Waiter:
    task_id = task_id or str(uuid.uuid4())
    return Waiter(namespace_id, [TaskKey(task_id, task_id)])


def test_unheard__never_told__is_looked_up(clock: list[float]) -> None:
    assert not Waiters().unheard(one())


def test_unheard__just_told__is_not_looked_up_for_some_seconds(clock: list[float]) -> None:
    all_, waiter = Waiters(), one()
    all_.said(waiter)
    clock[0] += 4.9
    assert all_.unheard(waiter)
    clock[0] += 0.2
    assert not all_.unheard(waiter)


def test_unheard__another_namespace_or_run__is_looked_up(clock: list[float]) -> None:
    all_, waiter = Waiters(), one()
    all_.said(waiter)
    (task_id,) = waiter.keys
    assert not all_.unheard(one(2, task_id))
    assert not all_.unheard(Waiter(1, [TaskKey(str(uuid.uuid4()), task_id)]))


@pytest.mark.parametrize("elsewhere", [False, True])
def test_unheard__over_in_between__is_looked_up(clock: list[float], *, elsewhere: bool) -> None:
    """Between two calls nobody waits whom a hint could wake: it is kept."""
    all_, waiter = Waiters(), one()
    all_.said(waiter)
    (task_id,) = waiter.keys
    if elsewhere:
        all_.over_in({bucket(task_id)})
    else:
        all_.over([task_id])
    assert not all_.unheard(waiter)
