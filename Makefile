.PHONY: build test test-rxe ci

build:
	go build ./cmd/ibverbx

test:
	go test ./...

# In a virtual machine whose kernel has RDMA, see test/rxe/README.md.
test-rxe:
	test/rxe/run

ci:
	.ci/run
