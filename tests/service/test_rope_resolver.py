"""Configurations of published checkpoints and random ones, against transformers."""

from __future__ import annotations

import asyncio
import copy
import math
import re
import shlex
from pathlib import Path
from typing import Any
from urllib.parse import parse_qsl

import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from transformers import AutoConfig
from transformers.models.deepseek_v2.modeling_deepseek_v2 import DeepseekV2Attention
from transformers.models.deepseek_v3.modeling_deepseek_v3 import DeepseekV3Attention

from service.catalogue import Catalogue
from service.engine.session import Sessions
from service.errors import InvalidInput
from service.rope_resolver import RopeResolver
from service.tables import TableCache
from tests.service import rope_oracle
from tests.service.checkpoints import (
    CHECKPOINTS,
    DEEPSEEK_V2,
    DEEPSEEK_V3,
    GEMMA_3_4B,
    GEMMA_3_NEW,
    GEMMA_4,
    GPT_J,
    GPT_OSS_20B,
    LLAMA_3_1_8B,
    LLAMA_DYNAMIC,
    LLAVA,
    PHI_3_128K,
    PYTHIA,
    QWEN_2_5_YARN,
    SHORT_FACTOR,
)

TOLERANCE = 1e-6
RESOLVER = RopeResolver(
    Catalogue.read([Path(__file__).parents[2] / "exported"]), TableCache(Sessions("cpu"), capacity=8 << 20)
)


def resolve(document: Any, **more: Any) -> dict[str, Any]:
    return asyncio.run(RESOLVER.resolve(document, "http://here/attention", **more))


def only(document: Any, **more: Any) -> dict[str, Any]:
    (result,) = resolve(document, **more)["results"]
    assert isinstance(result, dict)
    return result


def assert_equal(result: dict[str, Any], expected: rope_oracle.Frequencies) -> None:
    frequencies, attention_factor = expected
    assert len(result["inverse_frequencies"]) == len(frequencies)
    np.testing.assert_allclose(result["inverse_frequencies"], frequencies, rtol=TOLERANCE, atol=0)
    assert math.isclose(result["attention_factor"], attention_factor, rel_tol=TOLERANCE)


@pytest.mark.parametrize("name", [name for name in CHECKPOINTS if name != "gpt_j"])
def test_published_configurations_come_to_what_transformers_makes_of_them(name: str) -> None:
    expected = rope_oracle.checkpoint(CHECKPOINTS[name])
    results = resolve(CHECKPOINTS[name])["results"]
    assert {result["layer_type"] for result in results} == set(expected)
    for result in results:
        assert_equal(result, expected[result["layer_type"]])


@pytest.mark.parametrize("length", [1, 2048, 2049, 5000, 8192, 100_000])
def test_dynamic_scaling_follows_the_length_of_the_request(length: int) -> None:
    result = only(LLAMA_DYNAMIC, length=length)
    assert result["length"] == length
    assert_equal(result, rope_oracle.checkpoint(LLAMA_DYNAMIC, length)[None])


@pytest.mark.parametrize("length", [1, 4096, 4097, 131072])
def test_longrope_takes_the_list_of_the_request_s_length(length: int) -> None:
    result = only(PHI_3_128K, length=length)
    assert_equal(result, rope_oracle.checkpoint(PHI_3_128K, length)[None])
    slowed = result["inverse_frequencies"][47] * 10000 ** (47 / 48)
    assert math.isclose(1 / slowed, PHI_3_128K["rope_scaling"]["long_factor" if length > 4096 else "short_factor"][47])


def test_frequencies_that_depend_on_the_length_are_shown_at_the_trained_length_and_said_to_be() -> None:
    answer = resolve(PHI_3_128K)
    assert answer["results"][0]["length"] == 4096
    assert [one["kind"] for one in answer["warnings"] if one["key"] == "query:length"] == ["default"]
    asked = resolve(PHI_3_128K, length=4096)
    assert asked["results"][0]["inverse_frequencies"] == answer["results"][0]["inverse_frequencies"]
    assert all(one["key"] != "query:length" for one in asked["warnings"])


def test_a_length_that_makes_no_difference_is_said_to_make_none() -> None:
    (said,) = (one for one in resolve(PYTHIA, length=9000)["warnings"] if one["key"] == "query:length")
    assert said["kind"] == "unused"


@st.composite
def llamas(draw: st.DrawFn) -> tuple[dict[str, Any], int | None]:
    """A configuration that transformers reads too, and a length."""
    head_dim = 2 * draw(st.integers(2, 80))
    kind = draw(st.sampled_from(["default", "linear", "dynamic", "yarn", "longrope", "llama3", "proportional"]))
    theta = draw(st.sampled_from([1e4, 5e5, 1e6, 5e6]) | st.floats(100, 1e8))
    turning = 2 * draw(st.integers(1 if kind != "dynamic" else 2, head_dim // 2))
    fraction = draw(st.sampled_from([None, turning / head_dim]))
    assume(int(turning / head_dim * head_dim) == turning)  # else transformers turns an odd number: tested below
    if kind == "proportional":
        fraction = draw(st.none() | st.floats(0.1, 1))
    turning = head_dim if fraction is None else turning
    original = draw(st.integers(64, 300_000))
    factor = draw(st.sampled_from([1.0, 2.0, 8.0, 40.0]) | st.floats(1, 100))
    longest = draw(st.sampled_from([original, math.ceil(original * factor)]) | st.integers(original, 2_000_000))
    settings: dict[str, Any] = {"rope_type": kind, "rope_theta": theta}
    length = None
    optional: dict[str, st.SearchStrategy[Any]] = {}
    if kind in ("linear", "dynamic", "yarn", "llama3"):
        settings["factor"] = factor
    if kind in ("yarn", "longrope", "llama3"):
        settings["original_max_position_embeddings"] = original
    if kind == "dynamic":
        length = draw(st.integers(1, 4 * longest))
    if kind == "yarn":
        optional = {
            "beta_fast": st.floats(4, 64),
            "beta_slow": st.floats(0.3, 3),
            "truncate": st.booleans(),
            "attention_factor": st.floats(0.5, 2),
            "mscale": st.floats(0.5, 2),
            "mscale_all_dim": st.floats(0.5, 2),
        }
    if kind == "longrope":
        entries = st.lists(st.floats(0.5, 64), min_size=turning // 2, max_size=turning // 2)
        settings |= {"short_factor": draw(entries), "long_factor": draw(entries)}
        optional = {"factor": st.just(factor), "attention_factor": st.floats(0.5, 2)}
        length = draw(st.integers(1, 2 * original))
    if kind == "llama3":
        settings |= {"low_freq_factor": draw(st.floats(0.5, 2)), "high_freq_factor": draw(st.floats(3, 8))}
    if kind == "proportional":
        optional = {"factor": st.just(factor)}
    settings |= {name: draw(values) for name, values in optional.items() if draw(st.booleans())}
    document = {
        "model_type": "llama",
        "head_dim": head_dim,
        "hidden_size": 4 * head_dim,
        "num_attention_heads": 4,
        "max_position_embeddings": longest,
        "rope_parameters": settings,
    }
    if fraction is not None:
        settings["partial_rotary_factor"] = fraction
    return document, length


@settings(max_examples=300, deadline=None)
@given(llamas())
def test_any_configuration_comes_to_what_transformers_makes_of_it(sample: tuple[dict[str, Any], int | None]) -> None:
    document, length = sample
    fields = {name: value for name, value in document.items() if name != "model_type"}
    if document["rope_parameters"]["rope_type"] == "default":
        # LlamaRotaryEmbedding turns whole heads only; with a factor of 1 the linear one is the same and takes parts.
        fields["rope_parameters"] = {**fields["rope_parameters"], "rope_type": "linear", "factor": 1.0}
    assert_equal(only(document, length=length), rope_oracle.llama(length, **fields))


@pytest.mark.parametrize("share", [0.9999999999999999, 0.49999999999999994, 0.25])
def test_a_share_a_hair_below_a_whole_pair_turns_as_many_pairs_as_in_transformers(share: float) -> None:
    rope = {"rope_type": "proportional", "rope_theta": 10000.0, "partial_rotary_factor": share}
    sizes = {"head_dim": 64, "hidden_size": 128, "num_attention_heads": 2, "max_position_embeddings": 64}
    frequencies = only({"model_type": "llama", **sizes, "rope_parameters": rope})["inverse_frequencies"]
    assert sum(one > 0 for one in frequencies) == int(share * 64 // 2)


def test_llama_3_1_keeps_29_pairs_divides_29_and_blends_6() -> None:
    result = only(LLAMA_3_1_8B)
    assert result["pairs"] == {
        "kept": list(range(29)),
        "blended": list(range(29, 35)),
        "divided": list(range(35, 64)),
    }
    plain = 500000 ** (-np.arange(64) / 64)
    np.testing.assert_allclose(result["inverse_frequencies"][:29], plain[:29], rtol=1e-12)
    np.testing.assert_allclose(result["inverse_frequencies"][35:], plain[35:] / 8, rtol=1e-12)


def test_yarn_says_where_its_ramp_begins_and_ends() -> None:
    """Qwen's: the ramp's ends are floor(D ln(L/(32 2 pi))/(2 ln b)) = 23 and ceil(D ln(L/2 pi)/(2 ln b)) = 40."""
    pairs = only(QWEN_2_5_YARN)["pairs"]
    assert pairs["kept"] == list(range(24))
    assert pairs["blended"] == list(range(24, 40))
    assert pairs["divided"] == list(range(40, 64))


def test_a_factor_of_1_keeps_every_pair() -> None:
    scaling = {"type": "yarn", "factor": 1.0, "original_max_position_embeddings": 4096}
    result = only({"model_type": "llama", "head_dim": 16, "rope_scaling": scaling})
    assert result["pairs"] == {"kept": list(range(8)), "blended": [], "divided": []}


def test_wavelengths_are_positions_per_turn_and_null_where_nothing_turns() -> None:
    full, sliding = resolve(GEMMA_4)["results"]
    assert full["encoding"] == "rope-proportional"
    assert len(full["wavelengths"]) == 256
    assert full["wavelengths"][64:] == [None] * 192
    assert full["bands"][64:] == ["unrotated"] * 192
    for result in (full, sliding):
        for theta, wavelength in zip(result["inverse_frequencies"], result["wavelengths"], strict=True):
            assert wavelength is None if theta == 0 else math.isclose(theta * wavelength, 2 * math.pi)


def test_bands_are_thirds_of_the_pairs_that_turn() -> None:
    result = only(PYTHIA)  # a quarter of 128 components: 16 pairs
    assert result["bands"] == ["fast"] * 6 + ["medium"] * 5 + ["slow"] * 5


def test_interleaved_and_half_layouts_give_the_pairs_in_the_same_order() -> None:
    half = only(LLAMA_3_1_8B)
    interleaved = only({**LLAMA_3_1_8B, "rope_interleave": True})
    assert interleaved["parameters"]["layout"] == "interleaved"
    for name in ("inverse_frequencies", "bands", "pairs"):
        assert half[name] == interleaved[name]


def test_deepseek_s_scale_has_the_whole_head_and_the_square_of_its_magnitude() -> None:
    v3, v2 = only(DEEPSEEK_V3), only(DEEPSEEK_V2)
    assert v3["attention_factor"] == v2["attention_factor"] == 1
    assert math.isclose(v3["parameters"]["scale"], 192**-0.5 * (0.1 * math.log(40) + 1) ** 2)
    assert math.isclose(v2["parameters"]["scale"], 192**-0.5 * (0.0707 * math.log(40) + 1) ** 2)


SMALL_HEADS = {"hidden_size": 16, "num_attention_heads": 1, "num_key_value_heads": 1, "q_lora_rank": 8}
SMALL_HEADS |= {"kv_lora_rank": 8, "v_head_dim": 8, "max_position_embeddings": 4096}


@pytest.mark.parametrize("sizes", [{}, {"qk_rope_head_dim": 16, "qk_nope_head_dim": 48}], ids=["default", "own"])
@pytest.mark.parametrize("model_type", ["deepseek_v2", "deepseek_v3"])
def test_the_scale_of_deepseek_s_attention_is_told_and_asked_for(model_type: str, sizes: dict[str, int]) -> None:
    """As transformers' own attention has it, with the sizes that its configuration has by default too."""
    scaling = DEEPSEEK_V3["rope_scaling"]
    told = {"model_type": model_type, "rope_theta": 10000, "rope_scaling": {**scaling, "mscale_all_dim": 0.8}, **sizes}
    theirs = AutoConfig.for_model(**SMALL_HEADS, **copy.deepcopy(told))
    attention = DeepseekV3Attention if model_type == "deepseek_v3" else DeepseekV2Attention
    scale = attention(theirs, 0).scaling
    answer = resolve(told)
    (result,) = answer["results"]
    assert result["parameters"]["scale"] == pytest.approx(scale, rel=1e-12)
    assert f"rope-yarn.scale={result['parameters']['scale']}" in result["query"]
    (warning,) = [one for one in answer["warnings"] if one["key"] == "rope_scaling.mscale_all_dim"]
    assert f"scale={result['parameters']['scale']!r}" in warning["message"]
    whole = theirs.qk_nope_head_dim + theirs.qk_rope_head_dim
    (factor,) = re.findall(r"\^2 = ([0-9.]+)", warning["message"])
    assert float(factor) == pytest.approx(scale * whole**0.5, rel=1e-12)


def test_settings_alone_do_not_say_whose_scale_they_change_so_a_warning_does() -> None:
    scaling = {**DEEPSEEK_V3["rope_scaling"], "rope_theta": 10000}
    answer = resolve(scaling, head_dim=64)
    (result,) = answer["results"]
    assert "scale" not in result["parameters"]
    (warning,) = [one for one in answer["warnings"] if one["key"] == "mscale_all_dim" and one["kind"] == "note"]
    assert f"scale={64**-0.5 * (0.1 * math.log(40) + 1) ** 2!r}" in warning["message"]


def test_gpt_j_turns_64_interleaved_components_of_256() -> None:
    result = only(GPT_J)
    assert result["head_dim"] == 256
    assert result["parameters"] == {"theta": 10000.0, "layout": "interleaved", "rotary_fraction": 0.25}
    np.testing.assert_allclose(result["inverse_frequencies"], 10000 ** (-np.arange(32) / 32), rtol=1e-12)


def test_what_a_larger_model_leaves_out_of_its_language_part_is_transformers_default() -> None:
    result = only(LLAVA)
    assert (result["head_dim"], result["parameters"]["theta"]) == (128, 10000.0)
    full, sliding = resolve(GEMMA_3_4B)["results"]
    assert (full["head_dim"], full["parameters"]["theta"], full["parameters"]["factor"]) == (256, 1e6, 8.0)
    assert (sliding["encoding"], sliding["parameters"]["theta"]) == ("rope", 1e4)


def test_both_spellings_of_gemma_3_come_to_the_same() -> None:
    old, new = resolve(GEMMA_3_4B)["results"], resolve(GEMMA_3_NEW)["results"]
    for name in ("layer_type", "encoding", "parameters", "inverse_frequencies", "query"):
        assert [one[name] for one in old] == [one[name] for one in new]


def test_settings_alone_come_to_the_same_as_with_the_rest() -> None:
    whole = only(GPT_OSS_20B)
    alone = only({**GPT_OSS_20B["rope_scaling"], "rope_theta": 150000}, head_dim=64)
    assert alone == whole
    layers = resolve(GEMMA_3_NEW["rope_parameters"], head_dim=256)["results"]
    assert layers == resolve(GEMMA_3_NEW)["results"]


@pytest.mark.parametrize("document", CHECKPOINTS.values(), ids=CHECKPOINTS)
def test_a_query_says_every_parameter(document: dict[str, Any]) -> None:
    for result in resolve(document)["results"]:
        said = dict(parse_qsl(result["query"], strict_parsing=True))
        assert said.pop("encoding") == result["encoding"]
        assert {name.removeprefix(result["encoding"] + ".") for name in said} == set(result["parameters"])
        assert shlex.split(result["curl"])[2] == f"http://here/attention?{result['query']}"


@pytest.mark.parametrize(
    ("change", "pointer", "words"),
    [
        ({"factor": 0.5}, "/rope_scaling/factor", "rope-longrope.factor is 0.5; allowed: 1 to"),
        ({"long_factor": SHORT_FACTOR[1:]}, "/rope_scaling/long_factor", "has 47 entries; allowed: 48"),
        ({"short_factor": [0.0] * 48}, "/rope_scaling/short_factor", "allowed: 0.001 to"),
        ({"attention_factor": -1}, "/rope_scaling/attention_factor", "rope-longrope.attention_factor is -1"),
    ],
)
def test_what_an_encoding_does_not_take_is_blamed_on_its_place(change: Any, pointer: str, words: str) -> None:
    document = {**PHI_3_128K, "rope_scaling": {**PHI_3_128K["rope_scaling"], **change}}
    with pytest.raises(InvalidInput) as caught:
        resolve(document)
    assert caught.value.pointer == pointer
    assert words in caught.value.detail


@pytest.mark.parametrize(
    ("settings", "pointer", "words"),
    [
        ({"type": "llama3", "low_freq_factor": 4, "high_freq_factor": 4}, "high_freq_factor", "allowed: more than"),
        (
            {"type": "llama3", "low_freq_factor": 5},
            "low_freq_factor",
            "less than rope-llama3.high_freq_factor, which is 4",
        ),
        ({"type": "yarn", "beta_fast": 1, "beta_slow": 32}, "beta_fast", "is 1; allowed: at least rope-yarn.beta_slow"),
    ],
)
def test_bands_the_wrong_way_round_are_refused(settings: dict[str, Any], pointer: str, words: str) -> None:
    document = {"rope_scaling": {**settings, "factor": 2.0, "original_max_position_embeddings": 64}, "head_dim": 8}
    with pytest.raises(InvalidInput) as caught:
        resolve(document)
    assert caught.value.pointer == f"/rope_scaling/{pointer}"
    assert words in caught.value.detail


@pytest.mark.parametrize(
    ("head_dim", "share", "pairs"), [(80, 0.4125, 16), (94, 6 / 94, 3)], ids=["33 of 80", "5.999999999999999 of 94"]
)
def test_a_share_that_makes_an_odd_number_turn_is_a_contradiction(head_dim: int, share: float, pairs: int) -> None:
    answer = resolve({"model_type": "phi", "head_dim": head_dim, "partial_rotary_factor": share})
    assert len(answer["results"][0]["inverse_frequencies"]) == pairs
    assert [one["kind"] for one in answer["warnings"] if one["key"] == "partial_rotary_factor"] == ["contradiction"]


def test_rotary_dim_is_a_number_of_components() -> None:
    for rotary_dim in range(0, 95, 2):
        answer = resolve({"model_type": "gptj", "head_dim": 94, "rotary_dim": rotary_dim})
        assert len(answer["results"][0]["inverse_frequencies"]) == rotary_dim // 2
        assert all(one["kind"] != "contradiction" for one in answer["warnings"])
