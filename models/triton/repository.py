"""Lays exported models out as Triton reads them: `<model>.<encoding>/config.pbtxt` and `1/model.onnx`."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import onnx
import onnxruntime

from models.triton.composed import Choice, compose
from models.triton.config import config
from models.triton.front import EMBEDDINGS, MASK
from service.admission import Limits, admit, check
from service.catalogue import Model
from service.encoding import Encoding
from service.engine.pruning import prune
from service.errors import InvalidInput
from service.instance import Instance
from service.masks import Sight, combine, read_mask
from service.parameters import Given, Parameters, ResolvedParameters, Sizes, assign
from service.positions import Positions
from service.records import AttentionInput
from service.tables import Needs, TableCache

VERSION = "1"
OUTPUTS = ("weights", "scores", "output")
TOLERANCE = 5e-6
LENGTHS = (1, 2, 33)
"""Numbers of tokens at which each composed graph is compared with the two that it is made of."""


class Disagreement(Exception):
    """A composed graph that does not give the numbers of the graphs that it is made of."""


@dataclass(frozen=True)
class Wanted:
    """What every model of a repository is laid out with; `heads` and `width` where it has none of its own."""

    heads: int = 4
    width: int = 64
    tokens: int = 2048
    """The most, of encodings whose positions are rows of a table."""
    causal: bool | None = None
    """None: the model's or the encoding's own."""
    masked: bool = False
    outputs: tuple[str, ...] = OUTPUTS
    max_batch: int = 64
    scalars: Mapping[str, str] = field(default_factory=dict)
    arrays: Mapping[str, np.ndarray] = field(default_factory=dict)


@dataclass(frozen=True)
class LaidOut:
    """One model of the repository. `difference` is the largest from the exported graphs, scores and output relative to
    the largest number, weights absolute; `longest` the most tokens it takes, None where nothing bounds them.
    """

    name: str
    bytes: int
    longest: int | None
    difference: float


@dataclass(frozen=True)
class Skipped:
    """An encoding that cannot be laid out as wanted, and why."""

    name: str
    reason: str


def lay_out(
    model: Model, encodings: Sequence[Encoding], wanted: Wanted, folder: Path, *, skipping: bool
) -> Iterator[LaidOut | Skipped]:
    """Writes each encoding of the model into the folder, and yields as each is done.

    Raises ServiceError where parameters are wrong or, unless `skipping`, an encoding cannot serve what is wanted;
    Disagreement.
    """
    instances = [Instance(encoding) for encoding in encodings]
    given = assign(model, instances, wanted.scalars, wanted.arrays)
    for encoding in encodings:
        mine = given[encoding.id]
        try:
            choice = _choice(model, encoding, wanted, _longest(encoding, mine, wanted.tokens))
        except InvalidInput as error:
            if not skipping:
                raise
            yield Skipped(encoding.name, error.detail)
            continue
        sizes = Sizes(choice.heads, choice.head_dim, choice.longest or wanted.tokens, model.width)
        yield _write(encoding, Parameters().resolve(encoding, mine, sizes), choice, wanted, folder)


def _longest(encoding: Encoding, given: Given, tokens: int) -> int | None:
    """Positions that are rows of a table end with it."""
    most = [] if encoding.positions.maximum is None else [int(encoding.positions.maximum) + 1]
    rows_of = encoding.positions.rows_of
    table = None if rows_of is None else encoding.parameter(rows_of)
    if table is not None:
        axis = table.shape[0]
        limit = table.sizes[axis].maximum if isinstance(axis, str) and axis in table.sizes else None
        rows = len(given.arrays[table.name]) if table.name in given.arrays else limit
        most.append(tokens if rows is None else rows)
    return min(tokens, *most) if most else None


def _choice(model: Model, encoding: Encoding, wanted: Wanted, longest: int | None) -> Choice:
    """Raises InvalidInput where the encoding cannot serve it: what a request of these sizes would be told."""
    unknown = [name for name in wanted.outputs if name not in encoding.outputs]
    if unknown:
        raise InvalidInput(f"{encoding.name} has no output {unknown[0]!r}; it has {', '.join(encoding.outputs)}")
    heads = wanted.heads if model.width is None else None
    sample = np.zeros((longest or 1, model.width or wanted.width), np.float32)
    admitted = admit(AttentionInput(embeddings=sample), model, heads, Limits())
    causal = wanted.causal
    if causal is None:
        causal = encoding.default_causal or encoding.causal == "required"
    check(encoding, admitted, causal, model)
    return Choice(admitted.heads, admitted.head_dim, causal, wanted.masked, wanted.outputs, longest)


def _write(encoding: Encoding, parameters: ResolvedParameters, choice: Choice, wanted: Wanted, folder: Path) -> LaidOut:
    composed = compose(encoding, parameters, choice)
    content = composed.model.SerializeToString(deterministic=True)
    difference = _compare(encoding, parameters, choice, content)
    home = folder / encoding.name
    (home / VERSION).mkdir(parents=True)
    (home / VERSION / "model.onnx").write_bytes(content)
    text = config(encoding.name, composed, wanted.max_batch, _about(encoding, parameters, choice))
    (home / "config.pbtxt").write_text(text, "ascii")
    return LaidOut(encoding.name, len(content), choice.longest, difference)


def _about(encoding: Encoding, parameters: ResolvedParameters, choice: Choice) -> dict[str, str]:
    """What a client may want to know and Triton does not."""
    return {
        "encoding": encoding.id,
        "heads": str(choice.heads),
        "causal": str(choice.causal).lower(),
        "encoding_parameters": json.dumps(parameters.report, sort_keys=True),
        **({} if choice.longest is None else {"longest": str(choice.longest)}),
    }


def _compare(encoding: Encoding, parameters: ResolvedParameters, choice: Choice, content: bytes) -> float:
    """The largest difference from the encoding's two graphs, run as the service runs them. Raises Disagreement."""
    composed = _session(content)
    scores = _session(prune(onnx.load(encoding.graph.path), choice.outputs, True, parameters.switches))
    random = np.random.default_rng(0)
    largest = 0.0
    for tokens in sorted({min(length, choice.longest or length) for length in LENGTHS}):
        width = encoding.width or choice.heads * choice.head_dim
        feeds: dict[str, np.ndarray] = {EMBEDDINGS: random.standard_normal((2, tokens, width), np.float32)}
        if choice.masked:
            feeds[MASK] = random.random((2, tokens)) < 0.7
        expected = _answers(encoding, parameters, choice, scores, feeds)
        given = composed.run(list(choice.outputs), feeds)
        for name, ours, theirs in zip(choice.outputs, given, expected, strict=True):
            unit = 1.0 if name == "weights" else max(1.0, float(np.abs(theirs).max()))
            difference = float(np.abs(ours - theirs).max()) / unit
            if not difference <= TOLERANCE:
                raise Disagreement(f"{encoding.name}: {name} of {tokens} tokens differ by {difference:.1e}")
            largest = max(largest, difference)
    return largest


def _answers(
    encoding: Encoding,
    parameters: ResolvedParameters,
    choice: Choice,
    scores: onnxruntime.InferenceSession,
    feeds: Mapping[str, np.ndarray],
) -> list[np.ndarray]:
    embeddings = feeds[EMBEDDINGS]
    batch, tokens = embeddings.shape[:2]
    at = Positions.first(tokens)
    needs = Needs(encoding, parameters, at, at, choice.causal, choice.heads, choice.head_dim)
    tables = asyncio.run(TableCache(_Sessions()).tables(needs))
    mask = read_mask(feeds[MASK], batch, choice.heads, tokens, tokens) if choice.masked else None
    visible = combine(mask, Sight(choice.causal, encoding.window).mask(at.values, at.values), tokens, tokens)
    x = embeddings if encoding.width else embeddings.reshape(batch, tokens, choice.heads, choice.head_dim)
    values = {
        "queries": x,
        "keys": x,
        "visible": np.ones((1, 1, tokens, tokens), bool) if visible is None else visible,
        **tables.arrays,
    }
    wanted = [entry.name for entry in scores.get_inputs()]
    found: list[np.ndarray] = scores.run(list(choice.outputs), {name: values[name] for name in wanted})
    return found


class _Sessions:
    """Positions graphs, opened once each."""

    def positions(self, path: Path) -> onnxruntime.InferenceSession:
        return _session(path.read_bytes())


def _session(graph: bytes | onnx.ModelProto) -> onnxruntime.InferenceSession:
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = 1
    content = graph if isinstance(graph, bytes) else graph.SerializeToString()
    return onnxruntime.InferenceSession(content, options, providers=["CPUExecutionProvider"])
