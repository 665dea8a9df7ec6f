"""How a server connects: what holds for each of its connections, whatever it is for."""

from typing import Any, Final

from psycopg import Connection
from psycopg.rows import TupleRow

Conn = Connection[TupleRow]

#: A PostgreSQL host that vanished without a word is noticed by the network's own means.
_NETWORK: Final = {
    "connect_timeout": 5,
    "keepalives_idle": 10,
    "keepalives_interval": 5,
    "keepalives_count": 3,
    "tcp_user_timeout": 30_000,
}
#: Limits that hold whatever the role or the database says; an idle connection of ours is no leak.
_LIMITS: Final = {
    "lock_timeout": "5s",
    "statement_timeout": "60s",
    "idle_in_transaction_session_timeout": "60s",
    "idle_session_timeout": "0",
}
#: Generic plans, and no joins that read whole tables: a lease joined with its tables otherwise
#: scans every partition, or is planned anew each time (1,146 against 2,460 tasks/s in tens).
_PLANS: Final = {
    "plan_cache_mode": "force_generic_plan",
    "enable_hashjoin": "off",
    "enable_mergejoin": "off",
    "enable_seqscan": "off",
    "jit": "off",
    "default_transaction_isolation": "read\\ committed",
}


def for_statements(schema: str, name: str) -> dict[str, Any]:
    """Gives the parameters of connections that run the store's statements.

    Args:
        schema: Searched first.
        name: application_name in pg_stat_activity.
    """
    settings = _PLANS | _LIMITS | {"search_path": schema}
    return _NETWORK | {
        "options": _options(settings),
        "application_name": name,
        "prepare_threshold": 0,
        "target_session_attrs": "read-write",
    }


def for_hints(name: str) -> dict[str, Any]:
    """Gives the parameters of connections that notify or listen."""
    # A hint is worth no wait for the disk.
    settings = _LIMITS | {"synchronous_commit": "off"}
    return _NETWORK | {"options": _options(settings), "application_name": name, "autocommit": True}


def _options(settings: dict[str, str]) -> str:
    return " ".join(f"-c {name}={value}" for name, value in settings.items())
