"""What position alone contributes to attention, under any encoding: nothing here knows one from another.

Scores are computed for content without differences: zeros leave what is added whatever the content, ones what position
makes of equal content. Beside them stand the position tables, of which a few names have a meaning here: `query_vectors`
[heads, queries, head_dim], what is added to each query; and for each component of a head, [head_dim], `theta`, its
radians per position; `partner`, the other one of its pair, or itself where it does not turn; `band`, the index of the
term that it belongs to.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping
from math import pi

import numpy as np
from jaxtyping import Float, Int

from service.catalogue import Model
from service.conventions import conventions
from service.encoding import Encoding
from service.errors import InvalidInput, PayloadTooLarge, ServiceError, UnknownName
from service.finite import nonfinite
from service.records import AttentionInput, AttentionOptions, EncodingResult, Timings
from service.scoring import PositionTables, Scoring
from service.views.records import DEFAULT_VIEWS, VIEWS, PositionViews, View, ViewOptions

WIDTH, HEAD_DIM, HEADS = 64, 16, (4, 3, 2)
MATRIX = ("heads", "queries", "keys")

BIAS = "scores when every query and every key is 0: what is added whatever the content; before the mask and the softmax"
SIMILARITY = (
    "scores when every token is the same vector, all ones: what position makes of equal content; before the mask and"
    " the softmax"
)
WEIGHTS = "softmax of `similarity` over the keys that a query sees: attention among equal tokens; 0 where masked"
VECTORS = "what is added to the query at each position, its heads side by side"
FREQUENCIES = "radians by which each pair of components turns from one position to the next"
WAVELENGTHS = "positions after which a pair has turned once, 2 pi / frequency; null (infinite) where it does not turn"
BANDS = "the term of the score that a pair belongs to, an index into `terms`"
TABLES = {
    "scale": "factor on q.k",
    "bias": "added to the score of each pair of a query and a key",
    "query_vectors": "added to the query at each position",
    "key_vectors": "added to the key at each position",
    "value_vectors": "added to the value at each position, which changes `output` only",
    "theta": "radians per position of each component",
    "partner": "the other component of each component's pair; its own index where it does not turn",
    "band": "the term that each component belongs to, an index into `terms`",
}
# Where a refusal points into a body, for whoever sent a query string.
_PLACES = {"/queries": "queries", "/keys": "keys", "/embeddings": "width", "/positions": "offset"}


class Views:
    """Answers `ViewOptions` with what scoring computes for content without differences."""

    def __init__(self, scoring: Scoring) -> None:
        self.scoring = scoring

    async def show(
        self, asked: ViewOptions, timings: Timings, deadline: float | None = None, *, picture: bool = False
    ) -> PositionViews:
        """The views asked for; of a `picture` without any, the first of bias and similarity that is not 0 throughout.

        Raises the errors of `service.errors`, pointing into the query string.
        """
        model, encoding = self.scoring.catalogue.find(asked.encoding, asked.model)
        names = _names(asked.views, encoding)
        question = _Question(self.scoring, model, encoding, asked, timings, deadline)
        try:
            if picture and not names:
                return await self._first(question)
            return await question.answer(names or tuple(name for name in DEFAULT_VIEWS if _has(encoding, name)))
        except ServiceError as error:
            error.pointer = _in_query(error.pointer)
            raise

    @staticmethod
    async def _first(question: _Question) -> PositionViews:
        for name in ("bias", "similarity"):
            answer = await question.answer((name,))
            values, visible = answer.views[name].values, answer.visible
            if np.any(values if visible is None else values[:, visible]):
                return answer
        return answer


class _Question:
    """One question, asked of scoring as often as it takes."""

    def __init__(
        self,
        scoring: Scoring,
        model: Model,
        encoding: Encoding,
        asked: ViewOptions,
        timings: Timings,
        deadline: float | None,
    ) -> None:
        self.scoring, self.model, self.encoding = scoring, model, encoding
        self.asked, self.timings, self.deadline = asked, timings, deadline
        self.heads, self.width = _sizes(model, encoding, asked)
        limits = scoring.limits
        for name, size, limit in (
            ("queries", asked.queries, limits.tokens),
            ("keys", asked.keys, limits.tokens),
            ("width", self.width, limits.width),
        ):
            if size > limit:
                raise PayloadTooLarge(
                    f"{name}={size} was asked for; the limit is {limit:,}", pointer=f"query:{name}", limit=limit
                )

    async def answer(self, names: tuple[str, ...]) -> PositionViews:
        asked = self.asked
        began = time.perf_counter()
        found = await self.scoring.position_tables(self._input(0.0), self._options(("scores",)))
        self.timings.compute += time.perf_counter() - began
        views: dict[str, View] = {}
        if "bias" in names:
            nothing = await self._score(0.0, ("scores",))
            views["bias"] = View(MATRIX, BIAS, _array(nothing.scores))
        returns = tuple(of for name, of in (("similarity", "scores"), ("weights", "weights")) if name in names)
        if returns:
            same = await self._score(1.0, returns)
            if "similarity" in names:
                views["similarity"] = View(MATRIX, SIMILARITY, _array(same.scores))
            if "weights" in names:
                views["weights"] = View(MATRIX, WEIGHTS, _array(same.weights))
        if "vectors" in names:
            views["vectors"] = View(("queries", "width"), VECTORS, _joined(found.tables["query_vectors"]))
        if "frequencies" in names:
            views |= _turning(found.tables)
        return PositionViews(
            model=self.model.name,
            encoding=self.encoding.id,
            title=self.encoding.title,
            heads=found.heads,
            head_dim=found.head_dim,
            queries=asked.queries,
            keys=asked.keys,
            offset=asked.offset,
            causal=found.causal,
            parameters=found.parameters,
            conventions=conventions(self.encoding.conventions, found.parameters, found.given),
            terms=tuple(term.name for term in self.encoding.terms),
            views=views,
            tables=self._described(found) if "tables" in names else {},
            nonfinite_cells=nonfinite(view.values for view in views.values() if view.axes == MATRIX),
            timings=self.timings,
        )

    def _described(self, found: PositionTables) -> dict[str, View]:
        """Every table but those of switches that are off, which nothing reads."""
        off = {name for name in self.encoding.switches if name not in found.parameters}
        return {
            name: View(tuple(map(str, self.encoding.tables[name])), _description(name, self.encoding), values)
            for name, values in found.tables.items()
            if name not in off
        }

    async def _score(self, content: float, returns: tuple[str, ...]) -> EncodingResult:
        options = self._options(returns)
        result = await self.scoring.score(self._input(content), options, self.timings, self.deadline)
        return result.results[0]

    def _input(self, content: float) -> AttentionInput:
        asked = self.asked
        return AttentionInput(
            queries=np.full((asked.queries, self.width), content, np.float32),
            keys=np.full((asked.keys, self.width), content, np.float32),
            query_positions=asked.offset + np.arange(asked.queries, dtype=np.float64),
            key_positions=asked.offset + np.arange(asked.keys, dtype=np.float64),
        )

    def _options(self, returns: tuple[str, ...]) -> AttentionOptions:
        return AttentionOptions(
            encoding=self.encoding.id,
            model=self.model.name,
            heads=self.heads,
            causal=self.asked.causal,
            returns=returns,
            scalars=self.asked.scalars,
        )


def _names(asked: Iterable[str], encoding: Encoding) -> tuple[str, ...]:
    names = tuple(dict.fromkeys(asked))
    for name in names:
        if name not in VIEWS:
            raise UnknownName("view", name, VIEWS, pointer="query:view")
        if not _has(encoding, name):
            having = [view for view in VIEWS if _has(encoding, view)]
            raise InvalidInput(
                f"{encoding.id} has no {name}; it has {', '.join(having)}", pointer="query:view", allowed=having
            )
    return names


def _has(encoding: Encoding, view: str) -> bool:
    match view:
        case "vectors":
            return encoding.tables.get("query_vectors") == ("heads", "queries", "head_dim")
        case "frequencies":
            return encoding.tables.get("theta") == ("head_dim",)
        case _:
            return True


def _sizes(model: Model, encoding: Encoding, asked: ViewOptions) -> tuple[int | None, int]:
    """Heads and width: those asked for, the model's own, or 4 heads of 16, or what comes nearest with the other."""
    if model.width is not None:
        if asked.width not in (None, model.width):
            raise InvalidInput(
                f"model {model.name!r} is {model.width} wide, but width={asked.width} was asked for; leave it out",
                pointer="query:width",
            )
        return asked.heads, model.width
    heads, width = asked.heads, asked.width
    if width is None:
        width = WIDTH if heads is None or WIDTH % (2 * heads) == 0 else HEAD_DIM * heads
    elif width % 2 and (encoding.even_head_dim or encoding.even_width):
        what = "an even head_dim" if encoding.even_head_dim else "an even width"
        raise InvalidInput(f"{encoding.id} needs {what}, which width={width} cannot give", pointer="query:width")
    if heads is None:
        heads = next((count for count in HEADS if width % (2 * count) == 0), 1)
    return heads, width


def _array(values: np.ndarray | None) -> Float[np.ndarray, "heads queries keys"]:
    assert values is not None  # it was asked for
    return values


def _joined(vectors: Float[np.ndarray, "heads tokens head_dim"]) -> Float[np.ndarray, "tokens width"]:
    return vectors.swapaxes(0, 1).reshape(vectors.shape[1], -1)


def _turning(tables: Mapping[str, np.ndarray]) -> dict[str, View]:
    """Frequencies, wavelengths and (where there are any) bands, one for each pair of components that turns together."""
    theta: Float[np.ndarray, " head_dim"] = tables["theta"]
    components = np.arange(len(theta))
    partner: Int[np.ndarray, " head_dim"] = tables.get("partner", components + 1)
    first = components < partner
    frequencies = theta[first]
    with np.errstate(divide="ignore"):
        wavelengths = np.where(frequencies == 0, np.inf, 2 * pi / frequencies)
    views = {
        "frequencies": View(("pairs",), FREQUENCIES, frequencies),
        "wavelengths": View(("pairs",), WAVELENGTHS, wavelengths),
    }
    if "band" in tables:
        views["bands"] = View(("pairs",), BANDS, tables["band"][first])
    return views


def _description(name: str, encoding: Encoding) -> str:
    parameter = encoding.parameter(name)
    if name in TABLES:
        return TABLES[name]
    return parameter.description if parameter is not None else "a table that the scores are computed from"


def _in_query(pointer: str | None) -> str | None:
    if pointer is None or pointer.startswith("query:"):
        return pointer
    place = pointer.replace("query_positions", "positions").replace("key_positions", "positions")
    return next((f"query:{name}" for start, name in _PLACES.items() if place.startswith(start)), pointer)
