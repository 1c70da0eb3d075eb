// Package jobs_test runs jobs of real processes: this test binary, started by `ibverbx run`, by
// Open MPI's mpirun, MPICH's mpiexec and Slurm's srun where they are installed, and with the
// environment that Kubernetes and torchrun give. Package jobtest has what they do.
package jobs_test
