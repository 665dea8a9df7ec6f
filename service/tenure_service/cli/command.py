"""Runs one command line: parses, calls the command's module, reports what went wrong."""

from __future__ import annotations

import errno
import importlib
import os
import sys
from typing import TYPE_CHECKING, Final

from tenure_service.cli import exits, parser

if TYPE_CHECKING:
    from collections.abc import Sequence

# What to install when a module is missing, by the module's top-level name.
_EXTRAS: Final = {
    "grpc_health": "server",
    "grpc_reflection": "server",
    "opentelemetry": "server",
    "psycopg": "server",
    "psycopg_pool": "server",
    "structlog": "server",
}
# A disk or quota that is full, a device that failed: nothing that a traceback would explain.
_UNWRITABLE: Final = frozenset({errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EIO})


def run(arguments: Sequence[str]) -> int:
    """Runs a command line, without the program's name, and returns its exit code."""
    code = _run(arguments)
    lost = _flush()
    return code if lost is None or code else _unwritten(lost)


def _run(arguments: Sequence[str]) -> int:
    try:
        return _call(arguments)
    except exits.CommandFailed as exc:
        _complain(str(exc))
        return exc.code
    except KeyboardInterrupt:
        _complain("interrupted")
        return exits.INTERRUPTED
    except BrokenPipeError:
        # The reader of a pipe has had enough.
        return exits.FAILED
    except OSError as exc:
        if exc.errno not in _UNWRITABLE:
            raise
        return _unwritten(exc)
    except ModuleNotFoundError as exc:
        extra = _EXTRAS.get((exc.name or "").partition(".")[0])
        if extra is None:
            raise
        _complain(f"{exc.name} is not installed: pip install 'tenure[{extra}]'")
        return exits.FAILED


def _flush() -> OSError | None:
    """Writes out what is left; what cannot be written must not be tried again at the exit."""
    try:
        sys.stdout.flush()
    except OSError as exc:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return exc
    return None


def _unwritten(exc: OSError) -> int:
    if not isinstance(exc, BrokenPipeError):
        _complain(f"the output cannot be written: {exc.strerror}")
    return exits.FAILED


def _call(arguments: Sequence[str]) -> int:
    try:
        values = parser.parse(arguments)
    except SystemExit as exc:  # after help, or what is wrong with the usage
        return int(exc.code or exits.OK)
    module, _, function = values.call.partition(":")
    call = getattr(importlib.import_module(f"tenure_service.cli.{module}"), function)
    code: int | None = call(values)
    return code or exits.OK


def _complain(text: str) -> None:
    from tenure_service.cli import show

    show.note(f"tenure: {text}")
