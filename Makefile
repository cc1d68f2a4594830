SHELL := /bin/bash
.SHELLFLAGS := -euo pipefail -c
.DEFAULT_GOAL := help

BIN := $(CURDIR)/.bin
MODULES := proto pkg migrations services
VERSION := $(shell git describe --tags --always --dirty 2>/dev/null || echo dev)
LDFLAGS := -X lockstep.dev/services/internal/version.Version=$(VERSION)

# What a person may set: make demo DEMO_FLAGS=--help, make test TESTFLAGS='-run TestReport -v', make bench BASE=old.txt BENCH_ROWS=100000
# DEMO_FLAGS and BENCH_FLAGS go to `lockstep demo` and `lockstep bench`, TESTFLAGS and GOBENCHFLAGS to `go test`.
DEMO_FLAGS ?=
BENCH_FLAGS ?=
TESTFLAGS ?=
GOBENCHFLAGS ?=
DOCKER_FLAGS ?=
BASE ?=
SOAK_MINUTES ?= 50
BENCH_ROWS ?= 1000000
BENCH_DIFF ?= 10000

.PHONY: help
help: ## Say what can be made.
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "  make %-16s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

## Running

.PHONY: demo
demo: setup build ## Start both services with databases of their own and show a reconciliation (DEMO_FLAGS).
	$(BIN)/lockstep demo $(DEMO_FLAGS)

.PHONY: build
build: ## Build center, consumer and lockstep into .bin/.
	go build -trimpath -ldflags '$(LDFLAGS)' -o $(BIN)/ ./services/center ./services/consumer ./services/lockstep

.PHONY: images
images: ## Build the images of center, consumer and lockstep (DOCKER_FLAGS).
	@for target in center consumer lockstep; do \
		image=lockstep; [ "$$target" = lockstep ] || image=lockstep-$$target; \
		DOCKER_BUILDKIT=1 docker build -f deploy/Dockerfile --target $$target --build-arg VERSION='$(VERSION)' -t $$image $(DOCKER_FLAGS) .; done

.PHONY: up
up: build ## Start deploy/compose.yaml and wait until both services are ready (PROFILE=observability).
	@tools/compose.sh up

.PHONY: down
down: ## Stop deploy/compose.yaml and remove its data.
	@tools/compose.sh down

.PHONY: sbom
sbom: build ## Write what each program is made of, as CycloneDX, into .cache/.
	@mkdir -p .cache
	@for program in center consumer lockstep; do \
		GOWORK=off go run github.com/CycloneDX/cyclonedx-gomod/cmd/cyclonedx-gomod@v1.9.0 bin -json -output .cache/$$program.cdx.json $(BIN)/$$program; done

## Testing

.PHONY: compose-test
compose-test: setup build ## Run deploy/compose.yaml for real, break it, and check that nothing was lost (KEEP=1 keeps the engine's data).
	@tools/compose-test.sh

.PHONY: check-kubernetes
check-kubernetes: ## Build the Kubernetes manifests and hold every object to its type (minutes the first time, then a second).
	cd tools/kube && GOWORK=off go run . ../../deploy/kubernetes

.PHONY: test
test: ## Run every test of every module (TESTFLAGS).
	@tools/setup.sh browser
	@go test -timeout 15m $(TESTFLAGS) work

.PHONY: check
check: check-static check-race ## What CI holds a change to: format, lint, generated files, contracts, tests with the race detector.

# All that runs no test.
.PHONY: check-static
check-static: check-fmt lint check-proto check-vuln

.PHONY: check-fmt
check-fmt: $(BIN)/.tools $(BIN)/.lint proto/third_party/.copied
	$(BIN)/golangci-lint fmt --diff $(MODULES)
	$(BIN)/buf format --diff --exit-code --exclude-path proto/third_party/google

.PHONY: check-proto
check-proto: $(BIN)/.tools proto/third_party/.copied
	$(BIN)/buf lint
	tools/check-generated.sh
	tools/check-breaking.sh

.PHONY: check-vuln
check-vuln: $(BIN)/.lint
	tools/check-vuln.sh $(MODULES)

.PHONY: check-race
check-race:
	@tools/setup.sh race browser
	@go test -timeout 15m -race -shuffle=on -vet=off $(TESTFLAGS) work # lint vets

.PHONY: fence
fence: setup ## Race many workers for one claim and count who wrote: only the holder may.
	@tools/fence.sh $(TESTFLAGS)

.PHONY: soak
soak: setup ## Break both services, their databases and all wires for SOAK_MINUTES (50); LOCKSTEP_SEED=n chooses the same faults again.
	@mkdir -p .cache
	LOCKSTEP_SOAK=$(SOAK_MINUTES) go test ./services/e2e -run '^TestFaults$$' -count=1 -timeout 90m -v $(TESTFLAGS) | tee .cache/soak.txt
	@grep -q '^--- PASS: TestFaults' .cache/soak.txt || { echo 'soak: no test ran' >&2; exit 1; }

.PHONY: bench
bench: setup build $(if $(BASE),$(BIN)/.tools) ## Measure the pure packages, then both services (BENCH_ROWS, BENCH_DIFF, BENCH_FLAGS, GOBENCHFLAGS; BASE=file compares with an earlier .cache/bench.txt).
	@mkdir -p .cache
	go test -run '^$$' -bench . -benchmem $(GOBENCHFLAGS) ./pkg/canon/... ./pkg/evidence/... ./services/consumer/internal/lockstep/... | tee .cache/bench.txt
	@if [ -n '$(BASE)' ]; then $(BIN)/benchstat '$(BASE)' .cache/bench.txt; fi
	$(BIN)/lockstep bench --what reconcile --rows $(BENCH_ROWS) --diff $(BENCH_DIFF) $(BENCH_FLAGS)
	$(BIN)/lockstep bench --what refresh $(BENCH_FLAGS)

.PHONY: bench-peers
bench-peers: setup build ## Measure beside other comparers of tables, on the same data in the same run (BENCH_ROWS, BENCH_DIFF, BENCH_FLAGS).
	@tools/setup.sh peers
	$(BIN)/lockstep bench --what reconcile --rows $(BENCH_ROWS) --diff $(BENCH_DIFF) --peers fdw,pg_comparator $(BENCH_FLAGS)

## Writing

.PHONY: generate
generate: $(BIN)/.tools proto/third_party/.copied ## Regenerate the code and the OpenAPI documents from the protos, the settings' pages from the source.
	$(BIN)/buf lint
	$(BIN)/buf generate
	WRITE_SETTINGS=1 go test ./services/center ./services/consumer -run '^TestSettingsReference$$' -count=1

.PHONY: lint
lint: $(BIN)/.lint ## Run golangci-lint over every module.
	$(BIN)/golangci-lint run $(MODULES:%=./%/...)

.PHONY: fmt
fmt: $(BIN)/.tools $(BIN)/.lint proto/third_party/.copied ## Format Go files and protos.
	$(BIN)/golangci-lint fmt $(MODULES)
	$(BIN)/buf format -w --exclude-path proto/third_party/google

.PHONY: clean
clean: ## Remove what was built, fetched or measured; keeps Go's own caches.
	rm -rf .bin .cache coverage.out proto/third_party

## What the targets stand on

.PHONY: setup
setup:
	@tools/setup.sh

.PHONY: tools
tools: $(BIN)/.tools $(BIN)/.lint proto/third_party/.copied

# buf and the plugins, as pinned in tools/go.mod; built again only when the pins change.
$(BIN)/.tools: tools/go.mod tools/go.sum
	cd tools && GOWORK=off GOBIN=$(BIN) go install tool
	@touch $@

# golangci-lint apart: it takes minutes to build, and only `lint`, `fmt` and `check` want it.
$(BIN)/.lint: tools/lint/go.mod tools/lint/go.sum
	cd tools/lint && GOWORK=off GOBIN=$(BIN) go install tool
	@touch $@

# google/api protos come from a pinned module and are never committed.
proto/third_party/.copied: tools/go.mod tools/go.sum
	@mkdir -p proto/third_party/google/api
	@source=$$(cd tools && GOWORK=off go mod download -json github.com/gogo/googleapis | sed -n 's/^\t"Dir": "\(.*\)",$$/\1/p') && \
		install -m 644 "$$source"/google/api/{annotations,http}.proto proto/third_party/google/api/
	@touch $@
