"""The conventions of an answer: an encoding's own, and what the request changed of them."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any

SINKS = (
    "each head's sink takes part in the softmax without being a key, so rows sum to less than 1: the rest is the sink's"
)


def conventions(own: Mapping[str, str], report: Mapping[str, Any], given: Collection[str]) -> Mapping[str, str]:
    """`own`, with lines on the modifiers that every encoding takes where the report of parameters has them.

    The report leaves out those that have no value; `given` are the parameters that the request named, the others have
    the model's own values.
    """
    changed: dict[str, str] = {}
    if "scale" in report and "scale" in given:
        card = f" ({own['scale']})" if "scale" in own else ""
        changed["scale"] = f"{report['scale']:.15g}, which the request gave in place of the encoding's own{card}"
    if "softcap" in report:
        cap = f"{report['softcap']:.15g}"
        changed["softcap"] = (
            f"scores are {cap} tanh(s / {cap}), before the mask; terms sum to s, the score before the cap"
        )
    if "sinks" in report:
        changed["sinks"] = SINKS
    return {**own, **changed} if changed else own
