"""What a checkpoint's rotary configuration comes to: frequencies, bands and magnitude, read from exported graphs."""

from __future__ import annotations

import shlex
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any
from urllib.parse import urlencode

import numpy as np
import orjson
from jaxtyping import Float64, Int64

from service.catalogue import Catalogue
from service.encoding import Encoding
from service.engine.job import Tables
from service.parameters import Given, Parameters, ResolvedParameters, Sizes
from service.positions import Positions
from service.rope_config import Remark, RopeConfig, Rotation
from service.tables import Needs, TableCache

MODEL = "identity"
PLAIN = "rope"
DIVIDING = ("rope-llama3", "rope-yarn")
"""Encodings that keep some pairs, divide others by `factor` and blend between."""
LENGTH_DEPENDENT = ("rope-dynamic", "rope-longrope")
SAME = 1e-12


@dataclass(frozen=True, slots=True)
class Pairs:
    """The pairs of a head in order, read from its components."""

    theta: Float64[np.ndarray, " pairs"]
    band: Int64[np.ndarray, " pairs"]

    @classmethod
    def of(cls, tables: Mapping[str, np.ndarray], still: bool) -> Pairs:
        """The pairs that turn, each at the first of its components. With `still`, then the others of the head."""
        theta, partner, band = (tables[f"table.{name}"] for name in ("theta", "partner", "band"))
        components = np.arange(len(theta))
        first = components[components < partner]
        rest = components[components == partner][: len(theta) // 2 - len(first)] if still else components[:0]
        chosen = np.concatenate([first, rest])
        return cls(theta[chosen], band[chosen])


class RopeResolver:
    """Answers what a configuration comes to. Its tables are kept with those of scoring."""

    def __init__(self, catalogue: Catalogue, tables: TableCache) -> None:
        self._catalogue = catalogue
        self._tables = tables
        self._parameters = Parameters()

    async def resolve(
        self, document: Any, address: str, head_dim: int | None = None, length: int | None = None
    ) -> dict[str, Any]:
        """The answer, ready for JSON. `address` is that of `POST /attention`; `length` is that of the request whose
        frequencies are asked for, where they depend on it: the trained length by default.

        Raises InvalidInput, UnknownName.
        """
        config = RopeConfig.read(document, head_dim)
        results = [await self._result(rotation, address, length) for rotation in config.rotations]
        return {
            "model_type": config.model_type,
            "results": results,
            "used": config.used,
            "warnings": [
                {"kind": remark.kind, "key": remark.key, "message": remark.message}
                for remark in sorted((*config.remarks, *_length_remarks(results, length)), key=Remark.rank)
            ],
            "ignored": list(config.ignored),
        }

    async def _result(self, rotation: Rotation, address: str, length: int | None) -> dict[str, Any]:
        encoding = self._encoding(rotation.encoding)
        parameters = self._resolve(encoding, rotation.scalars, rotation.pointers, rotation.head_dim)
        at = 1
        if encoding.id in LENGTH_DEPENDENT:
            at = length or int(parameters.report["original_length"])
        tables = (await self._run(encoding, parameters, rotation.head_dim, at)).arrays
        pairs = Pairs.of(tables, still=encoding.id == "rope-proportional")
        query = urlencode(
            {"encoding": encoding.id, **{f"{encoding.id}.{name}": value for name, value in rotation.scalars.items()}},
            safe=",",
        )
        result = {
            "layer_type": rotation.layer_type,
            "encoding": encoding.id,
            "parameters": parameters.report,
            "head_dim": rotation.head_dim,
            "length": at if encoding.id in LENGTH_DEPENDENT else None,
            "attention_factor": float(tables["table.attention_factor"]),
            "inverse_frequencies": pairs.theta.tolist(),
            "wavelengths": [2 * np.pi / theta if theta else None for theta in pairs.theta.tolist()],
            "bands": [encoding.terms[band].name for band in pairs.band],
        }
        if encoding.id in DIVIDING:
            result["pairs"] = await self._treatment(rotation, parameters, pairs)
        return {**result, "query": query, "curl": _curl(address, query, rotation.head_dim, result["length"])}

    def _encoding(self, name: str) -> Encoding:
        return self._catalogue.model(MODEL, pointer=None).encoding(name, pointer=None)

    def _resolve(
        self, encoding: Encoding, scalars: Mapping[str, str], pointers: Mapping[str, str], head_dim: int
    ) -> ResolvedParameters:
        given = Given(dict(scalars), {}, {name: pointers.get(name, "") for name in scalars})
        return self._parameters.resolve(encoding, given, Sizes(heads=1, head_dim=head_dim, positions=1))

    async def _run(self, encoding: Encoding, parameters: ResolvedParameters, head_dim: int, length: int) -> Tables:
        last = Positions.of(np.array([length - 1.0]))
        return await self._tables.tables(Needs(encoding, parameters, last, last, False, 1, head_dim))

    async def _treatment(
        self, rotation: Rotation, parameters: ResolvedParameters, pairs: Pairs
    ) -> dict[str, list[int]]:
        """Which pairs are as in plain RoPE, which are divided by the factor, and which lie between."""
        plain = self._encoding(PLAIN)
        shared = {name: value for name, value in rotation.scalars.items() if plain.parameter(name) is not None}
        resolved = self._resolve(plain, shared, rotation.pointers, rotation.head_dim)
        theta = Pairs.of((await self._run(plain, resolved, rotation.head_dim, 1)).arrays, still=False).theta
        kept = np.isclose(pairs.theta, theta, rtol=SAME, atol=0)
        divided = np.isclose(pairs.theta, theta / parameters.report["factor"], rtol=SAME, atol=0) & ~kept
        return {
            name: np.flatnonzero(which).tolist()
            for name, which in (("kept", kept), ("blended", ~kept & ~divided), ("divided", divided))
        }


def _length_remarks(results: list[dict[str, Any]], length: int | None) -> list[Remark]:
    depending = [result for result in results if result["length"] is not None]
    if depending and length is None:
        names = " and ".join(dict.fromkeys(result["encoding"] for result in depending))
        at = " and ".join(dict.fromkeys(str(result["length"]) for result in depending))
        message = f"frequencies of {names} depend on the request's length; these are for {at}; ask for another"
        return [Remark("default", "query:length", message)]
    if length is not None and not depending:
        message = "frequencies do not depend on the request's length under these encodings"
        return [Remark("unused", "query:length", message)]
    return []


def _curl(address: str, query: str, head_dim: int, length: int | None) -> str:
    """Two vectors of ones, one head: their score is the sum of the pairs' cosines."""
    body: dict[str, Any] = {"embeddings": [[1] * head_dim] * 2}
    if length is not None:
        body["positions"] = [0, length - 1]
    parts = [
        "curl",
        "-s",
        f"{address}?{query}",
        "-H",
        "Content-Type: application/json",
        "-d",
        orjson.dumps(body).decode(),
    ]
    return shlex.join(parts)
