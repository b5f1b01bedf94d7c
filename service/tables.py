"""Position tables: positions graphs run once, their results kept."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Protocol

import numpy as np

from service.cache import Cache
from service.encoding import Encoding
from service.engine.job import Tables
from service.parameters import ResolvedParameters
from service.positions import Positions


class PositionsSession(Protocol):
    """An onnxruntime session, as far as it is used here."""

    def run(self, output_names: Sequence[str], feeds: Mapping[str, np.ndarray]) -> list[np.ndarray]: ...


class PositionsSessions(Protocol):
    """Opens positions graphs on the CPU."""

    def positions(self, path: Path) -> PositionsSession: ...


class TableCache:
    def __init__(self, sessions: PositionsSessions, capacity: int = 64 << 20) -> None:
        self.sessions = sessions
        self.cache: Cache[str, Tables] = Cache(capacity)

    async def tables(
        self,
        encoding: Encoding,
        parameters: ResolvedParameters,
        queries: Positions,
        keys: Positions,
        causal: bool,
        heads: int,
        head_dim: int,
    ) -> Tables:
        raise NotImplementedError
