"""Text for models that carry a tokenizer: `<model>/text/` holds `tokenizer.json`, as the library `tokenizers` writes
it, and `embeddings.safetensors`, a row for each token.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from jaxtyping import Float32
from tokenizers import Tokenizer

from service.embeddings import FILE, Embeddings, EmbeddingsError
from service.errors import InvalidInput, PayloadTooLarge

FOLDER, TOKENIZER = "text", "tokenizer.json"
SPACE = "\u2423"
"""What a space looks like in the name of a token."""


class TextError(Exception):
    """A folder from which no text can be taken; the message says why."""


@dataclass(frozen=True, slots=True, eq=False)
class Text:
    """How a model turns text into embeddings. `encoding` is the one that text is scored under unless the request names
    another; None: the model's own.
    """

    tokenizer: Tokenizer
    embeddings: Embeddings
    spelling: Spelling

    @property
    def width(self) -> int:
        return self.embeddings.width

    @property
    def encoding(self) -> str | None:
        return self.embeddings.encoding

    @classmethod
    def read(cls, home: Path, model: str) -> Text | None:
        """That of a model's folder; None where it has no text. Raises TextError."""
        folder = home / FOLDER
        if not folder.exists():
            return None
        try:
            written = (folder / TOKENIZER).read_text("utf-8")
            tokenizer = Tokenizer.from_str(written)
        except Exception as error:  # the library raises nothing narrower
            raise TextError(f"{TOKENIZER} cannot be read: {error}") from error
        # Both are part of many published files; they would cut the text, or add to it.
        tokenizer.no_truncation()
        tokenizer.no_padding()
        try:
            embeddings = Embeddings.read(folder / FILE, model)
        except EmbeddingsError as error:
            raise TextError(f"{FILE} {error}") from error
        return cls(tokenizer, embeddings, Spelling.of(json.loads(written)))

    def description(self, default: str) -> dict[str, Any]:
        """`GET /models`: how many tokens it knows, and the encoding that text is scored under, or else `default`."""
        return {"vocabulary": self.embeddings.vocabulary, "default_encoding": self.encoding or default}

    def embed(
        self, text: str, most: int, at: np.ndarray | None = None, *, bare: bool = False, placed: bool = False
    ) -> tuple[Float32[np.ndarray, "tokens width"], list[str]]:
        """The embeddings of the tokens of a text, those included that the tokenizer adds, and the tokens' names: at the
        positions `at`, where the model has some of its own, by default 0, 1, 2, ...; with `bare` the vocabulary's rows,
        whose positions are the request's if they are `placed`.

        Raises InvalidInput where there are none, or one without a row or a position; PayloadTooLarge where there are
        more than `most`.
        """
        # Of a batch of one, for `encode` alone would keep every other thread waiting.
        ids = self.tokenizer.encode_batch_fast([text])[0].ids
        if not ids:
            raise InvalidInput("the text has no tokens; send some", pointer="/text")
        if len(ids) > most:
            raise PayloadTooLarge(
                f"the text has {len(ids):,} tokens; the limit is {most:,}: send less of it", pointer="/text", limit=most
            )
        if at is not None and len(at) != len(ids):
            raise InvalidInput(f"{len(at)} positions came for {len(ids)} tokens", pointer="/positions")
        distinct, where = np.unique(ids, return_inverse=True)
        names = [self.spelling.name(self.tokenizer.id_to_token(int(one)) or "") for one in distinct]
        if distinct[-1] >= self.embeddings.vocabulary:
            raise InvalidInput(
                f"the text has the token {names[-1][:80]!r}, for which the model has no embedding", pointer="/text"
            )
        if bare and not placed and self.embeddings.padding in ids:
            padding = names[int(np.searchsorted(distinct, self.embeddings.padding))]
            raise InvalidInput(
                f"the text has the token {padding!r}, padding, which has no position of its own in this model: leave "
                "it out, send positions, or ask for an encoding that takes what token and position make together",
                pointer="/text",
            )
        return self.embeddings.of(np.array(ids), at, bare=bare), [names[one] for one in where]


@dataclass(frozen=True, slots=True)
class Spelling:
    """How a tokenizer writes bytes and spaces in its tokens, and how they are shown to a reader instead: a space as
    `␣`, a backslash as two, what cannot be printed as in Python's strings: `\\n`, and `\\xc3` for a byte that is no
    character by itself.
    """

    byte_level: bool = False
    """Each byte as a letter, as in GPT-2."""
    underlined: bool = False
    """A space as `▁`, as in SentencePiece."""
    byte_fallback: bool = False
    """A byte of a character without a token as `<0xC3>`."""

    @classmethod
    def of(cls, document: Mapping[str, Any]) -> Spelling:
        """As `tokenizer.json` says."""
        parts = [part for name in ("normalizer", "pre_tokenizer", "decoder") for part in _parts(document.get(name))]
        kinds = {part.get("type") for part in parts}
        replaced = any(part.get("type") == "Replace" and part.get("content") == "▁" for part in parts)
        model = document.get("model") or {}
        return cls("ByteLevel" in kinds, "Metaspace" in kinds or replaced, bool(model.get("byte_fallback")))

    def name(self, token: str) -> str:
        """A token, for a reader."""
        if self.byte_level and all(letter in BYTE_OF for letter in token):
            content = bytes(BYTE_OF[letter] for letter in token)
        elif self.byte_fallback and (byte := _FALLBACK.fullmatch(token)):
            content = bytes.fromhex(byte[1])
        else:
            content = (token.replace("▁", " ") if self.underlined else token).encode("utf-8", "replace")
        text = content.replace(b"\\", b"\\\\").decode("utf-8", "backslashreplace")
        return "".join(_shown(letter) for letter in text)


_FALLBACK = re.compile("<0x([0-9A-Fa-f]{2})>")


def _shown(letter: str) -> str:
    if letter == " ":
        return SPACE
    return letter if letter.isprintable() else letter.encode("unicode_escape").decode()


def _parts(node: Any) -> Iterator[Mapping[str, Any]]:
    """A part of a tokenizer and the parts it is a sequence of."""
    if isinstance(node, Mapping):
        yield node
        for value in node.values():
            for one in value if isinstance(value, list) else ():
                yield from _parts(one)


def _letters() -> dict[str, int]:
    """GPT-2's letter for each byte: itself where Latin-1 prints it, else the next that is free from U+0100 on."""
    printed = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    others = [byte for byte in range(256) if byte not in printed]
    return {chr(byte): byte for byte in printed} | {chr(0x100 + i): byte for i, byte in enumerate(others)}


BYTE_OF = _letters()
