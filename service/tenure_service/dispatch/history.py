"""Recorded steps as messages: what an activation replays, and what it waits for."""

import base64
import binascii
from typing import Final

from tenure.v1 import payload_pb2 as payload
from tenure.v1 import run_pb2 as run
from tenure.v1 import work_stream_pb2 as stream
from tenure_service.dispatch import failures
from tenure_service.engine import states
from tenure_service.engine.states import StepKind, TaskState
from tenure_service.engine.tokens import task_id_text
from tenure_service.store import rows
from tenure_service.store.steps import View, key_of

_PLACE: Final = "steps:"
#: What a child came to that did not fail by itself, as the type of its failure.
_TYPES: Final = {TaskState.CANCELLED: "Cancelled", TaskState.TIMED_OUT: "TimedOut"}
_CHILDREN: Final = {StepKind.TASK, StepKind.CHILD}


def page_token(next_seq: int | None) -> str:
    """Gives the token of the steps after a number; empty: there are none."""
    if next_seq is None:
        return ""
    return base64.urlsafe_b64encode(f"{_PLACE}{next_seq}".encode()).decode()


def page_token_parse(text: str) -> int | None:
    """Reads a token; 0 is the beginning. None: it is no token of steps."""
    if not text:
        return 0
    try:
        found = base64.urlsafe_b64decode(text.encode("ascii")).decode("ascii")
    except (binascii.Error, ValueError, UnicodeError):
        return None
    number = found.removeprefix(_PLACE)
    known = found.startswith(_PLACE) and number.isdecimal() and len(number) < len(str(2**63))
    return int(number) if known else None


def step(view: View) -> run.Step:
    """Gives a step as it stands."""
    row, result = view
    message = run.Step(
        step_id=row.step_id,
        name=row.name,
        kind=run.StepKind.Value(f"STEP_KIND_{row.kind}"),
    )
    message.recorded_at.FromDatetime(row.recorded_at)
    if row.child_id is not None:
        message.child_id = task_id_text(*key_of(row.kind, row.run_id, row.child_id))
    if row.kind == StepKind.SLEEP:
        _sleep(message, row)
    elif row.kind not in _CHILDREN or row.output is not None or row.failure is not None:
        message.ended_at.FromDatetime(row.recorded_at)
        if row.failure is not None:
            message.failure.CopyFrom(failures.from_json(row.failure))
        else:
            message.output.CopyFrom(_payload(row.output, row.output_encoding, row.output_schema))
    elif result is not None and result.outcome is not None and result.fits:
        over = child(message.child_id, result)
        if over.HasField("failure"):
            message.failure.CopyFrom(over.failure)
        else:
            message.output.CopyFrom(over.output)
        message.ended_at.CopyFrom(over.ended_at)
    return message


def _sleep(message: run.Step, row: rows.StepRow) -> None:
    if row.remaining_ms is not None and row.remaining_ms > 0:
        message.remaining.FromMilliseconds(row.remaining_ms)
        return
    message.output.SetInParent()
    if row.wake_at is not None:
        message.ended_at.FromDatetime(row.wake_at)


def child(child_id: str, result: rows.ChildResultRow) -> stream.ResolvedChild:
    """Gives how a task or a run was over that a run has started."""
    message = stream.ResolvedChild(child_id=child_id)
    if result.ended_at is not None:
        message.ended_at.FromDatetime(result.ended_at)
    over = states.final_state(result.outcome or "", dead=result.dead)
    if over is TaskState.COMPLETED:
        message.output.CopyFrom(
            _payload(result.output, result.output_encoding, result.output_schema)
        )
    else:
        message.failure.CopyFrom(failures.from_json(_failure(over, result.failure)))
    return message


def unknown_child(child_id: str) -> stream.ResolvedChild:
    """Says that a run waits for something that it has not started: it would wait for ever."""
    failure = payload.Failure(type="NotFound", message=f"the run has started no {child_id}")
    failure.non_retryable = True
    return stream.ResolvedChild(child_id=child_id, failure=failure)


def _failure(over: TaskState, failure: rows.Json | None) -> rows.Json:
    """Gives the failure of a child; one that was ended from outside has the type that says so."""
    type_ = _TYPES.get(over)
    if type_ is None:
        return failure or {"type": "Failed", "message": ""}
    if failure is None:
        return {"type": type_, "message": ""}
    if failure.get("type") == type_:
        return failure
    return {"type": type_, "message": failure.get("message", ""), "cause": failure}


def _payload(data: bytes | None, encoding: str | None, schema: str | None) -> payload.Payload:
    return payload.Payload(data=data or b"", encoding=encoding or "", schema=schema or "")
