// Package pmix asks the launcher that has started this process, by way of libpmix, who the process
// is, and leaves values with it for the other processes of the job. PMIx is what Open MPI's mpirun,
// PRRTE's prterun and Slurm's srun --mpi=pmix offer the processes that they start (PMIx Standard,
// https://pmix.github.io).
//
// The library is opened when a [Client] is, and nothing of it is needed to build: no C compiler, no
// header. It needs Linux on amd64 or arm64, and a build without the tag softonly; elsewhere [Open]
// says so. What is declared here of its structures is the same in versions 3 to 5, which share the
// name libpmix.so.2. The library trusts its server, and this package no more of what it returns
// than that addresses are addresses.
//
// Values are those that rank 0 puts: each process of the job gets them from wherever rank 0 runs,
// and waits until they are there. This is the exchange that PMIx calls direct, without a fence: so
// no process has to wait for all others to learn where rank 0 is, and rank 0 finds out itself who
// does not come.
//
// A client is for meeting, and closed then. mpirun takes a process that ends while it has one open
// for one that has failed.
package pmix
