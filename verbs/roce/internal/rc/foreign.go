package rc

// foreignWindow is the most packets that may be under way to a foreign end, a NIC or rdma_rxe. At
// most it is the limit that rdma_rxe sets itself.
//
// A foreign end drops everything behind a loss, so a loss costs a whole window, and the window
// should be no larger than the path needs. Its acknowledgements are coalesced in ways that say
// little about the delay: losses have to tell. So it is the window of TCP Reno (RFC 5681): a packet
// for each that was answered at first, then a packet a round trip; half of it once a round trip
// after a loss; from the least on after a timeout. A CNP takes from it too (see marks).
//
// Invariant: minWindow <= packets <= foreignTrack.
type foreignWindow struct {
	packets   float64
	threshold float64 // below it a packet is added for each that is answered
	recovery  seq     // what was sent before the last loss was answered ends here
	roundEnd  seq     // the present round ends when this number has arrived
	marks     marks
}

func (w *foreignWindow) start() {
	*w = foreignWindow{packets: startWindow, threshold: foreignTrack}
	w.marks.start()
}

// arrived notes that the packet with a number has arrived; next is the first that was never sent.
func (w *foreignWindow) arrived(s, next seq) {
	switch {
	case w.packets < w.threshold:
		w.packets++
	case !w.marks.recovers():
		w.packets += growPerRound / w.packets
	}
	if s >= w.roundEnd {
		if w.roundEnd = next; w.packets >= w.threshold {
			w.packets = w.marks.grow(w.packets, 0)
		}
	}
	w.packets = min(w.packets, foreignTrack)
}

// missed notes that a packet was lost; next is the first that was never sent.
func (w *foreignWindow) missed(s, next seq) {
	if s < w.recovery {
		return // it was sent before the window was halved
	}
	w.packets = max(w.packets/2, minWindow)
	w.threshold, w.recovery = w.packets, next
}

// marked notes that the network has marked packets; all before una have arrived.
func (w *foreignWindow) marked(una, next seq) {
	if una < w.recovery {
		return
	}
	w.packets = w.marks.cut(w.packets)
	w.threshold, w.recovery = w.packets, next
}

// collapse begins anew with the smallest window, when nothing came back.
func (w *foreignWindow) collapse(next seq) {
	w.threshold = max(w.packets/2, minWindow)
	w.packets, w.recovery = minWindow, next
}
