package main

import (
	"errors"
	"fmt"
	"net/netip"

	"ibverbx"
	"ibverbx/cmd/ibverbx/internal/bench"
	"ibverbx/internal/nicoffer"
	"ibverbx/nics"
	"ibverbx/rendezvous"
	"ibverbx/verbs"
)

// endNICs are the NICs of one of two processes.
type endNICs struct {
	*nics.Host
	config ibverbx.ConnConfig
}

// openEnd opens the NICs of this end. It says so where it chooses the provider itself.
func (f *perfCmd) openEnd(c *console, p *bench.Params) (n *endNICs, err error) {
	if n, err = f.nicFlags.openEnd(c, p.Conn, &f.outcome); err == nil {
		p.Provider = n.Name()
	}
	return n, err
}

// openEnd opens the NICs of an end. Where nobody has named a provider it says which one it is, if
// that is not the one of real NICs.
func (f *nicFlags) openEnd(c *console, conn ibverbx.ConnConfig, said *outcome) (*endNICs, error) {
	host, err := openNICs(f.config(f.Provider, conn))
	if err != nil {
		return nil, err
	}
	if host.Instead() != nil {
		said.note = noteOf(host)
		c.complain("ibverbx: %s\n", said.note)
	}
	said.warn(c, host.LeftOut())
	if err := f.checkPorts(host, conn); err != nil {
		return nil, errors.Join(err, host.Close())
	}
	return &endNICs{host, conn}, nil
}

// checkPorts says whether the NICs have what the flags name, before another process comes.
func (f *nicFlags) checkPorts(host *nics.Host, conn ibverbx.ConnConfig) error {
	if conn.Port == 0 && conn.GIDIndex == 0 {
		return nil
	}
	if host.Name() == roceNICs && f.Device == "" { // one like those that will be made
		probe, err := openNICs(f.configHere(roceNICs, 0, conn))
		if err != nil {
			return err
		}
		defer func() { _ = probe.Close() }() // nothing was made of it
		host = probe
	}
	devices, err := host.Devices()
	if err != nil {
		return err
	}
	return checkPorts(conn, devices)
}

// The note of a provider that nobody has named.
const (
	roceNote     = "this host has no RDMA NIC: " + usesRoCE
	roceDownNote = "no RDMA NIC of this host has a port that is up: " + usesRoCE
	usesRoCE     = "using --provider roce, RoCEv2 over UDP sockets"
)

// noteOf says why NICs of roce took the place of real ones.
func noteOf(host *nics.Host) string {
	if errors.Is(host.Instead(), verbs.ErrNotSupported) {
		return roceNote
	}
	return roceDownNote
}

// half is this end's part in a conversation.
func (n *endNICs) half(conn *rendezvous.Conn) (*bench.Half, error) {
	devices, err := n.Reaching(conn)
	if err != nil {
		return nil, err
	}
	return &bench.Half{Conn: conn, Provider: n.Name(), Devices: devices, Config: n.config,
		Version: version()}, nil
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
		"between the two addresses", nicoffer.NameOf(d))
}

// ipOf is the address of a TCP connection's end.
func ipOf(text string) (netip.Addr, error) {
	at, err := netip.ParseAddrPort(text)
	return at.Addr().Unmap(), err
}
