"""What a server remembers of things that never change once they stand: lanes, policies, namespaces.

Each is created in a transaction of its own before anything refers to it, so that what is remembered
here exists. What is registered of task names does change; it is read again every few seconds.
"""

import threading
import time
from collections.abc import Callable, Hashable, Iterable, Mapping
from typing import Final, Generic, NamedTuple, TypeVar

from tenure_service.engine.errors import Reason, TenureError
from tenure_service.engine.policy import PartialPolicy, Policy
from tenure_service.store import registry, rows
from tenure_service.store.database import Conn, Database
from tenure_service.store.registry import Lane

K = TypeVar("K", bound=Hashable)
V = TypeVar("V")

_REMEMBERED_MAX: Final = 100_000
_SOURCES_SECONDS: Final = 5.0


class Sources(NamedTuple):
    """What is registered of a task name: the operator's word, and the code's."""

    override: PartialPolicy | None
    declared: PartialPolicy | None


_NOTHING_SAID: Final = Sources(None, None)


class _Remembered(Generic[K, V]):
    """A bounded map that several threads fill; forgets everything when it is full."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._values: dict[K, V] = {}

    def get(self, key: K) -> V | None:
        return self._values.get(key)

    def clear(self) -> None:
        with self._lock:
            self._values = {}

    def update(self, values: Mapping[K, V]) -> None:
        with self._lock:
            if len(self._values) + len(values) > _REMEMBERED_MAX:
                self._values = {}
            self._values |= values

    def fill(self, keys: Iterable[K], load: Callable[[list[K]], Mapping[K, V]]) -> dict[K, V]:
        """Gives the values of the keys, loading those that are not remembered in one call."""
        wanted = set(keys)
        found = {key: value for key in wanted if (value := self._values.get(key)) is not None}
        missing = [key for key in wanted if key not in found]
        if missing:
            loaded = load(missing)
            self.update(loaded)
            found |= loaded
        return found


def unknown_namespace(name: str, *, of_key: bool = False) -> TenureError:
    """Says that a caller can name no such namespace; `of_key`: its key is for another one."""
    advice = "create it with `tenure namespace create`"
    if of_key:
        advice += ", or send a key of it if it exists: this key is for another namespace"
    return TenureError(
        Reason.NOT_REGISTERED,
        f"no namespace {name!r}; {advice}",
        metadata={"kind": "namespace", "name": name},
    )


class Catalogue:
    """Lanes, policies, namespaces and overrides of one database, remembered by one process."""

    def __init__(self, database: Database) -> None:
        self._database = database
        self._lane_ids: _Remembered[Lane, int] = _Remembered()
        self._lanes: _Remembered[int, Lane] = _Remembered()
        self._policy_ids: _Remembered[bytes, int] = _Remembered()
        self._policies: _Remembered[int, Policy] = _Remembered()
        self._namespace_ids: _Remembered[str, int] = _Remembered()
        self._sources: dict[tuple[int, str], Sources] = {}
        self._sources_read_at = float("-inf")
        database.on_another_server.append(self._forget)

    def _forget(self) -> None:
        """Forgets everything: what a server that took over lacks, it may number differently."""
        for remembered in (
            self._lane_ids,
            self._lanes,
            self._policy_ids,
            self._policies,
            self._namespace_ids,
        ):
            remembered.clear()
        self.forget_sources()

    def namespace_id(self, name: str) -> int:
        """Gives the id of a namespace.

        Raises:
            TenureError: NOT_REGISTERED.
        """
        namespace_id = self.known_namespace_id(name)
        if namespace_id is None:
            self._namespace_ids.update({row.name: row.namespace_id for row in self.namespaces()})
            namespace_id = self._namespace_ids.get(name)
        if namespace_id is None:
            raise unknown_namespace(name)
        return namespace_id

    def known_namespace_id(self, name: str) -> int | None:
        """Gives the id of a namespace that was met before, without asking the database."""
        return self._namespace_ids.get(name)

    def namespaces(self) -> list[rows.NamespaceRow]:
        """Lists all namespaces."""
        return self._database.read(registry.namespaces)

    def lane_ids(self, lanes: Iterable[Lane]) -> dict[Lane, int]:
        """Gives the ids of lanes, creating those that do not stand."""

        def load(missing: list[Lane]) -> dict[Lane, int]:
            created = self._database.transact(lambda conn: registry.create_lanes(conn, missing))
            self._lanes.update({lane_id: lane for lane, lane_id in created.items()})
            return created

        return self._lane_ids.fill(lanes, load)

    def lanes(self, lane_ids: Iterable[int], conn: Conn | None = None) -> dict[int, Lane]:
        """Gives what lanes are; inside a transaction, read on its own connection."""

        def load(missing: list[int]) -> dict[int, Lane]:
            if conn is not None:
                return registry.read_lanes(conn, missing)
            found = self._database.read(lambda own: registry.read_lanes(own, missing))
            self._lane_ids.update({lane: lane_id for lane_id, lane in found.items()})
            return found

        return self._lanes.fill(lane_ids, load)

    def lane_ids_in(self, conn: Conn, lanes: Iterable[Lane]) -> dict[Lane, int]:
        """Gives the ids of lanes inside a transaction, on its own connection; once in each.

        What it finds is remembered; what it creates stands once the transaction is committed, and
        is found by another one.
        """

        def load(missing: list[Lane]) -> dict[Lane, int]:
            return registry.find_lanes(conn, missing)

        wanted = set(lanes)
        found = self._lane_ids.fill(wanted, load)
        missing = [lane for lane in wanted if lane not in found]
        return found | registry.create_lanes(conn, missing) if missing else found

    def suspect_lane_id(self, lane_id: int, conn: Conn) -> int:
        """Gives the lane beside this one that holds tasks suspected of killing their workers.

        It is created on the caller's connection, and so not remembered: it stands once the
        caller's transaction is committed.
        """
        lane = self.lanes([lane_id], conn)[lane_id]._replace(suspect=True)
        known = self._lane_ids.get(lane)
        return known if known is not None else registry.create_lanes(conn, [lane])[lane]

    def policy_ids(self, policies: Iterable[Policy]) -> dict[Policy, int]:
        """Gives the ids of policies, storing those that do not stand."""
        by_digest = {policy.digest(): policy for policy in set(policies)}
        ids = self._policy_ids.fill(
            by_digest,
            lambda missing: self._database.transact(
                lambda conn: registry.create_policies(conn, [by_digest[key] for key in missing])
            ),
        )
        return {policy: ids[digest] for digest, policy in by_digest.items()}

    def policies(self, policy_ids: Iterable[int], conn: Conn | None = None) -> dict[int, Policy]:
        """Gives what policies say; inside a transaction, read on its own connection.

        A thread that holds a connection and waits for another one can wait for ever.
        """

        def load(missing: list[int]) -> dict[int, Policy]:
            if conn is not None:
                return registry.read_policies(conn, missing)
            return self._database.read(lambda own: registry.read_policies(own, missing))

        return self._policies.fill(policy_ids, load)

    def sources(self, namespace_id: int, name: str) -> Sources:
        """Gives what is registered of a task name, a few seconds old at most."""
        if time.monotonic() - self._sources_read_at > _SOURCES_SECONDS:
            found = self._database.read(registry.policies)
            self._sources = {
                (row.namespace_id, row.name): Sources(
                    PartialPolicy.from_json(row.override), PartialPolicy.from_json(row.declared)
                )
                for row in found
            }
            self._sources_read_at = time.monotonic()
        return self._sources.get((namespace_id, name), _NOTHING_SAID)

    def forget_sources(self) -> None:
        """Makes the next look read what is registered again."""
        self._sources_read_at = float("-inf")
