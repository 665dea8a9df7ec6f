"""The calls of WorkflowService, as clients without an SDK make them."""

from collections.abc import Iterable
from typing import Any

from tenure.v1 import payload_pb2 as payload
from tenure.v1 import run_pb2 as run
from tenure.v1 import workflow_service_pb2 as service
from tests.protocol import refusals
from tests.protocol.caller import TIMEOUT_SECONDS, Caller, seconds
from tests.protocol.refusals import Refusal


def new(name: str = "flow", data: bytes = b"{}", **fields: Any) -> run.NewRun:
    """A run to start."""
    return run.NewRun(name=name, input=payload.Payload(data=data, encoding="json"), **fields)


async def call(client: Caller, method: str, request: Any) -> Any:
    """Makes one call in the caller's namespace."""
    stub = getattr(client.workflow, method)
    return await stub(request, metadata=client.metadata, timeout=TIMEOUT_SECONDS)


async def start(
    client: Caller, *runs: run.NewRun, request_id: str = ""
) -> list[service.StartRunsResult]:
    """Starts runs; gives the answers."""
    request = service.StartRunsRequest(runs=runs, request_id=request_id)
    answer: service.StartRunsResponse = await call(client, "StartRuns", request)
    return list(answer.results)


async def started(client: Caller, *runs: run.NewRun, request_id: str = "") -> list[str]:
    """Starts runs that all are taken; gives their ids."""
    results = await start(client, *(runs or (new(),)), request_id=request_id)
    assert all(result.HasField("run") for result in results), results
    return [result.run.run_id for result in results]


async def get(client: Caller, run_id: str = "", *, key: str = "") -> run.Run:
    """Reads a run with its payloads."""
    request = service.GetRunRequest(run_id=run_id, key=key, include_payloads=True)
    answer: service.GetRunResponse = await call(client, "GetRun", request)
    return answer.run


async def state(client: Caller, run_id: str) -> str:
    """Gives the state of a run, without its prefix."""
    return state_name((await get(client, run_id)).state)


def state_name(state: run.RunState.ValueType) -> str:
    """Gives a state without its prefix."""
    return run.RunState.Name(state).removeprefix("RUN_STATE_")


async def wait(
    client: Caller, *run_ids: str, wait_seconds: float = 10
) -> dict[str, run.RunResult | Refusal]:
    """Waits until one of the runs is over; gives what was answered, by id."""
    request = service.AwaitRunsRequest(run_ids=run_ids, wait_duration=seconds(wait_seconds))
    answer: service.AwaitRunsResponse = await call(client, "AwaitRuns", request)
    return {
        one.run_id: one.result if one.HasField("result") else refusals.read(one.error)
        for one in answer.results
    }


async def listed(client: Caller, **fields: Any) -> tuple[list[run.Run], str]:
    """Lists runs; gives a page and the token of the next one."""
    answer: service.ListRunsResponse = await call(
        client, "ListRuns", service.ListRunsRequest(**fields)
    )
    return list(answer.runs), answer.next_page_token


def outcomes(results: Iterable[service.RunStateResult]) -> list[str]:
    """Gives the state or the reason of each answer."""
    return [
        state_name(one.state) if one.HasField("state") else refusals.read(one.error).reason
        for one in results
    ]
