"""What is served, in PyTorch: attention under each positional encoding, and its export to ONNX. Never imported by
`service`.
"""

import os

# onnxruntime reports its use over the internet unless this is set before it is first imported.
os.environ.setdefault("ORT_DISABLE_TELEMETRY", "1")
