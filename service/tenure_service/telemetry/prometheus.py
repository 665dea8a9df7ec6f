"""The text that a scrape gets: our instruments, and what the process itself uses."""

import math
from collections.abc import Iterator
from typing import Final

from prometheus_client import CollectorRegistry, ProcessCollector
from prometheus_client.exposition import choose_encoder, generate_latest
from prometheus_client.metrics_core import (
    CounterMetricFamily,
    GaugeMetricFamily,
    HistogramMetricFamily,
    Metric,
)
from prometheus_client.registry import Collector

from tenure_service.telemetry.instruments import Buckets, Histogram, Kind, Reading, Registry

_TOTAL: Final = "_total"


class _Readings(Collector):
    def __init__(self, registry: Registry) -> None:
        self._registry = registry

    def collect(self) -> Iterator[Metric]:
        """Reads all instruments."""
        for reading in self._registry.read():
            yield _family(reading)


class Text:
    """Writes the instruments of a process as Prometheus reads them."""

    def __init__(self, registry: Registry) -> None:
        self._collectors = CollectorRegistry(auto_describe=False)
        self._collectors.register(_Readings(registry))
        ProcessCollector(registry=self._collectors)

    def write(self, accept: str = "") -> tuple[bytes, str]:
        """Gives the text, in the form that the `Accept` header asks for, and its content type."""
        encode, content_type = choose_encoder(accept)
        return encode(self._collectors), content_type

    def plain(self) -> str:
        """Gives the plain form."""
        return generate_latest(self._collectors).decode()


def _family(reading: Reading) -> Metric:
    instrument = reading.instrument
    names = list(instrument.labels)
    points = sorted(reading.points.items())
    if isinstance(instrument, Histogram):
        histogram = HistogramMetricFamily(instrument.name, instrument.description, labels=names)
        for values, cell in points:
            if not isinstance(cell, Buckets):
                continue
            bounds = (*instrument.bounds, math.inf)
            histogram.add_metric(
                values, list(_cumulated(bounds, cell.counts)), sum_value=cell.total
            )
        return histogram
    family: CounterMetricFamily | GaugeMetricFamily
    if instrument.kind is Kind.COUNTER:
        name = instrument.name.removesuffix(_TOTAL)
        family = CounterMetricFamily(name, instrument.description, labels=names)
    else:
        family = GaugeMetricFamily(instrument.name, instrument.description, labels=names)
    for values, number in points:
        if not isinstance(number, Buckets):
            family.add_metric(values, number)
    return family


def _cumulated(bounds: tuple[float, ...], counts: list[int]) -> Iterator[tuple[str, float]]:
    total = 0
    for bound, count in zip(bounds, counts, strict=True):
        total += count
        yield ("+Inf" if math.isinf(bound) else f"{bound:g}"), total
