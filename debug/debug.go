// Package debug shows what the connections of a running program do: which NICs carry them, how
// fast, what waits, what was lost, and which of them is sick. A program serves snapshots; `ibverbx
// top`, or [Top], looks at several programs.
//
//	s := debug.New(debug.Config{})
//	s.AddWorker("storage", worker) // of package transport; of tagged: w.Transport()
//	s.AddCQ("copy", cq)            // virtual queue pairs that a goroutine owns
//	s.AddDevices(devices...)       // counters of the NICs
//	l, err := s.Listen()           // for ibverbx top PID, of the same user
//	http.Handle("/debug/ibverbx", s) // for ibverbx top HOST:PORT, from this host
//
// # Who may look
//
// A snapshot has the names of programs, endpoints and NICs, and errors, and no data. Names and
// errors may contain addresses: package stream names its endpoints by them. The socket of
// [Server.Listen] is in a directory that only its user may enter: ibverbx-UID in $XDG_RUNTIME_DIR,
// or in the directory for temporary files if the user has no such directory. Over HTTP only
// requests from a loopback address, to a loopback name, are answered, unless [Config.Anyone] is
// set.
//
// # Cost
//
// Nothing is done unless somebody looks. A look locks a worker for one endpoint at a time, about a
// microsecond, and asks the owner of each virtual CQ for a snapshot: see
// ibverbx.VirtualCQ.Snapshot.
package debug

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"net"
	"net/http"
	"net/netip"
	"os"
	"path/filepath"
	"reflect"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"ibverbx"
	"ibverbx/transport"
	"ibverbx/verbs"
)

// Config configures a [Server]. The zero value works.
type Config struct {
	// Name is what the program is called; empty means the name of its file.
	Name string
	// Timeout is how long a look waits for the owners of virtual CQs, of all together; 0 means 100
	// ms. Of an owner that does not poll meanwhile the last snapshot is shown.
	Timeout time.Duration
	// Anyone answers HTTP requests from every address and to every name.
	Anyone bool
}

// Server serves snapshots of a process. Its methods may be called from any goroutine.
type Server struct {
	cfg   Config
	looks chan struct{} // one element for each look under way

	mu      sync.Mutex
	sources map[string]source
	devices []verbs.Device
}

// source is a worker or a virtual CQ.
type source struct {
	worker *transport.Worker
	cq     *ibverbx.VirtualCQ
}

// Process is a snapshot of a process.
type Process struct {
	PID    int       `json:"pid"`
	Name   string    `json:"name"`
	At     time.Time `json:"at"` // by the wall clock
	Groups []Group   `json:"groups"`
	NICs   []NIC     `json:"nics"`

	target string // what it was asked by; empty if it was not asked
}

// Group is a worker or a virtual CQ, by the name that it was added with.
type Group struct {
	Name  string    `json:"name"`
	At    time.Time `json:"at"` // of its state: earlier than the process's if its owner does not poll
	Peers []Peer    `json:"peers"`
}

// Peer is a connection: an endpoint, or a virtual queue pair.
type Peer struct {
	Name string        `json:"name"`
	Err  string        `json:"err,omitempty"` // why it has failed
	QP   ibverbx.Stats `json:"qp"`
	// Endpoint is nil for a virtual queue pair.
	Endpoint *transport.EndpointStats `json:"endpoint,omitempty"`
}

// NIC is a port of a NIC, and what it counts of losses, repetitions and congestion, by name.
type NIC struct {
	Device  string            `json:"device"`
	Port    int               `json:"port"`
	Repairs map[string]uint64 `json:"repairs"`
}

// maxLooks is how many looks may be under way at a time.
const maxLooks = 8

// New makes a server that shows nothing yet.
func New(cfg Config) *Server {
	cfg.Name = cmp.Or(cfg.Name, filepath.Base(os.Args[0]))
	cfg.Timeout = cmp.Or(cfg.Timeout, 100*time.Millisecond)
	return &Server{cfg: cfg, looks: make(chan struct{}, maxLooks), sources: map[string]source{}}
}

// AddWorker shows a worker and its endpoints. It refuses a name that is taken, with verbs.ErrBusy.
func (s *Server) AddWorker(name string, w *transport.Worker) error {
	return s.add(name, source{worker: w})
}

// AddCQ shows a virtual CQ and its virtual queue pairs. It refuses a name that is taken, with
// verbs.ErrBusy.
func (s *Server) AddCQ(name string, cq *ibverbx.VirtualCQ) error {
	return s.add(name, source{cq: cq})
}

func (s *Server) add(name string, from source) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if _, taken := s.sources[name]; taken {
		return fmt.Errorf(
			"debug: add %.100q: %w: there is a group of that name",
			name,
			verbs.ErrBusy,
		)
	}
	s.sources[name] = from
	return nil
}

// Remove stops showing a worker or a virtual CQ.
func (s *Server) Remove(name string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	delete(s.sources, name)
}

// AddDevices shows what NICs count, as far as their providers do, until they are closed.
func (s *Server) AddDevices(devices ...verbs.Device) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, d := range devices {
		if !slices.Contains(s.devices, d) {
			s.devices = append(s.devices, d)
		}
	}
}

// Snapshot returns the present state. It waits for the owners of virtual CQs, for [Config.Timeout]
// at most.
func (s *Server) Snapshot(ctx context.Context) Process {
	ctx, stop := context.WithTimeout(ctx, s.cfg.Timeout)
	defer stop()
	p := Process{
		PID:    os.Getpid(),
		Name:   s.cfg.Name,
		At:     time.Now(),
		Groups: []Group{},
		NICs:   []NIC{},
	}
	s.mu.Lock()
	sources, devices := make(map[string]source, len(s.sources)), slices.Clone(s.devices)
	names := make([]string, 0, len(s.sources))
	for name, from := range s.sources {
		sources[name] = from
		names = append(names, name)
	}
	s.mu.Unlock()
	slices.Sort(names)
	// All at once: an owner that does not poll takes the time of no other.
	groups := make([]*Group, len(names))
	var all sync.WaitGroup
	for i, name := range names {
		all.Go(func() { groups[i] = sources[name].group(ctx, name) })
	}
	all.Wait()
	for _, g := range groups {
		if g != nil {
			p.Groups = append(p.Groups, *g)
		}
	}
	for _, d := range devices {
		list, closed := ports(d)
		p.NICs = append(p.NICs, list...)
		if closed {
			s.removeDevice(d)
		}
	}
	return p
}

// group returns the state of a source; nil if nobody has polled it yet.
func (s source) group(ctx context.Context, name string) *Group {
	if s.worker != nil {
		return workerGroup(name, s.worker)
	}
	shot, err := s.cq.Snapshot(ctx)
	if err != nil {
		return nil
	}
	return queueGroup(name, &shot)
}

func workerGroup(name string, w *transport.Worker) *Group {
	g := &Group{Name: name, At: time.Now(), Peers: []Peer{}}
	for _, e := range w.Endpoints() {
		stats := e.Stats()
		p := Peer{Name: e.Name(), QP: e.QPStats(), Endpoint: &stats}
		if err := e.Err(); err != nil {
			p.Err = err.Error()
		}
		g.Peers = append(g.Peers, p)
	}
	return g
}

func queueGroup(name string, shot *ibverbx.Snapshot) *Group {
	g := &Group{Name: name, At: shot.At, Peers: []Peer{}}
	for _, q := range shot.QPs {
		g.Peers = append(g.Peers, Peer{Name: fmt.Sprint("qp ", q.Num), Err: q.Err, QP: q.Stats})
	}
	return g
}

func (s *Server) removeDevice(d verbs.Device) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.devices = slices.DeleteFunc(s.devices, func(o verbs.Device) bool { return o == d })
}

// ports returns the counters of a NIC; none if it does not count, or is gone. closed says that it
// never will again.
func ports(d verbs.Device) (list []NIC, closed bool) {
	counting, ok := d.(verbs.RepairCounter)
	if !ok {
		return nil, false
	}
	attr, err := d.Query()
	for port := 1; err == nil && port <= attr.Ports; port++ {
		if counts := counting.Repairs(port); len(counts) != 0 {
			list = append(list, NIC{Device: d.Name(), Port: port, Repairs: counts})
		}
	}
	return list, errors.Is(err, verbs.ErrClosed)
}

// ServeHTTP answers with a snapshot, a [Process] as JSON on one line; with "?every=1s" with one
// each second until the client leaves.
func (s *Server) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	const least = 10 * time.Millisecond
	every, err := time.Duration(0), error(nil)
	if text := r.URL.Query().Get("every"); text != "" {
		every, err = time.ParseDuration(text)
	}
	switch {
	case !s.cfg.Anyone && !isLocal(r):
		http.Error(
			w,
			"debug: only for this host: set Config.Anyone for others",
			http.StatusForbidden,
		)
		return
	case r.Method != http.MethodGet:
		http.Error(w, "debug: only GET", http.StatusMethodNotAllowed)
		return
	case err != nil || every < 0 || every != 0 && every < least:
		http.Error(
			w,
			"debug: every must be a time such as 1s, at least 10ms",
			http.StatusBadRequest,
		)
		return
	}
	select {
	case s.looks <- struct{}{}:
		defer func() { <-s.looks }()
	default:
		http.Error(w, "debug: too many others look", http.StatusServiceUnavailable)
		return
	}
	w.Header().Set("Content-Type", "application/x-ndjson")
	encode := json.NewEncoder(w)
	for {
		if encode.Encode(s.Snapshot(r.Context())) != nil || every == 0 {
			return // the client has left, or has what it wants
		}
		if http.NewResponseController(w).Flush() != nil {
			return
		}
		select {
		case <-r.Context().Done():
			return
		case <-time.After(every):
		}
	}
}

// isLocal reports whether a request comes from this host, and means it: a page in a browser can
// make it ask any name that its author lets point here.
func isLocal(r *http.Request) bool {
	if r.RemoteAddr == "" || strings.HasPrefix(r.RemoteAddr, "@") ||
		strings.HasPrefix(r.RemoteAddr, "/") {
		return true // a unix socket
	}
	from, err := netip.ParseAddrPort(r.RemoteAddr)
	if err != nil || !from.Addr().Unmap().IsLoopback() {
		return false
	}
	host := r.Host
	if h, _, err := net.SplitHostPort(host); err == nil {
		host = h
	}
	to, err := netip.ParseAddr(strings.Trim(host, "[]"))
	return host == "localhost" || err == nil && to.Unmap().IsLoopback()
}

// Listener serves the snapshots of a process to programs of the same user.
type Listener struct {
	server *http.Server
	over   chan error
}

// Listen serves snapshots at a socket that ibverbx top finds by the number of the process. Close
// the listener at the end. There is one for a process: the error of a second is verbs.ErrBusy.
func (s *Server) Listen() (*Listener, error) {
	at, err := socketDir()
	if err != nil {
		return nil, fmt.Errorf("debug: listen: %w", err)
	}
	file := filepath.Join(at, strconv.Itoa(os.Getpid())+".sock")
	if c, err := net.Dial("unix", file); err == nil {
		_ = c.Close() // nothing was sent
		return nil, fmt.Errorf("debug: listen: %w: this process listens at %s already: add to that "+
			"Server", verbs.ErrBusy, file)
	}
	// One of a process that had the same number and was killed.
	if err := os.Remove(file); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return nil, fmt.Errorf("debug: listen: %w", err)
	}
	l, err := net.Listen("unix", file)
	if err != nil {
		return nil, fmt.Errorf("debug: listen: %w", err)
	}
	const patience = 5 * time.Second
	lis := &Listener{over: make(chan error, 1),
		server: &http.Server{Handler: s, ReadHeaderTimeout: patience, MaxHeaderBytes: 16 << 10}}
	go func() { lis.over <- lis.server.Serve(l) }()
	return lis, nil
}

// Close ends the looks under way, and removes the socket.
func (l *Listener) Close() error {
	err := l.server.Close()
	if served := <-l.over; !errors.Is(served, http.ErrServerClosed) {
		err = errors.Join(err, served)
	}
	l.over <- http.ErrServerClosed // for a second Close
	return err
}

// socketDir returns the directory of the user's sockets, which it makes if it is missing. It
// refuses one that others may enter, or that belongs to another user. XDG_RUNTIME_DIR may be that
// of another user, behind sudo -E, and may name what is not there, behind su.
func socketDir() (string, error) {
	parent := os.TempDir()
	if run := os.Getenv("XDG_RUNTIME_DIR"); filepath.IsAbs(run) {
		if info, err := os.Stat(run); err == nil && info.IsDir() && isOurs(info) {
			parent = run
		}
	}
	dir := filepath.Join(parent, "ibverbx-"+strconv.Itoa(os.Getuid()))
	if err := os.Mkdir(dir, 0o700); err != nil && !errors.Is(err, fs.ErrExist) {
		return "", err
	}
	info, err := os.Lstat(dir)
	switch {
	case err != nil:
		return "", err
	case !info.IsDir() || info.Mode().Perm()&0o077 != 0 || !isOurs(info):
		return "", fmt.Errorf("%w: %s must be a directory of this user that nobody else may enter",
			fs.ErrPermission, dir)
	}
	return dir, nil
}

// isOurs reports whether a file belongs to the user of this process, where the system says so:
// every unix has a structure of its own for that, with a field of this name.
func isOurs(info fs.FileInfo) bool {
	v := reflect.Indirect(reflect.ValueOf(info.Sys()))
	if v.Kind() != reflect.Struct {
		return true
	}
	uid := v.FieldByName("Uid")
	return !uid.IsValid() || !uid.CanUint() || uid.Uint() == uint64(os.Getuid())
}
