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

// crew is the members as they run.
type crew interface {
	start(p *part) error
	kill(rank int)          // kills one at once
	results() <-chan result // one for each that was started
	wait()                  // until nothing of them is left; everybody has ended
}

// result is how a member ended.
type result struct {
	rank   int
	err    error
	output []byte // what it has written, if it is a process
}

// errKilled is why a member ended that was killed.
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

func newGoroutines(f *soft.Fabric, p part) *goroutines {
	return &goroutines{fabric: f, nics: p.NICs, ended: make(chan result, p.Of),
		ends: map[int]context.CancelFunc{}, dead: map[int]bool{}}
}

func (g *goroutines) start(p *part) error {
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
			err = errKilled // it had to fail, one way or another
		}
		g.mu.Unlock()
		g.ended <- result{rank: p.Rank, err: err}
	})
	return nil
}

// kill takes a member's NICs away, and then its time.
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

// processes is a crew of processes of this test binary.
type processes struct {
	ended chan result
	all   sync.WaitGroup

	mu  sync.Mutex
	are map[int]*os.Process
}

func newProcesses() *processes {
	return &processes{ended: make(chan result, 1), are: map[int]*os.Process{}}
}

func (s *processes) start(p *part) error {
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
	s.mu.Lock() // it may ask to be killed at once
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
	_ = p.Kill() // one that has ended is as good
}

func (s *processes) results() <-chan result { return s.ended }
func (s *processes) wait()                  { s.all.Wait() }

// head keeps the first part of what is written: a member's first words say why it failed.
type head struct{ buf bytes.Buffer }

func (h *head) Write(b []byte) (int, error) {
	h.buf.Write(b[:min(len(b), max(0, 1<<16-h.buf.Len()))])
	return len(b), nil
}
