"""Waits for many tasks: python -m bench.waits ADDRESS KIND, with task ids on standard input.

KIND is `calls`, one AwaitTasks call a task over a few channels, or `sdk`, one handle a task of one
client. Prints `ready` when all wait, then a line a task: its id, and when it was told to be over.
"""

import asyncio
import sys
import time

from bench.calls import NAME, Calls
from tenure import App, SyncTask

_CHANNELS = 8
_WAIT_SECONDS = 60


def _tell(task_id: str) -> None:
    print(f"{task_id} {time.time()}", flush=True)


async def _call(calls: Calls, task_id: str) -> None:
    while not await calls.over([task_id], _WAIT_SECONDS):
        pass
    _tell(task_id)


async def _handle(task: SyncTask[[], None], task_id: str) -> None:
    await task.handle(task_id).aresult()
    _tell(task_id)


def _task(address: str) -> SyncTask[[], None]:
    app = App("bench", address=address)

    @app.task(name=NAME)
    def crowd() -> None:
        """Is run by somebody else."""

    return crowd


async def main() -> None:
    """Waits for all, each on its own."""
    address, kind = sys.argv[1:]
    ids = sys.stdin.read().split()
    if kind == "calls":
        channels = [Calls(address) for _ in range(_CHANNELS)]
        waits = [_call(channels[number % _CHANNELS], one) for number, one in enumerate(ids)]
    else:
        task = _task(address)
        waits = [_handle(task, one) for one in ids]
    waiting = [asyncio.create_task(one) for one in waits]
    await asyncio.sleep(0)
    print("ready", flush=True)
    # One that fails is missing in the figures, and ends nobody else's wait.
    await asyncio.gather(*waiting, return_exceptions=True)


if __name__ == "__main__":
    asyncio.run(main())
