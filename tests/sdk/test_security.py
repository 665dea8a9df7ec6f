"""TLS, API keys, and what is said where something else than a Tenure server answers."""

import asyncio
import contextlib
import logging
import time
from collections.abc import AsyncIterator, Callable, Iterator
from pathlib import Path
from typing import Any, Self

import grpc
import grpc.aio
import pytest
import trustme

import tenure
from tenure import App, AsyncClient, Client, Worker, channel
from tenure.v1 import admin_service_pb2 as admin
from tenure_service.main import Server
from tests.eventually import eventually
from tests.fix_server import server_config

# gRPC's own patience is 30 s; whoever mistypes a setting is told long before.
SOON_SECONDS = 8.0
PATH = "/tenure.v1.AdminService/ListWorkers"


class Files:
    """Certificates of one authority as files."""

    def __init__(self, folder: Path) -> None:
        self.authority = trustme.CA()
        self.ca = str(folder / "ca.pem")
        self.authority.cert_pem.write_to_path(self.ca)
        self.server = self.authority.issue_cert("127.0.0.1", "localhost")
        self.other_host = self.authority.issue_cert("elsewhere.example")
        client = self.authority.issue_cert("client.example")
        self.cert, self.key = str(folder / "client.pem"), str(folder / "client.key")
        client.cert_chain_pems[0].write_to_path(self.cert)
        client.private_key_pem.write_to_path(self.key)

    def credentials(self, cert: trustme.LeafCert, *, mutual: bool = False) -> Any:
        pair = (cert.private_key_pem.bytes(), cert.cert_chain_pems[0].bytes())
        roots = self.authority.cert_pem.bytes() if mutual else None
        return grpc.ssl_server_credentials([pair], roots, mutual)


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> Files:
    return Files(tmp_path_factory.mktemp("tls"))


@pytest.fixture
def stranger(tmp_path: Path) -> Files:
    """Certificates of another authority."""
    return Files(tmp_path)


class Peer:
    """A gRPC server that answers ListWorkers, over TLS or not; what it was sent is kept."""

    def __init__(self, credentials: Any = None, status: grpc.StatusCode | None = None) -> None:
        self.metadata: dict[str, Any] = {}
        self._status = status
        self._server = grpc.aio.server()
        handlers: dict[str, Any] = {
            "ListWorkers": grpc.unary_unary_rpc_method_handler(self._answer)
        }
        self._server.add_generic_rpc_handlers(
            [grpc.method_handlers_generic_handler("tenure.v1.AdminService", handlers)]
        )
        if credentials is None:
            port = self._server.add_insecure_port("127.0.0.1:0")
        else:
            port = self._server.add_secure_port("127.0.0.1:0", credentials)
        self.address = f"127.0.0.1:{port}"

    async def _answer(self, request: bytes, context: Any) -> bytes:  # noqa: ARG002 - as gRPC calls it
        self.metadata = dict(context.invocation_metadata())
        if self._status is not None:
            await context.abort(self._status, "this one says no")
        return admin.ListWorkersResponse().SerializeToString()

    async def __aenter__(self) -> Self:
        await self._server.start()
        return self

    async def __aexit__(self, *exc: object) -> None:
        await self._server.stop(0)


@contextlib.asynccontextmanager
async def talker(says: bytes) -> AsyncIterator[str]:
    """Listens, reads a little, answers with fixed bytes and hangs up."""

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(ConnectionError):
            await reader.read(10)
            writer.write(says)
            await writer.drain()
        writer.close()

    listening = await asyncio.start_server(serve, "127.0.0.1", 0)
    async with listening:
        host, port = listening.sockets[0].getsockname()
        yield f"{host}:{port}"


@pytest.fixture(autouse=True)
def quickly() -> Iterator[None]:
    began_at = time.monotonic()
    yield
    assert time.monotonic() - began_at < SOON_SECONDS


async def refused(address: str, match: str, **options: Any) -> None:
    """Checks that the client says the cause, and the worker the same, without a second try."""
    with pytest.raises(tenure.TransportMismatch, match=match) as caught:
        await AsyncClient(address, **options).list_workers()
    assert caught.value.address == address
    assert "\n" not in str(caught.value)


async def test_connect__plain_text_on_both_sides__works() -> None:
    async with Peer() as peer:
        assert await AsyncClient(peer.address).list_workers() == []


async def test_connect__tls_on_both_sides__works(files: Files) -> None:
    async with Peer(files.credentials(files.server)) as peer:
        assert await AsyncClient(peer.address, tls=files.ca).list_workers() == []
        assert await AsyncClient(f"https://{peer.address}", tls=Path(files.ca)).list_workers() == []


async def test_connect__server_with_tls_and_client_without__says_so(files: Files) -> None:
    async with Peer(files.credentials(files.server)) as peer:
        await refused(peer.address, "speaks TLS, and this client plain text.*TENURE_TLS_CA")


async def test_connect__client_with_tls_and_server_without__says_so(files: Files) -> None:
    async with Peer() as peer:
        match = "speaks plain text, and this client TLS: leave out tls="
        await refused(peer.address, match, tls=files.ca)
        await refused(peer.address, match, tls=True)


async def test_connect__authority_unknown_or_other_host__names_what_is_wrong(
    files: Files, stranger: Files
) -> None:
    async with Peer(files.credentials(files.server)) as peer:
        await refused(peer.address, "not trusted.*TENURE_TLS_CA", tls=stranger.ca)
        await refused(peer.address, "not trusted", tls=True)
    async with Peer(files.credentials(files.other_host)) as peer:
        await refused(peer.address, "not trusted.*127.0.0.1", tls=files.ca)


async def test_connect__client_certificates_asked_for__are_shown_or_missed(
    files: Files, stranger: Files, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with Peer(files.credentials(files.server, mutual=True)) as peer:
        own = tenure.TLS(ca=files.ca, cert=files.cert, key=files.key)
        assert await AsyncClient(peer.address, tls=own).list_workers() == []
        await refused(peer.address, "asks for a client certificate", tls=files.ca)
        foreign = tenure.TLS(ca=files.ca, cert=stranger.cert, key=stranger.key)
        await refused(peer.address, "asks for a client certificate", tls=foreign)
        for name, path in (
            ("CA", files.ca),
            ("CLIENT_CERT", files.cert),
            ("CLIENT_KEY", files.key),
        ):
            monkeypatch.setenv(f"TENURE_TLS_{name}", path)
        assert await AsyncClient(peer.address).list_workers() == []


@pytest.mark.parametrize(
    ("says", "match"),
    [
        (b"HTTP/1.1 400 Bad Request\r\n\r\n", "speaks HTTP/1.1, not gRPC"),
        (b"SSH-2.0-OpenSSH_9.6\r\n", r"does not speak gRPC \(it answers b'SSH-2.0"),
    ],
)
async def test_connect__something_else_listens__is_named(says: bytes, match: str) -> None:
    async with talker(says) as address:
        await refused(address, match)


@pytest.mark.parametrize("status", ["UNIMPLEMENTED", "UNKNOWN", "INTERNAL"])
async def test_call__answer_of_no_tenure_server__says_so(status: str) -> None:
    async with Peer(status=grpc.StatusCode[status]) as peer:
        with pytest.raises(tenure.ServiceError, match="is no Tenure server of this version"):
            await AsyncClient(peer.address).list_workers()


async def test_call__api_key__travels_and_stands_nowhere(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async with Peer() as peer:
        client = AsyncClient(peer.address, api_key="secret-7")
        await client.list_workers()
        assert peer.metadata["authorization"] == "Bearer secret-7"
    assert "secret-7" not in repr(vars(client)) + caplog.text


async def test_call__no_key_where_one_is_needed__says_how_to_give_one(database: str) -> None:
    locked = Server(server_config(database, require_keys=True))
    await locked.start()
    try:
        for key, text in (
            (None, r": no key was sent; pass api_key=\.\.\., or set TENURE_API_KEY$"),
            ("tenure_unknown", "^the key is not known$"),
        ):
            with pytest.raises(tenure.Unauthenticated, match=text):
                await AsyncClient(locked.address, api_key=key).list_workers()
    finally:
        await locked.stop()


def test_target__files_of_tls__are_checked_at_the_first_use(files: Files, tmp_path: Path) -> None:
    garbage = tmp_path / "garbage.pem"
    garbage.write_text("no certificate")
    swapped = {"cert": files.cert, "key": files.ca}
    cases: list[tuple[Any, str]] = [
        (str(tmp_path / "missing.pem"), "the file of ca, .*missing.pem, cannot be read: No such"),
        (garbage, "garbage.pem holds no certificates in PEM form"),
        (tenure.TLS(**swapped), "are no certificate and its unencrypted private key"),
    ]
    for tls, match in cases:
        client = Client("127.0.0.1:1", tls=tls)
        with pytest.raises(tenure.WrongValue, match=match):
            client.list_workers()


async def test_worker__transport_does_not_match__run_ends_and_start_goes_on(
    files: Files, caplog: pytest.LogCaptureFixture
) -> None:
    async with Peer(files.credentials(files.server)) as peer:
        app = App("security", peer.address)
        app.task(noop)
        worker = Worker(app)
        done = worker._start(ends_refused=True)
        with pytest.raises(tenure.TransportMismatch, match="speaks TLS"):
            await asyncio.wrap_future(done)
        await worker.aclose(0)
        caplog.clear()
        async with Worker(app):
            told = await asyncio.to_thread(eventually, lambda: "no time cures this" in caplog.text)
        assert told
        assert {each.levelno for each in caplog.records if "TLS" in each.message} == {logging.ERROR}


def noop() -> None: ...


def test_target__as_a_key__tells_settings_apart(files: Files) -> None:
    targets: list[Callable[[], channel.Target]] = [
        lambda: Client("127.0.0.1:1").target,
        lambda: Client("127.0.0.1:1", tls=True).target,
        lambda: Client("127.0.0.1:1", tls=files.ca).target,
        lambda: Client("127.0.0.1:1", api_key="k").target,
    ]
    assert len({make() for make in targets}) == len({make() for make in targets + targets}) == 4
