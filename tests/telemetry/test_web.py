"""HTTP: measures for who may read them, health, and a port of its own."""

import asyncio
import contextlib
import http.client
import json
import signal
import socket
import ssl
from collections.abc import AsyncIterator, Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

import psycopg
import pytest
import pytest_asyncio
import trustme

from tenure_service import config
from tenure_service.cli import server as server_command
from tenure_service.engine.access import ANYBODY, Scope
from tenure_service.loops import supervisor
from tenure_service.main import Server
from tenure_service.telemetry import metrics
from tests.cli.command import run, running
from tests.eventually import eventually_async
from tests.fix_server import server_config
from tests.protocol import caller
from tests.protocol.caller import Caller
from tests.protocol.raw_worker import RawWorker
from tests.telemetry import readings


@dataclass(frozen=True, slots=True)
class Answer:
    """What came back."""

    status: int
    text: str
    headers: Mapping[str, str]


async def get(
    address: str, path: str, context: ssl.SSLContext | None = None, **headers: str
) -> Answer:
    """Asks once, over a connection of its own."""

    def ask() -> Answer:
        asked = (
            http.client.HTTPConnection(address, timeout=30)
            if context is None
            else http.client.HTTPSConnection(address, timeout=30, context=context)
        )
        with contextlib.closing(asked):
            asked.request("GET", path, headers=headers)
            found = asked.getresponse()
            return Answer(found.status, found.read().decode(), dict(found.getheaders()))

    return await asyncio.to_thread(ask)


@pytest_asyncio.fixture
async def serving(database: str) -> AsyncIterator[Server]:
    """A server with HTTP on any free port."""
    made = Server(server_config(database, http="127.0.0.1:0"))
    await made.start()
    yield made
    await made.stop()


async def test_metrics__tasks_wait__tell_their_number_age_and_workers(serving: Server) -> None:
    client = Caller(serving.address)
    await client.enqueue("mail", 3, queue="post")
    await client.enqueue("letter", delay=caller.seconds(3600))
    raw = await RawWorker.open(client, "post/other", slots=4)
    answer = await get(serving.http_address, "/metrics")
    assert answer.status == 200
    assert answer.headers["content-type"].startswith("text/plain")
    labels = '{name="mail",namespace="default",queue="post"}'
    lines = answer.text.splitlines()
    assert f"tenure_queue_ready{labels} 3.0" in lines
    assert f"tenure_queue_workers{labels} 0.0" in lines
    served = '{name="other",namespace="default",queue="post"}'
    assert f"tenure_queue_ready{served} 0.0" in lines
    assert f"tenure_queue_workers{served} 1.0" in lines
    (age,) = [line for line in lines if line.startswith(f"tenure_queue_oldest_seconds{labels}")]
    assert 0 < float(age.split()[-1]) < 60
    delayed = '{name="letter",namespace="default",queue="default"}'
    assert f"tenure_queue_delayed{delayed} 1.0" in lines
    for name, number in (("streams", 1), ("slots_granted", 4), ("slots_free", 4), ("ready", 1)):
        assert f"tenure_{name} {number}.0" in lines
    (ahead,) = [line for line in lines if line.startswith("tenure_partitions_ahead_seconds ")]
    assert float(ahead.split()[-1]) > 14 * 86_400
    assert "tenure_pool_max 16.0" in lines
    await raw.close()
    await client.close()


async def test_metrics__asked_again_at_once__do_not_ask_the_database(serving: Server) -> None:
    client = Caller(serving.address)
    await client.enqueue("mail")
    await get(serving.http_address, "/metrics")
    await client.enqueue("mail")
    text = (await get(serving.http_address, "/metrics")).text
    assert 'tenure_queue_ready{name="mail",namespace="default",queue="default"} 1.0' in text
    await client.close()


async def test_metrics__more_names_than_the_bound__the_last_are_one(
    serving: Server, conn: psycopg.Connection
) -> None:
    client = Caller(serving.address)
    await client.enqueue("first", 2)
    conn.execute(
        "insert into tenure.lanes (namespace_id, queue, name)"
        " select 1, 'q', 'name' || n from generate_series(1, 600) as n"
    )
    conn.execute(
        "insert into tenure.ready_tasks"
        " (lane_id, run_id, task_id)"
        " select l.lane_id, uuidv7(), uuidv7() from tenure.lanes as l where l.queue = 'q'"
    )
    lines = (await get(serving.http_address, "/metrics")).text.splitlines()
    found = [line for line in lines if line.startswith("tenure_queue_ready{")]
    assert len(found) == 500
    assert 'tenure_queue_ready{name="other",namespace="other",queue="other"} 102.0' in found
    assert 'tenure_queue_ready{name="first",namespace="default",queue="default"} 2.0' in found
    conn.execute(
        "delete from tenure.ready_tasks where lane_id in"
        " (select l.lane_id from tenure.lanes as l where l.queue = 'q')"
    )
    await client.close()


async def test_metrics__openmetrics_asked__is_given(serving: Server) -> None:
    answer = await get(
        serving.http_address, "/metrics", Accept="application/openmetrics-text; version=1.0.0"
    )
    assert answer.headers["content-type"].startswith("application/openmetrics-text")
    assert answer.text.endswith("# EOF\n")


async def test_get__other_path__is_not_found(serving: Server) -> None:
    assert (await get(serving.http_address, "/")).status == 404


async def test_readyz__server_drains__says_no(serving: Server) -> None:
    assert (await get(serving.http_address, "/readyz")).status == 200
    assert serving._hub is not None
    serving._hub.draining = True
    answer = await get(serving.http_address, "/readyz")
    assert (answer.status, answer.text) == (503, "not ready\n")
    assert (await get(serving.http_address, "/healthz")).status == 200


async def test_healthz__loop_hangs__says_which(
    serving: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert (await get(serving.http_address, "/healthz")).text == "ok\n"
    # What every loop may take at most, as if it were over.
    monkeypatch.setattr(supervisor, "_STUCK_SECONDS", -1e6)
    answer = await get(serving.http_address, "/healthz")
    assert answer.status == 503
    assert "due" in answer.text
    # A loop that waits for a database that is away does not hang.
    serving._ready_since = None
    assert (await get(serving.http_address, "/healthz")).status == 200


@dataclass(frozen=True, slots=True)
class Locked:
    """A server off loopback, whose keys and TLS count."""

    server: Server
    client: ssl.SSLContext
    secret: Callable[[], str]


def write_certificate(authority: trustme.CA, folder: Path) -> None:
    """Writes a server's certificate and its key."""
    certificate = authority.issue_cert("127.0.0.1")
    certificate.private_key_pem.write_to_path(folder / "key.pem")
    (folder / "cert.pem").write_bytes(b"".join(p.bytes() for p in certificate.cert_chain_pems))


@pytest_asyncio.fixture
async def locked(database: str, tmp_path: Path) -> AsyncIterator[Locked]:
    authority = trustme.CA()
    write_certificate(authority, tmp_path)
    made = Server(
        server_config(
            database,
            http="0.0.0.0:0",
            tls_cert=tmp_path / "cert.pem",
            tls_key=tmp_path / "key.pem",
            require_keys=True,
        )
    )
    await made.start()
    client = ssl.create_default_context()
    authority.configure_trust(client)

    def secret() -> str:
        assert made._hub is not None
        keys = made._hub.keys
        return keys.create(
            ANYBODY,
            namespace_id=None,
            name="scrape",
            scopes=[Scope.WORKER],
            queue_globs=(),
            lifetime=None,
        )[1]

    yield Locked(made, client, secret)
    await made.stop()


async def test_metrics__off_loopback__need_a_key_over_tls(locked: Locked) -> None:
    port = locked.server.http_address.rpartition(":")[2]
    address = f"127.0.0.1:{port}"
    before = readings.counts()
    refused = await get(address, "/metrics", locked.client)
    assert (refused.status, refused.headers["www-authenticate"]) == (401, "Bearer")
    assert "tenure_" not in refused.text
    wrong = await get(address, "/metrics", locked.client, Authorization="Bearer tenure_nothing")
    assert wrong.status == 401
    assert readings.risen(before, metrics.CALLS_REFUSED, "UNAUTHENTICATED") == 2
    secret = await asyncio.to_thread(locked.secret)
    found = await get(address, "/metrics", locked.client, Authorization=f"Bearer {secret}")
    assert found.status == 200
    for path in ("/healthz", "/readyz"):
        assert (await get(address, path, locked.client)).status == 200
    with pytest.raises((OSError, http.client.HTTPException)):
        await get(address, "/healthz")


async def test_renew__files_change__new_connections_use_them_as_far_as_they_fit(
    locked: Locked, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    address = f"127.0.0.1:{locked.server.http_address.rpartition(':')[2]}"
    (tmp_path / "cert.pem").write_text("half a file")
    assert (await get(address, "/healthz", locked.client)).status == 200
    assert "the changed TLS files are not used for HTTP" in caplog.text
    write_certificate(trustme.CA(), tmp_path)
    with pytest.raises(ssl.SSLCertVerificationError):
        await get(address, "/healthz", locked.client)


def test_config__http_off_loopback__is_refused_without_tls_and_keys() -> None:
    with pytest.raises(config.ConfigInvalid, match=r"http is 0\.0\.0\.0:7712, an address that"):
        config.load({"database": "dbname=x", "http": "0.0.0.0:7712"}, {})
    open_ = config.load({"database": "dbname=x", "http": "0.0.0.0:7712", "insecure": "1"}, {})
    assert open_.is_open
    assert open_.open_addresses == ["0.0.0.0:7712"]


@pytest.mark.parametrize(
    ("variables", "address"),
    [
        ({}, "127.0.0.1:7712"),
        ({"TENURE_LISTEN": "127.0.0.1:9000"}, "127.0.0.1:0"),
        ({"TENURE_HTTP": ""}, ""),
        ({"TENURE_HTTP": "127.0.0.1:80"}, "127.0.0.1:80"),
    ],
)
def test_config__http__says_where(variables: dict[str, str], address: str) -> None:
    found = config.load({"database": "dbname=x"}, variables)
    assert found.http_address == address
    host, _, port = address.rpartition(":")
    third = f"{host}:{int(port) + 2}" if port not in {"", "0"} else address
    assert server_command.http_of(found, 2) == third


async def test_start__http_off__listens_nowhere(database: str) -> None:
    made = Server(server_config(database))
    await made.start()
    assert made.http_address == ""
    await made.stop()


def test_server__http_port_taken__exits_with_conflict() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        address = f"127.0.0.1:{taken.getsockname()[1]}"
        done = run("server", "--database", "dbname=x", "--listen", "127.0.0.1:0", "--http", address)
    assert done.code == 3
    assert f"{address} is taken" in done.err
    assert done.err.count("\n") == 1


def test_server__several_processes__each_has_a_port_and_one_tells_of_queues(database: str) -> None:
    first = _two_free_ports()
    words = ("--listen", "127.0.0.1:0", "--http", f"127.0.0.1:{first}", "--processes", "2")
    with running("server", *words, "--json", "--database", database) as server:
        server.until('"process_id"', count=2)
        told = [json.loads(line) for line in server.lines if line.startswith("{")]
        addresses = sorted(each["http"] for each in told)
        assert addresses == [f"127.0.0.1:{first}", f"127.0.0.1:{first + 1}"]
        texts = [asyncio.run(get(address, "/metrics")).text for address in addresses]
        counted = ["\ntenure_partitions_ahead_seconds " in text for text in texts]
        assert counted == [True, False]
        assert server.end(signal.SIGTERM) == 0


async def test_stop__scraped_while_it_drains__still_answers(database: str) -> None:
    made = Server(server_config(database, http="127.0.0.1:0"))
    await made.start()
    client = Caller(made.address)
    raw = await RawWorker.open(client, "work")
    address = made.http_address
    stopping = asyncio.get_running_loop().create_task(made.stop())
    assert await eventually_async(lambda: bool(raw.drains))
    answer = await get(address, "/metrics")
    assert "\ntenure_ready 0.0" in answer.text
    await stopping
    await client.close()
    with pytest.raises(OSError, match="refused"):
        await get(address, "/healthz")


def _two_free_ports() -> int:
    while True:
        with socket.create_server(("127.0.0.1", 0)) as one:
            port: int = one.getsockname()[1]
            try:
                with socket.create_server(("127.0.0.1", port + 1)):
                    return port
            except (OSError, OverflowError):
                continue
