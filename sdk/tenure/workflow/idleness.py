"""Whether the branch of an asyncio task waits for nothing but other branches and parked verbs.

Only then may its function leave memory: a branch that awaits a socket, a timer of its own or a
thread would lose that. What is not known for certain counts as such.
"""

from __future__ import annotations

import asyncio
import types
from typing import TYPE_CHECKING, Any

from tenure.workflow import flow
from tenure.workflow.branches import running

if TYPE_CHECKING:
    from collections.abc import Mapping

    from tenure.workflow.branches import Branch, Branches, Owner
    from tenure.workflow.parking import Wait

# Waits that only another branch ends: what they stand in is shared by branches of one function.
_SHARED: frozenset[types.CodeType] = frozenset(
    function.__code__
    for function in (
        asyncio.Condition.wait,
        asyncio.Event.wait,
        asyncio.Lock.acquire,
        asyncio.Queue.get,
        asyncio.Queue.join,
        asyncio.Queue.put,
        asyncio.Semaphore.acquire,
    )
)
_GROUP_END: types.CodeType = asyncio.TaskGroup.__aexit__.__code__
_WAIT: types.CodeType = asyncio.tasks._wait.__code__  # type: ignore[attr-defined] # noqa: SLF001 - what asyncio.wait ends in


def waiter_of(task: asyncio.Task[Any]) -> asyncio.Future[Any] | None:
    """Returns the future that a task awaits and that is not over; None: it is about to run."""
    future: asyncio.Future[Any] | None = getattr(task, "_fut_waiter", None)
    return future if future is not None and not future.done() else None


def is_idle(
    task: asyncio.Task[Any],
    parked: Mapping[Owner, Wait],
    branches: Mapping[asyncio.Task[Any], Branch],
) -> bool:
    """Says whether a branch waits for nothing but other branches, or for what it is parked for."""
    future = waiter_of(task)
    if future is None:
        return False
    if task in parked:
        return True
    if isinstance(future, asyncio.Task):
        return future in branches
    gathered = getattr(future, "_children", None)
    if isinstance(gathered, list):
        return all(child.done() or child in branches for child in gathered)
    frame = _innermost(task)
    if frame is None:
        return False
    if frame.f_code is _GROUP_END or frame.f_code in _SHARED:
        return True
    if frame.f_code is _WAIT:
        awaited = frame.f_locals
        return awaited.get("timeout") is None and all(
            child.done() or child in branches for child in awaited.get("fs", ())
        )
    return False


def has_timers(loop: asyncio.AbstractEventLoop, branches: Branches) -> bool:
    """Says whether the function has timers of its own, such as those of asyncio.timeout."""
    for handle in getattr(loop, "_scheduled", ()):
        if not handle.cancelled() and handle._context.get(running) is branches:  # noqa: SLF001 - whose timer it is
            return True
    return False


def unwind(
    task: asyncio.Task[Any],
    branches: Mapping[asyncio.Task[Any], Branch],
    exc: flow.Suspended,
    *,
    force: bool,
) -> bool:
    """Makes a branch raise that does not wait in a verb; False: another branch does it.

    Args:
        task: The branch.
        branches: All of them.
        exc: What it is to raise.
        force: True if it may wait for anything: then it is cancelled.
    """
    future = waiter_of(task)
    if isinstance(future, asyncio.Task) and future in branches:
        return False
    frame = _innermost(task)
    if future is not None and frame is not None and frame.f_code is _GROUP_END:
        return False
    is_shared = isinstance(getattr(future, "_children", None), list) or (
        frame is not None and (frame.f_code in _SHARED or frame.f_code is _WAIT)
    )
    if future is not None and is_shared:
        flow.interrupt(future, exc)
        return True
    if force:
        task.cancel()
    return False


def outer_line(task: asyncio.Task[Any]) -> str:
    """Returns the line at which the function of a branch waits."""
    frame = getattr(task.get_coro(), "cr_frame", None)
    if not isinstance(frame, types.FrameType):
        return "an unknown line"
    return flow.place(frame, frame.f_lineno)


def _innermost(task: asyncio.Task[Any]) -> types.FrameType | None:
    """Returns the frame in which a task waits, as far as coroutines can be followed."""
    waiting: Any = task.get_coro()
    frame: types.FrameType | None = None
    while True:
        found = getattr(waiting, "cr_frame", None) or getattr(waiting, "gi_frame", None)
        if not isinstance(found, types.FrameType):
            break
        frame = found
        waiting = getattr(waiting, "cr_await", None) or getattr(waiting, "gi_yieldfrom", None)
    is_future = hasattr(waiting, "__next__") and type(waiting).__name__ == "FutureIter"
    return frame if is_future else None
