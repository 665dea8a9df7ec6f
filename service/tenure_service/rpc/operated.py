"""Calls of operators: each is written down with how it ended, before it is answered."""

import functools
import logging
from typing import Any, Final

from google.protobuf import json_format, text_format
from google.protobuf.message import Message

from tenure_service.engine.errors import TenureError
from tenure_service.rpc.call import PRINCIPAL, Calls, Context, Handler, namespace, unary
from tenure_service.rpc.decoding import Undecodable
from tenure_service.usecase.access import Deed

_log = logging.getLogger(__name__)

_REQUEST_LETTERS_MAX: Final = 2_000
#: What these do concerns no namespace, whatever the metadata says.
_GENERAL: Final = {"CreateNamespace", "ListNamespaces"}


def operated(handler: Handler) -> Handler:
    """Makes a unary handler one of an operator: answered like any other, and recorded."""
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
        await _record(calls, _deed(action, request, context, "OK"), done=True)
        return response

    return unary(recorded)


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
        peer=context.peer() or "",
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
    try:
        text = json_format.MessageToJson(
            request,
            indent=None,
            preserving_proto_field_name=True,
            ensure_ascii=False,
            always_print_fields_with_no_presence=True,
        )
    except json_format.SerializeToJsonError:
        # A duration or an instant beyond what JSON can say; the call is refused for it.
        text = text_format.MessageToString(request, as_one_line=True, as_utf8=True)
    return text if len(text) <= _REQUEST_LETTERS_MAX else text[: _REQUEST_LETTERS_MAX - 1] + "…"
