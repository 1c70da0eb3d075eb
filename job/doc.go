// Package job makes N processes one job: each learns its rank, how many there are, and where the
// others run; they exchange what they need to connect, wait for each other, and learn at once when
// one of them dies.
//
//	j, err := job.Join(ctx, job.Config{}) // who am I? The environment says
//	defer j.Close()
//	host, err := nics.Open(nics.Config{})
//	devices, err := host.Reaching(j) // the NICs that reach the others
//	dom, err := ibverbx.NewDomain(devices...)
//	pe, err := shmem.Join(ctx, dom, shmem.Config{PE: j.Rank(), PEs: j.Size(), Exchange: j.AllGather})
//
// `ibverbx run -n 4 PROGRAM` starts four such processes on this host.
//
// # Where the rank comes from
//
// [Join] looks for variables of these launchers, in this order, and takes the first that is
// complete. [Find] tells what it would take, and from where.
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
// IBVERBX_ADDRESS=HOST:PORT beside any of them says where rank 0 listens, and has to where the last
// column does not: mpiexec over several hosts. IBVERBX_JOB names the job. The fields of [Config]
// come before everything. Under mpiexec, which names no job, a second job of the same user on a
// host needs an IBVERBX_ADDRESS of its own.
//
// # PMIx
//
// PMIx is what some launchers offer to be asked, in a library, libpmix.so.2. Where PMIX_NAMESPACE
// and PMIX_RANK say that one does, and no address is given, Join opens the library; rank 0 listens
// at a port of its own choice, and leaves its address with the launcher. Join closes that
// connection before it returns: the launcher does not mind how the process ends. Where there is no
// library, or it cannot reach the launcher, the variables have to do; under mpirun over several
// hosts they do not, and the error says what to install. The library must be on all hosts of a job,
// or on none.
//
// It is needed at run time alone. It makes programs that import this package dynamically linked, as
// RDMA NICs do; those that are built with the tag softonly are not, and do without PMIx. Nothing
// else is asked of launchers: they are known by their variables.
//
// # Stores
//
// Processes that reach a common place before they know of each other, such as etcd, need no
// address: rank 0 leaves its own there. See [Store] and Config.Store.
//
// Where nothing fits, the error says what was found and what is missing. Further mistakes that are
// found, and named at every process: several processes with the same rank, as where each takes
// itself for rank 0; processes that do not agree on the size; a job of one process that a launcher
// has started N times with the variables of another; another job, or another program, at rank 0's
// port; ranks that do not come within Config.Wait.
//
// # What there is
//
// AllGather, Barrier, and a store: Put sets a value that Get reads everywhere, and waits for if
// need be. They are for setting up: everything passes through rank 0, as JSON over TCP. A [Job]
// stays open while the program runs. Close leaves it; after rank 0 has left, the store is gone.
//
// # When a process dies
//
// Its connection to rank 0 ends, and within moments every other process's calls return a
// [*RankError] that names it, its host and its process id; so does Join, if it has not returned
// yet. [Job.Done] tells programs that are in no call. A host that vanishes without closing
// connections is found dead after Config.Patience. When rank 0 dies all see that. [Job.Fail] is for
// a process that gives up itself: the others are told why.
//
// A process that dies before it has joined is one that does not come: who waits for it is told its
// rank after Config.Wait. Launchers end the others earlier.
//
// # Who may join
//
// Rank 0's port is open to whoever reaches it, unless Config.TLS says who may: package rendezvous,
// which carries the conversations, has the details. Strangers, noise, silence and floods cost
// bounded memory there and keep no process out. Who knows the name of the job is taken for one of
// its processes.
package job
