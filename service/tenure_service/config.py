"""Configuration of a server: environment variables TENURE_*, overridden by flags.

Everything is checked at start, and every problem is listed at once. `tenure config` prints the
result, without secrets.
"""

import ipaddress
import os
import re
import ssl
from collections.abc import Collection, Mapping
from datetime import timedelta
from pathlib import Path
from typing import Annotated, Any, Final

from pydantic import (
    BaseModel,
    ConfigDict,
    Field,
    ValidationError,
    ValidationInfo,
    field_validator,
)

from tenure_service import certificates
from tenure_service.engine import limits

PREFIX: Final = "TENURE_"

_PORT: Final = 7711
_HTTP_PORT: Final = 7712

Seconds = Annotated[float, Field(gt=0, le=3600)]
Grace = Annotated[float, Field(gt=0, le=30 * 86_400)]


class ConfigInvalid(Exception):
    """Settings are wrong; the message lists every one of them."""


class ServerConfig(BaseModel):
    """The settings of one server process."""

    model_config = ConfigDict(frozen=True, extra="forbid", validate_default=True)

    database: str = Field(description="libpq connection string of the PostgreSQL 18 database")
    schema_name: str = Field("tenure", pattern=r"^[a-z_][a-z0-9_]{0,62}$")
    listen: str = Field("127.0.0.1:7711", description="host:port for gRPC; port 0 is any free one")
    http: str | None = Field(
        None,
        description="host:port for metrics and health over HTTP; empty: none. By default "
        "127.0.0.1:7712, beside another gRPC port than 7711 any free port there",
    )
    tls_cert: Path | None = Field(None, description="file with the certificate (PEM), for TLS")
    tls_key: Path | None = Field(None, description="file with its private key (PEM)")
    tls_client_ca: Path | None = Field(
        None, description="file with who signs clients' certificates (PEM), for mutual TLS"
    )
    require_keys: bool = Field(False, description="refuse callers without a key")
    insecure: bool = Field(False, description="allow a non-loopback address without TLS and keys")
    migrate: bool = Field(True, description="bring the schema up to date at start")
    connections: int = Field(16, ge=16, le=200, description="connections to PostgreSQL, at most")
    payload_memory_mib: int = Field(
        limits.PAYLOAD_MEMORY_BYTES // 1024**2,
        ge=64,
        le=1024**2,
        description="MiB of payloads that a process holds at most; producers wait from half of it",
    )
    processes: int = Field(1, ge=1, le=64)
    lease_seconds: Seconds = limits.LEASE_DURATION.total_seconds()
    first_lease_seconds: Seconds = limits.FIRST_LEASE_DURATION.total_seconds()
    heartbeat_seconds: Seconds = limits.HEARTBEAT_INTERVAL.total_seconds()
    accept_seconds: Seconds = limits.ACCEPT_TIMEOUT.total_seconds()
    version_grace_seconds: Grace = limits.VERSION_GRACE.total_seconds()
    stop_grace_seconds: Seconds = limits.STOP_GRACE.total_seconds()
    log_level: str = Field("INFO", pattern=r"^(DEBUG|INFO|WARNING|ERROR)$")
    log_format: str = Field(
        "text", pattern="^(text|json)$", description="lines for people, or JSON objects"
    )

    @field_validator("*", mode="before")
    @classmethod
    def _encodes(cls, value: Any) -> Any:
        # Bytes of the environment that are no UTF-8 reach Python as lone surrogates.
        if isinstance(value, str):
            try:
                value.encode()
            except UnicodeEncodeError:
                raise ValueError("is not UTF-8") from None
        return value

    @field_validator("listen", "http")
    @classmethod
    def _listen_form(cls, value: str | None, info: ValidationInfo) -> str | None:
        if not value and info.field_name == "http":
            return value
        host, colon, port = (value or "").rpartition(":")
        if not colon or not host or not port.isdigit() or int(port) > 65535:
            usual = _PORT if info.field_name == "listen" else _HTTP_PORT
            raise ValueError(f"must be host:port, such as 127.0.0.1:{usual}")
        return value

    # Checks of two settings stand at the later one, so that they are made, and told, together with
    # those of single ones.
    @field_validator("heartbeat_seconds")
    @classmethod
    def _heartbeat_fits(cls, value: float, info: ValidationInfo) -> float:
        leases = [info.data.get(name) for name in ("lease_seconds", "first_lease_seconds")]
        shorter = min((lease for lease in leases if lease is not None), default=value * 3)
        if value > shorter / 3:
            raise ValueError(
                f"is {value:g}; it must be at most a third of the shorter lease ({shorter:g} s), "
                "so that one lost heartbeat loses nothing"
            )
        return value

    @field_validator("insecure")
    @classmethod
    def _open_on_purpose(cls, value: bool, info: ValidationInfo) -> bool:  # noqa: FBT001 - pydantic's form
        missing = [
            setting
            for setting, there in (
                # One that cannot be read is not missing.
                ("tls_cert", info.data.get("tls_cert", True)),
                ("require_keys", info.data.get("require_keys")),
            )
            if not there
        ]
        for name in ("listen", "http"):
            address = info.data.get(name)
            if not value and address and not is_loopback(address) and missing:
                flags = " and ".join(f"--{name.replace('_', '-')}" for name in missing)
                raise ValueError(
                    f"{name} is {address}, an address that others can reach, without {flags}; "
                    "set them, listen on 127.0.0.1, or say --insecure (TENURE_INSECURE=1)"
                )
        return value

    @field_validator("tls_cert")
    @classmethod
    def _tls_cert_reads(cls, value: Path | None) -> Path | None:
        if value is not None:
            try:
                certificates.pem(value, "CERTIFICATE")
            except OSError as exc:
                text = f"{value} cannot be used: {exc.strerror or exc}"
                raise ValueError(text) from exc
        return value

    @field_validator("tls_key", "tls_client_ca")
    @classmethod
    def _tls_complete(cls, value: Path | None, info: ValidationInfo) -> Path | None:
        if "tls_cert" not in info.data:
            return value  # it is wrong itself, which is told
        certificate = info.data["tls_cert"]
        if value is not None and certificate is None:
            raise ValueError("is set without --tls-cert (TENURE_TLS_CERT)")
        if info.field_name == "tls_key" and value is None and certificate is not None:
            raise ValueError("not set, and --tls-cert needs it")
        if value is None or certificate is None:
            return value
        try:
            if info.field_name == "tls_key":
                certificates.Files(certificate, value).context()
            else:
                certificates.trust(ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER), value)
        except OSError as exc:
            raise ValueError(
                f"{value} cannot be used (with {certificate}): {exc.strerror or exc}"
            ) from exc
        return value

    @property
    def is_open(self) -> bool:
        """True if others can reach it and something of TLS and keys is missing."""
        protected = self.tls_cert is not None and self.require_keys
        return not protected and bool(self.open_addresses)

    @property
    def open_addresses(self) -> list[str]:
        """Those of its addresses that others can reach."""
        found = [self.listen, self.http_address]
        return [address for address in found if address and not is_loopback(address)]

    @property
    def http_address(self) -> str:
        """Where HTTP is served; empty: nowhere."""
        if self.http is not None:
            return self.http
        own = self.listen.rpartition(":")[2] == str(_PORT)
        return f"127.0.0.1:{_HTTP_PORT if own else 0}"

    @property
    def stop_grace(self) -> timedelta:
        """How long a stop may take."""
        return timedelta(seconds=self.stop_grace_seconds)


def is_loopback(address: str) -> bool:
    """Says whether only this machine can reach an address."""
    host = address.rpartition(":")[0].strip("[]")
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def load(
    flags: Mapping[str, Any] | None = None, environment: Mapping[str, str] | None = None
) -> ServerConfig:
    """Reads the settings: flags, else TENURE_* variables, else defaults.

    Raises:
        ConfigInvalid: listing every setting that is wrong.
    """
    environment = os.environ if environment is None else environment
    # Empty counts as not set, but where it says "none".
    values: dict[str, Any] = {
        name: environment[variable(name)]
        for name in ServerConfig.model_fields
        if environment.get(variable(name)) or (name == "http" and variable(name) in environment)
    }
    given = {name: value for name, value in (flags or {}).items() if value is not None}
    values |= given
    try:
        return ServerConfig.model_validate(values)
    except ValidationError as exc:
        lines = [_line(error, given) for error in exc.errors(include_url=False)]
        raise ConfigInvalid("\n".join(lines)) from exc


def variable(name: str) -> str:
    """Names the environment variable of a setting."""
    return PREFIX + ("SCHEMA" if name == "schema_name" else name.upper())


def flag(name: str) -> str:
    """Names the flag of a setting."""
    return f"--{name.removesuffix('_name').replace('_', '-')}"


def _line(error: Any, given: Collection[str]) -> str:
    """Says what is wrong with a setting, by the name under which it was set."""
    where = ".".join(str(part) for part in error["loc"])
    text = re.sub(r"^Value error, |^(Input|String)(?= should)", "", error["msg"]).strip()
    if error["type"] == "missing":
        text = f"not set, and {flag(where)} was not given"
    elif where != "database" and error["type"] != "value_error":
        text = f"{text}; it is {error['input']!r}"
    if where == "insecure" and error["type"] == "value_error":
        return text  # of an address: nobody has to have set this one
    return f"{flag(where) if where in given else variable(where)}: {text}" if where else text
