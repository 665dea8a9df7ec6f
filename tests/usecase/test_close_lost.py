"""Sessions that nobody has heard from are closed, and what they hold keeps them open."""

import pytest

from tenure_service.usecase import maintain, session
from tests.usecase.stage import Stage


def closed(stage: Stage) -> list[bool]:
    return [row[0] for row in stage.all("select closed_at is not null from sessions")]


def unheard(stage: Stage, interval: str) -> None:
    stage.all("update sessions set seen_at = now() - %s::interval returning 1", interval)


@pytest.mark.parametrize(("seconds", "gone"), [(119, [False]), (121, [True])])
def test_forget__session_without_leases__is_closed_after_two_minutes(
    stage: Stage, seconds: int, gone: list[bool]
) -> None:
    stage.session()
    unheard(stage, f"{seconds} seconds")
    maintain.forget(stage.database)
    assert closed(stage) == gone


def test_forget__session_holds_a_lease__stays_and_can_be_resumed(stage: Stage) -> None:
    stage.tasks(1)
    opened = stage.session()
    stage.lease(1, opened=opened)
    unheard(stage, "1 hour")
    maintain.forget(stage.database)
    assert closed(stage) == [False]
    again = session.open_session(
        stage.database, stage.new_session(), [], resume_session_id=opened.session_id
    )
    assert (again.session_id, again.resumed) == (opened.session_id, True)


def test_resume__session_was_closed__opens_another(stage: Stage) -> None:
    opened = stage.session()
    unheard(stage, "121 seconds")
    maintain.forget(stage.database)
    again = session.open_session(
        stage.database, stage.new_session(), [], resume_session_id=opened.session_id
    )
    assert again.session_id != opened.session_id
    assert not again.resumed
