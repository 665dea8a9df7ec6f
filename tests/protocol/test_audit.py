"""Asking the record of operators: by whom, what, when, and how it ended."""

import json
from collections.abc import AsyncIterator
from datetime import UTC, datetime, timedelta
from typing import Any

import psycopg
import pytest
import pytest_asyncio

from tenure.v1 import admin_service_pb2 as admin
from tenure_service.rpc.call import address
from tests.protocol import caller, contract
from tests.protocol.caller import Caller
from tests.protocol.raw_worker import RawWorker
from tests.protocol.refusals import refused

NOW = datetime(2026, 3, 1, 12, tzinfo=UTC)
FIRST = "key:a:b:0199c0de-0000-7000-8000-000000000001"
SECOND = "key:ops:0199c0de-0000-7000-8000-000000000002"
#: Oldest first, an hour apart.
DEEDS = [
    (FIRST, "SetQueue", "OK"),
    (SECOND, "ListWorkers", "OK"),
    (SECOND, "ListQueues", "SCOPE_MISSING"),
    ("database:ops@host", "CreateApiKey", "OK: key 0199c0de-0000-7000-8000-000000000003"),
    (SECOND, "GetQueueStatistics", "OK"),
    (FIRST, "RevokeApiKey", "NOT_REGISTERED"),
]


@pytest_asyncio.fixture
async def recorded(client: Caller, conn: psycopg.Connection) -> AsyncIterator[Caller]:
    """A server whose record has the deeds."""
    for place, (actor, action, outcome) in enumerate(DEEDS):
        conn.execute(
            """
            insert into audit_events (at, namespace, actor, action, request, outcome, peer)
            values (%s, 'default', %s, %s, '', %s, '')
            """,
            [NOW + timedelta(hours=place), actor, action, outcome],
        )
    yield client


def _asked(**fields: Any) -> admin.ListAuditEventsRequest:
    request = admin.ListAuditEventsRequest(
        **{name: value for name, value in fields.items() if name not in {"since", "until"}}
    )
    for name in {"since", "until"} & fields.keys():
        getattr(request, name).FromDatetime(NOW + timedelta(hours=fields[name]))
    return request


@pytest.mark.parametrize(
    ("wanted", "found"),
    [
        ({}, [5, 4, 3, 2, 1, 0]),
        ({"actor": FIRST}, [5, 0]),
        ({"actor": "a:b"}, [5, 0]),
        ({"actor": "ops"}, [4, 2, 1]),
        ({"actor": "0199c0de-0000-7000-8000-000000000002"}, [4, 2, 1]),
        ({"actor": "a"}, []),
        ({"actor": "database:ops@host"}, [3]),
        ({"action": "SetQueue"}, [0]),
        ({"since": 4}, [5, 4]),
        ({"until": 2}, [1, 0]),
        ({"since": 1, "until": 4, "actor": "ops"}, [2, 1]),
        ({"refused_only": True}, [5, 2]),
        ({"changes_only": True}, [5, 3, 0]),
        ({"changes_only": True, "refused_only": True}, [5]),
    ],
    ids=str,
)
async def test_list__filters__gives_what_they_name_newest_first(
    recorded: Caller, wanted: dict[str, Any], found: list[int]
) -> None:
    listed: list[tuple[str, str, str]] = []
    token = ""
    while True:
        request = _asked(page_size=2, page_token=token, **wanted)
        answer = await recorded.admin.ListAuditEvents(request)
        # Asking is an operator's call as well, made in another year than the deeds.
        listed += [
            (event.actor, event.action, event.outcome)
            for event in answer.events
            if event.actor != "anonymous"
        ]
        token = answer.next_page_token
        if not token:
            break
    assert listed == [DEEDS[place] for place in found]


async def test_list__instant_that_is_none__is_refused_by_its_path(client: Caller) -> None:
    request = admin.ListAuditEventsRequest()
    request.since.seconds = 10**15
    request.until.nanos = -1
    refusal = await refused(client.admin.ListAuditEvents(request))
    assert refusal.reason == "FIELD_INVALID"
    assert {"since", "until"} <= set(refusal.fields)


# ------------------------------------------------------------------------- what a call did


def _events(conn: psycopg.Connection, action: str) -> list[tuple[str, str]]:
    """Gives what was asked and how it ended, oldest first."""
    return conn.execute(
        "select request, outcome from audit_events where action = %s order by audit_event_id",
        [action],
    ).fetchall()


async def _dead(client: Caller) -> str:
    (task_id,) = await client.enqueue()
    worker = await RawWorker.open(client)
    failed = caller.failed((await worker.tasks())[0])
    failed.failed.failure.non_retryable = True
    assert await worker.report(failed) == ["RECORDED"]
    await worker.close()
    return task_id


async def test_record__dead_letters_are_dealt_with__tells_how_many_of_them(
    client: Caller, conn: psycopg.Connection
) -> None:
    task_id = await _dead(client)
    both = [task_id, contract.UNKNOWN]
    await client.admin.DiscardDeadLetters(admin.DiscardDeadLettersRequest(task_ids=both))
    await client.admin.DiscardDeadLetters(admin.DiscardDeadLettersRequest(task_ids=[task_id]))
    await client.admin.ReplayDeadLetters(admin.ReplayDeadLettersRequest(task_ids=[task_id]))
    assert [outcome for _, outcome in _events(conn, "DiscardDeadLetters")] == [
        "OK: discarded 1 of 2",
        "OK: discarded 0 of 1",
    ]
    assert [outcome for _, outcome in _events(conn, "ReplayDeadLetters")] == ["OK: replayed 0 of 1"]
    again = await _dead(client)
    await client.admin.ReplayDeadLetters(admin.ReplayDeadLettersRequest(task_ids=[again]))
    assert _events(conn, "ReplayDeadLetters")[-1][1] == "OK: replayed 1 of 1"


async def test_record__key_is_made__names_it_without_its_secret(
    client: Caller, conn: psycopg.Connection
) -> None:
    made = await client.admin.CreateApiKey(
        admin.CreateApiKeyRequest(name="ops", scopes=[admin.SCOPE_ADMIN])
    )
    (event,) = _events(conn, "CreateApiKey")
    assert event[1] == f"OK: key {made.key.key_id}"
    assert made.secret not in "".join(event)


async def test_record__tasks_are_cancelled__tells_who_asked_for_which_and_why(
    client: Caller, conn: psycopg.Connection
) -> None:
    running, waiting = await client.enqueue(count=2)
    worker = await RawWorker.open(client)
    held = (await worker.tasks())[0]
    assert held.task_id == running
    await client.cancel(waiting, reason="wrong customer")
    assert await client.state(waiting) == "CANCELLED"
    await client.cancel(running, waiting, contract.UNKNOWN)
    assert await worker.report(caller.completed(held)) == ["RECORDED"]
    await client.cancel(running)
    await worker.close()
    first, second, third = _events(conn, "CancelTasks")
    assert json.loads(first[0]) == {
        "task_ids": [waiting],
        "reason": "wrong customer",
        "grace_duration": "30s",
    }
    assert first[1] == "OK: cancel requested 1 of 1"
    assert second[1] == "OK: cancel requested 2 of 3"
    assert third[1] == "OK: cancel requested 0 of 1"
    found = await client.admin.ListAuditEvents(_asked(action="CancelTasks", changes_only=True))
    assert [event.actor for event in found.events] == ["anonymous"] * 3


async def test_record__many_tasks_are_cancelled__names_some_and_counts_all(
    client: Caller, conn: psycopg.Connection
) -> None:
    task_ids = await client.enqueue(count=200)
    await client.cancel(*task_ids)
    ((request, outcome),) = _events(conn, "CancelTasks")
    asked = json.loads(request)
    assert asked["task_count"] == 200
    assert asked["task_ids"] == task_ids[:20]
    assert outcome == "OK: cancel requested 200 of 200"


async def test_record__cancelled_again_and_again__is_bounded_and_all_are_served(
    client: Caller, conn: psycopg.Connection, caplog: pytest.LogCaptureFixture
) -> None:
    task_ids = await client.enqueue(count=62)
    for task_id in task_ids:
        await client.cancel(task_id)
    assert len(_events(conn, "CancelTasks")) == 60
    assert "anonymous cancels too often for each call to be recorded" in caplog.text
    assert await client.state(task_ids[-1]) == "CANCELLED"


@pytest.mark.parametrize(
    ("peer", "shown"),
    [
        ("ipv6:%5B::1%5D:53154", "[::1]:53154"),
        ("ipv6:%5Bfe80::1%25eth0%5D:53154", "[fe80::1%eth0]:53154"),
        ("ipv4:127.0.0.1:1", "127.0.0.1:1"),
        ("unix:/run/tenure%20a.sock", "unix:/run/tenure a.sock"),
        (None, ""),
    ],
)
def test_address__peer_as_grpc_writes_it__is_one_as_people_do(peer: str | None, shown: str) -> None:
    assert address(peer) == shown
