"""Why gRPC cannot speak to an address that somebody listens at.

gRPC says UNAVAILABLE whether nobody listens, TLS meets plain text, a certificate is foreign, or a
web server answers, and only the first of these is cured by waiting. One short look with Python's
own sockets, after a call has failed, tells them apart.
"""

from __future__ import annotations

import asyncio
import contextlib
import ssl
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from tenure.channel import Target

# Of one look; a peer that says nothing for so long is left to gRPC's own patience.
LOOK_SECONDS: Final = 1.5
# The preface of HTTP/2 and an empty SETTINGS frame: a gRPC server answers with its own SETTINGS.
_HELLO: Final = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + b"\0\0\0\4\0\0\0\0\0"
_FRAME_KIND_AT: Final = 3
_SETTINGS: Final = 4
_TLS_ALERT: Final = b"\x15\x03"
# OpenSSL's words for a client certificate that is missing, or not taken.
_CERTIFICATE_ALERTS: Final = ("CERTIFICATE_REQUIRED", "BAD_CERTIFICATE", "UNKNOWN_CA")


async def mismatch(target: Target) -> str | None:
    """Looks at what listens there.

    Returns:
        What is wrong and what to do, in one sentence; None if it may speak gRPC, or nobody listens.
    """
    host, _, port = target.address.rpartition(":")
    look = _Look(host.strip("[]"), int(port))
    with contextlib.suppress(OSError, TimeoutError):
        if target.tls is None:
            return await look.in_plain_text()
        return await look.in_tls(target.tls.context())
    return None


class _Look:
    def __init__(self, host: str, port: int) -> None:
        self._host = host
        self._port = port
        self._where = f"the server at {host}:{port}"

    async def in_plain_text(self) -> str | None:
        answer = await self._answer(None)
        if answer.startswith(_TLS_ALERT) or (not answer and await self._speaks_tls()):
            return (
                f"{self._where} speaks TLS, and this client plain text:"
                " pass tls=..., or set TENURE_TLS_CA"
            )
        return self._foreign(answer)

    async def in_tls(self, context: ssl.SSLContext) -> str | None:
        try:
            answer = await self._answer(context)
        except ssl.SSLCertVerificationError as exc:
            return (
                f"the certificate of {self._where} is not trusted ({exc.verify_message}):"
                " name its authority with tls=... or TENURE_TLS_CA, and the server as its"
                " certificate does"
            )
        except (ssl.SSLError, ConnectionError, EOFError) as exc:
            reason = getattr(exc, "reason", "") or ""
            if any(each in reason for each in _CERTIFICATE_ALERTS):
                return self._wants_certificate
            if await self._speaks_plain_text():
                return (
                    f"{self._where} speaks plain text, and this client TLS:"
                    " leave out tls= and TENURE_TLS_*, or give the server a certificate"
                )
            return None
        # A gRPC server that misses a client certificate hangs up without a word.
        return self._foreign(answer) if answer else self._wants_certificate

    @property
    def _wants_certificate(self) -> str:
        return (
            f"{self._where} hangs up after the TLS handshake; most likely it asks for a client"
            " certificate that it trusts: pass tls=tenure.TLS(cert=..., key=...), or set"
            " TENURE_TLS_CLIENT_CERT and TENURE_TLS_CLIENT_KEY"
        )

    def _foreign(self, answer: bytes) -> str | None:
        if not answer or (len(answer) > _FRAME_KIND_AT and answer[_FRAME_KIND_AT] == _SETTINGS):
            return None
        if answer.startswith(b"HTTP/1"):
            return (
                f"{self._where} speaks HTTP/1.1, not gRPC:"
                " is this the port of a web server, or of a proxy without HTTP/2?"
            )
        return f"{self._where} does not speak gRPC (it answers {answer!r}): is the port right?"

    async def _speaks_tls(self) -> bool:
        context = ssl.create_default_context()
        # Nothing is sent that is worth protecting; who answers does not matter here.
        context.check_hostname = False
        context.verify_mode = ssl.CERT_NONE
        context.set_alpn_protocols(["h2"])
        try:
            await self._answer(context)
        except ssl.SSLError as exc:
            return any(each in (exc.reason or "") for each in _CERTIFICATE_ALERTS)
        except (OSError, EOFError, TimeoutError):
            return False
        return True

    async def _speaks_plain_text(self) -> bool:
        with contextlib.suppress(OSError, TimeoutError):
            answer = await self._answer(None)
            return bool(answer) and not answer.startswith(_TLS_ALERT)
        return False

    async def _answer(self, context: ssl.SSLContext | None) -> bytes:
        """Says hello and returns the first bytes that come back; empty if it hangs up."""
        async with asyncio.timeout(LOOK_SECONDS):
            reader, writer = await asyncio.open_connection(
                self._host, self._port, ssl=context, server_hostname=self._host if context else None
            )
            try:
                writer.write(_HELLO)
                await writer.drain()
                return await reader.read(9)
            except ConnectionError:
                return b""
            finally:
                writer.transport.abort()
