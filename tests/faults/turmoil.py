"""Two servers on one database, three workers behind lines, and what happens to all of them.

Two crews work at the same time, each with its own random numbers: one kills and stops processes, one
harms what lies between them and below them. Each process may have a clock that jumps by an hour.
"""

import asyncio
import contextlib
import itertools
import os
import random
import signal
import time
from collections import Counter
from collections.abc import Awaitable, Callable, Sequence

import psycopg
import pytest
from psycopg import conninfo

from tenure import AsyncClient, NewTask, ServiceError
from tenure_service.embedded import EmbeddedPostgres
from tests.faults import repeater
from tests.faults.line import Line
from tests.faults.processes import Spawned, Troupe

BATCH = 20
PACE_SECONDS = float(os.environ.get("TENURE_FAULT_PACE", "0.2"))
#: How many things happen to processes at a time.
CREWS = int(os.environ.get("TENURE_FAULT_CREWS", "1"))
SERVERS = 2
WORKERS = int(os.environ.get("TENURE_FAULT_WORKERS", "3"))
START_SECONDS = 10.0
#: How long no task may end, and how long it may take until all have ended.
STUCK_SECONDS = 60.0
SETTLE_SECONDS = 90.0 + float(os.environ.get("TENURE_FAULT_SECONDS", "5"))
#: What is done, and how often; `TENURE_FAULT_WEIGHTS="kill worker=50,kill server=20"` changes it.
PROCESSES = {"kill worker": 6, "kill server": 3, "stop worker": 5, "stop server": 2}
SURROUNDINGS = {
    "cut line": 5,
    "swallow line": 4,
    "delay line": 3,
    "end backends": 4,
    "kill postgres": 1,
}
CLOCKS = (0, 0, 3600, -3600)
KINDS = {"nap": 55, "once": 22, "fail_first": 10, "fail": 5, repeater.NAME: 8}


def weights(usual: dict[str, int]) -> dict[str, int]:
    """Gives the weights of a crew, as the environment changes them."""
    changed = os.environ.get("TENURE_FAULT_WEIGHTS", "")
    named = dict(part.split("=") for part in changed.split(",") if part)
    return {what: int(named.get(what, weight)) for what, weight in usual.items()}


class Turmoil:
    """The processes, their load, and what happened to them.

    Attributes:
        kinds: The name of each task that was taken.
        done: How often each fault happened.
    """

    def __init__(
        self,
        troupe: Troupe,
        postgres: EmbeddedPostgres,
        dsn: str,
        seed: int,
        lines: Sequence[Line],
        addresses: Sequence[str],
    ) -> None:
        self.rng = random.Random(seed)  # noqa: S311 - repeats a test
        self.kinds: dict[str, str] = {}
        self.done: Counter[str] = Counter()
        self.addresses = addresses
        # Producers have lines of their own, so that also answers to them are lost.
        self.clients = [AsyncClient(line.address) for line in lines[WORKERS:]]
        self._lines = lines
        self._numbers = itertools.count(1)
        self._troupe = troupe
        self._postgres = postgres
        self._dsn = dsn
        self._away: set[tuple[str, int]] = set()
        self._among = {
            "server": [self._server(place) for place in range(SERVERS)],
            "worker": [self._worker(place) for place in range(WORKERS)],
        }

    def _clock(self) -> dict[str, str]:
        return self._troupe.wrong_clock(self.rng.choice(CLOCKS))

    def _server(self, place: int) -> Spawned:
        quiet = self._clock() | {"TENURE_LOG_LEVEL": "WARNING"}
        return self._troupe.server(self._dsn, self.addresses[place], **quiet)

    def _worker(self, place: int) -> Spawned:
        address = self._lines[place].address
        return self._troupe.worker(address, f"worker {place}", 8, **self._clock())

    # ------------------------------------------------------------------------- what happens

    async def harm_processes(self, until: float) -> None:
        """Kills and stops servers and workers, until it is time."""
        rng = random.Random(self.rng.random())  # noqa: S311 - repeats a test

        async def do(what: str, whom: str) -> None:
            place = rng.randrange(SERVERS if whom == "server" else WORKERS)
            seconds = rng.uniform(0.3, 2.5)
            if what == "kill":
                await self._kill(whom, place, seconds / 3)
            else:
                await self._stop(whom, place, seconds)

        await self._harm(rng, weights(PROCESSES), until, 0.3, do)

    async def harm_surroundings(self, until: float) -> None:
        """Harms lines, connections to the database, and PostgreSQL, until it is time."""
        rng = random.Random(self.rng.random())  # noqa: S311 - repeats a test

        async def do(what: str, whom: str) -> None:
            seconds = rng.uniform(0.1, 0.8)
            if whom == "line":
                await self._harm_line(rng, what, seconds)
            elif whom == "backends":
                await asyncio.to_thread(self._end_backends, rng.uniform(0.1, 1))
            else:
                await asyncio.to_thread(self._postgres.kill)
                await asyncio.sleep(seconds)  # tidy: as long as it is away
                await asyncio.to_thread(self._postgres.restart)

        await self._harm(rng, weights(SURROUNDINGS), until, 1.5 * PACE_SECONDS, do)

    async def _harm(
        self,
        rng: random.Random,
        faults: dict[str, int],
        until: float,
        pause_seconds: float,
        do: Callable[[str, str], Awaitable[None]],
    ) -> None:
        """Does one thing after another; before it ends, each at least once."""
        wanted = [fault for fault, weight in faults.items() if weight]
        first = rng.sample(wanted, len(wanted))
        while first or time.monotonic() < until:
            (chosen,) = rng.choices(list(faults), list(faults.values()))
            chosen = first.pop() if first else chosen
            what, _, whom = chosen.partition(" ")
            self.done[chosen] += 1
            await do(what, whom)
            await asyncio.sleep(rng.uniform(0, pause_seconds))  # tidy: faults come at random

    async def _kill(self, whom: str, place: int, seconds: float) -> None:
        """Kills a process, once it has begun to work if it soon does."""
        one = self._among[whom][place]
        give_up_at = time.monotonic() + START_SECONDS
        while time.monotonic() < give_up_at and not self._troupe.has_worked(one):
            await asyncio.sleep(0.05)  # tidy: polls a process, bounded
            one = self._among[whom][place]
        self.done[f"{whom} killed at work"] += self._troupe.has_worked(one) and one.running
        self._away.add((whom, place))
        one.kill()
        await asyncio.sleep(seconds)  # tidy: as long as it is away
        self._away.discard((whom, place))
        self.restore()

    async def _stop(self, whom: str, place: int, seconds: float) -> None:
        """Stops a process, also for longer than its leases."""
        one = self._among[whom][place]
        one.signal(signal.SIGSTOP)
        await asyncio.sleep(seconds)  # tidy: as long as it stands still
        one.signal(signal.SIGCONT)

    async def _harm_line(self, rng: random.Random, what: str, seconds: float) -> None:
        # A call of a producer would wait out its whole time: theirs are cut, not swallowed.
        line = rng.choice(self._lines[:WORKERS] if what == "swallow" else self._lines)
        if what == "cut":
            line.cut()
        elif what == "swallow":
            line.swallow(rng.choice(("both", "client", "server")))
        else:
            line.delay = seconds
            await asyncio.sleep(1)  # tidy: as long as it is slow
            line.delay = 0.0

    def _end_backends(self, share: float) -> None:
        """Ends some of the servers' connections to the database."""
        name = conninfo.conninfo_to_dict(self._dsn)["dbname"]
        with psycopg.connect(self._postgres.dsn("postgres"), autocommit=True) as admin:
            ended = admin.execute(
                "select pg_terminate_backend(pid) from pg_stat_activity "
                "where datname = %s and application_name like 'tenure %%' and random() < %s",
                [name, share],
            ).fetchall()
        self.done["ended backends"] += len(ended)

    def _start(self, whom: str, place: int) -> None:
        self._among[whom][place] = self._server(place) if whom == "server" else self._worker(place)

    def restore(self) -> None:
        """Starts what ended by itself: a server that found no database at its start."""
        for whom, among in self._among.items():
            for place, one in enumerate(among):
                if not one.running and (whom, place) not in self._away:
                    self._start(whom, place)

    # ------------------------------------------------------------------------------ the load

    async def produce(self, first: int, until: float) -> None:
        """Enqueues steadily, through one server as long as it answers."""
        while time.monotonic() < until:
            await self.enqueue(first, BATCH)
            self.restore()
            await asyncio.sleep(PACE_SECONDS)  # tidy: the pace of the load

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
            self.restore()
            await asyncio.sleep(0.1)  # tidy: until a server is there again
        pytest.fail("no server took the tasks")

    async def settle(self, also: "asyncio.Task[None]") -> None:
        """Waits until every task is over, while another one works."""
        left = set(self.kinds)
        began_at = moved_at = time.monotonic()
        turn = 0
        while left and min(moved_at + STUCK_SECONDS, began_at + SETTLE_SECONDS) > time.monotonic():
            self.restore()
            assert not also.done(), also.result()
            turn += 1
            try:
                over = await self.clients[turn % 2].await_tasks(sorted(left)[:5000], 2)
            except ServiceError:
                await asyncio.sleep(0.1)  # tidy: until a server is there again
                continue
            moved_at = time.monotonic() if over else moved_at
            left.difference_update(over)
        shown = Counter(self.kinds[one] for one in left)
        assert not left, f"{len(left)} of {len(self.kinds)} are not over: {shown}; {self.done}"
