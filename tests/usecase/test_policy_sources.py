"""Which policy wins: the call, the operator, the code, the server."""

from tenure_service.engine.policy import PartialPolicy, Policy
from tenure_service.engine.tokens import TaskKey
from tenure_service.store import deliveries, registry
from tenure_service.usecase.enqueue import Call, Enqueued, Item, Shape, enqueue
from tests.usecase.stage import Stage


def effective(stage: Stage, shape: Shape) -> Policy:
    call = Call(namespace_id=1, items=[Item(shape, b"")])
    (answers,) = enqueue(stage.database, stage.catalogue, [call])
    assert isinstance(answers, list)
    (answer,) = answers
    assert isinstance(answer, Enqueued)
    key = TaskKey(answer.task_id, answer.task_id)
    ids = stage.database.transact(lambda conn: deliveries.policy_ids(conn, [key]))
    return stage.catalogue.policies(ids.values())[ids[answer.task_id]]


def register(stage: Stage, name: str, **said: object) -> None:
    body = PartialPolicy(**said).to_json()  # type: ignore[arg-type]
    stage.database.transact(lambda conn: registry.declare(conn, 1, "v1", [(name, body)]))
    stage.catalogue.forget_sources()


def override(stage: Stage, name: str, **said: object) -> None:
    body = PartialPolicy(**said).to_json()  # type: ignore[arg-type]
    stage.database.transact(lambda conn: registry.override(conn, 1, name, body))
    stage.catalogue.forget_sources()


def test_enqueue__by_name_alone__takes_what_the_worker_registered(stage: Stage) -> None:
    register(stage, "pay", max_attempts=7, initial_delay_ms=50)
    policy = effective(stage, Shape(name="pay", queue="default"))
    assert (policy.max_attempts, policy.initial_delay_ms) == (7, 50)
    assert policy.multiplier == Policy().multiplier


def test_enqueue__declared_by_the_caller__goes_before_what_is_registered(stage: Stage) -> None:
    register(stage, "pay", max_attempts=7)
    shape = Shape(name="pay", queue="default", declared=PartialPolicy(max_attempts=2))
    assert effective(stage, shape).max_attempts == 2


def test_enqueue__overridden__goes_before_the_code_and_after_the_call(stage: Stage) -> None:
    override(stage, "pay", max_attempts=9, jitter=0.0)
    declared = PartialPolicy(max_attempts=2, jitter=0.5)
    shape = Shape(name="pay", queue="default", declared=declared)
    assert effective(stage, shape).max_attempts == 9
    called = PartialPolicy(max_attempts=4)
    shape = Shape(name="pay", queue="default", declared=declared, policy=called)
    policy = effective(stage, shape)
    assert (policy.max_attempts, policy.jitter) == (4, 0.0)


def test_override__cleared__lets_the_code_decide_again(stage: Stage) -> None:
    override(stage, "pay", max_attempts=9)
    stage.database.transact(lambda conn: registry.override(conn, 1, "pay", None))
    stage.catalogue.forget_sources()
    shape = Shape(name="pay", queue="default", declared=PartialPolicy(max_attempts=2))
    assert effective(stage, shape).max_attempts == 2


def test_declare__what_stands__waits_for_no_other_worker(stage: Stage) -> None:
    """A thousand equal workers that come at once do not stand in line for one row."""
    body = PartialPolicy(max_attempts=7).to_json()

    def declare(app_version: str) -> bool:
        return stage.database.transact(
            lambda conn: registry.declare(conn, 1, app_version, [("pay", body)])
        )

    assert declare("v1")
    with stage.transaction() as other:
        other.execute("select from task_defs where name = 'pay' for update")
        assert not declare("v1")
        other.rollback()
    assert declare("v2")
    assert not declare("v2")
