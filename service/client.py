"""A Python client of the attention scoring service. This file is all there is to it: copied elsewhere, it needs httpx
and NumPy, and only `to_xarray` and `to_frame` need xarray and pandas.

    from service.client import Client

    with Client("http://127.0.0.1:8000") as client:
        answer = client.attention(x, "rope", compare=["alibi", "t5"], heads=4)
    answer["alibi"].weights     # [heads, queries, keys]
    answer.to_frame()           # every metric of every head

`AsyncClient` has the same methods, to be awaited. In a notebook an answer shows itself as pictures.
"""

from __future__ import annotations

import asyncio
import base64
import email.utils
import functools
import html
import io
import itertools
import json
import math
import os
import random
import struct
import time
import urllib.parse
import zlib
from collections.abc import Awaitable, Callable, Coroutine, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from difflib import get_close_matches
from typing import TYPE_CHECKING, Any, Concatenate, Generic, ParamSpec, TypeVar

import httpx
import numpy as np

if TYPE_CHECKING:
    import pandas
    import xarray


__all__ = [
    "AsyncClient",
    "Attention",
    "AttentionError",
    "Busy",
    "Client",
    "Failed",
    "Matrices",
    "Preset",
    "Refused",
    "Result",
    "Unreachable",
    "Views",
]

URL = "http://127.0.0.1:8000"
JSON = "application/json"
NPZ = "application/x-npz"
SAFETENSORS = "application/vnd.safetensors"
PNG = "image/png"

Array = np.ndarray[Any, np.dtype[Any]]
P = ParamSpec("P")
T = TypeVar("T")
S = TypeVar("S")


# ---------------------------------------------------------------------------------------------------------- failures


class AttentionError(Exception):
    """What went wrong between here and an answer."""


class Unreachable(AttentionError):
    """Nothing was answered: no connection, or none that lasted. `sent` says whether the request may have arrived."""

    def __init__(self, message: str, *, sent: bool) -> None:
        super().__init__(message)
        self.sent = sent


class _Problem(AttentionError):
    """An answer that is a problem document (RFC 9457); `problem` is the whole of it.

    `pointer` is a JSON pointer into the body, or `query:<name>`, `header:<name>`. `retry_after` is in seconds.
    """

    def __init__(self, status: int, problem: Mapping[str, Any], retry_after: float | None = None) -> None:
        self.status = status
        self.problem = problem
        self.retry_after = retry_after
        self.title: str = problem.get("title", "")
        self.detail: str = problem.get("detail", "")
        self.pointer: str | None = problem.get("pointer")
        self.request_id: str | None = problem.get("request_id")
        where = [f"at {self.pointer}"] if self.pointer else []
        which = [f"request {self.request_id}"] if self.request_id else []
        context = f" ({', '.join(where + which)})" if where or which else ""
        super().__init__(f"{status} {self.title}: {self.detail}{context}")


class Refused(_Problem):
    """The request is at fault: 4xx."""

    @property
    def nearest(self) -> Sequence[str]:
        """Of an unknown name: those that it may be meant for."""
        return tuple(self.problem.get("nearest", ()))


class Busy(_Problem):
    """The service takes no work now (429, 503), and went on doing so for as long as it was tried."""


class Failed(_Problem):
    """The service is at fault, or did not manage in time: 5xx."""


# ----------------------------------------------------------------------------------------------------------- answers


@dataclass(frozen=True, slots=True, eq=False)
class TopK:
    """The k keys of each row that weigh most, in order, each array [*batch, heads, queries, k]. Where a row sees fewer,
    the index is -1 and the numbers are 0.
    """

    indices: Array
    weights: Array
    scores: Array | None = None
    terms: Mapping[str, Array] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class Result:
    """One encoding's part of an answer. What was not asked for is None. Arrays are views of what was received, and so
    cannot be written to; there is a batch axis where the request had one (`axes`).

    - `weights` (the softmax), `scores` (before mask and softmax), each of `terms` (which sum to the scores):
      [*batch, heads, queries, keys]
    - `output` [*batch, queries, heads, head_dim]
    - `summary`: metrics by name as the service gives them, each with its `mean` [*batch, heads] as a list; arrays in
      `distance_profile`
    """

    name: str
    """`alibi`, or `alibi@label`."""
    encoding: str
    label: str | None
    parameters: Mapping[str, Any]
    conventions: Mapping[str, str]
    nonfinite_cells: int
    axes: tuple[str, ...]
    weights: Array | None = None
    scores: Array | None = None
    terms: Mapping[str, Array] = field(default_factory=dict)
    output: Array | None = None
    top_k: TopK | None = None
    summary: Mapping[str, Any] | None = None

    @property
    def matrices(self) -> Array | None:
        """What a picture shows: the weights, or else the scores."""
        return self.weights if self.weights is not None else self.scores

    def __repr__(self) -> str:
        return f"<Result {self.name}: {_contents(self)}>"


class Attention(Mapping[str, Result]):
    """An answer: the results by the names of their encodings, the reference of the comparison first.

    Of an answer under one encoding `weights`, `scores`, `terms`, `output`, `top_k`, `summary`, `parameters`,
    `conventions` and `axes` are that one's.
    """

    def __init__(self, document: Mapping[str, Any], arrays: Mapping[str, Array], request_id: str | None = None) -> None:
        """`document` is the answer's metadata, `arrays` are named as in the service's binary answers:
        `rope/weights`, ...; beside them may be `query_positions` and `key_positions`.
        """
        self.document = document
        self.arrays = arrays
        self.request_id = request_id
        self._results = {one["name"]: _result(one, document, arrays) for one in document["results"]}

    @property
    def model(self) -> str:
        return str(self.document["model"])

    @property
    def shape(self) -> Mapping[str, Any]:
        """Sizes by name; `rows` and `head` list what was returned where that is not all."""
        shape: Mapping[str, Any] = self.document["shape"]
        return shape

    @property
    def causal(self) -> bool:
        return bool(self.document["causal"])

    @property
    def tokens(self) -> Sequence[str] | None:
        """A name for each key."""
        tokens: Sequence[str] | None = self.document.get("tokens")
        return tokens

    @property
    def comparison(self) -> Mapping[str, Any] | None:
        """`reference`, and `against` with the metrics of each other encoding; None where it was not asked for."""
        comparison: Mapping[str, Any] | None = self.document.get("comparison")
        return comparison

    @property
    def skipped(self) -> Mapping[str, str]:
        """Encodings that `compare="all"` left out, and why."""
        skipped: Mapping[str, str] = self.document.get("skipped", {})
        return skipped

    @property
    def timings(self) -> Mapping[str, float]:
        """Milliseconds of each stage inside the service."""
        timings: Mapping[str, float] = self.document.get("timings", {})
        return timings

    def __getitem__(self, name: str) -> Result:
        try:
            return self._results[name]
        except KeyError:
            nearest = get_close_matches(str(name), self._results, n=1, cutoff=0.5)
            hint = f"did you mean {nearest[0]!r}? There are" if nearest else "there are"
            raise KeyError(f"no result named {name!r}; {hint} {', '.join(self._results)}") from None

    def __iter__(self) -> Iterator[str]:
        return iter(self._results)

    def __len__(self) -> int:
        return len(self._results)

    @property
    def weights(self) -> Array | None:
        """[*batch, heads, queries, keys]"""
        return self._only("weights").weights

    @property
    def scores(self) -> Array | None:
        """[*batch, heads, queries, keys]"""
        return self._only("scores").scores

    @property
    def terms(self) -> Mapping[str, Array]:
        """Each [*batch, heads, queries, keys]"""
        return self._only("terms").terms

    @property
    def output(self) -> Array | None:
        """[*batch, queries, heads, head_dim]"""
        return self._only("output").output

    @property
    def top_k(self) -> TopK | None:
        return self._only("top_k").top_k

    @property
    def summary(self) -> Mapping[str, Any] | None:
        return self._only("summary").summary

    @property
    def parameters(self) -> Mapping[str, Any]:
        return self._only("parameters").parameters

    @property
    def conventions(self) -> Mapping[str, str]:
        return self._only("conventions").conventions

    @property
    def axes(self) -> tuple[str, ...]:
        """Of weights, scores and terms."""
        return next(iter(self.values())).axes

    def _only(self, what: str) -> Result:
        if len(self) > 1:
            names = ", ".join(f"answer[{name!r}].{what}" for name in self)
            raise AttributeError(f"there are {len(self)} encodings in this answer; say which: {names}")
        return next(iter(self.values()))

    def records(self) -> list[dict[str, Any]]:
        """Every metric of every head, a row for each: those of an encoding (`reference` None), and those between an
        encoding and the reference. `value` is None where it is undefined, and `reason` says why. Percentiles are over
        the `rows_counted` queries that the value is the mean of; `uniform` is that of attention to every visible key
        alike. `batch` is None where the request had no batch.
        """
        summaries = {name: one.summary for name, one in self.items() if one.summary is not None}
        return _all_records(self.shape, summaries, self.comparison)

    def to_frame(self) -> pandas.DataFrame:
        """`records` as a pandas DataFrame."""
        return _frame(self.records())

    def to_xarray(self) -> xarray.Dataset:
        """All arrays under their names, with the axes encoding, batch, head, query, key (`terms` has the axis term
        besides, NaN where an encoding has no such term; `output` has encoding, batch, query, head, component).

        Coordinates of query and key, which count from 0, are positions (`query_position`, `key_position`) and tokens
        (`query_token`, `key_token`). Several encodings are copied into one array.
        """
        return _dataset(self)

    def save(self, path: str | os.PathLike[str]) -> None:
        """Writes an npz that `load`, and `numpy.load`, read."""
        document = json.dumps({**self.document, "request_id": self.request_id}).encode()
        with open(path, "wb") as file:  # given a path, NumPy would add .npz to it
            np.savez(file, metadata=np.frombuffer(document, np.uint8), **self.arrays)  # type: ignore[arg-type]

    @classmethod
    def load(cls, path: str | os.PathLike[str]) -> Attention:
        """What `save` wrote, or a file with the service's own npz answer."""
        with np.load(path, allow_pickle=False) as archive:
            arrays = {name: archive[name] for name in archive.files}
        document = json.loads(arrays.pop("metadata").tobytes())
        return cls(document, arrays, document.pop("request_id", None))

    def __repr__(self) -> str:
        return f"<Attention {', '.join(self)}: {_contents(next(iter(self.values())))}{_headline(self)}>"

    def _repr_html_(self) -> str:
        """For notebooks: no script, nothing to load, under 300 KB however large the matrices are."""
        return _page(self)


class Matrices:
    """What was found of matrices that came by name: `summaries` by theirs, and the `comparison` of the others with the
    first.
    """

    def __init__(self, document: Mapping[str, Any]) -> None:
        self.document = document
        self.summaries: Mapping[str, Mapping[str, Any]] = {one["name"]: one["summary"] for one in document["results"]}
        self.comparison: Mapping[str, Any] | None = document.get("comparison")

    @property
    def shape(self) -> Mapping[str, Any]:
        shape: Mapping[str, Any] = self.document["shape"]
        return shape

    def records(self) -> list[dict[str, Any]]:
        """As those of `Attention`, the names of matrices under `encoding`."""
        return _all_records(self.shape, self.summaries, self.comparison)

    def to_frame(self) -> pandas.DataFrame:
        """`records` as a pandas DataFrame."""
        return _frame(self.records())

    def __repr__(self) -> str:
        sizes = ", ".join(f"{name} {size}" for name, size in self.shape.items())
        return f"<Matrices {', '.join(self.summaries)}: {sizes}>"


class Views(Mapping[str, Array]):
    """What position alone contributes: arrays by name, `bias`, `similarity`, `tables/theta`, ... `document` is what the
    service says beside them.
    """

    def __init__(self, document: Mapping[str, Any], arrays: Mapping[str, Array]) -> None:
        self.document = document
        self.arrays = arrays

    def __getitem__(self, name: str) -> Array:
        return self.arrays[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self.arrays)

    def __len__(self) -> int:
        return len(self.arrays)

    def axes(self, name: str) -> tuple[str, ...]:
        return tuple(self.document["arrays"][name]["axes"])

    def describe(self, name: str) -> str:
        return str(self.document["arrays"][name]["description"])

    def __repr__(self) -> str:
        arrays = ", ".join(f"{name} {list(array.shape)}" for name, array in self.items())
        return f"<Views of {self.document['encoding']}: {arrays}>"


RECORD = (
    "encoding",
    "reference",
    "batch",
    "head",
    "metric",
    "value",
    "p10",
    "p50",
    "p90",
    "uniform",
    "rows_counted",
    "reason",
)
"""The columns of `Attention.records`."""


def _result(one: Mapping[str, Any], document: Mapping[str, Any], arrays: Mapping[str, Array]) -> Result:
    name = one["name"]
    own = {key.removeprefix(f"{name}/"): array for key, array in arrays.items() if key.startswith(f"{name}/")}
    summary = one.get("summary")
    profile = _below(own, "summary/distance_profile/")
    if summary is not None and profile:
        summary = {**summary, "distance_profile": profile}
    top_k = None
    if "top_k/indices" in own:
        top_k = TopK(own["top_k/indices"], own["top_k/weights"], own.get("top_k/scores"), _below(own, "top_k/terms/"))
    return Result(
        name=name,
        encoding=one["encoding"],
        label=one["label"],
        parameters=one["parameters"],
        conventions=one["conventions"],
        nonfinite_cells=one["nonfinite_cells"],
        axes=(*(("batch",) if "batch" in document["shape"] else ()), "head", "query", "key"),
        weights=own.get("weights"),
        scores=own.get("scores"),
        terms=_below(own, "terms/"),
        output=own.get("output"),
        top_k=top_k,
        summary=summary,
    )


def _below(arrays: Mapping[str, Array], prefix: str) -> Mapping[str, Array]:
    return {name.removeprefix(prefix): array for name, array in arrays.items() if name.startswith(prefix)}


def _all_records(
    shape: Mapping[str, Any], summaries: Mapping[str, Mapping[str, Any]], comparison: Mapping[str, Any] | None
) -> list[dict[str, Any]]:
    heads = shape.get("head") or list(range(shape["heads"]))
    batched = "batch" in shape
    rows: list[dict[str, Any]] = []
    for name, summary in summaries.items():
        rows += _records(summary, heads, batched, encoding=name, reference=None)
    if comparison:
        for name, metrics in comparison["against"].items():
            rows += _records(metrics, heads, batched, encoding=name, reference=comparison["reference"])
    return rows


def _frame(records: Sequence[Mapping[str, Any]]) -> pandas.DataFrame:
    frame: pandas.DataFrame = _optional("pandas").DataFrame.from_records(records, columns=RECORD)
    return frame


def _records(
    metrics: Mapping[str, Any], heads: Sequence[int], batched: bool, **about: str | None
) -> Iterator[dict[str, Any]]:
    reasons = metrics.get("reasons", {})
    for name, metric in metrics.items():
        if name.startswith("rows_") or name in ("distance_profile", "floor", "reasons"):
            continue
        if isinstance(metric, Mapping):
            columns = {column: metric.get(column) for column in ("mean", "p10", "p50", "p90", "uniform")}
            counted, reason = metric["rows"], metric.get("reason")
        else:
            columns, counted, reason = {"mean": metric}, metrics["rows_counted"], reasons.get(name)
        tables = {column: _by_batch(values) for column, values in columns.items() if values is not None}
        rows = _by_batch(counted)
        for b, values in enumerate(tables.pop("mean")):
            for h, value in enumerate(values):
                others = {column: table[b][h] for column, table in tables.items()}
                yield {
                    **dict.fromkeys(RECORD),
                    **about,
                    "batch": b if batched else None,
                    "head": heads[h],
                    "metric": name,
                    "value": None if value is None else float(value),
                    **others,
                    "rows_counted": rows[b][h],
                    "reason": reason if value is None else None,
                }


def _by_batch(values: Sequence[Any]) -> Sequence[Sequence[Any]]:
    """[batch][heads], also of [heads]."""
    return values if values and isinstance(values[0], Sequence) else [values]


def _optional(name: str) -> Any:
    try:
        return __import__(name)
    except ImportError:
        raise ImportError(f"this needs {name}, which is not installed: pip install {name}") from None


def _dataset(answer: Attention) -> xarray.Dataset:
    shape, results = answer.shape, list(answer.values())
    batched = "batch" in shape
    matrix = ("encoding", "batch", "head", "query", "key")

    def stacked(arrays: Sequence[Array]) -> Array:
        """With the axes encoding and batch, whether or not there were several."""
        full = [array if batched else array[None] for array in arrays]
        return full[0][None] if len(full) == 1 else np.stack(full)

    variables: dict[str, tuple[tuple[str, ...], Array]] = {}
    for name in ("weights", "scores"):
        arrays = [array for result in results if (array := getattr(result, name)) is not None]
        if arrays:
            variables[name] = (matrix, stacked(arrays))
    terms = list(dict.fromkeys(term for result in results for term in result.terms))
    if terms:
        missing = np.full_like(next(iter(results[0].terms.values())), np.nan)
        each = [stacked([result.terms.get(term, missing) for term in terms]) for result in results]
        variables["terms"] = (("encoding", "term", *matrix[1:]), each[0][None] if len(each) == 1 else np.stack(each))
    outputs = [result.output for result in results if result.output is not None]
    if outputs:
        variables["output"] = (("encoding", "batch", "query", "head", "component"), stacked(outputs))
    tops = [result.top_k for result in results if result.top_k is not None]
    for name in ("indices", "weights", "scores") if tops else ():
        arrays = [array for top in tops if (array := getattr(top, name)) is not None]
        if arrays:
            variables[f"top_{name}"] = ((*matrix[:-1], "rank"), stacked(arrays))

    rows = np.array(shape.get("rows") or range(shape["queries"]))
    keys = np.arange(shape["keys"])
    coordinates: dict[str, Any] = {
        "encoding": [result.name for result in results],
        "batch": np.arange(shape.get("batch", 1)),
        "head": np.array(shape.get("head") or range(shape["heads"])),
        "query": rows,
        "key": keys,
        **({"term": terms} if terms else {}),
    }
    for axis, at in (("query", rows), ("key", keys)):
        positions = answer.arrays.get(f"{axis}_positions")
        coordinates[f"{axis}_position"] = (axis, at.astype(np.float64) if positions is None else positions[at])
    if answer.tokens is not None:
        tokens = np.array(answer.tokens)
        coordinates["key_token"] = ("key", tokens)
        if not answer.document.get("cross"):
            coordinates["query_token"] = ("query", tokens[rows])
    used = {axis for axes, _ in variables.values() for axis in axes}
    kept = {
        name: value
        for name, value in coordinates.items()
        if (value[0] if isinstance(value, tuple) else name) in used | {"encoding"}
    }
    dataset: xarray.Dataset = _optional("xarray").Dataset(variables, kept, _attributes(answer))
    return dataset


def _attributes(answer: Attention) -> dict[str, Any]:
    """What a netCDF file can hold as well: numbers and text."""
    attributes: dict[str, Any] = {
        "model": answer.model,
        "causal": int(answer.causal),
        "request_id": answer.request_id or "",
        "parameters": json.dumps({name: result.parameters for name, result in answer.items()}),
        "conventions": json.dumps({name: result.conventions for name, result in answer.items()}),
    }
    if answer.comparison:
        attributes["comparison"] = json.dumps(answer.comparison)
    return attributes


# ---------------------------------------------------------------------------------------------------------- pictures

SIDE = 256
SIDES = (SIDE, 192, 128, 96)
"""Pixels at most along a map's side, where there is room for so many."""
PICTURE_BYTES = 135_000
"""Of all maps together before compression and base64, which makes 4 of 3: what keeps a page under 300 KB."""
MOST_MAPS = 48
VIRIDIS = bytes.fromhex(
    "440154 471164 482071 472e7c 443b84 3f4889 39558c 34618d 2f6c8e 2a768e 26818e 228b8d "
    "1f958b 1fa088 24aa83 2fb47c 40bd72 56c667 70cf57 8bd646 a8db34 c5e021 e2e418 fde725"
)
"""The map of van der Walt and Smith (CC0) at even distances."""
SHADES = 254
NAN_COLOUR = (230, 0, 230)
"""What is no number has the entry after the shades."""


def pool(matrix: Array, rows: int, columns: int) -> Array:
    """[..., queries, keys] at most so large, each cell the largest of those that it stands for: a single cell that
    stands out is still seen. NaN where any of them is.
    """
    for axis, most in ((-2, rows), (-1, columns)):
        size = matrix.shape[axis]
        if size > most:
            matrix = np.maximum.reduceat(matrix, np.arange(most) * size // most, axis=axis)
    return matrix


def palette() -> Array:
    """Colours [SHADES, 3] of numbers from small to large: viridis."""
    anchors = np.frombuffer(VIRIDIS, np.uint8).reshape(-1, 3)
    at = np.linspace(0, len(anchors) - 1, SHADES)
    colours = [np.interp(at, np.arange(len(anchors)), anchors[:, channel]) for channel in range(3)]
    return np.rint(np.stack(colours, axis=1)).astype(np.uint8)


def shade(values: Array, low: float, high: float, shades: int = SHADES) -> Array:
    """Which of so many shades each number has, the outermost beyond `low` and `high` as well; `shades` for NaN."""
    share = (values.astype(np.float64) - low) / ((high - low) or 1.0)
    with np.errstate(invalid="ignore"):
        entries = np.clip(np.floor(share * shades), 0, shades - 1)
    return np.where(np.isnan(entries), shades, entries).astype(np.uint8)


def limits(shown: Iterable[Array]) -> tuple[float, float, float]:
    """The scale that maps share: its ends, and the largest number there is. It begins at 0 where nothing is negative,
    and ends where all but the largest 0.5 % do, so that a few large weights do not leave the rest dark.
    """
    values = np.concatenate([array[np.isfinite(array)].ravel() for array in shown])
    if not values.size:
        return 0.0, 1.0, 1.0
    low, high, largest = min(0.0, float(values.min())), float(np.quantile(values, 0.995)), float(values.max())
    return low, high if high > low else largest, largest


def _png(pixels: Array) -> str:
    """A PNG of shades [height, width], as a data URI."""
    height, width = pixels.shape
    colours = np.concatenate([palette(), [NAN_COLOUR]])

    def chunk(kind: bytes, data: bytes) -> bytes:
        return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))

    lines = np.insert(pixels, 0, 0, axis=1)  # each line begins with the number of its filter: 0 is none
    file = (
        b"\x89PNG\r\n\x1a\n"
        + chunk(b"IHDR", struct.pack(">IIBBBBB", width, height, 8, 3, 0, 0, 0))
        + chunk(b"PLTE", colours.astype(np.uint8).tobytes())
        + chunk(b"IDAT", zlib.compress(lines.astype(np.uint8).tobytes(), 9))
        + chunk(b"IEND", b"")
    )
    return "data:image/png;base64," + base64.b64encode(file).decode()


def _page(answer: Attention) -> str:
    records = answer.records()
    blocks = [f"<div><b>{html.escape(_about(answer))}</b></div>", *_maps(answer), _means(answer, records)]
    blocks += [_details(result, records) for result in list(answer.values())[:MOST_MAPS]]
    return f'<div style="font-size:13px;line-height:1.5">{"".join(blocks)}</div>'


def _about(answer: Attention) -> str:
    sizes = (f"{name} {answer.shape[name]}" for name in ("batch", "heads", "queries", "keys") if name in answer.shape)
    return f"{answer.model}: {', '.join(sizes)}{', causal' if answer.causal else ''}"


def _maps(answer: Attention) -> Iterator[str]:
    """A map for each encoding and head of the first of the batch, all on one scale."""
    matrices = {name: one.matrices for name, one in answer.items() if one.matrices is not None}
    if not matrices:
        return
    heads = max(1, MOST_MAPS // len(matrices))
    shown = dict(list(matrices.items())[:MOST_MAPS])
    drawing = _Drawing.of({name: array.reshape(-1, *array.shape[-3:])[0, :heads] for name, array in shown.items()})
    numbers = answer.shape.get("head") or range(answer.shape["heads"])
    for name, maps in drawing.maps.items():
        width = min(SIDE, max(96, 1000 // len(maps)))
        figures = "".join(
            f'<figure style="margin:4px 8px 4px 0;display:inline-block"><img width="{width}" height="{width}" '
            f'alt="{html.escape(name)}, head {number}" style="image-rendering:pixelated" src="{one}">'
            f"<figcaption>head {number}</figcaption></figure>"
            for number, one in zip(numbers, maps, strict=False)
        )
        yield f"<div><b>{html.escape(name)}</b></div><div>{figures}</div>"
    yield _legend(answer, drawing)
    left_out = []
    if "batch" in answer.shape:
        left_out.append(f"the first of a batch of {answer.shape['batch']}")
    if heads < answer.shape["heads"] or len(shown) < len(matrices):
        left_out.append(f"{sum(map(len, drawing.maps.values()))} of {len(matrices) * answer.shape['heads']} maps")
    if max(answer.shape["queries"], answer.shape["keys"]) > drawing.side:
        left_out.append(f"each pixel is the largest of several cells ({drawing.side} pixels a side)")
    if left_out:
        yield f"<div><i>Shown: {'; '.join(left_out)}.</i></div>"


@dataclass(frozen=True, slots=True)
class _Drawing:
    """Maps as data URIs, at most `side` pixels a side, on a scale from `low` to `high`; the `largest` may be beyond."""

    maps: Mapping[str, Sequence[str]]
    side: int
    low: float
    high: float
    largest: float

    @classmethod
    def of(cls, matrices: Mapping[str, Array]) -> _Drawing:
        """As large as there is room for; what does not compress is small enough at the last size all the same."""
        count = sum(map(len, matrices.values()))
        surely = min(SIDE, math.isqrt(PICTURE_BYTES // count) - 1)
        for side in (*(side for side in SIDES if side > surely), surely):
            pooled = {name: pool(array, side, side) for name, array in matrices.items()}
            scale = limits(pooled.values())
            maps = {name: [_png(shade(one, *scale[:2])) for one in array] for name, array in pooled.items()}
            if sum(len(one) for each in maps.values() for one in each) <= 4 / 3 * PICTURE_BYTES:
                break
        return cls(maps, side, *scale)


def _legend(answer: Attention, drawing: _Drawing) -> str:
    low, high, largest = drawing.low, drawing.high, drawing.largest
    what = "weight" if next(iter(answer.values())).weights is not None else "score"
    bar = _png(np.arange(SHADES, dtype=np.uint8)[None])
    beyond = f" (the largest is {largest:.4g})" if largest > high else ""
    return (
        f'<div>{what} {low:.4g} <img width="160" height="10" alt="from dark blue through green to yellow" src="{bar}">'
        f" {'&ge; ' if beyond else ''}{high:.4g}{beyond}; rows are queries, columns keys</div>"
    )


def _means(answer: Attention, records: Sequence[Mapping[str, Any]]) -> str:
    """The mean of each metric over heads and batch, an encoding a column."""
    means: dict[str, dict[str, list[float]]] = {}
    for record in records:
        if record["value"] is not None:
            means.setdefault(_named(record), {}).setdefault(record["encoding"], []).append(record["value"])
    names = list(answer)[:MOST_MAPS]
    rows = [
        _row([metric, *(f"{np.mean(columns[name]):.4g}" if name in columns else "" for name in names)])
        for metric, columns in means.items()
    ]
    return f"<table>{_row(['mean of heads', *names], 'th')}{''.join(rows)}</table>" if rows else ""


def _details(result: Result, records: Sequence[Mapping[str, Any]]) -> str:
    """Collapsed: what was computed how, and the metrics of each head of the first of the batch."""
    table: dict[str, dict[int, str]] = {}
    for record in records:
        if record["encoding"] == result.name and not record["batch"]:
            shown = "" if record["value"] is None else f"{record['value']:.4g}"
            table.setdefault(_named(record), {})[record["head"]] = shown
    heads = list(next(iter(table.values()), {}))[: MOST_MAPS // 3]
    rows = [_row([metric, *(values[head] for head in heads)]) for metric, values in table.items()]
    header = _row(["head", *map(str, heads)], "th")
    parameters = ", ".join(f"{name} = {value}"[:200] for name, value in result.parameters.items())
    conventions = "".join(f"<li>{html.escape(f'{name}: {text}')}</li>" for name, text in result.conventions.items())
    return (
        f"<details><summary>{html.escape(result.name)}: parameters, conventions, heads</summary>"
        f"<div>{html.escape(parameters[:1000])}</div><ul>{conventions}</ul>"
        + (f"<table>{header}{''.join(rows)}</table>" if rows else "")
        + "</details>"
    )


def _named(record: Mapping[str, Any]) -> str:
    return f"{record['metric']} to {record['reference']}" if record["reference"] else str(record["metric"])


def _row(cells: Iterable[str], tag: str = "td") -> str:
    return f"<tr>{''.join(f'<{tag}>{html.escape(cell)}</{tag}>' for cell in cells)}</tr>"


def _contents(result: Result) -> str:
    """`weights, scores [4, 64, 64] float32`"""
    names = [name for name in ("weights", "scores", "output") if getattr(result, name) is not None]
    names += [f"terms {'+'.join(result.terms)}"] if result.terms else []
    if result.top_k is not None:
        return f"top_k {list(result.top_k.indices.shape)}"
    shown = result.matrices
    form = "" if shown is None else f" {list(shown.shape)} {shown.dtype}"
    return (", ".join(names) + form) or "no arrays"


def _headline(answer: Attention) -> str:
    """What is said of each encoding in a line."""
    parts = []
    for name, result in answer.items():
        keys = (result.summary or {}).get("effective_keys")
        if keys and (values := [value for values in _by_batch(keys["mean"]) for value in values if value is not None]):
            parts.append(f"{name} {sum(values) / len(values):.3g}")
    return f"; effective keys: {', '.join(parts)}" if parts else ""


# -------------------------------------------------------------------------------------------------------------- wire

DTYPES = {
    "F64": "<f8",
    "F32": "<f4",
    "F16": "<f2",
    "I64": "<i8",
    "I32": "<i4",
    "I16": "<i2",
    "I8": "|i1",
    "U64": "<u8",
    "U32": "<u4",
    "U16": "<u2",
    "U8": "|u1",
    "BOOL": "|b1",
}
"""Of safetensors, as NumPy calls them."""


def read_safetensors(content: bytes) -> tuple[dict[str, Any], dict[str, Array]]:
    """The metadata, and the arrays as views of `content`. Raises ValueError."""
    length = int.from_bytes(content[:8], "little")
    header = json.loads(content[8 : 8 + length])
    metadata = json.loads(header.pop("__metadata__", {}).get("metadata", "{}"))
    arrays = {}
    for name, about in header.items():
        begin, end = about["data_offsets"]
        half = about["dtype"] == "BF16"  # the upper half of a float32, which NumPy does not have
        dtype = np.dtype("<u2" if half else DTYPES[about["dtype"]])
        flat = np.frombuffer(content, dtype, (end - begin) // dtype.itemsize, 8 + length + begin)
        arrays[name] = ((flat.astype("<u4") << 16).view("<f4") if half else flat).reshape(about["shape"])
    return metadata, arrays


def write_safetensors(arrays: Mapping[str, Array]) -> bytes:
    """Raises TypeError for arrays of anything but numbers."""
    names = {dtype: name for name, dtype in DTYPES.items()}
    header, parts, end = {}, [], 0
    for name, array in arrays.items():
        little = np.ascontiguousarray(array, array.dtype.newbyteorder("<"))
        if little.dtype.str not in names:
            raise TypeError(f"{name} has the type {array.dtype}; it must be numbers of a plain type, as float32")
        header[name] = {
            "dtype": names[little.dtype.str],
            "shape": little.shape,
            "data_offsets": [end, end + little.nbytes],
        }
        parts.append(little.data.cast("B") if little.size else b"")
        end += little.nbytes
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    return b"".join([len(text).to_bytes(8, "little"), text, *parts])


def array(values: Any) -> Array:
    """Of lists, NumPy arrays, DataArrays and PyTorch tensors wherever they are. Raises TypeError for anything else."""
    if hasattr(values, "detach"):
        values = values.detach().cpu()
        values = values.float() if str(values.dtype) == "torch.bfloat16" else values
    found = np.asarray(values)
    if found.dtype.kind not in "biuf":
        raise TypeError(f"an array of {found.dtype} came where numbers are needed")
    return found


def _single(values: Array) -> Array:
    """In float32, as which embeddings are scored; where they do not fit they stay, and the service says which."""
    if values.dtype.kind != "f" or values.dtype.itemsize <= 4:
        return values
    with np.errstate(over="ignore"):
        single = values.astype(np.float32)
    return single if np.isfinite(single).all() else values


def _body(members: Mapping[str, Any], parameters: Mapping[str, Array], *, ordered: bool = False) -> tuple[str, bytes]:
    """The content type and the content: safetensors, or what has room for text, or keeps an order, where it must."""
    arrays = {name: value for name, value in members.items() if isinstance(value, np.ndarray)}
    if "text" in members:
        document = {**members, **{name: _base64(value) for name, value in arrays.items()}}
        document |= {"parameters": {name: _base64(value) for name, value in parameters.items()}} if parameters else {}
        return JSON, json.dumps(document).encode()
    if "tokens" in members or ordered:
        names = {"tokens": np.array(members["tokens"], dtype=np.str_)} if "tokens" in members else {}
        file = io.BytesIO()
        np.savez(file, **names, **arrays, **parameters)  # type: ignore[arg-type]
        return NPZ, file.getvalue()
    return SAFETENSORS, write_safetensors({**arrays, **parameters})


def _base64(values: Array) -> dict[str, Any]:
    little = np.ascontiguousarray(values, values.dtype.newbyteorder("<"))
    return {"base64": base64.b64encode(little.data).decode(), "dtype": little.dtype.name, "shape": little.shape}


def _said(value: Any) -> str:
    """As a query string says it: `true`, `0:16`, `alibi,t5`."""
    match value:
        case bool() | np.bool_():
            return str(bool(value)).lower()
        case slice():
            return ":".join(
                "" if part is None else str(part)
                for part in (value.start, value.stop, value.step)[: 2 + (value.step is not None)]
            )
        case str():
            return value
        case range() | np.ndarray() | Iterable():
            return ",".join(map(_said, value))
        case np.generic():
            return _said(value.item())
        case float():
            return repr(value)
        case _:
            return str(value)


def _query(**said: Any) -> list[tuple[str, str]]:
    """What is None, or an empty list, goes unsaid."""
    pairs = ((name.removesuffix("_"), value) for name, value in said.items() if value is not None)
    return [(name, text) for name, value in pairs if (text := _said(value)) or isinstance(value, str)]


def _picked(value: Any) -> str | None:
    """Of nothing too: that is said, and refused, where to leave it unsaid would ask for all."""
    return None if value is None else _said(value)


def _sorted_out(parameters: Mapping[str, Any] | None) -> tuple[list[tuple[str, str]], dict[str, Array]]:
    """Scalars for the query string, arrays for the body."""
    scalars, arrays = [], {}
    for name, value in (parameters or {}).items():
        if isinstance(value, str) or np.ndim(value) == 0:
            scalars.append((name, _said(value.item() if hasattr(value, "item") else value)))
        else:
            arrays[name] = array(value)
    return scalars, arrays


# ------------------------------------------------------------------------------------------------------------- calls


@dataclass(frozen=True, slots=True)
class Call(Generic[T]):
    """A request, and how its answer is read."""

    method: str
    path: str
    read: Callable[[httpx.Response], T]
    query: Sequence[tuple[str, str]] = ()
    accept: str = JSON
    kind: str | None = None
    content: bytes | None = None
    retried: bool = True

    def answered(
        self, accept: str, read: Callable[[httpx.Response], S], query: Iterable[tuple[str, str]] = ()
    ) -> Call[S]:
        """The same request for an answer in another format."""
        return Call(self.method, self.path, read, [*self.query, *query], accept, self.kind, self.content, self.retried)

    def request(self, client: httpx.Client | httpx.AsyncClient) -> httpx.Request:
        headers = {"Accept": self.accept} | ({"Content-Type": self.kind} if self.kind else {})
        return client.build_request(
            self.method, self.path, params=list(self.query), headers=headers, content=self.content
        )


def _members(
    x: Any,
    queries: Any,
    keys: Any,
    positions: Any,
    query_positions: Any,
    key_positions: Any,
    mask: Any,
    tokens: Iterable[str] | None,
    text: str | None,
) -> dict[str, Any]:
    """What of these was given, by the names of a body's members; arrays as such."""
    if isinstance(x, Preset):
        x, tokens = x.embeddings, x.tokens if tokens is None else tokens
    elif isinstance(x, str):
        x, text = None, x
    embeddings = {"embeddings": x, "queries": queries, "keys": keys}
    places = {"positions": positions, "query_positions": query_positions, "key_positions": key_positions, "mask": mask}
    members: dict[str, Any] = {name: _single(array(value)) for name, value in embeddings.items() if value is not None}
    members |= {name: array(value) for name, value in places.items() if value is not None}
    members |= {} if text is None else {"text": text}
    return members | ({} if tokens is None else {"tokens": list(tokens)})


@dataclass(frozen=True, slots=True, eq=False)
class Preset:
    """An input by name, which `attention` takes as it is."""

    name: str
    embeddings: Array
    """[tokens, width]"""
    tokens: Sequence[str]
    """Equal names for equal embeddings."""


def _json(response: httpx.Response) -> dict[str, Any]:
    found: dict[str, Any] = response.json()
    return found


class Calls:
    """What can be asked: `Client` has each as a method that gives the answer, `AsyncClient` as one to be awaited."""

    def attention(
        self: Any,
        /,
        x: Any = None,
        encoding: str | None = None,
        *,
        compare: str | Iterable[str] = (),
        model: str | None = None,
        heads: int | None = None,
        key_heads: int | None = None,
        causal: bool | None = None,
        parameters: Mapping[str, Any] | None = None,
        returns: str | Iterable[str] | None = None,
        metrics: str | Iterable[str] | None = None,
        rows: int | slice | str | Iterable[int] | None = None,
        head: int | slice | str | Iterable[int] | None = None,
        top_k: int | None = None,
        dtype: str | None = None,
        queries: Any = None,
        keys: Any = None,
        positions: Any = None,
        query_positions: Any = None,
        key_positions: Any = None,
        mask: Any = None,
        tokens: Iterable[str] | None = None,
        text: str | None = None,
    ) -> Call[Attention]:
        """Who attends to whom, under one encoding or several.

        x: embeddings [tokens, width] or [batch, tokens, width], anything that NumPy makes an array of, or a PyTorch
            tensor, or a preset; a string is taken for `text`. In its place may be `queries` and `keys`, each of such a
            shape.
        encoding: id or alias, or with a label `rope@long`; the reference of a comparison. By default the model's own.
        compare: more of them on the same input, or "all".
        heads: must divide the width; `key_heads` must divide `heads`.
        causal: hide later keys; by default the encoding's own.
        parameters: by dotted names, {"rope.theta": 5e5, "t5.bias": array [rows, heads]}.
        returns: of weights, scores, terms, output, summary, comparison.
        metrics: of the last two; names, "default" or "all".
        rows, head: what to return of the queries and heads: an index, several, a slice. Other rows are not computed.
        top_k: only so many keys of each row, those that weigh most.
        dtype: float16 halves what is sent back.
        positions: [tokens], or `query_positions` and `key_positions`.
        mask: true where a key may be seen: [keys], [queries, keys], [batch, keys], [batch, queries, keys] or
            [batch, heads, queries, keys].
        tokens: a name for each key.
        text: in place of embeddings, for models with a tokenizer.


        Raises Refused, Busy, Failed, Unreachable.
        """
        members = _members(x, queries, keys, positions, query_positions, key_positions, mask, tokens, text)
        scalars, arrays = _sorted_out(parameters)
        kind, content = _body(members, arrays)
        query = _query(
            encoding=encoding,
            compare=compare,
            model=model,
            heads=heads,
            key_heads=key_heads,
            causal=causal,
            return_=returns,
            metrics=metrics,
            rows=_picked(rows),
            head=_picked(head),
            top_k=top_k,
            dtype=dtype,
        )
        placed = {
            f"{side}_positions": members.get(f"{side}_positions", members.get("positions")) for side in ("query", "key")
        }

        def read(response: httpx.Response) -> Attention:
            document, answered = read_safetensors(response.content)
            known = {name: value for name, value in placed.items() if value is not None}
            return Attention(
                {**document, "cross": queries is not None}, {**answered, **known}, response.headers.get("x-request-id")
            )

        return Call("POST", "/attention", read, [*query, *scalars], SAFETENSORS, kind, content)

    def picture(
        self: Any, /, x: Any = None, encoding: str | None = None, *, zoom: int | None = None, **asked: Any
    ) -> Call[bytes]:
        """What `attention` is asked in the same words, as a picture that the service draws: a PNG file. `zoom` is the
        pixels to each point, 1 to 4.
        """
        call = Calls.attention(self, x, encoding, **asked)
        return call.answered(PNG, lambda response: response.content, _query(zoom=zoom))

    def probe(
        self: Any,
        /,
        x: Any = None,
        encoding: str | None = None,
        *,
        probe: str | Iterable[str] = (),
        compare: str | Iterable[str] = (),
        model: str | None = None,
        heads: int | None = None,
        key_heads: int | None = None,
        causal: bool | None = None,
        parameters: Mapping[str, Any] | None = None,
        offsets: float | Iterable[float] | None = None,
        lengths: float | Iterable[float] | None = None,
        extend: str | None = None,
        seed: int | None = None,
        queries: Any = None,
        keys: Any = None,
        positions: Any = None,
        query_positions: Any = None,
        key_positions: Any = None,
        mask: Any = None,
        tokens: Iterable[str] | None = None,
    ) -> Call[dict[str, Any]]:
        """What position does, found out by changing the input: `probe` names some of position_only, position_share,
        shift_gap (by `offsets`), order_gap (an order drawn from `seed`) and length_sweep (`lengths` of the input's,
        which is "tiled" or made longer by "random" numbers as `extend` says); by default all. The input is that of
        `attention`. The answer has for each of `results` its `probes`, by head lists of numbers or a reason.
        """
        members = _members(x, queries, keys, positions, query_positions, key_positions, mask, tokens, None)
        scalars, arrays = _sorted_out(parameters)
        kind, content = _body(members, arrays)
        query = _query(
            encoding=encoding,
            probe=probe,
            compare=compare,
            model=model,
            heads=heads,
            key_heads=key_heads,
            causal=causal,
            offsets=offsets,
            lengths=lengths,
            extend=extend,
            seed=seed,
        )
        return Call("POST", "/attention/probe", _json, [*query, *scalars], JSON, kind, content)

    def compare_matrices(
        self: Any,
        /,
        matrices: Mapping[str, Any],
        *,
        scores: Mapping[str, Any] | None = None,
        metrics: str | Iterable[str] | None = None,
        causal: bool | None = None,
        sinks: bool | None = None,
        tolerance: float | None = None,
        top_k: int | None = None,
        mask: Any = None,
        positions: Any = None,
        query_positions: Any = None,
        key_positions: Any = None,
        tokens: Iterable[str] | None = None,
    ) -> Call[Matrices]:
        """Attention matrices that you have already, by names of your own, summarised, and the others compared with the
        first. Each is [queries, keys], [heads, queries, keys] or [batch, heads, queries, keys], all alike; `scores` are
        those before mask and softmax, under the same names. `sinks`: rows may sum to less than 1; `tolerance`: how far
        from 1 else. `top_k` is the k of topk_overlap.
        """
        members = _members(None, None, None, positions, query_positions, key_positions, mask, tokens, None)
        for group, named in (("matrices", matrices), ("scores", scores or {})):
            members |= {f"{group}/{name}": _single(array(value)) for name, value in named.items()}
        kind, content = _body(members, {}, ordered=True)  # the first is the reference
        query = _query(metrics=metrics, causal=causal, sinks=sinks, tolerance=tolerance, top_k=top_k)
        return Call("POST", "/compare/matrices", lambda response: Matrices(_json(response)), query, JSON, kind, content)

    def encodings(self: Any, /, *, model: str | None = None) -> Call[list[dict[str, Any]]]:
        """The encodings that are served, a dictionary for each."""
        return Call("GET", "/encodings", lambda response: list(response.json()["encodings"]), _query(model=model))

    def encoding(self: Any, id: str, /, *, model: str | None = None) -> Call[dict[str, Any]]:
        """One encoding: its formula, paper, conventions, parameters and terms."""
        return Call("GET", f"/encodings/{_path(id)}", _json, _query(model=model))

    def models(self: Any, /) -> Call[list[dict[str, Any]]]:
        """The models that are served, with their encodings and sizes."""
        return Call("GET", "/models", lambda response: list(response.json()["models"]))

    def positions(
        self: Any,
        id: str,
        /,
        *,
        queries: int | None = None,
        keys: int | None = None,
        width: int | None = None,
        heads: int | None = None,
        causal: bool | None = None,
        model: str | None = None,
        offset: float | None = None,
        view: str | Iterable[str] = (),
        parameters: Mapping[str, Any] | None = None,
    ) -> Call[Views]:
        """What position alone contributes to so many queries and keys, which stand at `offset`, `offset` + 1, ...:
        `bias` and `similarity` [heads, queries, keys], `vectors` [queries, width], `frequencies` [pairs], `tables/...`;
        those that `view` names. `parameters` are scalars, by their names with or without the encoding's.
        """
        query = _query(
            queries=queries,
            keys=keys,
            width=width,
            heads=heads,
            causal=causal,
            model=model,
            offset=offset,
            view=view,
            **(parameters or {}),
        )
        return Call(
            "GET",
            f"/encodings/{_path(id)}/positions",
            lambda response: Views(*read_safetensors(response.content)),
            query,
            SAFETENSORS,
        )

    def resolve_rope(
        self: Any, /, config: Any, *, head_dim: int | None = None, length: int | None = None
    ) -> Call[dict[str, Any]]:
        """What the rotary part of a checkpoint's configuration comes to: the encoding with its parameters, frequencies,
        what was used and warnings of what was not. `config` is the content of a `config.json`, or of its
        `rope_scaling`, as a dictionary, or an object of transformers that has `to_dict`.
        """
        document = config.to_dict() if hasattr(config, "to_dict") else config
        content = json.dumps(document, default=str).encode()
        return Call(
            "POST", "/encodings/rope/resolve", _json, _query(head_dim=head_dim, length=length), JSON, JSON, content
        )

    def presets(self: Any, /) -> Call[list[dict[str, Any]]]:
        """The inputs that go by a name: what each is, and the arguments it takes."""
        return Call("GET", "/presets", lambda response: list(response.json()["presets"]))

    def preset(
        self: Any, /, name: str, *, n: int | None = None, d: int | None = None, seed: int | None = None
    ) -> Call[Preset]:
        """An input of n tokens of d numbers each; the same arguments give the same bytes."""

        def read(response: httpx.Response) -> Preset:
            about, arrays = read_safetensors(response.content)
            return Preset(name, arrays["embeddings"], about["tokens"])

        return Call("GET", f"/presets/{_path(name)}", read, _query(n=n, d=d, seed=seed), SAFETENSORS)

    def health(self: Any, /) -> Call[dict[str, Any]]:
        """Whether the service takes work. Raises Busy with the reason where it does not; asks once only."""
        return Call("GET", "/health/ready", _json, retried=False)


def _path(name: str) -> str:
    return urllib.parse.quote(name, safe="@")


# ----------------------------------------------------------------------------------------------------------- clients

UNSENT = (httpx.ConnectError, httpx.ConnectTimeout, httpx.PoolTimeout)
BUSY = (429, 503)
FIRST_PAUSE = 0.25


@dataclass(frozen=True, slots=True)
class Patience:
    """When to try again what the service had no time for, or what never reached it: after as long as `Retry-After`
    says, or else after a pause that doubles; a random part more, so that many clients do not come back together.
    """

    retries: int
    longest_wait: float
    clock: Callable[[], float]
    jitter: Callable[[], float]

    def wait(self, failure: AttentionError, attempt: int, retried: bool) -> float:
        """Seconds before the next attempt, of which `attempt` (from 0) has failed. Raises the failure where there is
        none, also where the service asks for more patience than `longest_wait`.
        """
        worth = isinstance(failure, Busy) or (isinstance(failure, Unreachable) and not failure.sent)
        pause = FIRST_PAUSE * 2.0**attempt
        if isinstance(failure, Busy) and failure.retry_after is not None:
            pause = failure.retry_after
            worth = worth and pause <= self.longest_wait
        if not (worth and retried and attempt < self.retries):
            raise failure
        return min(self.longest_wait, pause * (1.0 + self.jitter() / 4))

    def refusal(self, response: httpx.Response) -> AttentionError:
        """What an answer that is none says."""
        try:
            problem = response.json()
        except ValueError:
            problem = None
        if not isinstance(problem, dict):  # a proxy's
            problem = {"title": response.reason_phrase, "detail": response.text[:500]}
        problem.setdefault("request_id", response.headers.get("x-request-id"))
        after = self._seconds(response.headers.get("retry-after"))
        if response.status_code in BUSY:
            return Busy(response.status_code, problem, after)
        return (Failed if response.status_code >= 500 else Refused)(response.status_code, problem, after)

    def _seconds(self, header: str | None) -> float | None:
        """Of a `Retry-After`: a number, or a date."""
        if header is None:
            return None
        try:
            seconds = float(header)
        except ValueError:
            try:
                seconds = email.utils.parsedate_to_datetime(header).timestamp() - self.clock()
            except ValueError:
                return None
        return max(0.0, seconds) if math.isfinite(seconds) else None


def _unreachable(error: httpx.TransportError, url: str) -> Unreachable:
    sent = not isinstance(error, UNSENT)
    said = str(error) or type(error).__name__
    what = f"no answer from {url}: {said}" if sent else f"cannot connect to {url}: {said}; is the service running?"
    return Unreachable(what, sent=sent)


def _read(call: Call[T], response: httpx.Response, url: str) -> T:
    try:
        return call.read(response)
    except (ValueError, KeyError, TypeError) as error:
        kind = response.headers.get("content-type")
        raise AttentionError(
            f"{url} answered with {kind}, which cannot be read ({error}); is it the attention scoring service?"
        ) from error


def _sent(build: Callable[Concatenate[Any, P], Call[T]]) -> Callable[Concatenate[Client, P], T]:
    def method(self: Client, /, *args: P.args, **kwargs: P.kwargs) -> T:
        return self.send(build(self, *args, **kwargs))

    functools.update_wrapper(method, build)
    return method


def _awaited(
    build: Callable[Concatenate[Any, P], Call[T]],
) -> Callable[Concatenate[AsyncClient, P], Coroutine[Any, Any, T]]:
    async def method(self: AsyncClient, /, *args: P.args, **kwargs: P.kwargs) -> T:
        return await self.send(build(self, *args, **kwargs))

    functools.update_wrapper(method, build)
    return method


def _headers(api_key: str | None, headers: Mapping[str, str] | None) -> dict[str, str]:
    """Raises ValueError, which does not tell the key, where no header can hold it."""
    wrong = next((i for i, one in enumerate(api_key or "") if not "!" <= one <= "~"), None)
    if wrong is not None:
        raise ValueError(
            f"an API key is letters, digits and signs of ASCII, and character {wrong + 1} of the {len(api_key or '')} "
            "that came is none of them; does it end in a line break?"
        )
    return ({} if api_key is None else {"Authorization": f"Bearer {api_key}"}) | dict(headers or {})


class Client:
    """Asks a service; a context manager that closes its connections, and safe to share between threads."""

    def __init__(
        self,
        url: str = URL,
        *,
        timeout: float = 60.0,
        retries: int = 4,
        longest_wait: float = 30.0,
        api_key: str | None = None,
        headers: Mapping[str, str] | None = None,
        transport: httpx.BaseTransport | None = None,
        sleep: Callable[[float], None] = time.sleep,
        clock: Callable[[], float] = time.time,
        jitter: Callable[[], float] = random.random,
    ) -> None:
        """`timeout` is in seconds, for connecting and for each wait for bytes. What is refused for lack of room (429,
        503), or never arrived, is tried again up to `retries` times, with at most `longest_wait` seconds in between.
        `api_key` is sent with every request, to a service that asks for one. Raises ValueError where it can be none.
        """
        self.url = url
        self._patience = Patience(retries, longest_wait, clock, jitter)
        self._sleep = sleep
        self._http = httpx.Client(
            base_url=url, timeout=timeout, headers=_headers(api_key, headers), transport=transport
        )

    attention = _sent(Calls.attention)
    picture = _sent(Calls.picture)
    probe = _sent(Calls.probe)
    compare_matrices = _sent(Calls.compare_matrices)
    encodings = _sent(Calls.encodings)
    encoding = _sent(Calls.encoding)
    models = _sent(Calls.models)
    positions = _sent(Calls.positions)
    resolve_rope = _sent(Calls.resolve_rope)
    presets = _sent(Calls.presets)
    preset = _sent(Calls.preset)
    health = _sent(Calls.health)

    def send(self, call: Call[T]) -> T:
        for attempt in itertools.count():
            failure: AttentionError
            try:
                response = self._http.send(call.request(self._http))
            except httpx.TransportError as error:
                failure = _unreachable(error, self.url)
                failure.__cause__ = error
            else:
                if response.is_success:
                    return _read(call, response, self.url)
                failure = self._patience.refusal(response)
            self._sleep(self._patience.wait(failure, attempt, call.retried))
        raise AssertionError

    def close(self) -> None:
        self._http.close()

    def __enter__(self) -> Client:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


class AsyncClient:
    """`Client`, with methods to be awaited."""

    def __init__(
        self,
        url: str = URL,
        *,
        timeout: float = 60.0,
        retries: int = 4,
        longest_wait: float = 30.0,
        api_key: str | None = None,
        headers: Mapping[str, str] | None = None,
        transport: httpx.AsyncBaseTransport | None = None,
        sleep: Callable[[float], Awaitable[None]] = asyncio.sleep,
        clock: Callable[[], float] = time.time,
        jitter: Callable[[], float] = random.random,
    ) -> None:
        """As those of `Client`."""
        self.url = url
        self._patience = Patience(retries, longest_wait, clock, jitter)
        self._sleep = sleep
        self._http = httpx.AsyncClient(
            base_url=url, timeout=timeout, headers=_headers(api_key, headers), transport=transport
        )

    attention = _awaited(Calls.attention)
    picture = _awaited(Calls.picture)
    probe = _awaited(Calls.probe)
    compare_matrices = _awaited(Calls.compare_matrices)
    encodings = _awaited(Calls.encodings)
    encoding = _awaited(Calls.encoding)
    models = _awaited(Calls.models)
    positions = _awaited(Calls.positions)
    resolve_rope = _awaited(Calls.resolve_rope)
    presets = _awaited(Calls.presets)
    preset = _awaited(Calls.preset)
    health = _awaited(Calls.health)

    async def send(self, call: Call[T]) -> T:
        for attempt in itertools.count():
            failure: AttentionError
            try:
                response = await self._http.send(call.request(self._http))
            except httpx.TransportError as error:
                failure = _unreachable(error, self.url)
                failure.__cause__ = error
            else:
                if response.is_success:
                    return _read(call, response, self.url)
                failure = self._patience.refusal(response)
            await self._sleep(self._patience.wait(failure, attempt, call.retried))
        raise AssertionError

    async def aclose(self) -> None:
        await self._http.aclose()

    async def __aenter__(self) -> AsyncClient:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.aclose()
