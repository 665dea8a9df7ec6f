"""Policies to messages and back."""

import datetime
from typing import Any

import pytest

from tenure import Retry, Timeout, Timeouts, UsageError, policy
from tenure.v1 import policy_pb2


class CardDeclinedError(Exception):
    pass


def test_to_proto__nothing_said__stays_unset() -> None:
    assert policy.to_proto(None, None) is None
    message = Retry().to_proto()
    assert message == policy_pb2.RetryPolicy()
    assert not message.HasField("max_attempts")


def test_to_proto__all_said__comes_back() -> None:
    retry = Retry(
        8,
        initial_delay=0.25,
        max_delay=datetime.timedelta(minutes=5),
        backoff="linear",
        multiplier=3,
        jitter=0.0,
        unless=[CardDeclinedError, "Other"],
    )
    message = retry.to_proto()
    assert message.max_delay.seconds == 300
    assert list(message.non_retryable_types) == ["CardDeclinedError", "Other"]
    assert retry.unless_classes == (CardDeclinedError,)
    again = policy.retry_from_proto(message)
    assert again == Retry(
        8,
        initial_delay=0.25,
        max_delay=300,
        backoff="linear",
        multiplier=3,
        jitter=0.0,
        unless=["CardDeclinedError", "Other"],
    )


def test_to_proto__number_as_timeout__limits_each_attempt() -> None:
    message = policy.to_proto(None, 30)
    assert message is not None
    assert message.timeouts.start_to_close.after.seconds == 30
    assert not message.HasField("retry")


def test_to_proto__limits__carry_their_actions() -> None:
    limits = Timeouts(start_to_close=Timeout(1.5, "alert"), total=60)
    message = limits.to_proto()
    assert message.start_to_close.action == policy_pb2.TIMEOUT_ACTION_ALERT_ONLY
    assert message.total.action == policy_pb2.TIMEOUT_ACTION_TIME_OUT_WF
    assert policy.timeouts_from_proto(message) == Timeouts(
        start_to_close=Timeout(1.5, "alert"), total=Timeout(60.0, "time_out")
    )


@pytest.mark.parametrize(
    "make",
    [
        lambda: Retry(0),
        lambda: Retry(1_001),
        lambda: Retry(multiplier=0.5),
        lambda: Retry(jitter=1.1),
        lambda: Retry(backoff="sometimes"),  # type: ignore[arg-type]
        lambda: Retry(initial_delay=-1).to_proto(),
        lambda: Retry(initial_delay=float("nan")).to_proto(),
        lambda: Timeouts(start_to_close=0).to_proto(),
        lambda: policy.duration(datetime.timedelta(days=4_000), "delay"),
    ],
)
def test_declare__out_of_bounds__is_refused(make: Any) -> None:
    with pytest.raises(UsageError):
        make()


@pytest.mark.parametrize("seconds", [0, 0.1, 1.9999999999, 86_400.000001])
def test_duration__any_fraction__has_valid_nanos(seconds: float) -> None:
    message = policy.duration(seconds, "delay")
    assert 0 <= message.nanos < 1_000_000_000
    assert message.seconds + message.nanos / 1e9 == pytest.approx(seconds)


def test_read__merged_from_several_sources__is_not_checked() -> None:
    message = policy_pb2.TimeoutPolicy()
    message.total.after.seconds = 5
    message.start_to_close.after.seconds = 10
    assert policy.timeouts_from_proto(message).start_to_close == Timeout(10)
    retry = policy_pb2.RetryPolicy()
    retry.initial_delay.seconds = 5
    retry.max_delay.seconds = 1
    assert policy.retry_from_proto(retry).max_delay == 1
