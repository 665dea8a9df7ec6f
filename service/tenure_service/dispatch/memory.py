"""How much of its users' data a server holds, and what it does before that is too much.

Counted are inputs that wait to be written, outputs that do, and inputs on their way to workers. The
nearer the limit, the dearer what stops, so that overload costs producers a pause before it costs a
worker anything, and never a lease:

    half          producers are refused, with a time after which to try again
    three parts   nothing more is handed out: what is out comes back and makes room
    all of it     streams are not read while they bring results; their leases are renewed for them
"""

import asyncio
import contextlib
from collections.abc import Callable, Iterator
from typing import Final

from tenure_service.engine.errors import Reason, TenureError
from tenure_service.engine.limits import OVERLOAD_PAUSE

_REFUSE_PARTS: Final = 0.5
_HAND_OUT_PARTS: Final = 0.75


class Memory:
    """The ledger of one server; used on its event loop."""

    def __init__(self, bytes_max: int) -> None:
        self._bytes_max = bytes_max
        self._held = 0
        #: Called when tasks can be handed out again.
        self.on_hand_out: Callable[[], None] = lambda: None
        self._room = asyncio.Event()
        self._room.set()

    @property
    def held_bytes(self) -> int:
        """What it holds."""
        return self._held

    @property
    def bytes_max(self) -> int:
        """The limit."""
        return self._bytes_max

    @property
    def hands_out(self) -> bool:
        """True while there is room for inputs on their way to workers."""
        return self._held < self._bytes_max * _HAND_OUT_PARTS

    @property
    def full(self) -> bool:
        """True while streams that bring results are to wait."""
        return self._held >= self._bytes_max

    @contextlib.contextmanager
    def inputs(self, size: int) -> Iterator[None]:
        """Holds what a producer brings.

        Raises:
            TenureError: OVERLOADED.
        """
        if self._held >= self._bytes_max * _REFUSE_PARTS:
            raise self._overloaded()
        with self._holding(size):
            yield

    @contextlib.contextmanager
    def results(self, size: int) -> Iterator[None]:
        """Holds what a worker brings that can wait, and is asked to.

        Raises:
            TenureError: OVERLOADED.
        """
        if self.full:
            raise self._overloaded()
        with self._holding(size):
            yield

    @contextlib.contextmanager
    def _holding(self, size: int) -> Iterator[None]:
        self.take(size)
        try:
            yield
        finally:
            self.give(size)

    def _overloaded(self) -> TenureError:
        return TenureError(
            Reason.OVERLOADED,
            f"the server holds {self._held} bytes of payloads that wait to be written or sent",
            retry_after=OVERLOAD_PAUSE,
        )

    def take(self, size: int) -> None:
        """Counts bytes that are held from now on."""
        self._held += size
        if self.full:
            self._room.clear()

    def give(self, size: int) -> None:
        """Counts bytes that are not held any more."""
        handed_out = self.hands_out
        self._held -= size
        if not self.full:
            self._room.set()
        if self.hands_out and not handed_out:
            self.on_hand_out()

    async def room(self) -> None:
        """Waits until results can be taken in."""
        await self._room.wait()
