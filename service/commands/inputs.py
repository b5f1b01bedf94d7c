"""What a command scores: a file, standard input, a preset or a text, as arguments of `Client.attention`."""

from __future__ import annotations

import io
import json
import sys
import zipfile
import zlib
from collections.abc import Iterable, Mapping
from difflib import get_close_matches
from pathlib import Path
from typing import Any

import numpy as np

from service.client import array, read_safetensors

STDIN = "-"
MEMBERS = ("embeddings", "queries", "keys", "positions", "query_positions", "key_positions", "mask", "tokens", "text")


class Unreadable(Exception):
    """A file that is not there, or not what it should be; the message says which and why."""


def read(source: str) -> dict[str, Any]:
    """The members of a body in npy, npz, safetensors or JSON, told by its first bytes. Raises Unreadable."""
    name = "standard input" if source == STDIN else source
    content = _bytes(source)
    try:
        return {part: _numbers(part, value) for part, value in _members(content).items()}
    except Unreadable as error:
        raise Unreadable(f"{name}: {error}") from None
    except (ValueError, KeyError, EOFError, OSError, zipfile.BadZipFile, zlib.error) as error:
        raise Unreadable(f"{name} cannot be read: {error}") from None


def chosen(source: str | None, preset: str | None, text: str | None = None) -> dict[str, Any]:
    """What is scored, as arguments of `Client.attention`; of a preset, which the service has, nothing. Raises
    Unreadable unless one of them is named.
    """
    named = [one for one in (source, preset, text) if one is not None]
    if not named:
        raise Unreadable("there is nothing to score: name a file, or - for standard input, or a --preset")
    if len(named) > 1:
        raise Unreadable("name one: a file, a --preset or a --text")
    if source is None:
        return {} if text is None else {"text": text}
    members = read(source)
    return {"x" if name == "embeddings" else name: value for name, value in members.items()}


def matrix(source: str) -> Any:
    """One array, from a file of one. Raises Unreadable."""
    members = read(source)
    if list(members) != ["embeddings"]:
        raise Unreadable(f"{source} holds {', '.join(members)}, and one array is needed: npy, or a list in JSON")
    return members["embeddings"]


def parameters(given: Iterable[str]) -> dict[str, Any]:
    """Of `rope.theta=500000` and `t5.bias=@bias.npy`. Raises Unreadable."""
    found: dict[str, Any] = {}
    for one in given:
        name, equals, value = one.partition("=")
        if not (name and equals and value):
            raise Unreadable(f"-p {one}: a parameter is given as ENCODING.NAME=VALUE, such as rope.theta=500000")
        if name in found:
            raise Unreadable(f"-p {name} came twice")
        found[name] = matrix(value[1:]) if value.startswith("@") else value
    return found


def _bytes(source: str) -> bytes:
    if source == STDIN:
        content = sys.stdin.buffer.read()
        if not content:
            raise Unreadable("standard input is empty")
        return content
    try:
        return Path(source).read_bytes()
    except OSError as error:
        raise Unreadable(f"{source}: {error.strerror or error}") from None


def _members(content: bytes) -> dict[str, Any]:
    if content.startswith(b"\x93NUMPY"):
        return {"embeddings": np.load(io.BytesIO(content), allow_pickle=False)}
    if content.startswith(b"PK"):
        with np.load(io.BytesIO(content), allow_pickle=False) as archive:
            return _sorted_out({name: archive[name] for name in archive.files})
    if content[8:9] == b"{":
        return _sorted_out(read_safetensors(content)[1])
    document = _json(content)
    if isinstance(document, list):
        return {"embeddings": document}
    if not isinstance(document, dict):
        raise Unreadable("it is JSON, but neither a list of rows nor an object with embeddings")
    inner = document.pop("parameters", {})
    return _sorted_out(document) | ({"parameters": inner} if inner else {})


def _numbers(name: str, value: Any) -> Any:
    """The member, as an array where it is to be one."""
    if name in ("tokens", "text"):
        return value
    if name == "parameters" and isinstance(value, Mapping):
        return {one: _numbers(one, given) for one, given in value.items()}
    try:
        return array(value)
    except TypeError as error:
        raise Unreadable(f"{name}: {error}") from None
    except ValueError:
        raise Unreadable(f"{name} is no array of numbers: its rows are not all of one length") from None


def _json(content: bytes) -> Any:
    try:
        return json.loads(content)
    except ValueError as error:
        raise Unreadable(
            f"it is neither npy, npz, safetensors nor JSON ({error})"
            if content.lstrip()[:1] in (b"{", b"[")
            else "it is neither npy, npz, safetensors nor JSON"
        ) from None


def _sorted_out(members: Mapping[str, Any]) -> dict[str, Any]:
    """Arrays of parameters have dotted names."""
    dotted = {name: value for name, value in members.items() if "." in name}
    plain = {name: value for name, value in members.items() if "." not in name}
    for name in plain:
        if name not in MEMBERS:
            nearest = get_close_matches(name, MEMBERS, n=1, cutoff=0.5)
            hint = f"did you mean {nearest[0]}? Known" if nearest else "known"
            raise Unreadable(f"it holds {name!r}; {hint}: {', '.join(MEMBERS)}, ENCODING.PARAMETER")
    return plain | ({"parameters": dotted} if dotted else {})
