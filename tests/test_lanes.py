"""What a server believes of a lane: where to pick from."""

from tenure_service.dispatch.lanes import Handled, LaneHint
from tenure_service.store.leases import RANK_MIN

HANDLED = Handled(1, "default", "work")


def picked(
    hint: LaneHint, place: tuple[int, int], last: tuple[int, int] | None, *, full: bool = True
) -> None:
    hint.picked(place, last=last, full=full, more=False, woken=hint.woken)


def test_picked__full_from_the_bottom__goes_on_above_what_it_took() -> None:
    hint = LaneHint(HANDLED, suspect=False)
    picked(hint, hint.place(0.0), (0, 100))
    assert hint.low == (0, 100)


def test_picked__woken_for_a_lower_place_meanwhile__goes_back_to_the_bottom() -> None:
    """Tasks that were given back stand below where the server picks."""
    hint = LaneHint(HANDLED, suspect=False)
    picked(hint, hint.place(0.0), (0, 100))
    place = hint.low
    hint.wake(RANK_MIN)
    picked(hint, place, (0, 200))
    assert hint.low[0] == RANK_MIN
    picked(hint, hint.place(0.0), (0, 60))
    assert hint.low == (0, 60)


def test_picked__all_there_was__stays_near_and_cools() -> None:
    """A worker that keeps up takes all each time: from the bottom it would pass all dead rows."""
    hint = LaneHint(HANDLED, suspect=False)
    hint.wake(0)
    picked(hint, hint.place(0.0), (0, 90_000), full=False)
    assert not hint.hot
    assert hint.low == (0, 88_000)
    hint.wake(0)
    assert hint.place(0.0) == (0, 88_000)
    assert hint.place(hint.low_until)[0] == RANK_MIN


def test_picked__nothing__keeps_its_place_and_cools() -> None:
    hint = LaneHint(HANDLED, suspect=False)
    picked(hint, hint.place(0.0), (0, 90_000))
    hint.wake(0)
    picked(hint, hint.low, None, full=False)
    assert not hint.hot
    assert hint.low == (0, 90_000)


def test_wake__of_a_more_urgent_rank__goes_back_to_the_bottom() -> None:
    hint = LaneHint(HANDLED, suspect=False)
    picked(hint, hint.place(0.0), (0, 90_000))
    hint.wake(-5)
    assert hint.low[0] == RANK_MIN
