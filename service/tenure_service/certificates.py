"""Certificates in files, which are read again when they change: a renewed one needs no restart.

A leaf beside `config`, which has the files checked at the start; `rpc` and `web` make of them what
their libraries want, and ask for changes at each handshake.
"""

import logging
import ssl
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Generic, TypeVar

_log = logging.getLogger(__name__)

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Files:
    """Where certificate and key are, and who signs those of clients (none: anybody may call)."""

    certificate: Path
    key: Path
    client_ca: Path | None = None

    def context(self) -> ssl.SSLContext:
        """Reads the files into a context for a server, which shows that they can be used.

        Raises:
            OSError: one cannot be read, or is not what it should be; the text names it.
        """
        pem(self.certificate, "CERTIFICATE")
        pem(self.key, "PRIVATE KEY")
        context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
        try:
            # An encrypted key would be asked for on the terminal otherwise.
            context.load_cert_chain(self.certificate, self.key, password="")
        except (ssl.SSLError, ValueError) as exc:
            raise OSError(
                f"{self.certificate} and {self.key} are no certificate and its unencrypted key: {exc}"
            ) from exc
        if self.client_ca is not None:
            trust(context, self.client_ca)
        return context

    def stamp(self) -> tuple[tuple[int, int], ...]:
        """Tells one state of the files from another; empty if one cannot be looked at."""
        paths = (self.certificate, self.key, self.client_ca)
        try:
            found = [path.stat() for path in paths if path is not None]
        except OSError:
            return ()
        return tuple((one.st_mtime_ns, one.st_ino) for one in found)


class Watched(Generic[T]):
    """What is made of the files, and made anew when they change.

    Args:
        files: The files.
        make: Makes it; an OSError says why it cannot.
        use: What it is for, in the log.

    Raises:
        OSError: as `make`.

    Attributes:
        latest: What was made of the files when they could last be used.
    """

    def __init__(self, files: Files, make: Callable[[Files], T], use: str) -> None:
        self._files = files
        self._make = make
        self._use = use
        # Before they are read: what changes meanwhile is seen the next time.
        self._stamp = files.stamp()
        self.latest = make(files)

    def changed(self) -> T | None:
        """Looks at the files; gives `latest` if they have changed and can be used, else None."""
        stamp = self._files.stamp()
        if not stamp or stamp == self._stamp:
            return None
        self._stamp = stamp
        try:
            self.latest = self._make(self._files)
        except OSError as exc:
            _log.error("the changed TLS files are not used for %s: %s", self._use, exc)
            return None
        _log.info("TLS files have changed: new connections over %s use them", self._use)
        return self.latest


def trust(context: ssl.SSLContext, authority: Path) -> None:
    """Has a context ask clients for certificates of an authority.

    Raises:
        OSError: the file cannot be read, or holds no certificates; the text names it.
    """
    pem(authority, "CERTIFICATE")
    try:
        context.load_verify_locations(authority)
    except ssl.SSLError as exc:
        raise OSError(f"{authority} holds no certificates that can be read: {exc}") from exc
    context.verify_mode = ssl.CERT_REQUIRED


def pem(path: Path, kind: str) -> bytes:
    """Reads a file.

    Raises:
        OSError: it cannot be read, or has nothing of this kind; the text names it.
    """
    data = path.read_bytes()
    if f"{kind}-----".encode() not in data:
        raise OSError(f"{path} holds no {kind.lower()} in PEM form")
    return data
