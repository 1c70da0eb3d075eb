.PHONY: build test test-rxe ci sim

build:
	go build ./cmd/ibverbx

test:
	go test ./...

# In a virtual machine whose kernel has RDMA, see test/rxe/README.md.
test-rxe:
	test/rxe/run

ci:
	.ci/run

# The simulation for as long as you like: make sim SEEDS=1000000
SEEDS ?= 100000
sim:
	go test -c -o $(or $(TMPDIR),/tmp)/ibverbx-sim ./test/sim
	$(or $(TMPDIR),/tmp)/ibverbx-sim -test.run 'TestSimulation$$' -test.v -test.timeout 0 -seeds $(SEEDS) -progress
