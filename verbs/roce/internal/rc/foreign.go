package rc

// foreignWindow limits the packets under way to a foreign end, a NIC or rdma_rxe. It is at most the
// limit that rdma_rxe sets itself.
//
// A foreign end drops everything behind a loss, so a loss costs a whole window, and the window
// should be no larger than the path needs. It coalesces its acknowledgements, so they reveal little
// about the delay, and only losses show congestion. So this is the window of TCP Reno (RFC 5681):
// at first it grows by a packet for each that was answered, then by a packet a round trip; a loss
// halves it, at most once a round trip; after a timeout it restarts from the least. A CNP shrinks
// it too (see marks).
//
// Invariant: minWindow <= packets <= foreignTrack.
type foreignWindow struct {
	packets   float64
	threshold float64 // below it the window grows by a packet for each answered
	recovery  seq     // numbers before it were sent before the last cut
	roundEnd  seq     // the present round ends when this number has arrived
	marks     marks
}

func (w *foreignWindow) start() {
	*w = foreignWindow{packets: startWindow, threshold: foreignTrack}
	w.marks.start()
}

// arrived records that the packet with a number has arrived; next is the first that was never sent.
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

// missed records that a packet was lost; next is the first that was never sent.
func (w *foreignWindow) missed(s, next seq) {
	if s < w.recovery {
		return // it was sent before the window was halved
	}
	w.packets = max(w.packets/2, minWindow)
	w.threshold, w.recovery = w.packets, next
}

// marked records that the network has marked packets; all before una have arrived.
func (w *foreignWindow) marked(una, next seq) {
	if una < w.recovery {
		return
	}
	w.packets = w.marks.cut(w.packets)
	w.threshold, w.recovery = w.packets, next
}

// collapse restarts with the smallest window, when nothing came back.
func (w *foreignWindow) collapse(next seq) {
	w.threshold = max(w.packets/2, minWindow)
	w.packets, w.recovery = minWindow, next
}
