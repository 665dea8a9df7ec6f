"""Reading runs, letting blocked ones go on, and forking."""

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass

from tenure_service.engine.errors import Reason, TenureError
from tenure_service.engine.states import RunStatus
from tenure_service.store import keys, rows, runs, steps, tasks
from tenure_service.store.database import Conn, Database
from tenure_service.store.registry import ANY_VERSION, Lane
from tenure_service.store.steps import Page
from tenure_service.usecase import enqueue, wake
from tenure_service.usecase.catalogue import Catalogue
from tenure_service.usecase.wake import Woken

_FORK_KIND = "FORK"
#: What a run whose live row tells its state may have as its status.
_OPEN_STATES = frozenset({"DELAYED", "QUEUED", "RUNNING", "WAITING"})
#: A page that is mostly of other states is read on so many times.
_ROUNDS_MAX = 20


def run_not_found(run_id: str | None, key: str | None = None) -> TenureError:
    """Says that there is no such run for the caller, in the words in which it was asked for."""
    named = f"with the key {key!r}" if run_id is None else repr(run_id)
    return TenureError(Reason.RUN_NOT_FOUND, f"no run {named} in this namespace")


def get(
    database: Database,
    namespace_id: int,
    *,
    run_id: str | None,
    key: str | None,
    include_payloads: bool,
) -> rows.RunRow:
    """Reads one run, named by its id or by its key.

    Raises:
        TenureError: RUN_NOT_FOUND.
    """

    def work(conn: Conn) -> rows.RunRow | None:
        named = run_id or runs.by_key(conn, namespace_id, key or "")
        if named is None:
            return None
        found = runs.read(conn, namespace_id, [named], include_payloads=include_payloads)
        return found[0] if found else None

    row = database.read(work)
    if row is None:
        raise run_not_found(run_id, key)
    return row


def read_many(database: Database, namespace_id: int, run_ids: Sequence[str]) -> list[rows.RunRow]:
    """Reads runs; one that does not exist has no row."""
    return database.read(lambda conn: runs.read(conn, namespace_id, run_ids))


def list_runs(
    database: Database,
    namespace_id: int,
    *,
    states: Sequence[str],
    name: str | None,
    attributes: rows.Json | None,
    parent_run_id: str | None,
    before: str | None,
    row_count_max: int,
) -> tuple[list[rows.RunRow], str | None]:
    """Lists runs of these states, newest first; of all states if there are none.

    Returns:
        The runs, and the id before which the next page begins; None: this was the last.
    """
    statuses = _statuses(states)

    def work(conn: Conn) -> tuple[list[rows.RunRow], str | None]:
        found: list[rows.RunRow] = []
        at = before
        for _ in range(_ROUNDS_MAX):
            ids = runs.find(
                conn,
                namespace_id,
                statuses=statuses,
                name=name,
                attributes=attributes,
                parent_run_id=parent_run_id,
                before=at,
                row_count_max=row_count_max,
            )
            for row in runs.read(conn, namespace_id, ids) if ids else ():
                if not states or row.state in states:
                    found.append(row)
                if len(found) == row_count_max:
                    return found, row.run_id
            if len(ids) < row_count_max:
                return found, None
            at = ids[-1]
        return found, at

    return database.read(work)


def _statuses(states: Sequence[str]) -> list[str]:
    """Gives the statuses in which runs of these states may be."""
    if not states:
        return [status.value for status in RunStatus]
    found = {state for state in states if state not in _OPEN_STATES}
    if _OPEN_STATES.intersection(states):
        # A waiting run whose time has come is ready before anybody writes it.
        found |= {RunStatus.OPEN.value, RunStatus.WAITING.value}
    return sorted(found)


def list_steps(
    database: Database,
    namespace_id: int,
    run_id: str,
    *,
    after_seq: int,
    step_count_max: int,
    bytes_max: int,
) -> Page:
    """Reads a page of the steps of a run.

    Raises:
        TenureError: RUN_NOT_FOUND.
    """

    def work(conn: Conn) -> Page | None:
        if not runs.read(conn, namespace_id, [run_id]):
            return None
        found = steps.pages(
            conn, [run_id], bytes_max, step_count_max=step_count_max, after_seqs=[after_seq]
        )
        return found[run_id]

    page = database.read(work)
    if page is None:
        raise run_not_found(run_id)
    return page


def resume(
    database: Database, namespace_id: int, run_ids: Sequence[str]
) -> tuple[Woken, dict[str, rows.RunRow]]:
    """Lets BLOCKED runs of a namespace go on.

    Returns:
        What was woken, and all of the runs that exist as they stand then, by id.
    """

    def work(conn: Conn) -> tuple[Woken, dict[str, rows.RunRow]]:
        known = [row.run_id for row in runs.read(conn, namespace_id, run_ids)]
        woken = wake.resume(conn, known) if known else Woken()
        return woken, {row.run_id: row for row in runs.read(conn, namespace_id, known)}

    return database.transact(work)


@dataclass(frozen=True, slots=True, kw_only=True)
class Fork:
    """What is forked: a run, up to and without a step; without a step from the start."""

    namespace_id: int
    run_id: str
    before_step_id: str | None
    request_id: str | None

    @property
    def digest(self) -> bytes:
        """Tells whether a repeated request id is the same call."""
        return hashlib.sha256(f"{self.run_id}\x00{self.before_step_id or ''}".encode()).digest()


def fork(database: Database, catalogue: Catalogue, asked: Fork) -> enqueue.Enqueued:
    """Starts a run with the steps of another one; a repeated request answers the same.

    Raises:
        TenureError: RUN_NOT_FOUND, also for an unknown step; REQUEST_ID_REUSED.
    """
    source = get(
        database, asked.namespace_id, run_id=asked.run_id, key=None, include_payloads=False
    )
    lane = Lane(
        asked.namespace_id, source.queue, source.name, source.lane_key, app_version=ANY_VERSION
    )
    lane_id = catalogue.lane_ids([lane])[lane]

    def work(conn: Conn) -> enqueue.Enqueued:
        (new_run_id,) = tasks.make_ids(conn, 1)
        if asked.request_id is not None:
            known = _claim(conn, asked, new_run_id)
            if known is not None:
                return enqueue.Enqueued(task_id=known, existing=True)
        before_seq = None
        if asked.before_step_id is not None:
            before_seq = runs.step_seq(conn, asked.run_id, asked.before_step_id)
            if before_seq is None:
                raise TenureError(
                    Reason.RUN_NOT_FOUND,
                    f"run {asked.run_id} has no step {asked.before_step_id!r}",
                )
        runs.fork(conn, asked.run_id, new_run_id, lane_id=lane_id)
        if before_seq is not None:
            runs.fork_steps(conn, asked.run_id, new_run_id, before_seq=before_seq)
        return enqueue.Enqueued(task_id=new_run_id, lane_id=lane_id, priority=source.priority)

    return database.transact(work)


def _claim(conn: Conn, asked: Fork, new_run_id: str) -> str | None:
    """Claims the request id for a new run; gives the run of an earlier call."""
    request = keys.NewRequest(
        namespace_id=asked.namespace_id,
        request_id=asked.request_id or "",
        kind=_FORK_KIND,
        digest=asked.digest,
        ids=[new_run_id],
    )
    if keys.claim_requests(conn, [request]):
        return None
    (row,) = keys.read_requests(conn, [request]).values()
    if row.kind != request.kind or row.digest != request.digest:
        raise TenureError(
            Reason.REQUEST_ID_REUSED,
            f"request_id {request.request_id} was used for another call",
            metadata={"request_id": request.request_id},
        )
    return keys.unpack(row.answer)[0]
