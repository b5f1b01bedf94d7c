"""The engine: forms batches of jobs and runs them on one device. It knows nothing of HTTP.

`engine` is its face on the event loop; `inline` runs what is small there, `worker` has the threads for the rest;
`batches` is the queue, with its `policy` and `cost`;
`compute` runs one batch, with `assembly`; `session` is onnxruntime, with `pruning`, `permuting` and `device`;
`cores` are those that may be used;
`observer` is what telemetry sees; `job` what goes in and comes out.
On a GPU: `gpu_policy` and its `buckets`, and `binding` to its `memory`, which is `cuda_memory`.
"""
