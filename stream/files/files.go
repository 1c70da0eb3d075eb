// Package files copies files and directories between hosts over several streams at once: those of
// package stream, or any other [net.Conn].
//
//	err := files.Serve(ctx, listener, "/data", files.Config{Token: token})           // on host1
//	report, err := files.Copy(ctx, dial, []string{"model"}, "host1:models", files.Config{Token: token})
//
// [Copy] copies files to the directory that the other end serves, or from there. Of a file its
// bytes, its permissions, its time of modification and its holes are kept, and of a
// directory its permissions and its time. A symbolic link stays one if it is relative and stays
// within the directory that is copied to. Other links, devices, sockets and pipes are refused by
// name, and everything else is copied.
//
// # What is there at any moment
//
// A file is written under its name with ".partial" behind it, and gets its name when it is whole.
// So under a name there is the old file or the new one, however the processes end. A file that
// replaces another one, and one of 1 MiB or more, is on the disk before it gets the name.
//
// Files up to 64 KiB go many to a batch. Larger ones are cut into parts of 64 MiB, which all
// streams carry. Copy again after an interruption compares the parts of the unfinished file by
// their SHA-256, and sends those that differ. A file of more than 64 KiB whose target has its size
// and its time, to the nanosecond, is not sent.
//
// # Who may connect
//
// Both ends know a token. Each proves that it does, by an HMAC of random numbers of both ends, so
// the token does not travel. Everything that follows has a tag (GMAC, with keys of the token and
// these numbers), so nobody else can change, repeat or leave out anything, but whoever sees the
// packets can read them. A peer that knows the token can read and write everything in the
// directory, nothing outside of it, and cannot make the process use more than bounded memory.
package files

import (
	"cmp"
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"time"
)

const (
	leastToken     = 16               // bytes: whoever listens can try shorter ones
	greetingTime   = 10 * time.Second // for a peer to show that it knows the token
	maxConns       = 128              // of a server; each takes 0.5 MB
	defaultStreams = 8
	maxStreams     = 64
	maxNames       = 1024 // of a request
	maxFailures    = 100  // that an error names
)

// Config configures both ends.
type Config struct {
	// Token is what both ends must know, at least 16 bytes.
	Token []byte
	// Streams is how many connections Copy opens, at most 64; 0 means 8.
	Streams int
	// Progress, if it is set, is called by Copy every second.
	Progress func(Report)
	// Ended, if it is set, is called by Serve when a client has gone; err is nil if it has got what
	// it wanted. Calls may overlap.
	Ended func(client net.Addr, r Report, err error)
}

func (cfg Config) check() error {
	if len(cfg.Token) < leastToken || cfg.Streams < 0 || cfg.Streams > maxStreams {
		return fmt.Errorf("files: config: a token of %d bytes, Streams %d: want at least %d bytes, and 1 to "+
			"%d, or 0 for %d", len(cfg.Token), cfg.Streams, leastToken, maxStreams, defaultStreams)
	}
	return nil
}

// Report says what was copied.
type Report struct {
	Files  int64 `json:"files"`       // that are whole at the target, and links
	Bytes  int64 `json:"bytes"`       // that have passed between the ends
	Kept   int64 `json:"kept_bytes"`  // that were at the target already
	Found  int64 `json:"found_bytes"` // so far, by the end that sends
	Failed int64 `json:"failed"`      // files, links and directories
}

// tally makes a Report; any goroutine may use it.
type tally struct {
	mu       sync.Mutex
	Report           // mu guards it
	failures []error // the first
}

func (t *tally) add(r Report) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.Files, t.Bytes, t.Kept, t.Found = t.Files+r.Files, t.Bytes+r.Bytes, t.Kept+r.Kept, t.Found+r.Found
}

func (t *tally) fail(name string, err error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.Failed++; len(t.failures) < maxFailures {
		t.failures = append(t.failures, fmt.Errorf("%s: %w", name, err))
	}
}

// report returns what was copied, and an error for what was not.
func (t *tally) report() (Report, error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.Failed == 0 {
		return t.Report, nil
	}
	all := []error{fmt.Errorf("%d were not copied", t.Failed)}
	return t.Report, errors.Join(append(all, t.failures...)...)
}

// ErrNames is the error of a Copy whose names are not those of two hosts.
var ErrNames = errors.New("want SRC... HOST:PATH or HOST:PATH... DST, with one HOST")

// Copy copies files and directories from this host to the directory that another one serves, or
// from there: either target or all of sources are HOST:PATH, where PATH is relative to that
// directory. A name of this host that has a colon before any slash needs "./" before it. dial opens
// one of the connections.
//
// A single file gets the name target, unless that is a directory or ends in "/". Otherwise target
// is a directory, made if it is not there, and each source goes into it under its own name; "DIR/."
// stands for what is in DIR. Files that exist are replaced.
//
// If some files could not be copied, the error names the first 100, and all others were. Every
// other error has ended the transfer; Copy again continues it. If ctx ends, so does Copy.
func Copy(ctx context.Context, dial func(ctx context.Context, host string) (net.Conn, error),
	sources []string, target string, cfg Config) (Report, error) {
	host, to := remote(target)
	get := host == ""
	var from []string
	for _, name := range sources {
		there, path := remote(name)
		if get && host == "" {
			host = there
		}
		if get && there != host || !get && there != "" {
			return Report{}, ErrNames
		}
		from = append(from, path)
	}
	if host == "" || len(from) == 0 {
		return Report{}, ErrNames
	}
	if err := cfg.check(); err != nil {
		return Report{}, err
	}
	c := &copying{Config: cfg, session: rand.Text(), get: get, names: []string{to}}
	c.ctx, c.cancel = context.WithCancelCause(ctx)
	defer c.cancel(nil)
	if get {
		c.names = from
		dir, name := to, "."
		if info, err := os.Stat(to); err != nil || !info.IsDir() { // the receiver makes it
			dir, name = filepath.Split(filepath.Clean(to))
		}
		root, err := os.OpenRoot(cmp.Or(dir, "."))
		if err != nil {
			return Report{}, err
		}
		defer func() { _ = root.Close() }()
		c.recv = newReceiver(root, name, strings.HasSuffix(to, "/"), &c.tally)
		defer c.recv.stop()
	} else {
		list, err := localSources(from)
		if err != nil {
			return Report{}, err
		}
		defer closeRoots(list)
		c.send = &sender{sources: list, tally: &c.tally, units: make(chan func(*wire))}
	}
	return c.run(func() (net.Conn, error) { return dial(c.ctx, host) })
}

// remote divides HOST:PATH, where HOST may be an IPv6 address in brackets. host is empty for a name
// of this host.
func remote(name string) (host, path string) {
	at := strings.Index(name, ":")
	if strings.HasPrefix(name, "[") {
		at = strings.Index(name, "]:") + 1
	}
	if at <= 0 || strings.Contains(name[:at], "/") {
		return "", name
	}
	return strings.Trim(name[:at], "[]"), name[at+1:]
}

// copying is a transfer, at either end.
type copying struct {
	Config
	session string // random
	get     bool   // for the client
	names   []string
	tally   tally
	ctx     context.Context
	cancel  context.CancelCauseFunc
	send    *sender   // one of the two
	recv    *receiver //

	walks sync.Once
	under sync.WaitGroup // the walk, and the connections, of a server without the first
}

// run is the client's end.
func (c *copying) run(dial func() (net.Conn, error)) (Report, error) {
	var wires []*wire
	for range cmp.Or(c.Streams, defaultStreams) {
		conn, err := dial()
		if err != nil {
			return Report{}, err
		}
		defer func() { _ = conn.Close() }()
		defer context.AfterFunc(c.ctx, func() { _ = conn.Close() })()
		w := newWire(conn, 1)
		_ = conn.SetDeadline(time.Now().Add(greetingTime))
		if err = w.greet(c.Token); err == nil {
			words := append([]string{c.session}, c.names...)
			_, err = w.ask(frame{head: head{Kind: kindRequest, Flag: c.get},
				data: []byte(strings.Join(words, "\x00"))})
		}
		if err = cmp.Or(context.Cause(c.ctx), err); err != nil {
			return Report{}, err
		}
		_ = conn.SetDeadline(time.Time{})
		wires = append(wires, w)
	}
	for _, w := range wires {
		c.under.Go(func() {
			if c.work(w); w.err != nil {
				c.cancel(w.err)
				w.tell(w.err)
			}
		})
	}
	finished := make(chan struct{})
	go func() {
		c.under.Wait()
		close(finished)
	}()
	for tick := time.NewTicker(time.Second); ; {
		select {
		case <-tick.C:
			if r, _ := c.tally.report(); c.Progress != nil {
				c.Progress(r)
			}
			continue
		case <-finished:
			tick.Stop()
		}
		r, err := c.tally.report()
		return r, cmp.Or(context.Cause(c.ctx), err)
	}
}

// work does the work of a connection.
func (c *copying) work(w *wire) {
	if c.send != nil {
		c.walks.Do(func() { c.under.Go(func() { c.send.walk(c.ctx) }) })
		c.send.work(w)
		return
	}
	if c.get {
		w.write(frame{head: head{Kind: kindStart}})
	}
	c.recv.work(w)
}

// server serves a directory.
type server struct {
	Config
	root *os.Root

	mu       sync.Mutex
	sessions map[string]*copying
}

// Serve serves a directory to the clients that connect to l, until ctx ends; then it cuts their
// transfers and returns nil. It closes l.
func Serve(ctx context.Context, l net.Listener, dir string, cfg Config) error {
	defer context.AfterFunc(ctx, func() { _ = l.Close() })()
	defer func() { _ = l.Close() }()
	root, err := os.OpenRoot(dir)
	if err = cmp.Or(cfg.check(), err); err != nil {
		return err
	}
	defer func() { _ = root.Close() }()
	s := &server{Config: cfg, root: root, sessions: map[string]*copying{}}
	var clients sync.WaitGroup
	defer clients.Wait()
	for slots := make(chan struct{}, maxConns); ; {
		slots <- struct{}{}
		conn, err := l.Accept()
		if ctx.Err() != nil {
			return nil
		}
		if err != nil {
			return err
		}
		clients.Go(func() {
			defer context.AfterFunc(ctx, func() { _ = conn.Close() })()
			s.client(ctx, conn)
			_ = conn.Close()
			<-slots
		})
	}
}

// client serves a connection. That which began its session ends it, and reports.
func (s *server) client(ctx context.Context, conn net.Conn) {
	w := newWire(conn, 0)
	_ = conn.SetDeadline(time.Now().Add(greetingTime))
	w.fail(w.greet(s.Token))
	c, first := s.join(ctx, w)
	if c != nil {
		_ = conn.SetDeadline(time.Time{})
		if w.answer(frame{}, nil); c.get {
			w.expect(kindStart)
		}
		c.work(w)
	}
	var r Report
	err := w.err
	if err != nil {
		w.tell(err)
	}
	if c != nil {
		if err != nil {
			c.cancel(err)
		}
		if !first {
			c.under.Done()
			return
		}
		s.mu.Lock()
		delete(s.sessions, c.session)
		s.mu.Unlock()
		c.under.Wait()
		if c.recv != nil {
			c.recv.stop()
		}
		r, err = c.tally.report()
		err = cmp.Or(context.Cause(c.ctx), err)
		c.cancel(nil)
	}
	if s.Ended != nil {
		s.Ended(conn.RemoteAddr(), r, err)
	}
}

// join finds or makes the session that a client wants. first reports whether it has made it.
func (s *server) join(ctx context.Context, w *wire) (c *copying, first bool) {
	f := w.expect(kindRequest)
	words := strings.Split(string(f.data), "\x00")
	if len(words) < 2 || len(words) > maxNames || !f.Flag && len(words) != 2 {
		w.fail(violation("a request of %d words", len(words)))
	}
	if w.err != nil {
		return nil, false
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if c = s.sessions[words[0]]; c != nil {
		c.under.Add(1)
		return c, false
	}
	c = &copying{Config: s.Config, session: words[0], get: f.Flag, names: words[1:]}
	var list []source
	var target string
	var err error
	if c.get {
		list, err = servedSources(s.root, c.names)
		c.send = &sender{sources: list, tally: &c.tally, units: make(chan func(*wire))}
	} else {
		target, err = within(c.names[0])
		c.recv = newReceiver(s.root, target, strings.HasSuffix(c.names[0], "/"), &c.tally)
	}
	if err != nil {
		w.fail(err)
		return nil, false
	}
	c.ctx, c.cancel = context.WithCancelCause(ctx)
	s.sessions[c.session] = c
	return c, true
}
