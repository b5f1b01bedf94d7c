"""What is promised, as expressions over the metrics. Ratios are of bad requests to all, over a window.

The scheme of several windows and burn rates is that of the SRE Workbook, chapter 5: a fast burn shows in an hour and
in the five minutes before, so that the alert comes soon and goes soon.
"""

from __future__ import annotations

from dataclasses import dataclass

SCORING = 'endpoint!~"/health/.*|/v2/health/.*|/metrics|other"'
"""Health checks, scrapes and what was no request say nothing of the service that users get."""
WINDOWS = ("5m", "30m", "1h", "2h", "6h", "1d", "3d")
TRAFFIC = 0.2
"""Requests a second below which a ratio is chance."""


@dataclass(frozen=True)
class Limit:
    """The latency promised to requests of one size: `seconds` is the edge of a bucket."""

    size: str
    tokens: str
    seconds: str


LIMITS = (
    Limit("s", "up to 128 tokens", "0.1"),
    Limit("m", "up to 512 tokens", "0.25"),
    Limit("l", "more than 512 tokens", "1.0"),
)


@dataclass(frozen=True)
class Objective:
    """`budget` is the part of all requests that may be bad."""

    name: str
    title: str
    budget: float
    promise: str

    def ratio(self, window: str) -> str:
        """The recorded series of the bad part of all requests."""
        return f"attention:{self.name}_bad:ratio_rate{window}"

    def bad(self, window: str) -> str:
        """What is recorded under that name."""
        if self.name == "availability":
            requests = f"sum(rate(attention_requests_total{{{SCORING}}}[{window}]))"
            failed = f'sum(rate(attention_requests_total{{{SCORING},status=~"5.."}}[{window}]))'
            return f"{failed} / ({requests} > 0)"
        metric = "attention_request_duration_seconds"
        quick = " + ".join(
            f'sum(rate({metric}_bucket{{size="{one.size}",le="{one.seconds}"}}[{window}]))' for one in LIMITS
        )
        every = f'sum(rate({metric}_count{{size=~"s|m|l"}}[{window}]))'
        return f"1 - ({quick}) / ({every} > 0)"


OBJECTIVES = (
    Objective("availability", "Availability", 0.001, "99.9 % of requests are not answered with 5xx"),
    Objective(
        "latency",
        "Latency",
        0.01,
        "99 % of requests take at most "
        + ", ".join(f"{float(one.seconds) * 1e3:g} ms ({one.tokens})" for one in LIMITS),
    ),
)


@dataclass(frozen=True)
class Burn:
    """Bad requests at `factor` times the rate that the budget of 30 days allows, over both windows."""

    name: str
    factor: float
    long: str
    short: str
    severity: str
    budget: str


BURNS = (
    Burn("FastBurn", 14.4, "1h", "5m", "page", "2 % of a month's budget in one hour"),
    Burn("MediumBurn", 6, "6h", "30m", "page", "5 % of a month's budget in six hours"),
    Burn("SlowBurn", 3, "1d", "2h", "ticket", "10 % of a month's budget in a day"),
    Burn("Drift", 1, "3d", "6h", "ticket", "10 % of a month's budget in three days"),
)
