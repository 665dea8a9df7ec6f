"""Whether a workflow function goes on, is to be cancelled, or is being unwound.

Unwinding is how a function leaves memory before its end: each verb that waits raises `Suspended`,
so does each that is called from then on, and nothing more is recorded. What the function returns or
raises after that does not count; that it swallowed a `Suspended` does.
"""

from __future__ import annotations

import asyncio
import enum
import sys
from typing import TYPE_CHECKING, Any, TypeVar

from tenure import context

if TYPE_CHECKING:
    from types import FrameType

    from tenure.workflow.branches import Owner

T = TypeVar("T")


class Suspended(context.ControlFlow):
    """The function leaves memory: let it pass; `finally` may free local things.

    `except Exception` lets it pass. It is raised again by every verb until the function has ended.
    """


class Unwinding(enum.Enum):
    """Unwinding says why a function leaves memory; a later reason goes before an earlier one."""

    OVER = 0
    """The function itself has ended, and branches of it have not."""
    SUSPENDED = 1
    """It waits for long."""
    BLOCKED = 2
    """Its code does not fit the record."""
    RELEASED = 3
    """The worker stops, or cannot record."""
    DROPPED = 4
    """The lease is gone."""


_TEXTS = {
    Unwinding.OVER: "the workflow has ended",
    Unwinding.SUSPENDED: "the workflow waits, and leaves memory until it goes on",
    Unwinding.BLOCKED: "the workflow's code does not fit what is recorded",
    Unwinding.RELEASED: "the worker gives the workflow back",
    Unwinding.DROPPED: "the worker has lost the workflow",
}


class Flow:
    """Flow is what every verb asks before it goes on.

    Attributes:
        unwinding: Why the function is being unwound; None: it is not.
        cancel_reason: Why the run is to be cancelled; None: it is not.
        raised: The first Suspended that each branch was given.
    """

    def __init__(self) -> None:
        self.unwinding: Unwinding | None = None
        self.cancel_reason: str | None = None
        self.raised: dict[Owner, Suspended] = {}
        self._pending: dict[asyncio.Future[Any], Owner] = {}
        self._told: set[Owner] = set()

    def check(self, owner: Owner) -> None:
        """Raises Suspended while the function is being unwound."""
        if self.unwinding is not None:
            raise self.suspended(owner)

    def suspended(self, owner: Owner) -> Suspended:
        """Returns a Suspended for a branch."""
        reason = self.unwinding if self.unwinding is not None else Unwinding.OVER
        made = Suspended(_TEXTS[reason])
        self.raised.setdefault(owner, made)
        return made

    async def until(self, owner: Owner, future: asyncio.Future[T]) -> T:
        """Waits for a future that may be given up: it ends with Suspended then."""
        self.check(owner)
        self._pending[future] = owner
        try:
            return await future
        except asyncio.CancelledError:
            # A task group cancels the siblings of the branch that was unwound first.
            if self.unwinding is not None:
                raise self.suspended(owner) from None
            raise
        finally:
            self._pending.pop(future, None)

    def unwind(self, reason: Unwinding) -> bool:
        """Begins to unwind: the verbs that wait raise. Gives False if that had begun before."""
        if self.unwinding is not None:
            if self.unwinding.value < reason.value:
                self.unwinding = reason
            return False
        self.unwinding = reason
        for future, owner in list(self._pending.items()):
            if isinstance(future, asyncio.Task):
                future.cancel()
            else:
                interrupt(future, self.suspended(owner))
        return True

    def waiting(self) -> list[tuple[asyncio.Future[Any], Owner]]:
        """Returns what verbs wait for, and who does."""
        return list(self._pending.items())

    def tell(self, owner: Owner) -> context.CancelRequested | None:
        """Returns the request for cancellation that a thread is to raise, once."""
        if self.cancel_reason is None or owner in self._told:
            return None
        self._told.add(owner)
        return context.CancelRequested(self.cancel_reason or "the run is to be cancelled")


def interrupt(future: asyncio.Future[Any], exc: BaseException) -> None:
    """Ends a future by an exception that nobody has to fetch."""
    if not future.done():
        future.set_exception(exc)
        future.exception()


def line_of(exc: BaseException) -> str | None:
    """Returns where an exception got to: the line of the outermost frame that it passed."""
    tb = exc.__traceback__
    return place(tb.tb_frame, tb.tb_lineno) if tb is not None else None


def calling_line() -> str:
    """Returns the line of the program that called a verb."""
    frame: FrameType | None = sys._getframe(1)  # noqa: SLF001 - what inspect.stack would read files for
    while frame is not None and frame.f_globals.get("__name__", "").startswith("tenure."):
        frame = frame.f_back
    return place(frame, frame.f_lineno) if frame is not None else "an unknown line"


def place(frame: FrameType, line: int) -> str:
    """Returns a line of a program as people read it."""
    return f"{frame.f_code.co_filename}:{line}, in {frame.f_code.co_name}"
