"""What can be served: the models and encodings found in the folders of exported files."""

from __future__ import annotations

import json
from collections.abc import Collection, Iterable, Mapping
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import onnx
from google.protobuf.message import DecodeError  # type: ignore[import-untyped]
from pydantic import TypeAdapter, ValidationError

from service.encoding import FORMAT, Encoding, PositionsGraph
from service.engine.job import Graph, digest
from service.errors import InvalidInput, NotReady, UnknownName
from service.masks import Window
from service.text import FOLDER, Text, TextError

METADATA_KEY = "attention"
POSITIONS_SUFFIX = ".positions.onnx"
POSITIONS_INPUTS = ("query_positions", "key_positions", "causal", "heads_like")
DEFAULT_MODEL = "identity"
DEFAULT_TEXT_MODEL = "tiny"
ANALYSIS = "analysis"  # the folder of the graphs that summarise and compare, which is no model
DEFAULT_ENCODING = "rope"

_encodings = TypeAdapter(Encoding)


@dataclass(frozen=True, slots=True)
class Problem:
    """A file that is not served, and why."""

    path: Path
    reason: str

    def __str__(self) -> str:
        return f"{self.path}: {self.reason}"

    @property
    def served_as(self) -> str:
        """What it would be called if it were served, `identity.rope`."""
        return f"{self.path.parent.name}.{self.path.name.removesuffix('.onnx').removesuffix('.positions')}"


class FileError(Exception):
    """One file cannot be served; the message says why. Caught by `Catalogue.read`."""


@dataclass(frozen=True, slots=True)
class Model:
    """A family of encodings over one set of projections. Never empty.

    `heads`, `head_dim` and `width` are None where the request chooses them (identity). `text` is None where the model
    has no tokenizer.
    """

    name: str
    encodings: Mapping[str, Encoding]
    default: str
    text: Text | None = None

    @property
    def heads(self) -> int | None:
        return self.encodings[self.default].heads

    @property
    def head_dim(self) -> int | None:
        return self.encodings[self.default].head_dim

    @property
    def width(self) -> int | None:
        return self.encodings[self.default].width

    @property
    def weights(self) -> str | None:
        """The digest of the content weights that all encodings share: their heads can be compared one with another.

        None where there are none, or each encoding has its own.
        """
        found = {encoding.document.get("weights") for encoding in self.encodings.values()}
        return found.pop() if len(found) == 1 else None

    @property
    def window(self) -> Window | None:
        """What a layer sees at all; None: everything."""
        return self.encodings[self.default].window

    def encoding(self, name: str | None = None, *, pointer: str | None = "query:encoding") -> Encoding:
        """The encoding of that id or alias, in any case; the model's own where none is named.

        Raises UnknownName.
        """
        if name is None:
            return self.encodings[self.default]
        wanted = name.strip().lower()
        found = self.encodings.get(wanted)
        if found is None:
            found = next((encoding for encoding in self.encodings.values() if wanted in encoding.aliases), None)
        if found is None:
            raise UnknownName("encoding", name, self.names(), pointer=pointer)
        return found

    def names(self) -> list[str]:
        """Every id and alias."""
        return [*self.encodings, *(alias for encoding in self.encodings.values() for alias in encoding.aliases)]

    def textless(self, others: str) -> str:
        """Why it takes no text, and what to send instead; `others` says which models do."""
        checkpoint = self.encodings[self.default].document.get("checkpoint") or {}
        layer = checkpoint.get("layer")
        if not layer:
            return f"model {self.name!r} has no tokenizer, so it takes no text: {others}send embeddings"
        return (
            f"model {self.name!r} is layer {layer} of {checkpoint.get('file')}, which reads what the layers before it "
            f"make of a text, so it takes none: {others}send hidden_states[{layer}], which `python -m models "
            f"hidden-states CHECKPOINT --layer {layer} --text ... -o h.npy` writes"
        )

    def description(self) -> dict[str, Any]:
        return {
            "name": self.name,
            "encodings": list(self.encodings),
            "default_encoding": self.default,
            "default_causal": self.encodings[self.default].default_causal,
            "heads": self.heads,
            "head_dim": self.head_dim,
            "width": self.width,
            "weights": self.weights,
            "takes_text": self.text is not None,
            "text": None if self.text is None else self.text.description(self.default),
            "window": None if self.window is None else asdict(self.window),
            "checkpoint": self.encodings[self.default].document.get("checkpoint"),
        }


@dataclass(slots=True, eq=False)
class Catalogue:
    """Every model that can be served, and the files that cannot. It may be replaced while the service runs, which
    `version` counts: ask it each time.
    """

    models: Mapping[str, Model]
    problems: tuple[Problem, ...] = ()
    unloaded: tuple[str, ...] = ()
    """The names, `identity.rope`, of what could be served and is not, for somebody wanted that."""
    version: int = 0

    @classmethod
    def read(cls, folders: Iterable[Path]) -> Catalogue:
        """Reads `<folder>/<model>/<encoding>.onnx` and its positions graph for each model and encoding.

        Never raises for a bad file: what is wrong with it becomes a problem, and the rest is served.
        """
        models: dict[str, Model] = {}
        problems: list[Problem] = []
        for folder in folders:
            if not folder.is_dir():
                problems.append(Problem(folder, "no such folder"))
                continue
            for home in sorted(path for path in folder.iterdir() if path.is_dir() and path.name != ANALYSIS):
                if home.name in models:
                    problems.append(Problem(home, f"a model {home.name!r} was already read from another folder"))
                    continue
                model = _read_model(home, problems)
                if model is not None:
                    models[model.name] = model
        return cls(models, tuple(problems))

    def without(self, names: Collection[str]) -> Catalogue:
        """The same, but for these."""
        return Catalogue(_left(self.models, names), self.problems, tuple(sorted(names)))

    def failing(self, reasons: Mapping[str, str]) -> Catalogue:
        """The same, but for the encodings of these names, which cannot be served, and why."""
        found = [Problem(one.graph.path, reasons[one.name]) for one in self.encodings if one.name in reasons]
        return Catalogue(_left(self.models, reasons), (*self.problems, *found), self.unloaded)

    def take(self, other: Catalogue) -> None:
        """Becomes what the other is."""
        self.models, self.problems, self.unloaded = other.models, other.problems, other.unloaded
        self.version += 1

    @property
    def encodings(self) -> list[Encoding]:
        """Every encoding of every model."""
        return [encoding for model in self.models.values() for encoding in model.encodings.values()]

    def model(self, name: str | None = None, *, pointer: str | None = "query:model") -> Model:
        """The model of that name, in any case; `identity` (or else the first) where none is named.

        Raises UnknownName; NotReady where there are no models at all.
        """
        if not self.models:
            raise NotReady("no exported models were found")
        if name is None:
            return self.models.get(DEFAULT_MODEL) or next(iter(self.models.values()))
        found = self.models.get(name.strip().lower()) or self.models.get(name.strip())
        if found is None:
            raise UnknownName("model", name, self.models, pointer=pointer)
        return found

    def text_model(self, name: str | None = None) -> tuple[Model, Text]:
        """The model of that name, or `tiny` (or else the first that takes text), and how it does.

        Raises UnknownName; InvalidInput, naming those that do, where it takes none; NotReady.
        """
        reading = {model.name: (model, model.text) for model in self.models.values() if model.text is not None}
        model = self.model(name)
        if name is not None and model.name not in reading:
            others = f"model={' or model='.join(reading)} takes text; or " if reading else ""
            said = model.textless(others)
            for problem in self.problems:
                if problem.path.parts[-2:] == (model.name, FOLDER):
                    said = f"model {model.name!r} takes no text, for its {problem.reason}: {others}send embeddings"
            raise InvalidInput(said, pointer="/text", allowed=list(reading))
        if not reading:
            raise InvalidInput(
                "none of the models served here has a tokenizer, so text is not taken; send embeddings", pointer="/text"
            )
        default = DEFAULT_TEXT_MODEL if DEFAULT_TEXT_MODEL in reading else next(iter(reading))
        return reading[default if name is None else model.name]

    def describe_encodings(self, model: str | None = None) -> list[dict[str, Any]]:
        """`GET /encodings`: a line for each encoding, with the models that have it."""
        chosen = [self.model(model)] if model is not None else list(self.models.values())
        lines: dict[str, dict[str, Any]] = {}
        for one in chosen:
            for encoding in one.encodings.values():
                line = lines.setdefault(encoding.id, {**encoding.brief(), "models": []})
                line["models"].append(one.name)
        return [lines[name] for name in sorted(lines)]

    def describe_encoding(self, name: str, model: str | None = None) -> dict[str, Any]:
        """`GET /encodings/{id}`. Raises UnknownName."""
        _, encoding = self.find(name, model)
        models = [one.name for one in self.models.values() if encoding.id in one.encodings]
        return {**encoding.description(), "models": models}

    def find(self, name: str, model: str | None = None) -> tuple[Model, Encoding]:
        """The encoding of that id or alias, and its model: the one named, or `identity`, or else the first that has it.

        Raises UnknownName, which points nowhere where it is the encoding that is unknown.
        """
        chosen = self.model(model)
        if model is None:
            having = [one for one in self.models.values() if name.strip().lower() in one.names()]
            chosen = chosen if chosen in having or not having else having[0]
        return chosen, chosen.encoding(name, pointer=None)

    def describe_models(self) -> list[dict[str, Any]]:
        """`GET /models`."""
        return [model.description() for model in self.models.values()]


def _left(models: Mapping[str, Model], gone: Collection[str]) -> dict[str, Model]:
    left: dict[str, Model] = {}
    for model in models.values():
        encodings = {id: encoding for id, encoding in model.encodings.items() if encoding.name not in gone}
        if encodings:
            left[model.name] = replace(model, encodings=encodings, default=_default(encodings))
    return left


@dataclass(frozen=True, slots=True)
class _File:
    path: Path
    digest: str
    document: dict[str, Any]
    inputs: tuple[str, ...]
    reads: frozenset[str]
    outputs: tuple[str, ...]


def _read_model(home: Path, problems: list[Problem]) -> Model | None:
    encodings: dict[str, Encoding] = {}
    positions = {path.name.removesuffix(POSITIONS_SUFFIX): path for path in sorted(home.glob("*" + POSITIONS_SUFFIX))}
    for path in sorted(home.glob("*.onnx")):
        if path.name.endswith(POSITIONS_SUFFIX):
            continue
        partner = positions.pop(path.stem, None)
        at = path
        try:
            if partner is None:
                raise FileError(f"its positions graph {path.stem}{POSITIONS_SUFFIX} is missing")
            scores = _read_file(path, home.name, path.stem, "scores")
            at = partner
            tables = _read_file(partner, home.name, path.stem, "positions")
            at = path
            encoding = _pair(scores, tables)
            _check_family(encoding, encodings)
        except FileError as error:
            problems.append(Problem(at, str(error)))
        else:
            encodings[encoding.id] = encoding
    problems.extend(Problem(path, f"its scores graph {name}.onnx is missing") for name, path in positions.items())
    if not encodings:
        return None
    return Model(home.name, encodings, _default(encodings), _text(home, encodings, problems))


def _text(home: Path, encodings: Mapping[str, Encoding], problems: list[Problem]) -> Text | None:
    try:
        text = Text.read(home, home.name)
        if text is not None:
            width = next(iter(encodings.values())).width
            if text.width != width:
                raise TextError(f"embeddings are {text.width} wide, but the model takes {width or 'any width'}")
            if text.encoding is not None and text.encoding not in encodings:
                raise TextError(f"embeddings are for the encoding {text.encoding!r}, which the model does not have")
    except TextError as error:
        problems.append(Problem(home / FOLDER, str(error)))
        return None
    return text


def _default(encodings: Mapping[str, Encoding]) -> str:
    declared = [encoding.id for encoding in encodings.values() if encoding.default]
    if declared:
        return declared[0]
    return DEFAULT_ENCODING if DEFAULT_ENCODING in encodings else next(iter(encodings))


def _read_file(path: Path, model: str, encoding: str, graph: str) -> _File:
    try:
        content = path.read_bytes()
        proto = onnx.load_model_from_string(content)
    except (OSError, DecodeError) as error:
        raise FileError(f"cannot be read as ONNX: {error}") from error
    entry = next((entry.value for entry in proto.metadata_props if entry.key == METADATA_KEY), None)
    if entry is None:
        raise FileError(f"has no {METADATA_KEY!r} entry in its metadata")
    try:
        document = json.loads(entry)
    except ValueError as error:
        raise FileError(f"its {METADATA_KEY!r} metadata is not JSON: {error}") from error
    if not isinstance(document, dict):
        raise FileError(f"its {METADATA_KEY!r} metadata is not a JSON object")
    if document.get("format") != FORMAT:
        raise FileError(f"its metadata has format {document.get('format')!r}; this service reads format {FORMAT}")
    for field, expected in (("model", model), ("encoding", encoding), ("graph", graph)):
        if document.get(field) != expected:
            raise FileError(f"its metadata says {field} {document.get(field)!r}, but its place says {expected!r}")
    inputs = tuple(value.name for value in proto.graph.input)
    return _File(
        path,
        digest(content),
        document,
        inputs,
        frozenset(inputs).intersection(name for node in proto.graph.node for name in node.input),
        tuple(value.name for value in proto.graph.output),
    )


def _pair(scores: _File, tables: _File) -> Encoding:
    """Raises FileError where the two files do not fit each other or their own metadata."""
    for field in ("opset", "tables", "weights"):
        ours, theirs = scores.document.get(field), tables.document.get(field)
        if ours != theirs:
            raise FileError(f"says {field} {ours!r}, but {tables.path.name} says {theirs!r}")
    try:
        encoding = _encodings.validate_python(
            {
                **scores.document,
                "id": scores.document["encoding"],
                "graph": Graph(f"{scores.document['model']}.{scores.document['encoding']}", scores.path, scores.digest),
                "positions_graph": _positions_graph(tables),
                "document": scores.document,
            }
        )
    except ValidationError as error:
        reasons = [f"{'.'.join(map(str, one['loc']))}: {one['msg']}" for one in error.errors(include_url=False)]
        raise FileError(f"its metadata is wrong: {'; '.join(reasons)}") from error

    given = set(encoding.positions_graph.tables)
    missing = sorted(given ^ {f"table.{name}" for name in encoding.tables})
    if missing:
        raise FileError(f"the tables of its metadata and the outputs of {tables.path.name} differ in {missing}")
    known = {*POSITIONS_INPUTS, *(f"parameter.{parameter.name}" for parameter in encoding.parameters)}
    unknown = sorted(set(tables.inputs) - known)
    if unknown:
        raise FileError(f"{tables.path.name} needs {unknown}, which its metadata does not describe")
    lists = {f"expected.{parameter.name}" for parameter in encoding.parameters if parameter.kind == "numbers"}
    unknown = sorted(set(encoding.positions_graph.expected) - lists)
    if unknown:
        raise FileError(f"{tables.path.name} gives {unknown}, but its metadata has no such list")
    switches = {f"switch.{name}" for name in encoding.switches}
    unknown = sorted(set(scores.inputs) - {"queries", "keys", "visible"} - switches - given)
    if unknown:
        raise FileError(f"needs {unknown}, which {tables.path.name} does not give")
    absent = [name for name in ("queries", "keys") if name not in scores.inputs]
    if absent:
        raise FileError(f"has no input {absent}")
    promised = {"scores", "weights", "output", *encoding.outputs, *encoding.term_outputs}
    lacking = sorted(promised - set(scores.outputs))
    if lacking:
        raise FileError(f"has no output {lacking}, which its metadata promises")
    unknown = [name for name in encoding.switches if encoding.parameter(name) is None]
    if unknown:
        raise FileError(f"its switches {unknown} are none of its parameters")
    ordered = {name for order in encoding.orders for name in (order.less, order.more)}
    unknown = sorted(ordered - {one.name for one in encoding.parameters if one.kind in ("number", "integer")})
    if unknown:
        raise FileError(f"its orders are of {unknown}, which are none of its numbers")
    rows_of = encoding.positions.rows_of
    if rows_of is not None and encoding.parameter(rows_of) is None:
        raise FileError(f"its positions are rows of {rows_of!r}, which is none of its parameters")
    return encoding


def _positions_graph(file: _File) -> PositionsGraph:
    expected = tuple(name for name in file.outputs if name.startswith("expected."))
    tables = tuple(name for name in file.outputs if name not in expected)
    return PositionsGraph(file.path, file.digest, file.inputs, file.reads, tables, expected)


def _check_family(encoding: Encoding, others: Mapping[str, Encoding]) -> None:
    names = {name for other in others.values() for name in (other.id, *other.aliases)}
    taken = sorted(names & {encoding.id, *encoding.aliases})
    if taken:
        raise FileError(f"the name {taken[0]!r} is another encoding's already")
    for other in others.values():
        for field in ("heads", "head_dim", "width", "queries", "window"):
            ours, theirs = getattr(encoding, field), getattr(other, field)
            if ours != theirs:
                raise FileError(f"has {field} {ours!r}, but {other.id} of the same model has {theirs!r}")
