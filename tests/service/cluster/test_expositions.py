"""Expositions of several replicas become one that Prometheus reads."""

from __future__ import annotations

import math
from typing import Any

import pytest
from prometheus_client import CollectorRegistry
from prometheus_client.exposition import choose_encoder
from prometheus_client.openmetrics.parser import text_string_to_metric_families as read_openmetrics
from prometheus_client.parser import text_string_to_metric_families as read_text

from service.cluster.expositions import labelled, merged
from service.telemetry import Telemetry

FORMATS: dict[str, Any] = {"text/plain": read_text, "application/openmetrics-text; version=1.0.0": read_openmetrics}


def telemetry(seconds: float) -> Telemetry:
    found = Telemetry(CollectorRegistry())
    found.expect(["/models"], ["/attention"], ["rope"], provider='a "quoted\\" {one}')
    found.describe(version="1 # 2")
    found.lagged(seconds)
    return found


@pytest.mark.parametrize("accept", FORMATS)
def test_one_exposition_has_the_series_of_all_each_with_its_replica(accept: str) -> None:
    encode, _ = choose_encoder(accept)
    read = FORMATS[accept]
    texts = {name: encode(telemetry(seconds).registry).decode() for name, seconds in (("one", 0.002), ("two", 7.0))}
    families = list(read(merged(labelled(text, name) for name, text in texts.items())))
    assert len({family.name for family in families}) == len(families)
    for name, text in texts.items():
        alone = {family.name: family for family in read(text)}
        assert [family.name for family in families] == list(alone)
        for family in families:
            expected = alone[family.name]
            assert (family.type, family.documentation) == (expected.type, expected.documentation)
            found = [sample for sample in family.samples if sample.labels["replica"] == name]
            assert [
                (sample.name, {label: value for label, value in sample.labels.items() if label != "replica"})
                for sample in found
            ] == [(sample.name, sample.labels) for sample in expected.samples]
            for one, other in zip(found, expected.samples, strict=True):
                assert math.isclose(one.value, other.value), one


def test_a_family_that_only_one_has_is_kept() -> None:
    one, two = "# HELP a A.\n# TYPE a gauge\na 1.0\n", "# HELP b B.\n# TYPE b gauge\nb 2.0\n"
    assert merged([one, two, one]) == one + "a 1.0\n" + two


def test_of_nothing_nothing_is_made() -> None:
    assert merged([]) == ""
