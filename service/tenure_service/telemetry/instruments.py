"""Counters, gauges and histograms of one process, read when somebody asks.

Not the instruments of the OpenTelemetry SDK: their `add` with one attribute takes 11 times as long
as the one here (docs/decisions.md), and a histogram of theirs takes one call a value. Its data
model, units and exporters are used (`otlp`).

What changes is counted by `add` and `observe`; what only stands is asked for at a scrape, from
observers that servers register. Every set of label values is bounded: what has no place in the
bound is counted under `other`.
"""

import bisect
import itertools
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Final, TypeVar

OTHER: Final = "other"
#: Sets of label values of one instrument. Prometheus keeps each as a series for weeks.
LABEL_SETS_MAX: Final = 500

Values = tuple[str, ...]
#: The labels of an instrument; None: any text, else one of these.
Labels = Mapping[str, Sequence[str] | None]


class Kind(StrEnum):
    """What a number of an instrument means."""

    COUNTER = "counter"
    GAUGE = "gauge"
    HISTOGRAM = "histogram"


@dataclass(slots=True)
class Buckets:
    """One histogram: how many values fell between the bounds, and their sum."""

    counts: list[int]
    total: float = 0.0


class Instrument:
    """What is measured: a name, a unit, what it means, and by which labels."""

    kind: Kind

    def __init__(self, name: str, description: str, *, unit: str, labels: Labels | None) -> None:
        self.name = name
        self.description = description
        self.unit = unit
        self.labels: dict[str, Sequence[str] | None] = dict(labels or {})
        self._lock = threading.Lock()
        domains = list(self.labels.values())
        self._known: list[Values] = (
            list(itertools.product(*(each or () for each in domains)))
            if all(each is not None for each in domains)
            else []
        )

    def _place(self, cells: Mapping[Values, object], values: Values) -> Values:
        """Gives where a set of label values is counted, so that their number is bounded."""
        if values in cells:
            return values
        closed = bool(self._known)
        if closed or len(cells) >= LABEL_SETS_MAX:
            return (OTHER,) * len(self.labels)
        return values


class Counter(Instrument):
    """Something that only rises."""

    kind = Kind.COUNTER

    def __init__(self, name: str, description: str, *, unit: str, labels: Labels | None) -> None:
        super().__init__(name, description, unit=unit, labels=labels)
        # What has never happened is 0 from the start, so that its first time is a rise.
        self._cells: dict[Values, float] = dict.fromkeys(self._known, 0)

    def add(self, count: float = 1, *values: str) -> None:
        """Counts; from any thread."""
        with self._lock:
            place = self._place(self._cells, values)
            self._cells[place] = self._cells.get(place, 0) + count

    def points(self) -> dict[Values, float]:
        """Gives the counts by label values."""
        with self._lock:
            return dict(self._cells)


class Histogram(Instrument):
    """How often values of which size came."""

    kind = Kind.HISTOGRAM

    def __init__(
        self,
        name: str,
        description: str,
        *,
        unit: str,
        labels: Labels | None,
        bounds: Sequence[float],
    ) -> None:
        super().__init__(name, description, unit=unit, labels=labels)
        self.bounds = tuple(bounds)
        self._cells: dict[Values, Buckets] = {values: self._empty() for values in self._known}

    def observe(self, value: float, *values: str) -> None:
        """Counts one value; from any thread."""
        self.observe_many((value,), *values)

    def observe_many(self, found: Iterable[float], *values: str) -> None:
        """Counts some values of one set of labels."""
        bounds = self.bounds
        with self._lock:
            place = self._place(self._cells, values)
            cell = self._cells.get(place)
            if cell is None:
                cell = self._cells[place] = self._empty()
            counts = cell.counts
            for value in found:
                counts[bisect.bisect_left(bounds, value)] += 1
                cell.total += value

    def points(self) -> dict[Values, Buckets]:
        """Gives the buckets by label values."""
        with self._lock:
            return {
                values: Buckets(list(cell.counts), cell.total)
                for values, cell in self._cells.items()
            }

    def _empty(self) -> Buckets:
        return Buckets([0] * (len(self.bounds) + 1))


class Gauge(Instrument):
    """Something that stands at a number; observers tell it at a scrape."""

    kind = Kind.GAUGE


Made = TypeVar("Made", bound=Instrument)
#: What an observer tells: the instrument, the number, the label values.
Observed = tuple["Gauge | Counter", float, Values]
Observer = Callable[[], Iterable[Observed]]


@dataclass(frozen=True, slots=True)
class Reading:
    """One instrument at one moment."""

    instrument: Instrument
    points: Mapping[Values, float | Buckets]


@dataclass(slots=True)
class Registry:
    """The instruments of this process, and who tells of what stands."""

    instruments: dict[str, Instrument] = field(default_factory=dict)
    _observers: list[Observer] = field(default_factory=list)

    def counter(
        self, name: str, description: str, *, unit: str = "", labels: Labels | None = None
    ) -> Counter:
        """Makes a counter."""
        return self._add(Counter(name, description, unit=unit, labels=labels))

    def gauge(
        self, name: str, description: str, *, unit: str = "", labels: Labels | None = None
    ) -> Gauge:
        """Makes a gauge."""
        return self._add(Gauge(name, description, unit=unit, labels=labels))

    def histogram(
        self,
        name: str,
        description: str,
        *,
        unit: str,
        bounds: Sequence[float],
        labels: Labels | None = None,
    ) -> Histogram:
        """Makes a histogram."""
        return self._add(Histogram(name, description, unit=unit, labels=labels, bounds=bounds))

    def observe(self, observer: Observer) -> Callable[[], None]:
        """Asks an observer at every reading from now on; gives what ends that."""
        self._observers.append(observer)
        return lambda: self._observers.remove(observer)

    def read(self) -> Iterator[Reading]:
        """Reads all instruments; what several servers of a process tell is added up."""
        standing: dict[str, dict[Values, float]] = {}
        for observer in list(self._observers):
            for told_of, number, values in observer():
                cells = standing.setdefault(told_of.name, {})
                if values not in cells and len(cells) >= LABEL_SETS_MAX:
                    values = (OTHER,) * len(values)  # noqa: PLW2901 - the bound of label sets
                cells[values] = cells.get(values, 0.0) + number
        for instrument in self.instruments.values():
            told = standing.get(instrument.name, {})
            if isinstance(instrument, Counter | Histogram):
                yield Reading(instrument, {**instrument.points(), **told})
            else:
                yield Reading(instrument, told)

    def _add(self, instrument: Made) -> Made:
        if instrument.name in self.instruments:
            raise AssertionError(f"{instrument.name} is named twice")
        self.instruments[instrument.name] = instrument
        return instrument
