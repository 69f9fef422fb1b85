# An image with only the models that export wrote, and `cp`. The build context is the model repository:
#
#   docker build --file deploy/kubernetes/model.Dockerfile --tag torchlane-model:digits-1 artifacts
ARG BASE_IMAGE=busybox:1.37
FROM ${BASE_IMAGE}
COPY --chown=10001:10001 . /model
USER 10001:10001
