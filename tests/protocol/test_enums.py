"""Words that SQL, Python and the protocol share are the same in all three."""

from enum import StrEnum
from typing import Any

import psycopg
import pytest

from tenure.v1 import admin_service_pb2 as admin
from tenure.v1 import task_pb2 as task
from tenure.v1 import worker_pb2 as worker
from tenure_service.engine import states
from tenure_service.engine.retry import DeadReason
from tenure_service.rpc import stream
from tenure_service.usecase.end import Recorded

WORDS: dict[str, tuple[Any, type[StrEnum], str | None]] = {
    "TASK_STATE": (task.TaskState, states.TaskState, None),
    "DELIVERY_OUTCOME": (task.DeliveryOutcome, states.Outcome, "delivery_outcome"),
    "DEAD_LETTER_REASON": (admin.DeadLetterReason, DeadReason, "dead_letter_reason"),
    "DEAD_LETTER_STATE": (admin.DeadLetterState, states.DeadLetterState, "dead_letter_state"),
}


@pytest.mark.parametrize("prefix", WORDS)
def test_words__of_an_enum__are_the_same_everywhere(
    read_only_conn: psycopg.Connection, prefix: str
) -> None:
    wire, python, sql = WORDS[prefix]
    names = [value.name for value in wire.DESCRIPTOR.values]
    assert names[0] == f"{prefix}_UNSPECIFIED"
    words = [name.removeprefix(f"{prefix}_") for name in names[1:]]
    assert words == [str(value) for value in python]
    if sql is not None:
        rows = read_only_conn.execute(
            "select enumlabel::text from pg_enum where enumtypid = %s::regtype "
            "order by enumsortorder",
            [f"tenure.{sql}"],
        ).fetchall()
        assert [row[0] for row in rows] == words


def test_words__report_status__has_every_recorded_one() -> None:
    assert set(stream.STATUSES) == set(Recorded)
    said = {worker.ReportStatus.Name(status) for status in stream.STATUSES.values()}
    wanted = {f"REPORT_STATUS_{word}" for word in Recorded} | {
        "REPORT_STATUS_UNSPECIFIED",
        "REPORT_STATUS_REFUSED",
    }
    assert {value.name for value in worker.ReportStatus.DESCRIPTOR.values} == wanted
    assert said == {f"REPORT_STATUS_{word}" for word in Recorded}


def test_words__final_states__are_what_outcomes_end_in() -> None:
    ends = {
        states.final_state(outcome, dead=dead)
        for outcome in states.Outcome
        for dead in (False, True)
    }
    assert ends == states.FINAL_STATES
