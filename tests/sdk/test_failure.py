"""Exceptions to failures and back."""

from typing import NoReturn

from tenure import Failure, NonRetryable, failure
from tenure.v1 import payload_pb2


def fail(exc: BaseException, cause: BaseException | None = None) -> NoReturn:
    raise exc from cause


def raised(exc: BaseException, cause: BaseException | None = None) -> BaseException:
    """Gives an exception with a traceback."""
    try:
        fail(exc, cause)
    except BaseException as caught:  # noqa: BLE001 - any exception is what is tested
        return caught


def test_from_exception__chain__keeps_types_and_order() -> None:
    exc = raised(ValueError("outer"), raised(KeyError("inner")))
    read = failure.from_proto(failure.from_exception(exc))
    assert (read.type, read.message) == ("ValueError", "outer")
    assert read.cause is not None
    assert (read.cause.type, read.cause.message) == ("KeyError", "'inner'")
    assert "test_failure.py" in read.stack
    assert read.format().index("KeyError") < read.format().index("ValueError: outer")


def test_from_exception__suppressed_context__is_no_cause() -> None:
    exc = ValueError("outer")
    exc.__context__ = KeyError("inner")
    assert failure.from_exception(exc).HasField("cause")
    exc.__suppress_context__ = True
    assert not failure.from_exception(exc).HasField("cause")


def test_from_exception__endless_chain__ends_after_eight() -> None:
    first: BaseException = raised(ValueError("0"))
    for level in range(1, 20):
        later = raised(ValueError(str(level)))
        later.__cause__ = first
        first = later
    link = failure.from_exception(first)
    depth = 1
    while link.HasField("cause"):
        link = link.cause
        depth += 1
    assert depth == failure.CAUSE_COUNT_MAX
    circle = raised(ValueError("round"))
    circle.__cause__ = circle
    assert not failure.from_exception(circle).HasField("cause")


def test_from_exception__text_that_utf8_cannot_say__is_escaped() -> None:
    message = failure.from_exception(raised(ValueError("a\0b \ud800")))
    again = payload_pb2.Failure.FromString(message.SerializeToString())
    assert again.message == "a\0b \\ud800"


def test_from_exception__long_texts__are_clipped_and_marked() -> None:
    for text in ("x" * 100_000, "\N{GRINNING FACE}" * 50_000):
        message = failure.from_exception(raised(ValueError(text)))
        assert len(message.message.encode()) <= 8 * 1024
        assert message.message.endswith(failure.CLIPPED)
        assert len(message.stack.encode()) <= 32 * 1024


def test_from_exception__broken_str__still_makes_a_failure() -> None:
    class Broken(Exception):
        def __str__(self) -> str:
            raise RuntimeError("no")

    message = failure.from_exception(raised(Broken()))
    assert message.type == "Broken"
    assert "RuntimeError" in message.message


def test_from_exception__details__come_back() -> None:
    message = failure.from_exception(
        raised(NonRetryable("no", details={"code": 3})), non_retryable=True
    )
    read = failure.from_proto(message)
    assert read.details == {"code": 3}
    assert read.non_retryable
    assert str(read) == "NonRetryable: no"


def test_from_proto__other_encoding_or_bad_json__gives_the_bytes() -> None:
    message = payload_pb2.Failure(type="X", details=payload_pb2.Payload(data=b"\xff"))
    assert failure.from_proto(message) == Failure(type="X", details=b"\xff")
