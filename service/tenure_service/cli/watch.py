"""Which *.py files an app is made of, and whether one of them changed."""

from __future__ import annotations

import os
import sys
from importlib import machinery
from pathlib import Path
from typing import Final

# What is below these is not the app's own code.
_SKIPPED: Final = frozenset({"__pycache__", "node_modules", "site-packages", "venv"})
_FILE_COUNT_MAX: Final = 5_000

Snapshot = dict[str, tuple[int, int]]


def root(module: str) -> Path:
    """Returns the folder to watch for a module: its package, or the folder that a plain file is in.

    Nothing of the module is run.
    """
    top = module.partition(".")[0]
    spec = machinery.PathFinder.find_spec(top, [str(Path.cwd()), *sys.path])
    if spec is not None and spec.submodule_search_locations:
        return Path(next(iter(spec.submodule_search_locations)))
    if spec is not None and spec.origin is not None:
        return Path(spec.origin).parent
    return Path.cwd()  # it may be written yet


def snapshot(folder: Path) -> Snapshot:
    """Gives time and size of each *.py file below a folder, hidden and installed ones apart."""
    found: Snapshot = {}
    for directory, names, files in os.walk(folder):
        names[:] = [
            name
            for name in names
            if not name.startswith(".")
            and name not in _SKIPPED
            and not Path(directory, name, "pyvenv.cfg").exists()
        ]
        for name in files:
            if not name.endswith(".py"):
                continue
            path = os.path.join(directory, name)  # noqa: PTH118 - thousands of times a second
            try:
                facts = os.stat(path)  # noqa: PTH116 - the same
            except OSError:
                continue  # removed meanwhile
            found[path] = (facts.st_mtime_ns, facts.st_size)
        if len(found) > _FILE_COUNT_MAX:
            break
    return found


def changed(before: Snapshot, after: Snapshot) -> list[str]:
    """Returns the paths that are new, gone or different, in order."""
    return sorted(
        path for path in before.keys() | after.keys() if before.get(path) != after.get(path)
    )
