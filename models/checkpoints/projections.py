"""A checkpoint's projections in PyTorch: norm, fused or grouped heads undone, q/k norms."""

from __future__ import annotations

import torch
from jaxtyping import Float
from torch import Tensor, nn
from torch.nn.functional import layer_norm, linear

from models.checkpoints.layer import HeadNorm, Layer, Norm, Projection
from models.projections import Split, split

LIFT = 2.0**30


class LayerProjections(nn.Module):
    """q, k, v of a checkpoint's layer; embeddings are [batch, tokens, width]. Implements `models.projections`."""

    features = ("width",)

    def __init__(self, layer: Layer) -> None:
        super().__init__()
        self.heads, self.key_heads, self.head_dim, self.clip = (
            layer.heads,
            layer.key_heads,
            layer.head_dim,
            layer.clip,
        )
        self.norm = None if layer.norm is None else Normed(layer.norm)
        self.w_q, self.w_k, self.w_v = (_linear(part) for part in (layer.query, layer.key, layer.value))
        self.query_norm = None if layer.query_norm is None else HeadsNormed(layer.query_norm)
        self.key_norm = None if layer.key_norm is None else HeadsNormed(layer.key_norm)

    def query(self, x: Float[Tensor, "batch tokens width"]) -> Split:
        return self.query_of(self.normed(x))

    def key(self, x: Float[Tensor, "batch tokens width"]) -> Split:
        return self.key_of(self.normed(x))

    def value(self, x: Float[Tensor, "batch tokens width"]) -> Split:
        return self.value_of(self.normed(x))

    def normed(self, x: Float[Tensor, "batch tokens width"]) -> Float[Tensor, "batch tokens width"]:
        return x if self.norm is None else self.norm(x)

    def query_of(self, x: Float[Tensor, "batch tokens width"]) -> Split:
        """Of what comes out of the norm."""
        return self._split(self.w_q, x, self.heads, self.query_norm)

    def key_of(self, x: Float[Tensor, "batch tokens width"]) -> Split:
        return self._for_each_head(self._split(self.w_k, x, self.key_heads, self.key_norm))

    def value_of(self, x: Float[Tensor, "batch tokens width"]) -> Split:
        return self._for_each_head(self._split(self.w_v, x, self.key_heads, None))

    def _split(self, projection: nn.Linear, x: Tensor, heads: int, norm: HeadsNormed | None) -> Split:
        projected = linear(x, projection.weight, projection.bias)
        if self.clip is not None:
            projected = projected.clamp(-self.clip, self.clip)
        if norm is not None and norm.together:
            projected = norm(projected)
        by_head = torch.reshape(projected, (*x.shape[:-1], heads, self.head_dim))
        if norm is not None and not norm.together:
            by_head = norm(by_head)
        return by_head.transpose(1, 2)

    def _for_each_head(self, x: Float[Tensor, "batch key_heads tokens head_dim"]) -> Split:
        """Key head j in the place of each query head it serves."""
        group = self.heads // self.key_heads
        if group == 1:
            return x
        repeated = x[:, :, None].expand(-1, -1, group, -1, -1)
        return torch.reshape(repeated, (x.shape[0], self.heads, x.shape[2], self.head_dim))

    def position_query(
        self, p: Float[Tensor, "tokens width"], heads: int, head_dim: int
    ) -> Float[Tensor, "heads tokens head_dim"]:
        return split(linear(p, self.w_q.weight), heads, head_dim)

    def position_key(
        self, p: Float[Tensor, "tokens width"], heads: int, head_dim: int
    ) -> Float[Tensor, "heads tokens head_dim"]:
        return self._for_each_head(split(linear(p, self.w_k.weight), self.key_heads, head_dim)[None])[0]

    def position_value(
        self, p: Float[Tensor, "tokens width"], heads: int, head_dim: int
    ) -> Float[Tensor, "heads tokens head_dim"]:
        return self._for_each_head(split(linear(p, self.w_v.weight), self.key_heads, head_dim)[None])[0]


class Normed(nn.Module):
    """A `Norm` as a module."""

    def __init__(self, norm: Norm) -> None:
        super().__init__()
        self.kind, self.epsilon = norm.kind, norm.epsilon
        self.weight = None if norm.weight is None else nn.Parameter(norm.weight, requires_grad=False)
        self.bias = None if norm.bias is None else nn.Parameter(norm.bias, requires_grad=False)

    def forward(self, x: Float[Tensor, "... width"]) -> Float[Tensor, "... width"]:
        if self.kind == "layer" and (self.weight is None or self.weight.dim() == 1):
            return layer_norm(x, (x.shape[-1],), self.weight, self.bias, self.epsilon)
        return self.affine(self.centred(x) * self.shrink(x))

    def centred(self, x: Float[Tensor, "... width"]) -> Float[Tensor, "... width"]:
        """x, without its mean where the norm takes that off."""
        return x - x.mean(-1, keepdim=True) if self.kind == "layer" else x

    def shrink(self, x: Float[Tensor, "... width"]) -> Float[Tensor, "... 1"]:
        """1/sqrt(mean square + epsilon). Lifted, because the exporter rounds an epsilon of 1e-12 to nothing."""
        square = self.centred(x).square().mean(-1, keepdim=True)
        return torch.rsqrt(square * LIFT + self.epsilon * LIFT) * 2.0**15

    def gained(self, x: Float[Tensor, "... width"]) -> Float[Tensor, "... width"]:
        return x if self.weight is None else x * self.weight.to(x.dtype)

    def affine(self, x: Float[Tensor, "... width"]) -> Float[Tensor, "... width"]:
        x = self.gained(x)
        return x if self.bias is None else x + self.bias.to(x.dtype)


class HeadsNormed(Normed):
    """A `HeadNorm` as a module."""

    def __init__(self, norm: HeadNorm) -> None:
        super().__init__(norm.norm)
        self.together = norm.together


def _linear(projection: Projection) -> nn.Linear:
    out, width = projection.weight.shape
    linear_module = nn.Linear(width, out, bias=projection.bias is not None, device="meta")
    linear_module.weight = nn.Parameter(projection.weight, requires_grad=False)
    if projection.bias is not None:
        linear_module.bias = nn.Parameter(projection.bias, requires_grad=False)
    return linear_module
