// Package jobs_test runs jobs of real processes: this test binary, started by `ibverbx run`, and
// with the environment that Kubernetes and torchrun give. They find each other, add up a vector
// over RoCE on UDP sockets, and one of them is killed in each phase: the others end with its name.
package jobs_test
