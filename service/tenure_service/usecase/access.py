"""Keys: who a caller is, and keeping them; and the record of what operators do."""

import hashlib
import re
import secrets
import threading
import time
from collections.abc import Iterable, Mapping, Sequence
from datetime import timedelta
from typing import Final

from tenure_service.engine.access import ANYBODY, Principal, Scope, scope_missing
from tenure_service.engine.errors import Reason, TenureError, unauthenticated
from tenure_service.engine.tokens import TaskKey
from tenure_service.store import access, rows
from tenure_service.store.access import Deed, DeedsWanted
from tenure_service.store.database import Conn, Database

__all__ = ["Deed", "DeedsWanted", "Keys", "key_made"]

#: Seconds that keys are believed: a revoked one is refused by then.
_KEYS_SECONDS: Final = 5.0
#: An unknown key may have been made just now; guessing must not cost a query each.
_MISS_SECONDS: Final = 1.0
_TRIES: Final = 4
_PREFIX: Final = "tenure_"
_SECRET: Final = re.compile(_PREFIX + r"[A-Za-z0-9_-]{43}")


def secret_hash(secret: str) -> bytes:
    """Gives what is stored of a secret; it has 256 random bits, so one plain hash is enough."""
    return hashlib.sha256(secret.encode()).digest()


def key_made(key_id: str) -> str:
    """Says for the record how making a key ended: never with its secret."""
    return f"OK: key {key_id}"


class Keys:
    """The keys of one database, as one server knows them."""

    def __init__(self, database: Database, *, required: bool) -> None:
        """Prepares them.

        Args:
            database: Where they are.
            required: Whether callers must send one; if not, everybody may do everything.
        """
        self.required = required
        self._database = database
        self._lock = threading.Lock()
        self._by_hash: Mapping[bytes, Principal] = {}
        self._read_at = -_KEYS_SECONDS
        #: Raised by each change that this server makes, so that what was read before is not believed.
        self._changes = 0
        self._used: set[str] = set()

    def known(self, secret: str | None) -> Principal | None:
        """Says who sends a secret, from memory; None if the database must be asked."""
        if not self.required:
            return ANYBODY
        if secret is None or not _SECRET.fullmatch(secret):
            raise _unauthenticated(missing=secret is None)
        age = time.monotonic() - self._read_at
        found = self._by_hash.get(secret_hash(secret)) if age < _KEYS_SECONDS else None
        if found is None and age < _MISS_SECONDS:
            raise _unauthenticated(missing=False)
        if found is not None and found.key_id is not None:
            self._used.add(found.key_id)
        return found

    def identify(self, secret: str | None) -> Principal:
        """Says who sends a secret, and asks the database if need be.

        Raises:
            TenureError: UNAUTHENTICATED, DATABASE_UNAVAILABLE.
        """
        with self._lock:
            # A key that this server makes or ends meanwhile makes what was read worthless.
            for _ in range(_TRIES):
                if (found := self.known(secret)) is not None:
                    return found
                self.refresh()
        raise _unauthenticated(missing=False)

    def why_refused(self, secret: str) -> str:
        """Says for people why a secret is refused, and whose it was.

        Raises:
            TenureError: DATABASE_UNAVAILABLE.
        """
        if not _SECRET.fullmatch(secret):
            return "what it sent is not in the form of a key"
        wanted = secret_hash(secret)
        found = self._database.read(lambda conn: access.list_keys(conn, include_ended=True))
        for row in found:
            if row.hash == wanted and row.ended:
                how = "has expired" if row.revoked_at is None else "was revoked"
                return f"the key {row.name!r} ({row.key_id}) {how}"
        return "the key is not known"

    def refresh(self) -> None:
        """Reads the keys anew, and notes which were used.

        Raises:
            TenureError: DATABASE_UNAVAILABLE.
        """
        used, self._used = self._used, set()
        changes = self._changes

        def work(conn: Conn) -> list[rows.ApiKeyRow]:
            if used:
                access.note_used(conn, sorted(used))
            return access.list_keys(conn, include_ended=False)

        found = self._database.transact(work)
        self._by_hash = {row.hash: _principal(row) for row in found}
        if changes == self._changes:
            self._read_at = time.monotonic()

    def uses(self, principal: Principal) -> None:
        """Notes that a caller is at work: a stream that stays open is one long call."""
        if principal.key_id is not None:
            self._used.add(principal.key_id)

    def stands(self, principal: Principal) -> bool:
        """Says whether a caller's key was still good when the keys were last read."""
        if principal.key_id is None:
            return True
        return any(one.key_id == principal.key_id for one in self._by_hash.values())

    def has_admin(self) -> bool:
        """Says whether anybody may make keys over the network."""
        return any(Scope.ADMIN in one.scopes for one in self._by_hash.values())

    def create(
        self,
        maker: Principal,
        *,
        namespace_id: int | None,
        name: str,
        scopes: Iterable[Scope],
        queue_globs: Sequence[str],
        lifetime: timedelta | None,
    ) -> tuple[rows.ApiKeyRow, str]:
        """Makes a key; gives it with its secret, which is kept nowhere.

        Without a lifetime it ends with the key that makes it, if that one ends.

        Raises:
            TenureError: SCOPE_MISSING: it could do more than its maker, or for longer.
        """
        scopes = sorted(set(scopes))
        maker.check_grant(
            every_namespace=namespace_id is None, scopes=scopes, queue_globs=queue_globs
        )
        secret = _PREFIX + secrets.token_urlsafe(32)
        new = access.NewKey(
            namespace_id=namespace_id,
            name=name,
            hash=secret_hash(secret),
            scopes=scopes,
            queue_globs=list(queue_globs) or ["*"],
            created_by=maker.actor,
            maker_id=maker.key_id,
            lifetime_ms=None if lifetime is None else int(lifetime.total_seconds() * 1000),
        )

        def work(conn: Conn) -> rows.ApiKeyRow:
            row = access.create_key(conn, new)
            if row.expires_at is not None and lifetime is not None:
                # Both are of one transaction, and so of one reading of the clock.
                lacking = row.created_at + lifetime - row.expires_at
                if lacking > timedelta(milliseconds=1):
                    raise scope_missing(
                        "lifetime",
                        "a key ends no later than the one that makes it, at "
                        f"{row.expires_at:%Y-%m-%d %H:%M:%S %Z}",
                    )
            return row

        row = self._database.transact(work)
        self._changed()
        return row, secret

    def list_(self, viewer: Principal, *, include_ended: bool) -> list[rows.ApiKeyRow]:
        """Lists the keys that a caller may see."""
        found = self._database.read(
            lambda conn: access.list_keys(conn, include_ended=include_ended)
        )
        return [row for row in found if _sees(viewer, row)]

    def worker_counts(self) -> dict[str, int]:
        """Counts the workers that take tasks with each key, by its id."""
        return self._database.read(access.key_workers)

    def revoke(self, revoker: Principal, key_id: str) -> rows.ApiKeyRow:
        """Ends a key.

        Raises:
            TenureError: NOT_REGISTERED.
        """
        seen = not revoker.restricted or any(
            key.key_id == key_id for key in self.list_(revoker, include_ended=True)
        )
        row = None
        if seen:
            row = self._database.transact(
                lambda conn: access.revoke_key(conn, key_id, revoker.namespace_id)
            )
        if row is None:
            raise TenureError(
                Reason.NOT_REGISTERED,
                f"no key {key_id} in this namespace",
                metadata={"kind": "api_key", "name": key_id},
            )
        self._changed()
        return row

    def visible(
        self, viewer: Principal, namespace_id: int, keys: Sequence[TaskKey]
    ) -> set[TaskKey]:
        """Gives those of the tasks that a caller may know of."""
        if not viewer.restricted:
            return set(keys)
        queues = self._database.read(lambda conn: access.queues_of(conn, namespace_id, keys))
        return {key for key in keys if viewer.may_use(queues.get(key.task_id, ""))}

    def _changed(self) -> None:
        self._changes += 1
        self._read_at = -_KEYS_SECONDS

    def record(self, deed: Deed) -> None:
        """Adds what an operator did to the record."""
        self._database.transact(lambda conn: access.add_deed(conn, deed))

    def deeds(
        self,
        namespace: str,
        wanted: DeedsWanted,
        *,
        include_general: bool,
        before: int,
        row_count_max: int,
    ) -> list[rows.AuditEventRow]:
        """Lists what operators did, newest first."""
        return self._database.read(
            lambda conn: access.list_deeds(
                conn,
                namespace,
                wanted,
                include_general=include_general,
                before=before,
                row_count_max=row_count_max,
            )
        )


def _principal(row: rows.ApiKeyRow) -> Principal:
    return Principal(
        key_id=row.key_id,
        actor=f"key:{row.name}:{row.key_id}",
        namespace_id=row.namespace_id,
        namespace=row.namespace,
        scopes=frozenset(Scope(scope) for scope in row.scopes),
        queue_globs=tuple(row.queue_globs),
    )


def _sees(viewer: Principal, row: rows.ApiKeyRow) -> bool:
    if viewer.namespace_id is not None and viewer.namespace_id != row.namespace_id:
        return False
    return not viewer.restricted or set(row.queue_globs) <= set(viewer.queue_globs)


def _unauthenticated(*, missing: bool) -> TenureError:
    return unauthenticated(
        "no key was sent: `authorization: Bearer KEY`" if missing else "the key is not known"
    )
