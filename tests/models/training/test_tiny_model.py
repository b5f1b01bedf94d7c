"""The model in exported/tiny: its graphs beside the trained block, its text, its figures, and what its cards claim."""

from __future__ import annotations

import json
import platform
from dataclasses import asdict
from functools import cache
from pathlib import Path

import numpy as np
import onnx
import pytest
import torch

from docs import make_tiny
from models.export import export_encoding, metadata
from models.graphs import Graphs
from models.parity import TOLERANCE, parity
from models.text import byte_tokenizer, write_text
from models.training.block import BY_ID, Block
from models.training.checkpoint import digest, load_weights
from models.training.corpus import Corpus
from models.training.evaluation import BYTES, at_multiple, attention_of, bits_per_byte
from models.training.family import RESULTS, WEIGHTS, encodings, family
from models.training.recipe import LENGTH, SCALED, TRAINED, WIDTH
from tests.models.training.tiny_served import TINY, tiny

EXACT = 1e-5
every_encoding = pytest.mark.parametrize("encoding", BY_ID)


@pytest.fixture(scope="module")
def block() -> Block:
    return load_weights(WEIGHTS)[0]


@pytest.fixture(scope="module")
def corpus() -> Corpus:
    return Corpus.read()


@cache
def exact_block() -> Block:
    return load_weights(WEIGHTS)[0].double()


def bytes_of(text: str, block: Block) -> np.ndarray:
    """The embeddings of a text, [1, tokens, width]."""
    found: np.ndarray = block.embeddings[torch.tensor(list(text.encode()))].float().numpy()[None]
    return found


def claims(invariant: str) -> list[str]:
    return [one.card.id for one in BY_ID.values() if getattr(one.card.invariants, invariant)]


def distance(a: np.ndarray, b: np.ndarray) -> float:
    return float(np.abs(a - b).max()) / max(float(np.abs(a).max()), 1e-30)


# The files.


def test_exported_holds_every_encoding_and_the_text_and_nothing_else() -> None:
    graphs = {f"{name}{suffix}" for name in BY_ID for suffix in (".onnx", ".positions.onnx")}
    assert {path.name for path in TINY.iterdir()} == graphs | {"text"}, "run make export"
    assert {path.name for path in (TINY / "text").iterdir()} == {"tokenizer.json", "embeddings.safetensors"}


@every_encoding
def test_metadata_are_the_cards_with_what_is_particular_to_the_model(encoding: str, block: Block) -> None:
    about = dict(tiny(encoding).about)
    measured = about.pop("parity")
    assert max(measured[name] for name in ("scores", "weights", "output", "terms")) <= TOLERANCE
    assert about == json.loads(json.dumps({**metadata(family(block), BY_ID[encoding]), "graph": "scores"})), (
        "make export"
    )
    assert (about["heads"], about["head_dim"], about["width"], about["default_causal"]) == (4, 16, 64, True)


def test_all_encodings_share_one_set_of_content_weights(block: Block) -> None:
    found = {tiny(encoding).about["weights"] for encoding in BY_ID}
    attention = block.attention
    assert found == {digest((block.embeddings, attention.w_q.weight, attention.w_k.weight, attention.w_v.weight))}
    for encoding in BY_ID:
        held = [onnx.numpy_helper.to_array(tensor) for tensor in onnx.load(TINY / f"{encoding}.onnx").graph.initializer]
        for weight in (attention.w_q.weight, attention.w_k.weight, attention.w_v.weight):
            assert any(np.array_equal(weight.numpy().T, one) or np.array_equal(weight.numpy(), one) for one in held)


def test_exporting_again_gives_the_same_bytes(block: Block, tmp_path: Path) -> None:
    again = export_encoding(family(block), BY_ID["learned"], tmp_path)
    for path in (again.scores_path, again.positions_path):
        ours, theirs = onnx.load(path), onnx.load(TINY / path.name)
        for model in (ours, theirs):  # what was measured may differ in its last digits from machine to machine
            about = json.loads(model.metadata_props[0].value)
            about.pop("parity", None)
            model.metadata_props[0].value = json.dumps(about)
        assert ours.SerializeToString(deterministic=True) == theirs.SerializeToString(deterministic=True), "make export"


def test_the_text_files_are_those_of_the_weights(block: Block, tmp_path: Path) -> None:
    folder = write_text(tmp_path / "tiny", byte_tokenizer(), block.embeddings)
    for path in folder.iterdir():
        assert path.read_bytes() == (TINY / "text" / path.name).read_bytes(), "make export"


# Its numbers.


@every_encoding
def test_a_graph_is_as_near_to_float64_as_its_metadata_say(encoding: str, block: Block) -> None:
    graphs = Graphs(onnx.load(TINY / f"{encoding}.onnx"), onnx.load(TINY / f"{encoding}.positions.onnx"))
    (scheme,) = (one for one in encodings(block) if one.card.id == encoding)
    measured = asdict(parity(family(block), scheme, graphs))
    said = tiny(encoding).about["parity"]
    assert measured["cases"] == said["cases"]
    for name in ("scores", "weights", "output", "terms"):
        assert measured[name] <= max(2 * said[name], 1e-6)


@every_encoding
def test_on_text_a_graph_gives_the_attention_of_the_trained_block(encoding: str) -> None:
    block = exact_block()
    x = bytes_of("def greet(name: str) -> None:\n    print(f'Hello, {name}!')", block)
    changed = {"factor": torch.tensor(4.0, dtype=torch.float64)} if encoding in SCALED else {}
    if encoding == "rope-llama3":
        changed["factor"] = torch.tensor(8.0, dtype=torch.float64)
    attended = attention_of(block, encoding, x.shape[1], changed)(torch.from_numpy(x).double())
    assert distance(attended.numpy(), tiny(encoding).answer(x)["output"]) < EXACT


def test_with_the_exported_attention_inside_the_block_predicts_as_well(block: Block, corpus: Corpus) -> None:
    text = corpus.held_out[: 8 * LENGTH + 1]

    def served(x: torch.Tensor) -> torch.Tensor:
        return torch.from_numpy(tiny("rope").answer(x.numpy())["output"])

    for length in (LENGTH, 4 * LENGTH):
        ours = bits_per_byte(block, attention_of(block, "rope", length), text, length)
        assert bits_per_byte(block, served, text, length) == pytest.approx(ours, abs=1e-5)


@pytest.mark.parametrize(
    ("encoding", "multiple"), [("rope", 1), ("t5", 1), ("learned", 1), ("alibi", 2), ("rope-yarn", 2)]
)
def test_the_figures_are_those_of_the_weights(encoding: str, multiple: int, block: Block, corpus: Corpus) -> None:
    results = json.loads(RESULTS.read_text("utf-8"))
    if corpus.digest != results["corpus"]["digest"]:
        pytest.skip(f"Python {platform.python_version()} has another standard library than the one that was measured")
    found = at_multiple(block, encoding, corpus.held_out[: BYTES + 1], multiple)
    assert found == pytest.approx(results["bits_per_byte"][encoding][str(multiple)], abs=1e-4)


def test_figures_and_weights_are_of_one_training() -> None:
    results, (_, about) = json.loads(RESULTS.read_text("utf-8")), load_weights(WEIGHTS)
    assert results["recipe"] == about["recipe"]
    assert results["corpus"]["digest"] == about["corpus"]
    assert about["step"] == about["recipe"]["steps"]
    assert sorted(results["bits_per_byte"]) == sorted(BY_ID)


def test_the_page_is_written_from_the_figures() -> None:
    written = make_tiny.PAGE.read_text("utf-8")
    assert written == make_tiny.page(json.loads(RESULTS.read_text("utf-8"))), "run python -m docs.make_tiny"


def test_a_text_model_without_positions_is_worst_at_the_training_length_but_for_the_naive_scheme() -> None:
    """So the positional parameters mean something."""
    bits = json.loads(RESULTS.read_text("utf-8"))["bits_per_byte"]
    ordered = sorted(TRAINED, key=lambda encoding: float(bits[encoding]["1"]))
    assert set(ordered[-2:]) == {"none", "integer"}


# What the cards claim, with trained parameters.


@pytest.mark.parametrize("encoding", claims("shift"))
def test_scores_do_not_change_when_all_positions_shift(encoding: str) -> None:
    x = bytes_of("for key in sorted(keys):", exact_block())
    here = np.arange(x.shape[1], dtype=np.float64)
    assert distance(tiny(encoding).answer(x, here)["scores"], tiny(encoding).answer(x, here + 1000)["scores"]) < EXACT


@pytest.mark.parametrize("encoding", claims("prefix"))
def test_scores_of_the_first_bytes_do_not_change_when_more_follow(encoding: str) -> None:
    x = bytes_of("import os\nimport sys\n", exact_block())
    short, long = (tiny(encoding).answer(one) for one in (x[:, :9], x))
    for name in ("scores", "weights"):
        assert distance(short[name], long[name][:, :, :9, :9]) < EXACT
    assert distance(short["output"], long["output"][:, :9]) < EXACT


@pytest.mark.parametrize("encoding", claims("toeplitz"))
def test_equal_bytes_have_scores_of_the_distance_alone(encoding: str) -> None:
    scores = tiny(encoding).answer(bytes_of("a" * 20, exact_block()))["scores"]
    assert distance(scores[..., 1:, 1:], scores[..., :-1, :-1]) < EXACT


@pytest.mark.parametrize("encoding", claims("diagonal"))
def test_a_byte_scores_itself_by_content_alone(encoding: str) -> None:
    x = bytes_of("return [x for x in y]", exact_block())
    scores = tiny(encoding).answer(x)["scores"]
    content = tiny("none").answer(x)["scores"]
    ours, theirs = (np.diagonal(one, axis1=2, axis2=3) for one in (scores, content))
    assert float(np.abs(ours - theirs).max()) < EXACT * float(np.abs(scores).max())


@pytest.mark.parametrize("encoding", claims("far_share"))
def test_far_bytes_share_one_bias(encoding: str) -> None:
    """Equal tokens, so that content is the same at any distance."""
    scores = tiny(encoding).answer(np.repeat(bytes_of("e", exact_block()), 200, axis=1))["scores"]
    assert distance(scores[..., -1, :60], np.broadcast_to(scores[..., -1, :1], scores[..., -1, :60].shape)) < EXACT


@pytest.mark.parametrize("encoding", claims("permutation"))
def test_permuting_bytes_permutes_scores(encoding: str) -> None:
    x = bytes_of("lambda: None", exact_block())
    order = np.random.default_rng(0).permutation(x.shape[1])
    scores = tiny(encoding).answer(x)["scores"]
    assert distance(scores[:, :, order][..., order], tiny(encoding).answer(x[:, order])["scores"]) < EXACT


@every_encoding
def test_terms_sum_to_scores_and_rows_to_one(encoding: str) -> None:
    got = tiny(encoding).answer(bytes_of("with open(path) as file:\n", exact_block()))
    terms = [value for name, value in got.items() if name.startswith("term.")]
    largest = max(float(np.abs(one).max()) for one in [got["scores"], *terms])
    assert np.abs(sum(terms) - got["scores"]).max() <= EXACT * largest
    assert got["weights"].sum(-1) == pytest.approx(1, abs=1e-5)


@pytest.mark.parametrize("encoding", ["t5", "tupe", "deberta", "alibi", "kerple", "sandwich", "fire", "fox", "cope"])
def test_content_scores_the_same_under_every_encoding_that_adds_to_it(encoding: str) -> None:
    """One W_q, one W_k and one scale; DeBERTa calls the term content-content."""
    x = bytes_of("class Point(NamedTuple):", exact_block())
    got = tiny(encoding).answer(x)
    content = got["term.content" if "term.content" in got else "term.content-content"]
    assert distance(content, tiny("none").answer(x)["scores"]) < EXACT


def test_the_width_of_the_embeddings_is_that_of_the_graphs() -> None:
    assert tiny("rope").about["width"] == WIDTH == exact_block().embeddings.shape[1]
