"""The measures: cells, the text of a scrape, what OTLP carries, and the document."""

import threading
import time
from collections.abc import Mapping
from pathlib import Path

import pytest
from opentelemetry.exporter.otlp.proto.common.metrics_encoder import encode_metrics
from opentelemetry.exporter.otlp.proto.grpc.metric_exporter import OTLPMetricExporter
from prometheus_client.parser import text_string_to_metric_families

from tenure_service.engine.errors import Reason
from tenure_service.engine.policy import TimeoutKind
from tenure_service.engine.retry import DeadReason
from tenure_service.engine.states import Outcome
from tenure_service.rpc.stream import STATUSES
from tenure_service.store.commits import Fate
from tenure_service.telemetry import instruments, metrics, otlp, prometheus
from tenure_service.telemetry.instruments import Kind, Registry
from tools import metric_docs


def test_names__registry__are_of_one_form() -> None:
    for name, instrument in metrics.REGISTRY.instruments.items():
        assert name.startswith("tenure_")
        assert name.endswith("_total") is (instrument.kind is Kind.COUNTER), name
        assert (instrument.unit == "s") is name.removesuffix("_total").endswith("_seconds"), name
        assert (instrument.unit == "By") is name.endswith("_bytes"), name
        assert instrument.description.endswith("."), name
        assert not {"task_id", "key", "session", "worker"} & set(instrument.labels)


def test_words__labels__are_those_of_the_engine() -> None:
    assert set(metrics.TIMEOUT_KINDS) == set(TimeoutKind)
    assert set(metrics.DEATHS) == set(DeadReason)
    assert set(metrics.OUTCOMES) < set(Outcome)
    assert set(metrics.STATUSES) == {*STATUSES, "REFUSED"}
    assert set(metrics.FATES) == {fate.name.lower() for fate in Fate}
    assert set(metrics.REFUSALS) < set(Reason)


def test_document__every_measure__is_in_it() -> None:
    told = metric_docs.TARGET.read_text(encoding="utf-8")
    assert told == metric_docs.text()
    for name in metrics.REGISTRY.instruments:
        assert f"| `{name}` |" in told


def test_write__some_counts__a_scrape_reads_them() -> None:
    registry = Registry()
    some = registry.counter("tenure_some_total", "Some.", labels={"kind": ("a", "b")})
    size = registry.histogram("tenure_size", "Size.", unit="1", bounds=(1, 10))
    depth = registry.gauge("tenure_depth", "Depth.", labels={"queue": None})
    some.add(2, "a")
    size.observe_many([0.5, 5, 50])
    forget = registry.observe(lambda: [(depth, 3, ('odd "queue"\n',))])
    text = prometheus.Text(registry)
    families = {each.name: each for each in text_string_to_metric_families(text.plain())}
    assert {s.labels["kind"]: s.value for s in families["tenure_some"].samples} == {"a": 2, "b": 0}
    samples = families["tenure_size"].samples
    assert [s.value for s in samples if s.name.endswith("_bucket")] == [1, 2, 3]
    assert [s.value for s in samples if s.name.endswith("_sum")] == [55.5]
    assert families["tenure_depth"].samples[0].labels == {"queue": 'odd "queue"\n'}
    assert families["process_resident_memory_bytes"].samples[0].value > 0
    forget()
    assert "odd" not in text.plain()


def test_add__more_label_values_than_the_bound__the_last_are_one() -> None:
    registry = Registry()
    many = registry.counter("tenure_many_total", "Many.", labels={"method": None})
    few = registry.counter("tenure_few_total", "Few.", labels={"kind": ("a",)})
    depth = registry.gauge("tenure_depth", "Depth.", labels={"queue": None})
    count = instruments.LABEL_SETS_MAX + 10
    for number in range(count):
        many.add(1, f"m{number}")
    few.add(1, "unheard of")
    registry.observe(lambda: ((depth, 1, (f"q{number}",)) for number in range(count)))
    found = {each.instrument.name: each.points for each in registry.read()}
    for name in ("tenure_many_total", "tenure_depth"):
        assert len(found[name]) == instruments.LABEL_SETS_MAX + 1
        assert found[name]["other",] == 10
    assert found["tenure_few_total"] == {("a",): 0, ("other",): 1}


def test_add__many_threads__loses_nothing() -> None:
    registry = Registry()
    some = registry.counter("tenure_some_total", "Some.")
    size = registry.histogram("tenure_size", "Size.", unit="1", bounds=(1,))

    def count() -> None:
        for _ in range(2_000):
            some.add()
            size.observe(2)

    threads = [threading.Thread(target=count) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert some.points() == {(): 8_000}
    assert size.points()[()].counts == [0, 8_000]


def test_add__one_count__costs_little() -> None:
    """A tenth of what the SDK's own counter takes; the bound is for a machine under load."""
    registry = Registry()
    some = registry.counter("tenure_some_total", "Some.", labels={"kind": ("a",)})
    began = time.thread_time()
    for _ in range(10_000):
        some.add(1, "a")
    assert time.thread_time() - began < 0.1


def test_data__one_reading__otlp_encodes_it() -> None:
    registry = Registry()
    registry.counter("tenure_some_total", "Some.", labels={"kind": ("a",)}).add(2, "a")
    registry.histogram("tenure_size", "Size.", unit="s", bounds=(1, 10)).observe_many([5, 50])
    depth = registry.gauge("tenure_depth", "Depth.")
    registry.observe(lambda: [(depth, 3, ())])
    push = otlp.Push(OTLPMetricExporter(endpoint="http://127.0.0.1:1", insecure=True), registry)
    (resource,) = encode_metrics(push.data()).resource_metrics
    named = {each.key: each.value.string_value for each in resource.resource.attributes}
    assert named["service.name"] == "tenure-server"
    (scope,) = resource.scope_metrics
    found = {each.name: each for each in scope.metrics}
    assert found["tenure_some_total"].sum.is_monotonic
    assert found["tenure_some_total"].sum.data_points[0].as_int == 2
    assert found["tenure_depth"].gauge.data_points[0].as_double == 3
    (point,) = found["tenure_size"].histogram.data_points
    assert (point.count, point.sum, list(point.bucket_counts)) == (2, 55, [0, 1, 1])
    assert not point.HasField("min")
    push.close()


@pytest.mark.parametrize(
    ("variables", "pushes"),
    [
        ({}, False),
        ({"OTEL_EXPORTER_OTLP_ENDPOINT": "http://127.0.0.1:1"}, True),
        ({"OTEL_EXPORTER_OTLP_METRICS_ENDPOINT": "http://127.0.0.1:1"}, True),
    ],
)
def test_from_environment__endpoint__says_whether_to_push(
    variables: Mapping[str, str], *, pushes: bool
) -> None:
    push = otlp.from_environment(Registry(), variables)
    assert (push is not None) is pushes
    if push is not None:
        push.close()


def test_from_environment__no_exporter__says_so(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(otlp, "_EXPORTER", "opentelemetry.exporter.otlp.nowhere.metric_exporter")
    variables = {"OTEL_EXPORTER_OTLP_ENDPOINT": "http://127.0.0.1:1"}
    assert otlp.from_environment(Registry(), variables) is None
    assert "pip install opentelemetry-exporter-otlp-proto-grpc" in caplog.text


def test_source__every_measure__is_counted_or_told_somewhere() -> None:
    """A measure that no module names would stand at 0 for ever."""
    root = Path(metrics.__file__).parent.parent
    texts = "".join(
        path.read_text(encoding="utf-8") for path in root.rglob("*.py") if path.name != "metrics.py"
    )
    names = [name for section in metric_docs.sections(_source()) for name in section.names]
    assert [name for name in names if f"metrics.{name}" not in texts] == []
    assert len(names) == len(metrics.REGISTRY.instruments)


def _source() -> str:
    return metric_docs.SOURCE.read_text(encoding="utf-8")
