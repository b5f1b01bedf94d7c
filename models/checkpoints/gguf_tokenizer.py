"""The tokenizer that a GGUF file carries: vocabulary, merges, and the name of the rule by which text is split first.

Built where that rule is known to be the model's own, as `tokenizers` and llama.cpp both have it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers, processors

from models.checkpoints.errors import CheckpointError
from models.checkpoints.gguf_file import GgufFile

CONTROL, USER_DEFINED = 3, 4
"""GGUF's types of tokens that are found in a text before anything is split."""
CONTRACTIONS = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)"
REST = r" ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"


def _gpt2() -> pre_tokenizers.PreTokenizer:
    return pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=True)


def _digits() -> pre_tokenizers.PreTokenizer:
    """Each digit by itself, then as GPT-2."""
    return pre_tokenizers.Sequence([pre_tokenizers.Digits(individual_digits=True), _gpt2()])


def _pattern(digits: str) -> Callable[[], pre_tokenizers.PreTokenizer]:
    """A letter may follow one sign that is none; so many digits stand together."""
    pattern = rf"{CONTRACTIONS}|[^\r\n\p{{L}}\p{{N}}]?\p{{L}}+|{digits}|{REST}"

    def split() -> pre_tokenizers.PreTokenizer:
        bytes_ = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
        return pre_tokenizers.Sequence([pre_tokenizers.Split(Regex(pattern), behavior="isolated"), bytes_])

    return split


@dataclass(frozen=True)
class Rule:
    """How text is split, and what else goes with that. `whole`: a piece that is a token is not put together by merges;
    `begins`: whether a text begins with its token where the file does not say.
    """

    split: Callable[[], pre_tokenizers.PreTokenizer]
    whole: bool = False
    begins: bool = False
    composed: bool = False
    """Whether text is brought into Unicode's composed form first (NFC)."""


LLAMA_3 = Rule(_pattern(r"\p{N}{1,3}"), whole=True, begins=True)
RULES: Mapping[str, Rule] = {
    **dict.fromkeys(("gpt-2", "phi-2"), Rule(_gpt2)),
    **dict.fromkeys(("smollm", "starcoder", "refact", "command-r"), Rule(_digits)),
    **dict.fromkeys(("llama3", "llama-v3", "llama-bpe"), LLAMA_3),
    "qwen2": Rule(_pattern(r"\p{N}"), composed=True),
}
"""By GGUF's tokenizer.ggml.pre."""
ELSE = "with --tokenizer, the model's tokenizer.json is read instead"


def gguf_tokenizer(file: GgufFile) -> Tokenizer:
    """Raises CheckpointError where it cannot be built exactly."""
    kind, rule = file.field("tokenizer.ggml.model"), file.field("tokenizer.ggml.pre")
    if kind is None:
        raise CheckpointError(f"{file.name} has no vocabulary (tokenizer.ggml.model); {ELSE}")
    if kind != "gpt2":
        raise CheckpointError(
            f"the vocabulary of {file.name} is of the kind {kind!r}, and how such a model treats spaces a GGUF file "
            f"does not say in full; {ELSE}"
        )
    if rule not in RULES:
        said = "does not say" if rule is None else f"names a rule, {rule!r}, that is not known here,"
        raise CheckpointError(
            f"{file.name} {said} how text is split (tokenizer.ggml.pre; known: {', '.join(RULES)}); {ELSE}"
        )
    return _built(file, RULES[rule])


def _built(file: GgufFile, rule: Rule) -> Tokenizer:
    tokens, merges = file.strings("tokenizer.ggml.tokens"), file.strings("tokenizer.ggml.merges")
    vocabulary = {token: number for number, token in enumerate(tokens)}
    pairs = [(left, right) for left, space, right in (merge.partition(" ") for merge in merges) if space]
    if len(vocabulary) != len(tokens) or len(pairs) != len(merges):
        raise CheckpointError(f"the vocabulary of {file.name} has tokens twice, or merges that are no pairs; {ELSE}")
    tokenizer = Tokenizer(models.BPE(vocab=vocabulary, merges=pairs, ignore_merges=rule.whole))
    if rule.composed:
        tokenizer.normalizer = normalizers.NFC()
    tokenizer.pre_tokenizer = rule.split()
    tokenizer.decoder = decoders.ByteLevel()
    kinds: list[int] = file.field("tokenizer.ggml.token_type") or []
    named = list(zip(tokens, kinds, strict=False))
    tokenizer.add_special_tokens(
        [AddedToken(token, normalized=False, special=True) for token, kind in named if kind == CONTROL]
    )
    tokenizer.add_tokens([AddedToken(token, normalized=False) for token, kind in named if kind == USER_DEFINED])
    added = {name: _added(file, tokens, name, default) for name, default in (("bos", rule.begins), ("eos", False))}
    if template := " ".join(filter(None, (added["bos"], "$A", added["eos"]))):
        named_ids = [(token, vocabulary[token]) for token in added.values() if token is not None]
        if named_ids:
            tokenizer.post_processor = processors.TemplateProcessing(single=template, special_tokens=named_ids)
    return tokenizer


def _added(file: GgufFile, tokens: list[str], name: str, default: bool) -> str | None:
    """The token that every text begins or ends with."""
    says: Any = file.field(f"tokenizer.ggml.add_{name}_token")
    number: int | None = file.field(f"tokenizer.ggml.{name}_token_id")
    if not (default if says is None else says) or number is None:
        return None
    return tokens[number]
