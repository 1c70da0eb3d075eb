// Package pmix asks the launcher of this process, through libpmix, for the process's identity, and
// publishes values for the other processes of the job. Open MPI's mpirun, PRRTE's prterun and
// Slurm's srun --mpi=pmix offer PMIx to the processes that they start (PMIx Standard,
// https://pmix.github.io).
//
// [Open] opens the library at run time, so the build needs no C compiler and no header. It needs
// Linux on amd64 or arm64, and a build without the tag softonly; elsewhere [Open] returns an error.
// The structures declared here are the same in versions 3 to 5, which share the name libpmix.so.2.
// The library trusts its server. This package bounds what the library returns, and trusts only that
// its addresses are valid.
//
// Rank 0 puts values; each process of the job gets them from wherever rank 0 runs, and waits until
// they are there. PMIx calls this exchange direct. It has no fence: a process learns where rank 0
// is without waiting for all others, and rank 0 itself finds out who is missing.
//
// A call that a context has ended stays behind until the library returns from it. The library reads
// the environment with getenv, so nobody may change the environment meanwhile: [os.Setenv] moves
// the array that getenv reads, and the process dies with SIGSEGV.
//
// Close a client as soon as the processes have met: mpirun takes a process that ends with an open
// client for one that has failed.
package pmix
