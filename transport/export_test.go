package transport

import "time"

// Sleepers is how many goroutines wait for the worker and have stopped polling.
func (w *Worker) Sleepers() int { return int(w.sleep.count.Load()) }

// ToRepost is how many receive buffers of the endpoint wait to be posted.
func (e *Endpoint) ToRepost() int { return len(e.peer.receiving.toRepost) }

// SetAbortPatience sets how long an abort waits until the peer has got the message that tells it.
func (w *Worker) SetAbortPatience(d time.Duration) { w.abortPatience = d }

// ParseHeader parses the header of a message, for tests of what a peer may send.
func ParseHeader(msg []byte) (kind, id, length uint8, credits uint16, err error) {
	var h header
	err = h.parse(msg)
	return uint8(h.kind), uint8(h.id), h.length, h.credits, err
}

// Stage is how far the endpoint's life has come.
func (e *Endpoint) Stage() string { return e.peer.ending.stage.String() }
