"""Which handlers run in processes of their own, and how such a process finds them.

The process imports the app anew, as `tenure worker pkg.module:app` does: nothing of the worker's
memory goes there. So the app must be a variable of a module, and importing that module and the
handlers' own must declare the same tasks.
"""

from __future__ import annotations

import dataclasses
import json
import logging
import os
import sys
from typing import TYPE_CHECKING, Any, Literal, TypeAlias

from tenure import check, errors

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from tenure.app import App
    from tenure.task import Declaration

Mode: TypeAlias = Literal["thread", "process"]
MODES = ("thread", "process")
_MAIN = "__main__"

# True in a handler's process: a worker started by importing the app would start processes without
# end.
inside = False


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Boot:
    """Boot is what a new process is told first.

    Attributes:
        app: `module:name` of the app.
        modules: Modules of the handlers.
        tasks: Names of the tasks that it must find.
        arguments: `sys.argv` of the worker.
        log_level: Level of the worker's root logger.
        worker: Name of the worker.
    """

    app: str
    modules: tuple[str, ...]
    tasks: tuple[str, ...]
    arguments: tuple[str, ...]
    log_level: int
    worker: str

    def to_json(self) -> bytes:
        """Returns it as it crosses the pipe."""
        return json.dumps(dataclasses.asdict(self)).encode()

    @classmethod
    def from_json(cls, data: bytes) -> Boot:
        """Reads it from the pipe."""
        said: dict[str, Any] = json.loads(data)
        return cls(
            app=said["app"],
            modules=tuple(said["modules"]),
            tasks=tuple(said["tasks"]),
            arguments=tuple(said["arguments"]),
            log_level=said["log_level"],
            worker=said["worker"],
        )


def check_mode(mode: object) -> None:
    """Checks what `mode=` was given; None is left to the next source."""
    if mode is not None:
        check.choice(mode, "mode", MODES)
    if mode == "process" and os.name != "posix":
        raise errors.WrongValue("mode='process' needs Linux, macOS or another POSIX system")


def check_importable(function: Callable[..., Any], task_name: str) -> None:
    """Refuses a handler that a new process could not import.

    Raises:
        HandlerRefused: it is of `__main__`, nested, or no function of a module.
    """
    module = getattr(function, "__module__", None)
    qualified = getattr(function, "__qualname__", None)
    if module is None or qualified is None:
        problem = "it is no function of a module"
    elif module == _MAIN:
        problem = "it is defined in the program itself (`__main__`), which is not imported again"
    elif "<lambda>" in qualified:
        problem = "it is a lambda"
    elif "<locals>" in qualified:
        problem = f"it is defined inside another function ({qualified})"
    else:
        return
    raise errors.HandlerRefused(
        f"task {task_name!r} cannot run with mode='process': {problem};"
        " define it with `def` at the top of a module that can be imported"
    )


def boot(app: App, declarations: Iterable[Declaration], worker: str) -> Boot:
    """Returns how a new process finds the handlers of an app.

    Raises:
        HandlerRefused: it could not.
    """
    found = list(declarations)
    for declaration in found:
        check_importable(declaration.function, declaration.name)
    modules = tuple(dict.fromkeys(declaration.function.__module__ for declaration in found))
    return Boot(
        app=_reference(app, modules),
        modules=modules,
        tasks=tuple(declaration.name for declaration in found),
        arguments=tuple(sys.argv),
        log_level=logging.getLogger().getEffectiveLevel(),
        worker=worker,
    )


def _reference(app: App, likely: tuple[str, ...]) -> str:
    for name in (*likely, *sys.modules):
        module = sys.modules.get(name)
        if module is None or name == _MAIN:
            continue
        for variable, value in list(getattr(module, "__dict__", {}).items()):
            if value is app:
                return f"{name}:{variable}"
    raise errors.HandlerRefused(
        f"the app {app.name!r} cannot run handlers with mode='process': no imported module has it"
        " as a variable, so that a new process could not find it; write `app = App(...)` at the"
        " top of a module and start the worker with `tenure worker module:app`, or import it"
    )
