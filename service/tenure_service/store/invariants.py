"""Checks what must hold of the whole database at any instant; docs/invariants.md says why.

Each check is one statement, so one snapshot: it may run beside working servers, and a row that it
gives is a bug of ours (or of a hand in the tables), never a matter of timing. Checks read whole
tables: they are for operators with a doubt and for tests that injected a fault.
"""

from datetime import timedelta
from typing import Final

from tenure_service.store import rows, statements
from tenure_service.store.database import Conn

CHECKS: Final = (
    "task_place_broken",
    "delivery_number_broken",
    "delivery_final_broken",
    "lease_remaining_broken",
    "lease_delivery_broken",
    "dead_letter_broken",
    "cancel_request_broken",
    "attempt_broken",
    "live_lane_broken",
    "key_broken",
    "run_state_broken",
    "run_wait_broken",
)

#: The store's connections forbid what reads whole tables well, and bound the time of a statement.
_SETTINGS: Final = (
    "set local plan_cache_mode = auto",
    "set local enable_seqscan = on",
    "set local enable_hashjoin = on",
    "set local enable_mergejoin = on",
    "set local statement_timeout = 0",
)


def check_invariants(conn: Conn) -> dict[str, list[rows.Breach]]:
    """Looks for breaches, in a transaction of its own if the connection is in none.

    Returns:
        For each check that found something, in the order of CHECKS, up to 100 rows; nothing at all
        when the database is sound.
    """
    broken: dict[str, list[rows.Breach]] = {}
    with conn.transaction():
        _prepare(conn)
        for name in CHECKS:
            found = statements.many(conn, name, rows.Breach, {})
            if found:
                broken[name] = found
    return broken


def check_one(conn: Conn, name: str, limit: timedelta) -> list[rows.Breach]:
    """Looks for breaches of one of CHECKS, in a transaction of its own, for at most `limit`.

    Raises:
        psycopg.errors.QueryCanceled: it takes longer.
    """
    with conn.transaction():
        _prepare(conn)
        conn.execute(
            "select set_config('statement_timeout', %s::text, true)",
            [str(max(1, int(limit.total_seconds() * 1000)))],
        )
        return statements.many(conn, name, rows.Breach, {})


def _prepare(conn: Conn) -> None:
    for setting in _SETTINGS:
        conn.execute(setting.encode())
