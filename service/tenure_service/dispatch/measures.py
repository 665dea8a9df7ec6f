"""What a dispatch counts, and what of it stands, in the words of `telemetry.metrics`."""

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Final

from tenure_service.engine.states import Outcome
from tenure_service.telemetry import metrics
from tenure_service.telemetry.instruments import Counter, Observed
from tenure_service.usecase import enqueue
from tenure_service.usecase.end import Tally

if TYPE_CHECKING:
    from tenure_service.dispatch.hub import Hub

_COUNTERS: Final[dict[Outcome, Counter]] = {
    Outcome.DONE: metrics.TASKS_COMPLETED,
    Outcome.FAILED: metrics.TASKS_FAILED,
    Outcome.CANCELLED: metrics.TASKS_CANCELLED,
    Outcome.LOST: metrics.TASKS_LOST,
    Outcome.RELEASED: metrics.TASKS_RELEASED,
    Outcome.RESCHEDULED: metrics.TASKS_RESCHEDULED,
}


def count(tally: Tally) -> None:
    """Counts the hand-outs that a committed batch ended."""
    for outcome, number in tally.outcomes.items():
        # Those that timed out are counted by the limit.
        if outcome in _COUNTERS:
            _COUNTERS[outcome].add(number)
    for kind, number in tally.timeouts.items():
        metrics.TASKS_TIMED_OUT.add(number, kind)
    for reason, number in tally.deaths.items():
        metrics.TASKS_DEAD_LETTERED.add(number, reason)
    if tally.retried_count:
        metrics.TASKS_RETRIED.add(tally.retried_count)
    for outcome, run_ms in tally.run_ms.items():
        if run_ms:
            metrics.TASK_RUN.observe_many((each / 1000 for each in run_ms), outcome)


def count_enqueued(answers: Sequence[enqueue.Answer]) -> None:
    """Counts the items of a call: those that were stored, and those that stood already."""
    found = [each for each in answers if isinstance(each, enqueue.Enqueued)]
    existing_count = sum(each.existing for each in found)
    # A repeated call is answered with tasks that nobody has to be woken for.
    metrics.TASKS_ENQUEUED.add(sum(each.lane_id is not None for each in found))
    if existing_count:
        metrics.TASKS_EXISTING.add(existing_count)


def observe(hub: "Hub") -> Iterator[Observed]:
    """Tells what stands; on any thread, since a number that is a moment old is as good."""
    sessions = list(hub.leaser.sessions.values())
    granted = sum(one.slots.total for one in sessions)
    yield metrics.STREAMS, len(sessions), ()
    yield metrics.SLOTS_GRANTED, granted, ()
    yield metrics.SLOTS_FREE, sum(one.free_count for one in sessions), ()
    yield metrics.WAITERS, len(hub.waiters), ()
    yield metrics.PAYLOAD_MEMORY, hub.memory.held_bytes, ()
    yield metrics.PAYLOAD_MEMORY_MAX, hub.memory.bytes_max, ()
    for batch, number in hub.waiting_counts().items():
        yield metrics.BATCH_WAITING, number, (batch,)
    pool = hub.database.statistics()
    size = pool.get("pool_size", 0)
    yield metrics.POOL_CONNECTIONS, size, ()
    yield metrics.POOL_USED, size - pool.get("pool_available", 0), ()
    yield metrics.POOL_MAX, pool.get("pool_max", 0), ()
    yield metrics.POOL_WAITING, pool.get("requests_waiting", 0), ()
    yield metrics.POOL_REQUESTS, pool.get("requests_num", 0), ()
    yield metrics.POOL_WAIT, pool.get("requests_wait_ms", 0) / 1000, ()
