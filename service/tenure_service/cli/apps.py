"""Finds the app that `module:name` means, and says what there is where it finds none."""

from __future__ import annotations

import contextlib
import importlib
import pathlib
import sys
import traceback
from importlib import machinery, util
from typing import TYPE_CHECKING, Final

from tenure_service.cli import exits

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from types import ModuleType

    from tenure import App

_NAMES_SHOWN: Final = 8


def split(spec: str) -> tuple[str, str]:
    """Splits `pkg.module:app` into the module's and the app's name.

    Raises:
        CommandFailed: the text has another form.
    """
    module, colon, name = spec.partition(":")
    parts = [*module.split("."), *name.split(".")]
    if not colon or not all(part.isidentifier() for part in parts):
        raise exits.CommandFailed(
            f"{spec!r} does not name an app: say MODULE:NAME, such as app:app for the variable"
            " `app` in app.py",
            exits.USAGE,
        )
    return module, name


def check_exists(spec: str) -> None:
    """Finds out whether there is a module of an app, without running any of it.

    Raises:
        CommandFailed: there is none.
    """
    module, _ = split(spec)
    parts = module.split(".")
    search: Sequence[str] | None = [str(pathlib.Path.cwd()), *sys.path]
    for depth in range(1, len(parts) + 1):
        name = ".".join(parts[:depth])
        try:
            found = machinery.PathFinder.find_spec(name, search)
            if found is None and depth == 1:
                found = util.find_spec(name)  # built in, or installed from elsewhere
        except (ImportError, KeyError, ValueError):
            return  # folders without __init__ below each other: the import will tell
        if found is None:
            raise _absent(name)
        search = found.submodule_search_locations or []


def load(spec: str) -> App:
    """Imports a module, the current directory first, and returns the app in it.

    Raises:
        CommandFailed: no such module, it cannot be imported, or no such app is in it.
    """
    import tenure

    module_name, name = split(spec)
    here = str(pathlib.Path.cwd())
    if here not in sys.path:
        sys.path.insert(0, here)
    module = _imported(module_name)
    value: object = module
    for part in name.split("."):
        value = getattr(value, part, None)
    if isinstance(value, tenure.App):
        return value
    problem = (
        f"{module_name} has no name {name!r}"
        if value is None
        else f"{spec} is of type {type(value).__name__}, not an App"
    )
    apps = [each for each, found in vars(module).items() if isinstance(found, tenure.App)]
    if apps:
        advice = f"It has {', '.join(f'`{module_name}:{each}`' for each in apps)}."
    else:
        public = [each for each in vars(module) if not each.startswith("_")]
        advice = (
            f"It has no App at all, but {', '.join(public[:_NAMES_SHOWN]) or 'nothing'}."
            ' Add `app = tenure.App("name")`.'
        )
    raise exits.CommandFailed(f"{problem}.\n{advice}", exits.USAGE)


def _imported(name: str) -> ModuleType:
    try:
        return importlib.import_module(name)
    except ModuleNotFoundError as exc:
        if exc.name is None or not f"{name}.".startswith(f"{exc.name}."):
            raise _broken(name, exc) from exc
        raise _absent(exc.name) from exc
    except KeyboardInterrupt:
        raise
    except BaseException as exc:
        raise _broken(name, exc) from exc


def _absent(name: str) -> exits.CommandFailed:
    here = pathlib.Path.cwd()
    found = sorted(path.stem for path in here.glob("*.py"))
    found += sorted(path.parent.name for path in here.glob("*/__init__.py"))
    listed = ", ".join(found[:_NAMES_SHOWN]) or "no module"
    return exits.CommandFailed(
        f"there is no module {name!r}, here or among the installed ones.\n"
        f"{here} has {listed}; run the command in the folder that holds your package.",
        exits.USAGE,
    )


def _broken(name: str, exc: BaseException) -> exits.CommandFailed:
    """Shows the user's part of a traceback: not that of the import system or of this module."""
    shown = traceback.TracebackException.from_exception(exc)
    for each in _chain(shown):
        each.stack = traceback.StackSummary.from_list(
            [
                frame
                for frame in each.stack
                if not frame.filename.startswith("<frozen")
                and frame.filename != __file__
                and not frame.filename.endswith("importlib/__init__.py")
            ]
        )
    text = "".join(shown.format()).rstrip()
    return exits.CommandFailed(f"{name} cannot be imported:\n{text}", exits.USAGE)


def _chain(shown: traceback.TracebackException | None) -> Iterator[traceback.TracebackException]:
    with contextlib.suppress(AttributeError):
        while shown is not None:
            yield shown
            shown = shown.__cause__ or shown.__context__
