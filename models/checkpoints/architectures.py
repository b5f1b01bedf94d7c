"""Which reader takes which model type. A new one is a file and a line here."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from models.checkpoints.bert import bert, distilbert
from models.checkpoints.errors import CheckpointError, nearest
from models.checkpoints.gpt import bloom, falcon, gpt2, gpt_neox, gptj, mpt
from models.checkpoints.layer import Layer
from models.checkpoints.llama import TRAITS, llama
from models.checkpoints.relative import deberta, deberta_v2, mpnet, t5, xlnet
from models.checkpoints.source import Config, Source, Tensors
from models.checkpoints.turned import modernbert, nomic_bert, roformer

Read = Callable[[Tensors, Config, int], Layer]
LAYERS = ("num_hidden_layers", "n_layer", "n_layers", "num_layers")
INSIDE = ("text_config", "llm_config", "language_config")

ARCHITECTURES: Mapping[str, Read] = {
    **dict.fromkeys(("bert", "roberta", "xlm-roberta", "camembert", "electra"), bert),
    "distilbert": distilbert,
    "roformer": roformer,
    "modernbert": modernbert,
    "nomic_bert": nomic_bert,
    "mpnet": mpnet,
    **dict.fromkeys(("t5", "mt5", "umt5"), t5),
    "deberta": deberta,
    "deberta-v2": deberta_v2,
    "xlnet": xlnet,
    **dict.fromkeys(TRAITS, llama),
    "gpt2": gpt2,
    "gpt_neox": gpt_neox,
    "gptj": gptj,
    "bloom": bloom,
    "mpt": mpt,
    "falcon": falcon,
}


def read_layer(source: Source, index: int) -> tuple[Layer, Config]:
    """One layer and the configuration that it was read by. Raises CheckpointError."""
    config = configuration(source)
    layers = config.whole(*LAYERS)
    if not 0 <= index < layers:
        raise CheckpointError(f"{source.name} has layers 0 to {layers - 1}, so no layer {index}")
    return ARCHITECTURES[config.model_type or ""](Tensors(source), config, index), config


def configuration(source: Source) -> Config:
    """Of the model whose layers are read: of one that sees, too, that of its language model. Raises CheckpointError."""
    config = Config(source.config, source.name)
    while config.model_type not in ARCHITECTURES:
        inner = next((config.values[name] for name in INSIDE if isinstance(config.values.get(name), dict)), None)
        if inner is None:
            raise _unknown(config)
        config = Config(inner, source.name)
    return config


def _unknown(config: Config) -> CheckpointError:
    what = "no model_type" if config.model_type is None else f"model_type {config.model_type!r}"
    near = nearest(config.model_type or "", ARCHITECTURES)
    return CheckpointError(
        f"{config.name} has {what} in its configuration, which is not known here"
        + (f"; the most like it: {', '.join(near)}" if near else "")
        + f"; known: {', '.join(sorted(ARCHITECTURES))}. Any layer can be given in the plain form (docs/checkpoints.md)"
    )
