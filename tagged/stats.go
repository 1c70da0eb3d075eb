package tagged

// counters count since the worker was made.
type counters struct {
	announced, unexpected uint64
	batches               uint64
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
	SpareBytes      int `json:"spare_bytes"`      // memory kept for such
	Requests        int `json:"requests"`         // not done
	SpareRequests   int `json:"spare_requests"`   // kept for use again
	// allocated: stands still once the pool is warm and requests are freed
	RequestsMade   uint64 `json:"requests_made"`
	Announced      uint64 `json:"announced"`       // long messages sent
	Batches        uint64 `json:"batches"`         // active messages that carried several short sends
	CameUnexpected uint64 `json:"came_unexpected"` // messages that met no receive
	// registrations of memory for one message: outside of every Region
	Registered uint64 `json:"registered"`
	// long messages that went through a buffer made for them, having too many pieces
	Staged     uint64 `json:"staged"`
	Failures   uint64 `json:"failures"`   // endpoints that failed
	Violations uint64 `json:"violations"` // of these, by what the peer sent
	Leaked     uint64 `json:"leaked"`     // registrations that could not be undone
}

// Stats takes a snapshot.
func (w *Worker) Stats() Stats {
	w.mu.Lock()
	defer w.mu.Unlock()
	s := &w.stats
	return Stats{
		Endpoints: len(w.endpoints), Posted: w.posted.count,
		Unexpected: w.unexpected.byTag.count, UnexpectedBytes: w.blocks.used, SpareBytes: w.blocks.bytes,
		Requests: w.requests.busy, SpareRequests: len(w.requests.free), RequestsMade: w.requests.made,
		Announced: s.announced, Batches: s.batches, CameUnexpected: s.unexpected, Registered: s.registered,
		Staged:   s.staged,
		Failures: s.failures, Violations: s.violations, Leaked: s.leaked,
	}
}

// EndpointStats is a snapshot of an endpoint.
type EndpointStats struct {
	Queued    int `json:"queued"`    // sends that have not gone out, or not wholly
	Unmatched int `json:"unmatched"` // sends that have gone out and wait for the match, or to be read
	Reading   int `json:"reading"`   // messages that are being read from the peer
	Window    int `json:"window"`    // eager fragments and announcements that the peer has room for
	Owed      int `json:"owed"`      // window to give back to the peer
	Notices   int `json:"notices"`   // matches of which the peer has not been told yet
}

// Stats takes a snapshot.
func (e *Endpoint) Stats() EndpointStats {
	e.w.mu.Lock()
	defer e.w.mu.Unlock()
	return EndpointStats{
		Queued: e.queue.count, Unmatched: e.waiting.count(), Reading: e.active,
		Window: e.ledger.room, Owed: e.ledger.owed, Notices: e.notices.count(),
	}
}
