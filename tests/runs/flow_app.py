"""An app for worker processes that die: it notes in a file what it does."""

import os
import signal
import sys
from pathlib import Path

from tenure import App, Context, SyncContext, Worker

app = App("flows")

# What dies of kill -9 has no memory: the file is what the world sees.
NOTES = Path(os.environ.get("FLOW_NOTES", os.devnull))
DIES_AT = os.environ.get("FLOW_DIES_AT", "")


def note(what: str) -> str:
    """Writes a line, and kills its own process where it is to."""
    with NOTES.open("a") as file:
        file.write(f"{what}\n")
    if what == DIES_AT:
        os.kill(os.getpid(), signal.SIGKILL)
    return what.upper()


@app.task
def work(name: str) -> str:
    """Is done by a task."""
    return note(name)


@app.workflow
async def steps(ctx: Context) -> list[str]:
    """Does three things, of which a task is one."""
    return [
        await ctx.step(note, "first"),
        await ctx.step(note, "second"),
        await ctx.task(work, "third"),
        await ctx.step(note, "fourth"),
    ]


@app.workflow
def plain(ctx: SyncContext) -> list[str]:
    """Does the same, in a thread."""
    return [
        ctx.step(note, "first"),
        ctx.step(note, "second"),
        ctx.task(work, "third"),
        ctx.step(note, "fourth"),
    ]


if __name__ == "__main__":
    Worker(app, name=sys.argv[1]).run()
