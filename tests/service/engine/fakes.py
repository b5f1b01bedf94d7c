"""Jobs, a scores graph small enough to read, and a runner that does what a test tells it."""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

from service.engine.finiteness import FINITE
from service.engine.job import Graph, Into, Job, Tables, digest

NOWHERE = Graph("identity.none", Path("nowhere.onnx"), "0")
NO_TABLES = Tables("none", {})
PATIENCE = 30.0
"""Seconds after which a test that waits for something that never comes fails."""


def job(
    mark: float = 0.0,
    *,
    tokens: int = 2,
    batch: int = 1,
    cells: int | None = None,
    outputs: tuple[str, ...] = ("scores",),
    visible: np.ndarray | None = None,
    graph: Graph = NOWHERE,
    tables: Tables = NO_TABLES,
) -> Job:
    """A job whose every number is `mark`."""
    queries = np.full((batch, tokens, 1, 2), mark, dtype=np.float32)
    cost = batch * tokens * tokens * len(outputs) if cells is None else cells
    return Job(graph, tables, outputs, queries, queries, visible, cost)


def marks(outputs: Mapping[str, np.ndarray]) -> dict[str, set[float]]:
    """What is in the outputs of `FakeRunner`: the job's mark under each name."""
    return {name: {float(value) for value in array.ravel()} for name, array in outputs.items()}


class Broken(Exception):
    """What a `FakeRunner` raises when told to."""


@dataclass
class FakeRunner:
    """Answers each cell with its job's mark. `fails` is asked for each run, with the marks in it. A run waits for the
    gate of its first mark in `gates`, or else for `gate`.
    """

    provider: str = "CPUExecutionProvider"
    fails: Callable[[list[float]], BaseException | None] = lambda _: None
    gate: threading.Event | None = None
    gates: dict[float, threading.Event] = field(default_factory=dict)
    runs: list[list[float]] = field(default_factory=list)
    entered: threading.Semaphore = field(default_factory=lambda: threading.Semaphore(0))
    built: bool = False
    """Whether its sessions are ready: only then may the event loop run them itself, whose tests must not wait."""

    def ready(self, job: Job) -> bool:
        return self.built

    def run(
        self,
        graph: Graph,
        outputs: tuple[str, ...],
        masked: bool,
        feeds: Mapping[str, np.ndarray],
        switches: tuple[str, ...] = (),
        into: Into | None = None,
    ) -> dict[str, np.ndarray]:
        queries, keys = feeds["queries"], feeds["keys"]
        here = [float(item.flat[0]) for item in queries]
        self.runs.append(here)
        self.entered.release()
        gate = self.gates.get(here[0], self.gate)
        if gate is not None and not gate.wait(PATIENCE):
            raise TimeoutError("the test never opened the gate")
        error = self.fails(here)
        if error is not None:
            raise error
        shape = (len(queries), 1, queries.shape[1], keys.shape[1])
        return {name: np.broadcast_to(queries[:, None, :, :1, 0], shape).copy() for name in outputs}


@dataclass
class Observer:
    """Writes down what it is told."""

    told: list[tuple[object, ...]] = field(default_factory=list)
    tokens: list[tuple[str, int, int]] = field(default_factory=list)
    """What the runs computed."""

    def queued(self, graph: str, jobs: int) -> None:
        self.told.append(("queued", graph, jobs))

    def batch_started(self, graph: str, jobs: int, trigger: str) -> None:
        self.told.append(("started", graph, jobs, trigger))

    def batch_finished(self, graph: str, jobs: int, seconds: float, provider: str, trigger: str) -> None:
        self.told.append(("finished", graph, jobs, provider, trigger))

    def computed(self, graph: str, real: int, padding: int) -> None:
        self.tokens.append((graph, real, padding))

    def batch_failed(self, graph: str, jobs: int, trigger: str) -> None:
        self.told.append(("failed", graph, jobs, trigger))

    def dropped(self, jobs: int, reason: str) -> None:
        self.told.append(("dropped", jobs, reason))

    def rejected(self, reason: str) -> None:
        self.told.append(("rejected", reason))

    def count(self, what: str) -> int:
        return sum(one[0] == what for one in self.told)


OUTPUTS = ("scores", "weights", "output", "term.content", "term.bias")


def scores_model() -> onnx.ModelProto:
    """scale q.k + bias, as `docs/architecture.md` lays a scores graph out. No output can be had by cutting another
    off.
    """
    pairs, rows = ["batch", "heads", "queries", "keys"], ["batch", "queries", "heads", "head_dim"]
    inputs = [
        helper.make_tensor_value_info("queries", TensorProto.FLOAT, rows),
        helper.make_tensor_value_info("keys", TensorProto.FLOAT, ["batch", "keys", "heads", "head_dim"]),
        helper.make_tensor_value_info("table.scale", TensorProto.FLOAT, []),
        helper.make_tensor_value_info("table.bias", TensorProto.FLOAT, ["heads", "queries", "keys"]),
        helper.make_tensor_value_info("visible", TensorProto.BOOL, ["b", "h", "queries", "keys"]),
    ]
    outputs = [
        helper.make_tensor_value_info(name, TensorProto.FLOAT, rows if name == "output" else pairs) for name in OUTPUTS
    ]
    nodes = [
        helper.make_node("Transpose", ["queries"], ["q"], perm=[0, 2, 1, 3]),
        helper.make_node("Transpose", ["keys"], ["k"], perm=[0, 2, 3, 1]),
        helper.make_node("MatMul", ["q", "k"], ["product"]),
        helper.make_node("Mul", ["product", "table.scale"], ["term.content"]),
        helper.make_node("Mul", ["product", "zero"], ["nothing"]),
        helper.make_node("Add", ["nothing", "table.bias"], ["term.bias"]),
        helper.make_node("Add", ["term.content", "table.bias"], ["scores"]),
        helper.make_node("Where", ["visible", "scores", "lowest"], ["seen"]),
        helper.make_node("Softmax", ["seen"], ["softmax"], axis=-1),
        helper.make_node("Where", ["visible", "softmax", "zero"], ["weights"]),
        helper.make_node("Transpose", ["keys"], ["v"], perm=[0, 2, 1, 3]),
        helper.make_node("MatMul", ["weights", "v"], ["mixed"]),
        helper.make_node("Transpose", ["mixed"], ["output"], perm=[0, 2, 1, 3]),
    ]
    constants = [
        numpy_helper.from_array(np.array(0, np.float32), "zero"),
        numpy_helper.from_array(np.array(np.finfo(np.float32).min), "lowest"),
    ]
    graph = helper.make_graph(nodes, "scores", inputs, outputs, constants)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=10)


def write_scores_graph(folder: Path, name: str = "identity.bias", version: str = "1") -> Graph:
    path, model = folder / f"{name}.{version}.onnx", scores_model()
    model.doc_string = version
    onnx.save(model, path)
    return Graph(name, path, digest(path.read_bytes()))


def bias_tables(heads: int, queries: int, keys: int, seed: int = 0) -> Tables:
    bias = np.random.default_rng(seed).standard_normal((heads, queries, keys), dtype=np.float32)
    return Tables(f"{heads}x{queries}x{keys}/{seed}", {"table.scale": np.array(0.5, np.float32), "table.bias": bias})


def expected(job: Job) -> dict[str, np.ndarray]:
    """The outputs of `scores_model`, in float64."""
    q, k = (array.astype(np.float64).transpose(0, 2, 1, 3) for array in (job.queries, job.keys))
    bias = job.tables.arrays["table.bias"].astype(np.float64)
    content = 0.5 * q @ k.swapaxes(-1, -2)
    scores = content + bias
    visible = np.ones(scores.shape, bool) if job.visible is None else np.broadcast_to(job.visible, scores.shape)
    powers = np.where(visible, np.exp(scores - scores.max()), 0.0)
    weights = powers / np.where(powers.any(-1, keepdims=True), powers.sum(-1, keepdims=True), 1.0)
    everything = {
        "scores": scores,
        "weights": weights,
        "output": (weights @ k).transpose(0, 2, 1, 3),
        "term.content": content,
        "term.bias": np.broadcast_to(bias, scores.shape),
    }
    return {name: everything[name] for name in job.outputs}


def assert_expected(jobs: Sequence[Job], results: Sequence[Mapping[str, np.ndarray]]) -> None:
    for one, outputs in zip(jobs, results, strict=True):
        assert tuple(name for name in outputs if name != FINITE) == one.outputs
        for name, value in expected(one).items():
            np.testing.assert_allclose(outputs[name], value, atol=1e-5)
