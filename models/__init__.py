"""What is served, in PyTorch: attention under each positional encoding, and its export to ONNX. Never imported by
`service`.
"""
