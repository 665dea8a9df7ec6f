"""The pure part of retries: delays, verdicts, and whose policy holds."""

from datetime import timedelta
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tenure_service.engine import limits, retry
from tenure_service.engine.policy import Backoff, PartialPolicy, Policy, resolve

MS_MAX = int(limits.RETRY_DELAY_MAX / timedelta(milliseconds=1))
shares = st.floats(0, 1)
delays = st.integers(0, MS_MAX)
attempts = st.integers(1, limits.MAX_ATTEMPTS_MAX)
policies = st.builds(
    Policy,
    max_attempts=attempts,
    backoff=st.sampled_from(Backoff),
    initial_delay_ms=delays,
    multiplier=st.floats(1, limits.MULTIPLIER_MAX),
    max_delay_ms=delays,
    jitter=shares,
    non_retryable_types=st.lists(st.text(max_size=5), max_size=3).map(tuple),
)


@given(policies, attempts, shares)
def test_backoff__any_policy__stays_between_zero_and_the_cap(
    policy: Policy, attempt: int, share: float
) -> None:
    assert 0 <= retry.backoff_ms(policy, attempt, share) <= policy.max_delay_ms


@given(policies, attempts)
def test_backoff__without_jitter__is_the_middle_of_the_jittered_range(
    policy: Policy, attempt: int
) -> None:
    middle = retry.backoff_ms(policy, attempt, 0.5)
    assert retry.backoff_ms(policy, attempt, 0.0) <= middle <= retry.backoff_ms(policy, attempt, 1)


@given(policies, attempts, shares)
def test_backoff__jitter__is_a_share_of_the_capped_delay(
    policy: Policy, attempt: int, share: float
) -> None:
    """The cap holds before jitter: a delay far above it is still spread below it, instead of
    landing on the cap for every share."""
    middle = retry.backoff_ms(policy, attempt, 0.5)
    least = int(middle * (1 - policy.jitter)) - 1
    assert retry.backoff_ms(policy, attempt, share) >= least
    lowest = retry.backoff_ms(policy, attempt, 0)
    assert lowest <= (middle + 1) * (1 - policy.jitter) + 1


@given(policies, attempts, shares)
def test_backoff__later_attempt__waits_no_shorter(
    policy: Policy, attempt: int, share: float
) -> None:
    earlier, later = (retry.backoff_ms(policy, a, share) for a in (attempt, attempt + 1))
    assert earlier <= later


@pytest.mark.parametrize(
    ("backoff", "expected"),
    [
        (Backoff.FIXED, [100, 100, 100, 100]),
        (Backoff.LINEAR, [100, 200, 300, 400]),
        (Backoff.EXPONENTIAL, [100, 300, 900, 2700]),
    ],
)
def test_backoff__each_kind__grows_as_it_says(backoff: Backoff, expected: list[int]) -> None:
    policy = Policy(
        backoff=backoff, initial_delay_ms=100, multiplier=3, max_delay_ms=MS_MAX, jitter=0
    )
    assert [retry.backoff_ms(policy, attempt, 0.9) for attempt in (1, 2, 3, 4)] == expected


def test_backoff__exponent_beyond_a_float__is_the_cap() -> None:
    policy = Policy(multiplier=100.0, initial_delay_ms=MS_MAX, max_delay_ms=60_000, jitter=0)
    assert retry.backoff_ms(policy, limits.MAX_ATTEMPTS_MAX, 0.5) == 60_000


def test_backoff__small_multiplier_and_many_attempts__reaches_the_cap() -> None:
    """1.02 needs 207 attempts from a second to a minute."""
    policy = Policy(multiplier=1.02, initial_delay_ms=1_000, max_delay_ms=60_000, jitter=0)
    assert retry.backoff_ms(policy, 300, 0.5) == 60_000


@given(policies, attempts, st.text(max_size=5), st.booleans(), st.none() | delays, shares)
def test_after_failure__any__dies_exactly_when_the_policy_says(
    policy: Policy,
    attempt: int,
    failure_type: str,
    non_retryable: bool,  # noqa: FBT001 - hypothesis passes by position
    retry_after_ms: int | None,
    share: float,
) -> None:
    verdict = retry.after_failure(
        policy,
        attempt=attempt,
        failure_type=failure_type,
        non_retryable=non_retryable,
        retry_after_ms=retry_after_ms,
        share=share,
    )
    if non_retryable or failure_type in policy.non_retryable_types:
        assert verdict == retry.Dead(retry.DeadReason.NON_RETRYABLE)
    elif attempt >= policy.max_attempts:
        assert verdict == retry.Dead(retry.DeadReason.ATTEMPTS_EXHAUSTED)
    elif retry_after_ms is not None:
        assert verdict == retry.Retry(retry_after_ms)
    else:
        assert verdict == retry.Retry(retry.backoff_ms(policy, attempt, share))


@pytest.mark.parametrize(
    ("lost_count", "verdict"),
    [
        (1, retry.Retry(0)),
        (2, retry.Retry(1_000)),
        (3, retry.Retry(2_000)),
        (4, retry.Retry(4_000)),
        (5, retry.Dead(retry.DeadReason.LEASE_LOST)),
        (6, retry.Dead(retry.DeadReason.LEASE_LOST)),
    ],
)
def test_after_loss__count__waits_longer_and_dies_at_five(
    lost_count: int, verdict: retry.Retry | retry.Dead
) -> None:
    assert retry.after_loss(lost_count) == verdict


fields: dict[str, st.SearchStrategy[Any]] = {
    "max_attempts": st.none() | attempts,
    "backoff": st.none() | st.sampled_from(Backoff),
    "initial_delay_ms": st.none() | delays,
    "multiplier": st.none() | st.floats(1, limits.MULTIPLIER_MAX),
    "max_delay_ms": st.none() | delays,
    "jitter": st.none() | shares,
    "non_retryable_types": st.none() | st.lists(st.text(max_size=5), max_size=3).map(tuple),
}
partials = st.builds(PartialPolicy, **fields)


@given(st.lists(st.none() | partials, max_size=4))
def test_resolve__sources_in_order__takes_each_field_from_the_first_that_speaks(
    sources: list[PartialPolicy | None],
) -> None:
    resolved = resolve(*sources)
    for field in fields.keys() - {"max_delay_ms"}:
        said = [getattr(s, field) for s in sources if s and getattr(s, field) is not None]
        assert getattr(resolved, field) == (said[0] if said else getattr(Policy(), field))


@pytest.mark.parametrize(
    ("sources", "cap_ms"),
    [
        ([(300_000, None)], 300_000),
        ([(30_000, None)], 60_000),
        ([(None, None)], 60_000),
        ([(300_000, 600_000)], 600_000),
        ([(None, 90_000), (300_000, None)], 90_000),
        ([(300_000, None), (None, 90_000)], 300_000),
        ([(300_000, None), (None, 400_000)], 400_000),
        ([(300_000, None), None, (900_000, None)], 300_000),
        ([(None, 0), (5, None)], 0),
        ([(5, None), (None, 0)], 5),
    ],
)
def test_resolve__cap_below_the_first_delay__holds_only_where_it_was_said_before(
    sources: list[tuple[int | None, int | None] | None], cap_ms: int
) -> None:
    """Sources are pairs of initial and largest delay, the one that goes before the others first."""
    resolved = resolve(
        *(
            None if pair is None else PartialPolicy(initial_delay_ms=pair[0], max_delay_ms=pair[1])
            for pair in sources
        )
    )
    assert resolved.max_delay_ms == cap_ms
    initial = next((pair[0] for pair in sources if pair and pair[0] is not None), 1_000)
    assert retry.backoff_ms(resolved, 1, 0.5) == min(initial, cap_ms)


@given(partials)
def test_resolve__empty_word__counts_as_said(partial: PartialPolicy) -> None:
    """Zero attempts of delay, an empty list: what is said is not what is true."""
    said = PartialPolicy(initial_delay_ms=0, jitter=0.0, non_retryable_types=())
    resolved = resolve(said, partial)
    assert (resolved.initial_delay_ms, resolved.jitter, resolved.non_retryable_types) == (0, 0, ())


@given(partials, policies)
def test_policy__through_json__is_the_same(partial: PartialPolicy, policy: Policy) -> None:
    assert PartialPolicy.from_json(partial.to_json()) == partial
    assert Policy.from_json(policy.to_json()) == policy
    assert Policy.from_json(policy.to_json()).digest() == policy.digest()


@given(policies, policies)
def test_digest__two_policies__is_equal_exactly_for_equal_ones(one: Policy, other: Policy) -> None:
    assert (one.digest() == other.digest()) == (one.to_json() == other.to_json())
