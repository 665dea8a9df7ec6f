"""What became of a transaction whose COMMIT was sent and not answered.

PostgreSQL tells by the transaction's id, as long as it is asked of the same running server: after a
crash or a fail-over ids that never reached the log are given out again, and "committed" may speak of
somebody else's transaction. "Aborted" is always true, since a commit that counts is in the log.
Source: PostgreSQL 18, section 9.28.7, pg_xact_status.
"""

import enum
import time
import weakref
from collections.abc import Callable
from dataclasses import dataclass
from datetime import datetime
from typing import Final

from psycopg import errors

from tenure_service.store import rows, statements
from tenure_service.store.connections import Conn

_ASK_SECONDS: Final = 5.0
_ASK_PAUSE_SECONDS: Final = 0.05


class Fate(enum.Enum):
    """What became of a transaction."""

    COMMITTED = enum.auto()
    ABORTED = enum.auto()
    #: Its server is another one now, or is still at it.
    UNKNOWN = enum.auto()


@dataclass(frozen=True, slots=True)
class Incarnation:
    """One life of a PostgreSQL server: from its start, or its last crash, to the next."""

    started_at: datetime
    #: Its own processes; a crash ends all of them, while the server's start stays what it was.
    own_pids: frozenset[int]

    def same_as(self, other: "Incarnation") -> bool:
        """Says whether no crash and no fail-over lies between the two."""
        return self.started_at == other.started_at and bool(self.own_pids & other.own_pids)


@dataclass(frozen=True, slots=True)
class Mark:
    """Names a transaction: its id, in one life of its server."""

    xid: str
    incarnation: Incarnation


class Unanswered(Exception):
    """A COMMIT was sent and not answered.

    Attributes:
        mark: Names the transaction.
        result: What its work gave.
    """

    def __init__(self, mark: Mark, result: object) -> None:
        super().__init__(f"the commit of transaction {mark.xid} was not answered")
        self.mark = mark
        self.result = result


class Commits:
    """Marks transactions before they are committed, and tells their fate afterwards."""

    def __init__(self) -> None:
        self._incarnations: weakref.WeakKeyDictionary[Conn, Incarnation] = (
            weakref.WeakKeyDictionary()
        )
        self._latest: Incarnation | None = None

    def meet(self, conn: Conn) -> bool:
        """Notes which life of its server a new connection belongs to; True if it is another one."""
        found = _incarnation(conn)
        self._incarnations[conn] = found
        before, self._latest = self._latest, found
        return before is not None and not before.same_as(found)

    def mark(self, conn: Conn) -> Mark | None:
        """Names the open transaction; None if it has written nothing."""
        xid = statements.one(conn, "transaction_mark", rows.TransactionMark, {}).xid
        return None if xid is None else Mark(xid, self._incarnations[conn])

    def fate(self, mark: Mark, ask: Callable[[Callable[[Conn], Fate | None]], Fate | None]) -> Fate:
        """Tells what became of a transaction; waits some seconds for one that is under way.

        Args:
            mark: Names it.
            ask: Runs a question in a transaction on another connection.
        """
        until = time.monotonic() + _ASK_SECONDS
        while (fate := ask(lambda conn: self._answer(conn, mark))) is None:
            if time.monotonic() > until:
                return Fate.UNKNOWN
            time.sleep(_ASK_PAUSE_SECONDS)
        return fate

    def _answer(self, conn: Conn, mark: Mark) -> Fate | None:
        """Asks once; None while it is under way."""
        parameters = {"xid": mark.xid}
        try:
            status = statements.one(
                conn, "transaction_fate", rows.TransactionFate, parameters
            ).status
        except errors.InvalidParameterValue:
            # An id that this server has not given out yet: what it named is gone.
            return Fate.ABORTED
        if status == "aborted":
            return Fate.ABORTED
        if not self._incarnations[conn].same_as(mark.incarnation):
            return Fate.UNKNOWN
        if status == "committed":
            return Fate.COMMITTED
        return None if status == "in progress" else Fate.UNKNOWN


def _incarnation(conn: Conn) -> Incarnation:
    found = statements.one(conn, "server_incarnation", rows.ServerIncarnation, {})
    return Incarnation(found.started_at, frozenset(found.own_pids))
