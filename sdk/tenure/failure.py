"""Failures of handlers as data: built from exceptions on a worker, read from results by a caller.

A failure is no protocol error: it says that user code raised. This module owns both directions of
`tenure.v1.Failure` and knows nothing of connections.
"""

from __future__ import annotations

import dataclasses
import json
import traceback
from typing import TYPE_CHECKING, Any

from tenure.v1 import payload_pb2

if TYPE_CHECKING:
    from types import TracebackType

# The server clips too; clipping here keeps a report small before it is sent.
TYPE_CHARS_MAX = 200
MESSAGE_CHARS_MAX = 8_000
STACK_CHARS_MAX = 32_000
CAUSE_COUNT_MAX = 8
CLIPPED = "… [clipped]"


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Failure:
    """Failure is what a handler raised, or why the server ended a task.

    Attributes:
        type: Class name of the exception, such as `ValueError`; retry policies match on it.
        message: `str()` of the exception.
        stack: Traceback as text; empty where there was none.
        details: Decoded JSON that the failure carried; None if it carried none.
        cause: Failure that led to this one, as of `raise ... from ...`.
        non_retryable: True if the handler said that another attempt cannot help.
        retry_after: Seconds that the handler asked to wait; None if the policy decides.
    """

    type: str
    message: str = ""
    stack: str = ""
    details: Any = None
    cause: Failure | None = None
    non_retryable: bool = False
    retry_after: float | None = None

    def __str__(self) -> str:
        return f"{self.type}: {self.message}" if self.message else self.type

    def format(self) -> str:
        """Returns the failure with its stack and its causes, the first cause first."""
        own = self.stack.rstrip() or str(self)
        if self.cause is None:
            return own
        return f"{self.cause.format()}\n\nThat caused:\n\n{own}"


def from_proto(message: payload_pb2.Failure) -> Failure:
    """Reads a failure and its causes; a cause chain of any length is read to its end."""
    chain: list[payload_pb2.Failure] = [message]
    while chain[-1].HasField("cause"):
        chain.append(chain[-1].cause)
    cause: Failure | None = None
    for link in reversed(chain):
        cause = Failure(
            type=link.type,
            message=link.message,
            stack=link.stack,
            details=_read_details(link),
            cause=cause,
            non_retryable=link.non_retryable,
            retry_after=(
                link.retry_after.ToTimedelta().total_seconds()
                if link.HasField("retry_after")
                else None
            ),
        )
    # The loop ran at least once.
    return cause if cause is not None else Failure(type="Unknown")


def from_exception(exc: BaseException, *, non_retryable: bool = False) -> payload_pb2.Failure:
    """Builds the message for an exception, its traceback and up to 8 levels of causes.

    Frames of this SDK above the handler are left out. Characters that UTF-8 cannot carry (lone
    surrogates) are written as escapes.
    """
    top = payload_pb2.Failure()
    message = top
    link: BaseException | None = exc
    seen: set[int] = set()
    for level in range(CAUSE_COUNT_MAX):
        if link is None or id(link) in seen:
            break
        seen.add(id(link))
        if level:
            message = message.cause
        message.type = clip(type(link).__name__, TYPE_CHARS_MAX) or "Exception"
        message.message = clip(_text(link), MESSAGE_CHARS_MAX)
        message.stack = clip_middle(_stack(link), STACK_CHARS_MAX)
        details = getattr(link, "failure_details", None)
        if details is not None:
            message.details.encoding = "json"
            message.details.data = _details(details)
        link = link.__cause__ or (None if link.__suppress_context__ else link.__context__)
    top.non_retryable = non_retryable
    return top


def is_clipped(message: payload_pb2.Failure) -> bool:
    """Returns True if a text of the failure, or of a cause, was too long."""
    while True:
        if CLIPPED in message.message or CLIPPED in message.stack:
            return True
        if not message.HasField("cause"):
            return False
        message = message.cause


def clip(text: str, char_count_max: int) -> str:
    """Cuts the end of a text that is too long and marks the cut; makes the text valid UTF-8."""
    if not text.isascii():
        text = text.encode("utf-8", "backslashreplace").decode("utf-8")
        # The limits are bytes on the wire: a character may take four.
        while len(text.encode("utf-8")) > char_count_max:
            text = text[: max(0, len(text) * 9 // 10 - len(CLIPPED))] + CLIPPED
    if len(text) <= char_count_max:
        return text
    return text[: char_count_max - 3 - len(CLIPPED)] + CLIPPED


def clip_middle(text: str, char_count_max: int) -> str:
    """Cuts the middle of a text that is too long: both ends of a stack say the most."""
    text = text.encode("utf-8", "backslashreplace").decode("utf-8")
    if len(text) <= char_count_max:
        return clip(text, char_count_max)
    half = (char_count_max - 100) // 2
    return clip(f"{text[:half]}\n{CLIPPED}\n{text[-half:]}", char_count_max)


def _text(exc: BaseException) -> str:
    try:
        return str(exc)
    except Exception as broken:  # noqa: BLE001 - a user's __str__ may raise anything
        return f"<str() of the exception raised {type(broken).__name__}>"


def _stack(exc: BaseException) -> str:
    try:
        lines = traceback.format_exception(
            type(exc), exc, _user_frames(exc.__traceback__), chain=False
        )
        return "".join(lines)
    except Exception as broken:  # noqa: BLE001 - formatting calls code of the user
        return f"<the traceback could not be formatted: {type(broken).__name__}>"


def _user_frames(tb: TracebackType | None) -> TracebackType | None:
    first = tb
    while first is not None and first.tb_frame.f_globals.get("__name__", "").startswith("tenure."):
        first = first.tb_next
    return first if first is not None else tb


def _details(details: Any) -> bytes:
    try:
        return json.dumps(details, ensure_ascii=True, allow_nan=False).encode()
    except (TypeError, ValueError, RecursionError):
        return json.dumps(repr(details)[:MESSAGE_CHARS_MAX]).encode()


def _read_details(message: payload_pb2.Failure) -> Any:
    if not message.HasField("details"):
        return None
    data = message.details.data
    if message.details.encoding not in {"", "json"}:
        return data
    try:
        return json.loads(data) if data else None
    except ValueError:
        return data


def failure_message(
    failure_type: str, message: str, *, non_retryable: bool = False
) -> payload_pb2.Failure:
    """Builds the message for a failure that no exception stands behind."""
    return payload_pb2.Failure(
        type=failure_type,
        message=clip(message, MESSAGE_CHARS_MAX),
        non_retryable=non_retryable,
    )
