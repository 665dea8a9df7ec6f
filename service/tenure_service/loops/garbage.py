"""Keeps Python's collector of cycles from holding the event loop up.

A full collection looks at every object there is. With 5,000 streams that took up to a second, in
which nothing was served, and one came every few seconds, since each call counts towards the next.
The server's paths leave no cycles behind, but failures do. So all is looked through once the process
has grown a good deal, by number of objects or by memory, and else every few minutes.
"""

import asyncio
import contextlib
import gc
import logging
import os
import sys
import time
from pathlib import Path
from typing import Final, NamedTuple

_log = logging.getLogger(__name__)

_PAUSE_SECONDS: Final = 2.0
_SECONDS_MAX: Final = 300.0
_STATM: Final = Path("/proc/self/statm")


class Size(NamedTuple):
    """How large a process is."""

    #: Of Python's allocator, which small objects come from.
    block_count: int
    #: Resident memory; 0 where it cannot be told.
    memory_bytes: int

    @classmethod
    def now(cls) -> "Size":
        """Measures this process."""
        pages = 0
        with contextlib.suppress(OSError):
            pages = int(_STATM.read_text().split()[1])
        return cls(sys.getallocatedblocks(), pages * os.sysconf("SC_PAGE_SIZE"))

    def has_outgrown(self, before: "Size") -> bool:
        """Says whether a process is by half and some 50 MB larger than it was."""
        return (
            self.block_count > before.block_count * 1.5 + 500_000
            or self.memory_bytes > before.memory_bytes * 1.5 + 50 * 1024**2
        )


async def run(pause_seconds: float = _PAUSE_SECONDS) -> None:
    """Collects when it is worth it, until it is cancelled; then the collector is as it was.

    Args:
        pause_seconds: How often the process is measured.
    """
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        before, at = _look_through(), time.monotonic()
        while True:
            await asyncio.sleep(pause_seconds)
            if Size.now().has_outgrown(before) or time.monotonic() > at + _SECONDS_MAX:
                before, at = _look_through(), time.monotonic()
    finally:
        if was_enabled:
            gc.enable()


def _look_through() -> Size:
    began = time.perf_counter()
    found_count = gc.collect()
    seconds = time.perf_counter() - began
    _log.debug("looked through all objects in %.3f s: %d were garbage", seconds, found_count)
    return Size.now()
