"""TLS from files: who gets in, and certificates that are renewed while the server runs."""

import asyncio
import logging
import ssl
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import grpc
import pytest
import pytest_asyncio
import trustme
from grpc import aio

from tenure.v1 import task_pb2 as task
from tenure.v1 import task_service_pb2 as tasks
from tenure.v1 import task_service_pb2_grpc as tasks_grpc
from tenure_service import certificates
from tenure_service.main import Server
from tenure_service.rpc import tls
from tests.fix_server import server_config

LISTING = tasks.ListTasksRequest(state=task.TASK_STATE_READY)


class Files:
    """A certificate authority, and the files of a server."""

    def __init__(self, folder: Path) -> None:
        self.authority = trustme.CA()
        self.cert, self.key, self.ca = folder / "cert", folder / "key", folder / "ca"
        self.authority.cert_pem.write_to_path(str(self.ca))
        self.renew()

    def renew(self) -> trustme.LeafCert:
        """Writes a new certificate and its key."""
        issued = self.authority.issue_cert("127.0.0.1", "localhost")
        self.key.write_bytes(issued.private_key_pem.bytes())
        self.cert.write_bytes(b"".join(pem.bytes() for pem in issued.cert_chain_pems))
        return issued

    def credentials(self, client: trustme.LeafCert | None = None) -> grpc.ChannelCredentials:
        """Gives what a client needs, with a certificate of its own or without."""
        if client is None:
            return grpc.ssl_channel_credentials(self.ca.read_bytes())
        return grpc.ssl_channel_credentials(
            self.ca.read_bytes(),
            client.private_key_pem.bytes(),
            client.cert_chain_pems[0].bytes(),
        )


@pytest.fixture
def files(tmp_path: Path) -> Files:
    return Files(tmp_path)


async def _serve(database: str, files: Files, **settings: object) -> Server:
    running = Server(server_config(database, tls_cert=files.cert, tls_key=files.key, **settings))
    await running.start()
    return running


@pytest_asyncio.fixture
async def secure(database: str, files: Files) -> AsyncIterator[Server]:
    running = await _serve(database, files)
    yield running
    await running.stop()


async def _answers(server: Server, credentials: grpc.ChannelCredentials | None) -> bool:
    """Says whether a call over a connection of its own is answered."""
    options = [("grpc.use_local_subchannel_pool", 1)]
    channel = (
        aio.insecure_channel(server.address, options=options)
        if credentials is None
        else aio.secure_channel(server.address, credentials, options=options)
    )
    async with channel:
        stub: Any = tasks_grpc.TaskServiceStub(channel)
        try:
            await stub.ListTasks(LISTING, timeout=5)
        except aio.AioRpcError as error:
            if error.code() is not grpc.StatusCode.UNAVAILABLE:
                raise
            return False
        return True


async def _serial(server: Server) -> int:
    """Looks at the certificate that a new connection is shown."""
    context = ssl.create_default_context()
    context.check_hostname = False
    context.verify_mode = ssl.CERT_NONE
    context.set_alpn_protocols(["h2"])
    host, _, port = server.address.rpartition(":")
    _, writer = await asyncio.open_connection(host, int(port), ssl=context)
    shown = writer.get_extra_info("ssl_object").getpeercert(binary_form=True)
    writer.close()
    return _serial_of(ssl.DER_cert_to_PEM_cert(shown).encode())


def _serial_of(pem: bytes) -> int:
    from cryptography import x509

    return x509.load_pem_x509_certificate(pem).serial_number


async def test_connect__tls__only_over_tls_and_to_a_trusted_server(
    secure: Server, files: Files, tmp_path: Path
) -> None:
    assert await _answers(secure, files.credentials())
    assert not await _answers(secure, None)
    stranger = tmp_path / "other"
    stranger.mkdir()
    assert not await _answers(secure, Files(stranger).credentials())


async def test_connect__mutual__needs_a_certificate_of_the_authority(
    database: str, files: Files, tmp_path: Path
) -> None:
    running = await _serve(database, files, tls_client_ca=files.ca)
    other = trustme.CA()
    try:
        assert await _answers(running, files.credentials(files.authority.issue_cert("worker-1")))
        assert not await _answers(running, files.credentials())
        assert not await _answers(running, files.credentials(other.issue_cert("worker-1")))
    finally:
        await running.stop()


async def test_renew__files_change__new_connections_use_them_and_old_ones_stay(
    secure: Server, files: Files
) -> None:
    first = _serial_of(files.cert.read_bytes())
    assert await _serial(secure) == first
    async with aio.secure_channel(secure.address, files.credentials()) as channel:
        stub: Any = tasks_grpc.TaskServiceStub(channel)
        await stub.ListTasks(LISTING)
        files.renew()
        second = _serial_of(files.cert.read_bytes())
        assert second != first
        assert await _serial(secure) == second
        await stub.ListTasks(LISTING)


async def test_renew__file_is_broken__the_old_certificate_stays_and_it_is_logged(
    secure: Server, files: Files, caplog: pytest.LogCaptureFixture
) -> None:
    first = _serial_of(files.cert.read_bytes())
    files.cert.write_text("half a file")
    with caplog.at_level(logging.ERROR):
        assert await _serial(secure) == first
    assert "holds no certificate" in caplog.text
    files.renew()
    assert await _serial(secure) == _serial_of(files.cert.read_bytes())


async def test_renew__key_of_another_certificate__is_not_used_and_it_is_logged(
    secure: Server, files: Files, caplog: pytest.LogCaptureFixture
) -> None:
    first = _serial_of(files.cert.read_bytes())
    files.key.write_bytes(files.authority.issue_cert("other").private_key_pem.bytes())
    with caplog.at_level(logging.ERROR):
        assert await _serial(secure) == first
    assert "are no certificate and its unencrypted key" in caplog.text


@pytest.mark.parametrize("broken", ["cert", "key"])
def test_read__file_is_none_of_its_kind__is_named(files: Files, broken: str) -> None:
    path: Path = getattr(files, broken)
    path.write_text("nothing")
    with pytest.raises(OSError, match=str(path)):
        tls.credentials(certificates.Files(files.cert, files.key))
