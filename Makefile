.PHONY: build test test-rxe test-arm64 ci sim fuzz mutants module

build:
	go build ./cmd/ibverbx

test:
	go test ./...

# In a virtual machine whose kernel has RDMA, see test/rxe/README.md.
test-rxe:
	test/rxe/run

# The provider of real NICs on an emulated arm64 processor.
test-arm64:
	test/arm64/run

ci:
	.ci/run

# The simulation for as long as you like: make sim SEEDS=1000000
SEEDS ?= 100000
sim:
	go test -c -o $(or $(TMPDIR),/tmp)/ibverbx-sim ./test/sim
	$(or $(TMPDIR),/tmp)/ibverbx-sim -test.run 'TestSimulation$$' -test.v -test.timeout 0 -seeds $(SEEDS) -progress

# Fuzzes every target in turn and reports at the end which inputs failed; go test plays the corpora only.
# make fuzz EXECUTIONS=100000 FUZZ="FuzzReceive FuzzFrames" takes the named targets. With 20000 executions it takes some 20 minutes.
EXECUTIONS ?= 20000
fuzz:
	.ci/fuzz $(EXECUTIONS) $(FUZZ)

# Random slips of one point each, and which of them the tests do not notice; some minutes. See test/mutants/doc.go.
# make mutants N=40 SEED=7 PACKAGES=transport,tagged; make mutants AGAIN=survivors.txt plants again what survived.
mutants:
	GOMAXPROCS=1 nice go run ./test/mutants $(if $(N),-n $(N)) $(if $(SEED),-seed $(SEED)) \
		$(if $(PACKAGES),-packages $(PACKAGES)) $(if $(AGAIN),-again $(AGAIN)) -survivors survivors.txt

# Gives the module, and those below it, the path under which somebody publishes it: make module PATH=example.org/you/ibverbx
# make hands that PATH to its recipes in place of the shell's, which is still in make's own environment. Where there is no /proc a
# login shell knows it.
module:
	@[ "$(origin PATH)" = "command line" ] || { echo "usage: make module PATH=example.org/you/ibverbx" >&2; exit 2; }
	@module=$$PATH; PATH=/usr/bin:/bin; \
	if [ -r /proc/$$PPID/environ ]; then PATH=$$(tr '\0\n' '\n ' </proc/$$PPID/environ | sed -n 's/^PATH=//p'); \
	else PATH=$$("$${SHELL:-/bin/sh}" -lc 'echo "$$PATH"'); fi; \
	go run ./internal/modpath "$$module"
