"""Calls of operators: each is written down with how it ended, before it is answered.

So is what clients do to what others may have started, as often as people do it.
"""

import functools
import json
import logging
from collections.abc import Callable, Container, Iterable
from typing import Any, Final

from google.protobuf import json_format, text_format
from google.protobuf.message import Message

from tenure.v1 import run_pb2 as run
from tenure.v1 import task_pb2 as task
from tenure_service.engine.errors import TenureError
from tenure_service.engine.states import FINAL_STATES, RunStatus, TaskState
from tenure_service.rpc.call import PRINCIPAL, Calls, Context, Handler, address, namespace, unary
from tenure_service.rpc.decoding import Undecodable
from tenure_service.usecase.access import Deed, key_made

_log = logging.getLogger(__name__)

_REQUEST_LETTERS_MAX: Final = 2_000
#: Of a call that names up to 1,000 tasks or runs; the number of all stands beside them.
_IDS_MAX: Final = 20
#: States of tasks and of runs that a request to cancel came too late for.
_ENDED: Final = {
    task.TaskState.Value(f"TASK_STATE_{state}") for state in FINAL_STATES - {TaskState.CANCELLED}
}
_RUNS_ENDED: Final = {
    run.RunState.Value(f"RUN_STATE_{status}")
    for status in RunStatus
    if status.is_over and status is not RunStatus.CANCELLED
}
#: What these do concerns no namespace, whatever the metadata says.
_GENERAL: Final = {"CreateNamespace", "ListNamespaces"}


def operated(handler: Handler) -> Handler:
    """Makes a unary handler one of an operator: answered like any other, and recorded."""
    return unary(_recorded(handler))


def paced(handler: Handler) -> Handler:
    """Makes a unary handler one of clients that is recorded too, up to so many calls a minute.

    Any client may make them, programs do, and the record is never shortened.
    """
    recorded = _recorded(handler)

    @functools.wraps(handler)
    async def recorded_or_not(self: Any, request: Any, context: Context) -> Any:
        calls: Calls = self._calls
        recording = calls.recordings[handler.__name__]
        chosen = recorded if recording.take(PRINCIPAL.get().actor) else handler
        return await chosen(self, request, context)

    return unary(recorded_or_not)


def _recorded(handler: Handler) -> Handler:
    action = handler.__name__

    @functools.wraps(handler)
    async def recorded(self: Any, request: Any, context: Context) -> Any:
        calls: Calls = self._calls
        try:
            response = await handler(self, request, context)
        except TenureError as exc:
            await _record(calls, _deed(action, request, context, exc.reason), done=False)
            raise
        except Exception:
            await _record(calls, _deed(action, request, context, "BUG"), done=False)
            raise
        outcome = _OUTCOMES.get(action, _plainly)(response)
        await _record(calls, _deed(action, request, context, outcome), done=True)
        return response

    return recorded


async def record_refusal(
    calls: Calls, action: str, request: Any, context: Context, error: TenureError
) -> None:
    """Writes down a call that did not come as far as its handler."""
    await _record(calls, _deed(action, request, context, error.reason), done=False)


async def _record(calls: Calls, deed: Deed, *, done: bool) -> None:
    """Writes a deed down; what was done and cannot be is an error of the call."""
    try:
        await calls.run(calls.hub.keys.record, deed)
    except TenureError as exc:
        _log.error("%s by %s could not be recorded: %s", deed.action, deed.actor, exc)
        if done:
            raise


def _deed(action: str, request: Message | Undecodable, context: Context, outcome: str) -> Deed:
    return Deed(
        namespace=None if action in _GENERAL else _namespace(context),
        actor=PRINCIPAL.get().actor,
        action=action,
        request=_summary(request),
        outcome=outcome,
        peer=address(context.peer()),
    )


def _namespace(context: Context) -> str | None:
    try:
        return namespace(context)
    except TenureError:
        return None


def _summary(request: Message | Undecodable) -> str:
    """Tells what was asked, as JSON: requests of operators hold neither payloads nor secrets."""
    if isinstance(request, Undecodable):
        return ""
    shorter, count = _shortened(request)
    try:
        fields = json_format.MessageToDict(
            shorter, preserving_proto_field_name=True, always_print_fields_with_no_presence=True
        )
        text = json.dumps(count | fields, ensure_ascii=False)
    except json_format.SerializeToJsonError:
        # A duration or an instant beyond what JSON can say; the call is refused for it.
        text = text_format.MessageToString(shorter, as_one_line=True, as_utf8=True)
    return text if len(text) <= _REQUEST_LETTERS_MAX else text[: _REQUEST_LETTERS_MAX - 1] + "…"


def _shortened(request: Any) -> tuple[Message, dict[str, Any]]:
    """Leaves some of many ids of tasks or runs in a request; gives the number of all beside it."""
    for field, counted in (("task_ids", "task_count"), ("run_ids", "run_count")):
        count = len(getattr(request, field, ()))
        if count > _IDS_MAX:
            shorter = type(request)()
            shorter.CopyFrom(request)
            del getattr(shorter, field)[_IDS_MAX:]
            return shorter, {counted: count}
    return request, {}


def _share(done: str, results: Iterable[Any]) -> str:
    """Says of how many things named in a call it was done."""
    outcomes = [result.WhichOneof("outcome") for result in results]
    return f"OK: {done} {outcomes.count('state')} of {len(outcomes)}"


def _cancelled(results: Iterable[Any], ended: Container[int]) -> str:
    """Says of how many the end was asked; those that had ended otherwise are not among."""
    named = list(results)
    count = sum(result.HasField("state") and result.state not in ended for result in named)
    return f"OK: cancel requested {count} of {len(named)}"


def _plainly(_: Any) -> str:
    return "OK"


#: What to say of answers that are more than a yes. All begin with `OK`, which lists look for.
_OUTCOMES: Final[dict[str, Callable[[Any], str]]] = {
    "CancelTasks": lambda answer: _cancelled(answer.results, _ENDED),
    "CancelRuns": lambda answer: _cancelled(answer.results, _RUNS_ENDED),
    "ResumeRuns": lambda answer: _share("resumed", answer.results),
    "ForkRun": lambda answer: f"OK: run {answer.run_id}",
    "CreateApiKey": lambda answer: key_made(answer.key.key_id),
    "DiscardDeadLetters": lambda answer: _share("discarded", answer.results),
    "ReplayDeadLetters": lambda answer: _share("replayed", answer.results),
}
