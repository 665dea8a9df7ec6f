"""`ctx.map`: one task or run for each of many items, as one wait.

The items are the steps of a branch of their own, by their order, so that what is started when plays
no part in their ids.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from tenure import check, errors
from tenure.v1 import run_pb2
from tenure.workflow import journal, verbs

if TYPE_CHECKING:
    from collections.abc import Iterable

    from tenure.workflow.branches import Branch, Owner
    from tenure.workflow.verbs import Child, Target, Verbs

# Items whose arguments are held at a time, on their way to the record.
_CHUNK_COUNT = 1_000


def start(
    own: Verbs, target: Target, items: Iterable[Any], limit: int | None, on_error: str
) -> Any:
    """Takes the place of a map; gives the coroutine that gives the results, in order.

    Raises:
        WrongType, WrongValue: an argument that cannot be followed.
    """
    verbs.kind_of(target)
    if limit is not None:
        check.whole(limit, "limit", 1, 1_000_000)
    check.choice(on_error, "on_error", ("raise", "collect"))
    parent = own.branches.current()
    return _Map(own, target, list(items), limit, parent, collect=on_error == "collect").run()


class _Map:
    """_Map is one call of `ctx.map`."""

    def __init__(
        self,
        own: Verbs,
        target: Target,
        items: list[Any],
        limit: int | None,
        parent: Branch,
        *,
        collect: bool,
    ) -> None:
        self._own = own
        self._target = target
        self._items = items
        self._limit = len(items) if limit is None else limit
        self._parent = parent
        self._branch = parent.child()
        self._collect = collect
        self._children: list[Child] = []
        # Items that are not over, by the id of their task or run.
        self._open: dict[str, int] = {}
        self._failed = False

    async def run(self) -> list[Any]:
        """Starts what may be started, and waits, until everything is over."""
        owner = self._own.branches.owner(self._parent)
        self._own.flow.check(owner)
        while True:
            await self._start(owner)
            if not self._open:
                break
            is_rest = self._is_started()
            needed_count = len(self._open) if is_rest else 1
            # Out of memory, one item more is not worth an activation: half of them are.
            asleep_count = len(self._open) if is_rest else (len(self._open) + 1) // 2
            await self._own.settled(owner)
            await self._own.parking.until_over(owner, self._open, needed_count, asleep_count)
            for child_id in list(self._open):
                if self._note(child_id):
                    del self._open[child_id]
        self._parent.saw(self._branch.latest_at)
        return self._results()

    def _is_started(self) -> bool:
        stopped = self._failed and not self._collect
        return stopped or len(self._children) == len(self._items)

    async def _start(self, owner: Owner) -> None:
        """Starts items in their order, as many as may be open at once.

        After a failure that will be raised no more are: which one is raised, the first by order,
        is the same on each replay, since all before it are started by then.
        """
        new: list[run_pb2.NewStep] = []
        while self._has_room(len(new)):
            kind = verbs.kind_of(self._target)
            place = self._own.take(self._branch, kind, self._target.name)
            self._own.enter(place)
            if place.recorded is None:
                item = self._items[len(self._children) + len(new)]
                new.append(verbs.new_step(place.step_id, self._target, (item,), {}))
            if new and (place.recorded is not None or len(new) == _CHUNK_COUNT):
                await self._record(owner, new)
            if place.recorded is not None:
                self._add(place.recorded)
        await self._record(owner, new)

    def _has_room(self, new_count: int) -> bool:
        started = len(self._children) + new_count == len(self._items)
        full = len(self._open) + new_count >= self._limit
        return not (started or full or self._is_started())

    async def _record(self, owner: Owner, new: list[run_pb2.NewStep]) -> None:
        if not new:
            return
        await self._own.frontier(owner)
        answers = [self._own.journal.record(step) for step in new]
        new.clear()
        for answer in answers:
            self._add(self._own.answered(owner, await self._own.flow.until(owner, answer)))

    def _add(self, step: run_pb2.Step) -> None:
        is_run = verbs.kind_of(self._target) == run_pb2.STEP_KIND_CHILD
        child = verbs.Child(target=self._target, child_id=step.child_id, is_run=is_run)
        self._open[step.child_id] = len(self._children)
        self._children.append(child)
        self._branch.saw(journal.instant(step.recorded_at))
        if self._note(step.child_id):
            del self._open[step.child_id]

    def _note(self, child_id: str) -> bool:
        outcome = self._own.journal.outcome(child_id)
        if outcome is None:
            return False
        self._branch.saw(verbs.ended_at(outcome))
        self._failed = self._failed or outcome.WhichOneof("outcome") == "failure"
        return True

    def _results(self) -> list[Any]:
        results: list[Any] = []
        for child in self._children:
            outcome = self._own.journal.outcome(child.child_id)
            if outcome is None:
                raise AssertionError("a map ends when all its items are over")
            try:
                results.append(self._own.read(child, outcome))
            except (errors.TaskNotCompleted, errors.RunNotCompleted) as exc:
                if not self._collect:
                    raise
                results.append(exc)
        return results
