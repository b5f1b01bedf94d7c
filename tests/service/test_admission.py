from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from service.admission import Limits, admit, check
from service.catalogue import Model
from service.encoding import Encoding, PositionRules
from service.errors import InvalidInput, PayloadTooLarge
from service.records import AttentionInput
from tests.service import tiny

ROPE = tiny.encoding("rope", even_head_dim=True)
NONE = tiny.encoding("none")
XPOS = tiny.encoding("xpos", causal="required")
WAVES = tiny.encoding("waves", even_width=True)
LEARNED = tiny.encoding("learned", positions=PositionRules(integer=True, minimum=0.0, maximum=50.0))
IDENTITY = Model("identity", {one.id: one for one in (ROPE, NONE, XPOS, WAVES, LEARNED)}, "rope")
LAYER = Model("layer", {"none": tiny.encoding("none", heads=2, head_dim=4, width=8)}, "none")
LIMITS = Limits(tokens=64, width=32, heads=8, batch=3, position=1000.0)


def array(*shape: int) -> np.ndarray:
    return np.random.default_rng(0).standard_normal(shape, dtype=np.float32)


def admitted(heads: int | None = None, model: Model = IDENTITY, **parts: Any) -> Any:
    return admit(AttentionInput(**parts), model, heads, LIMITS)


def test_identity_splits_the_width_into_heads_without_copying() -> None:
    x = array(5, 12)
    request = admitted(3, embeddings=x)
    assert request.queries.shape == (1, 5, 3, 4)
    assert request.queries is request.keys
    assert np.shares_memory(request.queries, x)
    np.testing.assert_array_equal(request.queries[0, 2, 1], x[2, 4:8])
    assert (request.batch, request.heads, request.head_dim, request.cells) == (None, 3, 4, 75)


def test_a_batch_is_kept_and_a_projected_model_keeps_the_width() -> None:
    request = admitted(model=LAYER, embeddings=array(2, 5, 8))
    assert request.queries.shape == (2, 5, 8)
    assert (request.batch, request.heads, request.head_dim, request.cells) == (2, 2, 4, 100)


def test_queries_and_keys_may_differ_in_number() -> None:
    request = admitted(2, queries=array(3, 8), keys=array(5, 8))
    assert request.queries.shape == (1, 3, 2, 4)
    assert request.keys.shape == (1, 5, 2, 4)


def test_positions_are_counted_from_0_for_queries_and_for_keys() -> None:
    request = admitted(queries=array(3, 8), keys=array(5, 8))
    np.testing.assert_array_equal(request.query_positions.values, np.arange(3))
    np.testing.assert_array_equal(request.key_positions.values, np.arange(5))
    request = admitted(queries=array(3, 8), keys=array(5, 8), query_positions=np.array([2.0, 3.0, 4.0]))
    np.testing.assert_array_equal(request.query_positions.values, [2, 3, 4])
    np.testing.assert_array_equal(request.key_positions.values, np.arange(5))


def test_positions_of_embeddings_are_those_of_queries_and_keys() -> None:
    request = admitted(embeddings=array(3, 8), positions=np.array([1.0, 2.0, 5.0]))
    assert request.query_positions is request.key_positions
    request = admitted(embeddings=array(3, 8), key_positions=np.array([1.0, 2.0, 5.0]))
    np.testing.assert_array_equal(request.query_positions.values, np.arange(3))


@pytest.mark.parametrize(
    ("detail", "pointer", "heads", "parts"),
    [
        ("send embeddings, or both queries and keys; neither came", "", None, {}),
        ("; only queries came", "", None, {"queries": array(3, 8)}),
        ("; only keys came", "", None, {"keys": array(3, 8)}),
        (
            "either embeddings or queries and keys, not both",
            "/embeddings",
            None,
            {"embeddings": array(3, 8), "keys": array(3, 8)},
        ),
        (
            "embeddings must be [tokens, width] or [batch, tokens, width], but have shape [8]",
            "/embeddings",
            None,
            {"embeddings": array(8)},
        ),
        ("but have shape [1, 1, 3, 8]", "/embeddings", None, {"embeddings": array(1, 1, 3, 8)}),
        ("embeddings are empty: their shape is [0, 8]", "/embeddings", None, {"embeddings": array(0, 8)}),
        ("queries are empty: their shape is [3, 0]", "/queries", None, {"queries": array(3, 0), "keys": array(3, 8)}),
        ("queries are 8 wide, but keys are 6 wide", "/keys", None, {"queries": array(3, 8), "keys": array(3, 6)}),
        (
            "queries [2, 3, 8] and keys [1, 3, 8] must have the same batch",
            "/keys",
            None,
            {"queries": array(2, 3, 8), "keys": array(1, 3, 8)},
        ),
        (
            "queries [3, 8] and keys [1, 3, 8] must have the same batch",
            "/keys",
            None,
            {"queries": array(3, 8), "keys": array(1, 3, 8)},
        ),
        (
            "width 12 cannot be split into 5 heads; heads may be 1, 2, 3, 4, 6",
            "query:heads",
            5,
            {"embeddings": array(3, 12)},
        ),
        ("width 12 cannot be split into 0 heads", "query:heads", 0, {"embeddings": array(3, 12)}),
        ("width 12 cannot be split into -2 heads", "query:heads", -2, {"embeddings": array(3, 12)}),
        ("2 positions came for 3 tokens", "/positions", None, {"embeddings": array(3, 8), "positions": np.zeros(2)}),
        (
            "4 query_positions came for 3 queries",
            "/query_positions",
            None,
            {"queries": array(3, 8), "keys": array(2, 8), "query_positions": np.zeros(4)},
        ),
        (
            "3 key_positions came for 2 keys",
            "/key_positions",
            None,
            {"queries": array(3, 8), "keys": array(2, 8), "key_positions": np.zeros(3)},
        ),
        (
            "positions must be one list of 3 numbers for the whole batch, but have shape [1, 3]",
            "/positions",
            None,
            {"embeddings": array(3, 8), "positions": np.zeros((1, 3))},
        ),
        (
            "positions are those of embeddings; with queries and keys, send query_positions",
            "/positions",
            None,
            {"queries": array(3, 8), "keys": array(3, 8), "positions": np.zeros(3)},
        ),
        (
            "send either positions",
            "/positions",
            None,
            {"embeddings": array(3, 8), "positions": np.zeros(3), "key_positions": np.zeros(3)},
        ),
        (
            "positions[1] is 1001; allowed: -1,000 to 1,000",
            "/positions/1",
            None,
            {"embeddings": array(3, 8), "positions": np.array([0.0, 1001.0, 5000.0])},
        ),
        (
            "positions[2] is -1e+300",
            "/positions/2",
            None,
            {"embeddings": array(3, 8), "positions": np.array([0.0, 1.0, -1e300])},
        ),
        (
            "positions[1] is nan",
            "/positions/1",
            None,
            {"embeddings": array(3, 8), "positions": np.array([0.0, np.nan, 1.0])},
        ),
        (
            "2 names came under tokens for 3 tokens",
            "/tokens",
            None,
            {"embeddings": array(3, 8), "tokens": ["a", "b"]},
        ),
        (
            "3 names came under tokens for 2 keys",
            "/tokens",
            None,
            {"queries": array(3, 8), "keys": array(2, 8), "tokens": ["a", "b", "c"]},
        ),
    ],
)
def test_what_does_not_fit_is_refused_naming_what_came_and_what_is_allowed(
    detail: str, pointer: str, heads: int | None, parts: dict[str, Any]
) -> None:
    with pytest.raises(InvalidInput) as caught:
        admitted(heads, **parts)
    assert detail in caught.value.detail
    assert caught.value.pointer == pointer


@pytest.mark.parametrize(
    ("detail", "heads", "parts"),
    [
        ("embeddings have 65 tokens; the limit is 64: send fewer", None, {"embeddings": array(65, 8)}),
        ("keys have 65 tokens; the limit is 64", None, {"queries": array(1, 8), "keys": array(65, 8)}),
        ("embeddings have width 33; the limit is 32: send narrower", None, {"embeddings": array(2, 33)}),
        ("embeddings have a batch of 4; the limit is 3: send several requests", None, {"embeddings": array(4, 2, 8)}),
        ("16 heads were asked for; the limit is 8: ask for fewer", 16, {"embeddings": array(2, 32)}),
    ],
)
def test_what_is_over_a_limit_is_refused_naming_number_limit_and_fix(
    detail: str, heads: int | None, parts: dict[str, Any]
) -> None:
    with pytest.raises(PayloadTooLarge) as caught:
        admitted(heads, **parts)
    assert detail in caught.value.detail
    assert caught.value.extra["limit"] in (64, 32, 3, 8)


def test_a_projected_model_says_its_width_and_heads() -> None:
    with pytest.raises(InvalidInput, match="model 'layer' takes embeddings of width 8, but width 6 came"):
        admitted(model=LAYER, embeddings=array(3, 6))
    with pytest.raises(InvalidInput, match="model 'layer' has 2 heads, so heads=4 cannot be asked for"):
        admitted(4, model=LAYER, embeddings=array(3, 8))
    assert admitted(2, model=LAYER, embeddings=array(3, 8)).heads == 2


@pytest.mark.parametrize(
    ("encoding", "detail", "pointer", "heads", "parts"),
    [
        (
            ROPE,
            "rope needs an even head_dim, but width 12 / heads 4 = 3 is odd; heads may be 1, 2, 3, 6",
            "query:heads",
            4,
            {"embeddings": array(3, 12)},
        ),
        (ROPE, "or ask for none, xpos, waves, learned, which take any", "query:heads", 4, {"embeddings": array(3, 12)}),
        (
            ROPE,
            "width 9 / heads 3 = 3 is odd; the width is odd, so no number of heads helps: append a column of zeros",
            "/embeddings",
            3,
            {"embeddings": array(3, 9)},
        ),
        (
            WAVES,
            "waves needs an even width, but width 9 came; append a column of zeros",
            "/embeddings",
            3,
            {"embeddings": array(3, 9)},
        ),
        (
            XPOS,
            "xpos is defined for causal attention only; add causal=true or leave xpos out",
            "query:causal",
            1,
            {"embeddings": array(3, 8)},
        ),
        (
            LEARNED,
            "learned takes whole positions only, but positions[1] is 0.5; round it",
            "/positions/1",
            1,
            {"embeddings": array(3, 8), "positions": np.array([0.0, 0.5, 1.5])},
        ),
        (
            LEARNED,
            "learned takes positions from 0 on, but key_positions[2] is -2",
            "/key_positions/2",
            1,
            {"embeddings": array(3, 8), "key_positions": np.array([0.0, -1.0, -2.0])},
        ),
        (
            LEARNED,
            "learned takes positions up to 50, but positions[0] is 51",
            "/positions/0",
            1,
            {"embeddings": array(3, 8), "positions": np.array([51.0, 0.0, 1.0])},
        ),
    ],
)
def test_what_an_encoding_cannot_serve_is_refused_with_the_fix(
    encoding: Encoding, detail: str, pointer: str, heads: int, parts: dict[str, Any]
) -> None:
    with pytest.raises(InvalidInput) as caught:
        check(encoding, admitted(heads, **parts), False, IDENTITY)
    assert detail in caught.value.detail
    assert caught.value.pointer == pointer


def test_the_fixes_that_errors_name_work() -> None:
    check(ROPE, admitted(6, embeddings=array(3, 12)), False, IDENTITY)
    check(ROPE, admitted(5, embeddings=np.pad(array(3, 9), ((0, 0), (0, 1)))), False, IDENTITY)
    check(XPOS, admitted(embeddings=array(3, 8)), True, IDENTITY)
