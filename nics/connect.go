package nics

import (
	"context"
	"errors"
	"fmt"

	"ibverbx"
	"ibverbx/internal/nicoffer"
	"ibverbx/rendezvous"
	"ibverbx/verbs"
)

// kindNICs is the kind of a message with an offer.
const kindNICs = "nics"

var errNoConversation = fmt.Errorf("nics: agree: %w: the conversation is nil", verbs.ErrInvalid)

// Agree returns the NICs that reach the peer of a conversation, as many as both ends have: a
// virtual queue pair needs the same number of queue pairs at both ends. The peer does the same. An
// error ends the conversation and tells the peer the reason. Shared memory is taken as
// [Host.ReachingAll] says.
func (h *Host) Agree(ctx context.Context, c *rendezvous.Conn) ([]verbs.Device, error) {
	if c == nil {
		return nil, errNoConversation
	}
	return h.agree(ctx, c, "")
}

// agree is Agree; refused is as for reachingAll.
func (h *Host) agree(ctx context.Context, c *rendezvous.Conn, refused string) ([]verbs.Device, error) {
	mine, theirs, err := h.choose(ctx, c, refused)
	if err != nil {
		c.Fail(err)
		return nil, fmt.Errorf("nics: agree with %v: %w", c.RemoteAddr(), err)
	}
	h.cfg.Logger.Debug("ibverbx: NICs agreed on", "peer", c.RemoteAddr(), "number", len(mine), "here",
		nicoffer.ProviderOf(h.Name(), mine), "there", theirs.Provider, "nics", nicoffer.Of("", mine).NICs)
	return mine, nil
}

// choose exchanges offers, and returns this end's NICs and the peer's offer.
func (h *Host) choose(ctx context.Context, c *rendezvous.Conn, refused string) (mine []verbs.Device,
	theirs nicoffer.Offer, err error) {
	if mine, err = h.reachingAll(ctx, c, refused); err != nil {
		return nil, theirs, err
	}
	if theirs, err = h.swap(ctx, c, mine); err != nil {
		return nil, theirs, err
	}
	return mine[:min(len(mine), len(theirs.NICs))], theirs, nil
}

// swap sends the peer an offer of this end's NICs, and receives the peer's.
func (h *Host) swap(ctx context.Context, c *rendezvous.Conn, devices []verbs.Device) (theirs nicoffer.Offer,
	err error) {
	mine := nicoffer.Of(nicoffer.ProviderOf(h.Name(), devices), devices)
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
// connects it with the peer's, which does the same. It returns when both ends are connected.
// [ibverbx.VirtualQP.Close] closes it with its domain; the conversation stays open. An error ends
// the conversation and tells the peer the reason.
//
// To share memory among many connections, make one [ibverbx.Domain] of the NICs that [Host.Agree]
// returns, and connect what you make there with [rendezvous.Connect].
func (h *Host) Connect(ctx context.Context, c *rendezvous.Conn, cfg ibverbx.Config) (*ibverbx.VirtualQP,
	error) {
	if c == nil {
		return nil, errNoConversation
	}
	refused := ""
	if cfg.Conn.Port > 1 || cfg.Conn.GIDIndex > 0 {
		refused = "a port or a GID of its NICs was asked for"
	}
	devices, err := h.agree(ctx, c, refused)
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
