package nics

import (
	"cmp"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"net/netip"
	"os"
	"slices"
	"strings"
	"sync"

	"ibverbx/internal/nicoffer"
	"ibverbx/verbs"
	"ibverbx/verbs/roce"
	"ibverbx/verbs/shm"
)

// Host holds the NICs of this process. It is a [verbs.Provider]. Its methods may be called from any
// goroutine.
type Host struct {
	cfg     Config // with the provider that was chosen
	source  Source
	named   verbs.Provider // nil if NICs of roce are made as peers are met
	usable  []verbs.Device // the NICs of named with a port that is up, unless the configuration names NICs
	instead error
	leftOut error
	asked   bool      // the configuration asks for NICs; memory is shared only if it asks for that
	own     sync.Once // of the line that this host's NICs are used
	sharing sync.Once // of the line that memory is shared

	mu sync.Mutex
	// at holds the NICs of roce by address; at the zero address those of the whole host.
	at     map[netip.Addr]verbs.Provider
	shared *shm.Provider // made when a peer on this host is met
	does   string        // what Note says of the peers that were met last
	end    bool
}

// Open opens the NICs that cfg selects. Its error says what is missing and how to get it.
func Open(cfg Config) (*Host, error) {
	if err := cfg.Validate(); err != nil {
		return nil, err
	}
	if cfg.Logger == nil {
		cfg.Logger = slog.Default()
	}
	cfg.Shm.Dir = cmp.Or(cfg.Shm.Dir, os.Getenv(envShmDir))
	chosen, asked := cfg.Provider == "", cfg.asksForNICs()
	switch {
	case chosen && hasAddress(cfg.Devices):
		cfg.Provider = RoCE // no other provider has NICs with such names
	case chosen:
		cfg.Provider = Real
	}
	h, err := openHost(cfg)
	if chosen && cfg.Provider == Real {
		if why := h.unusable(err); why != nil {
			if h != nil {
				_ = h.Close()
			}
			if err = cfg.mayTakeSockets(why); err == nil {
				cfg.Provider = RoCE
				if h, err = openHost(cfg); err == nil {
					h.instead = why
				} else {
					err = fmt.Errorf("%w; and %w: for two ends in one process take provider %s", why, err,
						Soft)
				}
			}
		}
	}
	if err != nil {
		return nil, fmt.Errorf("nics: %w", err)
	}
	h.asked = asked
	h.log()
	return h, nil
}

// asksForNICs reports whether the configuration names a provider, NICs, or the library of NICs.
func (c *Config) asksForNICs() bool {
	return c.Provider != "" || c.Devices != "" || c.Library != "" || len(c.RoCE.Addresses) != 0
}

// openHost opens the NICs of a provider.
func openHost(cfg Config) (*Host, error) {
	h := &Host{cfg: cfg, at: map[netip.Addr]verbs.Provider{}}
	var err error
	if h.source, err = cfg.source(cfg.Provider); err != nil {
		return nil, err
	}
	if cfg.Provider == RoCE && cfg.Devices == "" && len(cfg.RoCE.Addresses) == 0 {
		// A configuration that no NIC can have fails here, before there is a peer.
		cfg.RoCE.Addresses = []netip.Addr{loopback()}
		probe, err := h.source.Open(cfg)
		if err != nil {
			return nil, err
		}
		return h, probe.Close()
	}
	if h.named, err = h.source.Open(cfg); err != nil {
		return nil, err
	}
	all, err := h.named.Devices()
	if err == nil && len(all) == 0 {
		err = fmt.Errorf("provider %s has no devices", h.named.Name())
	}
	if err != nil {
		return nil, errors.Join(err, h.named.Close())
	}
	h.leftOut = h.Unopened()
	h.usable = all
	if cfg.Devices == "" {
		var down error
		if h.usable, down = portsUp(all); len(h.usable) == 0 {
			h.usable = all // the error of connecting them says more than an empty list
		} else {
			h.leftOut = errors.Join(h.leftOut, down)
		}
	}
	return h, nil
}

// portsUp returns the NICs with a port that is up, or whose port cannot be queried, and why the
// others are left out.
func portsUp(all []verbs.Device) (up []verbs.Device, down error) {
	for _, d := range all {
		if why := portDown(d); why != nil {
			down = errors.Join(down, why)
		} else {
			up = append(up, d)
		}
	}
	return up, down
}

// portDown returns an error if no port of a NIC is up.
func portDown(d verbs.Device) error {
	attr, err := d.Query()
	if err != nil {
		return nil // using the NIC will show why
	}
	state := verbs.PortNop
	for port := 1; port <= attr.Ports; port++ {
		p, err := d.QueryPort(port)
		if err != nil || p.State == verbs.PortActive {
			return nil
		}
		state = p.State
	}
	return fmt.Errorf("%s: no port is up: the last one is %v", d.Name(), state)
}

// unusable returns why there is no real NIC to work with; nil if there is one, or if some could not
// be opened.
func (h *Host) unusable(err error) error {
	if err != nil {
		if errors.Is(err, verbs.ErrNotSupported) {
			return err
		}
		return nil
	}
	if h.cfg.Devices == "" {
		if up, down := portsUp(h.usable); len(up) == 0 {
			return down
		}
	}
	return nil
}

// mayTakeSockets returns nil if NICs made of UDP sockets may take the place of real ones, because
// the configuration does not ask for real ones. Names of interfaces and addresses ask for sockets.
func (c *Config) mayTakeSockets(why error) error {
	switch {
	case c.Library != "":
		return why
	case c.Devices == "" || namesAddresses(c.Devices):
		return nil
	}
	return fmt.Errorf("%s: %w; to make NICs of interfaces or addresses take provider %s", c.Devices, why,
		RoCE)
}

// log logs which NICs were opened and why.
func (h *Host) log() {
	args := []any{"provider", h.cfg.Provider, "nics", h.String()}
	if h.instead != nil {
		args = append(args, "because", h.instead)
	}
	h.cfg.Logger.Debug("ibverbx: NICs opened", args...)
	if h.leftOut != nil {
		h.cfg.Logger.Warn("ibverbx: NICs left out", "because", h.leftOut)
	}
}

// What a host does that has the choice.
const (
	usesSockets   = "using UDP sockets (provider roce)"
	usesNICs      = "using real NICs (provider rdmacore)"
	sharesMemory  = "sharing memory with processes of this host (provider shm)"
	allOnThisHost = "all processes are on this host: sharing memory (provider shm)"
)

// logOwn notes that this host's own NICs are used, and why memory is not shared; unshared is empty
// if that needs no word. It logs it once, if sockets have taken the place of real NICs or memory
// could have been shared. It does so when they are first used: by then the route may show that this
// process belongs to a job.
func (h *Host) logOwn(r Route, unshared string) {
	does, provider := usesSockets, RoCE
	if h.instead == nil {
		does, provider = usesNICs, Real
	}
	switch {
	case unshared != "" && !h.asked:
		does += "; no shared memory: " + unshared
	case h.instead == nil:
		h.setDoes("")
		return
	}
	h.logChoice(r, &h.own, does, provider)
}

// logShared notes that memory is shared, and logs it once.
func (h *Host) logShared(r Route) {
	if h.instead != nil {
		h.logChoice(r, &h.sharing, sharesMemory, Shm)
	} else {
		h.logChoice(r, &h.sharing, allOnThisHost, Shm)
	}
}

// logChoice notes what this host does with a provider, and reports it once; in a job only rank 0
// logs it.
func (h *Host) logChoice(r Route, once *sync.Once, does, provider string) {
	h.setDoes(does)
	once.Do(func() {
		if h.cfg.Events.Fallback != nil {
			h.cfg.Events.Fallback(FallbackEvent{provider, h.Note(), h.instead})
		}
		if j, ok := r.(interface{ Rank() int }); ok && j.Rank() != 0 {
			return
		}
		h.cfg.Logger.Info("ibverbx: " + h.Note())
	})
}

func (h *Host) setDoes(does string) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.does = does
}

// Note returns in one sentence which NICs have taken the place of real ones with the peers that
// were met last, and why, or why no memory is shared with a process of this host. It is empty if
// real NICs were taken for another reason, or if you named a provider or NICs.
func (h *Host) Note() string {
	h.mu.Lock()
	defer h.mu.Unlock()
	switch {
	case h.instead == nil:
		return h.does
	case errors.Is(h.instead, verbs.ErrNotSupported):
		return "no RDMA NIC here: " + cmp.Or(h.does, usesSockets)
	}
	return "no RDMA NIC here has a port that is up: " + cmp.Or(h.does, usesSockets)
}

// Name returns the name of the provider: Real, RoCE, Shm, Soft, or that of a Source.
func (h *Host) Name() string { return h.cfg.Provider }

// Provider returns the underlying provider, for its own methods, such as the faults of a
// *soft.Fabric. It is nil if NICs of roce are made as peers are met.
func (h *Host) Provider() verbs.Provider {
	if some, ok := h.named.(chosen); ok {
		return some.Provider
	}
	return h.named
}

// Instead returns the reason why real NICs were not taken. It is nil if they were, or if you named
// a provider, or an address, which selects roce.
func (h *Host) Instead() error { return h.instead }

// LeftOut returns which NICs are not offered to peers, because they could not be opened or no port
// is up; nil if all are offered.
func (h *Host) LeftOut() error { return h.leftOut }

// Unopened returns which NICs could not be opened, and why; nil if all were.
func (h *Host) Unopened() error {
	if some, ok := h.named.(interface{ Unopened() error }); ok {
		return some.Unopened()
	}
	return nil
}

// String names the NICs.
func (h *Host) String() string {
	if h.named == nil {
		const sockets = "a roce NIC at the address over which a peer is met"
		if h.instead != nil {
			return sockets + ", or shared memory with a process of this host"
		}
		return sockets
	}
	var names []string
	for _, d := range h.usable {
		names = append(names, nicoffer.NameOf(d))
	}
	return strings.Join(names, ", ")
}

// Devices lists all NICs, whether or not a port is up. For roce without named addresses these are
// all that this host can have. Those already made for a peer come first, and an index may then
// occur twice, which [ibverbx.NewDomain] refuses: to have all of them in a domain, call Devices
// before you meet a peer.
func (h *Host) Devices() ([]verbs.Device, error) {
	h.logOwn(nil, "")
	if h.named == nil {
		return prefixed(h.allSockets())
	}
	return h.named.Devices()
}

// Reaching lists the NICs that reach the other end of a connection: all usable ones, or, for roce
// without named addresses, the one at this end's address of the connection.
func (h *Host) Reaching(r Route) ([]verbs.Device, error) {
	h.logOwn(r, "")
	return prefixed(h.reaching(r))
}

// reaching is Reaching without a log line, and without the package's name in its errors.
func (h *Host) reaching(r Route) ([]verbs.Device, error) {
	if h.named != nil {
		return append([]verbs.Device(nil), h.usable...), nil
	}
	addr, err := address(r)
	if err != nil {
		return nil, err
	}
	return h.socket(addr)
}

// prefixed adds the package's name to an error.
func prefixed(list []verbs.Device, err error) ([]verbs.Device, error) {
	if err != nil {
		return nil, fmt.Errorf("nics: %w", err)
	}
	return list, nil
}

// socket returns the NIC of roce at an address, and makes it if there is none.
func (h *Host) socket(addr netip.Addr) ([]verbs.Device, error) {
	h.mu.Lock()
	defer h.mu.Unlock()
	there, err := h.made()
	if err != nil {
		return nil, err
	}
	if p := h.at[addr]; p != nil {
		return p.Devices()
	}
	for _, d := range there {
		if addressOf(d) == addr {
			return []verbs.Device{d}, nil
		}
	}
	return h.make(addr)
}

// allSockets returns the NICs of roce at all addresses of the host, and makes those that are
// missing.
func (h *Host) allSockets() ([]verbs.Device, error) {
	h.mu.Lock()
	defer h.mu.Unlock()
	there, err := h.made()
	if err != nil || h.at[netip.Addr{}] != nil {
		return there, err
	}
	all, err := roce.LocalAddresses()
	if err != nil {
		return nil, err
	}
	if !slices.ContainsFunc(all, func(addr netip.Addr) bool { return h.at[addr] == nil }) {
		return there, nil
	}
	if _, err := h.make(netip.Addr{}); err != nil {
		return nil, err
	}
	return h.made()
}

// made lists the NICs of roce, those made for a peer first. It leaves out a second NIC at the same
// address, which does not have RoCE's port.
func (h *Host) made() (list []verbs.Device, err error) {
	if h.end {
		return nil, verbs.ErrClosed
	}
	addrs := slices.SortedFunc(maps.Keys(h.at), netip.Addr.Compare)
	slices.Reverse(addrs) // the zero address, the least, comes last
	for _, addr := range addrs {
		these, err := h.at[addr].Devices()
		if err != nil {
			return nil, err
		}
		for _, d := range these {
			if at := addressOf(d); addr.IsValid() || !at.IsValid() || h.at[at] == nil {
				list = append(list, d)
			}
		}
	}
	return list, nil
}

// make makes the NIC of roce at an address, or at the zero address the NICs of the whole host.
func (h *Host) make(addr netip.Addr) ([]verbs.Device, error) {
	cfg := h.cfg
	if addr.IsValid() {
		cfg.RoCE.Addresses = []netip.Addr{addr}
	}
	p, err := h.source.Open(cfg)
	if err != nil {
		return nil, err
	}
	h.at[addr] = p
	return p.Devices()
}

// addressOf returns the address of a NIC that is made of a socket.
func addressOf(d verbs.Device) netip.Addr {
	if socket, ok := d.(interface{ Addr() netip.AddrPort }); ok {
		return socket.Addr().Addr()
	}
	return netip.Addr{}
}

// Closed reports whether Close has succeeded.
func (h *Host) Closed() bool {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.end
}

// Close closes the NICs. It returns verbs.ErrBusy while objects made from them are open; call it
// again later. Once it has succeeded, further calls return nil.
func (h *Host) Close() error {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.end {
		return nil
	}
	var err error
	if h.named != nil {
		err = h.named.Close()
	} else {
		err = h.closeSockets()
	}
	if h.shared != nil {
		closed := h.shared.Close()
		if closed == nil {
			h.shared = nil
		}
		err = errors.Join(err, closed)
	}
	h.end = err == nil
	return err
}

// closeSockets closes the NICs of roce that were made as peers were met.
func (h *Host) closeSockets() error {
	var errs []error
	for addr, p := range h.at {
		err := p.Close()
		errs = append(errs, err)
		if err == nil {
			delete(h.at, addr)
		}
	}
	return errors.Join(errs...)
}
