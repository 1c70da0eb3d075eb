package job_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/netip"
	"strings"
	"sync"
	"testing"
	"time"

	"ibverbx/internal/tcptest"
	"ibverbx/job"
	"ibverbx/verbs"
)

// memory is a Store for the processes of a test.
type memory struct {
	local net.Addr // what LocalAddr tells; nil: nothing

	mu     sync.Mutex
	values map[string][]byte
	change chan struct{} // closed at the next Put
	gets   int
}

func newMemory() *memory {
	return &memory{values: map[string][]byte{}, change: make(chan struct{}),
		local: &net.TCPAddr{IP: net.IPv4(127, 0, 0, 1), Port: 2379}}
}

func (m *memory) Put(_ context.Context, key string, value []byte) error {
	const allowed = "abcdefghijklmnopqrstuvwxyz0123456789/._#-"
	if strings.Trim(strings.ToLower(key), allowed) != "" || len(key) > 64 || len(value) > 600 {
		return fmt.Errorf("key %q, value %q", key, value)
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	m.values[key] = value
	close(m.change)
	m.change = make(chan struct{})
	return nil
}

func (m *memory) Get(ctx context.Context, key string) ([]byte, error) {
	for {
		m.mu.Lock()
		m.gets++
		value, change := m.values[key], m.change
		m.mu.Unlock()
		if value != nil {
			return value, nil
		}
		select {
		case <-change:
		case <-ctx.Done():
			return nil, context.Cause(ctx)
		}
	}
}

func (m *memory) LocalAddr() net.Addr { return m.local }

// got waits until some Gets were made.
func (m *memory) got(tb testing.TB, n int) {
	tb.Helper()
	for end := time.Now().Add(time.Minute); ; time.Sleep(time.Millisecond) {
		m.mu.Lock()
		gets := m.gets
		m.mu.Unlock()
		if gets >= n {
			return
		}
		if time.Now().After(end) {
			tb.Errorf("%d gets, not %d", gets, n)
			return
		}
	}
}

// stored configures a job that finds itself by a store.
func stored(tb testing.TB, size int, s job.Store) job.Config {
	tb.Helper()
	cfg := config(tb, size)
	cfg.Address, cfg.Store = "", s
	return cfg
}

// loopback is the name of the loopback interface.
func loopback(tb testing.TB) string {
	tb.Helper()
	all, err := net.Interfaces()
	if err != nil {
		tb.Fatal(err)
	}
	for _, i := range all {
		if i.Flags&(net.FlagLoopback|net.FlagUp) == net.FlagLoopback|net.FlagUp {
			return i.Name
		}
	}
	tb.Skip("no loopback interface")
	return ""
}

// Processes find rank 0 by a store, at the address that it was told, or at one that it takes
// itself.
func TestStore(t *testing.T) {
	free := tcptest.FreeAddr(t)
	host := free.Addr().String()
	for address, want := range map[string]string{"": host + ":", ":7471": free.String(),
		"127.0.0.1": "127.0.0.1:", "::1": "[::1]:", "localhost": "localhost:", loopback(t): "127.0.0.1:",
		free.String(): free.String(), host + ":0": host + ":"} {
		t.Run(address, func(t *testing.T) {
			if l, err := net.Listen("tcp", "[::1]:0"); address == "::1" && err != nil {
				t.Skip(err)
			} else if err == nil {
				_ = l.Close()
			}
			s := newMemory()
			s.local = net.TCPAddrFromAddrPort(free)
			cfgs := ranks(stored(t, 4, s))
			cfgs[0].Address = address
			allRight(t, each(t, cfgs, func(ctx context.Context, j *job.Job) error {
				if at := j.Place().Address; !strings.HasPrefix(at, want) || strings.HasSuffix(at, ":0") {
					return fmt.Errorf("rank 0 is at %s, not at %s", at, want)
				}
				return errors.Join(gathers(ctx, j), stores(ctx, j), j.Barrier(ctx))
			}))
		})
	}
}

// Where the store does not tell by which address it is reached, rank 0 is at one of this host.
func TestStoreWithoutAddress(t *testing.T) {
	s := newMemory()
	s.local = nil
	allRight(t, each(t, ranks(stored(t, 2, s)), func(ctx context.Context, j *job.Job) error {
		at, err := netip.ParseAddrPort(j.Place().Address)
		if err != nil || at.Addr().IsUnspecified() || at.Port() == 0 {
			return fmt.Errorf("rank 0 is at %s: %w", j.Place().Address, err)
		}
		return j.Barrier(ctx)
	}))
}

// A job is a store for another one.
func TestJobAsStore(t *testing.T) {
	allRight(t, each(t, ranks(config(t, 3)), func(ctx context.Context, outer *job.Job) error {
		cfg := stored(t, 3, outer)
		cfg.Rank = (outer.Rank() + 1) % 3
		inner, err := job.Join(ctx, cfg)
		if err != nil {
			return err
		}
		return errors.Join(gathers(ctx, inner), inner.Barrier(ctx), inner.Close(), outer.Barrier(ctx))
	}))
}

// What an earlier run has left leads nobody astray, whoever is at its address by now.
func TestStaleEntry(t *testing.T) {
	t.Parallel()
	for name, prepare := range map[string]func(t *testing.T) (value string){
		"nobody": func(t *testing.T) string { return left(t, tcptest.FreeAddr(t).String()) },
		"a stranger": func(t *testing.T) string {
			return left(t, answering(t, "HTTP/1.1 400 Bad Request\r\n\r\n"))
		},
		"who says nothing and ends": func(t *testing.T) string { return left(t, answering(t, "")) },
		"no entry":                  func(*testing.T) string { return "\x1b[2J" },
		"an empty entry":            func(*testing.T) string { return "{}" },
		"another run":               another,
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s := newMemory()
			cfg := stored(t, 3, s)
			cfg.Job = "again"
			if err := s.Put(t.Context(), "/ibverbx/job/again", []byte(prepare(t))); err != nil {
				t.Fatal(err)
			}
			cfgs := ranks(cfg)
			ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
			defer cancel()
			var first []error
			others := each(t, cfgs[1:], func(ctx context.Context, j *job.Job) error {
				return errors.Join(gathers(ctx, j), j.Barrier(ctx))
			}, func() error {
				s.got(t, 6) // they know the entry, and have come back
				j, err := job.Join(ctx, cfgs[0])
				if err != nil {
					return err
				}
				first = append(first, gathers(ctx, j), j.Barrier(ctx), j.Close())
				return nil
			})
			allRight(t, append(first, others...))
		})
	}
}

// left is an entry with an address.
func left(t *testing.T, address string) string {
	t.Helper()
	entry, err := json.Marshal(map[string]any{"rank": 0, "host": "h", "pid": 1, "address": address,
		"incarnation": "before"})
	if err != nil {
		t.Fatal(err)
	}
	return string(entry)
}

// answering is the address of a server that says the same to everybody.
func answering(t *testing.T, answer string) string {
	t.Helper()
	l, err := net.Listen("tcp", tcptest.FreeAddr(t).String())
	if err != nil {
		t.Fatal(err)
	}
	var all sync.WaitGroup
	t.Cleanup(func() { _ = l.Close(); all.Wait() })
	all.Go(func() {
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			_, _ = io.WriteString(c, answer)
			_ = c.Close()
		}
	})
	return l.Addr().String()
}

// another is an entry with the address of another run of the same job, whose rank 0 waits for its
// processes as long as the test lasts.
func another(t *testing.T) string {
	t.Helper()
	s := newMemory()
	cfg := stored(t, 3, s)
	cfg.Job = "again"
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan error, 1)
	go func() {
		_, err := job.Join(ctx, cfg)
		ended <- err
	}()
	t.Cleanup(func() {
		cancel()
		if err := <-ended; !errors.Is(err, context.Canceled) ||
			!strings.Contains(err.Error(), "ranks 1, 2 of 3 are missing") {
			t.Errorf("the other run: %v", err)
		}
	})
	value, err := s.Get(t.Context(), "/ibverbx/job/again")
	var entry struct{ Address string }
	if err = errors.Join(err, json.Unmarshal(value, &entry)); err != nil {
		t.Error(err)
	}
	return left(t, entry.Address)
}

// Processes that all have rank 0 learn it, at ports of their own choice or at the same one.
func TestStoreWithTwoRank0(t *testing.T) {
	t.Parallel()
	for address, says := range map[string]string{"": "has taken rank 0's place in the store",
		tcptest.FreeAddr(t).String(): "another process is rank 0 of this job already"} {
		t.Run(address, func(t *testing.T) {
			t.Parallel()
			cfg := stored(t, 3, newMemory())
			cfg.Address = address
			began := time.Now()
			errs := each(t, []job.Config{cfg, cfg}, nil)
			said := ""
			for i, err := range errs {
				if !errors.Is(err, job.ErrMismatch) {
					t.Errorf("process %d: %v", i, err)
				}
				said += fmt.Sprintln(err)
			}
			if !strings.Contains(said, says) || !strings.Contains(said, "two processes have this rank") {
				t.Errorf("got %s, want %q", said, says)
			}
			if took := time.Since(began); took > 40*time.Second {
				t.Errorf("it took %v", took)
			}
		})
	}
}

// A process whose address the store has lost puts it there again.
func TestStoreLosesEntry(t *testing.T) {
	t.Parallel()
	s := newMemory()
	cfgs := ranks(stored(t, 2, s))
	allRight(t, each(t, cfgs[:1], func(ctx context.Context, j *job.Job) error { return j.Barrier(ctx) },
		func() error {
			if _, err := s.Get(t.Context(), "/ibverbx/job/"+cfgs[0].Job); err != nil {
				return err
			}
			s.mu.Lock()
			clear(s.values)
			s.mu.Unlock()
			j, err := job.Join(t.Context(), cfgs[1])
			if err != nil {
				return err
			}
			return errors.Join(j.Barrier(t.Context()), j.Close())
		}))
}

// Once Join has returned it uses the store no more.
func TestStoreUnused(t *testing.T) {
	t.Parallel()
	s := newMemory()
	allRight(t, each(t, ranks(stored(t, 2, s)), func(ctx context.Context, j *job.Job) error {
		if err := j.Barrier(ctx); err != nil { // all have returned
			return err
		}
		s.mu.Lock()
		before := s.gets
		s.mu.Unlock()
		time.Sleep(1500 * time.Millisecond) // longer than rank 0 leaves between two looks
		s.mu.Lock()
		defer s.mu.Unlock()
		if s.gets != before {
			return fmt.Errorf("%d gets after Join", s.gets-before)
		}
		return nil
	}))
}

// broken is a Store that does not work. It fails at once, or when a context ends, or without an
// error it blocks, whatever its context says.
type broken struct {
	err  error
	late bool
	end  chan struct{}
}

func (b *broken) Put(ctx context.Context, _ string, _ []byte) error {
	switch {
	case b.err == nil:
		<-b.end
	case b.late:
		<-ctx.Done()
		return fmt.Errorf("%w: %w", b.err, ctx.Err())
	}
	return b.err
}

func (b *broken) Get(ctx context.Context, key string) ([]byte, error) {
	return nil, b.Put(ctx, key, nil)
}

// A store that fails ends Join with its words, at once; one that blocks, or has nothing, when the
// wait is over, or the context.
func TestStoreFails(t *testing.T) {
	t.Parallel()
	errDisk := errors.New("disk on fire")
	end := make(chan struct{})
	t.Cleanup(func() { close(end) })
	failing, late, blocking := &broken{err: errDisk}, &broken{err: errDisk, late: true}, &broken{end: end}
	const short, long = 100 * time.Millisecond, time.Minute
	const put, get = `put rank 0's address into the store as "/ibverbx/job/x"`,
		`get rank 0's address from the store as "/ibverbx/job/x"`
	const nothing = `the store has given no address of rank 0 as "/ibverbx/job/x": does rank 0 run`
	for name, test := range map[string]struct {
		store   job.Store
		rank    int
		wait    time.Duration
		timeout time.Duration
		is      error
		says    string
	}{
		"put fails":      {failing, 0, long, long, errDisk, put},
		"get fails":      {failing, 1, long, long, errDisk, get},
		"put fails late": {late, 0, long, short, context.DeadlineExceeded, errDisk.Error()},
		"get fails late": {late, 1, short, long, job.ErrAbsent, errDisk.Error()},
		"put blocks": {blocking, 0, short, long, job.ErrAbsent,
			put + ": the store has not taken it within 100ms"},
		"put blocks for longer": {blocking, 0, long, short, context.DeadlineExceeded, put},
		"get blocks for longer": {blocking, 1, long, short, context.DeadlineExceeded, nothing},
		"nothing there":         {newMemory(), 1, short, long, job.ErrAbsent, nothing},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			patiently(t, short, func(d time.Duration) error {
				times := map[time.Duration]time.Duration{short: d, long: long}
				ctx, cancel := context.WithTimeout(t.Context(), times[test.timeout])
				defer cancel()
				cfg := stored(t, 2, test.store)
				cfg.Job, cfg.Rank, cfg.Wait = "x", test.rank, times[test.wait]
				began := time.Now()
				_, err := job.Join(ctx, cfg)
				says := strings.ReplaceAll(test.says, short.String(), d.String())
				if !errors.Is(err, test.is) || !strings.Contains(fmt.Sprint(err), says) {
					return fmt.Errorf("got %w, want %q, which is %w", err, says, test.is)
				}
				if took := time.Since(began); took > long/2 {
					return fmt.Errorf("it took %v", took)
				}
				return nil
			})
		})
	}
}

// A stale entry is what the error tells of, if nothing better comes.
func TestOnlyStaleEntry(t *testing.T) {
	t.Parallel()
	s := newMemory()
	cfg := stored(t, 2, s)
	cfg.Rank, cfg.Job = 1, "x"
	address := tcptest.FreeAddr(t).String()
	if err := s.Put(t.Context(), "/ibverbx/job/x", []byte(left(t, address))); err != nil {
		t.Fatal(err)
	}
	patiently(t, 100*time.Millisecond, func(wait time.Duration) error {
		cfg.Wait = wait
		_, err := job.Join(t.Context(), cfg)
		for _, want := range []string{"rank 0 is not there", address, "which rank 0 (h, pid 1) has left",
			"leads to its own host alone"} { // the test is not on host h
			if !errors.Is(err, job.ErrAbsent) || !strings.Contains(fmt.Sprint(err), want) {
				return fmt.Errorf("got %w, want %q", err, want)
			}
		}
		return nil
	})
}

// What is configured beside a store.
func TestStoreArguments(t *testing.T) {
	setenv(t, slurm)
	s := newMemory()
	const forms, noHost = "must be HOST, HOST:PORT or :PORT", "it is no interface of this host"
	for name, test := range map[string]struct {
		cfg  job.Config
		is   error
		says string
	}{
		"no name":       {job.Config{Size: 2}, job.ErrNoJob, "set IBVERBX_JOB for all 2 processes"},
		"no port":       {job.Config{Size: 2, Job: "x", Address: "h:http/"}, verbs.ErrInvalid, forms},
		"no interface":  {job.Config{Size: 2, Job: "x", Address: "nosuchif"}, verbs.ErrInvalid, noHost},
		"no such name":  {job.Config{Size: 2, Job: "x", Address: "a b"}, verbs.ErrInvalid, noHost},
		"two addresses": {job.Config{Size: 2, Job: "x", Address: "a:1:2"}, verbs.ErrInvalid, forms},
	} {
		test.cfg.Store, test.cfg.Wait = s, time.Second
		if _, err := job.Join(t.Context(), test.cfg); !errors.Is(err, test.is) ||
			!strings.Contains(fmt.Sprint(err), test.says) {
			t.Errorf("%s: %v", name, err)
		}
	}
	for address, cfg := range map[string]job.Config{"": {Store: s}, "eth0": {Store: s, Address: "eth0"}} {
		p, err := job.Find(cfg)
		p.Source = ""
		if want := (job.Place{Rank: 5, Size: 8, Address: address, Job: "1234.2"}); err != nil || p != want {
			t.Errorf("in an allocation: %+v, want %+v: %v", p, want, err)
		}
	}
	j, err := job.Join(t.Context(), job.Config{Size: 1, Store: s})
	if err != nil {
		t.Fatal(err)
	}
	if err := j.Close(); err != nil || s.gets > 0 || len(s.values) > 0 {
		t.Errorf("a job of one process needs no store: %v", err)
	}
}

// Values that need several messages arrive whole, while others pass between them. One that is too
// long for rank 0 is refused.
func TestLargeValues(t *testing.T) {
	cfg := config(t, 3)
	cfg.MaxValue = 200_000
	cfgs := ranks(cfg)
	cfgs[2].MaxValue = 300_000
	value := func(of, n int) []byte { return []byte(strings.Repeat(fmt.Sprintf("%6d", n*3+of), 30_000)) }
	allRight(t, each(t, cfgs, func(ctx context.Context, j *job.Job) error {
		errs := make(chan error)
		for n := range 8 {
			go func() {
				err := j.Put(ctx, fmt.Sprint(j.Rank(), n), value(j.Rank(), n)[n%2*100_000:])
				of := (j.Rank() + 1) % 3
				got, failed := j.Get(ctx, fmt.Sprint(of, n))
				if string(got) != string(value(of, n)[n%2*100_000:]) {
					failed = fmt.Errorf("value %d of rank %d: %d other bytes: %w", n, of, len(got), failed)
				}
				errs <- errors.Join(err, failed)
			}()
		}
		rows, err := j.AllGather(ctx, value(j.Rank(), 9))
		for range 8 {
			err = errors.Join(err, <-errs)
		}
		for of, row := range rows {
			if string(row) != string(value(of, 9)) {
				err = errors.Join(err, fmt.Errorf("row %d: %d other bytes", of, len(row)))
			}
		}
		if j.Rank() == 2 {
			full := j.Put(ctx, "long", make([]byte, 200_001))
			const says = "200001 bytes: at most 200000"
			if !errors.Is(full, job.ErrFull) || !strings.Contains(full.Error(), says) {
				err = errors.Join(err, fmt.Errorf("too long for rank 0: %w", full))
			}
		}
		return errors.Join(err, j.Barrier(ctx))
	}))
	for i, err := range each(t, cfgs, func(ctx context.Context, j *job.Job) error {
		_, err := j.AllGather(ctx, make([]byte, 200_000+j.Rank()/2))
		return err
	}) {
		if err := blame(err, 2, job.ErrMismatch); err != nil {
			t.Errorf("process %d: %v", i, err)
		}
	}
}

// MaxStore counts entries, and not only their bytes: a process cannot fill the memory of rank 0
// with keys.
func TestEntriesCount(t *testing.T) {
	j, err := job.Join(t.Context(), job.Config{Size: 1, MaxStore: 1280})
	if err != nil {
		t.Fatal(err)
	}
	defer j.Close()
	for n := range 10 {
		if err := j.Put(t.Context(), fmt.Sprint(n), nil); (n == 9) != errors.Is(err, job.ErrFull) {
			t.Errorf("entry %d: %v", n, err)
		}
	}
}
