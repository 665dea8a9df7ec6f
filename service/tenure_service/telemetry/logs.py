"""The one place that sets up logging: what a line looks like, and which ids stand beside its words.

Modules log by the standard library, as libraries do; all of it takes one way to stderr. A line is
words with `key=value` after them, or a JSON object with TENURE_LOG_FORMAT=json. Ids come from
`extra=` of a call, and from the RPC or stream in whose context it is made (`entered`, `bound`).
Secrets that got into a text, whoever wrote it, do not leave: keys, passwords of URLs and conninfo.
"""

import contextvars
import logging
import math
import re
import sys
import threading
import time
from collections.abc import Callable, Iterable, Mapping, MutableMapping
from enum import StrEnum
from typing import Any, Final, TextIO

Event = MutableMapping[str, Any]

_TRACEPARENT: Final = re.compile(r"[0-9a-f]{2}-([0-9a-f]{32})-[0-9a-f]{16}-[0-9a-f]{2}")
#: What a secret looks like, and what is left of it.
_SECRETS: Final = (
    (re.compile(r"(://[^\s:/@]*):[^\s@/]+@"), r"\1:***@"),
    (
        re.compile(r"(?i)\b(password|sslpassword)(['\"]?\s*[=:]\s*)('[^']*'|\"[^\"]*\"|[^\s'\"]+)"),
        r"\1\2***",
    ),
    # Not the words `Bearer KEY` of advice.
    (re.compile(r"(?i)\b(bearer)\s+(?!(?-i:KEY|SECRET)\b)[^\s'\",;)`]+"), r"\1 ***"),
    (re.compile(r"\btenure_[A-Za-z0-9_-]{43}(?![A-Za-z0-9_-])"), "tenure_***"),
)
#: Fields that a line is made of, before those that stand beside it.
_PLACES: Final = ("timestamp", "level", "logger", "event", "exception", "stack")
_LEFT: Final = frozenset({"asctime", "message"})
#: Often enough to see that it goes on, and not so often that it hides what else happens.
CALM_SECONDS: Final = 10.0
#: What lays out a traceback, and does nothing else to a terminal.
_LAYOUT: Final = "\n\t"
#: Before each further line of an event: one at the left margin begins an event, whoever wrote it.
_INDENT: Final = "    "
_PLAIN: Final = re.compile(r"[^\s\"'=]+")


class Form(StrEnum):
    """What a line looks like."""

    TEXT = "text"
    JSON = "json"


class Calm(logging.Filter):
    """Lets one line of a kind pass each few seconds, with the number of those that it stands for.

    For libraries that say the same at every try: while PostgreSQL is away the pool's threads write
    dozens of lines a second, which hide what else is said. A kind is a logger's text before its
    arguments are put in.
    """

    def __init__(
        self,
        name: str,
        *,
        pause_seconds: float = CALM_SECONDS,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        super().__init__(name)
        self._pause = pause_seconds
        self._clock = clock
        self._lock = threading.Lock()
        #: By kind: when one was let pass last, and how many were not since.
        self._passed: dict[str, tuple[float, int]] = {}

    def filter(self, record: logging.LogRecord) -> bool:
        """Says whether a line passes; those of other loggers do."""
        if not super().filter(record):
            return True
        kind, now = str(record.msg), self._clock()
        with self._lock:
            passed_at, held_count = self._passed.get(kind, (-math.inf, 0))
            if now - passed_at < self._pause:
                self._passed[kind] = passed_at, held_count + 1
                return False
            self._passed[kind] = now, 0
        if held_count:
            more = f"{held_count} more like it in the last {now - passed_at:.0f} s"
            record.msg, record.args = f"{record.getMessage()} ({more})", None
        return True


class Call:
    """The RPC in whose context something is logged; read only if it is."""

    __slots__ = ("_fields", "_metadata", "_method")

    def __init__(self, method: str, metadata: Any) -> None:
        self._method = method
        self._metadata = metadata
        self._fields: dict[str, str] = {}

    def bind(self, **fields: str) -> None:
        """Adds ids that were not known at the beginning."""
        self._fields.update(fields)

    def fields(self) -> dict[str, str]:
        """Gives the ids of the call."""
        found = {"method": self._method.rpartition("/")[2]}
        for key, value in self._metadata or ():
            if key == "tenure-namespace":
                found["namespace"] = str(value)
            elif key == "traceparent" and (match := _TRACEPARENT.fullmatch(str(value))):
                found["trace_id"] = match[1]
        return found | self._fields


_CALL: contextvars.ContextVar[Call | None] = contextvars.ContextVar("call", default=None)


def entered(method: str, metadata: Any) -> None:
    """Says that the running task serves an RPC."""
    _CALL.set(Call(method, metadata))


def bound(**fields: str) -> None:
    """Adds ids to what is logged in the context of the running RPC."""
    call = _CALL.get()
    if call is not None:
        call.bind(**fields)


def configure(
    level: int | str,
    form: str = Form.TEXT,
    *,
    time_format: str = "%Y-%m-%d %H:%M:%S",
    logger_names: bool = True,
    fields: Mapping[str, Any] | None = None,
    stream: TextIO | None = None,
) -> None:
    """Sets up logging of this process, unless its program has done so.

    Args:
        level: Of the root logger.
        form: What a line looks like.
        time_format: Of lines of text, local time; JSON has UTC.
        logger_names: Whether lines of text name the module.
        fields: What stands beside the words of every line.
        stream: Where to; stderr.
    """
    root = logging.getLogger()
    if root.handlers:
        return
    handler = logging.StreamHandler(stream or sys.stderr)
    try:
        made = formatter(form, time_format=time_format, logger_names=logger_names, fields=fields)
    except ImportError:
        # The install for workers alone does without it, and without fields.
        name = " %(name)s:" if logger_names else ""
        made = _Plain(f"%(asctime)s %(levelname)s{name} %(message)s", time_format)
    handler.setFormatter(made)
    handler.addFilter(Calm("psycopg.pool"))
    root.addHandler(handler)
    root.setLevel(level)


def formatter(
    form: str,
    *,
    time_format: str = "%Y-%m-%d %H:%M:%S",
    logger_names: bool = True,
    fields: Mapping[str, Any] | None = None,
) -> logging.Formatter:
    """Gives what makes lines of records."""
    import structlog

    json_lines = form == Form.JSON
    stamp = (
        structlog.processors.TimeStamper("iso", utc=True)
        if json_lines
        else structlog.processors.TimeStamper(time_format, utc=False)
    )
    render: list[Any] = (
        [structlog.processors.JSONRenderer(default=str, ensure_ascii=False)]
        if json_lines
        else [_Line(logger_names=logger_names)]
    )
    return structlog.stdlib.ProcessorFormatter(
        foreign_pre_chain=[
            structlog.stdlib.ExtraAdder(),
            structlog.stdlib.add_log_level,
            structlog.stdlib.add_logger_name,
            stamp,
        ],
        processors=[
            structlog.stdlib.ProcessorFormatter.remove_processors_meta,
            _with_call,
            lambda _logger, _name, event: {**event, **(fields or {})},
            structlog.processors.format_exc_info,
            _without_secrets,
            *render,
        ],
    )


def printable(text: str, keep: str = "") -> str:
    """Shows control characters instead of obeying them: what callers and handlers wrote is not ours.

    Args:
        text: Whatever anybody sent.
        keep: Letters that stay, such as the ends of lines.
    """
    if text.isprintable():
        return text
    return "".join(
        letter
        if letter.isprintable() or letter in keep
        else letter.encode("unicode_escape").decode()
        for letter in text
    )


def _laid_out(text: str) -> str:
    """Gives one event, with its further lines indented."""
    return printable(text, _LAYOUT).replace("\n", f"\n{_INDENT}")


def scrubbed(text: str) -> str:
    """Gives a text without the secrets in it."""
    for pattern, rest in _SECRETS:
        text = pattern.sub(rest, text)
    return text


def _with_call(_logger: Any, _name: str, event: Event) -> Event:
    # What handlers of others leave on a record is the same once more.
    kept = {key: value for key, value in event.items() if key not in _LEFT}
    call = _CALL.get()
    return kept if call is None else {**call.fields(), **kept}


def _without_secrets(_logger: Any, _name: str, event: Event) -> Event:
    return {
        key: scrubbed(value) if isinstance(value, str) else value for key, value in event.items()
    }


class _Plain(logging.Formatter):
    """Writes a line of words alone."""

    def format(self, record: logging.LogRecord) -> str:
        """Gives the line, and below it a traceback."""
        return _laid_out(super().format(record))


class _Line:
    """Writes a line for people: time, level, module, words, then `key=value`."""

    def __init__(self, *, logger_names: bool) -> None:
        self._logger_names = logger_names

    def __call__(self, _logger: Any, _name: str, event: Event) -> str:
        """Gives the line, and below it a traceback."""
        where = f" {event.get('logger')}:" if self._logger_names else ""
        words = [f"{event['timestamp']} {event['level'].upper()}{where} {event['event']}"]
        words += [f"{key}={_value(value)}" for key, value in _beside(event)]
        below = [str(event[name]) for name in ("exception", "stack") if event.get(name)]
        return _laid_out("\n".join([" ".join(words), *below]))


def _beside(event: Mapping[str, Any]) -> Iterable[tuple[str, Any]]:
    return ((key, value) for key, value in sorted(event.items()) if key not in _PLACES)


def _value(value: Any) -> str:
    text = str(value)
    return text if _PLAIN.fullmatch(text) else repr(text)
