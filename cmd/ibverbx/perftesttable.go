package main

import (
	"fmt"

	"ibverbx/cmd/ibverbx/internal/perftest"
	"ibverbx/cmd/ibverbx/internal/units"
)

// perftestTable writes a test with perftest for people.
type perftestTable struct {
	printer
	unit unit
}

// show writes what comes above the rows, or the row of the last result.
func (t *perftestTable) show(r *perftest.Report) {
	if n := len(r.Results); n > 0 {
		t.row(&r.Results[n-1], r.Bidirectional)
		return
	}
	role := "server"
	if r.Client {
		role = "client"
	}
	t.printf("%s, %s of %s, which is perftest %s\n", r.Kind, role, r.Peer.Address, r.Peer.Version)
	t.printf("here: %s, GID %v; there: GID %v\n", r.NIC, r.GID, r.Peer.GID)
	how := fmt.Sprintf("%s, path MTU %d", count(r.QPs, "queue pair"), r.PathMTU)
	switch {
	case r.Kind == perftest.ReadLat:
		how += ", from one message to the next"
	case r.Kind.Latency():
		how += ", half of the time from one message to the next"
	default:
		how += fmt.Sprintf(", up to %s outstanding on each", count(r.TxDepth, "message"))
	}
	if r.Bidirectional {
		how += ", both directions, sum"
	}
	t.printf("%s, NOT verified\n\n", how)
	if r.Kind.Latency() {
		t.printf("%9s %9s %10s %10s %10s %10s %10s\n", "size", "messages", "min µs", "median µs", "p99 µs",
			"p99.9 µs", "max µs")
		return
	}
	t.printf("%9s %9s %12s %10s\n", "size", "messages", t.unit.name, "Mmsg/s")
}

// row writes the figures of a size.
func (t *perftestTable) row(r *perftest.Result, bidirectional bool) {
	t.printf("%9v %9d", units.Size(r.Size), r.Messages)
	if l := r.Latency; l != nil {
		for _, ns := range []int64{l.Min, l.P50, l.P99, l.P999, l.Max} {
			t.printf(" %10.2f", float64(ns)/1e3)
		}
		t.printf("\n")
		return
	}
	t.printf(" %12s %10s", digits(t.unit.of(r.GBPerSecond)), digits(r.MsgPerSecond/1e6))
	switch {
	case r.Seconds == 0:
		t.printf("  as the client says")
	case bidirectional:
		t.printf("  of it the peer's %s", digits(t.unit.of(r.FromPeer)))
	}
	t.printf("\n")
}
