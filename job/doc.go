// Package job joins N processes into one job: each learns its rank, the number of processes, and
// where the others run. They exchange connection data, wait for each other, and learn at once when
// one of them dies.
//
//	j, err := job.Join(ctx, job.Config{}) // finds the rank in the environment
//	defer j.Close()
//	host, err := nics.Open(nics.Config{})
//	devices, err := host.ReachingAll(ctx, j) // the NICs that reach the others
//	dom, err := ibverbx.NewDomain(devices...)
//	pe, err := shmem.Join(ctx, dom, shmem.Config{Rank: j.Rank(), Size: j.Size(), Exchange: j.AllGather})
//
// `ibverbx run -n 4 PROGRAM` starts four such processes on this host.
//
// # Where the rank comes from
//
// [Join] looks for the variables of these launchers, in this order, and takes the first complete
// set. [Find] reports what Join would take, and from where.
//
//	launcher                  rank, size                     where rank 0 listens
//	ibverbx run               IBVERBX_RANK, IBVERBX_SIZE     IBVERBX_ADDRESS
//	Open MPI's mpirun         OMPI_COMM_WORLD_RANK, _SIZE    PMIx; else this host, if all are on it
//	MPICH's, Intel's mpiexec  PMI_RANK, PMI_SIZE             this host, if all are on it
//	torchrun                  RANK, WORLD_SIZE               MASTER_ADDR, MASTER_PORT
//	Kubernetes indexed job    JOB_COMPLETION_INDEX,          IBVERBX_ADDRESS
//	                          IBVERBX_SIZE
//	Slurm's srun              SLURM_PROCID,                  with --mpi=pmix PMIx; else the first of
//	                          SLURM_STEP_NUM_TASKS           SLURM_STEP_NODELIST, at a port made of
//	                                                         job and step
//	PRRTE's prterun           PMIX_RANK, PMIx                PMIx
//
// IBVERBX_ADDRESS=HOST:PORT beside any of them says where rank 0 listens. You must set it where the
// last column gives no address: mpiexec over several hosts. IBVERBX_JOB names the job. The fields
// of [Config] override everything. Under an mpiexec that names no job (no PMI_JOBID), a
// second job of the same user on a host needs an IBVERBX_ADDRESS of its own.
//
// # PMIx
//
// Some launchers offer PMIx, an interface that a process calls through the library libpmix.so.2. If
// PMIX_NAMESPACE and PMIX_RANK are set and no address is given, Join opens the library. Rank 0
// listens at a free port and publishes its address through the launcher. Join closes that
// connection before it returns, so the launcher does not care how the process ends. If there is no
// library, or it cannot reach the launcher, only the variables count. Under mpirun over several
// hosts they do not suffice, and the error says what to install. The library must be on all hosts
// of a job, or on none.
//
// The library reads the environment, in C: do not call os.Setenv or os.Unsetenv while Join runs. If
// a context ends a Join that asks PMIx, the library may still be running, so do not change the
// environment after that either.
//
// The library is needed only at run time. It makes programs that import this package dynamically
// linked, as RDMA NICs do; programs built with the tag softonly are not, and do without PMIx. Other
// launchers are recognised by environment variables; only PMIx is called.
//
// # Stores
//
// If all processes can reach a common store, such as etcd, they need no address: rank 0 leaves its
// own there. See [Store] and Config.Store.
//
// If nothing fits, the error says what was found and what is missing. These mistakes are also
// detected and reported at every process: several processes with the same rank, for instance all
// with rank 0; processes that disagree on the size; N processes by the variables of one launcher of
// which each is the only one by those of another; another job, or another program, at rank 0's
// port; ranks that do not come within Config.Wait.
//
// # What it offers
//
// AllGather, Barrier, and a store: Put sets a value, and Get waits for a value and reads it
// anywhere. They are for setting up: everything passes through rank 0, as JSON over TCP. A [Job]
// stays open while the program runs. Close leaves it; after rank 0 has left, the store is gone.
//
// # When a process dies
//
// Its connection to rank 0 ends, and within moments the calls of every other process return a
// [*RankError] that names it, its host and its process id, including a Join that has not returned
// yet. [Job.Done] informs programs that are in no call. A host that vanishes without closing
// connections is taken for dead after Config.Patience. When rank 0 dies all processes notice; one
// that was only stopped learns from them, when it goes on, that it was taken for dead. A process
// that gives up calls [Job.Fail], and the others learn the reason.
//
// A process that dies before it has joined counts as missing: the others learn its rank after
// Config.Wait. Launchers end the others earlier.
//
// # Who may join
//
// Rank 0's port is open to anyone who reaches it, unless Config.TLS restricts it: see package
// rendezvous, which carries the conversations. Strangers, noise, silence and floods cost bounded
// memory and keep no process out: if there are too many connections, those that have not identified
// themselves for longest make room, after a second, and Join tries again if there is none. Anyone
// who knows the job's name can join. Rank 0 does not reveal the name to those who connect. `ibverbx
// run` draws one that nobody can guess, and a launcher's PMI_SHARED_SECRET counts too; other
// launchers' names can be guessed.
package job
