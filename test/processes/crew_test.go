package processes_test

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"sync"
	"syscall"

	"ibverbx/verbs/soft"
)

// crew runs the members.
type crew interface {
	start(p *task) error
	kill(rank int)          // kills a member at once
	results() <-chan result // one for each member that was started
	wait()                  // waits until nothing of the members is left, after all have ended
}

// result is how a member ended.
type result struct {
	rank   int
	err    error
	output []byte // of a process: what it has written
}

// errKilled is the result of a member that was killed.
var errKilled = errors.New("killed")

// goroutines is a crew in this process.
type goroutines struct {
	fabric *soft.Fabric
	nics   int // of each
	ended  chan result
	all    sync.WaitGroup

	mu   sync.Mutex
	ends map[int]context.CancelFunc
	dead map[int]bool
}

func newGoroutines(f *soft.Fabric, p task) *goroutines {
	return &goroutines{fabric: f, nics: p.NICs, ended: make(chan result, p.Of),
		ends: map[int]context.CancelFunc{}, dead: map[int]bool{}}
}

func (g *goroutines) start(p *task) error {
	all, err := g.fabric.Devices()
	if err != nil {
		return err
	}
	ctx, cancel := context.WithTimeoutCause(context.Background(), p.Limit,
		fmt.Errorf("not done within %v", p.Limit))
	g.mu.Lock()
	g.ends[p.Rank] = cancel
	g.mu.Unlock()
	g.all.Go(func() {
		defer cancel()
		err := p.perform(ctx, nicsOf(all, p), func() {})
		g.mu.Lock()
		if err != nil && g.dead[p.Rank] {
			err = errKilled // it failed because of that
		}
		g.mu.Unlock()
		g.ended <- result{rank: p.Rank, err: err}
	})
	return nil
}

// kill removes the NICs of a member, and then ends its context.
func (g *goroutines) kill(rank int) {
	g.mu.Lock()
	g.dead[rank] = true
	end := g.ends[rank]
	g.mu.Unlock()
	for i := range g.nics {
		g.fabric.Device(rank*g.nics + i).Kill()
	}
	end()
}

func (g *goroutines) results() <-chan result { return g.ended }
func (g *goroutines) wait()                  { g.all.Wait() }

// processes is a crew of processes that run this test binary.
type processes struct {
	ended chan result
	all   sync.WaitGroup

	mu  sync.Mutex
	are map[int]*os.Process
}

func newProcesses() *processes {
	return &processes{ended: make(chan result, 1), are: map[int]*os.Process{}}
}

func (s *processes) start(p *task) error {
	self, err := os.Executable()
	if err != nil {
		return err
	}
	job, err := json.Marshal(p)
	if err != nil {
		return err
	}
	var out head
	cmd := exec.Command(self)
	cmd.Env = append(os.Environ(), memberEnv+"="+string(job))
	cmd.Stdout, cmd.Stderr = &out, &out
	s.mu.Lock() // it may ask to be killed immediately
	if err = cmd.Start(); err == nil {
		s.are[p.Rank] = cmd.Process
	}
	s.mu.Unlock()
	if err != nil {
		return err
	}
	s.all.Go(func() {
		err := cmd.Wait()
		if status, ok := cmd.ProcessState.Sys().(syscall.WaitStatus); ok && status.Signaled() &&
			status.Signal() == syscall.SIGKILL {
			err = errKilled
		}
		s.ended <- result{rank: p.Rank, err: err, output: out.buf.Bytes()}
	})
	return nil
}

func (s *processes) kill(rank int) {
	s.mu.Lock()
	p := s.are[rank]
	s.mu.Unlock()
	_ = p.Kill() // it may have ended
}

func (s *processes) results() <-chan result { return s.ended }
func (s *processes) wait()                  { s.all.Wait() }

// head keeps the beginning of what a member writes, which says why it failed.
type head struct{ buf bytes.Buffer }

func (h *head) Write(b []byte) (int, error) {
	h.buf.Write(b[:min(len(b), max(0, 1<<16-h.buf.Len()))])
	return len(b), nil
}
