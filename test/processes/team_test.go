package processes_test

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"os"
	"os/exec"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"ibverbx/verbs/soft"
)

// team is several members that run one program.
type team struct {
	program string
	members int
	nics    int  // of each member; 0 means 1
	qps     int  // of each NIC; 0 means the package's default
	zero    bool // the zero configuration
	rounds  int  // how much to do; what it counts is up to the program
	victim  bool // one of them asks to be killed
}

// realSlow divides the rounds on real NICs, which may be emulated.
const realSlow = 3

// endTimeout is how long members may take to end after their team has.
const endTimeout = 30 * time.Second

// run runs the program on all members, over each of the providers. It returns when all have ended.
func (c team) run(t *testing.T) {
	t.Helper()
	for name := range strings.SplitSeq(*providerFlag, ",") {
		t.Run(name, func(t *testing.T) {
			t.Helper()
			c.runOver(t, name)
		})
	}
}

func (c team) runOver(t *testing.T, provider string) {
	t.Helper()
	base := c.task(t, provider)
	start := startProcess
	if base.Provider == "soft" {
		fabric := openFabric(t, c.members*base.NICs)
		start = func(p task, ended func(error, []byte)) (handle, error) {
			return startGoroutine(fabric, p, ended)
		}
	}
	ended := make(chan result, c.members)
	var members []handle
	for rank := range c.members {
		p := base
		p.Rank = rank
		h, err := start(p, func(err error, output []byte) { ended <- result{rank, err, output} })
		if err != nil {
			t.Errorf("member %d did not start: %v", rank, err)
			for _, h := range members {
				h.stop()
			}
			break
		}
		members = append(members, h)
	}
	c.watch(t, base, members, ended)
}

// task is the task of all members. It skips the test if there are too few NICs.
func (c team) task(t *testing.T, provider string) task {
	t.Helper()
	p := task{
		Program: c.program, Of: c.members, NICs: max(c.nics, 1), QPs: c.qps, Hasty: c.victim, Zero: c.zero,
		Rounds:   c.rounds,
		Provider: provider, Devices: *devicesFlag, GIDIndex: gidIndex(), Limit: *limitFlag,
		Table: t.TempDir(),
	}
	switch p.Provider {
	case "soft", "roce", "shm":
	case "rdmacore":
		p.Rounds = (p.Rounds + realSlow - 1) / realSlow
		provider, all, err := p.open()
		if err != nil {
			t.Fatal(err)
		}
		if err := provider.Close(); err != nil {
			t.Fatal(err)
		}
		if len(all) < p.NICs {
			t.Skipf("needs %d NICs, there are %d", p.NICs, len(all))
		}
	default:
		t.Fatalf("-provider %q: have soft, roce, shm, rdmacore", p.Provider)
	}
	return p
}

// result is how a member ended.
type result struct {
	rank   int
	err    error
	output []byte // of a process: what it has written
}

// errKilled is the result of a member that was killed.
var errKilled = errors.New("killed")

// watch waits for the members, and fails the test for each with a wrong result. When one has
// failed, or time is up, the others may take some time to end, and then must.
func (c team) watch(t *testing.T, base task, members []handle, ended <-chan result) {
	t.Helper()
	late := time.NewTimer(base.Limit + endTimeout)
	defer late.Stop()
	killed := 0
	for left := len(members); left > 0; {
		select {
		case r := <-ended:
			left--
			if err := markEnded(base.Table, r.rank); err != nil {
				t.Error(err)
			}
			if errors.Is(r.err, errKilled) {
				killed++
			} else if r.err != nil {
				t.Errorf("member %d failed: %v\n%s", r.rank, r.err, r.output)
				for _, h := range members {
					h.stop()
				}
				late.Reset(endTimeout)
			}
		case <-late.C:
			t.Errorf("%d members do not end", left)
			for _, h := range members {
				h.end()
			}
			late.Reset(endTimeout)
		}
	}
	if c.victim != (killed == 1) {
		t.Errorf("%d members were killed; wanted one: %v", killed, c.victim)
	}
}

// handle is a member under way.
type handle struct {
	stop func() // ends its context
	end  func() // ends it, however it hangs
}

// startGoroutine starts a member in this process. One that is killed loses its NICs.
func startGoroutine(f *soft.Fabric, p task, ended func(error, []byte)) (handle, error) {
	all, err := f.Devices()
	if err != nil {
		return handle{}, err
	}
	ctx, cancel := context.WithCancelCause(context.Background())
	var dead atomic.Bool
	die := func() {
		dead.Store(true)
		for i := range p.NICs {
			f.Device(p.Rank*p.NICs + i).Kill()
		}
		cancel(errKilled)
	}
	go func() {
		err := p.perform(ctx, nicsOf(all, &p), die)
		if err != nil && dead.Load() {
			err = errKilled // it failed because of that
		}
		cancel(nil)
		ended(err, nil)
	}()
	return handle{stop: func() { cancel(errors.New("the team has failed")) }, end: die}, nil
}

// startProcess starts a member that is a process, which runs this test binary.
func startProcess(p task, ended func(error, []byte)) (handle, error) {
	self, err := os.Executable()
	if err != nil {
		return handle{}, err
	}
	job, err := json.Marshal(p)
	if err != nil {
		return handle{}, err
	}
	var output bytes.Buffer
	cmd := exec.Command(self)
	cmd.Env = append(os.Environ(), memberEnv+"="+string(job))
	cmd.Stdout, cmd.Stderr = &output, &output
	if err := cmd.Start(); err != nil {
		return handle{}, err
	}
	go func() {
		err := cmd.Wait()
		if status, ok := cmd.ProcessState.Sys().(syscall.WaitStatus); ok && status.Signaled() &&
			status.Signal() == syscall.SIGKILL {
			err = errKilled
		}
		ended(err, output.Bytes()[:min(output.Len(), 1<<16)])
	}()
	signal := func(s os.Signal) func() { return func() { _ = cmd.Process.Signal(s) } } // it may have ended
	return handle{stop: signal(syscall.SIGTERM), end: signal(syscall.SIGQUIT)}, nil    // which prints stacks
}
