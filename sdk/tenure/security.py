"""TLS of connections to the server: whom to trust, and how to show who this is."""

from __future__ import annotations

import dataclasses
import os
import pathlib
import ssl
from typing import TypeAlias

import grpc

from tenure import check, errors

Path: TypeAlias = str | os.PathLike[str]


@dataclasses.dataclass(frozen=True, slots=True)
class TLS:
    """TLS says how the server's certificate is checked and which one this client shows.

    Attributes:
        ca: File of certificates (PEM) that the server's must be signed by; None: gRPC's own list
            of public authorities.
        cert: File of the client's certificate and its chain (PEM), if the server asks for one.
        key: File of the private key of `cert` (PEM, not encrypted).
    """

    ca: Path | None = None
    cert: Path | None = None
    key: Path | None = None

    def __post_init__(self) -> None:
        for name in ("ca", "cert", "key"):
            value = getattr(self, name)
            if value is not None and not isinstance(value, str | os.PathLike):
                raise check.wrong_type(f"TLS: {name}", "the path of a PEM file", value)
            if value is not None:
                object.__setattr__(self, name, os.fspath(value))
        if (self.cert is None) != (self.key is None):
            raise errors.WrongValue("TLS: cert and key are given together or not at all")

    def credentials(self) -> grpc.ChannelCredentials:
        """Reads the files.

        Raises:
            WrongValue: a file is missing, is no PEM, or key and certificate do not belong together.
        """
        self.context()
        return grpc.ssl_channel_credentials(
            root_certificates=_read(self.ca, "ca"),
            private_key=_read(self.key, "key"),
            certificate_chain=_read(self.cert, "cert"),
        )

    def context(self) -> ssl.SSLContext:
        """Returns the same for Python's own TLS, whose refusals say what is wrong.

        Raises:
            WrongValue: as of `credentials`.
        """
        for path, name in ((self.ca, "ca"), (self.cert, "cert"), (self.key, "key")):
            _read(path, name)
        context = ssl.create_default_context()
        context.set_alpn_protocols(["h2"])
        try:
            if self.ca is not None:
                context = ssl.create_default_context(cafile=os.fspath(self.ca))
                context.set_alpn_protocols(["h2"])
        except (ssl.SSLError, ValueError) as exc:
            raise errors.WrongValue(f"TLS: {self.ca} holds no certificates in PEM form") from exc
        if self.cert is not None:
            try:
                # An encrypted key would be asked for on the terminal otherwise.
                context.load_cert_chain(self.cert, self.key, password="")
            except (ssl.SSLError, ValueError) as exc:
                raise errors.WrongValue(
                    f"TLS: {self.cert} and {self.key} are no certificate and its unencrypted"
                    f" private key in PEM form: {exc}"
                ) from exc
        return context


# What programs may say: True is TLS with public authorities, a path is that of `ca`.
Argument: TypeAlias = bool | Path | TLS | None


def from_argument(value: object) -> TLS | None:
    """Reads what `tls=` was given; None and False are plain text.

    Raises:
        WrongType: something else.
    """
    if value is None or value is False:
        return None
    if value is True:
        return TLS()
    if isinstance(value, TLS):
        return value
    if isinstance(value, str | os.PathLike) and os.fspath(value):
        return TLS(ca=os.fspath(value))
    raise check.wrong_type("tls", "True, the path of a CA file, or tenure.TLS(...)", value)


def from_environment() -> TLS | None:
    """Reads TENURE_TLS_CA, TENURE_TLS_CLIENT_CERT and TENURE_TLS_CLIENT_KEY; None if none is set."""
    names = ("CA", "CLIENT_CERT", "CLIENT_KEY")
    ca, cert, key = (os.environ.get(f"TENURE_TLS_{name}") or None for name in names)
    if ca is None and cert is None and key is None:
        return None
    if (cert is None) != (key is None):
        raise errors.WrongValue(
            "TENURE_TLS_CLIENT_CERT and TENURE_TLS_CLIENT_KEY are set together or not at all"
        )
    return TLS(ca, cert, key)


def _read(path: Path | None, name: str) -> bytes | None:
    if path is None:
        return None
    try:
        return pathlib.Path(path).read_bytes()
    except OSError as exc:
        raise errors.WrongValue(
            f"TLS: the file of {name}, {os.fspath(path)}, cannot be read: {exc.strerror}"
        ) from exc
