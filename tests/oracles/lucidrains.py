"""x-transformers, imported where its import-time use of the deprecated `torch.jit.script` is not an error."""

from __future__ import annotations

import warnings

with warnings.catch_warnings():
    warnings.filterwarnings("ignore", message="`torch.jit.script` is deprecated", category=DeprecationWarning)
    from x_transformers import x_transformers

AlibiPositionalBias = x_transformers.AlibiPositionalBias
CoPE = x_transformers.CoPE
DataDependentAlibi = x_transformers.DataDependentAlibi
RelativePositionBias = x_transformers.RelativePositionBias
RotaryEmbedding = x_transformers.RotaryEmbedding
apply_rotary_pos_emb = x_transformers.apply_rotary_pos_emb
