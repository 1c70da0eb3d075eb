// Package jobs_test runs jobs of real processes: this test binary, started by `ibverbx run`, and
// with the environment that Kubernetes and torchrun give. Package jobtest has what they do.
package jobs_test
