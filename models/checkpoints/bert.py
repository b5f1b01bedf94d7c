"""BERT and its kin: no positions in attention, learned ones in the embeddings, and no norm before the projections."""

from __future__ import annotations

from models.checkpoints.embeddings import bert_norm, position_rows, segment
from models.checkpoints.layer import Embedding, Layer, Positional
from models.checkpoints.source import Config, Tensors
from models.encodings.none import NoEncoding


def bert(tensors: Tensors, config: Config, index: int) -> Layer:
    """BERT, RoBERTa, XLM-RoBERTa, CamemBERT, ELECTRA."""
    width, heads = config.whole("hidden_size"), config.whole("num_attention_heads")
    attention = f"encoder.layer.{index}.attention.self"
    return Layer.ungrouped(
        width,
        heads,
        tensors.three(attention, ("query", "key", "value"), width, width),
        Positional(NoEncoding()),
        causal=config.flag("is_decoder"),
        embedding=_embedding(tensors, config) if index == 0 else None,
        notes=_notes(config),
    )


def distilbert(tensors: Tensors, config: Config, index: int) -> Layer:
    width, heads = config.whole("dim", "hidden_size"), config.whole("n_heads", "num_attention_heads")
    attention = f"transformer.layer.{index}.attention"
    return Layer.ungrouped(
        width,
        heads,
        tensors.three(attention, ("q_lin", "k_lin", "v_lin"), width, width),
        Positional(NoEncoding()),
        embedding=_embedding(tensors, config) if index == 0 else None,
    )


def _embedding(tensors: Tensors, config: Config) -> Embedding | None:
    kind = config.value("position_embedding_type") or "absolute"
    if kind != "absolute" or not tensors.has("embeddings.position_embeddings.weight"):
        return None
    table = position_rows(tensors, config)
    if table.shape[1] != config.whole("hidden_size", "dim"):
        return None  # ELECTRA's embeddings may be narrower than its layers, with a projection between
    of_segment = None if config.model_type == "distilbert" else segment(tensors)
    return Embedding(table, bert_norm(tensors, config), of_segment)


def _notes(config: Config) -> tuple[str, ...]:
    kind = config.value("position_embedding_type") or "absolute"
    if kind == "absolute":
        return ()
    return (f"position_embedding_type is {kind!r}, which transformers 5 ignores in attention; so does this import",)
