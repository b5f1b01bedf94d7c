"""Training: its text, its turns, its checkpoints, and that what it trains is what is served."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
import torch
from typer.testing import CliRunner

from models.attention import PositionTables, ScoredAttention
from models.command_line import app
from models.training.block import BY_ID, Block
from models.training.checkpoint import CheckpointMismatch, load_weights, resume, save, save_weights
from models.training.corpus import HELD_OUT, TRAINED_ON, Corpus
from models.training.evaluation import attention_of, bits_per_byte
from models.training.recipe import HEAD_DIM, HEADS, LENGTH, QUICK, SCALED, TRAINED, UNUSED, WIDTH, Recipe
from models.training.trainer import Training, batch, in_turn, rate

SHORT = Recipe(steps=8, batch=2)
SOME = ("rope", "t5", "learned", "fox")
every_trained = pytest.mark.parametrize("encoding", TRAINED)


@pytest.fixture(scope="module")
def corpus() -> Corpus:
    return Corpus.read()


# The text.


def test_every_encoding_is_trained_or_a_stretch_of_rope() -> None:
    assert sorted((*TRAINED, *SCALED)) == sorted(BY_ID)


def test_no_file_is_both_trained_on_and_held_out(corpus: Corpus) -> None:
    assert not set(TRAINED_ON) & set(HELD_OUT)
    trained, held = corpus.trained_on.numpy().tobytes(), corpus.held_out.numpy().tobytes()
    lines = [line for line in held.splitlines() if len(line) > 60]
    assert sum(line in trained for line in lines[::10]) < len(lines[::10]) / 50


def test_the_digest_is_that_of_the_bytes(corpus: Corpus) -> None:
    assert corpus.digest == Corpus.read().digest
    changed = corpus.trained_on.clone()
    changed[-1] += 1
    assert replace(corpus, trained_on=changed).digest != corpus.digest


def test_a_library_without_a_file_of_the_list_is_an_error_that_names_it(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError, match=r"argparse\.py"):
        Corpus.read(tmp_path)


def test_an_example_is_followed_by_the_byte_after_each_of_its_own(corpus: Corpus) -> None:
    read, following = batch(corpus.trained_on, SHORT, 3)
    assert read.shape == following.shape == (2, LENGTH)
    assert torch.equal(read[:, 1:], following[:, :-1])
    assert not torch.equal(read, batch(corpus.trained_on, SHORT, 4)[0])
    assert read[0].numpy().astype("uint8").tobytes() in corpus.trained_on.numpy().tobytes()


# The recipe.


@pytest.mark.parametrize("at_once", [1, 3, 6])
def test_every_encoding_takes_part_once_before_any_takes_part_again(at_once: int) -> None:
    recipe = Recipe(encodings=at_once)
    rounds = [name for step in range(len(TRAINED)) for name in in_turn(TRAINED, recipe, step)]
    for start in range(0, len(rounds) - len(TRAINED) + 1, len(TRAINED)):
        assert len(set(rounds[start : start + len(TRAINED)])) == len(TRAINED)


def test_the_rate_rises_stays_and_falls_to_nothing() -> None:
    recipe = Recipe(steps=1000, warm_up=100, cool_down=0.3, rate=1.0)
    rates = [rate(recipe, step) for step in range(1000)]
    assert rates[:3] == pytest.approx([0.01, 0.02, 0.03])
    assert set(rates[99:700]) == {1.0}
    assert rates[700:] == pytest.approx([(1000 - step) / 300 for step in range(700, 1000)])


# The block.


@every_trained
def test_every_array_of_an_encoding_is_trained(encoding: str, corpus: Corpus) -> None:
    block = Block((encoding,))
    for name, array in block.positional.items():  # at zero some of them have no effect yet
        array.data.add_(0.05 * torch.randn(array.shape, generator=torch.Generator().manual_seed(len(name))))
    torch.autograd.backward(block.loss(encoding, *batch(corpus.trained_on, SHORT, 0)))
    arrays = {p.name for p in BY_ID[encoding].card.parameters if p.kind == "array"}
    unused = {name.removeprefix(f"{encoding}.") for name in UNUSED if name.startswith(f"{encoding}.")}
    assert {name.removeprefix(f"{encoding}/") for name in block.positional} == arrays - unused
    for name, array in block.named_parameters():
        assert array.grad is not None, name
        assert array.grad.isfinite().all(), name
        assert array.grad.abs().max() > 0, name


@every_trained
def test_what_is_trained_is_what_is_exported(encoding: str, corpus: Corpus) -> None:
    """The block's attention beside the module that is traced for export, in float64."""
    block = Block((encoding,)).double().requires_grad_(False)
    x = block.embeddings[batch(corpus.trained_on, SHORT, 0)[0]]
    parameters = block.parameters_of(encoding) | {"sinks": torch.zeros(HEADS)}
    half = PositionTables(block.attention, BY_ID[encoding], (HEADS, HEAD_DIM, WIDTH), torch.float64)
    positions, causal = torch.arange(LENGTH).double(), torch.tensor(True)
    tables = half(half.at(positions, positions, causal, torch.zeros(HEADS, HEAD_DIM), parameters["scale"]), parameters)
    visible = torch.ones(LENGTH, LENGTH, dtype=torch.bool).tril()[None, None]
    off = dict.fromkeys(("softcap", "sinks"), torch.tensor(False))
    traced = ScoredAttention(block.attention, BY_ID[encoding])(x, x, visible, tables, off)
    attended = attention_of(block, encoding, LENGTH)(x)
    assert torch.allclose(attended, traced.output, rtol=0, atol=1e-12 * float(attended.abs().max()))


def test_no_byte_is_predicted_from_those_after_it(corpus: Corpus) -> None:
    block = Block(SOME).requires_grad_(False)
    read, _ = batch(corpus.trained_on, SHORT, 0)
    changed = read.clone()
    changed[:, LENGTH // 2 :] = 0
    for encoding in SOME:
        attend = attention_of(block, encoding, LENGTH)
        before, after = (block.logits(x, attend(x)) for x in (block.embeddings[read], block.embeddings[changed]))
        assert torch.equal(before[:, : LENGTH // 2], after[:, : LENGTH // 2])


def test_bits_per_byte_of_a_block_that_knows_nothing_are_eight(corpus: Corpus) -> None:
    block = Block(("none",)).requires_grad_(False)
    block.head.weight.zero_()
    block.head.bias.zero_()
    text = corpus.held_out[: 4 * LENGTH + 1]
    assert bits_per_byte(block, attention_of(block, "none", LENGTH), text, LENGTH) == pytest.approx(8, abs=1e-6)


# The loop.


def test_a_few_steps_lower_the_loss(corpus: Corpus) -> None:
    training = Training.start(SOME, Recipe(steps=24, batch=4, warm_up=4, encodings=2))
    read, following = batch(corpus.held_out, Recipe(batch=8), 0)

    def losses() -> list[float]:
        with torch.no_grad():
            return [float(training.block.loss(encoding, read, following)) for encoding in SOME]

    before = losses()
    for _ in training.steps(corpus.trained_on):
        pass
    assert training.step == 24
    for start, end in zip(before, losses(), strict=True):
        assert end < start - 0.5


def test_a_step_moves_only_what_its_encodings_use(corpus: Corpus) -> None:
    training = Training.start(SOME, Recipe(steps=8, batch=2, encodings=1))
    before = {name: array.detach().clone() for name, array in training.block.named_parameters()}
    (losses,) = training.steps(corpus.trained_on, 1)
    (turn,) = losses
    moved = {
        name.removeprefix("positional.").split("/")[0]
        for name, array in training.block.named_parameters()
        if name.startswith("positional.") and not torch.equal(array, before[name])
    }
    assert moved == {turn} & {"t5", "learned", "fox"}
    assert not torch.equal(training.block.embeddings, before["embeddings"])


def test_a_training_that_stopped_goes_on_bit_for_bit(corpus: Corpus, tmp_path: Path) -> None:
    whole = Training.start(TRAINED, SHORT)
    told = list(whole.steps(corpus.trained_on))
    path = tmp_path / "half.safetensors"
    half = Training.start(TRAINED, SHORT)
    told_in_parts = list(half.steps(corpus.trained_on, 5))
    save(half, corpus.digest, path)
    rest = resume(path, TRAINED, SHORT, corpus.digest)
    assert rest.step == 5
    told_in_parts += list(rest.steps(corpus.trained_on))
    assert told_in_parts == told
    for (name, one), other in zip(whole.block.named_parameters(), rest.block.parameters(), strict=True):
        assert torch.equal(one, other), name
    for (name, one), other in zip(whole.block.named_parameters(), rest.block.parameters(), strict=True):
        for key, memory in whole.optimiser.state[one].items():
            assert torch.equal(memory, rest.optimiser.state[other][key]), (name, key)


def test_what_comes_before_the_descent_does_not_depend_on_the_number_of_steps(corpus: Corpus) -> None:
    short, long = (Training.start(SOME, Recipe(steps=steps, batch=2)) for steps in (10, 1000))
    assert list(short.steps(corpus.trained_on, 7)) == list(long.steps(corpus.trained_on, 7))


@pytest.mark.parametrize("what", ["recipe", "encodings", "corpus"])
def test_a_checkpoint_of_another_training_is_refused(what: str, corpus: Corpus, tmp_path: Path) -> None:
    path = tmp_path / "training.safetensors"
    save(Training.start(SOME, SHORT), corpus.digest, path)
    encodings = SOME[:2] if what == "encodings" else SOME
    recipe = replace(SHORT, seed=1) if what == "recipe" else SHORT
    with pytest.raises(CheckpointMismatch, match=f"was written with {what}"):
        resume(path, encodings, recipe, "sha256:other" if what == "corpus" else corpus.digest)


def test_the_command_says_how_to_go_on_where_the_checkpoint_is_of_another_training(tmp_path: Path) -> None:
    path = tmp_path / "training.safetensors"
    save(Training.start(SOME, SHORT), "sha256:other", path)
    result = CliRunner().invoke(app, ["train", "--checkpoint", str(path)], env={"COLUMNS": "400"})
    assert result.exit_code == 2
    assert "start anew with --fresh" in result.output


def test_weights_come_back_as_they_were(corpus: Corpus, tmp_path: Path) -> None:
    training = Training.start(SOME, SHORT)
    save_weights(training, corpus.digest, tmp_path / "weights.safetensors")
    block, about = load_weights(tmp_path / "weights.safetensors")
    assert about["encodings"] == list(SOME)
    assert about["recipe"] == SHORT.as_dict()
    for (name, one), other in zip(training.block.named_parameters(), block.parameters(), strict=True):
        assert torch.equal(one, other), name
        assert not other.requires_grad


def test_arrays_in_units_of_the_score_are_arrays() -> None:
    for dotted in (*QUICK, *UNUSED):
        encoding, name = dotted.split(".")
        assert any(p.name == name and p.kind == "array" for p in BY_ID[encoding].card.parameters), dotted
