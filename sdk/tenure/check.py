"""Checks of what a program passes, made where it is written and said in one sentence.

`Retry(3.5)` would otherwise be refused by protobuf in its own words, or by the server a deploy
later. Bounds are those of the protocol; the server has the last word and checks again.
"""

from __future__ import annotations

import datetime
import math
import re
import reprlib
from typing import TYPE_CHECKING, Any

from tenure import errors

if TYPE_CHECKING:
    from collections.abc import Collection

NAME_BYTES_MAX = 200
KEY_BYTES_MAX = 500
PRIORITY_MIN, PRIORITY_MAX = -100, 100
# Of a delay, a key and a timeout.
SECONDS_MAX = 3_650 * 86_400.0
# Of the delays of a retry policy, and of what a handler asks for.
RETRY_SECONDS_MAX = 365 * 86_400.0
_CONTROL = re.compile(r"[\x00-\x1f\x7f]")


def wrong_type(name: str, expected: str, value: object) -> errors.WrongType:
    """Returns the error for a value of a type that is not taken."""
    kind = type(value).__name__
    shown = reprlib.repr(value)
    return errors.WrongType(f"{name} is {expected}, not {shown} of type {kind}")


def wrong_value(name: str, expected: str, value: object) -> errors.WrongValue:
    """Returns the error for a value out of its bounds."""
    return errors.WrongValue(f"{name} is {expected}, not {reprlib.repr(value)}")


def text(value: object, name: str, bytes_max: int = NAME_BYTES_MAX, *, empty: bool = False) -> None:
    """Checks a text of one line.

    Raises:
        WrongType: no text.
        WrongValue: empty, too long, with control characters or a lone surrogate.
    """
    expected = f"a text of {0 if empty else 1} to {bytes_max} bytes"
    if not isinstance(value, str):
        raise wrong_type(name, expected, value)
    if not (value or empty) or len(value.encode("utf-8", "replace")) > bytes_max:
        raise wrong_value(name, expected, value)
    if _CONTROL.search(value):
        raise wrong_value(name, f"{expected} without control characters", value)
    encodes(value, name)


def encodes(value: str, name: str) -> None:
    """Checks that a text has a UTF-8 form, in which texts travel.

    Raises:
        WrongValue: with a lone surrogate.
    """
    try:
        value.encode()
    except UnicodeEncodeError:
        raise wrong_value(name, "a text without lone surrogates", value) from None


def whole(value: object, name: str, low: int, high: int) -> None:
    """Checks a whole number; True and False are none."""
    expected = f"a whole number from {low:,} to {high:,}"
    if isinstance(value, bool) or not isinstance(value, int):
        raise wrong_type(name, expected, value)
    if not low <= value <= high:
        raise wrong_value(name, expected, value)


def number(value: object, name: str, low: float, high: float) -> None:
    """Checks a number; True and False are none."""
    expected = f"a number from {low:,} to {high:,}"
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise wrong_type(name, expected, value)
    if not low <= value <= high:
        raise wrong_value(name, expected, value)


def seconds(
    value: object, name: str, high: float = SECONDS_MAX, *, above_zero: bool = False
) -> float:
    """Checks a duration and returns it in seconds.

    Args:
        value: Seconds or a timedelta.
        name: For the message.
        high: The longest that is taken.
        above_zero: True if less than 1 ms, the server's unit, is refused: it would read as none.

    Raises:
        WrongType: neither a number nor a timedelta.
        WrongValue: negative, not finite or too long.
    """
    low = 0.001 if above_zero else 0.0
    expected = f"a time in seconds or a timedelta, {low:g} s to {high / 86_400:,.0f} days"
    if isinstance(value, datetime.timedelta):
        length = value.total_seconds()
    elif isinstance(value, bool) or not isinstance(value, int | float):
        raise wrong_type(name, expected, value)
    else:
        try:
            length = float(value)
        except OverflowError:
            length = math.inf
    if not low <= length <= high:
        raise wrong_value(name, expected, value)
    return length


def wait(value: object, name: str = "timeout") -> None:
    """Checks how long a caller waits: seconds of any size, or None for as long as it takes."""
    if value is not None and (isinstance(value, bool) or not isinstance(value, int | float)):
        raise wrong_type(name, "a number of seconds or None", value)
    if value is not None and math.isnan(value):
        raise wrong_value(name, "a number of seconds or None", value)


def instance(value: object, name: str, kinds: type | tuple[type, ...], expected: str) -> None:
    """Checks that a value is of one of some types; True and False are no numbers."""
    if not isinstance(value, kinds) or isinstance(value, bool):
        raise wrong_type(name, expected, value)


def kind(value: object, name: str, expected: type, example: str) -> None:
    """Checks that a value is of a class; `example` shows how to make one."""
    if not isinstance(value, expected):
        a_kind = f"a tenure.{expected.__name__}, such as {example}"
        raise wrong_type(name, a_kind, value)


def choice(value: Any, name: str, choices: Collection[str]) -> None:
    """Checks that a value is one of some texts."""
    if not isinstance(value, str) or value not in choices:
        raise wrong_value(name, f"one of {', '.join(map(repr, choices))}", value)
