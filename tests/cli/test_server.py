"""`tenure server`, `migrate` and `config`."""

import asyncio
import json
import os
import signal
import socket
from pathlib import Path

import trustme

import tenure
from tenure_service.cli import flags, settings
from tenure_service.config import ServerConfig
from tests.cli.command import Done, run, run_here, running
from tests.eventually import eventually

ANY_PORT = ("--listen", "127.0.0.1:0")


def test_server__several_settings_wrong__lists_all_at_once() -> None:
    done = run(
        "server",
        *("--listen", "0.0.0.0:0", "--connections", "1", "--heartbeat-seconds", "20"),
        TENURE_LOG_LEVEL="loud",
    )
    assert done.code == 2
    assert (
        "\n  listen is 0.0.0.0:0, an address that others can reach, without --tls-cert" in done.err
    )
    assert "TENURE_INSECURE:" not in done.err, "nobody set it"
    # By the name under which each was set.
    for name in ("TENURE_DATABASE", "--connections", "--heartbeat-seconds", "TENURE_LOG_LEVEL"):
        assert f"\n  {name}: " in done.err
    assert "5 settings are wrong" in done.err


def test_server__open_address__is_refused(database: str) -> None:
    done = run("server", "--database", database, "--listen", "0.0.0.0:0")
    assert done.code == 2
    assert "--insecure" in done.err


def test_server__open_address_on_purpose__warns_and_serves(database: str) -> None:
    with running("server", "--listen", "0.0.0.0:0", "--insecure", "--database", database) as server:
        server.until("listening on 0.0.0.0:")
        server.until("WARNING")
        assert "is open" in server.text
        assert server.end(signal.SIGTERM) == 0


def test_server__no_database__says_one_sentence() -> None:
    done = run("server", "--database", "postgresql://u:secret@127.0.0.1:1/x", *ANY_PORT)
    assert (done.code, done.err.count("\n")) == (1, 1)
    assert "no database answers" in done.err
    assert "secret" not in done.err


def test_server__tls_files_do_not_fit__names_the_setting(tmp_path: Path) -> None:
    def served(cert: str, key: str) -> Done:
        return run(
            *("server", "--database", "host=127.0.0.1", *ANY_PORT, "--tls-cert", tmp_path / cert),
            *("--tls-key", tmp_path / key),
        )

    trustme.CA().cert_pem.write_to_path(str(tmp_path / "cert"))
    (tmp_path / "other").write_text("nothing")
    for cert, key, setting, named, problem in (
        ("cert", "none", "--tls-key", "none", "No such file or directory"),
        ("none", "cert", "--tls-cert", "none", "No such file or directory"),
        ("other", "cert", "--tls-cert", "other", "holds no certificate in PEM form"),
    ):
        done = served(cert, key)
        assert done.code == 2
        (line,) = [each for each in done.err.splitlines() if each.startswith("  ")]
        assert line.strip().startswith(f"{setting}: {tmp_path / named}")
        assert problem in line


async def test_migrate__no_conninfo__says_one_sentence() -> None:
    done = await run_here("migrate", "--database", "nonsense")
    assert (done.code, done.err.count("\n")) == (1, 1)
    assert "no URL or conninfo" in done.err


def test_server__address_taken__exits_with_conflict() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        address = f"127.0.0.1:{taken.getsockname()[1]}"
        done = run("server", "--database", "dbname=x", "--listen", address)
    assert done.code == 3
    assert f"{address} is taken" in done.err


def test_server__child_killed__is_replaced_and_the_port_serves(database: str) -> None:
    words = ("server", *ANY_PORT, "--processes", "2", "--json", "--database", database)
    with running(*words) as server:
        server.until('"process_id"', count=2)
        children = _told(server.lines)
        assert len({child["address"] for child in children}) == 1
        os.kill(int(children[0]["process_id"]), signal.SIGKILL)
        server.until('"process_id"', count=3)
        told = _told(server.lines)
        assert len({child["process_id"] for child in told}) == 3
        client = tenure.Client(told[2]["address"])
        assert [each.name for each in client.list_namespaces()] == ["default"]
        assert server.end(signal.SIGTERM) == 0


def test_server__parent_killed__its_processes_end_too(database: str) -> None:
    words = ("server", *ANY_PORT, "--processes", "2", "--json", "--database", database)
    with running(*words) as server:
        server.until('"process_id"', count=2)
        children = [int(child["process_id"]) for child in _told(server.lines)]
        server.process.kill()
        server.process.wait()
        assert eventually(lambda: not any(_lives(child) for child in children), seconds=20)


def _lives(pid: int) -> bool:
    try:
        state = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8").rpartition(")")[2]
    except FileNotFoundError:
        return False
    return state.split()[0] != "Z"


def _told(lines: list[str]) -> list[dict[str, str]]:
    return [json.loads(line) for line in lines if line.startswith("{")]


async def test_migrate__empty_database__applies_and_then_has_nothing_to_do(
    empty_database: str,
) -> None:
    before = await run_here("migrate", "--status", "--json", "--database", empty_database)
    names = [each["name"] for each in json.loads(before.out)]
    assert {each["state"] for each in json.loads(before.out)} == {"pending"}
    done = await asyncio.to_thread(run, "migrate", TENURE_DATABASE=empty_database)
    assert done.out.splitlines() == [f"applied {name}" for name in names]
    assert "nothing to do" in (await run_here("migrate", "--database", empty_database)).out
    after = await run_here("migrate", "--status", "--database", empty_database)
    assert "pending" not in after.out
    assert after.out.count("applied") == len(names)


async def test_config__listens_elsewhere__shows_that_http_takes_any_port() -> None:
    database = ("--database", "postgresql://db/tenure")
    done = await run_here("config", *database, "--listen", "127.0.0.1:7000", "--json")
    rows = {each["setting"]: each["value"] for each in json.loads(done.out)}
    assert rows["http"] == "127.0.0.1:0"
    none = await run_here("config", *database, "--http", "", "--json")
    assert {each["setting"]: each["value"] for each in json.loads(none.out)}["http"] == ""


def test_config__prints_sources_and_hides_secrets() -> None:
    done = run(
        "config",
        *("--database", "postgresql://ada:s/e@cret@db/tenure", "--json"),
        TENURE_LOG_LEVEL="DEBUG",
        TENURE_API_KEY="tk_hidden",
        TENURE_HEARBEAT="2",
    )
    assert done.code == 0, done.err
    rows = {each["setting"]: each for each in json.loads(done.out)}
    assert rows["database"] == {
        "setting": "database",
        "value": "postgresql://ada:***@db/tenure",
        "source": "--database",
    }
    assert rows["log_level"]["source"] == "TENURE_LOG_LEVEL"
    assert rows["listen"]["source"] == "default"
    assert rows["http"] == {"setting": "http", "value": "127.0.0.1:7712", "source": "default"}
    assert "hidden" not in done.out
    assert "TENURE_HEARBEAT is set" in done.err


def test_mask__any_form_of_password__hides_it() -> None:
    for text in (
        "host=db password=secret user=ada",
        r"host=db password='sec\' ret' user=ada",
        "postgresql://ada:secret@db/x",
        "postgresql://db/x?user=ada&password=secret",
        "postgresql://ada:se/cr@et@db/x?sslpassword=secret",
    ):
        masked = settings.mask(text)
        assert "sec" not in masked
        assert "ret" not in masked
        assert "ada" in masked


def test_server__every_setting__has_a_flag() -> None:
    values = flags.settings().parse_args([])
    assert set(vars(values)) == set(ServerConfig.model_fields)


def test_help__settings_that_are_numbers__tell_their_defaults() -> None:
    told = " ".join(flags.settings().format_help().split())
    for name, field in ServerConfig.model_fields.items():
        if isinstance(field.default, int | float) and not isinstance(field.default, bool):
            _, found, rest = told.rpartition(f"--{name.replace('_', '-')} N ")
            assert found, name
            assert f"({field.default:g})" in rest.partition(" --")[0], name


def test_server__several_processes__say_once_where_they_listen(database: str) -> None:
    words = ("server", *ANY_PORT, "--processes", "2", "--http", "", "--database", database)
    with running(*words) as server:
        # The log has a line of each.
        server.until("INFO tenure_service.main: listening on", count=2)
        server.until("\nlistening on 127.0.0.1:")
        assert server.end(signal.SIGTERM) == 0
    assert sum(line.startswith("listening on ") for line in server.lines) == 1


def test_server__several_processes__their_lines_tell_which(database: str) -> None:
    words = ("server", *ANY_PORT, "--processes", "2", "--http", "", "--json")
    for form in ("text", "json"):
        with running(*words, "--log-format", form, "--database", database) as server:
            server.until("main: listening on" if form == "text" else '"listening on', count=2)
            server.until('"process_id"', count=2 if form == "text" else 4)
            told = {int(each["process_id"]) for each in _told(server.lines) if "address" in each}
            lines = [each for each in server.lines if "listening on" in each]
            assert server.end(signal.SIGTERM) == 0
        assert len(told) == 2
        if form == "text":
            found = {int(each.rpartition("process_id=")[2]) for each in lines}
        else:
            found = {int(json.loads(each)["process_id"]) for each in lines}
        assert found == told


def test_server__plain_text_at_its_tls_port__logs_objects_only(
    database: str, tmp_path: Path
) -> None:
    issued = trustme.CA().issue_cert("127.0.0.1")
    issued.private_key_pem.write_to_path(str(tmp_path / "key"))
    issued.cert_chain_pems[0].write_to_path(str(tmp_path / "cert"))
    files = ("--tls-cert", tmp_path / "cert", "--tls-key", tmp_path / "key")
    wanted = ("--listen", "127.0.0.1:0", "--http", "", "--log-format", "json", "--json")
    with running("server", "--database", database, *files, *wanted) as server:
        server.until("listening on")
        address = server.word("listening on ").rstrip(',"')
        host, _, port = address.rpartition(":")
        for _ in range(3):
            with socket.create_connection((host, int(port)), timeout=10) as plain:
                plain.sendall(b"GET / HTTP/1.1\r\n\r\n")
                # Whatever the answer: the handshake has failed when it ends.
                while plain.recv(4096):
                    pass
        assert server.end() == 0
    assert [line for line in server.lines if not isinstance(json.loads(line), dict)] == []
