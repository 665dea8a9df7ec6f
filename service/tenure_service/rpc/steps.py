"""Steps between the wire and the store: what the stream and its unary twins share."""

from collections.abc import Iterable

from tenure.v1 import payload_pb2 as payload
from tenure.v1 import run_pb2 as run
from tenure.v1 import work_stream_pb2 as stream
from tenure.v1 import worker_service_pb2 as service
from tenure_service.dispatch import failures, history
from tenure_service.dispatch.hub import Hub
from tenure_service.dispatch.session import Session
from tenure_service.engine import limits, tokens
from tenure_service.engine.errors import Reason, TenureError
from tenure_service.engine.states import StepKind
from tenure_service.rpc import errors, pages, tasks, workflows
from tenure_service.rpc.call import PRINCIPAL, Calls
from tenure_service.rpc.check import Check, input_size
from tenure_service.store.steps import Claim
from tenure_service.usecase import enqueue, steps
from tenure_service.usecase.steps import Answer, Step

_KINDS = {"call": StepKind.CALL, "choice": StepKind.CHOICE, "patch": StepKind.PATCH}
_ANSWER_BYTES_MAX = limits.MESSAGE_BYTES_MAX - pages.HEADROOM_BYTES
_PAGE_BYTES_MAX = limits.MESSAGE_BYTES_MAX // 2


def read_claim(check: Check, namespace_id: int, run_id: str, lease_token: str) -> Claim:
    """Reads which activation is spoken of, and with what right; the caller asks `check`."""
    key = tokens.task_id_parse(run_id)
    if key is None or key.run_id != key.task_id:
        check.wrong("run_id", "is not an id of a run of this server")
    token = tokens.lease_token_parse(lease_token)
    if token is None:
        check.wrong("lease_token", "is not a token of this server")
    if key is None or token is None:
        return Claim("", b"", namespace_id, "")
    return Claim(token[0], token[1], namespace_id, key.run_id)


async def record(
    hub: Hub, namespace_id: int, message: stream.RecordSteps | service.RecordStepsRequest
) -> list[stream.StepRecord]:
    """Records the steps of one message; gives what became of each, in order.

    Raises:
        TenureError: for all of them: FIELD_INVALID, LEASE_LOST, OVERLOADED, DATABASE_UNAVAILABLE.
    """
    check = Check()
    claim = read_claim(check, namespace_id, message.run_id, message.lease_token)
    check.count("steps", message.steps, limits.RECORD_COUNT_MAX)
    check.done()
    reader = _Reader()
    outcomes: list[Step | TenureError] = []
    for place, new in enumerate(message.steps):
        try:
            outcomes.append(reader.read(place, new))
        except TenureError as exc:
            outcomes.append(exc)
    fine = [outcome for outcome in outcomes if isinstance(outcome, Step)]
    answers: list[Answer] = []
    if fine:
        size = message.ByteSize()
        call = steps.Call(claim=claim, steps=fine)
        answers = await hub.recorder.record(call, size)
    recorded = iter(answers)
    return _written(
        outcome if isinstance(outcome, TenureError) else next(recorded) for outcome in outcomes
    )


def wait(hub: Hub, session: Session, message: stream.Wait) -> None:
    """Has an activation told of the ends of what it started.

    Raises:
        FieldInvalid: an id is not one of this server.
    """
    check = Check("wait.")
    claim = read_claim(check, session.namespace_id, message.run_id, message.lease_token)
    check.count("child_ids", message.child_ids, limits.WAIT_COUNT_MAX)
    keys = []
    for place, text in enumerate(message.child_ids):
        key = tokens.task_id_parse(text)
        if key is None:
            check.wrong(f"child_ids[{place}]", "is not an id of this server")
        else:
            keys.append(key)
    check.done()
    hub.waits.wait(session, claim.run_id, message.lease_token, keys)


async def listed(
    calls: Calls, namespace_id: int, request: service.ListStepsRequest
) -> service.ListStepsResponse:
    """Gives a page of the steps of an activation."""
    check = Check()
    claim = read_claim(check, namespace_id, request.run_id, request.lease_token)
    after_seq = history.page_token_parse(request.page_token)
    if after_seq is None:
        check.wrong("page_token", "is not a token of this list")
    check.done()
    page = await calls.run(
        steps.page,
        calls.hub.database,
        claim,
        after_seq=after_seq or 0,
        bytes_max=_PAGE_BYTES_MAX,
    )
    return service.ListStepsResponse(
        steps=[history.step(view) for view in page.steps],
        next_page_token=history.page_token(page.next_seq),
    )


class _Reader:
    """Reads the steps of one message; what equal tasks share is read once."""

    def __init__(self) -> None:
        self._shapes: dict[bytes, enqueue.Shape] = {}

    def read(self, place: int, message: run.NewStep) -> Step:
        """Reads a step to record.

        Raises:
            TenureError: FIELD_INVALID with every field that is wrong, PAYLOAD_TOO_LARGE,
                SCOPE_MISSING.
        """
        check = Check(f"steps[{place}].")
        step_id = check.text("step_id", message.step_id, limits.STEP_ID_BYTES_MAX, required=True)
        name = check.text("name", message.name, limits.NAME_BYTES_MAX)
        operation = message.WhichOneof("operation")
        if operation is None:
            check.wrong("operation", "is not set, or of a kind this server does not know")
        if operation == "task":
            check.done()
            return Step(
                step_id=step_id, name=name, kind=StepKind.TASK, task=self._task(place, message.task)
            )
        if operation == "sleep":
            sleep_ms = check.duration_ms("sleep", message.sleep, high=limits.ENQUEUE_DELAY_MAX)
            check.done()
            return Step(step_id=step_id, name=name, kind=StepKind.SLEEP, sleep_ms=sleep_ms)
        if operation == "child":
            check.done()
            return Step(
                step_id=step_id,
                name=name,
                kind=StepKind.CHILD,
                task=self._child(place, message.child),
            )
        if operation not in _KINDS:
            check.done()
            raise AssertionError(f"operation {operation} is not read")
        result: run.StepResult = getattr(message, operation)
        if result.HasField("failure"):
            check.done()
            failure = failures.to_json(result.failure)
            return Step(step_id=step_id, name=name, kind=_KINDS[operation], failure=failure)
        output = result.output
        check.encoding(f"{operation}.output.encoding", output.encoding)
        check.text(f"{operation}.output.schema", output.schema, limits.SCHEMA_BYTES_MAX)
        check.done()
        _check_size(name, output)
        return Step(
            step_id=step_id,
            name=name,
            kind=_KINDS[operation],
            output=output.data,
            output_encoding=output.encoding or None,
            output_schema=output.schema or None,
        )

    def _child(self, place: int, message: run.NewRun) -> enqueue.Item:
        check = Check(f"steps[{place}].child.")
        if message.key:
            check.wrong("key", "is not for runs that a run starts: their step is their key")
        shape = workflows.read_shape(check, message)
        check.done()
        PRINCIPAL.get().check_queue(shape.queue)
        input_size(shape.name, len(message.input.data))
        return enqueue.Item(shape, message.input.data)

    def _task(self, place: int, message: run.StepTask) -> enqueue.Item:
        data = message.input.data
        message.input.ClearField("data")
        written = message.SerializeToString()
        shape = self._shapes.get(written)
        if shape is None:
            check = Check(f"steps[{place}].task.")
            shape = tasks.read_shape(check, message)
            check.done()
            PRINCIPAL.get().check_queue(shape.queue)
            self._shapes[written] = shape
        input_size(shape.name, len(data))
        return enqueue.Item(shape, data)


def _check_size(name: str, output: payload.Payload) -> None:
    size = len(output.data)
    if size > limits.PAYLOAD_BYTES_MAX:
        raise TenureError(
            Reason.PAYLOAD_TOO_LARGE,
            f"the output of step {name!r} has {size} bytes, more than the"
            f" {limits.PAYLOAD_BYTES_MAX} allowed",
            metadata={"size_bytes": str(size), "limit_bytes": str(limits.PAYLOAD_BYTES_MAX)},
        )


def _written(answers: Iterable[Answer]) -> list[stream.StepRecord]:
    """Writes answers that fit into one message together.

    What was sent just now, or what Wait tells as well, is left out where it does not fit; a step
    whose outcome stands and does not fit is to be sent again.
    """
    records: list[stream.StepRecord] = []
    size = 0
    for answer in answers:
        record_ = stream.StepRecord()
        if isinstance(answer, TenureError):
            record_.error.CopyFrom(errors.status(answer))
        else:
            message = history.step(answer.view)
            if size + message.ByteSize() > _ANSWER_BYTES_MAX:
                kind = answer.view.row.kind
                if answer.existing and kind in _KINDS.values():
                    record_.error.CopyFrom(errors.status(_full(message.step_id)))
                else:
                    for field in ("output", "failure", "ended_at"):
                        message.ClearField(field)
            if not record_.HasField("error"):
                record_.step.CopyFrom(message)
                record_.existing = answer.existing
        size += record_.ByteSize()
        records.append(record_)
    return records


def _full(step_id: str) -> TenureError:
    return TenureError(
        Reason.OVERLOADED,
        f"step {step_id} is recorded, and its outcome does not fit into this answer: send it again",
        retry_after=limits.OVERLOAD_PAUSE,
    )
