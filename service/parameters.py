"""A request's parameters: checked, completed with defaults, ready for a positions graph."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np


@dataclass(frozen=True, slots=True, eq=False)
class ResolvedParameters:
    """`feeds` by input name (`parameter.theta`), read-only. Equal `digest` means equal values. `report` is JSON-able."""

    feeds: Mapping[str, np.ndarray]
    digest: str
    report: Mapping[str, Any]
