"""Which key is used for what, and what is said of the others."""

from __future__ import annotations

from collections import Counter
from contextlib import suppress
from copy import deepcopy
from typing import Any

import pytest
from hypothesis import assume, event, given
from hypothesis import strategies as st

from service.errors import InvalidInput, UnknownName
from service.rope_config import RopeConfig
from service.rope_keys import MAX_KEYS
from service.rope_names import KNOWN, TYPES
from tests.service.checkpoints import (
    CHECKPOINTS,
    DEEPSEEK_V3,
    GEMMA_3_4B,
    GEMMA_3_NEW,
    LLAMA_2_LINEAR,
    LLAMA_3_1_8B,
    LLAMA_DYNAMIC,
    PHI_2,
    PHI_3_128K,
    PYTHIA,
    QWEN_2_5_YARN,
    SMOLLM3,
    Document,
)

KEYS_OF: dict[str, dict[str, st.SearchStrategy[Any]]] = {
    "default": {},
    "linear": {"factor": st.floats(1, 64)},
    "ntk": {"factor": st.floats(1, 64)},
    "dynamic": {"factor": st.floats(1, 64)},
    "yarn": {
        "factor": st.floats(1, 64),
        "original_max_position_embeddings": st.integers(64, 1 << 20),
        "beta_fast": st.floats(8, 64),
        "beta_slow": st.floats(0.5, 4),
        "attention_factor": st.floats(0.5, 2),
        "mscale": st.floats(0.5, 2),
        "mscale_all_dim": st.floats(0.5, 2),
        "truncate": st.booleans(),
    },
    "longrope": {
        "short_factor": st.lists(st.floats(1, 4), min_size=2, max_size=2),
        "long_factor": st.lists(st.floats(1, 64), min_size=2, max_size=2),
        "factor": st.floats(1, 64),
        "original_max_position_embeddings": st.integers(64, 1 << 20),
        "attention_factor": st.floats(0.5, 2),
    },
    "llama3": {
        "factor": st.floats(1, 64),
        "original_max_position_embeddings": st.integers(64, 1 << 20),
        "low_freq_factor": st.floats(0.5, 2),
        "high_freq_factor": st.floats(3, 8),
    },
    "proportional": {"factor": st.floats(1, 64), "partial_rotary_factor": st.floats(0.1, 1)},
}
OF_ANY: dict[str, st.SearchStrategy[Any]] = {
    "rope_theta": st.floats(100, 1e8),
    "partial_rotary_factor": st.sampled_from([0.25, 0.5, 1.0]),
    "head_dim": st.just(16),
    "hidden_size": st.just(64),
    "num_attention_heads": st.just(4),
    "num_key_value_heads": st.just(2),
    "max_position_embeddings": st.integers(64, 1 << 20),
    "original_max_position_embeddings": st.integers(64, 1 << 20),
    "model_type": st.sampled_from(["llama", "gptj", "stablelm", "nobody_s"]),
    "query_pre_attn_scalar": st.floats(1, 512),
    "attn_logit_softcapping": st.floats(10, 100),
    "vocab_size": st.just(32000),
    "rotary_dim": st.just(8),
    "rope_interleave": st.booleans(),
    "head_dime": st.just(1),
    "tie_word_embeddings": st.none(),
}


@st.composite
def documents(draw: st.DrawFn) -> Document:
    """A configuration of any spelling, some of its keys missing, some having no part."""
    document = {name: draw(values) for name, values in OF_ANY.items() if draw(st.booleans())}
    kinds = st.sampled_from(sorted(KEYS_OF))

    def settings() -> Document:
        kind = draw(kinds)
        keys = {**KEYS_OF[draw(st.sampled_from([kind, draw(kinds)]))], "rope_theta": OF_ANY["rope_theta"]}
        chosen = {name: draw(values) for name, values in keys.items() if draw(st.integers(0, 3))}
        names = draw(st.sampled_from([("rope_type",), ("type",), ("rope_type", "type"), ()]))
        return {**chosen, **dict.fromkeys(names, kind)}

    match draw(st.sampled_from(["old", "new", "layers", "alone", "null", "none", "inside"])):
        case "old":
            document["rope_scaling"] = settings()
        case "new":
            document["rope_parameters"] = settings()
        case "layers":
            document["rope_parameters"] = {
                name: {"rope_theta": 1e4, **settings()} for name in ("full_attention", "sliding_attention")
            }
        case "alone":
            document |= settings()
        case "null":
            document["rope_scaling"] = None
        case "inside":
            document = {"text_config": {**document, "rope_scaling": settings()}, "vision_config": {"a": 1}}
        case _:
            pass
    return document


def leaves(document: Document, path: tuple[str, ...] = ()) -> list[tuple[str, ...]]:
    """Every key that counts by itself."""
    found = []
    for name, value in document.items():
        opened = ("text_config", "rope_scaling", "rope_parameters", "full_attention", "sliding_attention")
        if isinstance(value, dict) and value and name in opened:
            found += leaves(value, (*path, name))
        else:
            found.append((*path, name))
    return found


def without(document: Document, path: tuple[str, ...]) -> Document:
    changed = deepcopy(document)
    home = changed
    for name in path[:-1]:
        home = home[name]
    del home[path[-1]]
    return changed


def read(document: Document) -> RopeConfig:
    """Assumes that it can be read."""
    try:
        return RopeConfig.read(document)
    except InvalidInput:
        assume(False)
        raise


def kinds_of(config: RopeConfig, key: str) -> list[str]:
    return [remark.kind for remark in config.remarks if remark.key == key]


def check_every_key_is_accounted_for(document: Document) -> None:
    config = RopeConfig.read(document)
    keys = [".".join(path) for path in leaves(document)]
    assert set(config.used) <= set(keys)
    for key in keys:
        if key not in config.used:
            assert len(kinds_of(config, key)) == (key not in config.ignored), key
    assert not {key for key in config.ignored if "rope" in key or "rotary" in key}
    unused = [remark.key for remark in config.remarks if remark.kind == "unused"]
    assert set(unused) <= set(keys) - set(config.used)
    absent = {remark.key for remark in config.remarks if remark.message.startswith("absent")}
    assert not absent & set(config.used)
    order = [remark.kind for remark in config.remarks]
    assert order == sorted(order, key=["contradiction", "default", "note", "unused"].index)


@given(documents())
def test_every_key_is_used_ignored_or_named_by_one_warning(document: Document) -> None:
    read(document)
    event(f"{len(document)} keys")
    check_every_key_is_accounted_for(document)


@pytest.mark.parametrize("document", CHECKPOINTS.values(), ids=CHECKPOINTS)
def test_every_key_of_a_published_configuration_is_used_ignored_or_named_by_one_warning(document: Document) -> None:
    check_every_key_is_accounted_for(document)


@given(documents(), st.sampled_from([1, None, "x", [1], {"a": 1}, {}]), st.data())
def test_an_unknown_key_adds_one_warning_that_names_it(document: Document, value: Any, data: st.DataObject) -> None:
    before = read(document)
    paths = [path[:-1] for path in leaves(document)] or [()]
    home = data.draw(st.sampled_from(paths))
    changed = deepcopy(document)
    inner = changed
    for name in home:
        inner = inner[name]
    inner["no_such_rope_key"] = value
    after = RopeConfig.read(changed)
    assert after.rotations == before.rotations
    assert after.used == before.used
    added = Counter(after.remarks) - Counter(before.remarks)
    assert [remark.key for remark in added.elements()] == [".".join((*home, "no_such_rope_key"))]
    assert not Counter(before.remarks) - Counter(after.remarks)


@given(documents(), st.data())
def test_a_used_key_cannot_be_removed_without_a_trace(document: Document, data: st.DataObject) -> None:
    before = read(document)
    used = [path for path in leaves(document) if ".".join(path) in before.used]
    assume(used)
    path = data.draw(st.sampled_from(used))
    try:
        after = RopeConfig.read(without(document, path))
    except InvalidInput:
        return
    defaults = {remark for remark in after.remarks if remark.kind == "default"}
    changed = after.rotations != before.rotations
    # Another key may say the same; then that one is used now, and was explained before.
    replaced = set(after.used) - set(before.used)
    assert changed or defaults - set(before.remarks) or replaced


@pytest.mark.parametrize(
    ("kind", "more", "missing"),
    [
        ("linear", {"factor": 2}, set()),
        ("ntk", {"factor": 2}, set()),
        ("dynamic", {"factor": 2}, set()),
        ("yarn", {"factor": 2}, {"beta_fast", "beta_slow", "truncate", "attention_factor"}),
        ("yarn", {}, {"factor", "beta_fast", "beta_slow", "truncate", "attention_factor"}),
        ("llama3", {"factor": 2}, {"low_freq_factor", "high_freq_factor"}),
        ("longrope", {"short_factor": [1], "long_factor": [2]}, {"factor", "attention_factor"}),
        ("proportional", {}, {"factor", "partial_rotary_factor"}),
    ],
)
def test_every_parameter_that_no_key_gives_is_said_with_its_default(kind: str, more: Any, missing: set[str]) -> None:
    settings = {"rope_type": kind, "original_max_position_embeddings": 1024, **more}
    config = RopeConfig.read({"head_dim": 64, "max_position_embeddings": 4096, "rope_scaling": settings})
    said = {remark.key for remark in config.remarks if remark.kind == "default"}
    shared = {"rope_theta", "model_type"} | (set() if kind == "proportional" else {"partial_rotary_factor"})
    assert said == shared | {f"rope_scaling.{name}" for name in missing}


@pytest.mark.parametrize(
    ("document", "key", "kind", "words"),
    [
        (LLAMA_3_1_8B, "max_position_embeddings", "note", "= 131072 / 8192 = 16, but factor = 8"),
        (LLAMA_3_1_8B, "num_key_value_heads", "unused", "key_heads"),
        (QWEN_2_5_YARN, "max_position_embeddings", "unused", "not raised by factor"),
        (DEEPSEEK_V3, "max_position_embeddings", "unused", "as it should be"),
        (DEEPSEEK_V3, "hidden_size", "unused", "qk_rope_head_dim says"),
        (LLAMA_2_LINEAR, "rope_theta", "default", "10000 was taken, transformers' default for llama"),
        (LLAMA_2_LINEAR, "max_position_embeddings", "unused", "does not depend on the length"),
        (PYTHIA, "rope_scaling", "default", "plain RoPE was taken"),
        (PHI_2, "num_key_value_heads", "unused", "alike"),
        (SMOLLM3, "no_rope_layers", "unused", "encoding=none"),
        (PHI_3_128K, "rope_scaling.factor", "default", "= 131072 / 4096 = 32 was taken"),
        ({**GEMMA_3_4B, "rope_theta": 5}, "rope_theta", "unused", "stands outside text_config"),
        (GEMMA_3_4B, "text_config.rope_local_base_freq", "default", "10000 was taken"),
        ({**LLAMA_DYNAMIC, "model_type": "lama"}, "model_type", "default", "'lama' is not known here"),
        ({**LLAMA_DYNAMIC, "rope_thetta": 1}, "rope_thetta", "unused", "did you mean rope_theta?"),
        ({**LLAMA_DYNAMIC, "rotary_frobs": 1}, "rotary_frobs", "unused", "not known here"),
        ({**LLAMA_DYNAMIC, "head_dim": None}, "head_dim", "unused", "null"),
        ({**LLAMA_DYNAMIC, "rotary_emb_base": 5}, "rotary_emb_base", "contradiction", "rope_theta = 10000 takes its"),
        ({**LLAMA_DYNAMIC, "rotary_emb_base": 1e4}, "rotary_emb_base", "unused", "says the same"),
        (
            {**LLAMA_DYNAMIC, "rope_scaling": {"type": "linear", "rope_type": "dynamic", "factor": 4}},
            "rope_scaling.type",
            "contradiction",
            "'linear', but rope_scaling.rope_type = 'dynamic'",
        ),
        (
            {**GEMMA_3_NEW, "rope_scaling": {"rope_type": "default"}},
            "rope_parameters",
            "contradiction",
            "rope_scaling = an object takes its place",
        ),
        (
            {**QWEN_2_5_YARN, "rope_scaling": {**QWEN_2_5_YARN["rope_scaling"], "mscale": 0.7}},
            "rope_scaling.mscale",
            "unused",
            "counts only where",
        ),
        (
            {**QWEN_2_5_YARN, "max_position_embeddings": 40960},
            "max_position_embeddings",
            "contradiction",
            "40960 / 32768 = 1.25, but factor = 4",
        ),
        (
            {
                "head_dim": 8,
                "rope_parameters": {"full_attention": {"factor": 2, "type": "linear"}, "sliding_attention": None},
            },
            "rope_parameters.sliding_attention",
            "note",
            "encoding=none",
        ),
    ],
)
def test_warnings_say_why(document: Document, key: str, kind: str, words: str) -> None:
    config = RopeConfig.read(document)
    said = [remark for remark in config.remarks if remark.key == key]
    assert [remark.kind for remark in said] == [kind]
    assert words in said[0].message


def test_a_head_dim_that_is_asked_for_takes_the_place_of_the_configuration_s() -> None:
    config = RopeConfig.read({**LLAMA_3_1_8B, "head_dim": 128}, head_dim=64)
    assert config.rotations[0].head_dim == 64
    assert kinds_of(config, "head_dim") == ["contradiction"]
    assert kinds_of(config, "hidden_size") == ["unused"]
    agreeing = RopeConfig.read({**LLAMA_3_1_8B, "head_dim": 128}, head_dim=128)
    assert kinds_of(agreeing, "head_dim") == ["unused"]


@pytest.mark.parametrize(
    ("document", "pointer", "words"),
    [
        ([], "", "the body is a list of 0"),
        ({"rope_theta": 1e4}, "", "none of qk_rope_head_dim, head_dim, attention_head_dim, kv_channels"),
        ({"rope_theta": 1e4, "hidden_size": 64}, "", "num_attention_heads, n_head, n_heads"),
        ({"text_config": {"hidden_size": 64}}, "/text_config", "head_dim is not known"),
        ({"hidden_size": 100, "num_attention_heads": 3}, "/hidden_size", "100 / 3"),
        ({"head_dim": 7}, "/head_dim", "must be even"),
        ({"head_dim": 0}, "/head_dim", "a whole number from 1"),
        ({"head_dim": "64"}, "/head_dim", "is '64'; it must be a number"),
        ({"head_dim": True}, "/head_dim", "is true; it must be a number"),
        ({"head_dim": 8, "rope_scaling": []}, "/rope_scaling", "it must be an object or null"),
        ({"head_dim": 8, "rope_scaling": {"type": 1}}, "/rope_scaling/type", "it must be a string"),
        ({"head_dim": 8, "rope_scaling": {"type": "linear"}}, "/rope_scaling", "rope_scaling has no factor"),
        ({"head_dim": 8, "type": "linear"}, "", "the configuration has no factor"),
        (
            {"head_dim": 8, "rope_scaling": {"type": "linear", "factor": "8"}},
            "/rope_scaling/factor",
            "is '8'; it must be a number",
        ),
        ({"head_dim": 8, "rope_scaling": {"type": "yarn", "factor": 8}}, "/rope_scaling", "original_max_position"),
        ({"head_dim": 8, "rope_scaling": {"type": "dynamic", "factor": 8}}, "/rope_scaling", "max_position_embeddings"),
        (
            {"head_dim": 8, "rope_scaling": {"type": "longrope", "short_factor": [1, "x"]}},
            "/rope_scaling/short_factor",
            "is a list of 2; it must be a list of numbers",
        ),
        ({"head_dim": 8, "rope_scaling": {"type": "longrope", "short_factor": [1]}}, "/rope_scaling", "no long_factor"),
        ({"head_dim": 8, "rope_interleave": 1}, "/rope_interleave", "it must be true or false"),
        (
            {"head_dim": 8, "rope_parameters": {"full_attention": None, "a": {"type": "x"}}},
            "/rope_parameters/a/type",
            "x",
        ),
        ({str(i): 1 for i in range(MAX_KEYS + 1)}, None, "at most 512"),
    ],
)
def test_what_cannot_be_read_is_refused_by_its_place(document: Any, pointer: str | None, words: str) -> None:
    with pytest.raises(InvalidInput) as caught:
        RopeConfig.read(document)
    assert caught.value.pointer == pointer
    assert words in caught.value.detail


@pytest.mark.parametrize(
    ("name", "nearest"), [("yarm", "yarn"), ("llama-3", "llama3"), ("long_rope", "longrope"), ("axial", None)]
)
def test_an_unknown_rope_type_is_refused_with_the_nearest(name: str, nearest: str | None) -> None:
    with pytest.raises(UnknownName) as caught:
        RopeConfig.read({"head_dim": 8, "rope_scaling": {"rope_type": name, "factor": 8}})
    assert caught.value.pointer == "/rope_scaling/rope_type"
    assert caught.value.extra["allowed"] == list(TYPES)
    assert nearest is None or nearest in caught.value.extra["nearest"]  # type: ignore[operator]


JSON = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(2**63), 2**63)
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(max_size=4),
    lambda inner: (
        st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from(KNOWN) | st.text(max_size=4), inner, max_size=5)
    ),
    max_leaves=12,
)
NAMES = [*KNOWN, "text_config", "qk_nope_head_dim", "per_layer_config", "layer_types"]


@given(st.dictionaries(st.sampled_from(NAMES), JSON))
def test_any_configuration_is_read_or_refused(document: Document) -> None:
    with suppress(InvalidInput):
        RopeConfig.read({"head_dim": 8, **document})
