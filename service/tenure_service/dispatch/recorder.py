"""Steps of activations: batched, recorded, and what they start is woken."""

from collections.abc import Awaitable, Callable, Sequence

from tenure_service.dispatch.batcher import Batcher
from tenure_service.dispatch.memory import Memory
from tenure_service.engine.errors import FieldInvalid, TenureError
from tenure_service.store.database import Database, DataRefused
from tenure_service.usecase import enqueue, steps
from tenure_service.usecase.catalogue import Catalogue
from tenure_service.usecase.steps import Answer, Call, Recorded


class Recorder:
    """Records the steps of all activations that one server serves."""

    def __init__(
        self,
        database: Database,
        catalogue: Catalogue,
        memory: Memory,
        *,
        started: Callable[[Sequence[enqueue.Answer]], Awaitable[None]],
    ) -> None:
        """Prepares a recorder.

        Args:
            database: Where steps are recorded.
            catalogue: For lanes and policies.
            memory: What steps are counted in until they are written.
            started: Called with the tasks and runs that steps have started.
        """
        self._database = database
        self._catalogue = catalogue
        self._memory = memory
        self._started = started
        self._counts = steps.Counts()
        # One thread: two messages of one activation are recorded in their order.
        self._batcher: Batcher[Call, list[Answer] | TenureError] = Batcher("steps", self._flush)

    async def record(self, call: Call, size: int) -> list[Answer]:
        """Records the steps of one message; gives what became of each, in order.

        Raises:
            TenureError: for the whole message: LEASE_LOST, OVERLOADED, DATABASE_UNAVAILABLE.
        """
        # Who starts something is asked to wait as producers are; what was done is taken like results.
        starts = any(step.starts for step in call.steps)
        hold = self._memory.inputs if starts else self._memory.results
        try:
            with hold(size):
                answers = await self._batcher.submit(
                    call.claim.namespace_id, call, count=len(call.steps), size=size
                )
        except DataRefused as exc:
            raise _unstorable(exc) from exc
        if isinstance(answers, TenureError):
            raise answers
        started = [
            enqueue.Enqueued(
                answer.view.row.child_id or "",
                lane_id=answer.lane_id,
                priority=answer.priority,
                delay_ms=answer.delay_ms,
            )
            for answer in answers
            if isinstance(answer, Recorded) and answer.lane_id is not None
        ]
        if started:
            await self._started(started)
        return answers

    def _flush(self, calls: Sequence[Call]) -> list[list[Answer] | TenureError]:
        try:
            return self._record(calls)
        except DataRefused:
            if len(calls) > 1 or len(calls[0].steps) == 1:
                raise
            # One step of this activation cannot be stored; its mates are unaffected (INV-14).
            return [self._record_each(calls[0])]

    def _record_each(self, call: Call) -> list[Answer] | TenureError:
        answers: list[Answer] = []
        for step in call.steps:
            try:
                (answer,) = self._record([Call(claim=call.claim, steps=[step])])
            except DataRefused as exc:
                answers.append(_unstorable(exc))
                continue
            if isinstance(answer, TenureError):
                return answer
            answers += answer
        return answers

    def _record(self, calls: Sequence[Call]) -> list[list[Answer] | TenureError]:
        return steps.record(self._database, self._catalogue, self._counts, calls)

    @property
    def waiting_count(self) -> int:
        """Steps that wait for a batch."""
        return self._batcher.waiting_count

    async def drain(self) -> None:
        """Waits until everything that was handed in is recorded."""
        await self._batcher.drain()

    def close(self) -> None:
        """Ends the thread."""
        self._batcher.close()


def _unstorable(exc: DataRefused) -> TenureError:
    return FieldInvalid([("step", f"holds what PostgreSQL cannot store ({exc})")])
