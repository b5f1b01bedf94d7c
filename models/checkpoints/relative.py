"""Encoders with relative positions: T5 and MPNet (a bias for each bucket), DeBERTa, XLNet."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn.functional import layer_norm, linear

from models.checkpoints.distances import GivenDistances
from models.checkpoints.errors import CheckpointError
from models.checkpoints.fused import by_head
from models.checkpoints.layer import Layer, Positional, Projection, Value
from models.checkpoints.source import Config, Tensors
from models.encodings.none import NoEncoding
from models.encodings.t5 import T5
from models.encodings.transformer_xl import TransformerXL

MPNET_BUCKETS = 32


def t5(tensors: Tensors, config: Config, index: int) -> Layer:
    """A layer of the encoder. All layers share the first one's bias, but for UMT5's, which have their own."""
    width, heads, head_dim = config.whole("d_model"), config.whole("num_heads"), config.whole("d_kv", default=64)
    rows = heads * head_dim
    layer = f"encoder.block.{index}.layer.0"
    own, shared = (
        f"encoder.block.{block}.layer.0.SelfAttention.relative_attention_bias.weight" for block in (index, 0)
    )
    bias = tensors.get(own, shared)
    return Layer.ungrouped(
        width,
        heads,
        tensors.three(f"{layer}.SelfAttention", ("q", "k", "v"), rows, width),
        Positional(
            T5(),
            {"max_distance": config.whole("relative_attention_max_distance", default=128)},
            {"bias": bias},
        ),
        scale=1.0,
        norm=tensors.rms_norm(f"{layer}.layer_norm", config.number("layer_norm_epsilon", default=1e-6)),
    )


def mpnet(tensors: Tensors, config: Config, index: int) -> Layer:
    """T5's bias, of all layers alike, and the scale that T5 leaves out."""
    width, heads = config.whole("hidden_size"), config.whole("num_attention_heads")
    bias = tensors.get("encoder.relative_attention_bias.weight")
    if bias.shape[0] != MPNET_BUCKETS:
        raise CheckpointError(
            f"encoder.relative_attention_bias of {config.name} has {bias.shape[0]} rows, but MPNet puts distances into "
            f"{MPNET_BUCKETS} buckets, whatever the configuration says"
        )
    attention = f"encoder.layer.{index}.attention.attn"
    notes = (
        "learned is not written: MPNet's first layer has learned positions and a relative bias at once, and takes "
        "hidden states that carry the former"
    )
    return Layer.ungrouped(
        width,
        heads,
        tensors.three(attention, ("q", "k", "v"), width, width),
        Positional(T5(), {"max_distance": 128}, {"bias": bias}),
        notes=(notes,) if index == 0 else (),
    )


def deberta(tensors: Tensors, config: Config, index: int) -> Layer:
    """Version 1: queries, keys and values of each head in one matrix, biases of queries and values alone."""
    width, heads = config.whole("hidden_size"), config.whole("num_attention_heads")
    if config.flag("talking_head"):
        raise CheckpointError(f"{config.name} mixes its heads (talking_head), which is not served here")
    attention = f"encoder.layer.{index}.attention.self"
    query, key, value = by_head(tensors.linear(f"{attention}.in_proj", 3 * width, width), heads, width // heads)
    query = Projection(query.weight, tensors.shaped((width,), f"{attention}.q_bias"))
    value = Projection(value.weight, tensors.shaped((width,), f"{attention}.v_bias"))
    terms = _terms(config)
    positional = Positional(NoEncoding())
    if config.flag("relative_attention"):
        span = _furthest(config)
        table = tensors.get("encoder.rel_embeddings.weight")[: 2 * span]
        keys = tensors.linear(f"{attention}.pos_proj", width, width) if "c2p" in terms else None
        queries = tensors.linear(f"{attention}.pos_q_proj", width, width) if "p2c" in terms else None
        positional = Positional(_distances(table, keys, queries, heads))
    scale = (query.weight.shape[0] // heads * (1 + len(terms))) ** -0.5
    return Layer.ungrouped(width, heads, (query, key, value), positional, scale)


def deberta_v2(tensors: Tensors, config: Config, index: int) -> Layer:
    """Versions 2 and 3: buckets of distances, a norm of their table, and content's projections shared with it."""
    width, heads = config.whole("hidden_size"), config.whole("num_attention_heads")
    head_dim = config.whole("attention_head_size", default=width // heads)
    rows = heads * head_dim
    attention = f"encoder.layer.{index}.attention.self"
    query, key, value = tensors.three(attention, ("query_proj", "key_proj", "value_proj"), rows, width)
    terms = _terms(config)
    positional = Positional(NoEncoding())
    if config.flag("relative_attention"):
        furthest, buckets = _furthest(config), max(0, int(config.number("position_buckets", default=-1)))
        if buckets and furthest - 1 <= buckets // 2:
            raise CheckpointError(
                f"{config.name} has {buckets} position_buckets for distances up to {furthest}; half of them are for "
                "single distances, so the rest would stand for none"
            )
        table = tensors.get("encoder.rel_embeddings.weight")[: 2 * (buckets or furthest)]
        if "layer_norm" in [part.strip() for part in str(config.value("norm_rel_ebd") or "none").lower().split("|")]:
            norm = tensors.layer_norm("encoder.LayerNorm", config.number("layer_norm_eps", default=1e-7))
            table = layer_norm(table.double(), (width,), _double(norm.weight), _double(norm.bias), norm.epsilon)
        keys: Projection | None = key
        queries: Projection | None = query
        if not config.flag("share_att_key"):
            keys = tensors.linear(f"{attention}.pos_key_proj", rows, width) if "c2p" in terms else None
            queries = tensors.linear(f"{attention}.pos_query_proj", rows, width) if "p2c" in terms else None
        keys, queries = keys if "c2p" in terms else None, queries if "p2c" in terms else None
        scalars: dict[str, Value] = {"buckets": buckets, "max_position": furthest} if buckets else {}
        positional = Positional(_distances(table, keys, queries, heads), scalars)
    scale = (query.weight.shape[0] // heads * (1 + len(terms))) ** -0.5
    return Layer.ungrouped(width, heads, (query, key, value), positional, scale)


def _terms(config: Config) -> set[str]:
    """c2p, p2c, as a list or joined by |; the scale counts them."""
    listed = config.value("pos_att_type") or []
    terms = {term.strip() for term in (listed.lower().split("|") if isinstance(listed, str) else listed)}
    unknown = sorted(terms - {"c2p", "p2c"})
    if unknown:
        raise CheckpointError(f"pos_att_type of {config.name} has {', '.join(unknown)}; c2p and p2c are served here")
    return terms


def _furthest(config: Config) -> int:
    given = config.number("max_relative_positions", default=-1)
    return config.whole("max_position_embeddings") if given < 1 else int(given)


def _distances(table: Tensor, keys: Projection | None, queries: Projection | None, heads: int) -> GivenDistances:
    """The table's rows under both projections, [heads, rows, head_dim]: in float64, once."""

    def projected(projection: Projection | None) -> Tensor | None:
        if projection is None:
            return None
        rows = linear(table.double(), projection.weight.double(), _double(projection.bias))
        return rows.reshape(len(rows), heads, -1).transpose(0, 1).float().contiguous()

    of_keys, of_queries = projected(keys), projected(queries)
    either = of_keys if of_keys is not None else of_queries
    if either is None:
        raise CheckpointError("relative_attention without c2p or p2c in pos_att_type has no positional term")
    nothing = torch.zeros_like(either)
    return GivenDistances(nothing if of_keys is None else of_keys, nothing if of_queries is None else of_queries)


def _double(tensor: Tensor | None) -> Tensor | None:
    return None if tensor is None else tensor.double()


def xlnet(tensors: Tensors, config: Config, index: int) -> Layer:
    """Transformer-XL's four terms; segments, which add a fifth where a request has them, are left out."""
    width, heads = config.whole("d_model"), config.whole("n_head")
    head_dim = config.whole("d_head", default=width // heads)
    if config.number("clamp_len", default=-1) > 0:
        raise CheckpointError(f"{config.name} clamps distances (clamp_len), which is not served here")
    if config.flag("bi_data"):
        raise CheckpointError(f"{config.name} reads half of each batch backwards (bi_data), which is not served here")
    attention = f"layer.{index}.rel_attn"

    def projection(name: str) -> Tensor:
        return tensors.shaped((width, heads, head_dim), f"{attention}.{name}").permute(1, 2, 0).contiguous()

    def by_rows(name: str) -> Projection:
        return Projection(projection(name).reshape(heads * head_dim, width))

    arrays = {
        "u": tensors.shaped((heads, head_dim), f"{attention}.r_w_bias"),
        "v": tensors.shaped((heads, head_dim), f"{attention}.r_r_bias"),
        "w": projection("r"),
    }
    return Layer.ungrouped(
        width,
        heads,
        (by_rows("q"), by_rows("k"), by_rows("v")),
        Positional(TransformerXL(), {}, arrays),
        causal=config.value("attn_type") == "uni",
        notes=("segments are left out: the attention is that of a text without token_type_ids",),
    )
