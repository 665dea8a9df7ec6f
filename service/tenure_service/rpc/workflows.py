"""WorkflowService."""

import dataclasses
from collections.abc import Mapping, Sequence

from tenure.v1 import run_pb2 as run
from tenure.v1 import workflow_service_pb2 as service
from tenure.v1 import workflow_service_pb2_grpc as service_grpc
from tenure_service.dispatch import failures, history
from tenure_service.engine import limits, states
from tenure_service.engine.errors import Reason, TenureError, shutting_down
from tenure_service.engine.tokens import TaskKey
from tenure_service.rpc import errors, pages, storing, views
from tenure_service.rpc.call import PRINCIPAL, Calls, Context, unary
from tenure_service.rpc.check import Check
from tenure_service.rpc.operated import paced
from tenure_service.store import rows
from tenure_service.store.jsonb import clean
from tenure_service.usecase import cancel_runs, enqueue, runs

_STEPS_BYTES_MAX = limits.MESSAGE_BYTES_MAX // 2
_LIST = "runs"
#: The state of a run by how its root row was over.
_ENDS = {
    states.TaskState.COMPLETED: run.RUN_STATE_COMPLETED,
    states.TaskState.CANCELLED: run.RUN_STATE_CANCELLED,
    states.TaskState.TIMED_OUT: run.RUN_STATE_TIMED_OUT,
    states.TaskState.DEAD: run.RUN_STATE_FAILED,
}


def read_shape(check: Check, message: run.NewRun) -> enqueue.Shape:
    """Reads all of a run to start but its input and key."""
    timeout_ms = None
    if message.HasField("timeout"):
        timeout_ms = check.duration_ms("timeout", message.timeout, high=limits.RUN_TIMEOUT_MAX)
        if timeout_ms <= 0:
            check.wrong("timeout", "must be 1 ms at least")
    return dataclasses.replace(
        storing.read_shape(check, message, storing.key_ms(check, message)),
        run=enqueue.RunShape(
            timeout_ms=timeout_ms,
            attributes=_attributes(check, message.attributes),
            recovery_attempts=check.number(
                "recovery_attempts", message.recovery_attempts, 0, limits.RECOVERY_ATTEMPTS_MAX
            )
            or limits.RECOVERY_ATTEMPTS,
        ),
    )


def _attributes(check: Check, said: Mapping[str, str]) -> rows.Json | None:
    if len(said) > limits.ATTRIBUTE_COUNT_MAX:
        check.wrong("attributes", f"are more than {limits.ATTRIBUTE_COUNT_MAX}")
        return None
    for key, value in said.items():
        check.text("attributes", key, limits.ATTRIBUTE_KEY_BYTES_MAX, required=True)
        check.text("attributes", value, limits.ATTRIBUTE_BYTES_MAX)
    return dict(said) or None


def run_message(row: rows.RunRow) -> run.Run:
    """Gives a run."""
    message = run.Run(
        run_id=row.run_id,
        name=row.name,
        queue=row.queue,
        lane=row.lane_key,
        state=_state(row),
        priority=row.priority,
        version=row.version or "",
        activation_count=row.activation_count,
        recovery_count=row.recovery_count,
        key=row.key or "",
        attributes=row.attributes or {},
        parent_run_id=row.parent_run_id or "",
        root_run_id=row.root_run_id,
        created_at=views.timestamp(row.created_at),
        worker=row.worker or "",
        cancel_requested=row.cancel_requested,
        step_count=row.step_count,
    )
    if row.blocked is not None:
        message.blocked = run.BlockedReason.Value(f"BLOCKED_REASON_{row.blocked}")
    if row.failure is not None:
        message.failure.CopyFrom(failures.from_json(row.failure))
    for name in ("ended_at", "wakes_at"):
        at = getattr(row, name)
        if at is not None:
            getattr(message, name).CopyFrom(views.timestamp(at))
    if row.input is not None:
        message.input.CopyFrom(
            views.payload_message(row.input, row.input_encoding, row.input_schema)
        )
    if row.output is not None:
        message.output.CopyFrom(
            views.payload_message(row.output, row.output_encoding, row.output_schema)
        )
    return message


def _state(row: rows.RunRow) -> run.RunState.ValueType:
    return run.RunState.Value(f"RUN_STATE_{row.state}")


def result_message(row: rows.TaskResultRow) -> run.RunResult:
    """Gives how a run was over."""
    over = states.final_state(row.outcome or "", dead=row.dead)
    message = run.RunResult(run_id=row.run_id, state=_ENDS[over])
    if over is states.TaskState.COMPLETED:
        message.output.CopyFrom(
            views.payload_message(row.output or b"", row.output_encoding, row.output_schema)
        )
    elif row.failure is not None:
        message.failure.CopyFrom(failures.from_json(row.failure))
    return message


class WorkflowServicer(service_grpc.WorkflowServiceServicer):
    """Starts runs, reads them, waits for them and ends them."""

    def __init__(self, calls: Calls) -> None:
        self._calls = calls
        self._hub = calls.hub

    @unary
    async def StartRuns(
        self, request: service.StartRunsRequest, context: Context
    ) -> service.StartRunsResponse:
        """Stores runs; see the protocol."""
        if self._hub.draining:
            raise shutting_down()
        check = Check()
        check.count("runs", request.runs, limits.ENQUEUE_COUNT_MAX)
        request_id = check.request_id("request_id", request.request_id)
        check.done()
        namespace_id = await self._calls.namespace_id(context)
        answers = await storing.store(
            self._hub,
            namespace_id,
            request.runs,
            storing.Items("runs", read_shape),
            request_id,
            storing.digest_of(request, request_id),
        )
        response = service.StartRunsResponse()
        for answer in answers:
            result = response.results.add()
            if isinstance(answer, TenureError):
                result.error.CopyFrom(errors.status(answer))
            else:
                result.run.run_id = answer.task_id
                result.run.existing = answer.existing
        return response

    @unary
    async def GetRun(
        self, request: service.GetRunRequest, context: Context
    ) -> service.GetRunResponse:
        """Reads one run; see the protocol."""
        check = Check()
        if bool(request.run_id) == bool(request.key):
            check.wrong("run_id", "or key must be set, and not both")
        key = check.text("key", request.key, limits.KEY_BYTES_MAX)
        check.done()
        run_id = _run_id(request.run_id) if request.run_id else None
        namespace_id = await self._calls.namespace_id(context)
        row = await self._calls.run(
            runs.get,
            self._hub.database,
            namespace_id,
            run_id=run_id,
            key=key or None,
            include_payloads=request.include_payloads,
        )
        if not PRINCIPAL.get().may_use(row.queue):
            raise runs.run_not_found(run_id, key)
        return service.GetRunResponse(run=run_message(row))

    @unary
    async def AwaitRuns(
        self, request: service.AwaitRunsRequest, context: Context
    ) -> service.AwaitRunsResponse:
        """Waits for runs; see the protocol."""
        check = Check()
        check.count("run_ids", request.run_ids, limits.AWAIT_COUNT_MAX)
        wait_ms = check.duration_ms(
            "wait_duration", request.wait_duration, high=limits.WAIT_DURATION_MAX
        )
        ids, unknown = _run_ids(check, request.run_ids)
        check.done()
        namespace_id = await self._calls.namespace_id(context)
        shown = await self._visible(namespace_id, ids)
        unknown += [run_id for run_id in ids if run_id not in shown]
        found = await self._hub.await_results(
            namespace_id,
            [TaskKey(run_id, run_id) for run_id in shown],
            0 if unknown else wait_ms / 1000,
            of_runs=True,
        )
        response = service.AwaitRunsResponse()
        for text in unknown:
            response.results.add(run_id=text, error=errors.status(runs.run_not_found(text)))
        size = response.ByteSize()
        for run_id in shown:
            if run_id not in found:
                continue
            row = found[run_id]
            if row is None:
                error = errors.status(runs.run_not_found(run_id))
                response.results.add(run_id=run_id, error=error)
                continue
            result = result_message(row)
            size += result.ByteSize() + len(run_id)
            if response.results and size > limits.MESSAGE_BYTES_MAX - pages.HEADROOM_BYTES:
                # The rest is for the next call, which is answered at once.
                break
            response.results.add(run_id=run_id, result=result)
        return response

    @unary
    async def ListRuns(
        self, request: service.ListRunsRequest, context: Context
    ) -> service.ListRunsResponse:
        """Lists runs; see the protocol."""
        check = Check()
        page_size = check.page_size(request.page_size)
        wanted: list[str] = []
        for state in request.states:
            if state not in run.RunState.values() or state == run.RUN_STATE_UNSPECIFIED:
                check.wrong("states", f"has {state}, which this server does not know")
            else:
                wanted.append(run.RunState.Name(state).removeprefix("RUN_STATE_"))
        check.text("name", request.name, limits.NAME_BYTES_MAX)
        attributes = _attributes(check, request.attributes)
        check.done()
        place = pages.read(_LIST, request.page_token, 1)
        namespace_id = await self._calls.namespace_id(context)
        found, before = await self._calls.run(
            runs.list_runs,
            self._hub.database,
            namespace_id,
            states=wanted,
            name=request.name or None,
            attributes=attributes,
            parent_run_id=_run_id(request.parent_run_id) if request.parent_run_id else None,
            before=pages.row_id(place[0]) if place else None,
            row_count_max=page_size,
        )
        may_use = PRINCIPAL.get().may_use
        messages = [run_message(row) for row in found if may_use(row.queue)]
        listed = pages.fitting(messages)
        if len(listed) < len(messages):
            before = listed[-1].run_id
        token = "" if before is None else pages.write(_LIST, before)
        return service.ListRunsResponse(runs=listed, next_page_token=token)

    @unary
    async def ListRunSteps(
        self, request: service.ListRunStepsRequest, context: Context
    ) -> service.ListRunStepsResponse:
        """Lists the steps of a run; see the protocol."""
        check = Check()
        after_seq = history.page_token_parse(request.page_token)
        if after_seq is None:
            check.wrong("page_token", "is not a token of this list")
        check.number("page_size", request.page_size, 0, limits.STEP_LIST_COUNT_MAX)
        check.done()
        run_id = _run_id(request.run_id)
        namespace_id = await self._calls.namespace_id(context)
        await self._check_visible(namespace_id, run_id)
        page = await self._calls.run(
            runs.list_steps,
            self._hub.database,
            namespace_id,
            run_id,
            after_seq=after_seq or 0,
            step_count_max=request.page_size or limits.STEP_LIST_COUNT_DEFAULT,
            bytes_max=_STEPS_BYTES_MAX,
        )
        return service.ListRunStepsResponse(
            steps=[history.step(view) for view in page.steps],
            next_page_token=history.page_token(page.next_seq),
        )

    @paced
    async def CancelRuns(
        self, request: service.CancelRunsRequest, context: Context
    ) -> service.CancelRunsResponse:
        """Asks for the end of runs; see the protocol."""
        check = Check()
        check.count("run_ids", request.run_ids, limits.CANCEL_COUNT_MAX)
        grace_ms = storing.grace_ms(check, request)
        ids, _ = _run_ids(check, request.run_ids)
        check.done()
        namespace_id = await self._calls.namespace_id(context)
        shown = await self._visible(namespace_id, ids)
        found: dict[str, rows.RunRow] = {}
        if shown:
            ends = await self._calls.run(
                cancel_runs.cancel_runs,
                self._hub.database,
                namespace_id,
                shown,
                reason=clean(request.reason),
                grace_ms=grace_ms,
            )
            self._hub.ended(ends)
            self._hub.wake.cancels()
            await self._hub.tell_cancels()
            read = await self._calls.run(runs.read_many, self._hub.database, namespace_id, shown)
            found = {row.run_id: row for row in read}
        return service.CancelRunsResponse(results=_answers(request.run_ids, found))

    @paced
    async def ResumeRuns(
        self, request: service.ResumeRunsRequest, context: Context
    ) -> service.ResumeRunsResponse:
        """Lets blocked runs go on; see the protocol."""
        check = Check()
        check.count("run_ids", request.run_ids, limits.CANCEL_COUNT_MAX)
        ids, _ = _run_ids(check, request.run_ids)
        check.done()
        namespace_id = await self._calls.namespace_id(context)
        shown = await self._visible(namespace_id, ids)
        woken, found = await self._calls.run(runs.resume, self._hub.database, namespace_id, shown)
        if woken.ready_lanes:
            await self._hub.readied(woken.ready_lanes, anywhere=True)
        resumed = set(woken.run_ids)
        response = service.ResumeRunsResponse()
        for text in request.run_ids:
            row = found.get(text)
            if row is None:
                error = runs.run_not_found(text)
            elif text in resumed:
                response.results.add(state=_state(row))
                continue
            else:
                error = TenureError(
                    Reason.STATE_CONFLICT,
                    f"run {text} is {row.state}, not BLOCKED",
                    metadata={"state": row.state, "allowed": "BLOCKED"},
                )
            response.results.add(error=errors.status(error))
        return response

    @paced
    async def ForkRun(
        self, request: service.ForkRunRequest, context: Context
    ) -> service.ForkRunResponse:
        """Starts a run with the steps of another one; see the protocol."""
        check = Check()
        request_id = check.request_id("request_id", request.request_id)
        step_id = check.text("before_step_id", request.before_step_id, limits.STEP_ID_BYTES_MAX)
        check.done()
        run_id = _run_id(request.run_id)
        namespace_id = await self._calls.namespace_id(context)
        await self._check_visible(namespace_id, run_id)
        asked = runs.Fork(
            namespace_id=namespace_id,
            run_id=run_id,
            before_step_id=step_id or None,
            request_id=request_id,
        )
        answer = await self._calls.run(runs.fork, self._hub.database, self._hub.catalogue, asked)
        await self._hub.started([answer])
        return service.ForkRunResponse(run_id=answer.task_id)

    async def _visible(self, namespace_id: int, run_ids: Sequence[str]) -> list[str]:
        """Gives those of the runs that the caller may know of, if they exist."""
        principal = PRINCIPAL.get()
        if not principal.restricted or not run_ids:
            return list(run_ids)
        keys = [TaskKey(run_id, run_id) for run_id in run_ids]
        shown = await self._calls.run(self._hub.keys.visible, principal, namespace_id, keys)
        return [key.run_id for key in keys if key in shown]

    async def _check_visible(self, namespace_id: int, run_id: str) -> None:
        if not await self._visible(namespace_id, [run_id]):
            raise runs.run_not_found(run_id)


def _answers(
    texts: Sequence[str], found: Mapping[str, rows.RunRow]
) -> list[service.RunStateResult]:
    return [
        service.RunStateResult(state=_state(found[text]))
        if text in found
        else service.RunStateResult(error=errors.status(runs.run_not_found(text)))
        for text in texts
    ]


def _run_id(text: str) -> str:
    """Reads an id of a run.

    Raises:
        TenureError: FIELD_INVALID for what is no id, RUN_NOT_FOUND for the id of a task of a run.
    """
    check = Check()
    key = check.task_key("run_id", text)
    check.done()
    if key is None or key.run_id != key.task_id:
        raise runs.run_not_found(text)
    return key.run_id


def _run_ids(check: Check, texts: Sequence[str]) -> tuple[list[str], list[str]]:
    """Reads ids of runs: those of our form, each once, and the others, which do not exist."""
    ids: dict[str, None] = {}
    unknown: list[str] = []
    for place, text in enumerate(texts):
        key = check.item_key(f"run_ids[{place}]", text)
        if key is not None and key.run_id == key.task_id:
            ids[key.run_id] = None
        elif text:
            unknown.append(text)
    return list(ids), unknown
