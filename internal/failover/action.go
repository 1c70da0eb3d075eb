package failover

// Action is something for the caller to do.
type Action struct {
	Kind ActionKind
	Rail int // the index of the rail that is concerned
	// OwnPSN and PeerPSN are the upper 16 bits of the packet sequence numbers with which a queue
	// pair is to be connected. OwnPSN is 0 at the end that does not lead: it draws one.
	OwnPSN, PeerPSN uint16
}

// ActionKind says what is to be done.
type ActionKind uint8

const (
	// Lose takes a rail out of service, because the peer has lost it. Where no other one can stand
	// in, the connection fails.
	Lose ActionKind = 1 + iota
	// Settle calls [Protocol.Settle]: both ends know what has arrived on the rail.
	Settle
	// Connect resets the queue pair and connects it anew, and calls [Protocol.Connected] if that
	// succeeds. It may be left undone: the leader asks again.
	Connect
	// GoLive puts a rail back into service, and calls [Protocol.WentLive].
	GoLive
	// Serve has a rail carry the messages of its role from now on. Its receives are posted before
	// the next control message is.
	Serve
)
