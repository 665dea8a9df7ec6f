"""Prefetch is earned by short handlers and lost to slow ones."""

from tenure.worker.slots import SlotGovernor


def busy(governor: SlotGovernor, now: float, run_seconds: float, seconds: float) -> float:
    """Lets handlers of one length end for some time, as fast as slots allow."""
    end = now + seconds
    while now < end:
        for _ in range(governor.slots * 2):
            governor.finished(run_seconds)
        governor.step(now, running_count=10, slow_count=0)
        now += 0.05
    return now


def test_step__nothing_known__takes_what_can_run() -> None:
    governor = SlotGovernor(10, 1_000, now=0.0)
    assert not governor.step(100.0, running_count=10, slow_count=0)
    assert governor.slots == 10
    assert not governor.prefetches


def test_step__handlers_that_do_nothing__earn_all_within_seconds() -> None:
    governor = SlotGovernor(10, 1_000, now=0.0)
    busy(governor, 0.0, 0.0001, 2.5)
    assert governor.slots == 1_000


def test_step__handlers_that_do_next_to_nothing__earn_all_in_one_step() -> None:
    governor = SlotGovernor(10, 1_000, now=0.0)
    busy(governor, 0.0, 0.0001, 0.06)
    assert governor.slots == 1_000


def test_step__very_short_handlers__earn_step_by_step() -> None:
    governor = SlotGovernor(10, 1_000, now=0.0)
    busy(governor, 0.0, 0.005, 0.06)
    assert governor.slots == 40


def test_step__short_handlers__earn_about_a_second_of_work() -> None:
    governor = SlotGovernor(10, 1_000, now=0.0)
    busy(governor, 0.0, 0.05, 20.0)
    assert governor.slots == 10 + 10 * 20


def test_step__slow_handlers__earn_nothing() -> None:
    governor = SlotGovernor(10, 1_000, now=0.0)
    busy(governor, 0.0, 0.5, 20.0)
    assert governor.slots == 10


def test_step__few_tasks__earn_nothing() -> None:
    governor = SlotGovernor(10, 1_000, now=0.0)
    for second in range(60):
        governor.finished(0.001)
        governor.step(float(second), running_count=0, slow_count=0)
    assert governor.slots == 10


def test_step__half_of_the_handlers_run_long__falls_at_once() -> None:
    governor = SlotGovernor(4, 1_000, now=0.0)
    now = busy(governor, 0.0, 0.0001, 5.0)
    assert governor.slots == 1_000
    assert governor.step(now, running_count=4, slow_count=2)
    assert governor.slots == 4


def test_step__one_of_many_runs_long__keeps_what_was_earned() -> None:
    governor = SlotGovernor(10, 1_000, now=0.0)
    now = busy(governor, 0.0, 0.0001, 5.0)
    assert not governor.step(now, running_count=10, slow_count=1)
    assert governor.slots == 1_000


def test_step__prefetch_forbidden__stays() -> None:
    governor = SlotGovernor(10, 0, now=0.0)
    busy(governor, 0.0, 0.0001, 5.0)
    assert governor.slots == 10
