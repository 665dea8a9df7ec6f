"""The dashboard and the alerts speak of measures and labels that exist."""

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from tenure_service.telemetry import metrics
from tenure_service.telemetry.instruments import Kind

DEPLOY = Path(__file__).resolve().parents[2] / "deploy"
#: Those of the Prometheus client, and of Prometheus itself.
FOREIGN = {"process_resident_memory_bytes", "process_cpu_seconds_total", "up"}
OF_SCRAPES = {"job", "instance", "le"}
WORDS = {
    *("sum", "max", "min", "rate", "increase", "by", "and", "or", "histogram_quantile"),
    *("namespace", "queue", "name", "reason", "kind", "outcome", "method", "status", "batch"),
    *("cause", "fate", "loop", *OF_SCRAPES),
}


def dashboard() -> dict[str, Any]:
    found: dict[str, Any] = json.loads((DEPLOY / "grafana" / "tenure.json").read_text())
    return found


def rules() -> list[dict[str, Any]]:
    (group,) = yaml.safe_load((DEPLOY / "prometheus" / "alerts.yml").read_text())["groups"]
    found: list[dict[str, Any]] = group["rules"]
    return found


def expressions() -> Iterator[tuple[str, str]]:
    for panel in dashboard()["panels"]:
        for target in panel.get("targets", ()):
            yield panel["title"], target["expr"]
    for rule in rules():
        yield rule["alert"], rule["expr"]


def wrong(expression: str) -> list[str]:
    """Lists what an expression names that nobody tells."""
    series = {
        f"{name}{end}": instrument
        for name, instrument in metrics.REGISTRY.instruments.items()
        for end in (("_bucket", "_sum", "_count") if instrument.kind is Kind.HISTOGRAM else ("",))
    }
    bare = re.sub(r'"[^"]*"|\$\w+|\[[^\]]*\]', "", expression)
    found = [
        word
        for word in re.findall(r"[a-z_]\w+", bare)
        if word not in WORDS and word not in series and word not in FOREIGN
    ]
    for name, selectors in re.findall(r"(\w+)\{([^}]*)\}", expression):
        labels = set(series[name].labels) if name in series else set()
        for label, _, value in re.findall(r'(\w+)(=~|!=|=)"([^"]*)"', selectors):
            domain = series[name].labels.get(label) if name in series else None
            if label not in labels | OF_SCRAPES:
                found.append(f"{name} has no label {label}")
            elif domain is not None and value not in domain:
                found.append(f"{label} is never {value}")
    used = {series[word] for word in re.findall(r"\w+", bare) if word in series}
    for by in re.findall(r"by \(([^)]*)\)", bare):
        known = {label for instrument in used for label in instrument.labels} | OF_SCRAPES
        found += [f"by {each}" for each in by.split(", ") if each not in known]
    return found


@pytest.mark.parametrize(("title", "expression"), list(expressions()))
def test_expression__names__are_measures_and_labels(title: str, expression: str) -> None:
    assert wrong(expression) == []
    assert expression.count("(") == expression.count(")")


def test_wrong__expressions_of_others__are_found() -> None:
    assert wrong("rate(tenure_tasks_finished_total[5m])") == ["tenure_tasks_finished_total"]
    assert wrong('tenure_tasks_lost_total{kind="x"}') == [
        "tenure_tasks_lost_total has no label kind"
    ]
    assert wrong('tenure_reports_total{status="DONE"}') == ["status is never DONE"]
    assert wrong("sum by (queue) (tenure_streams)") == ["by queue"]
    assert wrong("tenure_rpc_seconds") == ["tenure_rpc_seconds"]


def test_dashboard__panels__lie_beside_each_other() -> None:
    found = dashboard()
    panels = found["panels"]
    assert len({panel["id"] for panel in panels}) == len(panels)
    taken: set[tuple[int, int]] = set()
    for panel in panels:
        place = panel["gridPos"]
        cells = {
            (place["x"] + across, place["y"] + down)
            for across in range(place["w"])
            for down in range(place["h"])
        }
        assert not cells & taken, panel["title"]
        assert place["x"] + place["w"] <= 24
        taken |= cells


def test_alerts__each__says_how_bad_and_what_to_do() -> None:
    found = rules()
    assert len({rule["alert"] for rule in found}) == len(found)
    for rule in found:
        assert rule["labels"]["severity"] in {"critical", "warning"}
        assert rule["annotations"].keys() == {"summary", "description"}
    loops = " ".join(rule["expr"] for rule in found)
    for loop in ("due", "ready", "keys", "forget", "partitions"):
        assert loop in loops
