"""Pushes the instruments to an OpenTelemetry collector, where OTEL_EXPORTER_OTLP_ENDPOINT is set.

The SDK's data model and exporter, without its instruments: see `instruments`. The exporter reads its
endpoint, headers, certificates and timeout from OpenTelemetry's variables; the resource does from
OTEL_RESOURCE_ATTRIBUTES and OTEL_SERVICE_NAME.
"""

from __future__ import annotations

import importlib.util
import logging
import os
import re
import time
from typing import TYPE_CHECKING, Final

from tenure_service.telemetry.instruments import Buckets, Histogram, Kind, Reading, Registry

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from opentelemetry.sdk.metrics.export import Metric, MetricExporter, MetricsData

_log = logging.getLogger(__name__)

_ENDPOINTS: Final = ("OTEL_EXPORTER_OTLP_METRICS_ENDPOINT", "OTEL_EXPORTER_OTLP_ENDPOINT")
#: A URL, or what gRPC takes without one: host and port, a socket's path, a name for its resolver.
_ENDPOINT: Final = re.compile(
    r"(https?://)?([^\s/:@?#\[\]]+|\[[0-9A-Fa-f:.]+\]):\d{1,5}/?|https?://[^\s:?#]+|(unix|dns):\S+"
)
_EXPORTER: Final = "opentelemetry.exporter.otlp.proto.grpc.metric_exporter"
_PACKAGE: Final = "opentelemetry-exporter-otlp-proto-grpc"
_INTERVAL: Final = "OTEL_METRIC_EXPORT_INTERVAL"
_INTERVAL_MS: Final = 60_000.0


class Push:
    """Sends readings to a collector; on a thread, since an export waits for its answer."""

    def __init__(self, exporter: MetricExporter, registry: Registry) -> None:
        from opentelemetry.sdk.resources import Resource

        self._exporter = exporter
        self._registry = registry
        self._resource = Resource.create({"service.name": "tenure-server"})
        self._since = time.time_ns()
        self._taken = False

    def send(self) -> bool:
        """Sends one reading; False if the collector did not take it."""
        from opentelemetry.sdk.metrics.export import MetricExportResult

        self._taken = self._exporter.export(self.data()) is MetricExportResult.SUCCESS
        return self._taken

    def close(self) -> None:
        """Ends the connection, after a last reading if the one before was taken."""
        if self._taken:
            self.send()
        self._exporter.shutdown()

    def data(self) -> MetricsData:
        """Gives one reading in the form of the SDK."""
        from opentelemetry.sdk.metrics.export import MetricsData, ResourceMetrics, ScopeMetrics
        from opentelemetry.sdk.util.instrumentation import InstrumentationScope

        now = time.time_ns()
        found = [_metric(each, self._since, now) for each in self._registry.read() if each.points]
        scope = ScopeMetrics(InstrumentationScope("tenure"), found, "")
        return MetricsData([ResourceMetrics(self._resource, [scope], "")])


def from_environment(
    registry: Registry, environment: Mapping[str, str] = os.environ
) -> Push | None:
    """Gives who pushes, if an endpoint is set and the exporter is installed."""
    named = endpoint(_ENDPOINTS, "metrics", environment)
    if named is None or not installed(_EXPORTER, "metrics", named):
        return None
    from opentelemetry.exporter.otlp.proto.grpc.metric_exporter import OTLPMetricExporter

    return Push(OTLPMetricExporter(), registry)


def endpoint(variables: Sequence[str], what: str, environment: Mapping[str, str]) -> str | None:
    """Gives the collector that the first of some variables that is set names.

    Warns of a value that names none. A server does not refuse to start for it: the variable is
    OpenTelemetry's, and often set for every program of a machine.
    """
    name = next((each for each in variables if environment.get(each)), None)
    if name is None:
        return None
    if not _ENDPOINT.fullmatch(environment[name]):
        _log.warning(
            "%s are not pushed: %s is %r, and no URL such as http://collector:4317",
            what,
            name,
            environment[name],
        )
        return None
    return environment[name]


def installed(exporter: str, what: str, named: str) -> bool:
    """Says whether an exporter is there, and warns where it is asked for and is not."""
    try:
        there = importlib.util.find_spec(exporter) is not None
    except ModuleNotFoundError:
        there = False
    if not there:
        _log.warning(
            "%s are not pushed to %s: %s is not installed (pip install %s)",
            what,
            named,
            _PACKAGE,
            _PACKAGE,
        )
    return there


def interval_seconds(environment: Mapping[str, str] = os.environ) -> float:
    """Gives the pause between two readings, as OpenTelemetry's variable says."""
    try:
        return max(float(environment.get(_INTERVAL) or _INTERVAL_MS) / 1000, 1.0)
    except ValueError:
        return _INTERVAL_MS / 1000


def _metric(reading: Reading, since: int, now: int) -> Metric:
    from opentelemetry.sdk.metrics import export

    instrument = reading.instrument
    temporality = export.AggregationTemporality.CUMULATIVE
    data: export.Gauge | export.Histogram | export.Sum
    if isinstance(instrument, Histogram):
        buckets = [
            export.HistogramDataPoint(
                attributes=dict(zip(instrument.labels, values, strict=True)),
                start_time_unix_nano=since,
                time_unix_nano=now,
                count=sum(cell.counts),
                sum=cell.total,
                bucket_counts=cell.counts,
                explicit_bounds=instrument.bounds,
                # Not kept, and unset on the wire; the SDK's type has no word for that.
                min=None,  # type: ignore[arg-type]
                max=None,  # type: ignore[arg-type]
            )
            for values, cell in reading.points.items()
            if isinstance(cell, Buckets)
        ]
        data = export.Histogram(buckets, temporality)
    else:
        numbers = [
            export.NumberDataPoint(
                attributes=dict(zip(instrument.labels, values, strict=True)),
                start_time_unix_nano=since,
                time_unix_nano=now,
                value=number,
            )
            for values, number in reading.points.items()
            if isinstance(number, int | float)
        ]
        monotonic = instrument.kind is Kind.COUNTER
        data = export.Sum(numbers, temporality, monotonic) if monotonic else export.Gauge(numbers)
    return export.Metric(instrument.name, instrument.description, instrument.unit, data)
