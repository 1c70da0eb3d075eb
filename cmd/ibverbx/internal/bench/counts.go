package bench

import (
	"ibverbx"
	"ibverbx/transport"
)

// counted is what the ends of a pair that are here have counted, by end: queue pairs, or the
// transport under a layer.
type counted struct {
	queuePairs [2]ibverbx.Stats
	transport  [2]TransportCounts
}

func (c *pair) count() (n counted) {
	for i, e := range c.ends {
		switch {
		case e == nil:
		case e.QueuePair() != nil:
			n.queuePairs[i] = e.QueuePair().VQP().Stats()
		default:
			n.transport[i] = counts(e.Stats())
		}
	}
	return n
}

// TransportStats is what package transport, under a layer, counted at both ends in a cell.
type TransportStats struct {
	A TransportCounts `json:"a"`
	B TransportCounts `json:"b"`
}

// TransportCounts is what it counted at one end.
type TransportCounts struct {
	AMSent     uint64 `json:"am_sent"`
	AMBytes    uint64 `json:"am_bytes"` // sent, with their headers
	AMReceived uint64 `json:"am_received"`
	Puts       uint64 `json:"puts"`
	PutBytes   uint64 `json:"put_bytes"`
	Gets       uint64 `json:"gets"`
	GetBytes   uint64 `json:"get_bytes"`
	Atomics    uint64 `json:"atomics"`
	Control    uint64 `json:"control"`      // messages of the transport itself
	NoResource uint64 `json:"no_resource"`  // calls that met transport.ErrNoResource
	Stale      uint64 `json:"stale_events"` // completions that belonged to nothing
}

func counts(s transport.Stats) TransportCounts {
	return TransportCounts{
		AMSent: s.AMSent, AMBytes: s.AMBytes, AMReceived: s.AMReceived, Puts: s.Puts, PutBytes: s.PutBytes,
		Gets: s.Gets, GetBytes: s.GetBytes,
		Atomics: s.Atomics, Control: s.Control, NoResource: s.NoResource, Stale: s.StaleEvents,
	}
}

// since subtracts an earlier count from a later one.
func (c TransportCounts) since(before *TransportCounts) TransportCounts {
	c.AMSent -= before.AMSent
	c.AMBytes -= before.AMBytes
	c.AMReceived -= before.AMReceived
	c.Puts -= before.Puts
	c.PutBytes -= before.PutBytes
	c.Gets -= before.Gets
	c.GetBytes -= before.GetBytes
	c.Atomics -= before.Atomics
	c.Control -= before.Control
	c.NoResource -= before.NoResource
	c.Stale -= before.Stale
	return c
}

// countSince fills in what the ends here have counted since the cell began.
func (c *cell) countSince() {
	now := c.pair.count()
	switch {
	case !c.p.Layered():
		for i, s := range [...]*QPStats{&c.result.Stats.A, &c.result.Stats.B} {
			if c.pair.ends[i] != nil {
				*s = QPStats{c.pair.scheme, since(now.queuePairs[i], c.before.queuePairs[i])}
			}
		}
	case c.result.Err == nil:
		if c.result.Transport == nil {
			c.result.Transport = &TransportStats{}
		}
		for i, s := range [...]*TransportCounts{&c.result.Transport.A, &c.result.Transport.B} {
			if c.pair.ends[i] != nil {
				*s = now.transport[i].since(&c.before.transport[i])
			}
		}
	}
}
