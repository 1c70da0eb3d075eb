// Package nicoffer is the offer of NICs that the two ends of a conversation exchange before they
// choose which to use. Package nics chooses for programs, the command for its measurements.
package nicoffer

import (
	"fmt"
	"net/netip"

	"ibverbx/internal/peertext"
	"ibverbx/rendezvous"
	"ibverbx/verbs"
	"ibverbx/verbs/roce"
	"ibverbx/verbs/shm"
	"ibverbx/verbs/soft"
)

// Offer is an end's description of its NICs for its peer. It travels as JSON.
type Offer struct {
	Provider string `json:"provider"`
	// Packets is the kind of packets that the NICs use; empty if unknown.
	Packets string   `json:"packets"`
	NICs    []string `json:"nics"` // names of all that may be used
}

// Of returns the offer of NICs of a provider.
func Of(provider string, devices []verbs.Device) Offer {
	o := Offer{Provider: provider, Packets: packetsOf(devices)}
	for _, d := range devices {
		o.NICs = append(o.NICs, NameOf(d))
	}
	return o
}

// ProviderOf returns the provider of NICs that reach a peer: own, or that of shared memory.
func ProviderOf(own string, devices []verbs.Device) string {
	if _, ok := devices[0].(*shm.Device); ok {
		return "shm"
	}
	return own
}

// Check bounds a peer's offer, and makes it printable. For an impossible offer it returns
// [rendezvous.ErrProtocol].
func (o *Offer) Check() error {
	if len(o.NICs) == 0 || len(o.NICs) > verbs.MaxDevices {
		return fmt.Errorf("%w: the peer has %d NICs: must be 1 to %d", rendezvous.ErrProtocol, len(o.NICs),
			verbs.MaxDevices)
	}
	o.Provider, o.Packets = peertext.Line(o.Provider, MaxName), peertext.Line(o.Packets, MaxName)
	for i := range o.NICs {
		o.NICs[i] = peertext.Line(o.NICs[i], MaxName)
	}
	return nil
}

// MaxName is the most characters kept of a name from the peer.
const MaxName = 100

// Reaches returns why the NICs do not reach those of a peer, an error that matches
// [verbs.ErrUnreachable]; nil if they do, or if that is unknown.
func (o *Offer) Reaches(theirs *Offer) error {
	if o.Provider == theirs.Provider || o.Packets == theirs.Packets || o.Packets == "" ||
		theirs.Packets == "" {
		return nil
	}
	return &unreachable{fmt.Sprintf("the NICs of the two ends do not reach each other: %s (%s) and %s (%s)",
		o.Provider, o.Packets, theirs.Provider, theirs.Packets)}
}

// unreachable is verbs.ErrUnreachable with its own text.
type unreachable struct{ reason string }

func (e *unreachable) Error() string { return e.reason }
func (e *unreachable) Unwrap() error { return verbs.ErrUnreachable }

// NameOf returns the name of a NIC, with its address if it is made of a socket.
func NameOf(d verbs.Device) string {
	if socket, ok := d.(interface{ Addr() netip.AddrPort }); ok {
		return d.Name() + " at " + socket.Addr().String()
	}
	return d.Name()
}

// packetsOf returns the kind of packets that NICs use, which tells the other end whether its own
// understand them; empty if unknown.
func packetsOf(devices []verbs.Device) string {
	for _, d := range devices {
		switch nic := d.(type) {
		case *roce.Device:
			if port := nic.Addr().Port(); port != roce.Port {
				return fmt.Sprintf("RoCEv2 on UDP port %d, not %d", port, roce.Port)
			}
			continue
		case *soft.Device:
			return "inside one process"
		}
		port, err := d.QueryPort(d.DefaultPort())
		switch {
		case err != nil:
			return ""
		case port.LinkLayer != verbs.LinkLayerEthernet:
			return port.LinkLayer.String()
		case !hasRoCEv2(d, port.GIDTableLen):
			return "Ethernet without RoCEv2"
		}
	}
	return "RoCEv2"
}

// hasRoCEv2 reports whether a port's GID table has an entry of RoCEv2.
func hasRoCEv2(d verbs.Device, entries int) bool {
	for i := range entries {
		if g, err := d.QueryGID(d.DefaultPort(), i); err == nil && g.Type == verbs.GIDTypeRoCEv2 &&
			!g.GID.IsZero() {
			return true
		}
	}
	return false
}
