"""Values of options that nobody means, and texts of callers that a terminal would obey."""

import json
import subprocess
from pathlib import Path
from typing import Any

import pytest

import tenure
from tenure_service.cli import exits, parser, show
from tests.cli.command import TENURE, environment, run, run_here
from tests.fix_server import RunningServer

#: Clears the screen, sets the title, and a one-byte form of the same.
HOSTILE = "\x1b[2J\x1b]0;owned\x07\x9b31m"


def _parsed_refusal(capsys: pytest.CaptureFixture[str], *words: str) -> str:
    with pytest.raises(SystemExit) as caught:
        parser.parse(words)
    assert caught.value.code == exits.USAGE
    return capsys.readouterr().err


@pytest.mark.parametrize(
    ("words", "name"),
    [
        (("dead-letter", "discard", "--all", "--name", "", "--queue", "mail"), "--name"),
        (("dead-letter", "list", "--queue="), "--queue"),
        (("task", "enqueue", "add", "--key", ""), "--key"),
        (("task", "enqueue", "add", "--priority", ""), "--priority"),
        (("task", "cancel", "x", ""), "ID"),
        (("worker", "app:app", "--queue", ""), "--queue"),
        (("migrate", "--database", ""), "--database"),
        (("server", "--database", ""), "--database"),
        (("queue", "pause", ""), "QUEUE"),
        (("audit", "--principal", ""), "--principal/--key"),
        (("key", "create", "k", "--scope", "worker", "--queue", ""), "--queue"),
    ],
    ids=" ".join,
)
def test_parse__empty_value__is_refused(
    capsys: pytest.CaptureFixture[str], words: tuple[str, ...], name: str
) -> None:
    said = _parsed_refusal(capsys, *words)
    assert f"{name}: must not be empty" in said


@pytest.mark.parametrize(
    ("words", "name"),
    [
        (("task", "enqueue", "\udcff"), "NAME"),
        (("task", "enqueue", "add", "--input=\udcff"), "--input"),
        (("task", "get", "a\udcff"), "ID"),
        (("task", "cancel", "x", "\udcff"), "ID"),
        (("namespace", "create", "\udcff"), "NAME"),
        (("audit", "--principal", "\udcff"), "--principal/--key"),
        (("server", "--http", "\udcff"), "--http"),
        (("worker", "\udcff"), "MODULE:NAME"),
        (("\udcff",), "COMMAND"),
        (("task", "\udcff"), "COMMAND"),
    ],
    ids=ascii,
)
def test_parse__value_that_is_not_utf_8__is_refused(
    capsys: pytest.CaptureFixture[str], words: tuple[str, ...], name: str
) -> None:
    said = _parsed_refusal(capsys, *words)
    assert f"argument {name}: " in said
    assert said.isascii()


def test_run__bytes_that_are_not_utf_8__are_refused_in_a_sentence() -> None:
    words: list[str | bytes] = [*TENURE, "task", "enqueue", b"caf\xe9"]
    done = subprocess.run(words, env=environment(), capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout) == (exits.USAGE, "")
    assert done.stderr.splitlines()[-1].endswith("error: argument NAME: 'caf\\udce9' is not UTF-8")


@pytest.mark.parametrize(
    ("words", "name"),
    [
        (("migrate", "--status"), "TENURE_DATABASE"),
        (("server", "--database", "dbname=x"), "TENURE_LISTEN"),
        (("task", "list", "--address", "127.0.0.1:1"), "TENURE_NAMESPACE"),
        (("task", "list", "--address", "127.0.0.1:1"), "TENURE_API_KEY"),
    ],
    ids=lambda value: value if isinstance(value, str) else value[0],
)
def test_run__variable_that_is_not_utf_8__is_named(words: tuple[str, ...], name: str) -> None:
    wrong: dict[str, Any] = {name: "caf\udce9"}
    done = run(*words, **wrong)
    assert done.code == exits.USAGE
    assert name in done.err
    assert "Traceback" not in done.err


@pytest.mark.parametrize(
    ("text", "said"),
    [
        (rb'{"a": "\ud800", "b": 1}', 'no UTF-8 form, in parameter "a"'),
        (rb'{"b": 1, "a": [{"x": "\udfff"}]}', 'no UTF-8 form, in parameter "a"'),
        (rb'{"\ud800": 1}', 'no UTF-8 form, in parameter "\\ud800"'),
        (b'{"a": "\xff"}', "is no JSON: 'utf-8' codec can't decode"),
        ('{"a": 1}'.encode("utf-16"), "is no JSON: 'utf-8' codec can't decode"),
    ],
    ids=["value", "nested", "name", "bytes", "utf-16"],
)
async def test_enqueue__input_that_no_worker_could_read__is_wrong_usage(
    tmp_path: Path, text: bytes, said: str
) -> None:
    (tmp_path / "input").write_bytes(text)
    words = ("task", "enqueue", "add", "--address", "127.0.0.1:1")
    done = await run_here(*words, "--input-file", str(tmp_path / "input"))
    assert (done.code, done.out) == (exits.USAGE, "")
    assert said in done.err
    if text.isascii():
        done = await run_here(*words, "--input", text.decode())
        assert done.code == exits.USAGE
        assert done.err.startswith("tenure: --input: ")


async def test_enqueue__letters_written_as_a_pair__are_taken(server: RunningServer) -> None:
    words = ("task", "enqueue", "add", "--address", server.address)
    assert (await run_here(*words, "--input", r'{"a": "\ud83d\ude00"}')).code == exits.OK


def test_parse__setting_that_may_be_empty__is_taken() -> None:
    assert parser.parse(["server", "--http", ""]).http == ""


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("task", "enqueue", "add", "--delay", "99999999d"), "is longer than 3,650 days"),
        (
            ("task", "enqueue", "add", "--priority", "99999999999999999999"),
            "is no whole number from -100 to 100",
        ),
        (("task", "enqueue", "add", "--priority", "101"), "is no whole number from -100 to 100"),
        (
            ("key", "create", "z", "--scope", "worker", "--expires", "99999999999d"),
            "is longer than 3,650 days",
        ),
        (("key", "create", "z", "--scope", "worker", "--expires", "0"), "is no time above 0"),
        (("doctor", "--timeout", "99999999999999d"), "is longer than 1 day"),
    ],
    ids=" ".join,
)
def test_parse__value_out_of_bounds__is_refused_in_a_sentence(
    capsys: pytest.CaptureFixture[str], words: tuple[str, ...], said: str
) -> None:
    assert said in _parsed_refusal(capsys, *words)


@pytest.mark.parametrize("text", ["-100", "0", "100", "-7"])
def test_parse__priority__is_read(text: str) -> None:
    assert parser.parse(["task", "enqueue", "add", f"--priority={text}"]).priority == int(text)


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (
            (*("key", "create", "x", "--scope", "worker"), "--namespace", "a", "--every-namespace"),
            "--namespace and --every-namespace exclude each other",
        ),
        (("audit", "--operation", "setqueue"), "is it SetQueue"),
        (("audit", "--operation", "RevokeKey"), "RevokeApiKey"),
        (("audit", "--operation", "xyzzy"), "there are CancelRuns, CancelTasks, CreateApiKey, "),
        (
            ("audit", "--since", "2026-03-02", "--until", "2026-03-01"),
            "--since 2026-03-02 00:00:00 is not before --until 2026-03-01 00:00:00",
        ),
    ],
    ids=lambda value: value if isinstance(value, str) else " ".join(value)[:60],
)
async def test_run__words_that_contradict_or_name_nothing__are_refused(
    words: tuple[str, ...], said: str
) -> None:
    done = await run_here(*words)
    assert done.code == exits.USAGE
    assert said in done.err
    assert done.err.count("\n") == 1


async def test_audit__nothing_is_found__advises_what_would_show_more(
    server: RunningServer,
) -> None:
    def ask(*words: str) -> Any:
        return run_here("audit", "--address", server.address, *words)

    assert "--all also lists" in (await ask()).err
    assert "--all" not in (await ask("--refused")).err
    assert "--all" not in (await ask("--operation", "SetQueue")).err


async def test_show__text_of_a_caller__is_shown_and_not_obeyed(server: RunningServer) -> None:
    def ask(*words: str) -> Any:
        return run_here(*words, "--address", server.address)

    task_id = (await ask("task", "enqueue", "add", "--delay", "1h")).out.strip()
    cancelled = await ask("task", "cancel", task_id, "--reason", f"line 1\n{HOSTILE}")
    assert cancelled.code == 0
    for words in (
        ("task", "why", task_id),
        ("task", "get", task_id),
        ("task", "get", task_id, "--json"),
        ("task", "list"),
    ):
        done = await ask(*words)
        assert done.code == 0
        shown = done.out + done.err
        assert "owned" in shown
        assert not {letter for letter in shown if not letter.isprintable()} - {"\n"}


async def test_enqueue__waits_for_a_hostile_failure__shows_it_escaped(
    server: RunningServer,
) -> None:
    app = tenure.App("hostile", address=server.address)

    @app.task(retry=tenure.Retry(1))
    def attack() -> None:
        raise RuntimeError(HOSTILE)

    @app.task
    def answer() -> str:
        return HOSTILE

    async with tenure.Worker(app):
        failed = await run_here(
            "task", "enqueue", "attack", "--wait", "20", "--address", server.address
        )
        told = await run_here(
            "task", "enqueue", "answer", "--wait", "20", "--address", server.address
        )
    assert failed.code == exits.FAILED
    assert "owned" in failed.err
    assert told.code == exits.OK
    assert "owned" in told.out
    for text in (failed.err, told.out):
        assert not {letter for letter in text if not letter.isprintable()} - {"\n"}


def test_document__letters_of_people__stay(capsys: pytest.CaptureFixture[str]) -> None:
    value = {"name": f"Zoë 🎉 {HOSTILE}\U000e0001"}
    show.document(value)
    out = capsys.readouterr().out
    assert "Zoë 🎉" in out
    assert json.loads(out) == value
    assert not {letter for letter in out if not letter.isprintable()} - {"\n"}


@pytest.mark.parametrize("name", ["..", "../..", ".", "a/.."])
def test_new__folder_that_has_no_name_of_its_own__is_refused(tmp_path: Path, name: str) -> None:
    here = tmp_path / "outer" / "inner"
    here.mkdir(parents=True)
    (here / "a").mkdir()
    done = run("new", name, cwd=here)
    assert done.code == exits.USAGE
    assert "name" in done.err
    assert [path.name for path in tmp_path.rglob("*")] == ["outer", "inner", "a"]


@pytest.mark.parametrize(
    "words",
    [
        ("task", "cancel", "abc", "0198"),
        ("dead-letter", "replay", "abc", "0198"),
        ("dead-letter", "discard", "abc", "0198"),
    ],
    ids=" ".join,
)
async def test_batch__what_is_no_id__is_wrong_usage_and_nothing_is_asked(
    server: RunningServer, words: tuple[str, ...]
) -> None:
    done = await run_here(*words, "--address", server.address)
    assert (done.code, done.out) == (exits.USAGE, "")
    assert done.err == "tenure: 'abc', '0198' are no ids of tasks\n"


async def test_batch__dead_letter_that_is_not_there__is_named_once(server: RunningServer) -> None:
    unknown = "00000000-0000-7000-8000-000000000000"
    done = await run_here("dead-letter", "replay", unknown, "--address", server.address)
    assert done.code == exits.FAILED
    assert done.err == f"tenure: no dead letter {unknown} in this namespace (namespace 'default')\n"


@pytest.mark.parametrize("verb", ["get", "why", "cancel"])
async def test_task__id_of_no_task__says_in_which_namespace(
    server: RunningServer, verb: str
) -> None:
    unknown = "00000000-0000-7000-8000-000000000000"
    words = ("--address", server.address, "--namespace", "default")
    done = await run_here("task", verb, unknown, *words)
    assert done.code == exits.FAILED
    assert done.err.endswith("(namespace 'default')\n")
    # That it is not there is told of the namespace itself.
    away = await run_here("task", verb, unknown, *words[:3], "team-b")
    assert away.code == exits.FAILED
    assert "team-b" in away.err
    assert "(namespace" not in away.err
