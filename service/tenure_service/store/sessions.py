"""Sessions of workers."""

from collections.abc import Collection, Sequence
from dataclasses import dataclass

from psycopg.types.json import Jsonb

from tenure_service.store import arrays, rows, statements
from tenure_service.store.database import Conn
from tenure_service.store.jsonb import clean, jsonb, jsonb_text


@dataclass(frozen=True, slots=True, kw_only=True)
class NewSession:
    """What a worker says of itself; `handlers` holds {name, queue} objects.

    `key_id` is the key that it came with, if any was asked for.
    """

    namespace_id: int
    worker: str
    sdk: str
    sdk_version: str
    app_version: str
    secret_hash: bytes
    handlers: Sequence[rows.Json]
    slots: rows.Json
    key_id: str | None = None

    def parameters(self) -> dict[str, object]:
        """Gives the parameters that open and resume share."""
        return {
            "namespace_id": self.namespace_id,
            "worker": clean(self.worker),
            "sdk": clean(self.sdk),
            "sdk_version": clean(self.sdk_version),
            "app_version": clean(self.app_version),
            "secret_hash": self.secret_hash,
            "handlers": jsonb(list(self.handlers)),
            "slots": Jsonb(self.slots),
            "key_id": self.key_id,
        }


@dataclass(frozen=True, slots=True, kw_only=True)
class Presence:
    """What a server says of a session that it has; no slots: they are as it said before."""

    session_id: str
    epoch: int
    receiving: bool
    slots: rows.Json | None


def open_(conn: Conn, session: NewSession) -> rows.SessionOpened:
    """Opens a session."""
    return statements.one(conn, "session_open", rows.SessionOpened, session.parameters())


def resume(conn: Conn, session_id: str, session: NewSession) -> rows.SessionOpened | None:
    """Goes on with a session in its next epoch; None if it is gone or the secret is wrong."""
    parameters = session.parameters() | {"session_id": session_id}
    found = statements.many(conn, "session_resume", rows.SessionOpened, parameters)
    return found[0] if found else None


def close(conn: Conn, session_id: str, epoch: int) -> bool:
    """Closes a session; False if it is another server's by now, or closed."""
    parameters = {"session_id": session_id, "epoch": epoch}
    return statements.execute(conn, "session_close", parameters) == 1


def hold(conn: Conn, session_id: str, epoch: int) -> bool:
    """Keeps a session from being resumed elsewhere; False if it was, in another epoch."""
    parameters = {"session_id": session_id, "epoch": epoch}
    return bool(statements.many(conn, "session_hold", rows.SessionOpened, parameters))


def touch(conn: Conn, presences: Sequence[Presence]) -> None:
    """Notes that sessions are alive."""
    parameters = {
        "session_ids": arrays.uuids(presence.session_id for presence in presences),
        "epochs": arrays.numbers(presence.epoch for presence in presences),
        "receivings": arrays.booleans(presence.receiving for presence in presences),
        "slots": arrays.texts(
            [None if said.slots is None else jsonb_text(said.slots) for said in presences]
        ),
    }
    statements.execute(conn, "session_touch", parameters)


def gone(conn: Conn, session_ids: Sequence[str]) -> set[str]:
    """Tells which of these sessions are closed, or unknown to the database."""
    parameters = {"session_ids": arrays.uuids(session_ids)}
    found = statements.many(conn, "session_gone", rows.SessionKey, parameters)
    return {row.session_id for row in found}


def close_lost(conn: Conn) -> None:
    """Closes sessions that nobody has heard from for long."""
    statements.execute(conn, "session_close_lost", {})


def shut_out(conn: Conn, session_ids: Collection[str]) -> set[str]:
    """Gives those of some sessions whose workers have lost their key."""
    parameters = {"session_ids": arrays.uuids(sorted(session_ids))}
    found = statements.many(conn, "session_shut_out", rows.SessionKey, parameters)
    return {row.session_id for row in found}


def list_(conn: Conn, namespace_id: int) -> list[rows.SessionRow]:
    """Lists the open sessions of a namespace."""
    parameters = {"namespace_id": namespace_id}
    return statements.many(conn, "session_list", rows.SessionRow, parameters)


def poll(conn: Conn, session: NewSession) -> rows.SessionOpened:
    """Finds or opens the session of a worker that polls."""
    found = statements.many(conn, "session_poll", rows.SessionOpened, session.parameters())
    return found[0] if found else open_(conn, session)


def holding(conn: Conn, session_id: str) -> bool:
    """Says whether a session holds anything."""
    parameters = {"session_id": session_id}
    return statements.one(conn, "session_held", rows.SessionHeld, parameters).holding


def takes(conn: Conn, session_id: str, epoch: int) -> bool:
    """Says whether a session may be given tasks: it is open, and this server has it."""
    parameters = {"session_id": session_id, "epoch": epoch}
    return statements.one(conn, "session_takes", rows.SessionTakes, parameters).takes
