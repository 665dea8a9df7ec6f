"""`tenure new`: a folder for the first ten minutes."""

from __future__ import annotations

import re
from pathlib import Path
from typing import TYPE_CHECKING

from tenure_service.cli import exits, scaffold

if TYPE_CHECKING:
    import argparse


def run(values: argparse.Namespace) -> None:
    """Writes the files and says what to do next."""
    folder = Path(values.name)
    name = folder.resolve().name
    if folder.name in {"", ".."}:
        raise exits.CommandFailed(
            f"{values.name!r} names a folder that is there already: give a new one a name, such as"
            " hello",
            exits.USAGE,
        )
    if not re.fullmatch(r"[A-Za-z][A-Za-z0-9_.-]{0,99}", name):
        raise exits.CommandFailed(
            f"{name!r} is no name for an app: use letters, digits, - and _, such as hello",
            exits.USAGE,
        )
    try:
        _write(folder, name)
    except OSError as exc:
        raise exits.CommandFailed(f"{folder} cannot be made: {exc.strerror}") from exc
    print(
        f"Made {folder}/ with {', '.join(scaffold.FILES)}.\n\n"
        "Next:\n"
        f"  cd {folder}\n"
        "  tenure dev app:app"
    )


def _write(folder: Path, name: str) -> None:
    taken = [each for each in scaffold.FILES if (folder / each).exists()]
    if taken or (folder.exists() and not folder.is_dir()):
        what = f"has {', '.join(taken)}" if taken else "is a file"
        raise exits.CommandFailed(
            f"{folder} {what} already, and nothing is overwritten; choose another name",
            exits.CONFLICT,
        )
    folder.mkdir(parents=True, exist_ok=True)
    for each, text in scaffold.FILES.items():
        # "x": also a file that appeared meanwhile stays as it is.
        with (folder / each).open("x", encoding="utf-8") as file:
            file.write(text.replace("NAME", name))
