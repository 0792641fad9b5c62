# The fixed entry points of the project. On Debian 12 with Go 1.26 and Python 3.11
# each does all the set-up it needs by itself.

CACHE    := $(or $(HISTOGATE_CACHE),$(HOME)/.cache/histogate)
GOLANGCI := 2.15.0
LINTER   := $(CACHE)/bin/golangci-lint-$(GOLANGCI)/golangci-lint

# Starts a program that is asked to stop when its parent is gone, however that ended:
# make passes SIGTERM on, but can do nothing on SIGKILL, and `go test` passes nothing on.
TIED := setpriv --pdeathsig TERM

.DEFAULT_GOAL := help
.PHONY: help demo serve test test-deploy breaks test-pt2 fuzz bench profile storm soak lint generate setup build

help: ## this list
	@awk -F ':.*## ' '/^[a-z0-9-]+:.*## / {printf "make %-11s %s\n", $$1, $$2}' $(firstword $(MAKEFILE_LIST))

demo: build ## start the stack, send it a real H&E tile, show what came back, stop
	go build -o build/demo ./tests/demo
	exec $(TIED) build/demo

# Where the gateway is to serve .pt2 checkpoints, its Triton has torch, and so has the
# set-up, which inherits pt2.
CHECKPOINTS := $(or $(MODEL_DIR),$(wildcard /opt/ml/model/*.pt2))

serve: pt2 := $(if $(CHECKPOINTS),-pt2)
serve: export TRITON_SERVER   ?= build/triton$(pt2)/tritonserver
serve: export TRITON_BACKENDS ?= build/triton$(pt2)/backends
serve: build ## the stack in the foreground, on PORT (8080) and METRICS_PORT (9090)
	exec $(TIED) build/gateway serve

# Under tests one package at a time (-p 1): those on the real Triton judge how it
# batches, and need the processor for that. The others mostly wait, or use one core.
test: build ## every test, those on the real Triton included
	go vet ./...
	$(TIED) tests/fuzz-briefly
	$(TIED) $(MAKE) --no-print-directory test-deploy
	$(TIED) go test -race -shuffle=on -p 2 -timeout 10m -exec '$(TIED)' $$(go list ./... | grep -v /tests/)
	exec $(TIED) go test -race -shuffle=on -p 1 -timeout 20m -exec '$(TIED)' ./tests/...
	@cat build/faults.txt # what became of each fault

# A module of its own, whose tests read what is outside it: no result is kept.
test-deploy: build ## what an operator is given: compose, images, Kubernetes, SageMaker
	cd tests/deploy && go vet ./...
	cd tests/deploy && exec $(TIED) go test -count=1 -timeout 10m -exec '$(TIED)' ./...

breaks: build ## breaks manifests, metrics and settings in a copy, and shows that tests notice
	exec $(TIED) tests/deploy/breaks

fuzz: FUZZ_MUTANTS ?= 200000
fuzz: FUZZ_SEED ?= 1
fuzz: setup ## FUZZ_MUTANTS (200000) mutated images, ours against Pillow, from FUZZ_SEED (1)
	go build -o build/fuzz ./tests/fuzz
	exec $(TIED) build/fuzz -n $(FUZZ_MUTANTS) -seed $(FUZZ_SEED)

test-pt2: ## .pt2 checkpoints compiled here, on a Triton with torch (7 GB, once)
	exec $(TIED) tests/pt2/run

# The models that cost a given time are made by measuring, so each machine has its own.
BENCH_MODELS := build/bench-models
$(BENCH_MODELS): $(addprefix tests/reference/,bench_models.py standins.py) $(addprefix model_repository/h1/,spec.yaml config.pbtxt) | setup
	build/tools/bin/python tests/reference/bench_models.py $@.new
	rm -rf $@ && mv $@.new $@
	touch $@

bench: peer := bench
bench: BENCH_ROUNDS ?= 5
bench: build $(BENCH_MODELS) ## stage 1 beside Pillow, then the stack beside one in Python, BENCH_ROUNDS (5) rounds (6 minutes each)
	go build -o build/stage1bench ./tests/stage1bench
	$(TIED) build/stage1bench
	$(TIED) go test -count=1 -exec '$(TIED)' ./tests/bench # both answer alike
	go build -o build/bench ./tests/bench
	exec $(TIED) build/bench -rounds $(BENCH_ROUNDS) $(if $(BENCH_RECORD),-record)

profile: build $(BENCH_MODELS) ## where the gateway's processor time and memory go: build/profile, the top ten as text
	go build -o build/bench ./tests/bench
	exec $(TIED) build/bench -profile build/profile

storm: build ## 20,000 requests at a real stack, a third of them malformed
	exec $(TIED) go test -count=1 -v -timeout 20m -exec '$(TIED)' ./tests/storm -requests 20000 -gateway-race=false

soak: SOAK_MINUTES ?= 10
soak: build ## SOAK_MINUTES (10) of steady load: goroutines and open files must not grow, nor (from 5 on) memory
	exec $(TIED) go test -count=1 -v -timeout $$(awk 'BEGIN {print int($(SOAK_MINUTES)) + 11}')m -exec '$(TIED)' ./tests/soak -minutes $(SOAK_MINUTES)

lint: setup $(LINTER) ## golangci-lint (gofmt included), ruff, shellcheck
	$(LINTER) run --allow-parallel-runners ./...
	cd tests/deploy && $(LINTER) run --allow-parallel-runners ./...
	build/tools/bin/ruff check --quiet .
	build/tools/bin/ruff format --check --quiet .
	git grep -lE '^#!.*(bash|sh)$$' | xargs shellcheck

$(LINTER):
	GOBIN=$(@D) go install github.com/golangci/golangci-lint/v2/cmd/golangci-lint@v$(GOLANGCI)

generate: setup ## what is generated and committed: the Go stubs of Triton's protocol
	tritonclient/kserve/generate.sh

setup: ## Debian packages, Triton, Python environments, stand-in models (all others call it)
	deploy/setup $(or $(peer),$(if $(MODEL_DIR)$(pt2),pt2))

build: setup ## the gateway: build/gateway
	go build -o build/gateway ./gateway/cmd/gateway
