"""How long PostgreSQL takes for transactions of leasing, from a sample that it logs itself.

Of each sampled transaction every statement is logged with its duration. So the figures are those of
the database alone, to the microsecond: neither the network nor a thread that waited is part of it.
"""

import contextlib
import re
from collections.abc import Iterator
from typing import NamedTuple

from bench import counting
from tenure_service.embedded import EmbeddedPostgres

#: How `lease_take` begins: the only statement that begins so.
_LEASE = "with allowed as materialized"
_LOGGED = re.compile(
    r"^sampled\|(?P<pid>\d+)\|.*?duration: (?P<ms>[\d.]+) ms  [a-z]+(?: [^:]*)?: (?P<text>.*)$"
)


class Lease(NamedTuple):
    """One transaction that leased: milliseconds of its statement, and of all it sent."""

    statement: float
    transaction: float


class Sample:
    """What was logged, from one mark to another."""

    def __init__(self, server: EmbeddedPostgres) -> None:
        self._server = server

    def mark(self) -> int:
        """Gives the present end of the log."""
        return self._server.log_path.stat().st_size

    def leases(self, begin: int, end: int) -> list[Lease]:
        """Reads the transactions of leasing between two marks."""
        found: list[Lease] = []
        open_: dict[str, list[tuple[float, bool]]] = {}
        for line in self._lines(begin, end):
            logged = _LOGGED.match(line)
            if logged is None:
                continue
            pid, ms, text = logged["pid"], float(logged["ms"]), logged["text"].strip()
            if text.upper().startswith("BEGIN"):
                open_[pid] = []
            statements = open_.get(pid)
            if statements is None:
                continue
            statements.append((ms, text.startswith(_LEASE)))
            if text.upper().startswith("COMMIT"):
                leasing = [each for each, leases in open_.pop(pid) if leases]
                if leasing:
                    found.append(Lease(sum(leasing), sum(each for each, _ in statements)))
        return found

    def _lines(self, begin: int, end: int) -> Iterator[str]:
        with self._server.log_path.open("rb") as file:
            file.seek(begin)
            while file.tell() < end and (line := file.readline()):
                yield line.decode(errors="replace").rstrip()


@contextlib.contextmanager
def sampling(server: EmbeddedPostgres, share: float) -> Iterator[Sample]:
    """Logs a share of all transactions."""
    settings = {
        "log_line_prefix": "sampled|%p|",
        "log_parameter_max_length": "0",
        "log_transaction_sample_rate": str(share),
    }
    counting.set_settings(server, settings)
    try:
        yield Sample(server)
    finally:
        counting.set_settings(server, dict.fromkeys(settings, ""))
