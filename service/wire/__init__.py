"""Bodies: bytes to an `AttentionInput`, a `ScoringResult` to bytes. One file for each format; nothing knows of routes.

`body` one way in and one way out | `media` which format a header names | `json`, `npy`, `npz`, `safetensors` formats |
`arrays` what every format checks of an array | `members` which names go together | `answer` what every format says of a
result | `problem` the error document |
`open_inference` that protocol's bodies, with its `_tensors` and content `_coding`
"""
