package shmem

import (
	"errors"
	"fmt"
	"sync/atomic"

	"ibverbx"
	"ibverbx/transport"
)

// peer is a PE as another one reaches it, itself included.
type peer struct {
	pe    *PE // whose peer it is
	id    int // the peer's number
	ep    *transport.Endpoint
	heap  ibverbx.RemoteMR
	short int // longest put that is copied into the work request, bytes
	bcopy int // longest put or get through a registered buffer, bytes
	// Several NICs write the peer's memory: their writes can pass each other on the way to it.
	multiNIC bool
	fenced   atomic.Uint64           // how many of PE.fences order what goes to this peer
	gone     atomic.Pointer[PEError] // why it failed or closed; nil while it has not

	// The mailboxes, see mailbox.go; guarded by PE.collective.
	posted   uint64 // pieces sent to this peer so far
	received uint64 // pieces received from it so far
	out, in  int    // pieces of an exchange that have still to be posted, and to be received
	asked    uint64 // the step of the last call about which the PE has asked this peer
	wakes    bool   // the PE has asked this peer to wake it
}

// String names the PE as in errors.
func (t *peer) String() string { return fmt.Sprintf("PE %d", t.id) }

// failed is the endpoint's OnError: it serves no more.
func (t *peer) failed(_ *transport.Endpoint, err error) {
	gone := &PEError{PE: t.id, Err: err}
	t.gone.Store(gone)
	if t.pe.closing.Load() && errors.Is(err, transport.ErrPeerClosed) {
		return // it closes a little earlier than this PE
	}
	t.pe.gone.CompareAndSwap(nil, gone)
}
