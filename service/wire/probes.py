"""What probes find, as JSON."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import orjson

from service.probes.records import EncodingProbes, ProbesResult
from service.wire import answer


def encode(result: ProbesResult) -> Iterator[bytes]:
    """In pieces, one for each encoding; what is not finite becomes null."""
    sizes = {
        "batch": result.batch,
        "heads": result.heads,
        "queries": result.queries,
        "keys": result.keys,
        "head_dim": result.head_dim,
    }
    head: dict[str, Any] = {
        "model": result.model,
        "shape": {name: size for name, size in sizes.items() if size is not None},
        "causal": result.causal,
    }
    if result.tokens is not None:
        head["tokens"] = list(result.tokens)
    if result.skipped:
        head["skipped"] = dict(result.skipped)
    yield _dumps({**head, "probes": result.about})[:-1] + b',"results":['
    for i, one in enumerate(result.results):
        yield (b"," if i else b"") + _dumps(_one(one))
    yield b'],"timings":' + orjson.dumps(answer.timings(result.timings)) + b"}"


def _one(one: EncodingProbes) -> dict[str, Any]:
    return {
        "encoding": one.encoding,
        "label": one.label,
        "name": one.name,
        "parameters": dict(one.parameters),
        "conventions": dict(one.conventions),
        "probes": one.probes,
    }


def _dumps(document: Any) -> bytes:
    return orjson.dumps(document, option=orjson.OPT_SERIALIZE_NUMPY)
