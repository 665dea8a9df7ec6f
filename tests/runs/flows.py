"""Workers with workflows, driven by hand, and runs that stand in a lane of the test's choice."""

from collections.abc import Iterable, Sequence
from typing import Any

from tenure.v1 import work_stream_pb2 as stream
from tenure.v1 import worker_pb2 as worker
from tenure_service.engine.policy import Policy
from tenure_service.store.registry import ANY_VERSION, Lane
from tests.protocol import caller
from tests.protocol.caller import Caller
from tests.protocol.raw_worker import RawWorker
from tests.usecase.stage import Stage

_INSERT = b"""
    with made as (
        insert into tasks (run_id, task_id, namespace_id, lane_id, policy_id, input, key)
        select i.id, i.id, %(namespace_id)s, %(lane_id)s, %(policy_id)s, '"in"', %(key)s
        from (select uuidv7() as id from generate_series(1, %(run_count)s)) as i
        returning run_id
    ),
    stored as (
        insert into runs (
            run_id, namespace_id, recovery_attempts, name, version, root_run_id, attributes
        )
        select run_id, %(namespace_id)s, 10, %(name)s, %(version)s, run_id, '{"order": "A-1"}'
        from made
    ),
    placed as (
        insert into ready_tasks (lane_id, run_id, task_id, rank)
        select %(lane_id)s, run_id, run_id, %(rank)s from made
    )
    select run_id::text from made
"""


def place(
    stage: Stage,
    count: int = 1,
    *,
    name: str = "flow",
    version: str = ANY_VERSION,
    lane_key: str = "",
    suspect: bool = False,
    rank: int = 0,
    key: str | None = None,
) -> list[str]:
    """Starts runs that wait for a version; gives their ids."""
    lane = Lane(stage.namespace_id, "default", name, lane_key, suspect, version)
    policy = Policy(max_attempts=1)
    parameters = {
        "namespace_id": stage.namespace_id,
        "lane_id": stage.catalogue.lane_ids([lane])[lane],
        "policy_id": stage.catalogue.policy_ids([policy])[policy],
        "run_count": count,
        "name": name,
        "version": None if version == ANY_VERSION else version,
        "rank": rank,
        "key": key,
    }
    with stage.connect() as conn:
        found = conn.execute(_INSERT, parameters).fetchall()
    return [run_id for (run_id,) in found]


def waiting(stage: Stage) -> list[tuple[str, str]]:
    """The runs that are ready, as (id, version of their lane), in the order of their places."""
    found = stage.all(
        """
        select r.run_id::text, l.app_version
        from ready_tasks as r
        inner join lanes as l using (lane_id)
        where l.app_version <> ''
        order by r.rank, r.seq
        """
    )
    return [(run_id, version) for run_id, version in found]


def flow(version: str = "v1", *, name: str = "flow", **fields: Any) -> worker.Handler:
    """A workflow function of a version."""
    return worker.Handler(name=name, kind=worker.HANDLER_KIND_WORKFLOW, version=version, **fields)


def open_message(
    handlers: Sequence[worker.Handler],
    *,
    tasks: Iterable[str] = (),
    slots: int = 1,
    by_queue: dict[str, int] | None = None,
    activations: int = 10,
) -> stream.Open:
    """Gives an Open of a worker with workflows, and with tasks written as `name` or `queue/name`."""
    message = RawWorker.open_message(slots=slots, by_queue=by_queue)
    del message.handlers[:]
    message.handlers.extend([*handlers, *caller.handlers(tasks)])
    message.slots.activations = activations
    return message


async def serve(client: Caller, *handlers: worker.Handler, **fields: Any) -> RawWorker:
    """Opens a stream of a worker with workflows; see `open_message`."""
    return await go_on(client, open_message(handlers, **fields))


async def go_on(client: Caller, message: stream.Open) -> RawWorker:
    """Opens a stream, and waits for Opened."""
    raw = RawWorker(client)
    await raw.send(open=message)
    await raw.until(lambda: bool(raw.opened.session_id))
    return raw


async def finish(raw: RawWorker, count: int = 1) -> None:
    """Ends the first of what is out with an output, and waits for the answer."""
    results = [caller.completed(one) for one in list(raw.out.values())[:count]]
    assert await raw.report(*results) == ["RECORDED"] * count
