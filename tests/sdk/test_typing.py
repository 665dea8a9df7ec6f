"""Type checkers accept right calls and refuse wrong ones."""

import json
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent.parent
NAMES = ("wrong_calls", "wrong_flows")


@pytest.fixture(params=NAMES)
def module(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    path = tmp_path / f"{request.param}.py"
    path.write_text(Path(__file__).with_name(f"{request.param}.txt").read_text())
    return path


def expected(module: Path) -> set[int]:
    lines = module.read_text().splitlines()
    return {number for number, line in enumerate(lines, 1) if line.endswith("  # wrong")}


def test_mypy__wrong_calls__are_refused_and_no_others(module: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "mypy", "--config-file", str(ROOT / "pyproject.toml"), str(module)],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
        timeout=300,
    )
    found = re.findall(rf"{module.name}:(\d+): error:", done.stdout)
    assert {int(number) for number in found} == expected(module), done.stdout


def test_basedpyright__wrong_calls__are_refused_and_no_others(module: Path) -> None:
    settings = {
        "include": [str(module)],
        "extraPaths": [str(ROOT / "sdk")],
        "pythonVersion": "3.11",
        "typeCheckingMode": "standard",
        "reportMissingModuleSource": False,
    }
    config = module.with_name("pyrightconfig.json")
    config.write_text(json.dumps(settings))
    checker = Path(sys.executable).with_name("basedpyright")
    done = subprocess.run(
        [checker, "--outputjson", "--pythonpath", sys.executable, "--project", str(config)],
        capture_output=True,
        text=True,
        check=False,
        timeout=300,
    )
    diagnostics = json.loads(done.stdout)["generalDiagnostics"]
    found = {
        each["range"]["start"]["line"] + 1 for each in diagnostics if each["severity"] == "error"
    }
    assert found == expected(module), diagnostics
