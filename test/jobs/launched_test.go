//go:build linux

package jobs_test

import (
	"bufio"
	"crypto/rand"
	"errors"
	"fmt"
	"hash/fnv"
	"io"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"

	"ibverbx/internal/jobtest"
	"ibverbx/internal/tcptest"
	"ibverbx/internal/tool"
)

// launcher starts the processes of a job.
type launcher struct {
	env  []string
	path string
	args []string // before the program
	// dead is its exit code when it has seen a process killed, and said what it then says.
	dead int
	said string
}

// run runs a job, of which no process but the victim of the phase ends otherwise than it should.
func (l *launcher) run(t *testing.T, phase string, program ...string) {
	t.Helper()
	// A directory for each mpirun: two that make the same one at once may fail.
	env := append([]string{"TMPDIR=" + t.TempDir()}, l.env...)
	p := jobtest.Start(t, phase, env, l.path, append(append([]string(nil), l.args...), program...)...)
	code, out := p.Wait(t), p.Out.String()
	if phase == ":" {
		if code != 0 {
			t.Errorf("exit %d\n%s", code, out)
		}
		return
	}
	if code != l.dead || !strings.Contains(out, l.said) {
		t.Errorf("exit %d, want %d and %q\n%s", code, l.dead, l.said, out)
	}
	if n := p.Named(t); n != jobtest.Size-1 {
		_, victim, _ := strings.Cut(phase, ":")
		t.Errorf("%d processes name rank %s\n%s", n, victim, out)
	}
}

// all runs a job, and unless tests are to be short jobs that lose a process, side by side. Through
// is a program that runs it.
func (l *launcher) all(t *testing.T, through []string, phases ...string) {
	if testing.Short() {
		phases = nil
	}
	for _, phase := range append([]string{":"}, phases...) {
		t.Run(phase, func(t *testing.T) {
			t.Parallel()
			l.run(t, phase, append(append([]string(nil), through...), jobtest.Self(t))...)
		})
	}
}

// without runs a program without some of the variables that its launcher sets.
func without(names ...string) []string {
	env := []string{"env"}
	for _, name := range names {
		env = append(env, "-u", name)
	}
	return env
}

// openMPI is Open MPI's mpirun, which may also be installed beside MPICH's.
func openMPI(t *testing.T, args ...string) *launcher {
	t.Helper()
	const hint = "install Open MPI (Debian: openmpi-bin)"
	mpirun := tool.Find(t, "mpirun", hint, "mpirun.openmpi", "mpirun")
	version, err := exec.Command(mpirun, "--version").CombinedOutput()
	if err != nil || !strings.Contains(string(version), "open-mpi.org") {
		tool.Missing(t, "mpirun", fmt.Sprintf("%s is no Open MPI that runs (%v): %s\n%s", mpirun, err, hint,
			version))
	}
	return &launcher{path: mpirun,
		env: []string{"OMPI_MCA_oob_tcp_if_include=lo"},
		args: append([]string{"--allow-run-as-root", "--oversubscribe", "-n", strconv.Itoa(jobtest.Size)},
			args...)}
}

// Processes that Open MPI's mpirun starts. When one is killed it sends the others SIGTERM, and a
// second later, here four, SIGKILL: these ignore the first, and then name who has died.
func TestOpenMPI(t *testing.T) {
	t.Parallel()
	l := openMPI(t, "--mca", "odls_base_sigkill_timeout", "4")
	l.dead, l.said = 137, "exited on signal 9 (Killed)"
	l.all(t, nil, jobtest.InReduce+":2")
}

// With --enable-recovery mpirun leaves the others alone. Here the processes do without PMIx, on one
// host.
func TestOpenMPIVariables(t *testing.T) {
	t.Parallel()
	openMPI(t, "--enable-recovery").all(t, without("PMIX_RANK"), jobtest.InJoin+":1")
}

// And here they have only PMIx.
func TestOpenMPIPMIx(t *testing.T) {
	t.Parallel()
	openMPI(t, "--enable-recovery").all(t, without("OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE"),
		jobtest.AtStart+":2", jobtest.InGather+":0")
}

// remoteShell is a remote shell that runs everything on this host.
func remoteShell(t *testing.T) string {
	t.Helper()
	// A directory for each host, since two daemons that make the same one at once may fail.
	path := filepath.Join(t.TempDir(), "shell")
	if err := os.WriteFile(path, []byte("#!/bin/sh\nexport TMPDIR=$TMPDIR/$1\nshift\nmkdir -p $TMPDIR\n"+
		"exec sh -c \"$*\"\n"), 0o755); err != nil {
		t.Fatal(err)
	}
	return path
}

// mpirun starts processes on two hosts, by a remote shell that starts them on this one: what its
// variables say of rank 0's address is nothing, and PMIx has to lead from one of its daemons to
// the other. A shell keeps the death of a process from mpirun, which may not end after one where it
// has several daemons.
func TestOpenMPIHosts(t *testing.T) {
	t.Parallel()
	l := openMPI(t, "--mca", "plm", "rsh", "--mca", "plm_rsh_agent", remoteShell(t),
		"--host", "node1:2,node2:2")
	l.run(t, ":", jobtest.Self(t))
	if !testing.Short() {
		l.run(t, jobtest.InReduce+":2", "sh", "-c", `"$0" || :`, jobtest.Self(t))
	}
}

// freeName returns a name for a job on this host at whose port, one of 4,000 that is made of the
// name, no other job listens at the moment: those of other tests, or of another run of the tests.
func freeName(t *testing.T) string {
	t.Helper()
	for range 100 {
		name, hash := rand.Text(), fnv.New64a()
		_, _ = io.WriteString(hash, name)
		c, err := net.Dial("tcp", fmt.Sprint("127.0.0.1:", 61000+hash.Sum64()%4000))
		if errors.Is(err, syscall.ECONNREFUSED) {
			return name
		}
		if err == nil {
			_ = c.Close()
		}
	}
	t.Fatal("no free port")
	return ""
}

// Without libpmix the variables have to do: they do on one host, and else the error says what is
// missing. So it is where the launcher does not answer.
func TestWithoutPMIx(t *testing.T) {
	t.Parallel()
	broken := t.TempDir()
	if err := os.WriteFile(filepath.Join(broken, "libpmix.so.2"), []byte("no library"), 0o644); err != nil {
		t.Fatal(err)
	}
	missing, silent := "LD_LIBRARY_PATH="+broken, "PMIX_SERVER_URI41=1.0;tcp4://127.0.0.1:9"
	for name, env := range map[string]string{"no library": missing, "no answer": silent} {
		t.Run(name, func(t *testing.T) {
			namespace := freeName(t)
			jobtest.EachRank(t, ":", func(rank int) []string {
				return []string{env, "PMIX_NAMESPACE=" + namespace,
					fmt.Sprint("PMIX_RANK=", rank), fmt.Sprint("OMPI_COMM_WORLD_RANK=", rank),
					fmt.Sprint("OMPI_COMM_WORLD_SIZE=", jobtest.Size),
					fmt.Sprint("OMPI_COMM_WORLD_LOCAL_SIZE=", jobtest.Size)}
			})
		})
	}
	many := []string{"OMPI_COMM_WORLD_RANK=1", "OMPI_COMM_WORLD_SIZE=4", "OMPI_COMM_WORLD_LOCAL_SIZE=2",
		"PMIX_NAMESPACE=17", "PMIX_RANK=1"}
	for name, test := range map[string]struct {
		env  []string
		says []string
	}{
		"many hosts, no library": {append([]string{missing}, many...),
			[]string{"LOCAL_SIZE=2", "IBVERBX_ADDRESS=HOST:PORT", "install", "libpmix2", broken}},
		"many hosts, no answer": {append([]string{silent}, many...),
			[]string{"IBVERBX_ADDRESS=HOST:PORT", "PMIx"}},
		"only PMIx": {[]string{missing, "PMIX_NAMESPACE=17", "PMIX_RANK=1"},
			[]string{"PMIX_RANK=1", "only PMIx knows how many", "libpmix2"}},
	} {
		t.Run(name, func(t *testing.T) {
			p := jobtest.Start(t, ":", test.env, jobtest.Self(t))
			code := p.Wait(t)
			for _, want := range test.says {
				if code != 1 || !strings.Contains(p.Out.String(), want) {
					t.Errorf("exit %d, does not say %q: %s", code, want, p.Out.String())
				}
			}
		})
	}
}

// Where only rank 0 has no libpmix, all say what may be wrong.
func TestPMIxAtSome(t *testing.T) {
	t.Parallel()
	if testing.Short() {
		t.Skip("waits for five seconds")
	}
	broken := t.TempDir()
	if err := os.WriteFile(filepath.Join(broken, "libpmix.so.2"), nil, 0o644); err != nil {
		t.Fatal(err)
	}
	l := openMPI(t, "--enable-recovery")
	env := append(l.env, "TMPDIR="+t.TempDir())
	p := jobtest.Start(t, jobtest.AtStart+":9", env, l.path, append(l.args, "sh", "-c",
		`[ $PMIX_RANK = 0 ] && export LD_LIBRARY_PATH=`+broken+`; exec "$0"`, jobtest.Self(t))...)
	p.Wait(t)
	if out := p.Out.String(); strings.Count(out, "is libpmix on its host?") != jobtest.Size-1 ||
		!strings.Contains(out, "ranks 1, 2, 3 of 4 are missing") {
		t.Errorf("says\n%s", out)
	}
}

// Processes that MPICH's mpiexec starts. It kills the others as soon as it learns that one has
// died, which leaves them no time to say anything: a shell keeps the death from it. MPICH gives its
// jobs no name, and all have the same port, so another run of the tests has to wait.
func TestMPICH(t *testing.T) {
	t.Parallel()
	mpiexec := tool.Find(t, "mpiexec", "install MPICH (Debian: mpich)", "mpiexec.hydra", "mpiexec.mpich")
	lock, err := os.Create(filepath.Join(os.TempDir(), "ibverbx-test-mpich.lock"))
	if err != nil {
		t.Fatal(err)
	}
	defer lock.Close()
	if err := syscall.Flock(int(lock.Fd()), syscall.LOCK_EX); err != nil {
		t.Fatal(err)
	}
	l := launcher{path: mpiexec, args: []string{"-n", strconv.Itoa(jobtest.Size)}}
	l.run(t, ":", jobtest.Self(t))
	if testing.Short() {
		return
	}
	for _, phase := range []string{jobtest.InJoin + ":1", jobtest.InReduce + ":2"} {
		t.Run(phase, func(t *testing.T) {
			l.run(t, phase, "sh", "-c", `"$0" || :`, jobtest.Self(t))
		})
	}
	t.Run("two hosts", func(t *testing.T) {
		hosts := launcher{path: mpiexec, args: []string{"-n", strconv.Itoa(jobtest.Size), "-ppn", "2",
			"-hosts", "node1,node2", "-launcher", "rsh", "-launcher-exec", remoteShell(t),
			"-localhost", "127.0.0.1"}}
		p := jobtest.Start(t, ":", []string{"TMPDIR=" + t.TempDir()}, mpiexec,
			append(hosts.args, jobtest.Self(t))...)
		code, out := p.Wait(t), p.Out.String()
		if code == 0 || !strings.Contains(out, "set IBVERBX_ADDRESS=HOST:PORT") {
			t.Errorf("exit %d, and does not say what to set\n%s", code, out)
		}
		hosts.env = []string{"IBVERBX_ADDRESS=" + tcptest.FreeAddr(t).String()}
		hosts.run(t, ":", jobtest.Self(t))
	})
	// Without the shell: whom mpiexec has killed, in any order, may be who a survivor finds dead
	// first, before it is killed too.
	t.Run("killed", func(t *testing.T) {
		p := jobtest.Start(t, jobtest.InGather+":2", nil, mpiexec, "-n", strconv.Itoa(jobtest.Size),
			jobtest.Self(t))
		code, out := p.Wait(t), p.Out.String()
		if code != 9 || !strings.Contains(out, "BAD TERMINATION") ||
			strings.Contains(out, jobtest.Unnoticed) {
			t.Errorf("exit %d\n%s", code, out)
		}
	})
}

// slurm is a Slurm cluster whose two nodes are this host. It ends with the test.
func slurm(t *testing.T) *launcher {
	t.Helper()
	const hint = "install Slurm (Debian: slurm-wlm munge)"
	srun := tool.Find(t, "srun", hint, "srun")
	for _, server := range []string{"munged", "slurmctld", "slurmd"} {
		tool.Find(t, "srun", hint, server)
	}
	dir, first := t.TempDir(), tcptest.FreeAddr(t).Addr()
	cluster := exec.Command("testdata/slurm", dir, first.String(), first.Next().String())
	in, err := cluster.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	out, err := cluster.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cluster.Start(); err != nil {
		t.Fatal(err)
	}
	said := bufio.NewReader(out)
	line, _ := said.ReadString('\n')
	t.Cleanup(func() {
		_ = in.Close()
		rest, _ := io.ReadAll(said)
		if err := cluster.Wait(); err != nil {
			t.Errorf("the Slurm cluster: %v\n%s%s", err, line, rest)
		}
	})
	if line != "ready\n" {
		t.FailNow() // the cluster says why when it ends
	}
	return &launcher{env: []string{"SLURM_CONF=" + filepath.Join(dir, "slurm.conf")}, path: srun, dead: 137,
		said: "Killed"}
}

// has reports whether srun --mpi has a plugin.
func (l *launcher) has(t *testing.T, plugin string) bool {
	t.Helper()
	list := exec.Command(l.path, "--mpi=list")
	list.Env = append(os.Environ(), l.env...)
	text, err := list.CombinedOutput()
	if err != nil {
		t.Fatalf("%v: %s", err, text)
	}
	return slices.Contains(strings.Fields(string(text)), plugin)
}

// Processes that Slurm's srun starts, on one node, on two, with the variables of PMI beside its
// own, and with PMIx. It lets the others live when one is killed.
func TestSlurm(t *testing.T) {
	t.Parallel()
	cluster := slurm(t)
	for name, test := range map[string]struct {
		nodes, mpi string
		through    []string
		phases     []string
	}{
		"one node":  {nodes: "1", mpi: "none", phases: []string{jobtest.InJoin + ":1"}},
		"two nodes": {nodes: "2", mpi: "none", phases: []string{jobtest.InReduce + ":0"}},
		"pmi2":      {nodes: "2", mpi: "pmi2"},
		"pmix": {nodes: "2", mpi: "pmix", through: without("SLURM_STEP_NODELIST"),
			phases: []string{jobtest.AtStart + ":1", jobtest.InReduce + ":2"}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			if test.mpi == "pmix" && !cluster.has(t, "pmix") {
				tool.Missing(t, "srun", "this Slurm has no plugin for PMIx (Debian: slurm-wlm-basic-plugins)")
			}
			srun := *cluster
			srun.args = []string{"--label", "-n", strconv.Itoa(jobtest.Size), "-N", test.nodes,
				"--mpi=" + test.mpi}
			srun.all(t, test.through, test.phases...)
		})
	}
}
