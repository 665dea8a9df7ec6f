"""gRPC channels: their settings, addresses and metadata.

A channel is dropped, not mended, when it fails again and again: only a new one resolves names
anew and leaves a half-open connection behind.
"""

from __future__ import annotations

import dataclasses
import os

import grpc
import grpc.aio

DEFAULT_ADDRESS = "127.0.0.1:7711"
DEFAULT_NAMESPACE = "default"

# A message is at most 16 MiB by the protocol; the rest is room for what surrounds payloads.
MESSAGE_BYTES_MAX = 17 * 1024 * 1024

OPTIONS: tuple[tuple[str, int], ...] = (
    # Finds half-open connections within 30 s, and is no faster than servers allow by default.
    ("grpc.keepalive_time_ms", 20_000),
    ("grpc.keepalive_timeout_ms", 10_000),
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


@dataclasses.dataclass(frozen=True, slots=True)
class Target:
    """Target is which namespace of which server is spoken to, and by whom.

    Attributes:
        address: `host:port`, or `https://host:port` for TLS with the system's certificates.
        namespace: Name of the namespace.
        api_key: Key that travels as `authorization: Bearer`; empty: none.
    """

    address: str
    namespace: str
    api_key: str = dataclasses.field(repr=False)

    @property
    def metadata(self) -> tuple[tuple[str, str], ...]:
        """Metadata of every call."""
        own = (("tenure-namespace", self.namespace),)
        if self.api_key:
            return (*own, ("authorization", f"Bearer {self.api_key}"))
        return own

    def open_channel(self) -> grpc.aio.Channel:
        """Returns a new channel; it connects at its first call. Needs a running loop."""
        scheme, found, rest = self.address.partition("://")
        if found and scheme == "https":
            return grpc.aio.secure_channel(
                rest, grpc.ssl_channel_credentials(), options=list(OPTIONS)
            )
        return grpc.aio.insecure_channel(rest if found else self.address, options=list(OPTIONS))


def target(address: str | None, namespace: str | None, api_key: str | None) -> Target:
    """Fills in from TENURE_ADDRESS, TENURE_NAMESPACE, TENURE_API_KEY and the defaults."""
    environment = os.environ
    return Target(
        address or environment.get("TENURE_ADDRESS") or DEFAULT_ADDRESS,
        namespace or environment.get("TENURE_NAMESPACE") or DEFAULT_NAMESPACE,
        api_key or environment.get("TENURE_API_KEY") or "",
    )
