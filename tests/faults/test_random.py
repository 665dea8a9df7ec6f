"""Random faults: servers and workers killed and stopped, PostgreSQL killed, all while tasks run.

What is harmed, and for how long, comes from a seed that is printed; TENURE_FAULT_SEED repeats the
choices (not how they meet the tasks), TENURE_FAULT_SECONDS lengthens the run. At the end every task
is over, each has exactly one final delivery, nothing is held, and no invariant is broken.
"""

import asyncio
import contextlib
import itertools
import os
import random
import signal
import time
from collections import Counter

import psycopg
import pytest

from tenure import AsyncClient, NewTask, ServiceError, TaskState
from tenure_service.embedded import EmbeddedPostgres
from tests.faults.processes import Spawned, Troupe, free_address

SECONDS = float(os.environ.get("TENURE_FAULT_SECONDS", "5"))
SEED = int(os.environ.get("TENURE_FAULT_SEED", str(random.randrange(10**6))))  # noqa: S311
BACKLOG = 600
BATCH = 20
SETTLE_SECONDS = 90.0
#: What is done to whom, and how often.
FAULTS = {
    ("kill", "worker"): 6,
    ("kill", "server"): 3,
    ("stop", "worker"): 5,
    ("stop", "server"): 2,
    ("kill", "postgres"): 1,
}
KINDS = {"nap": 60, "once": 25, "fail_first": 10, "fail": 5}


class Turmoil:
    """Two servers on one database, three workers, and what happens to them."""

    def __init__(self, troupe: Troupe, postgres: EmbeddedPostgres, dsn: str, seed: int) -> None:
        self.rng = random.Random(seed)  # noqa: S311 - repeats a test
        self.addresses = [free_address(), free_address()]
        self.clients = [AsyncClient(address) for address in self.addresses]
        self.kinds: dict[str, str] = {}
        self.done: Counter[str] = Counter()
        self._numbers = itertools.count(1)
        self._troupe = troupe
        self._postgres = postgres
        self._dsn = dsn
        self._servers = [self._server(place) for place in range(2)]
        self._workers = [self._worker(place) for place in range(3)]

    def _server(self, place: int) -> Spawned:
        return self._troupe.server(self._dsn, self.addresses[place], TENURE_LOG_LEVEL="WARNING")

    def _worker(self, place: int) -> Spawned:
        return self._troupe.worker(self.addresses[place % 2], f"worker {place}", 8)

    # ------------------------------------------------------------------------- what happens

    async def harm(self, until: float) -> None:
        """Does one thing after another, until it is time."""
        first = self.rng.sample(list(FAULTS), len(FAULTS))
        while time.monotonic() < until:
            (chosen,) = self.rng.choices(list(FAULTS), list(FAULTS.values()))
            what, whom = first.pop() if first else chosen
            seconds = self.rng.uniform(0.3, 2.5)
            place = self.rng.randrange(2 if whom == "server" else 3)
            self.done[f"{what} {whom}"] += 1
            if whom == "postgres":
                await asyncio.to_thread(self._postgres.kill)
                await asyncio.sleep(seconds / 3)  # tidy: as long as it is away
                await asyncio.to_thread(self._postgres.restart)
            elif what == "kill":
                await self._kill(whom, place, seconds / 3)
            else:
                await self._stop(whom, place, seconds)
            await asyncio.sleep(self.rng.uniform(0, 0.4))  # tidy: faults come at random

    async def _kill(self, whom: str, place: int, seconds: float) -> None:
        among = self._servers if whom == "server" else self._workers
        among[place].kill()
        await asyncio.sleep(seconds)  # tidy: as long as it is away
        among[place] = self._server(place) if whom == "server" else self._worker(place)

    async def _stop(self, whom: str, place: int, seconds: float) -> None:
        """Stops a process, also for longer than its leases."""
        one = (self._servers if whom == "server" else self._workers)[place]
        one.signal(signal.SIGSTOP)
        await asyncio.sleep(seconds)  # tidy: as long as it stands still
        one.signal(signal.SIGCONT)

    def restore(self) -> None:
        """Starts what ended by itself: a server that found no database at its start."""
        for place in range(2):
            if not self._servers[place].running:
                self._servers[place] = self._server(place)
        for place in range(3):
            if not self._workers[place].running:
                self._workers[place] = self._worker(place)

    # ------------------------------------------------------------------------------ the load

    async def produce(self, first: int, until: float) -> None:
        """Enqueues steadily, through one server as long as it answers."""
        while time.monotonic() < until:
            await self.enqueue(first, BATCH)
            self.restore()
            await asyncio.sleep(0.2)  # tidy: the pace of the load

    async def enqueue(self, first: int, count: int) -> None:
        """Enqueues tasks, each by its key until a server has taken it."""
        batch = []
        for _ in range(count):
            (kind,) = self.rng.choices(list(KINDS), list(KINDS.values()))
            seconds = {"seconds": round(self.rng.expovariate(8), 3)}
            arguments = seconds if kind in {"nap", "once"} else {}
            key = f"{next(self._numbers)}"
            batch.append(NewTask(name=kind, key=key, arguments=arguments))
        await self._enqueue(batch, first)

    async def _enqueue(self, batch: list[NewTask], first: int) -> None:
        for turn in range(first, first + 200):
            with contextlib.suppress(ServiceError):
                answers = await self.clients[turn % 2].enqueue_many(batch)
                for new, answer in zip(batch, answers, strict=True):
                    if isinstance(answer, ServiceError):
                        raise answer
                    self.kinds[answer.id] = new.name
                return
            await asyncio.sleep(0.1)  # tidy: until a server is there again
        pytest.fail("no server took the tasks")

    async def settle(self) -> None:
        """Waits until every task is over."""
        left = set(self.kinds)
        give_up_at = time.monotonic() + SETTLE_SECONDS
        turn = 0
        while left and time.monotonic() < give_up_at:
            self.restore()
            turn += 1
            try:
                left -= set(await self.clients[turn % 2].await_tasks(sorted(left), 2))
            except ServiceError:
                await asyncio.sleep(0.1)  # tidy: until a server is there again
        assert not left, f"{len(left)} of {len(self.kinds)} tasks are not over"


async def test_turmoil__everything_killed_and_stopped_at_random__each_task_ends_once(
    own_postgres: EmbeddedPostgres, frail: str, troupe: Troupe
) -> None:
    _say(f"TENURE_FAULT_SEED={SEED}")
    turmoil = await asyncio.to_thread(Turmoil, troupe, own_postgres, frail, SEED)
    await turmoil.enqueue(0, BACKLOG)
    until = time.monotonic() + SECONDS
    await asyncio.gather(*(turmoil.produce(n, until) for n in range(2)), turmoil.harm(until))
    produced_at = time.monotonic()
    await turmoil.settle()
    _say(
        f"{len(turmoil.kinds)} tasks, {dict(turmoil.done)}, "
        f"settled {time.monotonic() - produced_at:.1f} s later"
    )
    with psycopg.connect(frail, options="-c search_path=tenure", autocommit=True) as conn:
        finals = conn.execute(
            "select task_id::text, count(*) filter (where final), "
            "count(*) filter (where outcome = 'LOST') from deliveries group by task_id"
        ).fetchall()
        assert {task_id for task_id, _, _ in finals} == set(turmoil.kinds)
        assert [task_id for task_id, final, _ in finals if final != 1] == []
        assert conn.execute("select count(*) from leases").fetchone() == (0,)
    lost = {task_id: count for task_id, _, count in finals}
    _say(f"{sum(lost.values())} hand-outs were lost")
    await _check_states(turmoil, lost)


def _say(text: str) -> None:
    print(text)  # noqa: T201 - pytest shows it of a failed run, and with -rP


async def _check_states(turmoil: Turmoil, lost: dict[str, int]) -> None:
    """Each task ended as its handler does; only those lost five times died for it."""
    states: dict[str, TaskState] = {}
    client = turmoil.clients[0]
    for state in (TaskState.COMPLETED, TaskState.DEAD):
        token = ""
        while True:
            page = await client.list_tasks(state, page_size=1000, page_token=token)
            states |= {one.id: one.state for one in page.items}
            token = page.next_page_token
            if not token:
                break
    wrong = {
        task_id: (kind, states.get(task_id))
        for task_id, kind in turmoil.kinds.items()
        if states.get(task_id)
        is not (TaskState.DEAD if kind == "fail" or lost[task_id] >= 5 else TaskState.COMPLETED)
    }
    assert wrong == {}
