"""`tenure worker`: runs the tasks and workflows of an app until a signal comes.

`tenure dev` runs it as a child and keeps the other end of `--parent-fd`: the end of that pipe is
the end of the parent, however it came about, and the worker stops.
"""

from __future__ import annotations

import collections
import logging
import os
import signal
import sys
import threading
from typing import TYPE_CHECKING, Final

from tenure_service.cli import apps, examples, exits
from tenure_service.telemetry import logs

if TYPE_CHECKING:
    import argparse

    from tenure import App

_log = logging.getLogger(__name__)

DEV_TIME_FORMAT: Final = "%H:%M:%S"
_LEVELS: Final = ("DEBUG", "INFO", "WARNING", "ERROR")
_FORMAT: Final = "TENURE_LOG_FORMAT"


def run(values: argparse.Namespace) -> None:
    """Runs the worker."""
    import tenure

    level = values.log_level.upper()
    if level not in _LEVELS:
        raise exits.CommandFailed(f"--log-level is one of {', '.join(_LEVELS)}", exits.USAGE)
    in_dev = values.parent_fd is not None
    form = logs.Form.TEXT if in_dev else _form(values.log_format)
    for name, value in (("ADDRESS", values.address), ("NAMESPACE", values.namespace)):
        if value is not None:
            os.environ[f"TENURE_{name}"] = value  # an app reads them at its first call
    if in_dev:
        stop_with_parent(values.parent_fd)
    app = apps.load(values.app)
    # After the import: an app that sets up logging itself has the last word.
    if in_dev:
        logs.configure(level, time_format=DEV_TIME_FORMAT, logger_names=False)
    else:
        logs.configure(level, form)
    if values.address is not None and app.target.address != values.address:
        _log.warning(
            "the app %r names its own server, %s; %s is not used",
            app.name,
            app.target.address,
            values.address,
        )
    try:
        worker = tenure.Worker(
            app,
            queues=values.queue,
            concurrency=values.concurrency,
            name=values.name,
            mode=values.mode,
        )
        if in_dev:
            _introduce(app, hint=values.hint)
        elif form == logs.Form.JSON:
            # Both outputs often go to one place, which then has objects only.
            _log.info("worker %s serves %s", worker.name, _served(app, values.queue))
        else:
            print(f"worker {worker.name} serves {_served(app, values.queue)}", flush=True)
        worker.run(grace=values.grace)
    except tenure.UsageError as exc:
        raise exits.CommandFailed(str(exc), exits.USAGE) from exc
    except tenure.ServiceError as exc:
        raise exits.CommandFailed(str(exc)) from exc


def _form(flag: str | None) -> logs.Form:
    """Reads what a line of the log looks like.

    Raises:
        CommandFailed: the variable says something else.
    """
    text = flag or os.environ.get(_FORMAT) or logs.Form.TEXT
    if text not in set(logs.Form):
        raise exits.CommandFailed(f"{_FORMAT} is text or json, not {text!r}", exits.USAGE)
    return logs.Form(text)


def _served(app: App, queues: list[str] | None) -> str:
    """Lists tasks and workflows by queue: `a, workflow b on queue default; c on queue mail`."""
    by_queue: dict[str, list[str]] = collections.defaultdict(list)
    for name, task in app.tasks.items():
        for queue in queues or [task.declaration.queue]:
            by_queue[queue].append(name)
    for name, workflow in app.workflows.items():
        for queue in queues or [workflow.declaration.queue]:
            by_queue[queue].append(f"workflow {name}")
    return "; ".join(f"{', '.join(names)} on queue {queue}" for queue, names in by_queue.items())


def _introduce(app: App, *, hint: bool) -> None:
    """Says on the terminal of `tenure dev` what is served, and what to type next."""
    print(f"  worker    serves {_served(app, None) or 'nothing'}", flush=True)
    if hint and (app.tasks or app.workflows):
        first = next(iter(app.tasks.values()), None) or next(iter(app.workflows.values()))
        command = examples.command(first, app.target.address)
        print(f"\n  Try in another terminal:\n    {command}\n", flush=True)


def stop_with_parent(parent_fd: int) -> None:
    """Stops this process when the other end of a pipe is gone, at the latest after some seconds."""

    def watch() -> None:
        os.read(parent_fd, 1)
        os.kill(os.getpid(), signal.SIGTERM)
        threading.Event().wait(5.0)
        sys.stderr.write("tenure: the process that started this one is gone; it ends now\n")
        os._exit(exits.FAILED)

    threading.Thread(target=watch, name="tenure-parent", daemon=True).start()
