"""The operator set of every graph that is written."""

OPSET = 18
"""The last one whose nodes all have CUDA kernels in onnxruntime 1.31."""
