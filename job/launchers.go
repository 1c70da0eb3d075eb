package job

import (
	"net"
	"os"
	"strconv"
)

// launcher describes a program that starts the processes of a job, and numbers them in their
// environment.
type launcher struct {
	name       string
	rank, size string   // variables with the two numbers
	more       []string // further variables that matter
	hint       string   // what to do if size is missing
	sizeShared bool     // size is meaningless without rank
	secret     string   // a variable that all processes of a job have, and nobody else knows
	pmix       bool     // it may offer PMIx, with the same ranks
	inherited  bool     // launchers that run inside pass its variables on
	// where returns the launcher's address of rank 0, and its name of the job.
	where func(env environment, size int) (address, job string)
}

// launchers in the order in which they count. Slurm comes last, since whatever runs inside an
// allocation inherits its variables: mpirun, torchrun.
func launchers() []launcher {
	return []launcher{
		{
			name: "ibverbx", rank: EnvRank, size: EnvSize, more: []string{EnvAddress, EnvJob},
			sizeShared: true,
		},
		{
			name: "Open MPI", rank: "OMPI_COMM_WORLD_RANK", size: "OMPI_COMM_WORLD_SIZE",
			more: []string{"OMPI_COMM_WORLD_LOCAL_SIZE", envNamespace, envPMIxRank}, where: openMPI,
			pmix: true,
		},
		{
			name: "PMI", rank: "PMI_RANK", size: "PMI_SIZE", more: []string{"MPI_LOCALNRANKS", "PMI_JOBID"},
			where: pmi, pmix: true, secret: "PMI_SHARED_SECRET",
		},
		{
			name: "torchrun", rank: "RANK", size: "WORLD_SIZE",
			more: []string{"MASTER_ADDR", "MASTER_PORT", "TORCHELASTIC_USE_AGENT_STORE"}, where: torchrun,
		},
		{
			// https://kubernetes.io/docs/concepts/workloads/controllers/job/#completion-mode. The
			// manifest must set the number of processes, and the address of rank 0.
			name: "Kubernetes indexed job", rank: "JOB_COMPLETION_INDEX", size: EnvSize,
			more: []string{EnvAddress}, sizeShared: true,
			hint: ": set it in the manifest to the number of completions",
		},
		{
			name: "Slurm", rank: "SLURM_PROCID", size: "SLURM_STEP_NUM_TASKS",
			more:  []string{"SLURM_JOB_ID", "SLURM_STEP_ID", "SLURM_STEP_NODELIST"},
			hint:  ": a batch script is one process itself; start the program in it with srun",
			where: slurm, pmix: true, inherited: true, secret: "PMI_SHARED_SECRET",
		},
	}
}

// openMPI reads what https://docs.open-mpi.org/en/v5.0.x/tuning-apps/environment-var.html lists.
// The namespace differs from job to job; PMIx sets it (PMIx Standard, PMIx_server_setup_fork).
func openMPI(env environment, size int) (address, job string) {
	return byLocalSize(env, size, "OMPI_COMM_WORLD_LOCAL_SIZE", env.value(envNamespace))
}

// pmi reads the variables of Hydra, which is MPICH's and Intel MPI's. PMI_RANK and PMI_SIZE are
// those of the PMI-1 wire protocol (P. Balaji et al., PMI: A Scalable Parallel Process-Management
// Interface for Extreme-Scale Systems); MPI_LOCALNRANKS is how many processes are on this host.
// Slurm's srun --mpi=pmi2 sets only the first two. Launchers other than Hydra name the job in
// PMI_JOBID, and some of them draw a PMI_SHARED_SECRET for it.
func pmi(env environment, size int) (address, job string) {
	return byLocalSize(env, size, "MPI_LOCALNRANKS", env.value("PMI_JOBID"))
}

// torchrun reads what https://docs.pytorch.org/docs/stable/elastic/run.html lists under
// "Environment Variables". With TORCHELASTIC_USE_AGENT_STORE the launcher itself listens at
// MASTER_PORT (torch/distributed/rendezvous.py), and rank 0 takes the port above it.
func torchrun(env environment, _ int) (address, job string) {
	host, at := env.value("MASTER_ADDR"), env.value("MASTER_PORT")
	if host == "" || at == "" {
		return "", ""
	}
	if n, err := strconv.Atoi(at); err == nil && env.value("TORCHELASTIC_USE_AGENT_STORE") == "True" {
		at = strconv.Itoa(n + 1)
	}
	job = env.value("TORCHELASTIC_RUN_ID")
	if restarts := env.value("TORCHELASTIC_RESTART_COUNT"); restarts != "" {
		job += "." + restarts // a process of the round before must not come into this one
	}
	return net.JoinHostPort(host, at), job
}

// slurm reads what https://slurm.schedmd.com/srun.html lists under "Output Environment Variables".
// Task 0 is on the first node of the step, unless --distribution says otherwise.
func slurm(env environment, _ int) (address, job string) {
	job = env.value("SLURM_JOB_ID") + "." + env.value("SLURM_STEP_ID")
	host := firstHost(env.value("SLURM_STEP_NODELIST"))
	if host == "" {
		return "", job
	}
	id, _ := strconv.ParseUint(env.value("SLURM_JOB_ID"), 10, 64)
	step, _ := strconv.ParseUint(env.value("SLURM_STEP_ID"), 10, 64)
	return net.JoinHostPort(host, port(id+step*97)), job // 97: steps of a job and the next jobs differ
}

// byLocalSize returns the address of rank 0 for a launcher that gives none, if all processes are on
// one host.
func byLocalSize(env environment, size int, localSize, job string) (address, name string) {
	if env.value(localSize) != strconv.Itoa(size) {
		return "", job
	}
	if job == "" {
		return onThisHost("user " + strconv.Itoa(os.Getuid())), ""
	}
	return onThisHost(job), job
}
