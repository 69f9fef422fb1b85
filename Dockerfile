# Three images from one file: `api` serves models, `export` creates artifacts, `load` runs load tests.
#
#   docker build --target api --tag torchlane .
#
# EXTRAS           extras of the serving image, for example "grpc text"
# EXPORT_EXTRAS    extras of the export image, for example huggingface
# TORCHLANE_PURE   1: no machine code in the serving image, which saves minutes of the build; default: 0
# BASE_IMAGE       a Debian image with Python 3.11, 3.12 or 3.13 at /usr/local/bin/python
# TORCH_INDEX_URL  the index for torch, for example one of CPU-only wheels; default: pip's own, which has CUDA builds
# PIP_INDEX_URL    the index for everything else; default: pip's own
# --build-context wheels=DIR       wheels to use before any index
# --secret id=extra_ca,src=FILE    certificates that pip and apt trust, for a private mirror; not stored in the image
ARG BASE_IMAGE=python:3.11-slim-bookworm

FROM scratch AS wheels


# --- the dependencies: pinned, in layers below the sources ---

# One requirements file for each image: later layers are rebuilt when its requirements change, not at every change of
# pyproject.toml.
FROM ${BASE_IMAGE} AS requirements
ARG EXTRAS EXPORT_EXTRAS
WORKDIR /requirements
COPY deploy/docker/requirements.py pyproject.toml ./
RUN python requirements.py pyproject.toml $(for each in $EXTRAS; do echo "--extra $each"; done) > api.txt \
    && python requirements.py pyproject.toml $(for each in export $EXPORT_EXTRAS; do echo "--extra $each"; done) > export.txt \
    && python requirements.py pyproject.toml --extra loadtests --without torch --without fastapi --without fastapi-offline --without uvicorn > load.txt

FROM ${BASE_IMAGE} AS build
WORKDIR /build
ENV PIP_DISABLE_PIP_VERSION_CHECK=1 PIP_ROOT_USER_ACTION=ignore
COPY constraints.txt ./
# All stages below install with this: the base image's pip, into an environment without pip.
COPY --chmod=755 <<'SCRIPT' /usr/local/bin/install-into
#!/bin/sh
set -eu
if [ -s /run/secrets/extra_ca ]; then export PIP_CERT=/run/secrets/extra_ca; fi
environment=$1; shift
[ -d "$environment" ] || python -m venv --without-pip "$environment"
exec pip --python "$environment/bin/python" install --quiet --find-links /wheels --constraint constraints.txt "$@"
SCRIPT

# torch's own dependencies are installed with the rest, from PIP_INDEX_URL.
FROM build AS serving-environment
ARG TORCH_INDEX_URL PIP_INDEX_URL
RUN --mount=type=secret,id=extra_ca --mount=type=bind,from=wheels,target=/wheels \
    --mount=type=cache,target=/root/.cache/pip \
    install-into /opt/venv --no-deps ${TORCH_INDEX_URL:+--index-url "$TORCH_INDEX_URL"} torch
COPY --from=requirements /requirements/api.txt ./
RUN --mount=type=secret,id=extra_ca --mount=type=bind,from=wheels,target=/wheels \
    --mount=type=cache,target=/root/.cache/pip \
    install-into /opt/venv -r api.txt

# Removes files that serving never opens: torch's headers, tests, and tools except the one that `import torch` needs.
FROM serving-environment AS slim-environment
RUN cd /opt/venv/lib/python3*/site-packages/torch \
    && rm -rf include test \
    && find bin -mindepth 1 -not -name torch_shm_manager -delete

FROM serving-environment AS export-environment
ARG PIP_INDEX_URL
COPY --from=requirements /requirements/export.txt ./
RUN --mount=type=secret,id=extra_ca --mount=type=bind,from=wheels,target=/wheels \
    --mount=type=cache,target=/root/.cache/pip \
    install-into /opt/venv -r export.txt

# Load generation needs neither torch nor the server.
FROM build AS load-environment
ARG PIP_INDEX_URL
COPY --from=requirements /requirements/load.txt ./
RUN --mount=type=secret,id=extra_ca --mount=type=bind,from=wheels,target=/wheels \
    --mount=type=cache,target=/root/.cache/pip \
    install-into /opt/venv -r load.txt


# --- the sources, as installed packages: each image contains only what it runs ---

FROM build AS packaging
ARG PIP_INDEX_URL
RUN --mount=type=secret,id=extra_ca --mount=type=bind,from=wheels,target=/wheels \
    --mount=type=cache,target=/root/.cache/pip \
    install-into /opt/build hatchling
COPY LICENSE README.md pyproject.toml ./
COPY deploy/compile.py deploy/machine_code.py deploy/metadata.py deploy/package.py deploy/wheel.py deploy/
COPY torchlane torchlane
COPY --chmod=755 <<'SCRIPT' /usr/local/bin/package-into
#!/bin/sh
set -eu
"$1/bin/python" -m hatchling build --target wheel --directory /build/dist
pip --python "$1/bin/python" install --quiet --no-index --no-deps --target "$2" dist/*.whl
SCRIPT

# With the request path compiled to machine code, which needs everything that it imports.
FROM serving-environment AS app-package
ARG PIP_INDEX_URL TORCHLANE_PURE=0
RUN --mount=type=secret,id=extra_ca \
    if [ "$TORCHLANE_PURE" = 1 ]; then exit; fi; \
    if [ -s /run/secrets/extra_ca ]; then set -- -o Acquire::https::CAInfo=/run/secrets/extra_ca; fi; \
    headers=$(python -c 'import sysconfig; print(sysconfig.get_path("include"))'); \
    apt-get "$@" update -qq \
    && apt-get "$@" install -y -qq --no-install-recommends g++ libc6-dev \
       $([ -e "$headers/Python.h" ] || echo libpython3-dev) \
    && rm -rf /var/lib/apt/lists/* /var/cache/apt/* /var/log/*
RUN --mount=type=secret,id=extra_ca --mount=type=bind,from=wheels,target=/wheels \
    --mount=type=cache,target=/root/.cache/pip \
    install-into /opt/venv hatchling $([ "$TORCHLANE_PURE" = 1 ] || echo mypy setuptools)
COPY --from=packaging /usr/local/bin/package-into /usr/local/bin/
COPY --from=packaging /build ./
COPY app app
# without models/definitions: serving needs no Python code of a model
COPY models/*.py models/
COPY models/inputs models/inputs
COPY models/runtimes models/runtimes
COPY models/stores models/stores
COPY models/system models/system
RUN package-into /opt/venv /opt/torchlane

FROM packaging AS export-package
COPY models models
COPY export export
RUN package-into /opt/build /opt/torchlane

FROM packaging AS load-package
COPY models/*.py models/
COPY models/inputs models/inputs
COPY models/stores models/stores
COPY models/system models/system
COPY loadtests loadtests
RUN package-into /opt/build /opt/torchlane


# --- the images ---

FROM ${BASE_IMAGE} AS runtime
RUN --mount=type=secret,id=extra_ca \
    if [ -s /run/secrets/extra_ca ]; then set -- -o Acquire::https::CAInfo=/run/secrets/extra_ca; fi; \
    apt-get "$@" update -qq \
    && apt-get "$@" install -y -qq --no-install-recommends tini \
    && rm -rf /var/lib/apt/lists/* /var/cache/apt/* /var/log/*
RUN groupadd --gid 10001 torchlane \
    && useradd --uid 10001 --gid torchlane --home-dir /tmp --no-create-home --shell /usr/sbin/nologin torchlane \
    && install -d -o torchlane -g torchlane /artifacts /cache /reports
COPY deploy/docker/healthcheck.py /opt/healthcheck.py
COPY --chmod=755 deploy/docker/serve /usr/local/bin/serve
WORKDIR /opt/torchlane
ENV PATH=/opt/venv/bin:$PATH PYTHONPATH=/opt/torchlane PYTHONUNBUFFERED=1 PYTHONDONTWRITEBYTECODE=1
COPY --chmod=755 <<'SCRIPT' /usr/local/bin/torchlane
#!/bin/sh
exec python -P -m torchlane "$@"
SCRIPT
USER 10001:10001
# tini forwards signals, reaps orphans, and exits with the server's status for the restart policy.
ENTRYPOINT ["tini", "--"]


FROM runtime AS export
USER root
RUN --mount=type=secret,id=extra_ca \
    if [ -s /run/secrets/extra_ca ]; then set -- -o Acquire::https::CAInfo=/run/secrets/extra_ca; fi; \
    apt-get "$@" update -qq \
    && apt-get "$@" install -y -qq --no-install-recommends g++ \
    && rm -rf /var/lib/apt/lists/* /var/cache/apt/* /var/log/*
COPY --from=export-environment /opt/venv /opt/venv
COPY --from=export-package /opt/torchlane /opt/torchlane
USER 10001:10001
ENV MPLCONFIGDIR=/tmp/matplotlib
VOLUME /artifacts
CMD ["torchlane", "export", "digits", "--out", "/artifacts"]
ARG VERSION=1.0.0 REVISION=unknown
LABEL org.opencontainers.image.title="Torchlane export" \
      org.opencontainers.image.description="Creates verified, self-describing artifacts from PyTorch models" \
      org.opencontainers.image.licenses="Apache-2.0" \
      org.opencontainers.image.version="$VERSION" \
      org.opencontainers.image.revision="$REVISION"


FROM runtime AS load
COPY --from=load-environment /opt/venv /opt/venv
COPY --from=load-package /opt/torchlane /opt/torchlane
EXPOSE 8089
CMD ["locust", "--locustfile", "torchlane/loadtests/locustfile.py"]
ARG VERSION=1.0.0 REVISION=unknown
LABEL org.opencontainers.image.title="Torchlane load" \
      org.opencontainers.image.description="Locust users and a capacity search for Torchlane servers" \
      org.opencontainers.image.licenses="Apache-2.0" \
      org.opencontainers.image.version="$VERSION" \
      org.opencontainers.image.revision="$REVISION"


# The last stage: the default of a build without --target.
FROM runtime AS api
COPY --from=slim-environment /opt/venv /opt/venv
COPY --from=app-package /opt/torchlane /opt/torchlane
ENV TORCHLANE_HOST=0.0.0.0 TORCHLANE_PORT=8000 TORCHLANE_MODEL_DIR=/artifacts TORCHLANE_LOG_FORMAT=json
EXPOSE 8000
HEALTHCHECK --interval=5s --timeout=3s --start-period=120s --retries=3 \
  CMD ["python", "-I", "-S", "/opt/healthcheck.py", "ready"]
CMD ["torchlane", "serve"]
ARG VERSION=1.0.0 REVISION=unknown
LABEL org.opencontainers.image.title="Torchlane" \
      org.opencontainers.image.description="Serves exported PyTorch models: batched, de-duplicated, cached" \
      org.opencontainers.image.licenses="Apache-2.0" \
      org.opencontainers.image.version="$VERSION" \
      org.opencontainers.image.revision="$REVISION"
