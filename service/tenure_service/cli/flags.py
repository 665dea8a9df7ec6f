"""Flags that several commands take, and the forms of their values."""

from __future__ import annotations

import argparse
import datetime
import re
from typing import Any, Final

#: Of any time that a flag takes: what the protocol allows for the longest of them.
_DAYS_MAX: Final = 3_650
_PRIORITY_MAX: Final = 100
#: Settings for which nothing is a value: `--http ''` serves none.
_MAY_BE_EMPTY: Final = frozenset({"http"})
_SHOWN_MAX: Final = 60
_UNITS: Final = {"": 1.0, "ms": 0.001, "s": 1.0, "m": 60.0, "h": 3600.0, "d": 86400.0}


class Parser(argparse.ArgumentParser):
    """A parser that takes no empty value, and none that is not UTF-8.

    An unset variable of a script, as in `--name "$NAME"`, would otherwise mean all, none or the
    default. Bytes that are no UTF-8 reach Python as lone surrogates, which nothing can be sent as.
    """

    def _get_values(self, action: argparse.Action, arg_strings: list[str]) -> Any:
        whole = action.nargs != argparse.PARSER  # which holds what is left for a subcommand
        if whole and action.dest not in _MAY_BE_EMPTY and "" in arg_strings:
            text = "must not be empty; leave it out instead"
            raise argparse.ArgumentError(action, text if action.option_strings else text[:17])
        for text in arg_strings if whole else ():
            if not encodes(text):
                shown = ascii(text if len(text) <= _SHOWN_MAX else f"{text[:_SHOWN_MAX]}…")
                raise argparse.ArgumentError(action, f"{shown} is not UTF-8")
        return super()._get_values(action, arg_strings)


def encodes(text: str) -> bool:
    """Says whether a text has a UTF-8 form; one with a lone surrogate has none."""
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True


def remote() -> argparse.ArgumentParser:
    """Gives the flags of commands that ask a server."""
    group = argparse.ArgumentParser(add_help=False)
    box = group.add_argument_group("server")
    box.add_argument(
        "--address",
        metavar="HOST:PORT",
        help="server to ask (TENURE_ADDRESS, else 127.0.0.1:7711)",
    )
    box.add_argument("--namespace", metavar="NAME", help="namespace (TENURE_NAMESPACE, or default)")
    box.add_argument("--json", action="store_true", help="print one JSON document, for scripts")
    return group


def settings() -> argparse.ArgumentParser:
    """Gives one flag for each field of `config.ServerConfig`.

    Values stay text: the configuration checks all of them and lists every problem at once.
    """
    group = argparse.ArgumentParser(add_help=False)
    box = group.add_argument_group("settings (each also as a variable, such as TENURE_DATABASE)")
    database(box)
    box.add_argument("--listen", metavar="HOST:PORT", help="address (127.0.0.1:7711); port 0: any")
    box.add_argument(
        "--http",
        metavar="HOST:PORT",
        help="metrics and health (127.0.0.1:7712); of several processes each takes the next port;"
        " '': none",
    )
    box.add_argument(
        "--insecure",
        action="store_const",
        const="1",
        help="listen without TLS and keys on an address that others can reach",
    )
    box.add_argument(
        "--migrate",
        action=argparse.BooleanOptionalAction,
        help="bring the schema up to date at start (yes)",
    )
    box.add_argument("--tls-cert", metavar="FILE", help="certificate (PEM); serves TLS only")
    box.add_argument("--tls-key", metavar="FILE", help="its private key (PEM)")
    box.add_argument("--tls-client-ca", metavar="FILE", help="who signs clients: mutual TLS")
    box.add_argument(
        "--require-keys",
        action=argparse.BooleanOptionalAction,
        help="refuse callers without a key (no); make keys with `tenure key create`",
    )
    for name, text in (
        ("connections", "connections to PostgreSQL a process, at most (16)"),
        ("payload-memory-mib", "MiB of payloads that a process holds at most (512)"),
        ("processes", "server processes on the one port (1)"),
        ("lease-seconds", "how long a worker may be silent (30)"),
        ("first-lease-seconds", "the same, before its first heartbeat (15)"),
        ("heartbeat-seconds", "pause between heartbeats of a worker (5)"),
        ("accept-seconds", "time for a worker to accept what it was handed (4)"),
        ("version-grace-seconds", "how long runs wait for workers of their version (600)"),
        ("stop-grace-seconds", "how long a stop may take (30)"),
        ("log-level", "DEBUG, INFO, WARNING or ERROR (INFO)"),
        ("log-format", "text, or json: an object a line (text)"),
    ):
        metavar = "NAME" if name.startswith("log-") else "N"
        box.add_argument(f"--{name}", metavar=metavar, help=text)
    return group


def database(box: argparse._ArgumentGroup | argparse.ArgumentParser) -> None:
    """Adds the flags that say where the tables are."""
    box.add_argument("--database", metavar="URL", help="PostgreSQL 18 or newer; URL or conninfo")
    box.add_argument("--schema", dest="schema_name", metavar="NAME", help="its schema (tenure)")


def policy(made: argparse.ArgumentParser) -> None:
    """Adds the flags of a policy; `policies.given` reads them."""
    box = made.add_argument_group("policy (what is left out is left to `tenure policy` and code)")
    box.add_argument("--max-attempts", type=count, metavar="N", help="the first included")
    for name, text in (
        ("initial-delay", "before the second attempt"),
        ("max-delay", "between two attempts at most"),
        ("schedule-to-start", "from being ready until a handler starts"),
        ("start-to-close", "from the handler's start to its result, each attempt"),
        ("heartbeat", "between two signs of life of the handler"),
        ("total", "from being enqueued until it is over"),
    ):
        box.add_argument(f"--{name}", type=seconds, metavar="TIME", help=text)


def seconds(text: str, days_max: int = _DAYS_MAX) -> float:
    """Reads a time: `30`, `1.5`, `90s`, `5m`, `2h`, `1d`, `200ms`."""
    found = re.fullmatch(r"(\d+(?:\.\d+)?)(ms|s|m|h|d|)", text.strip())
    if found is None:
        raise argparse.ArgumentTypeError(f"{text!r} is no time such as 30, 90s, 5m, 2h or 90d")
    value = float(found[1]) * _UNITS[found[2]]
    if value > days_max * 86_400:
        unit = "day" if days_max == 1 else "days"
        raise argparse.ArgumentTypeError(f"{text!r} is longer than {days_max:,} {unit}")
    return value


def some_seconds(text: str) -> float:
    """Reads a time above 0."""
    value = seconds(text)
    if value == 0:
        raise argparse.ArgumentTypeError(f"{text!r} is no time above 0")
    return value


def seconds_of_a_day(text: str) -> float:
    """Reads a time of a day at most: PostgreSQL's own timeouts end at 24 days."""
    return seconds(text, 1)


def priority(text: str) -> int:
    """Reads a priority."""
    found = re.fullmatch(r"-?[0-9]{1,3}", text.strip())
    if found is None or abs(int(text)) > _PRIORITY_MAX:
        raise argparse.ArgumentTypeError(
            f"{text!r} is no whole number from -{_PRIORITY_MAX} to {_PRIORITY_MAX}"
        )
    return int(text)


def instant(text: str) -> datetime.datetime:
    """Reads an instant: ISO 8601, in the zone of this machine unless it says one, or `7d` ago."""
    try:
        return datetime.datetime.fromisoformat(text).astimezone()
    except (ValueError, OverflowError):
        pass
    try:
        ago = datetime.timedelta(seconds=seconds(text))
        return datetime.datetime.now(datetime.UTC) - ago
    except (argparse.ArgumentTypeError, OverflowError) as exc:
        raise argparse.ArgumentTypeError(
            f"{text!r} is no instant such as 2026-03-01, 2026-03-01T12:00:00+02:00 or 7d (ago)"
        ) from exc


def count(text: str) -> int:
    """Reads a number of things, 1 or more."""
    if not text.isdecimal() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"{text!r} is no number from 1 on")
    return int(text)


def port(text: str) -> int:
    """Reads a TCP port; 0 means any free one."""
    if not text.isdecimal() or int(text) > 65_535:
        raise argparse.ArgumentTypeError(f"{text!r} is no port (0 to 65535)")
    return int(text)
