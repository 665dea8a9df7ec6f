"""Checks of fields: every offending field of a call is named at once."""

import logging
from collections.abc import Sequence
from datetime import UTC, datetime, timedelta

from google.protobuf import duration_pb2, timestamp_pb2

from tenure_service.engine import limits, texts, tokens
from tenure_service.engine.errors import FieldInvalid, Reason, TenureError
from tenure_service.engine.tokens import TaskKey

_log = logging.getLogger(__name__)


class Check:
    """Collects what is wrong with a call."""

    def __init__(self, path: str = "") -> None:
        self._path = path
        self.violations: list[tuple[str, str]] = []

    def wrong(self, field: str, text: str) -> None:
        """Notes a violation."""
        self.violations.append((f"{self._path}{field}", text))

    def done(self) -> None:
        """Raises FieldInvalid if anything was wrong."""
        if self.violations:
            raise FieldInvalid(self.violations)

    def text(self, field: str, value: str, bytes_max: int, *, required: bool = False) -> str:
        """Checks a text of one line: its size, and that it has no control characters."""
        if required and not value:
            self.wrong(field, "must not be empty")
        size = len(value.encode("utf-8", "replace"))
        if size > bytes_max:
            self.wrong(field, f"has {size} bytes, more than {bytes_max}")
        elif texts.has_control(value):
            self.wrong(field, "has control characters")
        return value

    def name(self, field: str, value: str, *, required: bool = False) -> str:
        """Checks a name that people read: its size, and that it shows what it is."""
        if required and not value:
            self.wrong(field, "must not be empty")
        size = len(value.encode("utf-8", "replace"))
        if size > limits.NAME_BYTES_MAX:
            self.wrong(field, f"has {size} bytes, more than {limits.NAME_BYTES_MAX}")
        elif (flaw := texts.name_flaw(value)) is not None:
            self.wrong(field, flaw)
        return value

    def encoding(self, field: str, value: str) -> str:
        """Checks the name of an encoding: its size, and that it is printable ASCII."""
        if len(value.encode("utf-8", "replace")) > limits.ENCODING_BYTES_MAX:
            self.wrong(field, f"has more than {limits.ENCODING_BYTES_MAX} bytes")
        elif not texts.is_encoding(value):
            self.wrong(field, "must be printable ASCII")
        return value

    def number(self, field: str, value: int, low: int, high: int) -> int:
        """Checks a number's bounds."""
        if not low <= value <= high:
            self.wrong(field, f"is {value}, must be {low} to {high}")
        return value

    def count(self, field: str, value: Sequence[object], high: int, *, low: int = 1) -> None:
        """Checks how many items a list has."""
        if not low <= len(value) <= high:
            self.wrong(field, f"has {len(value)} items, must have {low} to {high}")

    def duration_ms(
        self,
        field: str,
        message: duration_pb2.Duration,
        *,
        high: timedelta,
        low: timedelta = timedelta(0),
    ) -> int:
        """Checks a duration's bounds; gives milliseconds."""
        nanoseconds_max = 999_999_999
        if abs(message.nanos) > nanoseconds_max or message.seconds * message.nanos < 0:
            self.wrong(field, "is no valid duration")
            return 0
        milliseconds = message.seconds * 1000 + message.nanos // 1_000_000
        if not _ms(low) <= milliseconds <= _ms(high):
            self.wrong(field, f"must be {low.total_seconds():g} to {high.total_seconds():g} s")
            return 0
        return milliseconds

    def instant(self, field: str, message: timestamp_pb2.Timestamp) -> datetime | None:
        """Checks an instant; gives it, aware, to the microsecond."""
        try:
            return message.ToDatetime(UTC)
        except (ValueError, OverflowError):
            self.wrong(field, "is no valid instant")
            return None

    def request_id(self, field: str, value: str) -> str | None:
        """Checks a request id, which is a UUID or empty."""
        if not value:
            return None
        if not tokens.is_uuid(value.lower()):
            self.wrong(field, "is no UUID")
            return None
        return value.lower()

    def task_key(self, field: str, value: str) -> TaskKey | None:
        """Reads the task id of a call for one task."""
        key = self.item_key(field, value)
        if value and key is None:
            self.wrong(field, "is not an id of this server")
        return key

    def item_key(self, field: str, value: str) -> TaskKey | None:
        """Reads a task id of a batch; one of another form than ours is a task that is not there."""
        if not value:
            self.wrong(field, "must not be empty")
            return None
        self.text(field, value, 100)
        return tokens.task_id_parse(value)

    def page_size(self, value: int) -> int:
        """Checks a page size; 0 means the default."""
        self.number("page_size", value, 0, limits.PAGE_SIZE_MAX)
        return value or limits.PAGE_SIZE_DEFAULT


def _ms(duration: timedelta) -> int:
    return int(duration.total_seconds() * 1000)


def input_size(name: str, size: int) -> None:
    """Checks the size of a task's input, and tells the operator of one that is unwisely large.

    Raises:
        TenureError: PAYLOAD_TOO_LARGE.
    """
    if size <= limits.PAYLOAD_BYTES_WARN:
        return
    what = f"the input of a task {name!r}"
    if size <= limits.PAYLOAD_BYTES_MAX:
        _log.warning(
            "%s has %d bytes; above %d, keep the data elsewhere and send its address",
            what,
            size,
            limits.PAYLOAD_BYTES_WARN,
        )
        return
    raise TenureError(
        Reason.PAYLOAD_TOO_LARGE,
        f"{what} has {size} bytes, more than the {limits.PAYLOAD_BYTES_MAX} allowed",
        metadata={"size_bytes": str(size), "limit_bytes": str(limits.PAYLOAD_BYTES_MAX)},
    )
