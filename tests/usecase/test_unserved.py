"""The check `unserved` of `tenure doctor`: names that are known, on queues where nobody serves them."""

from datetime import timedelta

from tenure_service.usecase import session
from tests.usecase.stage import Stage
from tests.usecase.test_doctor import advice, found, level


def test_unserved__known_name_on_a_queue_nobody_serves__is_named_after_five_minutes(
    stage: Stage,
) -> None:
    session.open_session(stage.database, stage.new_session(), [("work", {})])
    stage.tasks(1, queue="mial")
    assert level(stage.dsn, "unserved", after=timedelta(minutes=4)) == "ok"
    ((level_now, text),) = found(stage.dsn, "unserved", after=timedelta(minutes=6))
    assert level_now == "warn"
    assert text == (
        "tasks named work on queue mial wait for 6 min, and no worker serves the name there"
    )


def test_unserved__queue_is_paused__advice_is_to_resume_it(stage: Stage) -> None:
    stage.tasks(1, queue="mail")
    assert advice(stage.dsn, "unserved").startswith("start a worker")
    stage.all(
        "insert into queues (namespace_id, name, paused_at)"
        " select namespace_id, 'mail', now() from namespaces where name = 'default' returning 1"
    )
    assert advice(stage.dsn, "unserved").startswith(
        "the queue is paused: `tenure queue resume mail`, and"
    )


def test_unserved__its_workers_are_full__is_fine_while_they_are_heard_from(stage: Stage) -> None:
    stage.tasks(2)
    stage.lease(1, opened=session.open_session(stage.database, stage.new_session(), [("work", {})]))
    stage.all("update ready_tasks set ready_at = now() - interval '1 hour' returning 1")
    assert level(stage.dsn, "unserved") == "ok"
    stage.all("update sessions set seen_at = now() - interval '2 minutes' returning 1")
    assert level(stage.dsn, "unserved") == "ok", "it renews a lease"
    stage.all("update leases set expires_at = now() returning 1")
    assert level(stage.dsn, "unserved") == "warn"
