"""The attention scoring service: hosts exported attention models over HTTP."""

import os

__version__ = "0.1.0"

# onnxruntime reports its use over the internet unless this is set before it is first imported.
os.environ.setdefault("ORT_DISABLE_TELEMETRY", "1")
# NumPy multiplies no matrices here, and a process that is forked must have no threads.
os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
# A text is read on one thread; a pool of them in every process would only stand in the way.
os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
