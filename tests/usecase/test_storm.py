"""The storm: reporters with duplicates, sweepers, cancels, releases and takers on the same leases.

Every round hands tasks out, lets all of them act at once, and then looks: the invariants hold, each
hand-out was recorded for one actor only, and what every reporter was told is what stands. At the end
everything is drained, and each task is over once. TENURE_STORM_ROUNDS lengthens it, and
TENURE_STORM_SEED repeats what the actors do (not how the threads meet).

Guards that were removed by hand, one at a time, each seen to turn it red within 25 rounds: follow-ups
decided from what was sent; no lock on the leases of the careful form, of a sweep, of a cancellation;
the fast path deciding from its snapshot what is left of a lease, ignoring its count, leaving requests
to cancel; both of two contradicting results of one batch inserted; put-back without a look at
requests; a spent lease not deleted; a release that spends an attempt; a replay that is not marked.
(ON CONFLICT in the fast path changes nothing: its count differs then, and the careful form decides.)
"""

import os
import random
import threading
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial

from tenure_service.engine.policy import Backoff, PartialPolicy
from tenure_service.engine.states import Outcome
from tenure_service.engine.tokens import TaskKey
from tenure_service.store import rows
from tenure_service.usecase import cancel, end, expire, lease, operate, report
from tenure_service.usecase.end import Ending, Recorded
from tenure_service.usecase.session import Opened
from tests.usecase.stage import AT_ONCE, Stage, completion, ending, in_thread, later

ROUNDS = int(os.environ.get("TENURE_STORM_ROUNDS", "25"))
NAMES = ("one", "two", "three")
NEW_A_ROUND = 90
LATER_TRY = PartialPolicy(
    max_attempts=2, backoff=Backoff.FIXED, initial_delay_ms=5_000, max_delay_ms=5_000
)
OUTCOMES = {
    Outcome.DONE: 50,
    Outcome.FAILED: 22,
    Outcome.RELEASED: 12,
    Outcome.RESCHEDULED: 10,
    Outcome.CANCELLED: 6,
}


@dataclass(frozen=True)
class HandOut:
    task: rows.LeasedTask
    session_id: str


@dataclass
class Round:
    """What the actors of one round were told."""

    answers: list[tuple[HandOut, Outcome, Recorded]] = field(default_factory=list)
    recorded_count: int = 0
    taken: list[HandOut] = field(default_factory=list)
    lock: threading.Lock = field(default_factory=threading.Lock)

    def told(self, said: Sequence[tuple[HandOut, Outcome]], recorded: Sequence[Recorded]) -> None:
        with self.lock:
            self.answers += [(h, o, r) for (h, o), r in zip(said, recorded, strict=True)]
            self.recorded_count += recorded.count(Recorded.RECORDED)

    def ended(self, ends: end.Ends | None) -> None:
        if ends is not None:
            with self.lock:
                self.recorded_count += ends.recorded.count(Recorded.RECORDED)


class Storm:
    def __init__(self, stage: Stage, seed: int) -> None:
        self.stage = stage
        self.rng = random.Random(seed)  # noqa: S311 - repeats a test
        self.keys: list[TaskKey] = []
        self.held: list[HandOut] = []
        self.delivery_count = 0

    # ---------------------------------------------------------------------------- one round

    def round(self) -> None:
        stage, now = self.stage, Round()
        for name in NAMES:
            policy = self.rng.choice((AT_ONCE, LATER_TRY))
            delay_ms = self.rng.choice((None, None, 1_000))
            self.keys += stage.tasks(NEW_A_ROUND // 3, name, policy=policy, delay_ms=delay_ms)
        sessions = [stage.session(f"worker{n}") for n in range(3)]
        for opened in sessions:
            self.held += self._take(opened, self.rng.randint(1, 15))
        # In a calm round everything is an output, said once, and only cancels come between: then the
        # fast path is taken by all reporters, and they meet each other in it.
        calm = self.rng.random() < 0.4
        actors = [*self._reporters(now, calm=calm), *self._others(now, sessions, calm=calm)]
        barrier = threading.Barrier(len(actors))

        def together(act: Callable[[], None]) -> None:
            barrier.wait(20)
            act()

        for future in [in_thread(partial(together, act)) for act in actors]:
            future.result(60)
        self._look(now)
        self.held = now.taken

    def _take(self, opened: Opened, count: int) -> list[HandOut]:
        picks = [
            self.stage.pick(opened, self.stage.lane_id(name, suspect=suspect), count)
            for name in NAMES
            for suspect in (False, True)
        ]
        grants = lease.lease(self.stage.database, self.stage.catalogue, picks)
        return [HandOut(task, opened.session_id) for grant in grants for task in grant.tasks]

    def _reporters(self, now: Round, *, calm: bool) -> Iterator[Callable[[], None]]:
        """Four threads; most hand-outs are reported, many twice or more, some in contradiction."""
        said: list[tuple[HandOut, Outcome]] = []
        for hand_out in self.held:
            if calm:
                said.append((hand_out, Outcome.DONE))
                continue
            (outcome,) = self.rng.choices(list(OUTCOMES), list(OUTCOMES.values()))
            if self.rng.random() < 0.85:
                said += [(hand_out, outcome)] * self.rng.choice((1, 1, 2, 3))
            if self.rng.random() < 0.05:
                said.append((hand_out, self.rng.choice(list(OUTCOMES))))
        # Neighbours stay neighbours, so that duplicates and tasks of one lease meet in batches
        # that are under way at the same time.
        said.sort(key=lambda one: (one[0].task.lease_id, self.rng.random()))
        batches = []
        while said:
            size = self.rng.randint(1, 4 if calm else 12)
            batches.append(said[:size])
            said = said[size:]
        for number in range(4):
            own, fast = batches[number::4], calm or self.rng.random() < 0.7
            yield partial(self._report, now, own, fast=fast)

    def _report(
        self, now: Round, batches: list[list[tuple[HandOut, Outcome]]], *, fast: bool
    ) -> None:
        """As the server does: outputs by the fast path, all of a batch that it refuses carefully."""
        for batch in batches:
            done = [(h, o) for h, o in batch if fast and o is Outcome.DONE]
            items = [completion(h.task, h.session_id) for h, _ in done]
            if items and report.complete(self.stage.database, items):
                now.told(done, [Recorded.RECORDED] * len(done))
                batch = [(h, o) for h, o in batch if o is not Outcome.DONE]  # noqa: PLW2901
            endings = [self._ending(h.task, o) for h, o in batch]
            if endings:
                ends = report.end_all(self.stage.database, self.stage.catalogue, endings)
                now.told(batch, ends.recorded)

    @staticmethod
    def _ending(task: rows.LeasedTask, outcome: Outcome) -> Ending:
        if outcome is Outcome.FAILED:
            failure = {"type": "E", "message": "", "non_retryable": task.seq % 3 == 0}
            return ending(task, outcome, failure=failure)
        return ending(task, outcome, delay_ms=1_000 if outcome is Outcome.RESCHEDULED else 0)

    def _others(
        self, now: Round, sessions: list[Opened], *, calm: bool
    ) -> list[Callable[[], None]]:
        database, catalogue = self.stage.database, self.stage.catalogue
        held = [TaskKey(h.task.run_id, h.task.task_id) for h in self.held]
        cancelled = [
            self.rng.sample(self.keys[-200:], self.rng.randint(1, 5))
            + self.rng.sample(held, min(len(held), 3))
            for _ in range(4)
        ]
        sweeps = self.rng.randint(0, 2)
        closed = self.rng.choice(sessions)
        taker = self.stage.session("taker")

        def sweep() -> None:
            for _ in range(sweeps):
                now.ended(expire.expire(database, catalogue, now=later()))

        def cancel_some() -> None:
            for keys in cancelled:
                cancel.cancel(database, self.stage.namespace_id, keys, reason="", grace_ms=0)

        def end_overdue() -> None:
            now.ended(cancel.end_overdue(database, catalogue, now=later()))

        def close() -> None:
            now.ended(expire.release_session(database, catalogue, closed.session_id, closed.epoch))

        def take() -> None:
            for _ in range(3):
                now.taken += self._take(taker, 4)
                expire.fire_timers(database, now=later())

        def replay() -> None:
            operate.replay(database, self.stage.namespace_id, self.keys)

        return [cancel_some, take] + ([] if calm else [sweep, sweep, end_overdue, close, replay])

    # -------------------------------------------------------------------------------- looking

    def _look(self, now: Round) -> None:
        self.stage.check()
        found = self.stage.all(
            "select task_id::text, delivery, lease_id::text, outcome::text from deliveries"
            " where lease_id is not null"
        )
        # Every row that came was one actor's, and every actor's success is a row.
        assert len(found) - self.delivery_count == now.recorded_count
        self.delivery_count = len(found)
        stands = {(t, d): (lease_id, outcome) for t, d, lease_id, outcome in found}
        winners: Counter[tuple[str, int]] = Counter()
        for hand_out, outcome, recorded in now.answers:
            task = hand_out.task
            name = (task.task_id, task.delivery)
            lease_id, stood = stands[name]
            assert lease_id == task.lease_id
            same = Outcome(stood) in end._RECORDED_AS[outcome]
            assert same == (recorded is not Recorded.LEASE_LOST), (outcome, stood, recorded)
            winners[name] += recorded is Recorded.RECORDED
        assert set(winners.values()) <= {0, 1}

    def drain(self) -> None:
        """Completes whatever is left; each task is over then, once."""
        database, catalogue = self.stage.database, self.stage.catalogue
        while expire.expire(database, catalogue, now=later()):
            pass
        while True:
            fired = expire.fire_timers(database, now=later(days=900))
            opened = self.stage.session("last")
            taken = self._take(opened, 100)
            if not fired and not taken:
                break
            items = [completion(h.task, h.session_id) for h in taken]
            assert not items or report.complete(database, items)
        self.stage.check()
        ((count, live),) = self.stage.all(
            "select (select count(*) from tasks), (select count(*) from ready_tasks)"
            " + (select count(*) from timers) + (select count(*) from leases)"
            " + (select count(*) from cancel_requests)"
        )
        assert (count, live) == (len(self.keys), 0)
        over = self.stage.all(
            "select count(*) from deliveries as d where d.final and not exists ("
            " select from deliveries as e where e.task_id = d.task_id and e.delivery > d.delivery)"
        )
        assert over == [(len(self.keys),)]


def test_storm__all_actors_on_the_same_leases__each_hand_out_ends_once(database: str) -> None:
    seed = int(os.environ.get("TENURE_STORM_SEED", "0")) or int.from_bytes(os.urandom(4))
    print(f"TENURE_STORM_SEED={seed}")  # noqa: T201 - pytest shows it when the test fails
    stage = Stage(database, connection_count=16)
    try:
        storm = Storm(stage, seed)
        for _ in range(ROUNDS):
            storm.round()
        storm.drain()
    finally:
        stage.close()
