package main

import (
	"errors"
	"fmt"
	"net"
	"net/netip"
	"strings"
	"sync"

	"ibverbx"
	"ibverbx/cmd/ibverbx/internal/bench"
	"ibverbx/rendezvous"
	"ibverbx/verbs"
)

// endNICs are the NICs of one of two processes. They are opened at the start, but for those of roce
// where no address was named: these are at the addresses over which the other end connects, since
// the way there is proven, and are opened with the first connection over it.
type endNICs struct {
	open   func(local netip.Addr) (verbs.Provider, error)
	config ibverbx.ConnConfig
	named  verbs.Provider // nil where addresses are chosen by connection

	mu sync.Mutex
	at map[netip.Addr]verbs.Provider
}

// openEnd opens the NICs of this end. It says so where it chooses the provider itself.
func (f *perfCmd) openEnd(c *console, p *bench.Params) (n *endNICs, err error) {
	n, p.Provider, err = f.nicFlags.openEnd(c, p.Provider, p.Conn, &f.outcome)
	return n, err
}

// openEnd opens the NICs of an end that takes those of a provider, unless there are none and nobody
// has named it. It says whose they are.
func (f *nicFlags) openEnd(c *console, provider string, conn ibverbx.ConnConfig, said *outcome) (
	*endNICs, string, error) {
	n := &endNICs{config: conn, at: map[netip.Addr]verbs.Provider{}}
	n.open = func(local netip.Addr) (verbs.Provider, error) {
		o := f.nicOptions(0)
		o.local = local
		return open(c, provider, o, conn, said)
	}
	var err error
	if provider != roceNICs || f.Device != "" {
		n.named, err = n.open(netip.Addr{})
		if err == nil {
			return n, provider, nil
		}
		if err = withoutRealNICs(f.Provider, f.Device, f.Library, err); err != nil {
			return nil, provider, err
		}
		said.note, provider = roceNote, roceNICs
		c.complain("ibverbx: %s\n", said.note)
	}
	if f.Device != "" {
		n.named, err = n.open(netip.Addr{})
		return n, provider, err
	}
	probe, err := n.open(loopback()) // what is wrong with any NIC is said before another process comes
	if err != nil {
		return nil, provider, err
	}
	return n, provider, probe.Close()
}

// roceNote says that no provider was named, and which one it is.
const roceNote = "this host has no RDMA NIC: using --provider roce, RoCEv2 over UDP sockets"

// withoutRealNICs is nil where roce takes the place of real NICs that could not be opened: there
// are none, and nobody has asked for them. Names of interfaces and addresses ask for roce. Else it
// is the error.
func withoutRealNICs(provider, device, library string, err error) error {
	switch {
	case provider != "" || library != "" || !noRealNICs(err):
		return err
	case device != "":
		if _, notNames := parseAddresses(device); notNames == nil {
			return nil
		}
		return fmt.Errorf("%w; to make NICs of interfaces or addresses add --provider roce", err)
	}
	return nil
}

// String names the NICs.
func (n *endNICs) String() string {
	if n.named == nil {
		return "a roce NIC at the address that a client connects to"
	}
	devices, _ := n.named.Devices() // they could be listed before
	var names []string
	for _, d := range devices {
		names = append(names, bench.NameOf(d))
	}
	return strings.Join(names, ", ")
}

// half is this end's part in a conversation.
func (n *endNICs) half(conn *rendezvous.Conn) (*bench.Half, error) {
	p, err := n.reaching(conn)
	if err != nil {
		return nil, err
	}
	devices, err := p.Devices()
	if err == nil && len(devices) == 0 {
		err = fmt.Errorf("provider %s has no devices", p.Name())
	}
	if err != nil {
		return nil, err
	}
	return &bench.Half{Conn: conn, Provider: p.Name(), Packets: packetsOf(devices), Devices: devices,
		Config: n.config, Version: version()}, nil
}

// endpoints are where a connection leads from and to.
type endpoints interface {
	LocalAddr() net.Addr
	RemoteAddr() net.Addr
}

// reaching is the provider whose NICs reach the other end of a connection.
func (n *endNICs) reaching(conn endpoints) (verbs.Provider, error) {
	if n.named != nil {
		return n.named, nil
	}
	addr, err := nicAddress(conn.LocalAddr(), conn.RemoteAddr())
	if err != nil {
		return nil, err
	}
	n.mu.Lock()
	defer n.mu.Unlock()
	p := n.at[addr]
	if p == nil {
		if p, err = n.open(addr); err != nil {
			return nil, err
		}
		n.at[addr] = p
	}
	return p, nil
}

// explainSilence adds to the error of NICs made of UDP sockets that never got an answer what may
// have kept it from coming.
func explainSilence(r *bench.Report, err error, half *bench.Half) (*bench.Report, error) {
	if r == nil || r.Verified > 0 || half.Provider != roceNICs || !errors.Is(err, verbs.StatusRetryExcErr) {
		return r, err
	}
	err = fmt.Errorf("%w\n%s", err, silence(half.Devices[0]))
	r.Error = err.Error()
	return r, err
}

// silence says of a NIC made of a UDP socket that nothing answers it, and what to look for.
func silence(d verbs.Device) string {
	return fmt.Sprintf("no packet has come back to %s, a UDP socket: check that no firewall drops UDP "+
		"between the two addresses", bench.NameOf(d))
}

// Close closes them.
func (n *endNICs) Close() error {
	if n.named != nil {
		return n.named.Close()
	}
	n.mu.Lock()
	defer n.mu.Unlock()
	var errs []error
	for _, p := range n.at {
		errs = append(errs, p.Close())
	}
	return errors.Join(errs...)
}
