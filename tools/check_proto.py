"""Checks proto/ with buf: format, lint, and that nothing breaks the wire against branch main."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent


def _base() -> str | None:
    """Returns the git reference whose protocol must keep working, None before there is one."""
    for reference in ("main", "origin/main"):
        found = subprocess.run(
            ["git", "cat-file", "-e", f"{reference}:buf.yaml"],  # noqa: S607 - the caller's git
            cwd=ROOT,
            check=False,
            capture_output=True,
        )
        if found.returncode == 0:
            return reference
    return None


def main() -> None:
    """Runs buf; exits 1 when any check fails."""
    buf = str(Path(sys.executable).parent / "buf")
    checks = [[buf, "format", "proto", "--diff", "--exit-code"], [buf, "lint"]]
    base = _base()
    if base is None:
        print("buf breaking: skipped, branch main has no protocol yet")
    else:
        kind = "branch" if base == "main" else "ref"
        checks.append([buf, "breaking", "--against", f".git#{kind}={base}"])
    failed = [check for check in checks if subprocess.run(check, cwd=ROOT, check=False).returncode]
    if failed:
        sys.exit("; ".join(f"buf {check[1]} failed" for check in failed))
    print(f"buf: {len(checks)} checks passed")


if __name__ == "__main__":
    main()
