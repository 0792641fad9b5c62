#!/usr/bin/env bash
# Generates the Go stubs of the protocol. protoc is Debian's protobuf-compiler;
# the two plugins are built at pinned versions into a cache outside the checkout.
set -euo pipefail
cd "$(dirname "$0")"
bin=${HISTOGATE_CACHE:-$HOME/.cache/histogate}/bin/protoc-1.36.12-1.6.2
if [ ! -x "$bin/protoc-gen-go-grpc" ]; then
  GOBIN=$bin go install google.golang.org/protobuf/cmd/protoc-gen-go@v1.36.12
  GOBIN=$bin go install google.golang.org/grpc/cmd/protoc-gen-go-grpc@v1.6.2
fi
PATH=$bin:$PATH protoc --go_out=. --go_opt=paths=source_relative \
  --go-grpc_out=. --go-grpc_opt=paths=source_relative grpc_service.proto model_config.proto
