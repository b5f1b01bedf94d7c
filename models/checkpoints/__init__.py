"""Attention layers of other people's checkpoints, read as models to be exported. Tensors come from safetensors and GGUF
files, never from a pickle.
"""
