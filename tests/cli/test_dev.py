"""`tenure new` and `tenure dev`: the first ten minutes, on a PostgreSQL of their own."""

import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

import tenure
from tenure_service.cli import apps
from tests.cli.command import Running, environment, processes, run, running
from tests.eventually import eventually
from tests.fix_db import _scratch


def _made_project() -> Path:
    """Makes a project where root's PostgreSQL, which is another account's, can reach it."""
    folder = Path(tempfile.mkdtemp(prefix="tenure-cli-", dir=_scratch()))
    folder.chmod(0o711)
    made = run("new", "hello", cwd=folder)
    assert made.code == 0, made.err
    return folder / "hello"


@pytest.fixture
def project() -> Iterator[Path]:
    """A new project of the test's own."""
    made = _made_project()
    yield made
    shutil.rmtree(made.parent)


@pytest.fixture(scope="module")
def dev() -> Iterator[tuple[Running, Path]]:
    """`tenure dev` of a project that the tests of this file share."""
    made = _made_project()
    with running("dev", "app:app", "--port", "0", "--ephemeral", cwd=made) as started:
        started.until("serves greet, flaky on queue default")
        yield started, made
    shutil.rmtree(made.parent)


def _address(started: Running) -> str:
    return started.word("server    ")


def test_dev__task_enqueued__prints_its_result(dev: tuple[Running, Path]) -> None:
    started, _ = dev
    words = ("task", "enqueue", "greet", "--input", '{"name": "Ada"}', "--wait", "20")
    done = run(*words, TENURE_ADDRESS=_address(started))
    assert done.code == 0, done.err
    assert done.out.splitlines()[1:] == ['"Hello, Ada!"']
    assert 'tenure task enqueue greet --input \'{"name": ' in started.text


def test_dev__task_that_fails_at_first__works_in_the_end(dev: tuple[Running, Path]) -> None:
    started, _ = dev
    words = ("task", "enqueue", "flaky", "--input", '{"fail_count": 1}', "--wait", "30", "--json")
    done = run(*words, "--address", _address(started))
    assert json.loads(done.out)["output"] == "worked at attempt 2"
    assert "failed, attempt 1 of" in started.text


def test_new__its_tests__pass(dev: tuple[Running, Path]) -> None:
    started, project = dev
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-p", "no:asyncio"],
        cwd=project,
        env=environment(TENURE_ADDRESS=_address(started)),
        capture_output=True,
        text=True,
        check=False,
    )
    assert "4 passed" in done.stdout, done.stdout + done.stderr


def test_new__folder_has_one_of_the_files__leaves_it_alone(tmp_path: Path) -> None:
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "app.py").write_text("mine")
    done = run("new", "mine", cwd=tmp_path)
    assert (done.code, done.out) == (3, "")
    assert "app.py already" in done.err
    assert [path.name for path in (tmp_path / "mine").iterdir()] == ["app.py"]


def test_dev__second_in_the_folder__says_who_holds_it(dev: tuple[Running, Path]) -> None:
    started, project = dev
    done = run("dev", "--port", "0", cwd=project)
    assert done.code == 3
    assert f"process {started.process.pid} " in done.err
    assert f"tenure worker MODULE:NAME --address {_address(started)}" in done.err


def test_dev__port_taken__names_the_way_out(dev: tuple[Running, Path], tmp_path: Path) -> None:
    started, _ = dev
    address = _address(started)
    done = run("dev", "--port", address.rpartition(":")[2], cwd=tmp_path)
    assert done.code == 3
    assert f"{address} is taken" in done.err
    assert "--port 0" in done.err
    assert not (tmp_path / ".tenure" / "dev.lock").exists()


def test_dev__task_nobody_registered__says_so_once(dev: tuple[Running, Path]) -> None:
    started, _ = dev
    for _ in range(2):
        assert run("task", "enqueue", "nobody", "--address", _address(started)).code == 0
    started.until("for a handler named 'nobody', and no worker has one")
    assert started.text.count("named 'nobody'") == 1


def test_dev__task_on_a_queue_nobody_serves__says_which_one_is_served(
    dev: tuple[Running, Path],
) -> None:
    started, _ = dev
    words = ("task", "enqueue", "greet", "--queue", "mial", "--address", _address(started))
    assert run(*words).code == 0
    started.until("on queue mial for a handler named 'greet', and no worker has one there")
    started.until("It is served on queue default: enqueue it with `--queue default`")


def test_dev__postgres_killed__starts_it_again(dev: tuple[Running, Path]) -> None:
    started, project = dev
    pid_file = project / ".tenure" / "ephemeral" / "data" / "postmaster.pid"
    os.kill(int(pid_file.read_text().split()[0]), signal.SIGKILL)
    started.until("PostgreSQL ended; starting it again")
    done = run("task", "enqueue", "greet", "--wait", "20", "--address", _address(started))
    assert '"Hello, world!"' in done.out, done.err + started.text
    assert "did not start" not in started.text


def test_dev__file_changes_then_ctrl_c__reloads_then_leaves_nothing(project: Path) -> None:
    app = project / "app.py"
    text = app.read_text()
    with running("dev", "app:app", "--port", "0", "--ephemeral", cwd=project) as started:
        started.until("worker    serves")
        app.write_text("def greet(:\n")
        started.until("waits until a file changes")
        assert "SyntaxError" in started.text
        assert not processes(f"--address {_address(started)}")
        app.write_text(text.replace("Hello", "Servus"))
        started.until("worker    serves", count=2)
        words = ("task", "enqueue", "greet", "--wait", "20", "--address", _address(started))
        assert '"Servus, world!"' in run(*words).out
        traces = (str(project), f"--address {_address(started)}")
        assert len(processes(*traces)) >= 2, "PostgreSQL and the worker"
        assert started.end() == 0
    assert not processes(*traces)
    assert not (project / ".tenure" / "dev.lock").exists()


@pytest.mark.parametrize("app", ["nomod:x", "app.nomod:x", "pack.nomod:x"])
def test_dev__module_that_does_not_exist__ends_before_anything_starts(
    tmp_path: Path, app: str
) -> None:
    (tmp_path / "app.py").write_text("raise SystemExit('it was run')\n")
    (tmp_path / "pack").mkdir()
    (tmp_path / "pack" / "__init__.py").write_text("raise SystemExit('it was run')\n")
    done = run("dev", app, "--port", "0", cwd=tmp_path)
    assert (done.code, done.out) == (2, "")
    assert f"there is no module {app.partition(':')[0]!r}" in done.err
    assert not (tmp_path / ".tenure").exists()


def test_check_exists__module_that_is_there__is_not_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "bad.py").write_text("def greet(:\n")
    (tmp_path / "space" / "deep").mkdir(parents=True)
    (tmp_path / "space" / "deep" / "bad.py").write_text("def greet(:\n")
    for app in ("bad:app", "space.deep.bad:app", "tenure.app:App", "sys:app"):
        apps.check_exists(app)


def test_dev__killed__goes_on_with_its_data(project: Path) -> None:
    words = ("task", "enqueue", "greet", "--wait", "20", "--address")
    with running("dev", "app:app", "--port", "0", cwd=project) as started:
        started.until("worker    serves")
        address = _address(started)
        task_id = run(*words, address).out.split()[0]
        started.end(signal.SIGKILL)
        assert eventually(lambda: not processes(f"--address {address}")), "the worker went on"
    with running("dev", "app:app", "--port", "0", cwd=project) as again:
        again.until("taken over")
        again.until("worker    serves")
        before = tenure.Client(_address(again)).get_task(task_id).task
        assert before.state is tenure.TaskState.COMPLETED
        assert '"Hello, world!"' in run(*words, _address(again)).out
        assert again.end(signal.SIGTERM) == 0
    assert not processes(str(project))
