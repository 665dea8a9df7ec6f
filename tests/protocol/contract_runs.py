"""The rows of the table for WorkflowService, one decent request of each of its RPCs."""

import uuid
from typing import Any

from tenure.v1 import payload_pb2 as payload
from tenure.v1 import run_pb2 as run
from tenure.v1 import workflow_service_pb2 as service
from tenure_service.engine.errors import Reason
from tests.protocol import caller, contract, refusals
from tests.protocol.caller import Caller
from tests.protocol.contract import LONG, UNKNOWN, Row
from tests.protocol.refusals import Refusal

_INVALID = Reason.FIELD_INVALID
_RUN = "WorkflowService."
UNKNOWN_STATE: Any = 77


def starting(*runs: run.NewRun, request_id: str = "") -> service.StartRunsRequest:
    """Gives a StartRuns call."""
    return service.StartRunsRequest(
        request_id=request_id, runs=runs or [run.NewRun(name="contract")]
    )


#: One decent request of each RPC.
BASES: dict[str, Any] = {
    f"{_RUN}StartRuns": starting(
        run.NewRun(
            name="bad",
            queue="q",
            input=payload.Payload(data=b"1", encoding="json"),
            attributes={"a": "b"},
        ),
        run.NewRun(name="mate"),
    ),
    f"{_RUN}GetRun": service.GetRunRequest(run_id=UNKNOWN),
    f"{_RUN}AwaitRuns": service.AwaitRunsRequest(run_ids=[UNKNOWN]),
    f"{_RUN}ListRuns": service.ListRunsRequest(attributes={"a": "b"}),
    f"{_RUN}ListRunSteps": service.ListRunStepsRequest(run_id=UNKNOWN),
    f"{_RUN}CancelRuns": service.CancelRunsRequest(run_ids=[UNKNOWN]),
    f"{_RUN}ResumeRuns": service.ResumeRunsRequest(run_ids=[UNKNOWN]),
    f"{_RUN}ForkRun": service.ForkRunRequest(run_id=UNKNOWN),
}


async def _start(client: Caller, *runs: run.NewRun, request_id: str = "") -> str:
    request = starting(*runs, request_id=request_id)
    answer: service.StartRunsResponse = await client.workflow.StartRuns(
        request, metadata=client.metadata, timeout=caller.TIMEOUT_SECONDS
    )
    return answer.results[0].run.run_id


async def _key_taken(client: Caller) -> Refusal:
    """Starts a run with another input under a key that stands."""
    key = str(uuid.uuid4())
    first = run.NewRun(name="contract", key=key)
    second = run.NewRun(name="contract", key=key, input=payload.Payload(data=b"other"))
    answer: service.StartRunsResponse = await client.workflow.StartRuns(
        starting(first, second), metadata=client.metadata
    )
    return refusals.read(answer.results[1].error)


async def _reuse_of_start(client: Caller) -> Refusal:
    """Repeats a request id with another run."""
    request_id = str(uuid.uuid4())
    await _start(client, request_id=request_id)
    again = _start(client, run.NewRun(name="another"), request_id=request_id)
    return await refusals.refused(again)


async def _reuse_of_fork(client: Caller) -> Refusal:
    """Repeats a request id for another run."""
    request_id = str(uuid.uuid4())
    requests = [
        service.ForkRunRequest(run_id=await _start(client), request_id=request_id) for _ in range(2)
    ]
    await client.workflow.ForkRun(requests[0], metadata=client.metadata)
    again = client.workflow.ForkRun(requests[1], metadata=client.metadata)
    return await refusals.refused(again)


async def _resume_of_queued(client: Caller) -> Refusal:
    """Lets a run go on that is not blocked."""
    request = service.ResumeRunsRequest(run_ids=[await _start(client)])
    answer: service.ResumeRunsResponse = await client.workflow.ResumeRuns(
        request, metadata=client.metadata
    )
    refusal = refusals.read(answer.results[0].error)
    assert refusal.metadata == {"state": "QUEUED", "allowed": "BLOCKED"}
    return refusal


def _row(rpc: str, reason: Reason, request: Any, *fields: str, where: str = "shared") -> Row:
    made = contract.call(f"{_RUN}{rpc}", request)
    return Row(rpc=f"{_RUN}{rpc}", reason=reason, provoke=made, fields=fields, where=where)


def _item(rpc: str, reason: Reason, request: Any, *fields: str) -> Row:
    made = contract.item(f"{_RUN}{rpc}", request)
    return Row(rpc=f"{_RUN}{rpc}", reason=reason, provoke=made, fields=fields, item=True)


_WRONG = run.NewRun(
    name="",
    queue=LONG,
    priority=101,
    delay=caller.seconds(-1),
    key="k" * 501,
    key_duration=caller.seconds(-1),
    lane="\n",
    timeout=caller.seconds(0),
    attributes={"": "x"},
    recovery_attempts=1001,
    traceparent=LONG,
    input=payload.Payload(encoding="e" * 101, schema=LONG),
)

ROWS = [
    _row("StartRuns", _INVALID, service.StartRunsRequest(request_id="no"), "request_id", "runs"),
    _item(
        "StartRuns",
        _INVALID,
        starting(_WRONG),
        *(
            f"runs[0].{name}"
            for name in (
                "name",
                "queue",
                "priority",
                "delay",
                "key",
                "key_duration",
                "lane",
                "timeout",
                "attributes",
                "recovery_attempts",
                "traceparent",
                "input.encoding",
                "input.schema",
            )
        ),
    ),
    _item(
        "StartRuns",
        Reason.PAYLOAD_TOO_LARGE,
        starting(run.NewRun(name="contract", input=payload.Payload(data=contract.TOO_LARGE))),
    ),
    Row(rpc=f"{_RUN}StartRuns", reason=Reason.KEY_TAKEN, provoke=_key_taken, item=True),
    Row(rpc=f"{_RUN}StartRuns", reason=Reason.REQUEST_ID_REUSED, provoke=_reuse_of_start),
    _row("StartRuns", Reason.OVERLOADED, starting(), where="crowded"),
    _row("StartRuns", Reason.DATABASE_UNAVAILABLE, starting(), where="read_only"),
    _row("StartRuns", Reason.SHUTTING_DOWN, starting(), where="stopping"),
    _row("GetRun", _INVALID, service.GetRunRequest(), "run_id"),
    _row("GetRun", Reason.RUN_NOT_FOUND, service.GetRunRequest(run_id=UNKNOWN)),
    _row(
        "AwaitRuns",
        _INVALID,
        service.AwaitRunsRequest(run_ids=["", "\x00"], wait_duration=caller.seconds(61)),
        "run_ids[0]",
        "run_ids[1]",
        "wait_duration",
    ),
    _item("AwaitRuns", Reason.RUN_NOT_FOUND, service.AwaitRunsRequest(run_ids=[UNKNOWN])),
    _row(
        "ListRuns",
        _INVALID,
        service.ListRunsRequest(states=[UNKNOWN_STATE], name=LONG, page_size=1001),
        "states",
        "name",
        "page_size",
    ),
    _row(
        "ListRunSteps",
        _INVALID,
        service.ListRunStepsRequest(run_id=UNKNOWN, page_size=10_001),
        "page_size",
    ),
    _row("ListRunSteps", Reason.RUN_NOT_FOUND, service.ListRunStepsRequest(run_id=UNKNOWN)),
    _row(
        "CancelRuns",
        _INVALID,
        service.CancelRunsRequest(
            run_ids=[""], reason="r" * 1025, grace_duration=caller.seconds(86401)
        ),
        "run_ids[0]",
        "reason",
        "grace_duration",
    ),
    _item("CancelRuns", Reason.RUN_NOT_FOUND, service.CancelRunsRequest(run_ids=[UNKNOWN])),
    _row("ResumeRuns", _INVALID, service.ResumeRunsRequest(), "run_ids"),
    _item("ResumeRuns", Reason.RUN_NOT_FOUND, service.ResumeRunsRequest(run_ids=[UNKNOWN])),
    Row(
        rpc=f"{_RUN}ResumeRuns",
        reason=Reason.STATE_CONFLICT,
        provoke=_resume_of_queued,
        item=True,
    ),
    _row(
        "ForkRun",
        _INVALID,
        service.ForkRunRequest(run_id=UNKNOWN, request_id="no", before_step_id=LONG),
        "request_id",
        "before_step_id",
    ),
    _row("ForkRun", Reason.RUN_NOT_FOUND, service.ForkRunRequest(run_id=UNKNOWN)),
    Row(rpc=f"{_RUN}ForkRun", reason=Reason.REQUEST_ID_REUSED, provoke=_reuse_of_fork),
]
