"""How far the exported statistics are from float64, at many shapes."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import onnx
import onnxruntime
import torch

from models.analysis.graph import Analysis
from models.analysis.sample import Sample
from models.parity import ParityError

TOLERANCE = 5e-6


@dataclass(frozen=True)
class Case:
    """One shape to compare at."""

    batch: int
    heads: int
    queries: int
    keys: int
    causal: bool = False
    masked: bool = False
    sinks: bool = False
    padded: bool = False


CASES = (
    Case(1, 1, 1, 1),
    Case(1, 2, 1, 2),
    Case(1, 1, 2, 2, causal=True),
    Case(3, 4, 40, 40, masked=True),
    Case(1, 4, 40, 40, causal=True, sinks=True),
    Case(2, 2, 33, 65, causal=True, masked=True),
    Case(1, 2, 257, 257, causal=True),
    Case(1, 2, 257, 257),
    Case(1, 1, 1, 4096),
    Case(3, 2, 48, 64, padded=True),
)


@dataclass(frozen=True)
class Parity:
    """The largest error of any output in any case, relative to the larger of 1 and the output's largest value; and
    whose it is.
    """

    error: float
    output: str
    cases: int


def parity(analysis: Analysis, graph: onnx.ModelProto) -> Parity:
    """Raises `models.parity.ParityError` where an output is off by more than `TOLERANCE`."""
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = 1
    session = onnxruntime.InferenceSession(graph.SerializeToString(), options, providers=["CPUExecutionProvider"])
    names = [entry.name for entry in session.get_outputs()]
    worst = Parity(-1.0, "", len(CASES))
    for seed, case in enumerate(CASES):
        sample = Sample.random(
            case.batch, case.heads, case.queries, case.keys, min(5, case.keys), seed,
            causal=case.causal, masked=case.masked, sinks=case.sinks, padded=case.padded,
        )  # fmt: skip
        feeds = {name: value.numpy() for name, value in sample.feeds(analysis.inputs).items()}
        served = dict(zip(names, session.run(names, feeds), strict=True))
        exact = {name: value.double().numpy() for name, value in analysis.run(sample, torch.float64).items()}
        for name in names:
            if served[name].shape != exact[name].shape:
                raise ParityError(f"{analysis.name}: {name} has shape {served[name].shape} at {case}")
            error = float(np.abs(served[name] - exact[name]).max() / max(1.0, np.abs(exact[name]).max()))
            if not error <= TOLERANCE:
                raise ParityError(f"{analysis.name}: {name} is off by {error:.1e} at {case}; {TOLERANCE:g} is allowed")
            if error > worst.error:
                worst = Parity(error, name, len(CASES))
    return worst
