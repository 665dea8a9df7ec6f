"""gRPC channels: their settings, addresses and metadata.

A channel is dropped, not mended, when it fails again and again: only a new one resolves names
anew and leaves a half-open connection behind.
"""

from __future__ import annotations

import dataclasses
import os
import re

import grpc
import grpc.aio

from tenure import check, errors, security

DEFAULT_ADDRESS = "127.0.0.1:7711"
DEFAULT_NAMESPACE = "default"

# A message is at most 16 MiB by the protocol; the rest is room for what surrounds payloads.
MESSAGE_BYTES_MAX = 17 * 1024 * 1024

OPTIONS: tuple[tuple[str, int], ...] = (
    # Finds half-open connections within 30 s, and is no faster than servers allow by default.
    ("grpc.keepalive_time_ms", 20_000),
    ("grpc.keepalive_timeout_ms", 10_000),
    # What gRPC 1.85 goes by instead of the line above; its own default is a minute.
    ("grpc.http2.ping_timeout_ms", 10_000),
    ("grpc.keepalive_permit_without_calls", 1),
    ("grpc.http2.max_pings_without_data", 0),
    ("grpc.max_send_message_length", MESSAGE_BYTES_MAX),
    ("grpc.max_receive_message_length", MESSAGE_BYTES_MAX),
    # Without it a new channel to the same address takes over the connection of the dropped one.
    ("grpc.use_local_subchannel_pool", 1),
    # gRPC's own pauses grow to minutes; the callers here pause by themselves, with jitter.
    ("grpc.initial_reconnect_backoff_ms", 100),
    ("grpc.min_reconnect_backoff_ms", 2_000),
    ("grpc.max_reconnect_backoff_ms", 2_000),
    # Retries are decided here, where the request_id is known.
    ("grpc.enable_retries", 0),
    # A proxy for web traffic that the environment names is not the way to the task server.
    ("grpc.enable_http_proxy", 0),
)


_ADDRESS_EXAMPLE = f"`host:port`, such as {DEFAULT_ADDRESS}"
_HOST = re.compile(r"\[[0-9A-Fa-f:.%]+\]|[^\s:/@\[\]]+")
_SECURE = "https"


@dataclasses.dataclass(frozen=True, slots=True)
class Target:
    """Target is which namespace of which server is spoken to, how, and by whom.

    Attributes:
        address: `host:port`.
        namespace: Name of the namespace.
        api_key: Key that travels as `authorization: Bearer`; empty: none.
        tls: How to speak TLS; None: plain text.
    """

    address: str
    namespace: str
    api_key: str = dataclasses.field(repr=False)
    tls: security.TLS | None = None

    @property
    def metadata(self) -> tuple[tuple[str, str], ...]:
        """Metadata of every call."""
        own = (("tenure-namespace", self.namespace),)
        if self.api_key:
            return (*own, ("authorization", f"Bearer {self.api_key}"))
        return own

    def open_channel(self) -> grpc.aio.Channel:
        """Returns a new channel; it connects at its first call. Needs a running loop.

        Certificates are read each time, so that renewed ones are used from the next channel on.

        Raises:
            WrongValue: a file that `tls` names is missing or holds something else.
        """
        options = list(OPTIONS)
        if self.tls is None:
            return grpc.aio.insecure_channel(self.address, options=options)
        return grpc.aio.secure_channel(self.address, self.tls.credentials(), options=options)


def check_target(address: object, namespace: object, api_key: object, tls: object = None) -> None:
    """Checks what a program says of its server, before anything is filled in."""
    if address is not None:
        split_address(address, "address")
    if namespace is not None:
        check.text(namespace, "namespace")
    if api_key is not None:
        _check_key(api_key, "api_key")
    security.from_argument(tls)


def target(
    address: str | None,
    namespace: str | None,
    api_key: str | None,
    tls: security.Argument = None,
) -> Target:
    """Fills in from TENURE_ADDRESS, TENURE_NAMESPACE, TENURE_API_KEY, TENURE_TLS_* and the defaults.

    Raises:
        WrongType: an argument of another type.
        WrongValue: an address that is not `host:port`, or whatever else no server could be asked
            with; the text names the argument or the variable.
    """
    check_target(address, namespace, api_key, tls)
    environment = os.environ
    given, source = address or environment.get("TENURE_ADDRESS"), "address"
    if given is None or not given:
        given = DEFAULT_ADDRESS
    elif not address:
        source = "TENURE_ADDRESS"
    scheme, place = split_address(given, source)
    if namespace is None and (variable := environment.get("TENURE_NAMESPACE")):
        check.text(variable, "TENURE_NAMESPACE")
        namespace = variable
    if api_key is None and (variable := environment.get("TENURE_API_KEY")):
        _check_key(variable, "TENURE_API_KEY")
        api_key = variable
    secured = security.from_argument(tls) if tls is not None else security.from_environment()
    if scheme == _SECURE and secured is None:
        if tls is False:
            raise errors.WrongValue(f"{source} says https, and tls=False says plain text")
        secured = security.TLS()
    if scheme == "http" and secured is not None:
        raise errors.WrongValue(f"{source} says http, and a setting for TLS is there; say https")
    return Target(place, namespace or DEFAULT_NAMESPACE, api_key or "", secured)


def split_address(value: object, name: str) -> tuple[str, str]:
    """Splits an address into its scheme, which may be empty, and `host:port`.

    Raises:
        WrongType: no text.
        WrongValue: not `host:port`, with `http://` or `https://` before it or not.
    """
    if not isinstance(value, str):
        raise check.wrong_type(name, _ADDRESS_EXAMPLE, value)
    scheme, found, place = value.partition("://")
    if not found:
        scheme, place = "", value
    elif scheme not in {"http", _SECURE}:
        raise check.wrong_value(
            name, f"{_ADDRESS_EXAMPLE}, after http:// or https:// or not", value
        )
    place = place.removesuffix("/")
    host, colon, port = place.rpartition(":")
    if not colon or not _HOST.fullmatch(host):
        raise check.wrong_value(name, _ADDRESS_EXAMPLE, value)
    if not port.isdecimal() or not 1 <= int(port) <= 65_535:
        raise check.wrong_value(name, f"{_ADDRESS_EXAMPLE}, the port 1 to 65535", value)
    return scheme, place


def _check_key(value: object, name: str) -> None:
    # The value is a secret and stands in no message.
    if not isinstance(value, str):
        raise errors.WrongType(f"{name} is a text, not of type {type(value).__name__}")
    if not value:
        raise errors.WrongValue(f"{name} is empty: give a key, or None for the environment's")
    if not value.isascii() or not value.isprintable() or " " in value:
        raise errors.WrongValue(
            f"{name} is a text of printable ASCII characters without spaces or line breaks;"
            " a file that it was read from may end in one"
        )
