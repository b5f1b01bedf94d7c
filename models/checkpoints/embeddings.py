"""What a model's first layer reads: the rows of its vocabulary, and what the model makes of them before that layer."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from jaxtyping import Float
from torch import Tensor

from models.checkpoints.layer import Norm, Projection
from models.checkpoints.llama import TRAITS
from models.checkpoints.source import Config, Tensors

PADDED = ("roberta", "xlm-roberta", "camembert")
"""Their tables of positions begin with rows for padding: the first token has the row after it, and a padding token,
which is not counted, that of padding.
"""
MPNET_PADDING = 1
"""Whatever the configuration says."""


@dataclass(frozen=True)
class Padding:
    """The token that stands for none, and what is added in the place of a position wherever it comes."""

    token: int
    row: Float[Tensor, " width"]


@dataclass(frozen=True)
class Embeddings:
    """E[token] `scale` + `segment` + the row of `positions`, through `norm` and `projection`, which may come first.

    `tokens` is the name in the file of E [tokens, width], which is read when it is written: it may be large.
    """

    tokens: str
    scale: float = 1.0
    segment: Float[Tensor, " width"] | None = None
    positions: Float[Tensor, "positions width"] | None = None
    padding: Padding | None = None
    norm: Norm | None = None
    projection: Projection | None = None
    projection_first: bool = False


def embeddings(tensors: Tensors, config: Config) -> Embeddings:
    """Of the model that the layers are of. Raises CheckpointError where a tensor is missing."""
    return READERS[config.model_type or ""](tensors, config)


def position_rows(tensors: Tensors, config: Config) -> Float[Tensor, "positions width"]:
    """The learned positions of BERT's kin, position 0 first. Raises CheckpointError."""
    table, padding = tensors.get("embeddings.position_embeddings.weight"), _padding_token(config)
    return (table if padding is None else table[padding + 1 :]).contiguous()


def padding(tensors: Tensors, config: Config) -> Padding | None:
    """That of a model whose padding has a row among its positions; None of others. Raises CheckpointError."""
    token = _padding_token(config)
    if token is None:
        return None
    return Padding(token, tensors.get("embeddings.position_embeddings.weight")[token].contiguous())


def _padding_token(config: Config) -> int | None:
    """Also the index of its row."""
    if config.model_type == "mpnet":
        return MPNET_PADDING
    return int(config.number("pad_token_id", default=1)) if config.model_type in PADDED else None


def segment(tensors: Tensors) -> Float[Tensor, " width"] | None:
    """The vector of the first segment, in which all tokens of one text are."""
    segments = tensors.maybe("embeddings.token_type_embeddings.weight")
    return None if segments is None or not len(segments) else segments[0].contiguous()


def bert_norm(tensors: Tensors, config: Config) -> Norm:
    """The norm of BERT's embeddings and its kin's. Raises CheckpointError."""
    if config.model_type == "distilbert":
        return tensors.layer_norm("embeddings.LayerNorm", 1e-12)
    default = 1e-7 if config.model_type in ("deberta", "deberta-v2") else 1e-12
    return tensors.layer_norm("embeddings.LayerNorm", config.number("layer_norm_eps", default=default))


def _bert(tensors: Tensors, config: Config) -> Embeddings:
    """Also RoBERTa, ELECTRA, DistilBERT, MPNet and RoFormer (whose positions are in attention alone)."""
    projects = tensors.has("embeddings_project.weight")
    width = config.whole("hidden_size", "dim")
    return Embeddings(
        tensors.place("embeddings.word_embeddings.weight"),
        segment=None if config.model_type in ("distilbert", "mpnet") else segment(tensors),
        positions=None if config.model_type == "roformer" else position_rows(tensors, config),
        padding=padding(tensors, config),
        norm=bert_norm(tensors, config),
        projection=tensors.linear("embeddings_project", width, config.whole("embedding_size")) if projects else None,
    )


def _deberta(tensors: Tensors, config: Config) -> Embeddings:
    projects = tensors.has("embeddings.embed_proj.weight")
    width = config.whole("hidden_size")
    return Embeddings(
        tensors.place("embeddings.word_embeddings.weight"),
        segment=segment(tensors),
        positions=position_rows(tensors, config) if config.flag("position_biased_input", default=True) else None,
        norm=bert_norm(tensors, config),
        projection=tensors.linear("embeddings.embed_proj", width, config.whole("embedding_size")) if projects else None,
        projection_first=True,
    )


def _nomic_bert(tensors: Tensors, config: Config) -> Embeddings:
    """As transformers saves it, or as published."""
    name = "emb_ln" if tensors.has("emb_ln.weight") else "embeddings.LayerNorm"
    epsilon = config.number("layer_norm_eps", "layer_norm_epsilon", default=1e-12)
    tokens = tensors.place("embeddings.word_embeddings.weight")
    return Embeddings(tokens, segment=segment(tensors), norm=tensors.layer_norm(name, epsilon))


def _modernbert(tensors: Tensors, config: Config) -> Embeddings:
    norm = tensors.layer_norm("embeddings.norm", config.number("norm_eps", default=1e-5))
    return Embeddings(tensors.place("embeddings.tok_embeddings.weight"), norm=norm)


def _gpt2(tensors: Tensors, config: Config) -> Embeddings:
    return Embeddings(tensors.place("wte.weight"), positions=tensors.get("wpe.weight"))


def _bloom(tensors: Tensors, config: Config) -> Embeddings:
    norm = tensors.layer_norm("word_embeddings_layernorm", config.number("layer_norm_epsilon", default=1e-5))
    return Embeddings(tensors.place("word_embeddings.weight"), norm=norm)


def _llama(tensors: Tensors, config: Config) -> Embeddings:
    scale = 1.0
    if config.model_type in ("gemma", "gemma2", "gemma3_text"):
        scale = config.whole("hidden_size") ** 0.5
    elif config.model_type == "granite":
        scale = config.number("embedding_multiplier", default=1.0)
    return Embeddings(tensors.place("embed_tokens.weight"), scale=scale)


def _bare(*names: str) -> Callable[[Tensors, Config], Embeddings]:
    """The rows as they are, by the first of these names that is there."""

    def read(tensors: Tensors, config: Config) -> Embeddings:
        return Embeddings(tensors.place(*names))

    return read


READERS: Mapping[str, Callable[[Tensors, Config], Embeddings]] = {
    **dict.fromkeys(("bert", *PADDED, "electra", "distilbert", "mpnet", "roformer"), _bert),
    **dict.fromkeys(("deberta", "deberta-v2"), _deberta),
    "nomic_bert": _nomic_bert,
    "modernbert": _modernbert,
    **dict.fromkeys(("t5", "mt5", "umt5"), _bare("shared.weight", "encoder.embed_tokens.weight")),
    "xlnet": _bare("word_embedding.weight"),
    **dict.fromkeys(TRAITS, _llama),
    "gpt2": _gpt2,
    "gpt_neox": _bare("embed_in.weight"),
    **dict.fromkeys(("gptj", "mpt"), _bare("wte.weight")),
    "falcon": _bare("word_embeddings.weight"),
    "bloom": _bloom,
}
