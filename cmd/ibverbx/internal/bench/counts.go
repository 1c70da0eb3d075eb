package bench

import "ibverbx/transport"

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

// since takes an earlier count off a later one.
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
