from __future__ import annotations

import json
from typing import Any

import numpy as np
import pytest

from service.catalogue import Model
from service.encoding import Encoding, Initial, Order, Parameter, PositionRules, Size
from service.errors import InvalidInput, ParameterOutOfRange, PayloadTooLarge, ServiceError, UnknownName
from service.instance import Instance
from service.parameters import Parameters, ResolvedParameters, Sizes, assign
from tests.service import tiny

NORMAL = Initial("normal", 0.0, 0.02, seed=12345)
ROPE = tiny.encoding(
    "rope",
    Parameter("theta", "number", default=10000.0, minimum=1.0, maximum=1e15),
    Parameter("layout", "choice", default="interleaved", choices=("interleaved", "half")),
    Parameter("factors", "numbers", default=(1.0, 2.0), minimum=0.5),
)
T5 = tiny.encoding(
    "t5",
    Parameter(
        "bias", "array", shape=("buckets", "heads"), sizes={"buckets": Size(32, 4, 4096, multiple=4)}, initial=NORMAL
    ),
    Parameter("max_distance", "integer", default=128, minimum=2, maximum=1_000_000),
    Parameter("reset", "flag", default=False),
    aliases=("relative-2",),
)
LEARNED = tiny.encoding(
    "learned",
    Parameter("table", "array", shape=("positions", "width"), sizes={"positions": Size(0, 1, 100)}, initial=NORMAL),
    positions=PositionRules(integer=True, minimum=0, rows_of="table"),
)
SHAW = tiny.encoding(
    "shaw",
    Parameter("keys", "array", shape=("rows", "head_dim"), sizes={"rows": Size(33, 1, 99, 2, 1)}, initial=NORMAL),
    Parameter("values", "array", shape=("rows", "head_dim"), sizes={"rows": Size(33, 1, 99, 2, 1)}, initial=NORMAL),
)
YARN = tiny.encoding("yarn", Parameter("attention_factor", "number", minimum=0.0, maximum=9.0))
NONE = tiny.encoding("none")
BANDS = tiny.encoding(
    "bands",
    Parameter("low", "number", default=1.0),
    Parameter("high", "number", default=4.0),
    Parameter("slow", "integer", default=1),
    Parameter("fast", "integer", default=32),
    orders=(Order("low", "high"), Order("slow", "fast", strict=False)),
)
MODEL = Model("identity", {one.id: one for one in (ROPE, T5, LEARNED, SHAW, YARN, NONE, BANDS)}, "rope")
SIZES = Sizes(heads=4, head_dim=8, positions=10)


def resolve(
    *encodings: Encoding,
    scalars: dict[str, str] | None = None,
    arrays: dict[str, Any] | None = None,
    sizes: Sizes = SIZES,
    parameters: Parameters | None = None,
) -> dict[str, ResolvedParameters]:
    sent = {name: np.asarray(array, np.float32) for name, array in (arrays or {}).items()}
    given = assign(MODEL, [Instance(one) for one in encodings], scalars or {}, sent)
    return {one.id: (parameters or Parameters()).resolve(one, given[one.id], sizes) for one in encodings}


def test_defaults_come_from_the_card() -> None:
    resolved = resolve(ROPE, T5)
    assert resolved["rope"].report == {"theta": 10000.0, "layout": "interleaved", "factors": [1.0, 2.0]}
    assert resolved["t5"].report == {
        "bias": {"shape": [32, 4], "source": "default: normal(0, 0.02), seed 12345"},
        "max_distance": 128,
        "reset": False,
    }
    json.dumps([one.report for one in resolved.values()])
    feeds = resolved["rope"].feeds() | resolved["t5"].feeds()
    assert {name: (feed.dtype.name, feed.shape) for name, feed in feeds.items()} == {
        "parameter.theta": ("float64", ()),
        "parameter.layout": ("int64", ()),
        "parameter.factors": ("float64", (2,)),
        "parameter.bias": ("float32", (32, 4)),
        "parameter.max_distance": ("int64", ()),
        "parameter.reset": ("bool", ()),
    }
    assert feeds["parameter.layout"] == 0


def test_the_query_sets_scalars_of_any_kind() -> None:
    scalars = {"rope.theta": "5e5", "rope.layout": "Half", "rope.factors": "1, 2.5,3", "t5.max_distance": "64"}
    resolved = resolve(ROPE, T5, scalars={**scalars, "relative-2.reset": "true"})
    assert resolved["rope"].report == {"theta": 500000.0, "layout": "half", "factors": [1.0, 2.5, 3.0]}
    assert (resolved["t5"].report["max_distance"], resolved["t5"].report["reset"]) == (64, True)
    feeds = resolved["rope"].feeds()
    assert feeds["parameter.theta"] == 500000.0
    assert feeds["parameter.layout"] == 1
    np.testing.assert_array_equal(feeds["parameter.factors"], [1.0, 2.5, 3.0])


def test_the_body_sets_arrays_and_scalars() -> None:
    bias = np.arange(32, dtype=np.float32).reshape(8, 4)
    resolved = resolve(T5, ROPE, arrays={"T5.bias": bias, "rope.theta": 0.1 + 1, "rope.factors": [1.1, 2.2]})
    assert resolved["t5"].report["bias"] == {"shape": [8, 4], "source": "request"}
    np.testing.assert_array_equal(resolved["t5"].feeds()["parameter.bias"], bias)
    assert resolved["rope"].report["theta"] == 1.1
    assert resolved["rope"].report["factors"] == [1.1, 2.2]


def test_a_number_without_a_default_is_fed_as_nan_unless_it_is_given() -> None:
    assert np.isnan(resolve(YARN)["yarn"].feeds()["parameter.attention_factor"])
    assert resolve(YARN)["yarn"].report == {}
    given = resolve(YARN, scalars={"yarn.attention_factor": "1.5"})["yarn"]
    assert given.feeds()["parameter.attention_factor"] == 1.5
    assert given.report == {"attention_factor": 1.5}


def test_feeds_cannot_be_written_to() -> None:
    for feed in resolve(T5, arrays={"t5.bias": np.ones((4, 4))})["t5"].feeds().values():
        with pytest.raises(ValueError, match="read-only"):
            feed[...] = 0


def test_what_the_request_changes_afterwards_changes_nothing() -> None:
    bias = np.ones((4, 4), np.float32)
    resolved = resolve(T5, arrays={"t5.bias": bias})["t5"]
    bias[:] = 9
    assert resolved.feeds()["parameter.bias"].max() == 1


def test_the_digest_tells_values_apart_and_equal_values_alike() -> None:
    ones = np.ones((4, 4))
    same = [resolve(ROPE)["rope"], resolve(ROPE, scalars={"rope.theta": "1e4"})["rope"]]
    assert same[0].digest == same[1].digest
    different = [
        resolve(T5)["t5"],
        resolve(T5, scalars={"t5.max_distance": "64"})["t5"],
        resolve(T5, arrays={"t5.bias": ones})["t5"],
        resolve(T5, arrays={"t5.bias": ones * 2})["t5"],
        resolve(T5, arrays={"t5.bias": np.ones((8, 4))})["t5"],
        resolve(T5, sizes=Sizes(2, 8, 10))["t5"],
    ]
    assert len({one.digest for one in different}) == len(different)


def test_a_request_of_defaults_is_resolved_once() -> None:
    parameters = Parameters()
    first = resolve(T5, parameters=parameters)["t5"]
    assert resolve(T5, parameters=parameters, sizes=Sizes(4, 8, 99))["t5"] is first
    assert resolve(T5, parameters=parameters, sizes=Sizes(2, 8, 10))["t5"] is not first


def test_a_table_indexed_by_position_has_as_many_rows_as_the_request_needs() -> None:
    assert resolve(LEARNED)["learned"].report["table"]["shape"] == [10, 32]
    assert resolve(LEARNED, sizes=Sizes(4, 8, 100))["learned"].feeds()["parameter.table"].shape == (100, 32)


def test_axes_of_one_name_are_equal() -> None:
    """The default of `values` follows the rows of `keys` that came."""
    resolved = resolve(SHAW, arrays={"shaw.keys": np.ones((5, 8))})["shaw"]
    assert resolved.report["values"]["shape"] == [5, 8]


def test_names_of_unserved_encodings_and_parameters_are_refused() -> None:
    assert resolve(NONE)["none"].feeds() == {}
    with pytest.raises(InvalidInput, match=r"'none\.x': none has no parameters"):
        resolve(NONE, scalars={"none.x": "1"})


@pytest.mark.parametrize(
    ("error", "detail", "sent"),
    [
        (UnknownName, "unknown encoding 'rop'; did you mean rope", {"rop.theta": "1"}),
        (UnknownName, r"unknown parameter of rope 'rope.thet'; did you mean rope.theta", {"rope.thet": "1"}),
        (UnknownName, r"unknown parameter 'theta'; did you mean rope.theta", {"theta": "1"}),
        (
            InvalidInput,
            "'learned.table' is a parameter of learned, which this request does not ask for",
            {"learned.table": "1"},
        ),
        (InvalidInput, "rope.theta must be a finite number, but is 'fast'", {"rope.theta": "fast"}),
        (InvalidInput, "rope.theta must be a finite number, but is 'inf'", {"rope.theta": "inf"}),
        (InvalidInput, "rope.theta must be a finite number, but is '1_0'", {"rope.theta": "1_0"}),
        (ParameterOutOfRange, r"rope.theta is 0.5; allowed: 1 to 1e\+15", {"rope.theta": "0.5"}),
        (ParameterOutOfRange, "t5.max_distance is 1; allowed: 2 to 1,000,000", {"t5.max_distance": "1"}),
        (InvalidInput, "t5.max_distance must be a whole number, but is '12.5'", {"t5.max_distance": "12.5"}),
        (InvalidInput, "t5.max_distance must be a whole number, but is '9{80}", {"t5.max_distance": "9" * 300}),
        (InvalidInput, "t5.reset must be true or false, but is 'perhaps'", {"t5.reset": "perhaps"}),
        (
            UnknownName,
            r"unknown value of rope.layout 'halves'; did you mean half\? Known: interleaved, half",
            {"rope.layout": "halves"},
        ),
        (
            InvalidInput,
            "rope.factors must be finite numbers separated by commas, but holds 'x'",
            {"rope.factors": "1,x"},
        ),
        (InvalidInput, "rope.factors must be at least one number", {"rope.factors": " "}),
        (ParameterOutOfRange, "rope.factors is 0.1; allowed: at least 0.5", {"rope.factors": "1,0.1"}),
        (InvalidInput, r"t5.bias is an array \[buckets, heads\]; send it in the body", {"t5.bias": "1"}),
        (InvalidInput, "rope.theta is given twice", {"rope.theta": "1", "ROPE.theta": "2"}),
    ],
)
def test_a_wrong_query_is_refused_by_name(error: type[ServiceError], detail: str, sent: dict[str, str]) -> None:
    with pytest.raises(error, match=detail) as caught:
        resolve(ROPE, T5, scalars=sent)
    assert type(caught.value) is error
    assert caught.value.status == 422
    assert caught.value.pointer == f"query:{list(sent)[-1]}"


@pytest.mark.parametrize(
    ("error", "detail", "sent"),
    [
        (
            InvalidInput,
            r"t5.bias must be \[buckets: 4 to 4096, a multiple of 4, heads = 4\], but has shape \[32, 3\]",
            {"t5.bias": np.ones((32, 3))},
        ),
        (InvalidInput, r"but has shape \[32\]", {"t5.bias": np.ones(32)}),
        (
            ParameterOutOfRange,
            "t5.bias has 30 buckets; allowed: 4 to 4096, a multiple of 4",
            {"t5.bias": np.ones((30, 4))},
        ),
        (
            ParameterOutOfRange,
            "shaw.keys has 4 rows; allowed: 1 to 99, a multiple of 2 plus 1",
            {"shaw.keys": np.ones((4, 8))},
        ),
        (
            InvalidInput,
            r"shaw.values must be \[rows = 5 as in shaw.keys, head_dim = 8\], but has shape \[7, 8\]",
            {"shaw.keys": np.ones((5, 8)), "shaw.values": np.ones((7, 8))},
        ),
        (
            InvalidInput,
            r"learned.table must be \[positions: 1 to 100, width = 32\]",
            {"learned.table": np.ones((10, 31))},
        ),
        (InvalidInput, r"rope.theta must be one number, but is an array of shape \[2\]", {"rope.theta": [1, 2]}),
        (InvalidInput, "t5.max_distance must be a whole number, but is '12.5'", {"t5.max_distance": 12.5}),
        (InvalidInput, "t5.reset must be true or false, but is '2.0'", {"t5.reset": 2}),
        (InvalidInput, "rope.layout must be one of interleaved, half", {"rope.layout": 1}),
        (UnknownName, "unknown encoding 'a/b'", {"a/b.c": 1}),
    ],
)
def test_a_wrong_body_is_refused_by_name(error: type[ServiceError], detail: str, sent: dict[str, Any]) -> None:
    with pytest.raises(error, match=detail) as caught:
        resolve(ROPE, T5, SHAW, LEARNED, arrays=sent)
    assert type(caught.value) is error
    assert caught.value.pointer == f"/parameters/{list(sent)[-1]}".replace("a/b", "a~1b")


def test_a_parameter_given_in_query_and_body_is_refused() -> None:
    with pytest.raises(InvalidInput, match=r"rope\.theta is given twice"):
        resolve(ROPE, scalars={"rope.theta": "1"}, arrays={"rope.theta": 1})


def test_a_parameter_of_an_encoding_left_out_says_why() -> None:
    with pytest.raises(
        InvalidInput, match=r"'rope\.theta' is a parameter of rope, which cannot serve this request: it is odd"
    ):
        assign(MODEL, [Instance(T5)], {"rope.theta": "1"}, {}, {"rope": "it is odd"})


def test_positions_beyond_the_largest_table_are_refused() -> None:
    with pytest.raises(
        InvalidInput, match=r"position 100 has no row in learned\.table, which has 100 rows .*from 0 to 99"
    ):
        resolve(LEARNED, sizes=Sizes(4, 8, 101))


def test_positions_beyond_the_table_that_came_are_refused() -> None:
    with pytest.raises(InvalidInput, match=r"position 9 has no row in learned\.table, which has 9 rows \(brought by"):
        resolve(LEARNED, arrays={"learned.table": np.ones((9, 32))})
    assert resolve(LEARNED, arrays={"learned.table": np.ones((10, 32))})


def test_a_default_array_has_a_limit() -> None:
    with pytest.raises(
        PayloadTooLarge, match=r"learned\.table would have positions 10 x width 32 = 320 numbers; the limit .* 300"
    ):
        resolve(LEARNED, parameters=Parameters(largest=300))


@pytest.mark.parametrize(
    ("sent", "detail", "blamed"),
    [
        ({"low": "4", "high": "4"}, "bands.high is 4; allowed: more than bands.low, which is 4", "high"),
        ({"low": "5", "high": "4.5"}, "bands.high is 4.5; allowed: more than bands.low, which is 5", "high"),
        ({"high": "0.5"}, "bands.high is 0.5; allowed: more than bands.low, which is 1 by default", "high"),
        ({"low": "9"}, "bands.low is 9; allowed: less than bands.high, which is 4 by default", "low"),
        ({"slow": "33"}, "bands.slow is 33; allowed: at most bands.fast, which is 32 by default", "slow"),
        ({"fast": "0"}, "bands.fast is 0; allowed: at least bands.slow, which is 1 by default", "fast"),
    ],
)
def test_numbers_that_must_be_in_order_are(sent: dict[str, str], detail: str, blamed: str) -> None:
    with pytest.raises(ParameterOutOfRange) as caught:
        resolve(BANDS, scalars={f"bands.{name}": value for name, value in sent.items()})
    assert caught.value.detail == detail
    assert caught.value.pointer == f"query:bands.{blamed}"
    resolve(BANDS, scalars={"bands.slow": "32", "bands.low": "3.999"})
