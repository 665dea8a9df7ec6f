"""Asking the record of operators: by whom, what, when, and how it ended."""

from collections.abc import AsyncIterator
from datetime import UTC, datetime, timedelta
from typing import Any

import psycopg
import pytest
import pytest_asyncio

from tenure.v1 import admin_service_pb2 as admin
from tests.protocol.caller import Caller
from tests.protocol.refusals import refused

NOW = datetime(2026, 3, 1, 12, tzinfo=UTC)
FIRST = "key:a:b:0199c0de-0000-7000-8000-000000000001"
SECOND = "key:ops:0199c0de-0000-7000-8000-000000000002"
#: Oldest first, an hour apart.
DEEDS = [
    (FIRST, "SetQueue", "OK"),
    (SECOND, "ListWorkers", "OK"),
    (SECOND, "ListQueues", "SCOPE_MISSING"),
    ("database:ops@host", "CreateApiKey", "OK"),
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
