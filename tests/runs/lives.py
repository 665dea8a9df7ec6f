"""What becomes of runs, act by act: their activations end, they wait, and they go on."""

from collections.abc import Sequence
from concurrent.futures import Future
from dataclasses import replace
from typing import Any

from tenure_service.engine.states import Outcome
from tenure_service.engine.tokens import TaskKey
from tenure_service.store import rows
from tenure_service.store.database import Conn
from tenure_service.store.inbox import WaitSet
from tenure_service.store.registry import ANY_VERSION, Lane
from tenure_service.store.steps import Claim
from tenure_service.store.versions import WorkflowHandler
from tenure_service.usecase import wake
from tenure_service.usecase.end import Ending, Ends
from tenure_service.usecase.lease import lease
from tenure_service.usecase.report import end_all
from tenure_service.usecase.session import Opened, open_session
from tests.runs import flows
from tests.runs.activations import Activation, record, recorded, task
from tests.usecase.stage import Gate, Stage, ending, in_thread

FOREVER = "9999"


def open_worker(stage: Stage, version: str = "v1", *, name: str = "flow") -> Opened:
    """A session whose code has a version of the workflow."""
    handler = WorkflowHandler(queue="default", name=name, version=version)
    new = replace(stage.new_session(), handlers=[handler.to_json()])
    return open_session(stage.database, new, [], workflows=[handler])


def hand_out(
    stage: Stage, version: str = ANY_VERSION, *, by: str = "v1", suspect: bool = False
) -> list[Activation]:
    """Hands the runs that wait for a version to a worker of another, or of the same."""
    lane = Lane(stage.namespace_id, "default", "flow", suspect=suspect, app_version=version)
    pick = replace(
        stage.pick(open_worker(stage, by), stage.catalogue.lane_ids([lane])[lane]), of_runs=True
    )
    (grant,) = lease(stage.database, stage.catalogue, [pick])
    return [
        Activation(one, Claim(one.lease_id, pick.secret, stage.namespace_id, one.run_id))
        for one in grant.tasks
    ]


def begin(stage: Stage, **fields: Any) -> Activation:
    """A run with a worker of `v1`."""
    flows.place(stage, **fields)
    (one,) = hand_out(stage)
    return one


def start_tasks(stage: Stage, one: Activation, count: int, *, prefix: str = "") -> list[str]:
    """Has an activation enqueue tasks; gives their own ids."""
    answers = recorded(record(stage, one, *(task(f"{prefix}{n}") for n in range(count))))
    return [str(answer.view.row.child_id) for answer in answers]


def start_child(stage: Stage, one: Activation, **fields: Any) -> str:
    """A run that another one has started, as a step of it would."""
    (run_id,) = flows.place(stage, **fields)
    with stage.connect() as conn:
        conn.execute(
            "update runs set parent_run_id = %s, root_run_id = %s where run_id = %s",
            [one.run_id, one.run_id, run_id],
        )
    return run_id


def suspension(
    one: Activation, *sets: WaitSet, wake_ms: int | None = None, blocked: bool = False
) -> Ending:
    failure = {"type": "HistoryMismatch", "message": "2: 'pay' is 'ship' now"} if blocked else None
    return ending(
        one.task,
        Outcome.SUSPENDED,
        waits=sets,
        wake_ms=wake_ms,
        blocked=blocked,
        failure=failure,
    )


def suspend(stage: Stage, one: Activation, *sets: WaitSet, wake_ms: int | None = None) -> Ends:
    return end_all(stage.database, stage.catalogue, [suspension(one, *sets, wake_ms=wake_ms)])


def report(stage: Stage, one: Activation, outcome: Outcome, **fields: Any) -> Ends:
    return end_all(stage.database, stage.catalogue, [ending(one.task, outcome, **fields)])


def all_of(child_ids: Sequence[str]) -> WaitSet:
    return WaitSet(child_ids, len(child_ids))


def any_of(child_ids: Sequence[str]) -> WaitSet:
    return WaitSet(child_ids, 1)


def wake_up(stage: Stage, *run_ids: str) -> list[str]:
    """Looks at inboxes; gives the runs that go on."""
    return wake.wake(stage.database, run_ids).run_ids


def state(stage: Stage, run_id: str) -> tuple[str, str | None, str]:
    """(status, why it is blocked, place) of a run."""
    ((status, blocked),) = stage.all(
        "select status::text, blocked::text from runs where run_id = %s", run_id
    )
    places = stage.all(
        """
        select 'ready' from ready_tasks where task_id = %(id)s
        union all
        select kind::text || case when fire_at > '9000-01-01' then ' for ever' else '' end
        from timers where task_id = %(id)s
        union all
        select 'leased' from leases as l
        where l.task_ids @> array[%(id)s::uuid] and not exists (
            select 1 from deliveries as d where d.task_id = %(id)s and d.lease_id = l.lease_id
        )
        """.replace("%(id)s", f"'{run_id}'"),
    )
    return status, blocked, ", ".join(place for (place,) in places) or "over"


def waits(stage: Stage, run_id: str) -> list[tuple[int, int, int]]:
    """(set, needed, children) of what a run waits for."""
    return stage.all(
        """
        select s.set_number, s.needed_count, count(w.child_id)::integer
        from run_wait_sets as s
        left join run_waits as w using (run_id, set_number)
        where s.run_id = %s
        group by s.set_number, s.needed_count
        order by s.set_number
        """,
        run_id,
    )


def inbox(stage: Stage, run_id: str) -> list[str]:
    found = stage.all("select child_id::text from run_inbox where run_id = %s", run_id)
    return [child_id for (child_id,) in found]


def work(stage: Stage, count: int = 1, outcome: Outcome = Outcome.DONE) -> list[rows.LeasedTask]:
    """Runs tasks that wait, by the careful form; gives them."""
    tasks = stage.lease(count)
    stage.end(*(ending(one, outcome) for one in tasks))
    return tasks


def key(run_id: str) -> TaskKey:
    return TaskKey(run_id, run_id)


def hold_wake(stage: Stage, run_id: str, gate: Gate) -> Future[list[str]]:
    """Begins a wake pass beside the test, held before its commit; gives the runs that it wakes."""

    def hold(conn: Conn) -> list[str]:
        woken = wake._wake(conn, [run_id])
        gate.wait()
        return woken.run_ids

    holding = in_thread(lambda: stage.database.transact(hold))
    gate.reached()
    return holding
