"""Training all encodings at once. A step's data, encodings and rate follow from its number, so a run that stopped goes
on as if it had not.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

import torch
from jaxtyping import Int64, UInt8
from torch import Tensor

from models.training.block import Block
from models.training.recipe import LENGTH, QUICK, QUICKER, Recipe

Parameters = Mapping[str, torch.nn.Parameter]


@dataclass
class Training:
    """Where a training stands: the weights, the optimiser's memory, how many steps are done, and the seconds that they
    took by the clock and of the processor.
    """

    block: Block
    recipe: Recipe
    optimiser: torch.optim.AdamW
    step: int = 0
    wall: float = 0.0
    cpu: float = 0.0

    @classmethod
    def start(cls, encodings: tuple[str, ...], recipe: Recipe) -> Training:
        block = Block(encodings, recipe.seed)
        named = list(block.named_parameters())
        kept = [p for name, p in named if not decays(name, p) and not quick(name)]
        groups = [
            {"params": [p for name, p in named if decays(name, p)], "weight_decay": recipe.decay, "factor": 1.0},
            {"params": kept, "weight_decay": 0.0, "factor": 1.0},
            {"params": [p for name, p in named if quick(name)], "weight_decay": 0.0, "factor": QUICKER},
        ]
        return cls(block, recipe, torch.optim.AdamW(groups, lr=recipe.rate))

    def steps(self, text: UInt8[Tensor, " bytes"], upto: int | None = None) -> Iterator[Mapping[str, float]]:
        """One step after another, to the recipe's end or `upto`: the loss of each encoding that took part, in nats."""
        while self.step < min(self.recipe.steps, upto or self.recipe.steps):
            losses = self._advance(text)
            self.step += 1
            yield losses

    def _advance(self, text: UInt8[Tensor, " bytes"]) -> dict[str, float]:
        read, following = batch(text, self.recipe, self.step)
        turn = in_turn(self.block.encodings, self.recipe, self.step)
        self.optimiser.zero_grad(set_to_none=True)
        weights = list(self.block.parameters())
        losses = {}
        for encoding in turn:
            loss = self.block.loss(encoding, read, following)
            gradients: tuple[Tensor | None, ...] = torch.autograd.grad(loss, weights, allow_unused=True)
            known = [gradient for gradient in gradients if gradient is not None]
            share = clipped(known, self.recipe.clip) / len(turn)
            for weight, gradient in zip(weights, gradients, strict=True):
                if gradient is not None:
                    weight.grad = share * gradient if weight.grad is None else weight.grad + share * gradient
            losses[encoding] = float(loss.detach())
        for group in self.optimiser.param_groups:
            group["lr"] = group["factor"] * rate(self.recipe, self.step)
        self.optimiser.step()
        return losses


def decays(name: str, weight: Tensor) -> bool:
    """Whether weight decay pulls on it: on matrices that encodings share, on nothing that belongs to one encoding."""
    return weight.ndim == 2 and not name.startswith("positional.")


def quick(name: str) -> bool:
    return name.removeprefix("positional.").replace("/", ".") in QUICK


def clipped(gradients: list[Tensor], largest: float) -> Tensor:
    """The factor that brings the norm of all together down to `largest`."""
    norm = torch.stack([gradient.square().sum() for gradient in gradients]).sum().sqrt()
    return (largest / norm.clamp(min=1e-12)).clamp(max=1.0)


def rate(recipe: Recipe, step: int) -> float:
    """Up in a line, level, and down in a line to 0. What comes before the descent does not depend on how long it all
    takes.
    """
    last = recipe.steps * recipe.cool_down
    return recipe.rate * min(1.0, (step + 1) / recipe.warm_up, (recipe.steps - step) / max(1.0, last))


def batch(
    text: UInt8[Tensor, " bytes"], recipe: Recipe, step: int
) -> tuple[Int64[Tensor, "batch length"], Int64[Tensor, "batch length"]]:
    """Examples from anywhere in the text: the bytes that are read, and for each the one that follows."""
    generator = torch.Generator().manual_seed(recipe.seed * 1_000_003 + step)
    starts = torch.randint(len(text) - LENGTH, (recipe.batch,), generator=generator)
    examples = text[starts[:, None] + torch.arange(LENGTH + 1)].long()
    return examples[:, :-1], examples[:, 1:]


def in_turn(encodings: tuple[str, ...], recipe: Recipe, step: int) -> list[str]:
    """The encodings of a step: every one takes part once before any takes part again, each round in an order of its
    own.
    """
    chosen = range(step * recipe.encodings, (step + 1) * recipe.encodings)
    found = []
    for number in chosen:
        which, place = divmod(number, len(encodings))
        generator = torch.Generator().manual_seed(recipe.seed * 1_000_003 + 500_000_000 + which)
        found.append(encodings[int(torch.randperm(len(encodings), generator=generator)[place])])
    return list(dict.fromkeys(found))
