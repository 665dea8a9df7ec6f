"""The files of deploy/ agree with the code: settings, flags, ports, times, files that are copied."""

import configparser
import os
import re
import shlex
import shutil
import subprocess
import sys
import tempfile
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psycopg
import pytest
import trustme
import yaml
from psycopg import conninfo, sql

from tenure_service import __version__, config
from tenure_service.cli import exits, flags, parser, settings
from tenure_service.embedded import EmbeddedPostgres, binaries
from tenure_service.engine import limits
from tenure_service.store import migrate
from tests.test_documents import ROOT

DEPLOY = ROOT / "deploy"
UNITS = sorted((DEPLOY / "systemd").glob("*.service"))
ENVIRONMENTS = sorted((DEPLOY / "systemd").glob("*.env"))
PORT = config.ServerConfig.model_fields["listen"].default.rpartition(":")[2]
ANALYZE = shutil.which("systemd-analyze") or ""
IMAGE = f"tenure:{__version__}"
_VARIABLE = re.compile(r"\bTENURE_[A-Z_]+\b")
#: Of the compose file itself, for PostgreSQL's role; no program of ours reads it.
_OWN = {"TENURE_PASSWORD"}


def known_variables() -> set[str]:
    """Lists the variables that servers, clients and workers read."""
    return {config.variable(name) for name in config.ServerConfig.model_fields} | {
        *settings._CLIENT
    }


def container_seconds(text: str) -> float:
    """Reads a time of Docker or systemd; a bare number is seconds."""
    return flags.seconds(text)


@pytest.fixture(scope="module")
def compose() -> Any:
    return yaml.safe_load((DEPLOY / "compose.yaml").read_text(encoding="utf-8"))


@pytest.fixture(scope="module")
def dockerfile() -> list[tuple[str, str]]:
    text = (DEPLOY / "Dockerfile").read_text(encoding="utf-8")
    lines = re.sub(r"\\\n\s*", "", re.sub(r"^#.*\n", "", text, flags=re.MULTILINE)).splitlines()
    found = [tuple(line.split(maxsplit=1)) for line in lines if line.strip()]
    return [(word, rest) for word, rest in found]


def test_variables__of_every_file__are_settings() -> None:
    files = [path for path in DEPLOY.rglob("*") if path.is_file()]
    assert len(files) > 7
    named = {
        (path.name, name)
        for path in files
        if path.suffix not in {".json", ".yml"}
        for name in _VARIABLE.findall(path.read_text(encoding="utf-8"))
    }
    assert len(named) > 10
    unknown = {(file, name) for file, name in named if name not in known_variables() | _OWN}
    assert not unknown


# --------------------------------------------------------------------------------- image


def test_dockerfile__instructions__are_of_the_known_ones_in_two_stages(
    dockerfile: list[tuple[str, str]],
) -> None:
    words = [word for word, _ in dockerfile]
    known = "CMD COPY ENTRYPOINT ENV EXPOSE FROM HEALTHCHECK RUN STOPSIGNAL USER WORKDIR"
    assert {*words} <= {*known.split()}
    images = [rest.partition(" AS ")[0] for word, rest in dockerfile if word == "FROM"]
    assert len(images) == 2
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    for image in images:
        version = re.fullmatch(r"python:(\d\.\d+)-slim-\w+", image)
        assert version is not None
        assert f"Programming Language :: Python :: {version[1]}" in project["classifiers"]


def test_dockerfile__final_stage__is_nobody_special_and_builds_nothing(
    dockerfile: list[tuple[str, str]],
) -> None:
    last = max(index for index, (word, _) in enumerate(dockerfile) if word == "FROM")
    final = dict(dockerfile[last:])
    user, _, group = final["USER"].partition(":")
    assert int(user) >= 1000
    assert int(group) >= 1000
    assert f"--uid {user} " in final["RUN"]
    assert not re.search(r"\bpip\b|apt|gcc|make", final["RUN"])
    assert final["EXPOSE"] == PORT
    assert f"TENURE_LISTEN=0.0.0.0:{PORT}" in final["ENV"]


def test_dockerfile__what_it_copies_and_installs__exists(
    dockerfile: list[tuple[str, str]],
) -> None:
    ignore = (DEPLOY / "Dockerfile.dockerignore").read_text(encoding="utf-8").splitlines()
    kept = {line.removeprefix("!") for line in ignore if line.startswith("!")}
    copied = {
        source
        for word, rest in dockerfile
        if word == "COPY" and not rest.startswith("--from")
        for source in rest.split()[:-1]
    }
    assert copied == kept
    assert "*" in ignore
    for source in copied:
        assert (ROOT / source).exists(), source
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
    needed = {
        project["project"]["readme"],
        *project["project"]["license-files"],
        *project["tool"]["hatch"]["build"]["targets"]["wheel"]["force-include"],
        *(
            path.split("/")[0]
            for path in project["tool"]["hatch"]["build"]["targets"]["wheel"]["packages"]
        ),
    }
    assert needed <= copied
    installs = " ".join(rest for word, rest in dockerfile if word == "RUN")
    extras = re.findall(r"\.whl\)\[([\w,]+)\]", installs)
    assert extras
    assert set(extras[0].split(",")) <= set(project["project"]["optional-dependencies"])


def test_dockerfile__commands__parse(dockerfile: list[tuple[str, str]]) -> None:
    found = dict(dockerfile)
    entrypoint, command = yaml.safe_load(found["ENTRYPOINT"]), yaml.safe_load(found["CMD"])
    assert entrypoint == ["tenure"]
    assert parser.parse(command).call == "server:run"
    options, _, check = found["HEALTHCHECK"].partition(" CMD ")
    program, *arguments = yaml.safe_load(check)
    assert program == "tenure"
    values = parser.parse(arguments)
    assert values.call == "health:run"
    timeout = re.search(r"--timeout=(\w+)", options)
    assert timeout is not None
    assert container_seconds(timeout[1]) > values.timeout


# ------------------------------------------------------------------------------- compose


def test_compose__postgres__is_new_enough_and_keeps_its_data(compose: Any) -> None:
    postgres = compose["services"]["postgres"]
    major = re.fullmatch(r"postgres:(\d+)(?:[.-].*)?", postgres["image"])
    assert major is not None
    assert int(major[1]) >= 18
    targets = {x.split(":")[1]: x.split(":")[0] for x in postgres["volumes"]}
    assert targets["/var/lib/postgresql"] in compose["volumes"]
    script = DEPLOY / targets["/docker-entrypoint-initdb.d/create-role.sh"]
    assert os.access(script, os.X_OK)
    settings_said = dict(x.split("=") for x in postgres["command"] if "=" in x)
    processes = 2
    assert int(settings_said["max_connections"]) >= 18 * processes + 1
    assert compose["networks"]["database"]["internal"] is True
    assert postgres["networks"] == ["database"]
    assert "ports" not in postgres


def test_compose__server_and_worker__parse_and_fit(compose: Any) -> None:
    services = compose["services"]
    server, worker = services["server"], services["worker"]
    assert parser.parse(server["command"]).call == "server:run"
    environment = dict(server["environment"])
    loaded = config.load(
        {}, {name: value for name, value in environment.items() if name in known_variables()}
    )
    assert loaded.is_open
    assert not conninfo.conninfo_to_dict(loaded.database).get("password")
    assert conninfo.conninfo_to_dict(loaded.database)["host"] in services
    assert server["ports"] == [f"127.0.0.1:{PORT}:{PORT}"]
    assert environment["PGPASSWORD"] == services["postgres"]["environment"]["TENURE_PASSWORD"]

    values = parser.parse(worker["command"])
    assert values.call == "worker:run"
    assert worker["environment"]["TENURE_ADDRESS"] == f"server:{PORT}"
    assert set(worker["networks"]) & set(server["networks"])
    module, _, name = values.app.partition(":")
    source, target, mode = worker["volumes"][0].split(":")
    assert (target, mode) == ("/app", "ro")
    assert f"{name} = App(" in (DEPLOY / source / f"{module}.py").read_text(encoding="utf-8")
    assert worker["healthcheck"] == {"disable": True}

    for service in (server, worker):
        assert service["image"] == IMAGE
        assert (DEPLOY / service["build"]["context"]).resolve() == ROOT
        assert (ROOT / service["build"]["dockerfile"]).is_file()
        assert service["cap_drop"] == ["ALL"]
    grace = container_seconds(server["stop_grace_period"])
    assert grace > limits.STOP_GRACE.total_seconds()
    assert container_seconds(worker["stop_grace_period"]) > values.grace


def test_compose__references__exist(compose: Any) -> None:
    for service in compose["services"].values():
        assert set(service["networks"]) <= set(compose["networks"])
        for name, wanted in service.get("depends_on", {}).items():
            assert wanted == {"condition": "service_healthy"}
            assert not compose["services"][name].get("healthcheck", {}).get("disable")
    text = (DEPLOY / "compose.yaml").read_text(encoding="utf-8")
    example = (DEPLOY / "env.example").read_text(encoding="utf-8")
    asked = set(re.findall(r"\$\{(\w+):\?", text))
    assert asked == set(re.findall(r"^(\w+)=$", example, re.MULTILINE))
    assert ".env" in (ROOT / ".gitignore").read_text(encoding="utf-8").splitlines()


@pytest.fixture
def private_postgres(compose: Any) -> Iterator[EmbeddedPostgres]:
    """A PostgreSQL of the test's own, for roles are of a whole server, as compose.yaml sets it up."""
    words = compose["services"]["postgres"]["command"]
    said = dict(word.split("=") for word in words if "=" in word)
    with tempfile.TemporaryDirectory(prefix="tenure-test-") as folder:
        Path(folder).chmod(0o711)  # root's server is another account
        started = EmbeddedPostgres.start(Path(folder) / "postgres", settings=said, durable=False)
        try:
            yield started
        finally:
            started.remove()


def test_create_role__server_of_the_compose_file__makes_an_owner_who_is_no_superuser(
    private_postgres: EmbeddedPostgres,
) -> None:
    root = "made up here"
    dsn = private_postgres.dsn("postgres")
    admin = conninfo.make_conninfo(dsn, user="postgres", password=root)
    with psycopg.connect(dsn, autocommit=True) as conn:
        assert conn.execute("show io_method").fetchone() == ("worker",)
        conn.execute(sql.SQL("create role postgres superuser login password {}").format(root))
    with psycopg.connect(admin, autocommit=True) as conn:
        # The embedded server's own have the names that are to be made.
        conn.execute("drop database tenure")
        conn.execute("alter role tenure rename to founder")
    password = "it's; a \\ password"  # noqa: S105 - made up
    parts = conninfo.conninfo_to_dict(admin)
    subprocess.run(
        [DEPLOY / "postgres" / "create-role.sh"],
        env={
            "PATH": f"{binaries.installed() / 'bin'}:{os.environ['PATH']}",
            "PGHOST": str(parts["host"]),
            "PGPORT": str(parts["port"]),
            "PGPASSWORD": root,
            "TENURE_PASSWORD": password,
        },
        check=True,
    )
    dsn = conninfo.make_conninfo(admin, dbname="tenure", user="tenure", password=password)
    # It can do what a server does at its start.
    assert migrate.migrate(dsn)
    with psycopg.connect(dsn) as conn:
        found = conn.execute(
            "select r.rolsuper, r.rolcreaterole, pg_get_userbyid(d.datdba)"
            " from pg_roles as r cross join pg_database as d"
            " where r.rolname = current_user and d.datname = current_database()"
        )
        assert found.fetchone() == (False, False, "tenure")


# ------------------------------------------------------------------------------- systemd


def read_unit(path: Path) -> configparser.ConfigParser:
    """Reads a unit; no key stands in it twice."""
    found = configparser.ConfigParser(interpolation=None)
    found.optionxform = str  # type: ignore[assignment, method-assign] # systemd's keys have capitals
    found.read_string(path.read_text(encoding="utf-8"))
    return found


@pytest.mark.parametrize("path", UNITS, ids=lambda path: path.stem)
def test_unit__command_and_times__fit(path: Path) -> None:
    unit = read_unit(path)
    assert unit.sections() == ["Unit", "Service", "Install"]
    service = unit["Service"]
    program, *arguments = shlex.split(service["ExecStart"])
    assert program.endswith("/bin/tenure")
    values = parser.parse(arguments)
    graces = {
        "server:run": limits.STOP_GRACE.total_seconds(),
        "worker:run": getattr(values, "grace", None),
    }
    grace = graces[values.call]
    assert grace is not None
    assert container_seconds(service["TimeoutStopSec"]) > grace
    assert service["KillMode"] == "mixed"
    assert service["Restart"] == "always"
    assert service["RestartPreventExitStatus"] == str(exits.USAGE)
    assert unit["Unit"]["StartLimitIntervalSec"] == "0"
    assert service["User"] not in {"root", "0"}
    assert (service["NoNewPrivileges"], service["ProtectSystem"]) == ("yes", "strict")
    assert not service["CapabilityBoundingSet"]
    sample = "server" if values.call == "server:run" else "worker"
    assert Path(service["EnvironmentFile"]).name.startswith(sample)
    assert (DEPLOY / "systemd" / f"{sample}.env").is_file()


@pytest.mark.parametrize("path", ENVIRONMENTS, ids=lambda path: path.stem)
def test_environment__every_line__is_a_comment_or_a_setting(path: Path, tmp_path: Path) -> None:
    said: dict[str, str] = {}
    for line in path.read_text(encoding="utf-8").splitlines():
        name, found, value = line.removeprefix("# ").partition("=")
        assert found or line.startswith("#"), line
        if found and name.isupper():
            assert name == "PGPASSWORD" or name in known_variables(), line
            said[name] = value
    if path.stem == "server":
        # All of them together, those that are commented out too, are a protected server.
        said.pop("PGPASSWORD")
        issued = trustme.CA().issue_cert("db")
        for name, pem in (
            ("TENURE_TLS_CERT", issued.cert_chain_pems[0]),
            ("TENURE_TLS_KEY", issued.private_key_pem),
        ):
            said[name] = str(tmp_path / Path(said[name]).name)
            pem.write_to_path(said[name])
        assert not config.load({}, said).is_open
    else:
        assert said["TENURE_ADDRESS"].endswith(f":{PORT}")


@pytest.mark.skipif(not ANALYZE, reason="there is no systemd")
@pytest.mark.parametrize("path", UNITS, ids=lambda path: path.stem)
def test_verify__unit__has_nothing_that_systemd_does_not_know(path: Path, tmp_path: Path) -> None:
    text = path.read_text(encoding="utf-8")
    # It looks whether the program and the account exist.
    program = re.search(r"ExecStart=(\S+)", text)
    assert program is not None
    text = text.replace(program[1], str(Path(sys.executable).parent / "tenure"))
    text = text.replace("User=tenure", f"User={os.getuid()}")
    copy = tmp_path / path.name.replace("@", "@shop")
    copy.write_text(text, encoding="utf-8")
    done = subprocess.run(
        [ANALYZE, "verify", "--man=no", copy],
        capture_output=True,
        text=True,
        check=False,
        env=os.environ | {"SYSTEMD_LOG_LEVEL": "warning"},
    )
    ours = [line for line in done.stderr.splitlines() if copy.name in line or str(copy) in line]
    assert not ours, done.stderr
