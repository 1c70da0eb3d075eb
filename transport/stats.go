package transport

import (
	"context"
	"math/bits"
	"slices"

	"ibverbx"
)

// counters are the worker's counters. They only grow, except kept.
type counters struct {
	amSent, amBytes, amReceived uint64
	puts, putBytes              uint64
	gets, getBytes              uint64
	atomics, atomicsLost        uint64
	control                     uint64
	railsLost, railsBack        uint64 // of endpoints that were released
	noResource, pending         uint64 // sends refused for now, requests queued
	failures, violations        uint64
	probes                      uint64
	stale, leaked               uint64
	kept                        int     // messages that the program keeps now
	closed                      traffic // of endpoints that were released

	released ibverbx.Stats // the counters of the virtual queue pairs of released endpoints
	releases uint64        // how many there were
}

// traffic counts the bytes of an endpoint's operations, without what the transport adds.
type traffic struct {
	sent, received uint64
}

// add adds the counts of an endpoint.
func (t *traffic) add(p *peerState) {
	t.sent += p.sending.traffic.sent
	t.received += p.sending.traffic.received + p.receiving.bytes
}

// Stats is a snapshot of a worker. Counters begin at zero when it is made.
type Stats struct {
	Endpoints int `json:"endpoints"`
	// SentBytes and ReceivedBytes are the sums over all endpoints, closed ones included: see
	// EndpointStats.
	SentBytes     uint64 `json:"sent_bytes"`
	ReceivedBytes uint64 `json:"received_bytes"`
	AMSent        uint64 `json:"am_sent"`
	AMBytes       uint64 `json:"am_bytes"` // sent, with their headers
	AMReceived    uint64 `json:"am_received"`
	AMKept        int    `json:"am_kept"` // now
	Puts          uint64 `json:"puts"`
	PutBytes      uint64 `json:"put_bytes"`
	Gets          uint64 `json:"gets"`
	GetBytes      uint64 `json:"get_bytes"`
	Atomics       uint64 `json:"atomics"`
	AtomicsLost   uint64 `json:"atomics_lost"` // atomics that ended with ErrAtomicLost
	RailsLost     uint64 `json:"rails_lost"`   // queue pairs lost while their endpoint continued
	RailsBack     uint64 `json:"rails_back"`   // lost queue pairs that are in service again
	Control       uint64 `json:"control"`      // messages of the transport itself
	NoResource    uint64 `json:"no_resource"`  // calls that returned ErrNoResource
	Pending       uint64 `json:"pending"`      // requests queued
	PendingNow    int    `json:"pending_now"`  // endpoints with requests in their queue, now
	Probes        uint64 `json:"probes"`       // reads that probe silent peers
	Failures      uint64 `json:"failures"`     // endpoints that failed, or whose peer closed
	Violations    uint64 `json:"violations"`   // of these, because the peer broke the protocol
	BounceTotal   int    `json:"bounce_total"` // bounce buffers
	BounceFree    int    `json:"bounce_free"`  // of these, now
	// completions that fit no operation or receive, and were dropped
	StaleEvents uint64 `json:"stale_events"`
	Registered  int    `json:"registered"` // bytes of registered memory: bounce and receive buffers
	Leaked      uint64 `json:"leaked"`     // registrations of closed endpoints that could not be undone
}

// Stats takes a snapshot.
func (w *Worker) Stats() Stats {
	w.mu.Lock()
	defer w.unlock()
	s := w.stats
	registered, all := len(w.bounce.mem), s.closed
	for p := range w.endpoints.all {
		registered += len(p.mem.mem)
		all.add(p)
		if w.cfg.QP.Failover && p.conn.qp != nil {
			qp := p.conn.qp.Stats()
			s.railsLost, s.railsBack = s.railsLost+qp.RailsLost, s.railsBack+qp.RailsBack
		}
	}
	return Stats{
		Endpoints: w.endpoints.open, SentBytes: all.sent, ReceivedBytes: all.received,
		AMSent: s.amSent, AMBytes: s.amBytes, AMReceived: s.amReceived, AMKept: s.kept,
		Puts: s.puts, PutBytes: s.putBytes, Gets: s.gets, GetBytes: s.getBytes, Atomics: s.atomics,
		AtomicsLost: s.atomicsLost, RailsLost: s.railsLost, RailsBack: s.railsBack,
		Control:    s.control,
		NoResource: s.noResource, Pending: s.pending, PendingNow: w.schedule.queue.Len(), Probes: s.probes,
		Failures: s.failures, Violations: s.violations,
		BounceTotal: w.cfg.BounceBuffers, BounceFree: len(w.bounce.free), StaleEvents: s.stale,
		Registered: registered, Leaked: s.leaked,
	}
}

// EndpointStats is a snapshot of an endpoint.
type EndpointStats struct {
	// SentBytes and ReceivedBytes count, without the transport's own headers, header and payload of
	// active messages, at both ends; and puts, gets and atomics at the end that calls them: a put
	// as sent, a get as received, an atomic as eight bytes of either. One-sided operations of the
	// peer are not seen by this end's processor, and so are not counted here but there. Operations
	// count from their call on, also those that fail later.
	SentBytes     uint64 `json:"sent_bytes"`
	ReceivedBytes uint64 `json:"received_bytes"`

	Outstanding int `json:"outstanding"` // operations
	Limit       int `json:"limit"`       // the most that may be outstanding
	Credits     int `json:"credits"`     // active messages that the peer has room for
	Owed        int `json:"owed"`        // credits to give back to the peer
	Pending     int `json:"pending"`     // requests in the queue
	// OwnBuffers is how many of its own bounce buffers are free, beside the shared ones.
	OwnBuffers int `json:"own_buffers"`
}

// Stats takes a snapshot.
func (e *Endpoint) Stats() EndpointStats {
	p := e.peer
	p.w.mu.Lock()
	defer p.unlock()
	due := p.credits.Due()
	for _, slot := range p.receiving.toRepost {
		if p.receiving.messages[slot].returnsCredit {
			due++
		}
	}
	s := &p.sending
	var all traffic
	all.add(p)
	return EndpointStats{SentBytes: all.sent, ReceivedBytes: all.received,
		Outstanding: s.userOps(), Limit: s.limit, Credits: p.credits.Room(), Owed: due,
		Pending: s.pending.list.Len(), OwnBuffers: bits.OnesCount8(s.ownBuffers)}
}

// QPStats takes a snapshot of the virtual queue pair beneath: what each rail has carried, the
// transport's own messages and headers included. Once the endpoint is closed it is the last one.
func (e *Endpoint) QPStats() ibverbx.Stats {
	p := e.peer
	p.w.mu.Lock()
	defer p.unlock()
	if p.conn.qp != nil {
		return p.conn.qp.Stats()
	}
	last := *p.conn.last
	last.Rails = slices.Clone(last.Rails)
	return last
}

// QPTotal takes a snapshot of the sums over the virtual queue pairs of all endpoints, closed ones
// included, so that no counter ever falls: see [ibverbx.Stats.Add]. The worker is locked for one
// endpoint at a time, so that a thousand of them hold up nobody.
func (w *Worker) QPTotal() ibverbx.Stats {
	for range 3 {
		if total, ok := w.sumApart(); ok {
			return total
		}
	}
	w.mu.Lock() // endpoints come and go all the time
	defer w.unlock()
	total := w.sumReleased()
	for p := range w.endpoints.all {
		one := p.conn.qp.Stats()
		total.Add(&one)
	}
	return total
}

// sumApart is QPTotal without holding the lock throughout. It reports false if an endpoint was
// released meanwhile, which would count once too often or not at all.
func (w *Worker) sumApart() (total ibverbx.Stats, ok bool) {
	w.mu.Lock()
	total = w.sumReleased()
	releases := w.stats.releases
	list := make([]*peerState, 0, w.endpoints.open)
	for p := range w.endpoints.all {
		list = append(list, p)
	}
	w.unlock()
	for _, p := range list {
		w.mu.Lock()
		if w.stats.releases != releases {
			w.unlock()
			return total, false
		}
		one := p.conn.qp.Stats()
		p.unlock()
		total.Add(&one)
	}
	return total, true
}

// sumReleased returns a copy of the counters of released endpoints.
func (w *Worker) sumReleased() (total ibverbx.Stats) {
	total.Add(&w.stats.released)
	return total
}

// Trace returns the last steps of the requests below the endpoints, with Config.QP.Trace: see
// [ibverbx.VirtualCQ.Trace]. It may be called from any goroutine, takes no lock, and waits for the
// next Progress, whoever makes it.
func (w *Worker) Trace(ctx context.Context) (*ibverbx.Trace, error) { return w.cq.Trace(ctx) }

// Endpoints lists the endpoints that are open, in no particular order: those that make and lose
// endpoints meanwhile may be missing or gone. Stats, QPStats and Carrier of each may be called from
// any goroutine.
func (w *Worker) Endpoints() []*Endpoint {
	w.mu.Lock()
	defer w.unlock()
	list := make([]*Endpoint, 0, w.endpoints.open)
	for p := range w.endpoints.all {
		list = append(list, &p.views[0])
	}
	return list
}

// Carrier returns what carries the endpoint, as the NICs report it; it is empty once the endpoint
// is closed. It is not for the hot path: it queries each queue pair while the worker is locked.
func (e *Endpoint) Carrier() ibverbx.Carrier {
	p := e.peer
	p.w.mu.Lock()
	defer p.unlock()
	if p.conn.qp == nil {
		return ibverbx.Carrier{}
	}
	return p.conn.qp.Carrier()
}
