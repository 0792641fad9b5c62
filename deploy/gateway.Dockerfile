FROM golang:1.26-bookworm AS build
WORKDIR /src
COPY deploy/apt-packages deploy/
# Headers and compilers: the list of deploy/setup, which is for this same Debian.
RUN apt-get update && \
    sed 's/#.*//' deploy/apt-packages | xargs apt-get install -y --no-install-recommends && \
    rm -rf /var/lib/apt/lists/*
COPY go.mod go.sum ./
RUN go mod download
COPY gateway gateway
COPY prep prep
COPY tritonclient tritonclient
RUN go build -trimpath -o /gateway ./gateway/cmd/gateway

FROM debian:bookworm-slim
# The libraries that the headers above belong to; curl for the health check.
RUN apt-get update && apt-get install -y --no-install-recommends \
      curl libdeflate0 libjpeg62-turbo libvips42 libwebp7 libwebpdemux2 && \
    rm -rf /var/lib/apt/lists/*
COPY --from=build /gateway /usr/local/bin/gateway
ENV MODEL_REPOSITORY=/models
USER nobody
EXPOSE 8080 9090
ENTRYPOINT ["gateway"]
CMD ["serve"]
