"""Random faults while tasks run: whatever turmoil.py does, nothing is lost and nothing is doubled.

Killed: servers, workers, PostgreSQL. Stopped past their leases: servers, workers. Cut, swallowed and
slowed: the lines to workers and producers. Ended: connections to the database. Wrong by an hour:
clocks. Said twice, too late and from elsewhere: reports (repeater.py).

What is harmed comes from a seed that is printed; TENURE_FAULT_SEED repeats the choices (not how they
meet the tasks). A long run by hand that kills hundreds: TENURE_FAULT_SECONDS=400, TENURE_FAULT_CREWS=8
and TENURE_FAULT_WORKERS=9 for more at a time, TENURE_FAULT_FORK=1 for quick starts (nursery.py),
TENURE_FAULT_PACE=4 (seconds) for a smaller load, TENURE_FAULT_WEIGHTS="kill worker=90,kill server=10".
"""

import asyncio
import contextlib
import os
import random
import time
from collections import Counter
from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass

import psycopg

from tenure_service.embedded import EmbeddedPostgres
from tenure_service.store import invariants
from tests.faults import repeater
from tests.faults.line import Line
from tests.faults.processes import Troupe, free_address
from tests.faults.repeater import Repeater
from tests.faults.turmoil import CREWS, SERVERS, WORKERS, Turmoil

SECONDS = float(os.environ.get("TENURE_FAULT_SECONDS", "5"))
SEED = int(os.environ.get("TENURE_FAULT_SEED", str(random.randrange(10**6))))  # noqa: S311
BACKLOG = 400
MAX_LOST = 5
DELIVERIES = """
    select task_id::text, delivery, outcome::text, final, output, failure ->> 'type'
    from deliveries order by task_id, delivery
"""


@dataclass(frozen=True, slots=True)
class Delivery:
    """How one hand-out ended."""

    task_id: str
    delivery: int
    outcome: str
    final: bool
    output: bytes | None
    failure: str | None


async def test_turmoil__everything_harmed_at_random__each_task_ends_once(
    own_postgres: EmbeddedPostgres, frail: str, troupe: Troupe
) -> None:
    _say(f"TENURE_FAULT_SEED={SEED}")
    addresses = [free_address() for _ in range(SERVERS)]
    async with _lines(addresses) as lines:
        turmoil = await asyncio.to_thread(
            Turmoil, troupe, own_postgres, frail, SEED, lines, addresses
        )
        liar = Repeater(addresses, random.Random(SEED))  # noqa: S311 - repeats a test
        lying = asyncio.create_task(liar.run())
        await turmoil.enqueue(0, BACKLOG)
        until = time.monotonic() + SECONDS
        harm = [turmoil.harm_processes(until) for _ in range(CREWS)]
        harm.append(turmoil.harm_surroundings(until))
        await asyncio.gather(*(turmoil.produce(n, until) for n in range(2)), *harm)
        liar.tame = True
        produced_at = time.monotonic()
        await turmoil.settle(lying)
        settled_seconds = time.monotonic() - produced_at
        lying.cancel()
        await asyncio.wait([lying])
        found = await asyncio.to_thread(_deliveries, frail)
        said = await liar.repeat_all(addresses[0])
        assert await asyncio.to_thread(_deliveries, frail) == found, "a late report changed a task"
    lost = Counter(one.task_id for one in found if one.outcome == "LOST")
    _say(
        f"seed {SEED}: {len(turmoil.kinds)} tasks, {len(found)} deliveries, {lost.total()} lost; "
        f"{dict(sorted(turmoil.done.items()))}; reports {dict(liar.done)}, "
        f"all {len(liar.sent)} again {dict(said)}; settled {settled_seconds:.1f} s later"
    )
    assert "RECORDED" not in said
    _check_deliveries(found, turmoil.kinds, lost)
    _check_ledger(found, turmoil.kinds, troupe)
    _check_answers(found, liar)
    with psycopg.connect(frail, options="-c search_path=tenure", autocommit=True) as conn:
        assert invariants.check_invariants(conn) == {}
        assert conn.execute("select count(*) from leases").fetchone() == (0,)


@contextlib.asynccontextmanager
async def _lines(addresses: Sequence[str]) -> AsyncIterator[list[Line]]:
    """Gives a line for each worker and for each of the producers' clients."""
    targets = [addresses[place % SERVERS] for place in range(WORKERS)] + list(addresses)
    async with contextlib.AsyncExitStack() as stack:
        yield [await stack.enter_async_context(Line(target)) for target in targets]


def _deliveries(dsn: str) -> list[Delivery]:
    with psycopg.connect(dsn, options="-c search_path=tenure") as conn:
        return [Delivery(*row) for row in conn.execute(DELIVERIES.encode())]


def _say(text: str) -> None:
    print(text)  # noqa: T201 - pytest shows it of a failed run, and with -rP


def _check_deliveries(found: list[Delivery], kinds: dict[str, str], lost: Counter[str]) -> None:
    """Each task that was taken ended once, as its handler does, or died of five losses."""
    finals = Counter(one.task_id for one in found if one.final)
    assert finals == Counter(kinds.keys())
    wrong = []
    for one in found:
        if not one.final:
            continue
        expected: tuple[str, str | None]
        if lost[one.task_id] >= MAX_LOST:
            expected = ("LOST", "LeaseLost")
        elif kinds[one.task_id] == "fail":
            expected = ("FAILED", "OSError")
        else:
            expected = ("DONE", None)
        if (one.outcome, one.failure) != expected:
            wrong.append((one, kinds[one.task_id], expected))
    assert wrong == []


def _check_ledger(found: list[Delivery], kinds: dict[str, str], troupe: Troupe) -> None:
    """No hand-out was run twice, and what stands was made by the run of that very hand-out."""
    starts = Counter((line.task_id, line.delivery) for line in troupe.lines("start"))
    ends = {(line.task_id, line.delivery): line.pid for line in troupe.lines("end")}
    assert [one for one, count in starts.items() if count > 1] == []
    assert len(ends) == len(troupe.lines("end"))
    for one in found:
        key = one.task_id, one.delivery
        if one.outcome == "DONE" and kinds[one.task_id] in {"nap", "once"}:
            assert one.output == str(ends[key]).encode(), one
        if one.outcome in {"DONE", "FAILED"} and kinds[one.task_id] != repeater.NAME:
            assert starts[key] == 1, one


def _check_answers(found: list[Delivery], liar: Repeater) -> None:
    """At most one report of a hand-out was recorded, and it is the one that stands."""
    outputs = {f"{one.task_id} {one.delivery}": one.output for one in found}
    for hand_out, answers in liar.answers.items():
        recorded = [number for number, status in answers if status == "RECORDED"]
        assert len(recorded) <= 1, (hand_out, answers)
        # REFUSED: while there was no database.
        known = {"RECORDED", "ALREADY_RECORDED", "LEASE_LOST", "REFUSED"}
        assert {status for _, status in answers} <= known
        if recorded:
            assert outputs[hand_out] == str(recorded[0]).encode(), (hand_out, answers)
