//go:build linux

// Package slurm runs a Slurm cluster for a test: its own munged, slurmctld and slurmd, in a
// directory and at loopback addresses of their own, beside whatever Slurm the host may have. It
// needs no privileges and no cgroups, and ends with the test.
package slurm

import (
	"bytes"
	"context"
	crand "crypto/rand"
	"errors"
	"fmt"
	"math/rand/v2"
	"net"
	"net/netip"
	"os"
	"os/exec"
	"os/user"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"ibverbx/internal/tcptest"
	"ibverbx/internal/tool"
)

// Cluster is a cluster whose nodes are all on this host.
type Cluster struct {
	// Nodes are their names, which are addresses that reach them.
	Nodes []string

	dir     string
	srun    string
	servers []*exec.Cmd
}

// hint is how to get what is needed.
const hint = "install Slurm (Debian: slurm-wlm munge)"

// patience is how long the servers may take to start on a busy machine, and to end.
const patience = 20 * time.Second

// Start starts a cluster. Where there is no Slurm the test is skipped, or fails if IBVERBX_REQUIRE
// has the word srun.
func Start(tb testing.TB, nodes int) *Cluster {
	tb.Helper()
	c := &Cluster{dir: tb.TempDir(), srun: tool.Find(tb, "srun", hint, "srun")}
	munged := tool.Find(tb, "srun", hint, "munged")
	controller := tool.Find(tb, "srun", hint, "slurmctld")
	daemon := tool.Find(tb, "srun", hint, "slurmd")
	if err := c.write(tcptest.FreeAddr(tb).Addr(), nodes); err != nil {
		tb.Fatal(err)
	}
	// --force: nobody else need reach the socket, or be kept from the directories above it.
	c.serve(tb, munged, "--foreground", "--force", "--key-file="+c.file("key"), "--socket="+c.socket(),
		"--pid-file="+c.file("munged.pid"), "--log-file="+c.file("munged.log"), "--seed-file="+c.file("seed"))
	c.await(tb, "munged", func() bool {
		_, err := os.Stat(c.socket())
		return err == nil
	})
	c.serve(tb, controller, "-D")
	for _, node := range c.Nodes {
		c.serve(tb, daemon, "-D", "-N", node)
	}
	tb.Cleanup(func() { c.cancel(tb) }) // before the servers end
	c.await(tb, "the nodes", func() bool {
		out, err := c.Command("sinfo", "--noheader", "--states=idle", "--Format=nodes").Output()
		return err == nil && strings.TrimSpace(string(out)) == strconv.Itoa(nodes)
	})
	return c
}

// Command is a command of Slurm that talks to this cluster.
func (c *Cluster) Command(name string, args ...string) *exec.Cmd {
	cmd := exec.Command(filepath.Join(filepath.Dir(c.srun), name), args...)
	cmd.Env = append(os.Environ(), c.Env())
	return cmd
}

// Has reports whether srun --mpi has a plugin.
func (c *Cluster) Has(tb testing.TB, plugin string) bool {
	tb.Helper()
	list, err := c.Command("srun", "--mpi=list").CombinedOutput()
	if err != nil {
		tb.Fatalf("%v: %s", err, list)
	}
	return slices.Contains(strings.Fields(string(list)), plugin)
}

// Srun is the path of srun, for whom Env is the environment.
func (c *Cluster) Srun() string { return c.srun }

// Env is the variable by which the commands find the cluster.
func (c *Cluster) Env() string { return "SLURM_CONF=" + c.file("slurm.conf") }

func (c *Cluster) file(name string) string { return filepath.Join(c.dir, name) }

// socket is where munged listens. The address of a socket has less room than many a path.
func (c *Cluster) socket() string { return c.file("m") }

// write writes the files that the servers read. The first node is at an address, the others at the
// following ones: names such as 127.9.8.7 are their own addresses.
func (c *Cluster) write(first netip.Addr, nodes int) error {
	ports, err := freePorts(nodes + 1)
	if err != nil {
		return err
	}
	me, err := user.Current()
	if err != nil {
		return err
	}
	key := make([]byte, 128)
	_, _ = crand.Read(key) // never fails
	if err := os.WriteFile(c.file("key"), key, 0o600); err != nil {
		return err
	}
	addr := first
	for range nodes {
		c.Nodes = append(c.Nodes, addr.String())
		addr = addr.Next()
	}
	var conf bytes.Buffer
	fmt.Fprintf(&conf, `ClusterName=test
SlurmctldHost=localhost(%s)
SlurmctldPort=%d
AuthType=auth/munge
AuthInfo=socket=%s
CredType=cred/munge
SlurmUser=%s
SlurmdUser=%s
StateSaveLocation=%s
SlurmdSpoolDir=%s
TmpFS=%s
SlurmctldPidFile=%s
SlurmdPidFile=%s
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
SwitchType=switch/none
JobAcctGatherType=jobacct_gather/none
AccountingStorageType=accounting_storage/none
SchedulerType=sched/builtin
SelectType=select/cons_tres
SelectTypeParameters=CR_CPU
MpiDefault=none
ReturnToService=2
KillWait=2
SlurmdParameters=config_overrides
`, first, ports[nodes], c.socket(), me.Username, me.Username, c.file("state"),
		c.file("spool.%n"), c.file("tmp.%n"), c.file("slurmctld.pid"), c.file("slurmd.%n.pid"))
	if err := os.Mkdir(c.file("state"), 0o755); err != nil {
		return err
	}
	for i, node := range c.Nodes {
		fmt.Fprintf(&conf, "NodeName=%s NodeAddr=%s Port=%d CPUs=64\n", node, node, ports[i])
		for _, dir := range []string{"spool.", "tmp."} {
			if err := os.Mkdir(c.file(dir+node), 0o755); err != nil {
				return err
			}
		}
	}
	conf.WriteString("PartitionName=all Nodes=ALL Default=YES MaxTime=INFINITE State=UP\n")
	return os.WriteFile(c.file("slurm.conf"), conf.Bytes(), 0o644)
}

// freePorts are ports at which nobody listens, at any address: the servers of Slurm know no other
// way. They are below those that connections are given.
func freePorts(n int) ([]int, error) {
	var ports []int
	for range 100 {
		port := 10000 + rand.IntN(20000)
		l, err := net.Listen("tcp", fmt.Sprint(":", port))
		if err != nil {
			continue
		}
		defer l.Close() // so that no port comes twice
		if ports = append(ports, port); len(ports) == n {
			return ports, nil
		}
	}
	return nil, errors.New("no free ports")
}

// serve starts a server, and ends it when the test ends.
func (c *Cluster) serve(tb testing.TB, path string, args ...string) {
	tb.Helper()
	cmd := exec.Command(path, args...)
	cmd.Env = append(os.Environ(), c.Env())
	log, err := os.Create(c.file(fmt.Sprintf("%s.%d.out", filepath.Base(path), len(c.servers))))
	if err != nil {
		tb.Fatal(err)
	}
	cmd.Stdout, cmd.Stderr = log, log
	if err := cmd.Start(); err != nil {
		tb.Fatal(err)
	}
	_ = log.Close()
	c.servers = append(c.servers, cmd)
	tb.Cleanup(func() {
		_ = cmd.Process.Signal(syscall.SIGTERM)
		late := time.AfterFunc(patience, func() { _ = cmd.Process.Kill() })
		_ = cmd.Wait() // it ends by a signal
		late.Stop()
	})
}

// await waits for what the servers have to do.
func (c *Cluster) await(tb testing.TB, what string, done func() bool) {
	tb.Helper()
	for end := time.Now().Add(patience); !done(); time.Sleep(20 * time.Millisecond) {
		if time.Now().After(end) {
			tb.Fatalf("Slurm: waited %v for %s\n%s", patience, what, c.logs())
		}
	}
}

// logs is what the servers have said.
func (c *Cluster) logs() string {
	var all strings.Builder
	files, _ := filepath.Glob(c.file("*.out")) // the pattern is one
	for _, file := range append(files, c.file("munged.log")) {
		text, err := os.ReadFile(file)
		if err == nil {
			fmt.Fprintf(&all, "%s:\n%s", filepath.Base(file), text)
		}
	}
	return all.String()
}

// cancel ends the jobs that are still there, so that no process of theirs outlives the servers.
func (c *Cluster) cancel(tb testing.TB) {
	if jobs, err := c.Command("squeue", "--noheader").Output(); err != nil || len(jobs) == 0 {
		return
	}
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	for ctx.Err() == nil {
		_ = c.Command("scancel", "--state=RUNNING").Run()
		if jobs, err := c.Command("squeue", "--noheader").Output(); err != nil || len(jobs) == 0 {
			return
		}
		time.Sleep(50 * time.Millisecond)
	}
	tb.Errorf("Slurm: jobs do not end\n%s", c.logs())
}
