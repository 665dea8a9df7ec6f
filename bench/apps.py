"""Handlers of the measurements."""

import time

from tenure import App

app = App("bench")


@app.task
def noop(number: int) -> None:
    """Does nothing."""


@app.task
def nap(seconds: float) -> None:
    """Takes its time."""
    time.sleep(seconds)
