"""`tenure health`: 0 only from a server that takes traffic, and one line in any case."""

import socket
from pathlib import Path

import pytest
import trustme

from tenure_service.main import Server
from tests.cli.command import Done, run_here
from tests.fix_server import RunningServer, server_config


@pytest.fixture
def no_variables(monkeypatch: pytest.MonkeyPatch) -> pytest.MonkeyPatch:
    """An environment that says nothing of servers."""
    for name in ("ADDRESS", "TLS_CA", "TLS_CLIENT_CERT", "TLS_CLIENT_KEY"):
        monkeypatch.delenv(f"TENURE_{name}", raising=False)
    return monkeypatch


def failed(done: Done) -> str:
    """Gives the one line of a check that failed."""
    assert (done.code, done.out, done.err.count("\n")) == (1, "", 1), done
    return done.err


async def test_health__server_takes_writes__is_serving(
    server: RunningServer, no_variables: pytest.MonkeyPatch
) -> None:
    done = await run_here("health", "--address", server.address)
    assert (done.code, done.out, done.err) == (0, f"{server.address} SERVING\n", "")
    no_variables.setenv("TENURE_ADDRESS", server.address)
    assert (await run_here("health")).code == 0


async def test_health__server_is_not_ready__fails(
    database: str, no_variables: pytest.MonkeyPatch
) -> None:
    running = Server(server_config(database, require_keys=True))
    await running.start()
    try:
        # Without a key, where others need one.
        assert (await run_here("health", "--address", running.address)).code == 0
        assert running._rpc is not None
        await running._rpc.set_ready(ready=False)
        line = failed(await run_here("health", "--address", running.address))
        assert "NOT_SERVING" in line
    finally:
        await running.stop()


async def test_health__nobody_or_somebody_silent__fails_in_time(
    no_variables: pytest.MonkeyPatch,
) -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent:
        address = f"127.0.0.1:{silent.getsockname()[1]}"
        assert "does not answer" in failed(
            await run_here("health", "--address", address, "--timeout", "200ms")
        )
    assert "does not answer" in failed(await run_here("health", "--address", address))


async def test_health__server_speaks_tls__needs_its_authority(
    database: str, tmp_path: Path, no_variables: pytest.MonkeyPatch
) -> None:
    authority = trustme.CA()
    issued = authority.issue_cert("127.0.0.1")
    names = {name: tmp_path / name for name in ("ca", "cert", "key")}
    authority.cert_pem.write_to_path(str(names["ca"]))
    issued.cert_chain_pems[0].write_to_path(str(names["cert"]))
    issued.private_key_pem.write_to_path(str(names["key"]))
    config = server_config(database, tls_cert=names["cert"], tls_key=names["key"])
    running = Server(config)
    await running.start()
    try:
        line = failed(await run_here("health", "--address", running.address))
        assert "speaks TLS" in line
        no_variables.setenv("TENURE_TLS_CA", str(names["ca"]))
        assert (await run_here("health", "--address", running.address)).code == 0
    finally:
        await running.stop()


async def test_health__address_malformed__is_wrong_usage() -> None:
    done = await run_here("health", "--address", "nowhere")
    assert done.code == 2
    assert "host:port" in done.err
