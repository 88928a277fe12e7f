# Everything a person does with Aloft, by name. `make` alone lists it.
SHELL := /bin/bash -o pipefail
.DEFAULT_GOAL := help

ENGINE := $(CURDIR)/.engine
# Held under the race detector on every test run: what many goroutines meet in.
CORE := ./arbiter $(filter-out %/tokens,$(shell go list ./backends/...)) ./batcher ./gateway ./jobs/... ./loadgen ./loadgen/wire ./pool
# Tests that read recorded traffic or larger models find them here, or skip.
ifndef ALOFT_SHARED
ifneq ($(wildcard ../shared),)
export ALOFT_SHARED := $(abspath ../shared)
endif
endif
# The header of NVIDIA's library marks half of itself deprecated.
export CGO_CFLAGS ?= -O2 -g -Wno-deprecated-declarations

# Shuffled results are never cached, and one package runs at a time: many of
# them start real engines, and two at once on two cores would measure each other.
GOTEST := go test -count=1 -shuffle=on -p 1 -timeout 30m $(if $(V),-v)

.PHONY: help build engine check structure test race storm fuzz bench demo serve image image-nvml vuln clean

help: ## list the targets
	@awk -F ':.*## ' '/^[a-z%-]+:.*## / {printf "  make %-12s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

build: ## bin/aloft, static but for the engine library it opens at run time
	CGO_ENABLED=0 go build -trimpath -o bin/aloft ./cmd/aloft

engine: ## fetch llama.cpp's shared libraries into .engine (once)
	@configs/engine/fetch.sh $(ENGINE) >/dev/null

check: structure ## gofmt, go vet, staticcheck, import table and size limits
	@bad=$$(gofmt -l $$(git ls-files '*.go')); if [ -n "$$bad" ]; then echo "gofmt -w would change:"; echo "$$bad"; exit 1; fi
	go vet ./...
	CGO_ENABLED=0 go vet ./gpu/nvml
	go tool staticcheck ./...

structure:
	go test .

test: engine build race ## all tests, shuffled, with real engines; the core also under the race detector (V=1: every test)
	go build ./...
	ALOFT_TEST_BINARY=$(CURDIR)/bin/aloft ALOFT_KILLS=$(KILLS) $(GOTEST) ./...

storm: ## a million random requests against the batcher under the race detector, about ten minutes (STORM=n: so many)
	go test -race -timeout 60m -run "TestStorm$$" ./batcher -storm $(STORM) -v

race: engine
	go build -race $(CORE)
	$(GOTEST) -race $(CORE)

STORM ?= 1000000
# How often the job server is killed at a random moment; 20 without make.
KILLS ?= 200
FUZZTIME ?= 10s
fuzz: ## every fuzz target for FUZZTIME (10s)
	@git grep -n '^func Fuzz' -- '*_test.go' | sed -E 's|^(.*)/[^/]*:[0-9]+:func (Fuzz[A-Za-z0-9_]*).*|\1 \2|' | while read -r dir name; do \
		echo "== $$dir $$name"; go test -run '^$$' -fuzz "^$$name\$$" -fuzztime $(FUZZTIME) -fuzzminimizetime 10x "./$$dir" || exit 1; done

bench: build engine ## every benchmark program: BENCHMARKS.md and bench/out/*.json
	go run ./cmd/bench --bin bin/aloft all

bench-%: build engine ## one of them: make bench-NAME (ARGS=--quick: to try it; FULL=1 bench-arbiter: whole days, hours of them)
	go run ./cmd/bench --bin bin/aloft $(ARGS) $*

demo: build engine ## the whole idea on this machine, in under two minutes (FAST=1: under one)
	bin/aloft demo $(if $(FAST),--fast) $(ARGS)

serve: build engine ## a server with the quick start's models on 127.0.0.1:8080 (ARGS='--listen 127.0.0.1:0 ...')
	bin/aloft serve $(ARGS)

image: ## container image without cgo
	docker build --target aloft -t aloft:dev .

image-nvml: ## container image that reads NVIDIA GPUs
	docker build --target nvml -t aloft:dev-nvml .

vuln: ## known faults in what we import, if the database can be reached
	@err=$$(mktemp); trap 'rm -f "$$err"' EXIT; go tool govulncheck ./... 2>"$$err"; rc=$$?; cat "$$err" >&2; \
	if [ $$rc -ne 0 ] && grep -q 'fetching vulnerabilities' "$$err"; then echo "the database was not reached: nothing was checked"; exit 0; fi; exit $$rc

clean: ## remove what was built and fetched
	rm -rf bin bench/out $(ENGINE)
