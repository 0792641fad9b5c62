# The gateway, for a Triton beside it that runs in a container of its own. Debian 12 as
# on the machines of the tests: its decoders give what those hold against Pillow.
FROM golang:1.26-bookworm AS build
WORKDIR /src
COPY deploy/apt-packages deploy/
# Of the list of deploy/setup what the compiler needs.
RUN apt-get update && \
    awk '/# (cgo|prep\/raster)/ {print $1}' deploy/apt-packages | xargs apt-get install -y --no-install-recommends && \
    rm -rf /var/lib/apt/lists/*
COPY go.mod go.sum ./
RUN go mod download
COPY gateway gateway
COPY prep prep
COPY tritonclient tritonclient
# What /diagnostics and the metric histogate_build_info say: git is not in the context.
ARG REVISION=
RUN go build -trimpath -ldflags "-X histogate/gateway.revision=$REVISION" -o /gateway ./gateway/cmd/gateway

FROM debian:bookworm-slim
# Each library that the binary is linked to, and nothing else.
RUN apt-get update && \
    apt-get install -y --no-install-recommends \
      libdeflate0 libjpeg62-turbo libwebp7 libwebpdemux2 zlib1g && \
    rm -rf /var/lib/apt/lists/*
COPY --from=build /gateway /usr/local/bin/gateway
COPY LICENSE NOTICE /usr/share/doc/histogate/
# For `gateway repository build`. The folder holds specs alone, by .dockerignore.
COPY model_repository /opt/histogate/model_repository
ENV MODEL_REPOSITORY=/models
# nobody, as a number: Kubernetes cannot tell from a name that it is not root.
USER 65534:65534
EXPOSE 8080 9090
# Alive, not ready: one that waits for its models must not be replaced.
HEALTHCHECK --interval=10s --timeout=3s --start-period=10s CMD ["gateway", "health", "/livez"]
ENTRYPOINT ["gateway"]
CMD ["serve"]
