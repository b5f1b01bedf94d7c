# The service alone: service/ and exported/ on the serving lock, no torch. Three targets:
#   docker build -t attention-scoring .                        on the CPU (the default)
#   docker build -t attention-scoring:gpu --target gpu .       on an NVIDIA GPU: CUDA 13 libraries included, the driver is the host's
#   docker build -t attention-scoring:ray --target ray .       for the nodes of a Ray cluster, on the CPU: docs/ray.md
ARG BASE=python:3.11-slim

FROM ${BASE} AS installer
RUN python -m venv --without-pip /opt/venv
ENV PIP_NO_CACHE_DIR=1 PIP_DISABLE_PIP_VERSION_CHECK=1 PIP_ROOT_USER_ACTION=ignore

FROM installer AS packages-cpu
COPY requirements/serve.txt /tmp/lock.txt
# The wheel for Linux x86-64 serves on the CPU as well; there, its CUDA and TensorRT providers are 285 MB that nothing loads.
RUN python -m pip --python /opt/venv/bin/python install -r /tmp/lock.txt \
    && find /opt/venv -name 'libonnxruntime_providers_cuda.so' -delete -o -name 'libonnxruntime_providers_tensorrt.so' -delete

FROM installer AS packages-gpu
COPY requirements/gpu.txt /tmp/lock.txt
RUN python -m pip --python /opt/venv/bin/python install -r /tmp/lock.txt

FROM installer AS packages-ray
COPY requirements/ray.txt /tmp/lock.txt
RUN python -m pip --python /opt/venv/bin/python install -r /tmp/lock.txt \
    && find /opt/venv -name 'libonnxruntime_providers_cuda.so' -delete -o -name 'libonnxruntime_providers_tensorrt.so' -delete

FROM ${BASE} AS runtime
RUN useradd --uid 10001 --user-group --no-create-home --shell /usr/sbin/nologin attention
WORKDIR /srv
ENV PATH=/opt/venv/bin:$PATH \
    PYTHONUNBUFFERED=1 \
    PYTHONDONTWRITEBYTECODE=1 \
    ORT_DISABLE_TELEMETRY=1 \
    ATTENTION_HOST=0.0.0.0 \
    ATTENTION_PORT=8000
COPY exported exported
COPY service service
USER attention
EXPOSE 8000
HEALTHCHECK --interval=10s --timeout=3s --start-period=60s --retries=3 \
    CMD ["python", "-c", "import os, urllib.request; urllib.request.urlopen(f\"http://127.0.0.1:{os.environ['ATTENTION_PORT']}/health/ready\", timeout=2)"]
CMD ["python", "-m", "service"]

FROM runtime AS gpu
ENV ATTENTION_DEVICE=cuda \
    NVIDIA_VISIBLE_DEVICES=all \
    NVIDIA_DRIVER_CAPABILITIES=compute,utility
COPY --from=packages-gpu /opt/venv /opt/venv

FROM runtime AS ray
# KubeRay's probes ask with wget.
USER root
RUN apt-get update && apt-get install -y --no-install-recommends wget && rm -rf /var/lib/apt/lists/*
USER attention
# Ray imports the application by its name, in workers that begin elsewhere.
ENV PYTHONPATH=/srv \
    RAY_USAGE_STATS_ENABLED=0 \
    RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO=0 \
    HOME=/tmp
HEALTHCHECK NONE
COPY --from=packages-ray /opt/venv /opt/venv

FROM runtime AS cpu
ENV ATTENTION_DEVICE=cpu
COPY --from=packages-cpu /opt/venv /opt/venv
