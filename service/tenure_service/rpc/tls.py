"""TLS from files, which are read again when they change: a renewed certificate needs no restart."""

import logging
import ssl
from dataclasses import dataclass
from pathlib import Path

import grpc

_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Files:
    """Where certificate and key are, and who signs those of clients (none: anybody may call)."""

    certificate: Path
    key: Path
    client_ca: Path | None = None

    def stamp(self) -> tuple[tuple[int, int], ...]:
        """Tells one state of the files from another; empty if one cannot be looked at."""
        try:
            found = [path.stat() for path in self._all()]
        except OSError:
            return ()
        return tuple((one.st_mtime_ns, one.st_ino) for one in found)

    def read(self) -> grpc.ServerCertificateConfiguration:
        """Reads the files.

        Raises:
            OSError: one cannot be read, or is not what it should be.
        """
        certificate = _pem(self.certificate, "CERTIFICATE")
        key = _pem(self.key, "PRIVATE KEY")
        try:
            # An encrypted key would be asked for on the terminal otherwise.
            ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER).load_cert_chain(
                self.certificate, self.key, password=""
            )
        except (ssl.SSLError, ValueError) as exc:
            raise OSError(
                f"{self.certificate} and {self.key} are no certificate and its unencrypted key: {exc}"
            ) from exc
        ca = None if self.client_ca is None else _pem(self.client_ca, "CERTIFICATE")
        return grpc.ssl_server_certificate_configuration([(key, certificate)], ca)

    def _all(self) -> list[Path]:
        found = [self.certificate, self.key]
        return found if self.client_ca is None else [*found, self.client_ca]


class _Watched:
    """Gives gRPC the certificate that is to be used, at each handshake."""

    def __init__(self, files: Files) -> None:
        self._files = files
        self._stamp = files.stamp()

    def __call__(self) -> grpc.ServerCertificateConfiguration | None:
        stamp = self._files.stamp()
        if not stamp or stamp == self._stamp:
            return None
        self._stamp = stamp
        try:
            found = self._files.read()
        except OSError as exc:
            _log.error("the changed TLS files are not used: %s", exc)
            return None
        _log.info("TLS files have changed: new connections use them")
        return found


def credentials(files: Files) -> grpc.ServerCredentials:
    """Gives the credentials of a server whose certificate is in files.

    Raises:
        OSError: one cannot be read, or is not what it should be.
    """
    watched = _Watched(files)
    return grpc.dynamic_ssl_server_credentials(
        files.read(),
        watched,  # type: ignore[arg-type]  # gRPC takes None for "as before"
        require_client_authentication=files.client_ca is not None,
    )


def _pem(path: Path, kind: str) -> bytes:
    data = path.read_bytes()
    if f"{kind}-----".encode() not in data:
        raise OSError(f"{path} holds no {kind.lower()} in PEM form")
    return data
