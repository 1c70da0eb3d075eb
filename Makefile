.PHONY: build test test-rxe test-arm64 ci bench sim fuzz mutants module

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

# What the library itself costs over a provider that does nothing, with and without Config.Timing and Config.Trace, and what a scrape of
# metrics costs; a minute. Take the least of several runs.
bench:
	go test -run XXX -bench 'NullRaw|Null$$|NullObserved|NullEmptyPoll' -benchmem -benchtime 3ms -count 5 .
	go test -C metrics -run XXX -bench Scrape -benchmem -benchtime 20x -count 3 .

# The simulation for as long as you like: make sim SEEDS=1000000
SEEDS ?= 100000
sim:
	go test -c -o $(or $(TMPDIR),/tmp)/ibverbx-sim ./test/sim
	$(or $(TMPDIR),/tmp)/ibverbx-sim -test.run 'TestSimulation$$' -test.v -test.timeout 0 -seeds $(SEEDS) -progress

# Fuzzes every target in turn and reports at the end which inputs failed; go test plays the corpora only.
# make fuzz EXECUTIONS=100000 FUZZ="FuzzReceive FuzzFrames" takes the named targets. With 20000 executions it takes an hour beside other work.
EXECUTIONS ?= 20000
fuzz:
	.ci/fuzz $(EXECUTIONS) $(FUZZ)

# Random slips of one point each, and which of them the tests do not notice; some minutes. See test/mutants/doc.go.
# make mutants N=40 SEED=7 PACKAGES=transport,tagged; make mutants AGAIN=survivors.txt plants again what survived.
mutants:
	GOMAXPROCS=1 nice go run ./test/mutants $(if $(N),-n $(N)) $(if $(SEED),-seed $(SEED)) \
		$(if $(PACKAGES),-packages $(PACKAGES)) $(if $(AGAIN),-again $(AGAIN))

# Gives the module the path under which you publish it, in every file: make module MODULE=example.org/you/ibverbx
module:
	.ci/module $(MODULE)
