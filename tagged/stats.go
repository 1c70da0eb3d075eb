package tagged

import "ibverbx/transport"

// counters count since the worker was made.
type counters struct {
	announced, unexpected uint64
	batches, dropped      uint64
	registered, staged    uint64
	failures, violations  uint64
	leaked                uint64
}

// Stats is a snapshot of a worker. Counters count since it was made.
type Stats struct {
	Endpoints       int `json:"endpoints"`
	Posted          int `json:"posted"`           // receives that wait for a message
	Unexpected      int `json:"unexpected"`       // messages that wait for a receive
	UnexpectedBytes int `json:"unexpected_bytes"` // memory that they take
	Leftover        int `json:"leftover"`         // of these, fragments from closed endpoints
	SpareBytes      int `json:"spare_bytes"`      // free memory kept for such messages
	Requests        int `json:"requests"`         // requests that are not done
	SpareRequests   int `json:"spare_requests"`   // requests kept for reuse
	// RequestsMade is how many requests were allocated. It stops growing once the pool is warm, if
	// the program frees its requests.
	RequestsMade   uint64 `json:"requests_made"`
	Announced      uint64 `json:"announced"`       // long messages sent
	Batches        uint64 `json:"batches"`         // active messages that carried several short sends
	CameUnexpected uint64 `json:"came_unexpected"` // messages that arrived before their receive
	// Dropped is how many complete messages were dropped because their endpoint was aborted, or
	// because closed endpoints had left more than Config.MaxLeftover.
	Dropped uint64 `json:"dropped"`
	// Registered is how many registrations were made for one message, outside of every Region.
	Registered uint64 `json:"registered"`
	// Staged is how many long messages had too many pieces and went through a buffer made for them.
	Staged     uint64 `json:"staged"`
	Failures   uint64 `json:"failures"`   // endpoints that failed
	Violations uint64 `json:"violations"` // of these, because the peer broke the protocol
	Leaked     uint64 `json:"leaked"`     // registrations that could not be undone

	Transport transport.Stats `json:"transport"`
}

// Stats takes a snapshot.
func (w *Worker) Stats() Stats {
	w.mu.Lock()
	defer w.mu.Unlock()
	s, m := &w.stats, &w.matching
	blocks, requests := &w.spares.blocks, &w.spares.requests
	return Stats{
		Endpoints: len(w.endpoints.list), Posted: m.posted.count, Unexpected: m.unexpected.all.Len(),
		UnexpectedBytes: blocks.used, SpareBytes: blocks.bytes, Leftover: w.leftovers.fragments,
		Requests: requests.busy, SpareRequests: len(requests.free), RequestsMade: requests.made,
		Announced: s.announced, Batches: s.batches, CameUnexpected: s.unexpected, Dropped: s.dropped,
		Registered: s.registered, Staged: s.staged,
		Failures: s.failures, Violations: s.violations, Leaked: s.leaked,
		Transport: w.tw.Stats(),
	}
}

// traffic counts the messages and bytes of an endpoint since it was made.
type traffic struct{ sent, sentBytes, received, receivedBytes uint64 }

// EndpointStats is a snapshot of an endpoint.
type EndpointStats struct {
	// Messages and their bytes, since the endpoint was made. Copied ones count as they go out and
	// arrive. Long ones count as they are read, and at the sender when it learns of that.
	Sent          uint64 `json:"sent"`
	SentBytes     uint64 `json:"sent_bytes"`
	Received      uint64 `json:"received"`
	ReceivedBytes uint64 `json:"received_bytes"`

	Queued    int `json:"queued"`    // sends that have not gone out completely
	Unmatched int `json:"unmatched"` // sends that wait for the notice that they were matched, or read
	Reading   int `json:"reading"`   // messages that are being read from the peer
	Window    int `json:"window"`    // eager fragments and announcements that the peer has room for
	Owed      int `json:"owed"`      // places of the window that can be granted to the peer again
	Notices   int `json:"notices"`   // matches that the peer has not been notified of yet

	Transport transport.EndpointStats `json:"transport"`
}

// Stats takes a snapshot.
func (e *Endpoint) Stats() EndpointStats {
	e.w.mu.Lock()
	defer e.w.mu.Unlock()
	t := &e.traffic
	return EndpointStats{
		Sent: t.sent, SentBytes: t.sentBytes, Received: t.received, ReceivedBytes: t.receivedBytes,
		Queued: e.queue.Len(), Unmatched: e.waiting.count(), Reading: e.active,
		Window: e.ledger.Room(), Owed: e.ledger.Due(), Notices: e.notices.Len(),
		Transport: e.tep.Stats(),
	}
}
