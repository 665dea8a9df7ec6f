"""Handlers of the measurements, on an app for one address."""

import time
from typing import NamedTuple

from tenure import App, SyncTask


class Bench(NamedTuple):
    """An app and its tasks."""

    app: App
    noop: SyncTask[[int], None]
    nap: SyncTask[[float], None]


def make(address: str) -> Bench:
    """Makes the app of a server."""
    app = App("bench", address=address)

    @app.task
    def noop(number: int) -> None:
        """Does nothing."""

    @app.task
    def nap(seconds: float) -> None:
        """Takes its time."""
        time.sleep(seconds)

    return Bench(app, noop, nap)
