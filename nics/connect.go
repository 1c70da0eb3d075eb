package nics

import (
	"context"
	"errors"
	"fmt"

	"ibverbx"
	"ibverbx/internal/peertext"
	"ibverbx/rendezvous"
	"ibverbx/verbs"
	"ibverbx/verbs/roce"
	"ibverbx/verbs/soft"
)

// kindNICs is the message with an Offer.
const kindNICs = "nics"

// Offer is what an end tells its peer of its NICs. It travels as JSON.
type Offer struct {
	Provider string `json:"provider"`
	// Packets says in what packets the NICs speak; empty where that is not known.
	Packets string   `json:"packets"`
	NICs    []string `json:"nics"` // all that may be used
}

// OfferOf describes NICs of a provider.
func OfferOf(provider string, devices []verbs.Device) Offer {
	o := Offer{Provider: provider, Packets: packetsOf(devices)}
	for _, d := range devices {
		o.NICs = append(o.NICs, NameOf(d))
	}
	return o
}

// Check bounds an offer that has come from a peer, and makes it printable. What can be none is an
// error that is [rendezvous.ErrProtocol].
func (o *Offer) Check() error {
	if len(o.NICs) == 0 || len(o.NICs) > verbs.MaxDevices {
		return fmt.Errorf("%w: the peer has %d NICs: must be 1 to %d", rendezvous.ErrProtocol, len(o.NICs),
			verbs.MaxDevices)
	}
	o.Provider, o.Packets = peertext.Line(o.Provider, maxName), peertext.Line(o.Packets, maxName)
	for i := range o.NICs {
		o.NICs[i] = peertext.Line(o.NICs[i], maxName)
	}
	return nil
}

// maxName is how many characters of a peer's name are kept.
const maxName = 100

// Reaches says why NICs do not reach those of a peer, as an error that is [verbs.ErrUnreachable];
// nil where they do, or where that is not known.
func (o *Offer) Reaches(theirs *Offer) error {
	if o.Provider == theirs.Provider || o.Packets == theirs.Packets || o.Packets == "" ||
		theirs.Packets == "" {
		return nil
	}
	return &unreachable{fmt.Sprintf("the NICs of the two ends do not reach each other: %s (%s) and %s (%s)",
		o.Provider, o.Packets, theirs.Provider, theirs.Packets)}
}

// unreachable is verbs.ErrUnreachable in words of its own.
type unreachable struct{ reason string }

func (e *unreachable) Error() string { return e.reason }
func (e *unreachable) Unwrap() error { return verbs.ErrUnreachable }

// Agree returns the NICs that reach the peer of a conversation, as many as both ends have: a
// virtual queue pair needs as many queue pairs at one end as at the other. The peer does the same.
// An error ends the conversation, and the peer is told the reason.
func (h *Host) Agree(ctx context.Context, c *rendezvous.Conn) ([]verbs.Device, error) {
	if c == nil {
		return nil, fmt.Errorf("nics: agree: %w: the conversation is nil", verbs.ErrInvalid)
	}
	mine, err := h.reaching(c)
	var theirs Offer
	if err == nil {
		theirs, err = h.swap(ctx, c, mine)
	}
	if err != nil {
		c.Fail(err)
		return nil, fmt.Errorf("nics: agree with %v: %w", c.RemoteAddr(), err)
	}
	n := min(len(mine), len(theirs.NICs))
	h.cfg.Logger.Debug("ibverbx: NICs agreed on", "peer", c.RemoteAddr(), "number", n, "here", h.Name(),
		"there", theirs.Provider)
	return mine[:n], nil
}

// swap tells the peer of this end's NICs, and learns of the peer's.
func (h *Host) swap(ctx context.Context, c *rendezvous.Conn, devices []verbs.Device) (theirs Offer,
	err error) {
	mine := OfferOf(h.Name(), devices)
	if err := c.Send(ctx, kindNICs, mine); err != nil {
		return theirs, err
	}
	if err := c.Receive(ctx, kindNICs, &theirs); err != nil {
		return theirs, err
	}
	if err := theirs.Check(); err != nil {
		return theirs, err
	}
	if err := mine.Reaches(&theirs); err != nil {
		return theirs, fmt.Errorf("%w: take the same provider at both", err)
	}
	return theirs, nil
}

// Connect makes a virtual queue pair over the NICs that reach the peer of a conversation, and
// connects it with that of the peer, which does the same. It returns when both ends are connected.
// [ibverbx.VirtualQP.Close] closes it with its domain; the conversation stays open. An error ends
// the conversation, and the peer is told the reason.
//
// A program that shares memory among many connections makes one [ibverbx.Domain] of what
// [Host.Agree] returns, and connects what it makes there with [rendezvous.Connect].
func (h *Host) Connect(ctx context.Context, c *rendezvous.Conn, cfg ibverbx.Config) (*ibverbx.VirtualQP,
	error) {
	devices, err := h.Agree(ctx, c)
	if err != nil {
		return nil, err
	}
	qp, err := ibverbx.Open(devices, cfg)
	if err != nil {
		c.Fail(err)
		return nil, fmt.Errorf("nics: connect with %v: %w", c.RemoteAddr(), err)
	}
	if err := rendezvous.Connect(ctx, c, qp); err != nil {
		return nil, errors.Join(err, qp.Close())
	}
	return qp, nil
}

// packetsOf says in what packets NICs speak, for the other end to know whether its own understand
// them; empty where that is not known.
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

// hasRoCEv2 says whether a port's GID table has an entry of RoCEv2.
func hasRoCEv2(d verbs.Device, entries int) bool {
	for i := range entries {
		if g, err := d.QueryGID(d.DefaultPort(), i); err == nil && g.Type == verbs.GIDTypeRoCEv2 &&
			!g.GID.IsZero() {
			return true
		}
	}
	return false
}
