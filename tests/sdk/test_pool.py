"""Where handlers run: every job ends once, whatever its kind, and no more run than may."""

import asyncio
import threading
import time
from collections.abc import Iterator
from typing import Any

import pytest

from tenure import App, current_task
from tenure.v1 import payload_pb2, worker_pb2
from tenure.worker.job import Job
from tenure.worker.pool import HandlerPool


class Harness:
    """A pool whose results are collected as a session would."""

    def __init__(self, concurrency: int) -> None:
        self.app = App("test")
        self.woken = threading.Event()
        self.pool = HandlerPool(concurrency, self.woken.set)
        self.number = 0

    def job(self, name: str, data: bytes = b"{}") -> Job:
        self.number += 1
        assignment = worker_pb2.Assignment(
            task_id=str(self.number),
            lease_token=f"token {self.number % 3}",
            name=name,
            attempt=1,
            delivery=1,
            max_attempts=3,
            input=payload_pb2.Payload(data=data),
        )
        return Job(assignment, self.app.tasks[name].declaration, time.monotonic())

    def collect(self, count: int, seconds: float = 20.0) -> list[Job]:
        done: list[Job] = []
        give_up_at = time.monotonic() + seconds
        while len(done) < count and time.monotonic() < give_up_at:
            self.woken.wait(0.05)
            self.woken.clear()
            self.pool.nudge(time.monotonic())
            done += self.pool.drain()
        return done


@pytest.fixture
def harness(request: pytest.FixtureRequest) -> Iterator[Harness]:
    made = Harness(getattr(request, "param", 4))
    yield made
    made.pool.close()


def outcome(job: Job) -> str | None:
    assert job.result is not None
    return worker_pb2.Result.FromString(job.result).WhichOneof("outcome")


def test_submit__many_of_both_kinds__each_ends_once_in_its_bounds(harness: Harness) -> None:
    running: set[Any] = set()
    most = 0

    def enter() -> None:
        nonlocal most
        running.add(current_task().id)
        most = max(most, len(running))

    @harness.app.task
    def sync(pause: float) -> None:
        enter()
        threading.Event().wait(pause)
        running.discard(current_task().id)

    @harness.app.task
    async def coroutine(pause: float) -> None:
        enter()
        await asyncio.sleep(pause)  # tidy: handlers of several lengths are what is tested
        running.discard(current_task().id)

    jobs = [
        harness.job(name, b'{"pause": %g}' % pause)
        for pause in (0.0, 0.001, 0.01) * 20
        for name in ("sync", "coroutine")
    ]
    for start in range(0, len(jobs), 7):
        harness.pool.submit(jobs[start : start + 7])
    done = harness.collect(len(jobs))
    assert sorted(int(job.task_id) for job in done) == list(range(1, len(jobs) + 1))
    assert {outcome(job) for job in done} == {"completed"}
    assert most <= 4
    assert harness.pool.idle


def test_submit__thousands_of_short_handlers__use_one_thread(harness: Harness) -> None:
    threads: set[int] = set()

    @harness.app.task
    def noop() -> None:
        threads.add(threading.get_ident())

    harness.pool.submit([harness.job("noop") for _ in range(50)])
    harness.collect(50)
    threads.clear()
    harness.pool.submit([harness.job("noop") for _ in range(5_000)])
    assert len(harness.collect(5_000)) == 5_000
    assert len(threads) <= 2


def test_submit__short_handler_turns_long__does_not_hold_the_others(harness: Harness) -> None:
    gate = threading.Event()

    @harness.app.task
    def wait(*, blocked: bool) -> None:
        if blocked:
            gate.wait(20)

    harness.pool.submit([harness.job("wait", b'{"blocked": false}') for _ in range(200)])
    harness.collect(200)
    harness.pool.submit(
        [harness.job("wait", b'{"blocked": true}')]
        + [harness.job("wait", b'{"blocked": false}') for _ in range(100)]
    )
    assert len(harness.collect(100, 5.0)) == 100
    gate.set()
    assert len(harness.collect(1)) == 1


def test_cancel__waiting_and_running__both_end_as_cancelled(harness: Harness) -> None:
    started = threading.Event()

    @harness.app.task
    def obedient() -> None:
        started.set()
        while True:
            current_task().heartbeat()
            threading.Event().wait(0.005)

    @harness.app.task
    async def coroutine() -> None:
        started.set()
        await asyncio.Event().wait()

    for name in ("obedient", "coroutine"):
        started.clear()
        job = harness.job(name)
        harness.pool.submit([job])
        assert started.wait(5)
        harness.pool.cancel(job, "because")
        (done,) = harness.collect(1)
        assert done.result is not None
        result = worker_pb2.Result.FromString(done.result)
        assert result.cancelled.failure.message == "because"
        assert result.HasField("run_duration")

    blocked = [harness.job("coroutine") for _ in range(5)]
    harness.pool.submit(blocked)
    harness.pool.cancel(blocked[4], "not yet")
    (done,) = harness.collect(1)
    assert done is blocked[4]
    assert outcome(done) == "cancelled"
    for job in blocked[:4]:
        harness.pool.cancel(job, "the end")
    assert len(harness.collect(4)) == 4


def test_take_back__waiting__never_run(harness: Harness) -> None:
    gate = threading.Event()

    @harness.app.task
    def blocked() -> None:
        gate.wait(20)

    jobs = [harness.job("blocked") for _ in range(10)]
    harness.pool.submit(jobs)
    while len(harness.pool.running) < 4:
        threading.Event().wait(0.005)
    taken = harness.pool.take_back(keep_count=2)
    assert len(taken) == 4
    assert harness.pool.waiting_count == 2
    gate.set()
    done = harness.collect(6)
    assert not {job.task_id for job in done} & {job.task_id for job in taken}


def test_give_up__handler_that_ends_later__is_dropped(harness: Harness) -> None:
    gate = threading.Event()

    @harness.app.task
    def deaf() -> None:
        gate.wait(20)

    job = harness.job("deaf")
    harness.pool.submit([job])
    while not harness.pool.running:
        threading.Event().wait(0.005)
    assert harness.pool.give_up(job, job.stopped_early("too late"))
    assert not harness.pool.give_up(job, job.stopped_early("twice"))
    assert [outcome(each) for each in harness.collect(1)] == ["failed"]
    gate.set()
    assert not harness.collect(1, 0.2)


def test_run__context_variables__do_not_leak_into_the_next_task(harness: Harness) -> None:
    import contextvars

    variable: contextvars.ContextVar[str] = contextvars.ContextVar("variable", default="clean")
    seen: list[str] = []

    @harness.app.task
    def leaky() -> None:
        seen.append(variable.get())
        variable.set("dirty")

    @harness.app.task
    async def leaky_coroutine() -> None:
        seen.append(variable.get())
        variable.set("dirty")

    names = ("leaky", "leaky_coroutine") * 10
    harness.pool.submit([harness.job(name) for name in names])
    harness.collect(20)
    assert seen == ["clean"] * 20
