"""The main job, on a part of its files, with a worker, the server and PostgreSQL killed midway."""

import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent


def demo(*arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "examples.demo.run", *arguments]
    return subprocess.run(
        command, cwd=ROOT, capture_output=True, text=True, timeout=240, check=False
    )


def test_demo__worker_server_and_postgres_killed__loses_and_doubles_nothing() -> None:
    done = demo("--files", "300", "--kill", "worker,server,postgres")
    assert done.returncode == 0, done.stdout + done.stderr
    files, faults, rate = done.stdout.splitlines()[-3:]
    assert files.startswith("300 files, ")
    assert files.endswith(": equal to a plain computation")
    assert faults == (
        "killed with SIGKILL: 1 worker, 1 server, 1 postgres; tasks lost 0, results doubled 0"
    )
    assert "files a second" in rate


def test_demo__unknown_thing_to_kill__is_refused() -> None:
    done = demo("--kill", "cat")
    assert done.returncode == 2
    assert "knows worker, server and postgres" in done.stderr
