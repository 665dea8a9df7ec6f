"""Where a verb of a workflow stands: ids that are the same on each replay, whatever the timing.

The function itself is the root branch. Each asyncio task that a branch creates, and each thread
that it starts with `ctx.thread`, is a branch of its own, numbered when it is created; the steps of a
branch are numbered when their verbs are called. Branch 2 of branch 1 has the steps "1.2.1", "1.2.2"
..., the function itself "1", "2" .... Branches and steps are counted apart, so that a task which a
library creates moves no step.

Only the asyncio task or thread of a branch may call verbs for it: in a callback, or in a thread of
somebody else, two calls have no order that a replay would repeat.
"""

from __future__ import annotations

import asyncio
import contextvars
import hashlib
import random
import threading
import uuid
from typing import TYPE_CHECKING, Any, TypeAlias, TypeVar

from tenure import errors

if TYPE_CHECKING:
    import datetime
    from collections.abc import Callable, Coroutine, Iterable

T = TypeVar("T")

# A path that is longer is cut to a digest: the server takes ids of at most 200 bytes.
_PATH_CHARS_MAX = 150

# Who calls a verb: the asyncio task of a branch, or the branch of a thread.
Owner: TypeAlias = "asyncio.Task[Any] | Branch"


class Branch:
    """Branch is one line of calls of a workflow function.

    Attributes:
        path: Numbers from the root, joined by dots; empty for the root.
        latest_at: When the latest step that it saw was recorded or over, by the database's clock.
        random: Random numbers, the same on each replay.
    """

    __slots__ = (
        "_branch_count",
        "_recorded",
        "_run_id",
        "_step_count",
        "latest_at",
        "path",
        "random",
    )

    def __init__(
        self,
        run_id: str,
        path: str,
        recorded: Callable[[str], Extent],
        latest_at: datetime.datetime,
    ) -> None:
        self.path = path
        self.latest_at = latest_at
        self.random = random.Random(f"{run_id}/{path}")  # noqa: S311 - repeatable on purpose
        self._run_id = run_id
        self._recorded = recorded
        self._step_count = 0
        self._branch_count = 0

    @property
    def next_id(self) -> str:
        """Id of the step to come."""
        return self._under(self._step_count + 1)

    @property
    def replaying(self) -> bool:
        """True while the record goes on behind the place of the branch."""
        step_count, branch_count = self._recorded(self.path)
        return self._step_count < step_count or self._branch_count < branch_count

    def take_id(self) -> str:
        """Returns the id of the next step."""
        self._step_count += 1
        return self._under(self._step_count)

    def child(self) -> Branch:
        """Makes the next branch of this one."""
        self._branch_count += 1
        path = self._under(self._branch_count)
        if len(path) > _PATH_CHARS_MAX:
            path = f"~{hashlib.sha256(path.encode()).hexdigest()[:40]}"
        return Branch(self._run_id, path, self._recorded, self.latest_at)

    def saw(self, *instants: datetime.datetime | None) -> None:
        """Takes note of when something was recorded or over."""
        for instant in instants:
            if instant is not None:
                self.latest_at = max(self.latest_at, instant)

    def uuid(self) -> uuid.UUID:
        """Returns the next random id, the same on each replay."""
        return uuid.UUID(int=self.random.getrandbits(128), version=4)

    def _under(self, number: int) -> str:
        return f"{self.path}.{number}" if self.path else str(number)


# Highest numbers of steps and of branches that are recorded under a path.
Extent: TypeAlias = tuple[int, int]


class Branches:
    """Branches is the branches of one activation that live now.

    Args:
        root: Branch of the function itself.
        ended: Called with how the asyncio task of a branch ended.
        threaded: True for a `def` workflow, whose branches are threads.
    """

    def __init__(
        self,
        root: Branch,
        ended: Callable[[Owner, Any, BaseException | None], None],
        *,
        threaded: bool,
    ) -> None:
        self.root = root
        self._threaded = threaded
        self.tasks: dict[asyncio.Task[Any], Branch] = {}
        self.threads: dict[int, Branch] = {}
        self._ended = ended

    def current(self) -> Branch:
        """Returns the branch that calls.

        Raises:
            BranchUnknown: the caller is no branch.
        """
        found = self.threads.get(threading.get_ident())
        if found is None:
            task = _current_task()
            found = self.tasks.get(task) if task is not None else None
        if found is None or running.get() is not self:
            raise errors.BranchUnknown(
                "the context of a workflow was used where its place in the order is not known:"
                " inside a step, in a callback, or in an asyncio task or thread that the workflow"
                " did not start; start tasks with asyncio.create_task, gather or TaskGroup inside"
                " the workflow, and threads with ctx.thread"
            )
        return found

    def owner(self, branch: Branch) -> Owner:
        """Returns who waits in a verb of a branch: its thread, or the asyncio task that awaits."""
        task = None if self._threaded else _current_task()
        return branch if task is None else task

    def create_task(
        self, coroutine: Coroutine[Any, Any, Any], branch: Branch, context: contextvars.Context
    ) -> asyncio.Task[Any]:
        """Starts a coroutine as a branch."""
        context.run(running.set, self)
        task = asyncio.Task(coroutine, context=context)
        self.adopt(task, branch)
        return task

    def create_step(self, coroutine: Coroutine[Any, Any, T]) -> asyncio.Task[T]:
        """Starts a coroutine that is no branch: what it does is not repeated on replay."""
        context = contextvars.copy_context()
        context.run(running.set, None)
        return asyncio.Task(coroutine, context=context)

    def adopt(self, task: asyncio.Task[Any], branch: Branch) -> None:
        """Makes an asyncio task a branch until it ends."""
        self.tasks[task] = branch
        task.add_done_callback(self._forget, context=contextvars.Context())

    def of_current_task(self) -> Branch | None:
        """Returns the branch whose asyncio task runs, if it is one."""
        task = _current_task()
        return self.tasks.get(task) if task is not None else None

    def _forget(self, task: asyncio.Task[Any]) -> None:
        self.tasks.pop(task, None)
        if task.cancelled():
            self._ended(task, None, asyncio.CancelledError())
            return
        # Asked without `exception()`, which would keep asyncio from telling of one nobody sees.
        raised: BaseException | None = task._exception  # noqa: SLF001 - the only way to look
        self._ended(task, None if raised is not None else task.result(), raised)


# Set while the code of a workflow runs; None inside its steps.
running: contextvars.ContextVar[Branches | None] = contextvars.ContextVar(
    "tenure_workflow", default=None
)


def refuse_direct_call(kind: str, name: str) -> None:
    """Refuses a task, step or workflow that is called as a function inside a workflow.

    Raises:
        NotCheckpointed: the caller is a workflow.
    """
    if running.get() is not None:
        raise errors.NotCheckpointed(kind, name)


class _Factory:
    """_Factory makes asyncio tasks, and those that a branch creates branches."""

    def __init__(self, before: Callable[..., asyncio.Task[Any]] | None) -> None:
        self._before = before

    def __call__(
        self, loop: asyncio.AbstractEventLoop, coroutine: Any, **options: Any
    ) -> asyncio.Task[Any]:
        branches = running.get()
        parent = branches.of_current_task() if branches is not None else None
        if branches is None or parent is None:
            return self._make(loop, coroutine, options)
        context: contextvars.Context | None = options.get("context")
        if context is None:
            context = options["context"] = contextvars.copy_context()
        if context.get(running) is not branches:
            context.run(running.set, branches)
        task = self._make(loop, coroutine, options)
        branches.adopt(task, parent.child())
        return task

    def _make(
        self, loop: asyncio.AbstractEventLoop, coroutine: Any, options: dict[str, Any]
    ) -> asyncio.Task[Any]:
        if self._before is not None:
            return self._before(loop, coroutine, **options)
        return asyncio.Task(coroutine, loop=loop, **options)


def watch(loop: asyncio.AbstractEventLoop) -> None:
    """Sees to it that asyncio tasks which a branch creates on the loop become branches."""
    before: Any = loop.get_task_factory()
    if not isinstance(before, _Factory):
        loop.set_task_factory(_Factory(before))


def extents(step_ids: Iterable[str]) -> dict[str, Extent]:
    """Returns the highest numbers of steps and of branches under each path of recorded steps."""
    found: dict[str, Extent] = {}
    for step_id in step_ids:
        path, _, last = step_id.rpartition(".")
        steps, branches = found.get(path, (0, 0))
        found[path] = (max(steps, _number(last)), branches)
        while path:
            above, _, last = path.rpartition(".")
            steps, branches = found.get(above, (0, 0))
            found[above] = (steps, max(branches, _number(last)))
            path = above
    return found


def _number(text: str) -> int:
    return int(text) if text.isdecimal() else 0


def _current_task() -> asyncio.Task[Any] | None:
    try:
        return asyncio.current_task()
    except RuntimeError:
        return None
