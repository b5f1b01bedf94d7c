"""A tokenizer for small random models, and what their library makes of its tokens."""

from __future__ import annotations

import warnings
from pathlib import Path
from typing import Any

import torch
from tokenizers import Tokenizer, models, pre_tokenizers, processors
from torch import Tensor

from models.checkpoints.reference import bias_once
from tests.models.checkpoints.miniatures import VOCABULARY

SENTENCE = "the dog chased the cat that chased the mouse"


def word_tokenizer() -> Tokenizer:
    """Of words, with a token before every text and one after it, as BERT's has them."""
    words = [*(f"word{number}" for number in range(VOCABULARY)), *dict.fromkeys(SENTENCE.split()), "[CLS]", "[SEP]"]
    words = words[-VOCABULARY:]
    tokenizer = Tokenizer(models.WordLevel({word: i for i, word in enumerate(words)}, unk_token=words[0]))
    tokenizer.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    special = [(name, words.index(name)) for name in ("[CLS]", "[SEP]")]
    tokenizer.post_processor = processors.TemplateProcessing(single="[CLS] $A [SEP]", special_tokens=special)
    return tokenizer


def answered(folder: Path, ids: list[int]) -> tuple[Tensor, Tensor]:
    """The reference library's hidden_states[0] [tokens, width] and attention of the first layer [heads, ...]."""
    from transformers import AutoModel

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        model: Any = AutoModel.from_pretrained(folder, attn_implementation="eager", dtype=torch.float32).eval()
        encoder = model.get_encoder() if model.config.is_encoder_decoder else model
        with torch.no_grad(), bias_once(model):
            answer = encoder(torch.tensor([ids]), output_hidden_states=True, output_attentions=True)
    return answer.hidden_states[0][0], answer.attentions[0][0]
