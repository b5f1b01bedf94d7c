"""What papers say of position alone, beside transformers' own code and what the exported models compute."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from transformers.models.bloom.modeling_bloom import build_alibi_tensor
from transformers.models.t5.modeling_t5 import T5Attention

from service.probes.references import bucket_steps, slopes


@pytest.mark.parametrize("heads", [1, 2, 3, 4, 6, 8, 12, 16, 20, 71])
def test_alibi_slopes_are_those_of_bloom(heads: int) -> None:
    alibi = build_alibi_tensor(torch.ones(1, 2), heads, torch.float32)  # [heads, 1, keys]: slope times position
    assert slopes(heads) == pytest.approx(alibi[:, 0, 1].double().numpy(), rel=1e-6)


@given(directed=st.integers(2, 80), max_distance=st.integers(2, 2000))
@settings(max_examples=30)
def test_t5_buckets_begin_where_the_formula_says(directed: int, max_distance: int) -> None:
    """The published formula, whose logarithms are compared as whole powers."""
    exact = directed // 2
    most, n = max(max_distance, exact + 1), directed - exact
    borders = [most**t for t in range(n)]
    powers = [exact**t for t in range(n)]

    def bucket(d: int) -> int:
        if d < exact:
            return d
        return exact + max(t for t in range(n) if not t or d**n * powers[t] >= borders[t] * powers[-1] * exact)

    of = [bucket(d) for d in range(301)]
    assert list(bucket_steps(directed, max_distance, 300)) == [d for d in range(1, 301) if of[d] != of[d - 1]]


@pytest.mark.parametrize("causal", [True, False])
@pytest.mark.parametrize(("buckets", "max_distance"), [(32, 128), (32, 100), (64, 500), (8, 20)])
def test_t5_buckets_begin_where_transformers_begins_them(buckets: int, max_distance: int, causal: bool) -> None:
    """But for distances that fall on a border exactly, which the last bit of a logarithm decides there."""
    steps = set(bucket_steps(buckets if causal else buckets // 2, max_distance, 700).tolist())
    relative = -torch.arange(0, 701)
    theirs = T5Attention._relative_position_bucket(
        relative, bidirectional=not causal, num_buckets=buckets, max_distance=max_distance
    )
    expected = set((1 + np.flatnonzero(np.diff(theirs.numpy()))).tolist())
    assert all(min(abs(d - e) for e in expected) <= 1 for d in steps)
    assert len(steps) == len(expected)
    assert len(steps ^ expected) <= 4
