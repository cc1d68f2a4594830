SHELL := /bin/bash
.SHELLFLAGS := -euo pipefail -c
.DEFAULT_GOAL := help

BIN := $(CURDIR)/.bin

.PHONY: help
help: ## Say what can be made.
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "  make %-12s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

.PHONY: generate
generate: $(BIN)/.tools proto/third_party/.copied ## Regenerate the code and the OpenAPI documents from the protos.
	$(BIN)/buf lint
	$(BIN)/buf generate

# buf and the plugins, as pinned in tools/go.mod; built again only when the pins change.
$(BIN)/.tools: tools/go.mod tools/go.sum
	cd tools && GOWORK=off GOBIN=$(BIN) go install tool
	@touch $@

# google/api protos come from a pinned module and are never committed.
proto/third_party/.copied: tools/go.mod tools/go.sum
	@mkdir -p proto/third_party/google/api
	@source=$$(cd tools && GOWORK=off go mod download -json github.com/gogo/googleapis | sed -n 's/^\t"Dir": "\(.*\)",$$/\1/p') && \
		install -m 644 "$$source"/google/api/{annotations,http}.proto proto/third_party/google/api/
	@touch $@
