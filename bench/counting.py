"""What a server costs: its memory and processor time, and every message it sends to PostgreSQL.

PostgreSQL logs each simple statement and each Bind of a prepared one while it is asked to, so that
BEGIN, COMMIT, and the empty statement of a pool's check count like any other.
"""

import os
import re
import time
from collections import Counter
from pathlib import Path

import psycopg

from tenure_service.embedded import EmbeddedPostgres

_LOGGED = re.compile(r"^crowd\|(?P<who>.*?)\|.*?ms  (?P<kind>statement|bind [^:]*):(?P<text>.*)$")
_NAMED = re.compile(r"[a-z_]+", re.IGNORECASE)
_SETTINGS = {
    "log_line_prefix": "crowd|%a|",
    "log_min_duration_statement": "0",
    "log_parameter_max_length": "0",
}


def resident_kib(pid: int) -> int:
    """Gives the resident memory of a process."""
    for line in Path(f"/proc/{pid}/status").read_text().splitlines():
        if line.startswith("VmRSS:"):
            return int(line.split()[1])
    raise RuntimeError(f"process {pid} has no memory")


def processor_seconds(pid: int) -> float:
    """Gives the processor time that a process has used."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def processor_share(pid: int, seconds: float) -> float:
    """Measures the share of one core that a process uses for some seconds, in percent."""
    began, used = time.monotonic(), processor_seconds(pid)
    time.sleep(seconds)
    return 100 * (processor_seconds(pid) - used) / (time.monotonic() - began)


def sent(server: EmbeddedPostgres, seconds: float) -> Counter[str]:
    """Counts what Tenure's servers send to PostgreSQL for some seconds, by statement."""
    set_settings(server, _SETTINGS)
    time.sleep(0.5)
    begins_at = server.log_path.stat().st_size
    time.sleep(seconds)
    with server.log_path.open("rb") as file:
        file.seek(begins_at)
        lines = file.read().decode(errors="replace").splitlines()
    set_settings(server, dict.fromkeys(_SETTINGS, ""))
    found: Counter[str] = Counter()
    for number, line in enumerate(lines):
        logged = _LOGGED.match(line)
        if logged is not None and logged["who"].startswith("tenure"):
            more = [] if logged["text"].strip() else _following(lines, number + 1)
            found[_title(" ".join([logged["text"], *more]))] += 1
    return found


def _following(lines: list[str], start: int) -> list[str]:
    """Gives the further lines of a statement that begins with an empty one."""
    found = []
    for line in lines[start : start + 3]:
        if line.startswith("crowd|"):
            break
        found.append(line)
    return found


def _title(text: str) -> str:
    words = _NAMED.findall(text)
    return " ".join(words[:6]) if words else "(empty: the pool's check)"


def set_settings(server: EmbeddedPostgres, settings: dict[str, str]) -> None:
    """Changes settings of a running PostgreSQL; an empty value resets one."""
    with psycopg.connect(server.dsn("postgres"), autocommit=True) as conn:
        for name, value in settings.items():
            change = f"set {name} = '{value}'" if value else f"reset {name}"
            conn.execute(f"alter system {change}".encode())
        conn.execute("select pg_reload_conf()")
