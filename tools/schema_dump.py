"""Writes migrations/schema.sql, the golden dump of a migrated database; `--check` only compares.

The dump is normalised, so that it changes when the schema does and at no other time: no SET lines,
no comments of pg_dump, no owners, none of the partitions that servers create as time passes.
"""

from __future__ import annotations

import argparse
import difflib
import re
import subprocess
import sys
import tempfile
from pathlib import Path

from tenure_service.embedded import EmbeddedPostgres, binaries
from tenure_service.store import migrate

ROOT = Path(__file__).resolve().parent.parent
GOLDEN = ROOT / "migrations" / "schema.sql"
HEADER = "-- The schema after every migration; written by `make gen`, compared by `make check`.\n"
_NOISE = re.compile(r"--.*|SET .*|SELECT pg_catalog\.set_config.*|\\(un)?restrict .*")


def dump(dsn: str, schema: str = "tenure") -> str:
    """Returns the normalised dump of a migrated database."""
    command = [
        str(binaries.installed() / "bin" / "pg_dump"),
        "--schema-only",
        "--no-owner",
        "--no-privileges",
        f"--schema={schema}",
        # Partitions made at run time end in _p and the day on which they begin.
        f"--exclude-table={schema}.*_p[0-9][0-9][0-9][0-9][0-9][0-9][0-9][0-9]*",
        f"--dbname={dsn}",
    ]
    done = subprocess.run(command, check=False, capture_output=True, text=True)
    if done.returncode != 0:
        sys.exit(done.stderr)
    return f"{HEADER}\n{normalised(done.stdout)}"


def normalised(text: str) -> str:
    """Returns a dump without noise and with single blank lines."""
    kept = (line.rstrip() for line in text.splitlines() if not _NOISE.fullmatch(line.rstrip()))
    return re.sub(r"\n{2,}", "\n\n", "\n".join(kept)).strip() + "\n"


def difference(actual: str) -> str:
    """Returns a unified diff from the golden dump, "" when there is none."""
    golden = GOLDEN.read_text(encoding="utf-8") if GOLDEN.exists() else ""
    lines = difflib.unified_diff(
        golden.splitlines(), actual.splitlines(), "migrations/schema.sql", "migrated", lineterm=""
    )
    return "\n".join(lines)


def main() -> None:
    """Writes the dump, or with `--check` exits 1 when it differs from the file."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--check", action="store_true", help="compare, change nothing")
    check = parser.parse_args().check
    with tempfile.TemporaryDirectory() as scratch:
        server = EmbeddedPostgres.start(Path(scratch) / "postgres", durable=False)
        try:
            migrate.migrate(server.dsn())
            actual = dump(server.dsn())
        finally:
            server.remove()
    changed = difference(actual)
    if check and changed:
        sys.exit(f"{changed}\nmigrations/schema.sql is stale, run `make gen`")
    if changed:
        GOLDEN.write_text(actual, encoding="utf-8")
    print(f"migrations/schema.sql: {'written' if changed else 'fresh'}")


if __name__ == "__main__":
    main()
