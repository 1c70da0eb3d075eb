package job_test

import (
	"context"
	"errors"
	"os"
	"strings"
	"testing"

	"ibverbx/job"
	"ibverbx/verbs"
)

// variables are all that Find reads.
var variables = []string{job.EnvRank, job.EnvSize, job.EnvAddress, job.EnvJob, "OMPI_COMM_WORLD_RANK",
	"OMPI_COMM_WORLD_SIZE", "OMPI_COMM_WORLD_LOCAL_SIZE", "PMIX_NAMESPACE", "PMIX_RANK", "PMI_RANK",
	"PMI_SIZE", "PMI_JOBID", "PMI_SHARED_SECRET",
	"MPI_LOCALNRANKS", "RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT", "TORCHELASTIC_USE_AGENT_STORE",
	"TORCHELASTIC_RUN_ID", "TORCHELASTIC_RESTART_COUNT", "JOB_COMPLETION_INDEX", "SLURM_PROCID",
	"SLURM_STEP_NUM_TASKS", "SLURM_JOB_ID", "SLURM_STEP_ID", "SLURM_STEP_NODELIST"}

// setenv makes the environment have those of the variables that "A=1 B=2" lists, and no others.
func setenv(t *testing.T, list string) {
	t.Helper()
	for _, name := range variables {
		t.Setenv(name, "") // restores it at the end
		if err := os.Unsetenv(name); err != nil {
			t.Fatal(err)
		}
	}
	for pair := range strings.FieldsSeq(list) {
		name, value, _ := strings.Cut(pair, "=")
		t.Setenv(name, value)
	}
}

const (
	slurm = "SLURM_PROCID=5 SLURM_STEP_NUM_TASKS=8 SLURM_JOB_ID=1234 SLURM_STEP_ID=2 " +
		"SLURM_STEP_NODELIST=node[07-09,12],big1"
	ompi = "OMPI_COMM_WORLD_RANK=1 OMPI_COMM_WORLD_SIZE=4 PMIX_NAMESPACE=prterun-h-17@1"
)

// Each launcher's variables give the place.
func TestFind(t *testing.T) {
	for name, test := range map[string]struct {
		env  string
		cfg  job.Config
		want job.Place // without Source
	}{
		"ibverbx run": {"IBVERBX_RANK=2 IBVERBX_SIZE=3 IBVERBX_ADDRESS=127.0.0.1:99 IBVERBX_JOB=x",
			job.Config{},
			job.Place{Rank: 2, Size: 3, Address: "127.0.0.1:99", Job: "x"}},
		"Open MPI on one host": {ompi + " OMPI_COMM_WORLD_LOCAL_SIZE=4", job.Config{},
			job.Place{Rank: 1, Size: 4, Address: "127.0.0.1:64728", Job: "prterun-h-17@1"}},
		"Open MPI with an address": {ompi + " OMPI_COMM_WORLD_LOCAL_SIZE=2 IBVERBX_ADDRESS=a:1", job.Config{},
			job.Place{Rank: 1, Size: 4, Address: "a:1", Job: "prterun-h-17@1"}},
		"Open MPI inside an allocation": {ompi + " OMPI_COMM_WORLD_LOCAL_SIZE=2 IBVERBX_ADDRESS=a:1 " + slurm,
			job.Config{}, job.Place{Rank: 1, Size: 4, Address: "a:1", Job: "prterun-h-17@1"}},
		"PMI": {"PMI_RANK=0 PMI_SIZE=2 MPI_LOCALNRANKS=1", job.Config{Address: "[fe80::1]:7"},
			job.Place{Size: 2, Address: "[fe80::1]:7"}},
		"PMI with a name": {"PMI_RANK=0 PMI_SIZE=2 MPI_LOCALNRANKS=2 PMI_JOBID=prterun-h-17@1", job.Config{},
			job.Place{Size: 2, Address: "127.0.0.1:64728", Job: "prterun-h-17@1"}},
		"PMI alone": {"PMI_RANK=0 PMI_SIZE=1", job.Config{}, job.Place{Size: 1}},
		"torch variables": {"RANK=3 WORLD_SIZE=4 MASTER_ADDR=h MASTER_PORT=29500", job.Config{},
			job.Place{Rank: 3, Size: 4, Address: "h:29500"}},
		"torchrun": {"RANK=3 WORLD_SIZE=4 MASTER_ADDR=::1 MASTER_PORT=29500 " +
			"TORCHELASTIC_USE_AGENT_STORE=True " +
			"TORCHELASTIC_RUN_ID=r TORCHELASTIC_RESTART_COUNT=2", job.Config{},
			job.Place{Rank: 3, Size: 4, Address: "[::1]:29501", Job: "r.2"}},
		"Kubernetes": {"JOB_COMPLETION_INDEX=1 IBVERBX_SIZE=4 IBVERBX_ADDRESS=sum-0.sum:7471", job.Config{},
			job.Place{Rank: 1, Size: 4, Address: "sum-0.sum:7471"}},
		"Slurm": {slurm, job.Config{}, job.Place{Rank: 5, Size: 8, Address: "node07:62428", Job: "1234.2"}},
		"Slurm with PMI": {slurm + " PMI_RANK=5 PMI_SIZE=8", job.Config{},
			job.Place{Rank: 5, Size: 8, Address: "node07:62428", Job: "1234.2"}},
		"fields before the environment": {slurm + " IBVERBX_ADDRESS=a:1 IBVERBX_JOB=y",
			job.Config{Rank: 1, Size: 2, Address: "b:2"}, job.Place{Rank: 1, Size: 2, Address: "b:2"}},
		"one process in an allocation": {"IBVERBX_RANK=0 IBVERBX_SIZE=1 " + slurm, job.Config{},
			job.Place{Size: 1}},
		"a RANK of something else": {"RANK=general " + slurm, job.Config{},
			job.Place{Rank: 5, Size: 8, Address: "node07:62428", Job: "1234.2"}},
	} {
		t.Run(name, func(t *testing.T) {
			setenv(t, test.env)
			got, err := job.Find(test.cfg)
			if err != nil {
				t.Fatal(err)
			}
			same(t, got, test.want)
		})
	}
}

// same compares places, but for what Source says.
func same(t *testing.T, got, want job.Place) {
	t.Helper()
	if got.Source == "" {
		t.Error("no source")
	}
	if got.Rank != want.Rank || got.Size != want.Size || got.Address != want.Address || got.Job != want.Job {
		t.Errorf("got %+v, want %+v", got, want)
	}
}

// With Slurm rank 0 is on the first host of the step's list.
func TestFirstHostOfSlurm(t *testing.T) {
	for list, want := range map[string]string{
		"n1":                   "n1",
		"n1,n2":                "n1",
		"node[07-09,12],other": "node07",
		"node[12,07-09]":       "node12",
		"rack[1-2]n[3,5]-ib":   "rack1n3-ib",
		"[1-2]":                "1",
		"":                     "",
		",n1":                  "",
		"n[":                   "",
		"n[1":                  "",
		"n[]":                  "",
		"n[a-b]":               "",
		"n]1":                  "",
	} {
		setenv(t, strings.ReplaceAll(slurm, "node[07-09,12],big1", list))
		place, err := job.Find(job.Config{})
		if host, _, _ := strings.Cut(place.Address, ":"); host != want || (err != nil) != (want == "") {
			t.Errorf("%q: got %+v, %v, want host %q", list, place, err, want)
		}
	}
}

// PMIx is asked for what the variables do not say, where they do not speak of another job.
func TestFindByPMIx(t *testing.T) {
	const alone, prte = "PMIX_NAMESPACE=n@1 PMIX_RANK=2", "PMIX_NAMESPACE=prterun-h-17@1 PMIX_RANK=1"
	for name, test := range map[string]struct {
		env  string
		cfg  job.Config
		want job.Place // without Source
	}{
		"Open MPI on many hosts": {ompi + " OMPI_COMM_WORLD_LOCAL_SIZE=2 PMIX_RANK=1", job.Config{},
			job.Place{Rank: 1, Size: 4, Job: "prterun-h-17@1"}},
		"Slurm, which names no node": {strings.ReplaceAll(slurm, "node[07-09,12],big1", "x[") +
			" PMIX_NAMESPACE=slurm.pmix.1234.2 PMIX_RANK=5", job.Config{}, job.Place{Rank: 5, Size: 8,
			Job: "1234.2"}},
		"PMI on many hosts": {"PMI_RANK=2 PMI_SIZE=4 MPI_LOCALNRANKS=2 " + alone, job.Config{},
			job.Place{Rank: 2, Size: 4}},
		"alone": {alone, job.Config{}, job.Place{Rank: 2, Job: "n@1"}},
		"alone, with an address": {alone + " IBVERBX_ADDRESS=h:1", job.Config{},
			job.Place{Rank: 2, Address: "h:1", Job: "n@1"}},
		"alone, in an allocation": {slurm + " " + prte, job.Config{},
			job.Place{Rank: 1, Job: "prterun-h-17@1"}},
		"alone, in a batch script": {"SLURM_PROCID=0 SLURM_JOB_ID=7 " + prte, job.Config{},
			job.Place{Rank: 1, Job: "prterun-h-17@1"}},
		"ibverbx run within": {"IBVERBX_RANK=2 IBVERBX_SIZE=3 IBVERBX_ADDRESS=h:1 " + alone, job.Config{},
			job.Place{Rank: 2, Size: 3, Address: "h:1"}},
		"fields before PMIx": {alone, job.Config{Rank: 1, Size: 2, Address: "b:2"},
			job.Place{Rank: 1, Size: 2, Address: "b:2"}},
		"a job of one process": {"OMPI_COMM_WORLD_RANK=0 OMPI_COMM_WORLD_SIZE=1 PMIX_NAMESPACE=n PMIX_RANK=0",
			job.Config{}, job.Place{Size: 1, Job: "n"}},
	} {
		t.Run(name, func(t *testing.T) {
			setenv(t, test.env)
			got, err := job.Find(test.cfg)
			if err != nil {
				t.Fatal(err)
			}
			same(t, got, test.want)
		})
	}
}

// Where the environment does not say enough the error says what it says, and what is missing.
func TestNotFound(t *testing.T) {
	for name, test := range map[string]struct {
		env  string
		is   error
		says []string
	}{
		"nothing":   {"", job.ErrNoJob, []string{"ibverbx run -n 4", "srun", "Config.Rank"}},
		"size only": {"IBVERBX_SIZE=4", job.ErrNoJob, []string{"IBVERBX_SIZE=4", "IBVERBX_RANK is missing"}},
		"rank only": {"IBVERBX_RANK=4", job.ErrNoJob, []string{"IBVERBX_RANK=4", "IBVERBX_SIZE is missing"}},
		"a batch script": {"SLURM_PROCID=0 SLURM_JOB_ID=7", job.ErrNoJob,
			[]string{"SLURM_PROCID=0", "SLURM_STEP_NUM_TASKS is missing", "with srun"}},
		"Kubernetes without a size": {"JOB_COMPLETION_INDEX=1", job.ErrNoJob,
			[]string{"JOB_COMPLETION_INDEX=1", "IBVERBX_SIZE is missing", "manifest"}},
		"no number": {"PMI_RANK=one PMI_SIZE=2", job.ErrNoJob, []string{"PMI_RANK=one", "must be"}},
		"too high":  {"PMI_RANK=2 PMI_SIZE=2", job.ErrNoJob, []string{"PMI_RANK=2 PMI_SIZE=2", "less than"}},
		"many hosts": {ompi + " OMPI_COMM_WORLD_LOCAL_SIZE=2", job.ErrNoJob,
			[]string{"OMPI_COMM_WORLD_SIZE=4", "OMPI_COMM_WORLD_LOCAL_SIZE=2", "IBVERBX_ADDRESS=HOST:PORT"}},
		"PMI beside another's variables": {slurm + " PMI_RANK=4 PMI_SIZE=8", job.ErrNoJob,
			[]string{"PMI_RANK=4 PMI_SIZE=8", "IBVERBX_ADDRESS=HOST:PORT"}},
		"PMIx of another job": {ompi + " OMPI_COMM_WORLD_LOCAL_SIZE=2 PMIX_RANK=2", job.ErrNoJob,
			[]string{"OMPI_COMM_WORLD_SIZE=4", "PMIX_RANK=2", "IBVERBX_ADDRESS=HOST:PORT"}},
		"no rank of PMIx": {"PMIX_NAMESPACE=n PMIX_RANK=-1", job.ErrNoJob,
			[]string{"ibverbx run -n 4", "PMIX_NAMESPACE=n PMIX_RANK=-1"}},
		"one, started eight times": {"PMI_RANK=0 PMI_SIZE=1 " + slurm, job.ErrNoJob,
			[]string{"PMI_SIZE=1", "SLURM_STEP_NUM_TASKS=8"}},
		"a list that cannot be read": {strings.ReplaceAll(slurm, "node[07-09,12],big1", "node[x"),
			job.ErrNoJob,
			[]string{"node[x", "IBVERBX_ADDRESS=HOST:PORT"}},
		"no address": {"IBVERBX_RANK=0 IBVERBX_SIZE=2 IBVERBX_ADDRESS=here", verbs.ErrInvalid,
			[]string{`IBVERBX_ADDRESS "here"`, "HOST:PORT"}},
	} {
		t.Run(name, func(t *testing.T) {
			setenv(t, test.env)
			_, err := job.Find(job.Config{})
			if !errors.Is(err, test.is) {
				t.Fatalf("got %v, want %v", err, test.is)
			}
			for _, want := range test.says {
				if !strings.Contains(err.Error(), want) {
					t.Errorf("%v: does not say %q", err, want)
				}
			}
		})
	}
}

// A launcher's secret is part of what tells jobs apart, and is not shown.
func TestSecret(t *testing.T) {
	seen := map[string]bool{}
	for _, env := range []string{"PMI_JOBID=7", "PMI_JOBID=7 PMI_SHARED_SECRET=x", "PMI_SHARED_SECRET=y",
		slurm, slurm + " PMI_SHARED_SECRET=z"} {
		if env[0] == 'P' {
			env = "PMI_RANK=1 PMI_SIZE=2 MPI_LOCALNRANKS=2 " + env
		}
		setenv(t, env)
		p, err := job.Find(job.Config{})
		protocol := job.ProtocolAt(&p)
		if err != nil || seen[protocol] || strings.Contains(p.Source, "SECRET") {
			t.Errorf("%s: %q, %v", env, protocol, err)
		}
		seen[protocol] = true
	}
}

// A Join that is cancelled does not ask PMIx, and does not look for rank 0 without it.
func TestPMIxCancelled(t *testing.T) {
	const known = " PMIX_NAMESPACE=n@1 PMIX_RANK=1"
	for name, env := range map[string]string{"alone": known, "with an address": "OMPI_COMM_WORLD_RANK=1 " +
		"OMPI_COMM_WORLD_SIZE=2 OMPI_COMM_WORLD_LOCAL_SIZE=2" + known,
		"without one": "OMPI_COMM_WORLD_RANK=1 OMPI_COMM_WORLD_SIZE=2" + known} {
		t.Run(name, func(t *testing.T) {
			setenv(t, env)
			why := errors.New("enough")
			ctx, cancel := context.WithCancelCause(t.Context())
			cancel(why)
			_, err := job.Join(ctx, job.Config{})
			if !errors.Is(err, why) || errors.Is(err, job.ErrNoJob) ||
				!strings.Contains(err.Error(), "PMIX_RANK=1") {
				t.Errorf("error %v", err)
			}
		})
	}
}
