package tagged_test

import (
	"testing"

	"ibverbx/tagged"
)

// TestTraffic: both ends of a connection count messages and bytes, whoever moved them: copied,
// batched, in fragments, or read by the receiver.
func TestTraffic(t *testing.T) {
	for _, receiveFirst := range []bool{false, true} {
		r, a, b := pair(t, 2, tagged.Config{EagerLimit: 40000, MaxUnexpected: 40})
		_, other := r.connect(0, 1)
		messages, bytes := uint64(0), uint64(0)
		lengths := []int{0, 8, 3000, 39000, 100000, 1 << 20}
		for range 20 {
			lengths = append(lengths, 16) // more than fit at a time: the last ones wait, and go in batches
		}
		var reqs []*tagged.Request
		receive := func() {
			for _, n := range lengths {
				reqs = append(reqs, r.recv(b.Worker(), uint64(n), tagged.Exact, make([]byte, n)))
			}
		}
		if receiveFirst {
			receive()
		}
		for i, n := range lengths {
			send := a.Send
			if i%3 == 1 {
				send = a.SendSync
			}
			req, err := send(uint64(n), pattern(n, i))
			if err != nil {
				t.Fatal(err)
			}
			reqs = append(reqs, req)
			messages, bytes = messages+1, bytes+uint64(n)
		}
		if !receiveFirst {
			r.settle()
			receive()
		}
		r.done(reqs...)
		sent, received := a.Stats(), b.Stats()
		if sent.Sent != messages || sent.SentBytes != bytes || sent.Received != 0 || sent.ReceivedBytes != 0 {
			t.Errorf("%d messages of %d bytes were sent: %+v", messages, bytes, sent)
		}
		if received.Received != messages || received.ReceivedBytes != bytes || received.Sent != 0 ||
			received.SentBytes != 0 {
			t.Errorf("%d messages of %d bytes were received: %+v", messages, bytes, received)
		}
		if s := other.Stats(); s.Sent+s.SentBytes+s.Received+s.ReceivedBytes != 0 {
			t.Errorf("another endpoint: %+v", s)
		}
		if s := r.workers[0].Stats(); s.Transport.AMSent == 0 || sent.Transport.Limit == 0 {
			t.Errorf("the transport beneath: %+v, %+v", s.Transport, sent.Transport)
		}
	}
}
