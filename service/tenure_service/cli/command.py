"""Runs one command line: parses, calls the command's module, reports what went wrong."""

from __future__ import annotations

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


def run(arguments: Sequence[str]) -> int:
    """Runs a command line, without the program's name, and returns its exit code."""
    try:
        code = _call(arguments)
        sys.stdout.flush()
    except exits.CommandFailed as exc:
        _complain(str(exc))
        return exc.code
    except KeyboardInterrupt:
        _complain("interrupted")
        return exits.INTERRUPTED
    except BrokenPipeError:
        # The reader of a pipe has had enough; what is left in the buffer must not be flushed there.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return exits.FAILED
    except ModuleNotFoundError as exc:
        extra = _EXTRAS.get((exc.name or "").partition(".")[0])
        if extra is None:
            raise
        _complain(f"{exc.name} is not installed: pip install 'tenure[{extra}]'")
        return exits.FAILED
    return code


def _call(arguments: Sequence[str]) -> int:
    values = parser.parse(arguments)
    module, _, function = values.call.partition(":")
    call = getattr(importlib.import_module(f"tenure_service.cli.{module}"), function)
    code: int | None = call(values)
    return code or exits.OK


def _complain(text: str) -> None:
    from tenure_service.cli import show

    show.note(f"tenure: {text}")
