"""`tenure config`: the settings in force, where each came from, and what is wrong with them."""

from __future__ import annotations

import os
import re
import sys
from typing import TYPE_CHECKING, Final

from tenure_service.cli import exits, server, show

if TYPE_CHECKING:
    import argparse

_CLIENT: Final = {
    "TENURE_ADDRESS": "127.0.0.1:7711",
    "TENURE_NAMESPACE": "default",
    "TENURE_API_KEY": "",
    "TENURE_TLS_CA": "",
    "TENURE_TLS_CLIENT_CERT": "",
    "TENURE_TLS_CLIENT_KEY": "",
}
# Variables that other parts of the tree read: the tests.
_OTHER_PREFIX: Final = "TENURE_TEST_"
_MASK: Final = "***"


def run(values: argparse.Namespace) -> int:
    """Prints the settings of a server and of clients; exits with 2 where one is wrong."""
    rows = _server_rows(values)
    rows += [
        {
            "setting": name.removeprefix("TENURE_").lower(),
            "value": _masked_key(name, os.environ.get(name) or default),
            "source": name if os.environ.get(name) else "default",
        }
        for name, default in _CLIENT.items()
    ]
    if values.json:
        show.document(rows)
    else:
        show.table(
            ["setting", "value", "source"],
            [(each["setting"], each["value"], each["source"]) for each in rows],
            empty="",
            cell_chars_max=sys.maxsize,  # what is set is shown whole
        )
    for name in _unknown():
        show.note(f"tenure: {name} is set, but there is no setting of this name")
    server.configuration(values)
    return exits.OK


def _server_rows(values: argparse.Namespace) -> list[dict[str, str]]:
    """Lists the settings as they were given: also those that are wrong."""
    from tenure_service import config

    rows: list[dict[str, str]] = []
    for name, field in config.ServerConfig.model_fields.items():
        variable = config.variable(name)
        flag = getattr(values, name, None)
        if flag is not None:
            value, source = flag, config.flag(name)
        elif os.environ.get(variable) or (name == "http" and variable in os.environ):
            value, source = os.environ[variable], variable
        else:
            value = None if field.is_required() else field.default
            if name == "http":
                # Its default goes by where gRPC listens, which stands before it.
                listen = next(row["value"] for row in rows if row["setting"] == "listen")
                value = config.ServerConfig.model_construct(listen=listen).http_address
            source = "default" if value is not None else "not set"
        text = "" if value is None else mask(str(value))
        rows.append({"setting": name, "value": text, "source": source})
    return rows


def mask(text: str) -> str:
    """Hides passwords in a PostgreSQL URL or conninfo string; rather too much than too little."""
    text = re.sub(r"(://[^:/@]*:).*@", rf"\g<1>{_MASK}@", text)
    secret = r"('(?:[^'\\]|\\.)*'?|[^\s&]+)"  # noqa: S105 - a pattern
    return re.sub(rf"((?:ssl)?password\s*=\s*){secret}", rf"\g<1>{_MASK}", text)


def _masked_key(name: str, value: str) -> str:
    return _MASK if value and name == "TENURE_API_KEY" else value


def _unknown() -> list[str]:
    from tenure_service import config

    known = {config.variable(name) for name in config.ServerConfig.model_fields} | {*_CLIENT}
    return sorted(
        name
        for name in os.environ
        if name.startswith(config.PREFIX)
        and name not in known
        and not name.startswith(_OTHER_PREFIX)
    )
