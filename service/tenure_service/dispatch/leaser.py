"""Decides who is handed what: lanes by priority and then in turn, sessions by free slots.

One cycle at a time: plan picks for all sessions that have free slots and serve a hot lane, lease
them in one transaction on a store thread, send the assignments, look again. Cycles follow each
other without a pause while there is something to hand out, so a report that frees slots meanwhile
is part of the next one.
"""

import asyncio
import heapq
import itertools
import logging
import secrets
import time
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta

from tenure_service.dispatch import assign, wire
from tenure_service.dispatch.lanes import Handled, LaneHint, Lanes
from tenure_service.dispatch.memory import Memory
from tenure_service.dispatch.session import Session
from tenure_service.engine.errors import TenureError
from tenure_service.store.database import Database
from tenure_service.store.leases import RANK_MAX, RANK_MIN, Pick
from tenure_service.store.rows import LaneHead
from tenure_service.telemetry import metrics
from tenure_service.usecase import lease
from tenure_service.usecase.catalogue import Catalogue

_log = logging.getLogger(__name__)

_SECRET_BYTES = 16
_FAILURE_PAUSE_SECONDS = 0.5
#: Picks of one transaction. With thousands of idle sessions the first one would else wait for the
#: last, and the loop for the planning of all.
_PICK_COUNT_MAX = 100
#: Sessions that a lane's picks are chosen from: those that no pick was made for the longest.
_TAKER_COUNT_MAX = 2 * _PICK_COUNT_MAX


def _milliseconds(duration: timedelta) -> int:
    return int(duration.total_seconds() * 1000)


class _Plan:
    """What the picks of one cycle would give to sessions, by their ids."""

    def __init__(self) -> None:
        self._tasks: dict[str, int] = defaultdict(int)
        self._activations: dict[str, int] = defaultdict(int)
        #: Those that get a suspect, and so nothing else.
        self.alone: set[str] = set()

    def of(self, hint: LaneHint) -> dict[str, int]:
        """Gives the counts of those that share their slots with a lane."""
        return self._activations if hint.handled.app_version else self._tasks

    def gives(self, session_id: str) -> bool:
        """Says whether a session is to get anything."""
        return bool(self._tasks.get(session_id) or self._activations.get(session_id))


class Leaser:
    """Hands tasks and activations of runs to the sessions of one server."""

    def __init__(
        self,
        database: Database,
        catalogue: Catalogue,
        memory: Memory,
        *,
        first_lease_duration: timedelta,
        accept_timeout: timedelta,
        on_lost: Callable[[str, int, set[str]], None],
    ) -> None:
        self._database = database
        self._catalogue = catalogue
        self._memory = memory
        memory.on_hand_out = self.freed
        self._first_lease_ms = _milliseconds(first_lease_duration)
        self._accept_seconds = accept_timeout.total_seconds()
        self._on_lost = on_lost
        self._executor = ThreadPoolExecutor(1, thread_name_prefix="tenure-lease")
        self._lanes = Lanes()
        self._sessions: dict[str, Session] = {}
        #: The same by what they serve, so that a cycle does not look at thousands that do not; those
        #: of the last picks come last, whether they got something or not.
        self._serving: dict[Handled, dict[str, Session]] = defaultdict(dict)
        #: Those that are set aside for a suspect.
        self._reserved: set[Session] = set()
        #: Those that may hold what they have not accepted.
        self._handed: set[Session] = set()
        self._wanted = asyncio.Event()
        self._turn = 0
        self._strange = False
        database.on_another_server.append(self._meet_stranger)

    @property
    def sessions(self) -> Mapping[str, Session]:
        """The sessions of this server, by id."""
        return self._sessions

    def attach(self, session: Session) -> None:
        """Begins to hand tasks to a session; lanes that it serves may have become useful."""
        self._sessions[session.session_id] = session
        for handled in session.handled:
            self._serving[handled][session.session_id] = session
            self._lanes.wake_handled(handled, RANK_MAX)
        self._wanted.set()

    def detach(self, session: Session) -> None:
        """Stops handing tasks to a session."""
        session.detached = True
        session.wake_writer()
        self._reserved.discard(session)
        self._handed.discard(session)
        if self._sessions.get(session.session_id) is session:
            del self._sessions[session.session_id]
        for handled in session.handled:
            serving = self._serving.get(handled, {})
            if serving.get(session.session_id) is session:
                del serving[session.session_id]
                if not serving:
                    del self._serving[handled]

    def served(self) -> set[Handled]:
        """Gives what the sessions with free slots serve."""
        return {
            handled
            for handled, serving in self._serving.items()
            if any(session.room(handled) > 0 for session in serving.values())
        }

    def handed(self) -> list[Session]:
        """Gives the sessions that hold what they have not accepted."""
        self._handed = {session for session in self._handed if session.unaccepted}
        return list(self._handed)

    def freed(self) -> None:
        """Says that a slot became free."""
        self._wanted.set()

    async def wake(self, ranks: Mapping[int, int], *, anywhere: bool = False) -> None:
        """Says that lanes may hold a task of these ranks or better.

        Args:
            ranks: By lane.
            anywhere: Whether the task may stand before others of its rank, as one that was put
                back in its old place does; otherwise it stands at the end.
        """
        unknown = self._lanes.unknown(ranks)
        if unknown:
            found = await asyncio.to_thread(self._catalogue.lanes, unknown)
            for lane_id, lane in found.items():
                self._lanes.add(lane_id, LaneHint.of(lane))
        for lane_id, rank in ranks.items():
            self._lanes.wake(lane_id, RANK_MIN if anywhere else rank)
        self._wanted.set()

    def forget_lanes(self) -> None:
        """Forgets lanes that have been cold for long; they are read again when they wake."""
        self._lanes.forget_cold()

    def _meet_stranger(self) -> None:
        """Makes the next cycle forget all lanes, whose numbers may mean others now; on any thread."""
        self._strange = True

    async def run(self) -> None:
        """Hands out tasks until it is cancelled."""
        while True:
            await self._wanted.wait()
            self._wanted.clear()
            try:
                while await self._cycle():
                    pass
            except TenureError as exc:
                _log.warning("leasing is held up: %s", exc)
                await asyncio.sleep(_FAILURE_PAUSE_SECONDS)
                self._wanted.set()

    def close(self) -> None:
        """Ends the thread."""
        self._executor.shutdown(wait=False, cancel_futures=True)

    async def _cycle(self) -> bool:
        """Leases once; False if there was nothing that could be handed out."""
        if self._strange:
            self._strange = False
            self._lanes.clear()
        takers = self._takers()
        loop = asyncio.get_running_loop()
        heads: list[LaneHead] = []
        asked = [*takers, *self._awaited(takers)]
        if len(asked) > 1 or len(asked) > len(takers):
            # Only the database knows which lane has the most urgent task, and whether a suspect
            # that a session is set aside for is still there.
            before = {lane_id: self._lanes[lane_id].woken for lane_id in asked}
            found = await loop.run_in_executor(self._executor, lease.heads, self._database, asked)
            self._cool(before, found)
            self._unreserve()
            heads = [head for head in found if head.lane_id in takers]
        if not takers:
            return False
        picks = self._plan(takers, heads)
        if not picks:
            return False
        woken = {pick.lane_id: self._lanes[pick.lane_id].woken for pick in picks}
        grants = await loop.run_in_executor(self._executor, self._lease, picks)
        for grant in grants:
            self._granted(grant, woken[grant.pick.lane_id])
        return True

    def _lease(self, picks: list[Pick]) -> list[lease.Grant]:
        began = time.perf_counter()
        grants = lease.lease(self._database, self._catalogue, picks)
        metrics.BATCH_SECONDS.observe(time.perf_counter() - began, "lease")
        metrics.BATCH_ITEMS.observe(sum(len(grant.tasks) for grant in grants), "lease")
        return grants

    def _takers(self) -> dict[int, list[Session]]:
        """Gives the hot lanes that somebody can be given a task of, with who."""
        self._unreserve()
        if not self._memory.hands_out:
            return {}
        takers: dict[int, list[Session]] = {}
        for lane_id, hint in self._lanes.hot.items():
            serving = self._serving.get(hint.handled, {}).values()
            if hint.suspect:
                able = self._suspect_takers(hint.handled, serving)
            else:
                handled = hint.handled
                free = (session for session in serving if session.free(handled) > 0)
                able = list(itertools.islice(free, _TAKER_COUNT_MAX))
            if able:
                takers[lane_id] = able
        return takers

    def _awaited(self, takers: Mapping[int, list[Session]]) -> list[int]:
        """Gives the lanes of suspects for which a session is set aside and not yet free."""
        if not self._reserved:
            return []
        return [
            lane_id
            for lane_id, hint in self._lanes.hot.items()
            if hint.suspect and lane_id not in takers
        ]

    def _unreserve(self) -> None:
        """Gives back to common work the sessions that no suspect needs any more."""
        if not self._reserved:
            return
        wanted = {hint.handled for hint in self._lanes.hot.values() if hint.suspect}
        for session in list(self._reserved):
            if not any(session.slots.of(handled) for handled in session.handled & wanted):
                self._set_aside(session, aside=False)
                self._wanted.set()

    def _suspect_takers(self, handled: Handled, able: Iterable[Session]) -> list[Session]:
        """Finds a session with nothing outstanding, or sets one aside until it has nothing."""
        candidates = [
            session for session in able if session.receiving and session.slots.of(handled) > 0
        ]
        for session in candidates:
            if not session.held:
                self._set_aside(session, aside=False)
                return [session]
        if candidates and not any(session.reserved for session in candidates):
            least = min(candidates, key=lambda session: len(session.held))
            self._set_aside(least, aside=True)
        return []

    def _set_aside(self, session: Session, *, aside: bool) -> None:
        session.reserved = aside
        if aside:
            _log.warning(
                "worker %r is kept for a task that lost its worker more than once: it is handed"
                " nothing until it holds nothing",
                session.worker,
                extra={"session": session.session_id},
            )
            self._reserved.add(session)
        else:
            self._reserved.discard(session)

    def _cool(self, woken: Mapping[int, int], heads: Iterable[LaneHead]) -> None:
        """Cools the lanes that turned out to be empty, unless they were woken meanwhile."""
        full = {head.lane_id for head in heads}
        for lane_id, count in woken.items():
            if lane_id not in full and self._lanes[lane_id].woken == count:
                self._lanes.cool(lane_id)

    def _plan(self, takers: Mapping[int, list[Session]], heads: Iterable[LaneHead]) -> list[Pick]:
        """Plans picks: only from lanes whose first task is of the most urgent rank there is.

        Sessions with the most free slots are served first, among equals the one that was handed
        something the longest ago; lanes of one rank take turns. What does not fit is for the next
        cycle.
        """
        ranks = {head.lane_id: head.rank for head in heads}
        if ranks:
            best = min(ranks.values())
            lane_ids = [lane_id for lane_id, rank in ranks.items() if rank == best]
        else:
            best = RANK_MAX
            lane_ids = list(takers)
        lane_ids.sort(key=lambda lane_id: self._lanes[lane_id].served_at)
        plan = _Plan()
        picks: list[Pick] = []
        for number, lane_id in enumerate(lane_ids):
            hint = self._lanes[lane_id]
            planned = plan.of(hint)
            able = heapq.nsmallest(
                _PICK_COUNT_MAX - len(picks),
                takers[lane_id],
                key=lambda session: (
                    planned[session.session_id] - session.free(hint.handled),
                    session.served_at,
                ),
            )
            for session in able:
                count = self._share(session, hint, plan, len(lane_ids) - number)
                if count <= 0:
                    continue
                planned[session.session_id] += count
                if hint.suspect:
                    plan.alone.add(session.session_id)
                self._turn += 1
                hint.served_at = self._turn
                self._goes_last(session, hint.handled)
                picks.append(self._pick(session, lane_id, count, best))
            if len(picks) >= _PICK_COUNT_MAX:
                break
        return picks

    def _pick(self, session: Session, lane_id: int, task_count_max: int, rank_max: int) -> Pick:
        hint = self._lanes[lane_id]
        low_rank, low_seq = hint.place(time.monotonic())
        return Pick(
            session_id=session.session_id,
            epoch=session.epoch,
            namespace_id=session.namespace_id,
            lane_id=lane_id,
            task_count_max=task_count_max,
            secret=secrets.token_bytes(_SECRET_BYTES),
            lease_ms=self._first_lease_ms,
            low_rank=low_rank,
            low_seq=low_seq,
            rank_max=rank_max,
            of_runs=bool(hint.handled.app_version),
        )

    def _goes_last(self, session: Session, handled: Handled) -> None:
        serving = self._serving.get(handled, {})
        if serving.get(session.session_id) is session:
            serving[session.session_id] = serving.pop(session.session_id)

    def _share(self, session: Session, hint: LaneHint, plan: _Plan, lanes_left: int) -> int:
        """Says how many tasks or runs of a lane a session is to be given in this cycle."""
        if hint.suspect:
            return 0 if session.held or plan.gives(session.session_id) else 1
        if session.session_id in plan.alone:
            return 0
        free = session.free(hint.handled) - plan.of(hint)[session.session_id]
        if free <= 0:
            return 0
        return min(-(-free // lanes_left), hint.task_count_max)

    def _granted(self, grant: lease.Grant, woken: int) -> None:
        pick = grant.pick
        hint = self._lanes[pick.lane_id]
        last = (grant.tasks[-1].rank, grant.tasks[-1].seq) if grant.tasks else None
        hint.picked(
            (pick.low_rank, pick.low_seq),
            last=last,
            # A pick of one rank that took something says nothing of the tasks below that rank.
            more=bool(grant.tasks) and pick.rank_max < RANK_MAX,
            full=len(grant.tasks) >= pick.task_count_max,
            woken=woken,
        )
        if not hint.hot:
            self._lanes.cool(pick.lane_id)
        if not grant.tasks:
            return
        held, messages = assign.assignments(grant, hint)
        sizes = assign.sizes(grant, messages)
        input_bytes = sum(sizes)
        hint.measured(len(grant.tasks), input_bytes)
        session = self._sessions.get(pick.session_id)
        if session is None or session.detached:
            # The stream ended while the lease was written: nobody will accept it.
            self._on_lost(pick.session_id, pick.epoch, {grant.tasks[0].lease_id})
            return
        if hint.suspect:
            _log.warning(
                "what lost its worker more than once goes to worker %r, alone",
                session.worker,
                extra={"session": session.session_id, "task_id": grant.tasks[0].task_id},
            )
        self._turn += 1
        session.served_at = self._turn
        session.hold(held, accept_timeout=self._accept_seconds)
        self._handed.add(session)
        self._memory.take(input_bytes)
        left = iter(sizes)
        for part in assign.parts(messages):
            size = sum(itertools.islice(left, len(part)))
            session.send(wire.assign(part), input_bytes=size)
        for task in grant.tasks if pick.of_runs else ():
            row = grant.activations[task.run_id].row
            if row.cancel_reason is not None:
                session.send_cancel(task.run_id, row.cancel_reason, row.cancel_grace_ms)
