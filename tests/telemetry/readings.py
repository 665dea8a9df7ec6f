"""What the measures of this process stand at."""

from typing import TYPE_CHECKING

from tenure_service.telemetry import metrics
from tenure_service.telemetry.instruments import Buckets, Instrument, Kind, Values

if TYPE_CHECKING:
    from collections.abc import Mapping

Counts = dict[str, dict[Values, float]]


def counts() -> Counts:
    """Gives the counts of every counter and histogram, by label values."""
    found: Counts = {}
    for reading in metrics.REGISTRY.read():
        if reading.instrument.kind is not Kind.GAUGE:
            found[reading.instrument.name] = {
                values: _count(point) for values, point in reading.points.items()
            }
    return found


def risen(before: Counts, instrument: Instrument, *values: str) -> float:
    """Says by how much a counter has risen; without label values, all of them together."""
    name = instrument.name
    now = counts()[name]
    if values or not instrument.labels:
        return now.get(values, 0.0) - before[name].get(values, 0.0)
    return sum(now.values()) - sum(before[name].values())


def gauge(instrument: Instrument, *values: str) -> float | None:
    """Gives what a gauge stands at."""
    for reading in metrics.REGISTRY.read():
        if reading.instrument is instrument:
            point = reading.points.get(values)
            return None if point is None else _count(point)
    return None


def labels_outside() -> list[tuple[str, Values]]:
    """Lists the label values of closed sets that are not in their set."""
    found: list[tuple[str, Values]] = []
    for reading in metrics.REGISTRY.read():
        for values in reading.points:
            domains: Mapping[str, object] = reading.instrument.labels
            assert len(values) == len(domains), reading.instrument.name
            for value, domain in zip(values, reading.instrument.labels.values(), strict=True):
                if domain is not None and value not in domain:
                    found.append((reading.instrument.name, values))
    return found


def _count(point: float | Buckets) -> float:
    return float(sum(point.counts)) if isinstance(point, Buckets) else point
