"""The arrays that summaries are of and made of."""

from __future__ import annotations

import numpy as np
from jaxtyping import Bool, Float, Float64

Matrix = Float[np.ndarray, "batch heads queries keys"]
Visible = Bool[np.ndarray, "#batch #heads queries keys"]
Rows = Float64[np.ndarray, "batch heads queries"]
Heads = Float64[np.ndarray, "batch heads"]
Selection = Bool[np.ndarray, "batch heads queries"]
