"""Lists of runs and of their steps, page by page."""

from typing import Any

import pytest

from tenure.v1 import run_pb2 as run
from tenure.v1 import workflow_service_pb2 as service
from tenure_service.engine.states import Outcome
from tenure_service.usecase.report import end_all
from tests.eventually import eventually_awaited
from tests.protocol import refusals
from tests.protocol.caller import Caller, seconds
from tests.runs import calls, flows, lives
from tests.runs.activations import call, nap, record, task
from tests.runs.calls import new
from tests.usecase.stage import Stage

UNKNOWN = "01900000-0000-7000-8000-000000000000"


async def _ids(client: Caller, **fields: Any) -> list[str]:
    found, token = await calls.listed(client, **fields)
    assert token == ""
    return [one.run_id for one in found]


async def test_list__filters__select_the_newest_first(client: Caller) -> None:
    mine = {"customer": "c-7"}
    ids = await calls.started(
        client,
        new(attributes=mine),
        new("ship", attributes=mine | {"shop": "de"}),
        new("ship", delay=seconds(60)),
    )
    assert await _ids(client) == ids[::-1]
    assert await _ids(client, name="ship") == [ids[2], ids[1]]
    assert await _ids(client, attributes=mine) == [ids[1], ids[0]]
    assert await _ids(client, attributes=mine, name="flow") == [ids[0]]
    assert await _ids(client, attributes={"shop": "de", "customer": "c-7"}) == [ids[1]]
    assert await _ids(client, attributes={"shop": "fr"}) == []
    assert await _ids(client, states=[run.RUN_STATE_DELAYED]) == [ids[2]]
    assert await _ids(client, states=[run.RUN_STATE_QUEUED], name="ship") == [ids[1]]
    assert await _ids(client, states=[run.RUN_STATE_COMPLETED]) == []
    found, _ = await calls.listed(client, name="flow")
    assert not found[0].HasField("input")


async def test_list__states__are_those_of_reading(client: Caller, stage: Stage) -> None:
    ended = lives.begin(stage)
    lives.report(stage, ended, Outcome.DONE)
    suspended = lives.begin(stage)
    lives.suspend(stage, suspended, wake_ms=60_000)
    blocked = lives.begin(stage)
    end_all(stage.database, stage.catalogue, [lives.suspension(blocked, blocked=True)])
    running = lives.begin(stage)
    (queued,) = flows.place(stage)
    by_state = {
        "COMPLETED": ended.run_id,
        "WAITING": suspended.run_id,
        "BLOCKED": blocked.run_id,
        "RUNNING": running.run_id,
        "QUEUED": queued,
    }
    for name, run_id in by_state.items():
        state = run.RunState.Value(f"RUN_STATE_{name}")
        assert await _ids(client, states=[state]) == [run_id], name
    both = [run.RUN_STATE_WAITING, run.RUN_STATE_COMPLETED]
    assert await _ids(client, states=both) == [suspended.run_id, ended.run_id]


async def test_list__waiting_run_whose_time_has_come__is_queued(
    client: Caller, stage: Stage
) -> None:
    """Its row says WAITING until it is handed out again."""
    one = lives.begin(stage)
    lives.suspend(stage, one, wake_ms=1)

    async def queued() -> bool:
        return await _ids(client, states=[run.RUN_STATE_QUEUED]) == [one.run_id]

    assert await eventually_awaited(queued)
    assert await _ids(client, states=[run.RUN_STATE_WAITING]) == []


async def test_list__parent__selects_what_it_started(client: Caller, stage: Stage) -> None:
    one = lives.begin(stage)
    child = lives.start_child(stage, one)
    assert await _ids(client, parent_run_id=one.run_id) == [child]
    assert await _ids(client, parent_run_id=one.run_id, name="flow") == [child]
    assert await _ids(client, parent_run_id=one.run_id, name="ship") == []
    assert await _ids(client, parent_run_id=child) == []
    found = await calls.get(client, child)
    assert (found.parent_run_id, found.root_run_id) == (one.run_id, one.run_id)


@pytest.mark.parametrize("fields", [{}, {"name": "flow"}, {"attributes": {"a": "1"}}])
async def test_list__more_than_a_page__gives_each_once(
    client: Caller, fields: dict[str, Any]
) -> None:
    ids = await calls.started(client, *[new(attributes={"a": "1"})] * 7)
    found: list[str] = []
    token = ""
    while True:
        page, token = await calls.listed(client, page_size=3, page_token=token, **fields)
        found += [one.run_id for one in page]
        if not token:
            break
        assert len(page) == 3
    assert found == ids[::-1]


async def test_list__page_is_mostly_of_other_states__is_read_on(client: Caller) -> None:
    (oldest,) = await calls.started(client, new(delay=seconds(60)))
    await calls.started(client, *[new()] * 30)
    assert await _ids(client, states=[run.RUN_STATE_DELAYED], page_size=2) == [oldest]


async def test_list__bad_field__is_refused(client: Caller) -> None:
    _, token = await calls.listed(client)
    bad: list[dict[str, Any]] = [
        {"states": [run.RUN_STATE_UNSPECIFIED]},
        {"states": [99]},
        {"page_size": 1001},
        {"page_token": "x"},
        {"parent_run_id": "x"},
        {"attributes": {"": "x"}},
        {"name": "n" * 201},
    ]
    assert token == ""
    for fields in bad:
        refused = await refusals.refused(calls.listed(client, **fields))
        assert refused.reason == "FIELD_INVALID", fields


async def test_list__another_namespace__shows_nothing_of_it(client: Caller) -> None:
    await client.create_namespace("other")
    other = Caller(client.address, "other")
    (run_id,) = await calls.started(client, new(attributes={"a": "1"}))
    for fields in ({}, {"name": "flow"}, {"attributes": {"a": "1"}}, {"parent_run_id": run_id}):
        assert await _ids(other, **fields) == []
    await other.close()


# ------------------------------------------------------------------------------------- steps


async def _steps(client: Caller, run_id: str, **fields: Any) -> tuple[list[run.Step], str]:
    request = service.ListRunStepsRequest(run_id=run_id, **fields)
    answer: service.ListRunStepsResponse = await calls.call(client, "ListRunSteps", request)
    return list(answer.steps), answer.next_page_token


async def test_list_steps__recorded__come_in_order_with_their_outcomes(
    client: Caller, stage: Stage
) -> None:
    one = lives.begin(stage)
    record(stage, one, call("2", output=b"7"), nap("10", 3600), task("1"), task("3", "other"))
    lives.work(stage)
    found, token = await _steps(client, one.run_id)
    assert ([step.step_id for step in found], token) == (["2", "10", "1", "3"], "")
    assert found[0].output.data == b"7"
    assert found[1].remaining.ToTimedelta().total_seconds() > 3500
    assert (found[2].HasField("output"), found[3].HasField("output")) == (True, False)
    assert found[2].child_id.startswith(f"{one.run_id}:")


async def test_list_steps__more_than_a_page__gives_each_once(client: Caller, stage: Stage) -> None:
    one = lives.begin(stage)
    record(stage, one, *(call(str(n)) for n in range(7)))
    found: list[str] = []
    token = ""
    while True:
        page, token = await _steps(client, one.run_id, page_size=3, page_token=token)
        found += [step.step_id for step in page]
        if not token:
            break
        assert len(page) == 3
    assert len(page) == 1
    assert found == [str(n) for n in range(7)]


async def test_list_steps__bad_call__is_refused(client: Caller) -> None:
    (run_id,) = await calls.started(client)
    assert await _steps(client, run_id) == ([], "")
    refused = await refusals.refused(_steps(client, UNKNOWN))
    assert refused.reason == "RUN_NOT_FOUND"
    for fields in ({"page_size": 10_001}, {"page_token": "x"}):
        assert (await refusals.refused(_steps(client, run_id, **fields))).reason == "FIELD_INVALID"
