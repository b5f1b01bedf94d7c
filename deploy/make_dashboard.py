"""Writes deploy/grafana/dashboards/attention.json: `python -m deploy.make_dashboard`.

A panel says what it asks; where it stands follows from the order. Grafana takes the file as it is when it starts.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from deploy.slo import BURNS, LIMITS, OBJECTIVES, SCORING, Objective

OUT = Path(__file__).with_name("grafana") / "dashboards" / "attention.json"
WIDTH, HEIGHT = 24, 8
RATE = "$__rate_interval"
SOURCE = {"type": "prometheus", "uid": "${datasource}"}
ENCODING = 'encoding=~"$encoding"'
OF = f'{{{ENCODING},size=~"$size"}}'

Json = dict[str, Any]
Target = tuple[str, str]
"""An expression and the legend of its series."""


@dataclass(frozen=True)
class Panel:
    """`kind` is Grafana's; `options` and `defaults` are what of it is not the usual."""

    title: str
    description: str
    targets: Sequence[Target]
    unit: str = "short"
    kind: str = "timeseries"
    width: int = 8
    height: int = HEIGHT
    options: Json = field(default_factory=dict)
    defaults: Json = field(default_factory=dict)
    format: str = "time_series"

    def json(self, number: int, x: int, y: int) -> Json:
        return {
            "id": number,
            "type": self.kind,
            "title": self.title,
            "description": self.description,
            "datasource": SOURCE,
            "gridPos": {"x": x, "y": y, "w": self.width, "h": self.height},
            "fieldConfig": {"defaults": {"unit": self.unit, **self.defaults}, "overrides": []},
            "options": self.options,
            "targets": [
                {
                    "refId": chr(ord("A") + i),
                    "datasource": SOURCE,
                    "expr": expression,
                    "legendFormat": legend,
                    "format": self.format,
                    "instant": self.format == "table",
                    "exemplar": False,
                }
                for i, (expression, legend) in enumerate(self.targets)
            ],
        }


@dataclass(frozen=True)
class Row:
    title: str
    panels: Sequence[Panel]


def stat(title: str, description: str, expression: str, unit: str, **more: Any) -> Panel:
    """One number, small."""
    options = {"reduceOptions": {"calcs": ["lastNotNull"]}, "colorMode": "value", "graphMode": "area"}
    return Panel(
        title, description, [(expression, "")], unit, "stat", 4, 4, {**options, **more.pop("options", {})}, more
    )


def heat(title: str, description: str, expression: str, unit: str) -> Panel:
    """A heat map over the buckets of a histogram."""
    options = {
        "calculate": False,
        "yAxis": {"unit": unit},
        "cellGap": 0,
        "color": {"mode": "scheme", "scheme": "Viridis", "steps": 64},
    }
    return Panel(title, description, [(expression, "{{le}}")], unit, "heatmap", 12, options=options, format="heatmap")


def lines(title: str, description: str, *targets: Target, unit: str = "short", **more: Any) -> Panel:
    defaults = {"min": 0, "custom": {"fillOpacity": 8, "showPoints": "never"}}
    options = {"legend": {"displayMode": "list", "placement": "bottom"}, "tooltip": {"mode": "multi", "sort": "desc"}}
    return Panel(title, description, targets, unit, options=options, defaults=defaults, **more)


def stacked(title: str, description: str, *targets: Target, unit: str, **more: Any) -> Panel:
    panel = lines(title, description, *targets, unit=unit, **more)
    custom = {**panel.defaults["custom"], "fillOpacity": 40, "stacking": {"mode": "normal"}}
    return replace(panel, defaults={**panel.defaults, "custom": custom})


def quantile(q: float, metric: str, labels: str, by: str = "") -> str:
    return f"histogram_quantile({q:g}, sum by ({by}le) (rate({metric}_bucket{labels}[{RATE}])))"


def mean(metric: str, labels: str, by: str) -> str:
    over = f"sum by ({by}) (rate({metric}_count{labels}[{RATE}])) > 0"
    return f"sum by ({by}) (rate({metric}_sum{labels}[{RATE}])) / ({over})"


def some(expression: str) -> str:
    """Those of its series that are not 0, or one that is: a series for each label that never moves hides the others."""
    return f"{expression} > 0 or vector(0)"


def overview() -> Row:
    requests = f"rate(attention_requests_total{{{SCORING}}}[{RATE}])"
    failed = f'rate(attention_requests_total{{{SCORING},status=~"5.."}}[{RATE}])'
    latency = "attention_request_duration_seconds"
    availability = OBJECTIVES[0]
    left = f"1 - {availability.ratio('3d')} / {availability.budget}"
    return Row(
        "Overview",
        (
            stat("Requests", "Requests a second, health checks and scrapes left out.", f"sum({requests})", "reqps"),
            stat(
                "Failed",
                "The part of requests answered with 5xx.",
                f"sum({failed}) / (sum({requests}) > 0) or vector(0)",
                "percentunit",
                decimals=2,
                thresholds=_thresholds((None, "green"), (0.001, "red")),
            ),
            stat("p50", "Half of all answers were handed over sooner.", quantile(0.5, latency, OF), "s"),
            stat("p99", "99 of 100 answers were handed over sooner.", quantile(0.99, latency, OF), "s"),
            stat(
                "Waiting",
                "Jobs that wait for a worker, all instances.",
                "sum(attention_queue_requests)",
                "short",
                thresholds=_thresholds((None, "green"), (64, "orange"), (512, "red")),
            ),
            stat(
                "Budget left",
                f"What is left of the budget of the last three days. {availability.promise}.",
                f"{left} or vector(1)",
                "percentunit",
                max=1,
                thresholds=_thresholds((None, "red"), (0, "orange"), (0.5, "green")),
            ),
        ),
    )


def latency() -> Row:
    metric = "attention_request_duration_seconds"
    return Row(
        "Latency",
        (
            lines(
                "p50, p95, p99",
                "From a request's arrival to the last byte handed over.",
                *((quantile(q, metric, OF), f"p{q * 100:g}") for q in (0.5, 0.95, 0.99)),
                unit="s",
            ),
            lines(
                "p95 by encoding",
                "The slowest encodings need other tables or more operators; see `Where time goes`.",
                (quantile(0.95, metric, OF, "encoding, "), "{{encoding}}"),
                unit="s",
            ),
            lines(
                "p95 by size",
                "s: up to 128 tokens, m: up to 512, l: more. Promised: "
                + ", ".join(f"{one.size} {one.seconds} s" for one in LIMITS)
                + " for 99 %.",
                (quantile(0.95, metric, OF, "size, "), "{{size}}"),
                unit="s",
            ),
            heat(
                "Latency of all requests",
                "How many requests ended in each bucket.",
                f"sum by (le) (increase({metric}_bucket{OF}[{RATE}]))",
                "s",
            ),
            heat(
                "Length of all sequences",
                "Keys of the sequences answered.",
                f"sum by (le) (increase(attention_sequence_length_tokens_bucket{{{ENCODING}}}[{RATE}]))",
                "short",
            ),
        ),
    )


def time() -> Row:
    stage, of = "attention_stage_duration_seconds", f"{{{ENCODING}}}"
    lag = "attention_event_loop_lag_seconds"
    return Row(
        "Where time goes",
        (
            stacked(
                "Mean time by stage",
                "decode: receiving, reading, checking. queue: waiting for the device. batch_assembly: copying into the "
                "batch. compute: in the model, the whole batch's time. postprocess: cutting. serialize: writing.",
                (mean(stage, of, "stage"), "{{stage}}"),
                unit="s",
            ),
            lines("p95 by stage", "As before.", (quantile(0.95, stage, of, "stage, "), "{{stage}}"), unit="s"),
            lines(
                "Event loop",
                "How late the event loop comes to what is due: what holds it holds every connection.",
                (quantile(0.5, lag, "", "instance, "), "p50 {{instance}}"),
                (quantile(0.99, lag, "", "instance, "), "p99 {{instance}}"),
                unit="s",
            ),
        ),
    )


def batching() -> Row:
    jobs, of = "attention_batch_requests", f"{{{ENCODING}}}"
    padding = f'sum(rate(attention_tokens_total{{kind="padding",{ENCODING}}}[{RATE}]))'
    busy = f"sum by (provider) (rate(attention_batch_compute_seconds_total{of}[{RATE}]))"
    return Row(
        "Batching",
        (
            lines(
                "Jobs in a run",
                "Jobs that shared a run of a model.",
                (mean(jobs, of, "encoding"), "mean {{encoding}}"),
                (quantile(0.95, jobs, of), "p95 of all"),
            ),
            lines(
                "Runs by trigger",
                "idle: nothing like it waited; full: the policy's limit; rerun: a member of a batch that failed.",
                (f"sum by (trigger) (rate(attention_batches_total{of}[{RATE}]))", "{{trigger}}"),
                unit="ops",
            ),
            lines(
                "Padding",
                "The part of what is computed that is padding. The CPU pads nothing.",
                (f"{padding} / (sum(rate(attention_tokens_total{of}[{RATE}])) > 0)", "padding"),
                unit="percentunit",
            ),
            lines(
                "Waiting jobs",
                "Jobs that wait for a worker.",
                (some(f"sum by (encoding) (attention_queue_requests{of})"), "{{encoding}}"),
            ),
            lines(
                "Oldest job",
                "How long the oldest job that waits has waited.",
                ("max by (instance) (attention_queue_oldest_seconds)", "{{instance}}"),
                unit="s",
            ),
            lines(
                "Workers busy", "Workers that compute, on average: 1 is one core, or one GPU.", (busy, "{{provider}}")
            ),
        ),
    )


def traffic() -> Row:
    requests = f"attention_requests_total{{{SCORING}}}"
    encodings = f'sum by (encoding) (rate(attention_requests_total{{{ENCODING},encoding!=""}}[{RATE}]))'
    received, sent = "attention_request_bytes_sum", "attention_response_bytes_sum"
    return Row(
        "Traffic",
        (
            lines(
                "Requests by encoding",
                "The reference of each request.",
                (some(encodings), "{{encoding}}"),
                unit="reqps",
            ),
            lines(
                "Requests by status",
                "499: the client left.",
                (some(f"sum by (status) (rate({requests}[{RATE}]))"), "{{status}}"),
                unit="reqps",
            ),
            lines(
                "Turned away",
                "Requests that were refused or failed, by reason.",
                (some(f"sum by (reason) (rate(attention_rejected_total[{RATE}]))"), "{{reason}}"),
                unit="reqps",
            ),
            lines(
                "Bytes in",
                "Bodies of scoring requests, by format.",
                (some(f"sum by (format) (rate({received}[{RATE}]))"), "{{format}}"),
                unit="Bps",
            ),
            lines(
                "Bytes out",
                "Bodies of their answers, by format.",
                (some(f"sum by (format) (rate({sent}[{RATE}]))"), "{{format}}"),
                unit="Bps",
            ),
            lines(
                "Not finite",
                "Answers that hold NaN or infinite numbers.",
                (some(f"sum by (encoding) (rate(attention_nonfinite_outputs_total[{RATE}]))"), "{{encoding}}"),
                unit="reqps",
            ),
        ),
    )


def runtime() -> Row:
    table = {"showHeader": True, "cellHeight": "sm"}
    return Row(
        "Runtime",
        (
            lines(
                "Memory",
                "Resident memory of each process; pages that processes share are counted in each.",
                ("attention_process_resident_bytes", "{{instance}} {{process}}"),
                unit="bytes",
            ),
            lines(
                "CPU",
                "Cores used.",
                (f"rate(process_cpu_seconds_total[{RATE}])", "{{instance}}"),
            ),
            lines(
                "Under way",
                "Requests whose answer has not been handed over, and open files.",
                ("sum by (instance) (attention_inflight_requests)", "requests {{instance}}"),
                ("process_open_fds", "files {{instance}}"),
            ),
            lines(
                "Connections",
                "Open connections of each process.",
                ("attention_connections", "{{instance}} {{process}}"),
            ),
            lines(
                "Processes",
                "Processes of each instance that take work, and that do not.",
                ("attention_processes", "{{instance}} {{state}}"),
            ),
            lines(
                "Garbage",
                "Collections a second, by generation.",
                (f"sum by (generation) (rate(python_gc_collections_total[{RATE}]))", "{{generation}}"),
                unit="ops",
            ),
            lines(
                "GPU memory",
                "In use on the device, by whatever program. Nothing where no GPU computes.",
                (some("attention_gpu_memory_used_bytes"), "{{instance}} GPU {{gpu}}"),
                unit="bytes",
            ),
            lines(
                "GPU load",
                "The part of the time in which the GPU computed anything. Low while jobs wait: copies, or the cores "
                "that feed it, are what is short.",
                (some("attention_gpu_utilization_ratio"), "{{instance}} GPU {{gpu}}"),
                unit="percentunit",
            ),
            Panel(
                "Where it computes",
                "Encodings by provider: a device that some instances lack shows here.",
                [("count by (instance, provider) (attention_session_info)", "")],
                kind="table",
                options=table,
                format="table",
            ),
        ),
    )


def objectives() -> Row:
    def burn(objective: Objective) -> Panel:
        windows = dict.fromkeys(window for one in BURNS for window in (one.short, one.long))
        return lines(
            f"{objective.title}: burn rate",
            f"{objective.promise}. 1 uses the budget of 30 days in 30 days; alerts at "
            + ", ".join(f"{one.factor:g} ({one.long})" for one in BURNS)
            + ".",
            *((f"{objective.ratio(window)} / {objective.budget}", window) for window in windows),
            width=12,
        )

    return Row("Objectives", tuple(map(burn, OBJECTIVES)))


ROWS = (overview, latency, time, batching, traffic, runtime, objectives)


def _thresholds(*steps: tuple[float | None, str]) -> Json:
    return {"mode": "absolute", "steps": [{"value": value, "color": colour} for value, colour in steps]}


def placed(rows: Sequence[Row]) -> Iterator[Json]:
    """From left to right, in lines as high as their highest panel."""
    number, y = 0, 0
    for row in rows:
        number += 1
        grid = {"x": 0, "y": y, "w": WIDTH, "h": 1}
        yield {"id": number, "type": "row", "title": row.title, "collapsed": False, "gridPos": grid, "panels": []}
        y, x, tallest = y + 1, 0, 0
        for panel in row.panels:
            if x + panel.width > WIDTH:
                x, y, tallest = 0, y + tallest, 0
            number += 1
            yield panel.json(number, x, y)
            x, tallest = x + panel.width, max(tallest, panel.height)
        y += tallest


def choice(name: str, label: str, query: str) -> Json:
    """A variable of which several values may be chosen."""
    return {
        "name": name,
        "label": label,
        "type": "query",
        "datasource": SOURCE,
        "query": {"query": query, "refId": name},
        "refresh": 2,
        "sort": 1,
        "multi": True,
        "includeAll": True,
        "allValue": ".*",
        "current": {"text": "All", "value": "$__all"},
    }


def dashboard() -> Json:
    """The whole document."""
    source = {
        "name": "datasource",
        "label": "Source",
        "type": "datasource",
        "query": "prometheus",
        "current": {"text": "Prometheus", "value": "prometheus"},
    }
    restarts = {
        "name": "Restarts",
        "datasource": SOURCE,
        "enable": True,
        "iconColor": "orange",
        "expr": "changes(process_start_time_seconds[1m]) > 0",
        "titleFormat": "a process was started",
    }
    return {
        "uid": "attention",
        "id": None,
        "title": "Attention scoring",
        "tags": ["attention"],
        "timezone": "",
        "schemaVersion": 39,
        "version": 1,
        "editable": False,
        "refresh": "10s",
        "time": {"from": "now-30m", "to": "now"},
        "templating": {
            "list": [
                source,
                choice("encoding", "Encoding", "label_values(attention_requests_total, encoding)"),
                choice("size", "Size", "label_values(attention_request_duration_seconds_count, size)"),
            ]
        },
        "annotations": {"list": [restarts]},
        "panels": list(placed([row() for row in ROWS])),
    }


def text() -> str:
    return json.dumps(dashboard(), indent=2) + "\n"


if __name__ == "__main__":
    OUT.parent.mkdir(exist_ok=True)
    OUT.write_text(text())
