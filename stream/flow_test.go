package stream

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"math"
	"net"
	"os"
	"slices"
	"sync"
	"syscall"
	"testing"
	"testing/iotest"
	"time"

	"ibverbx"
	"ibverbx/nics"
	"ibverbx/verbs"
	"ibverbx/verbs/soft"
)

// Many streams that begin large writes at once share what a link has easily: each waits in line for
// chunks that others have read. No window grows for them, and no stream is forgotten.
func TestManyWriters(t *testing.T) {
	const streams, size = 300, 100_000
	cfg := over(t, nics.Soft)
	cfg.Backlog = streams
	l := listen(t, cfg)
	var writers, readers []*Conn
	for range streams {
		a, b := dial(t, l, cfg)
		b.link.pool.mu.Lock()
		b.link.pool.patience = time.Hour
		b.link.pool.mu.Unlock()
		writers, readers = append(writers, a), append(readers, b)
	}
	var all sync.WaitGroup
	for i := range streams {
		data := bytes.Repeat([]byte{byte(i)}, size)
		all.Go(func() {
			_, err := writers[i].Write(data)
			if err := errors.Join(err, writers[i].CloseWrite()); err != nil {
				t.Error(err)
			}
		})
		all.Go(func() {
			if got, err := io.ReadAll(readers[i]); err != nil || !bytes.Equal(got, data) {
				t.Errorf("%d bytes, %v", len(got), err)
			}
		})
	}
	all.Wait()
	pool := &readers[0].link.pool
	pool.mu.Lock()
	defer pool.mu.Unlock()
	if n := len(pool.chunks); n > easyChunks || len(pool.free) != n || pool.waiting.Len() != 0 {
		t.Errorf("%d of %d chunks are free, and %d streams wait", len(pool.free), n, pool.waiting.Len())
	}
	for _, c := range readers {
		if c.in.window != firstWindow {
			t.Fatalf("a window of %d", c.in.window)
		}
	}
}

// A stream that waits for chunks which others keep gets new memory after a while.
func TestWaitingEnds(t *testing.T) {
	cfg := over(t, nics.Soft)
	l := listen(t, cfg)
	var keepers []*Conn
	for range easyChunks/firstChunks + 1 {
		a, b := dial(t, l, cfg)
		mustWrite(t, a, make([]byte, firstChunks*chunkBytes))
		keepers = append(keepers, b)
	}
	a, b := dial(t, l, cfg)
	go func() { _, _ = a.Write(make([]byte, 100_000)) }()
	mustRead(t, b, 100_000)
	for _, c := range keepers {
		mustRead(t, c, firstChunks*chunkBytes)
	}
}

// What a stream does not use comes back: the room of a window beyond the first, chunks, and the
// memory in which bytes wait for Read.
func TestIdleStreamGivesBack(t *testing.T) {
	a, b := pair(t, over(t, nics.Soft))
	memory := &a.link.carrier.hub.memory
	used := func() int64 {
		memory.mu.Lock()
		defer memory.mu.Unlock()
		return memory.used
	}
	before := used()
	for range 3 {
		widen(t, a, b, lastWindow)
		mustWrite(t, a, make([]byte, 4000))
		mustRead(t, b, 4000)
		until(t, "what is idle comes back", func() bool {
			a.link.tidy()
			b.link.tidy()
			b.mu.Lock()
			defer b.mu.Unlock()
			return b.in.window == firstWindow && b.in.heap.mem == nil
		})
	}
	if n := used(); n != before {
		t.Errorf("%d bytes are promised, and %d were before", n, before)
	}
	mustWrite(t, a, []byte("goes on"))
	mustRead(t, b, 7)
}

// A window of any size grows to the last one and no further, and room that has just come is kept.
func TestRoom(t *testing.T) {
	a, b := pair(t, over(t, nics.Soft))
	b.mu.Lock()
	b.in.window, b.in.limit = lastWindow/2+1, lastWindow/2+1
	noError(t, b.wanted(le32(0)))
	if b.in.window != lastWindow || b.in.limit != lastWindow {
		t.Errorf("a window of %d, and a limit of %d", b.in.window, b.in.limit)
	}
	b.in.window = firstWindow // as the budget has it
	b.mu.Unlock()
	a.mu.Lock()
	defer a.mu.Unlock()
	a.due.shrink = a.out.limit // it found no resource
	if noError(t, a.moreSpace(le64(lastWindow))); a.due.shrink != 0 {
		t.Error("the limit is lowered to more than it was")
	}
}

// widen makes a ask for room, as a Write does that finds none, until b has a window. What is idle
// may come back meanwhile, and is asked for again.
func widen(t *testing.T, a, b *Conn, window uint64) {
	t.Helper()
	until(t, "the window grows", func() bool {
		a.mu.Lock()
		a.want(forSpace, 0)
		a.mu.Unlock()
		b.mu.Lock()
		defer b.mu.Unlock()
		return b.in.window >= window
	})
}

// A budget that is used up slows streams and stops none: a Write that finds more than half of the
// window free, and needs more, gets the rest when all is read.
func TestFullBudgetStopsNobody(t *testing.T) {
	for _, early := range []bool{false, true} { // the writer asks before, or when, all is read
		a, b := pair(t, over(t, nics.Soft))
		memory := &a.link.carrier.hub.memory
		memory.mu.Lock()
		memory.used = memory.limit
		memory.mu.Unlock()
		mustWrite(t, a, make([]byte, 3000))
		_ = a.SetWriteDeadline(time.Now().Add(patience))
		wrote := make(chan error, 1)
		write := func() { _, err := a.Write(make([]byte, 6000)); wrote <- err }
		if early {
			go write()
			until(t, "the peer knows that the writer waits", func() bool {
				b.mu.Lock()
				defer b.mu.Unlock()
				return b.in.hungry
			})
		}
		mustRead(t, b, 3000)
		if !early {
			go write()
		}
		_ = b.SetReadDeadline(time.Now().Add(patience))
		mustRead(t, b, 6000)
		if err := <-wrote; err != nil {
			t.Fatal(err)
		}
	}
}

// until waits for a condition that other goroutines bring about.
func until(tb testing.TB, what string, is func() bool) {
	tb.Helper()
	for end := time.Now().Add(patience); !is(); time.Sleep(time.Millisecond) {
		if time.Now().After(end) {
			tb.Fatal("in vain: ", what)
		}
	}
}

// A peer that is stopped for a while loses no stream: TCP would wait, too.
func TestStoppedPeer(t *testing.T) {
	if testing.Short() {
		t.Skip("waits for longer than a queue pair of software NICs does by default")
	}
	t.Parallel()
	for _, provider := range []string{nics.Shm, nics.RoCE} {
		t.Run(provider, func(t *testing.T) {
			t.Parallel()
			addr, process := echoing(t, provider)
			c, err := Dial(t.Context(), addr, over(t, provider))
			noError(t, err)
			defer func() { _ = c.Close() }()
			mustWrite(t, c, []byte("before"))
			mustRead(t, c, 6)
			noError(t, process.Signal(syscall.SIGSTOP))
			until(t, "the process is stopped", func() bool {
				stat, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", process.Pid))
				return err != nil || bytes.Contains(stat, []byte(") T "))
			})
			mustWrite(t, c, []byte("meanwhile"))
			noError(t, c.SetReadDeadline(time.Now().Add(5*time.Second)))
			if _, err := c.Read(make([]byte, 1)); !errors.Is(err, os.ErrDeadlineExceeded) {
				t.Errorf("%v", err)
			}
			noError(t, c.SetReadDeadline(time.Time{}))
			noError(t, process.Signal(syscall.SIGCONT))
			if got := mustRead(t, c, 9); string(got) != "meanwhile" {
				t.Errorf("%q", got)
			}
		})
	}
}

// How long a silent peer keeps its link: as long as the program says; otherwise long over software
// NICs, and as NICs usually do where they answer by themselves, or replace each other.
func TestPatience(t *testing.T) {
	dev := newHost(t, nics.Config{Provider: nics.Soft}).Provider().(*soft.Fabric).Device(0)
	for _, c := range []struct {
		patience, least, most time.Duration
		nics                  int
	}{
		{0, softPatience, 2 * softPatience, 1},
		{time.Millisecond, time.Millisecond, 2 * time.Millisecond, 1},
		{time.Hour, time.Hour, 2 * time.Hour, 2},
	} {
		conn := patient(c.patience, slices.Repeat([]verbs.Device{dev}, c.nics))
		got := time.Duration(conn.RetryCount+1) * verbs.AckTimeout(uint8(conn.Timeout))
		if got < c.least || got >= c.most {
			t.Errorf("%v over %d NICs: %v", c.patience, c.nics, got)
		}
	}
	two := patient(0, []verbs.Device{dev, dev})
	if two.Patience != ibverbx.PatienceFabric || two.Timeout != 0 {
		t.Errorf("over two NICs: %+v", two)
	}
}

// An error of ReadFrom is the reader's own, or else one of package net.
func TestErrorsOfReadFrom(t *testing.T) {
	a, _ := pair(t, over(t, nics.Soft))
	f, err := os.Open(os.Args[0])
	noError(t, err)
	defer func() { _ = f.Close() }()
	noError(t, a.SetWriteDeadline(time.Now().Add(10*time.Millisecond)))
	_, err = a.ReadFrom(f) // nobody reads it
	var op *net.OpError
	if !errors.As(err, &op) || !op.Timeout() {
		t.Errorf("a deadline: %v", err)
	}
	noError(t, a.SetWriteDeadline(time.Time{}))
	own := errors.New("of the reader")
	if _, err = a.ReadFrom(iotest.ErrReader(own)); !errors.Is(err, own) || errors.As(err, &op) {
		t.Errorf("the reader's: %v", err)
	}
}

// The timer of SetLinger ends with the stream, and any number of seconds is a time.
func TestLinger(t *testing.T) {
	a, b := pair(t, over(t, nics.Soft))
	noError(t, errors.Join(b.SetLinger(math.MaxInt), a.SetLinger(math.MaxInt)))
	noError(t, errors.Join(a.Close(), b.Close()))
	until(t, "the stream ends", func() bool {
		a.mu.Lock()
		defer a.mu.Unlock()
		return a.done
	})
	if a.lingers == nil || a.lingers.Stop() {
		t.Error("the timer runs on")
	}
}

// Writers that wait for something shared are woken one after the other, in their order. Whoever was
// woken passes the turn on; who was not wakes nobody.
func TestLineup(t *testing.T) {
	a, _ := pair(t, over(t, nics.Soft))
	var q lineup
	line := make([]*Conn, 4)
	for i := range line {
		line[i] = a.link.newConn(uint32(100 + i))
		q.add(line[i])
		q.add(line[i])
	}
	woken := func() (list []int) {
		for i, c := range line {
			if c.out.wait.ready.Swap(false) {
				list = append(list, i)
			}
		}
		return list
	}
	for _, step := range []struct {
		do   func()
		want []int
	}{
		{func() { q.leave(a) }, nil}, // it did not stand in line
		{q.next, []int{0}},
		{func() { q.leave(line[0]) }, []int{1}}, // it has what it wanted
		{func() { q.leave(line[2]) }, nil},      // its deadline has passed while it waited
		{func() { q.leave(line[1]) }, []int{3}},
		{func() { q.leave(line[3]) }, nil},
	} {
		step.do()
		if got := woken(); !slices.Equal(got, step.want) {
			t.Errorf("woken: %v, and %v should be", got, step.want)
		}
	}
	if q.next(); len(woken()) != 0 || q.n.Load() != 0 {
		t.Error("somebody is left in line")
	}
}

// A link polls as long as that helps, and after misses ever more rarely.
func TestSpinner(t *testing.T) {
	var s spinner
	for range 100 {
		if !s.may() {
			t.Fatal("it does not poll although that helps")
		}
		s.ended(true)
	}
	polls := 0
	for range 1000 {
		if s.may() {
			polls++
			s.ended(false)
		}
	}
	if polls < 10 || polls > 30 {
		t.Errorf("it polls %d times of 1000 in vain", polls)
	}
	for !s.may() {
	}
	s.ended(true)
	if !s.may() {
		t.Error("it does not poll once that has helped again")
	}
}
