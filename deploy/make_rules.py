"""Writes deploy/prometheus/rules/attention.yml: `python -m deploy.make_rules`."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import yaml

from deploy.slo import BURNS, OBJECTIVES, SCORING, TRAFFIC, WINDOWS, Burn, Objective

OUT = Path(__file__).with_name("prometheus") / "rules" / "attention.yml"
RUNBOOK = "docs/operating.md#"
HEAD = "# Written by `make deploy` from deploy/slo.py and deploy/make_rules.py.\n"

Rule = dict[str, Any]


def alert(
    name: str, expression: str, severity: str, summary: str, description: str, lasting: str | None = None
) -> Rule:
    """`lasting`: how long it must be so."""
    rule: Rule = {"alert": name, "expr": expression}
    if lasting is not None:
        rule["for"] = lasting
    annotations = {"summary": summary, "description": description, "runbook": RUNBOOK + name.lower()}
    return {**rule, "labels": {"severity": severity}, "annotations": annotations}


def burning(objective: Objective, burn: Burn) -> Rule:
    limit = f"{burn.factor * objective.budget:.4g}"
    expression = (
        f"{objective.ratio(burn.long)} > {limit} and {objective.ratio(burn.short)} > {limit} "
        f"and attention:requests:rate5m > {TRAFFIC}"
    )
    return alert(
        f"Attention{objective.title}{burn.name}",
        expression,
        burn.severity,
        f"{objective.title}: bad requests at {burn.factor:g} times the rate that the budget allows",
        f"{objective.promise}. Over the last {burn.long} {{{{ $value | humanizePercentage }}}} were bad, which uses "
        f"{burn.budget}.",
    )


CAUSES = (
    alert(
        "AttentionDown",
        'up{job="attention"} == 0',
        "page",
        "{{ $labels.instance }} does not answer Prometheus",
        "Its metrics cannot be read for a minute: it has ended, hangs, or cannot be reached.",
        "1m",
    ),
    alert(
        "AttentionAbsent",
        "absent(attention_ready)",
        "page",
        "No instance of the service is known",
        "Prometheus finds nothing to scrape, or what it scrapes is another thing.",
        "2m",
    ),
    alert(
        "AttentionNotReady",
        "attention_ready == 0",
        "page",
        "{{ $labels.instance }} takes no work",
        "/health/ready answers 503 and says why: no models, a device that fails, a start that does not end.",
        "2m",
    ),
    alert(
        "AttentionProcessMissing",
        'attention_processes{state="not_ready"} > 0',
        "ticket",
        "{{ $value }} processes of {{ $labels.instance }} take no work",
        "The others carry their load. A process that dies again and again says why in the log.",
        "5m",
    ),
    alert(
        "AttentionProvidersDiffer",
        "count(count by (provider) (attention_session_info)) > 1",
        "ticket",
        "Some instances compute on another device than others",
        "One of them has fallen back to the CPU, or has a GPU that the others lack; attention_session_info says which.",
        "5m",
    ),
    alert(
        "AttentionNonfinite",
        "sum by (encoding) (increase(attention_nonfinite_outputs_total[10m])) > 0",
        "ticket",
        "Answers under {{ $labels.encoding }} hold NaN or infinite numbers",
        "The input was finite, so scores overflow float32: embeddings are very large, or weights are damaged.",
    ),
    alert(
        "AttentionQueueOld",
        "max by (instance, encoding) (attention_queue_oldest_seconds) > 1",
        "ticket",
        "A job for {{ $labels.encoding }} has waited for {{ $value | humanizeDuration }}",
        "More work comes than is done. Rejections follow once the queue is full.",
        "2m",
    ),
    alert(
        "AttentionNotBatching",
        "histogram_quantile(0.5, sum by (instance, le) (rate(attention_batch_requests_bucket[5m]))) <= 1 "
        "and on (instance) sum by (instance) (attention_queue_requests) > 8",
        "ticket",
        "Jobs wait on {{ $labels.instance }}, yet runs hold one each",
        "What waits cannot share runs: every job is of another shape, encoding or set of outputs, or is large.",
        "10m",
    ),
    alert(
        "AttentionPadding",
        'sum(rate(attention_tokens_total{kind="padding"}[10m])) / (sum(rate(attention_tokens_total[10m])) > 0) > 0.6',
        "ticket",
        "{{ $value | humanizePercentage }} of what is computed is padding",
        "Lengths on a GPU are far from the buckets' ends.",
        "10m",
    ),
    alert(
        "AttentionRejecting",
        'sum(rate(attention_rejected_total{reason=~"queue_full|deadline"}[10m])) / '
        "(sum(rate(attention_requests_total[10m])) > 0) > 0.01",
        "ticket",
        "{{ $value | humanizePercentage }} of requests are turned away or too late",
        "The queue is full (429) or deadlines pass (504): more instances, or fewer requests.",
        "10m",
    ),
    alert(
        "AttentionLoopLag",
        "histogram_quantile(0.99, sum by (instance, le) (rate(attention_event_loop_lag_seconds_bucket[5m]))) > 0.1",
        "ticket",
        "The event loop of {{ $labels.instance }} comes late",
        "Something holds it: very large JSON, or the cores are another's.",
        "10m",
    ),
)


def rules() -> dict[str, Any]:
    recorded: list[Rule] = [
        {
            "record": "attention:requests:rate5m",
            "expr": f"sum(rate(attention_requests_total{{{SCORING}}}[5m]))",
        },
        *(
            {"record": objective.ratio(window), "expr": objective.bad(window)}
            for objective in OBJECTIVES
            for window in WINDOWS
        ),
    ]
    burns = [burning(objective, burn) for objective in OBJECTIVES for burn in BURNS]
    return {
        "groups": [
            {"name": "attention-objectives", "rules": recorded},
            {"name": "attention-burn", "rules": burns},
            {"name": "attention-causes", "rules": list(CAUSES)},
        ]
    }


def text() -> str:
    return HEAD + str(yaml.safe_dump(rules(), sort_keys=False, width=120, allow_unicode=True))


if __name__ == "__main__":
    OUT.parent.mkdir(exist_ok=True)
    OUT.write_text(text())
