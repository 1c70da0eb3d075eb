package main

import (
	"fmt"
	"io"

	"ibverbx/cmd/ibverbx/internal/perftest"
	"ibverbx/cmd/ibverbx/internal/units"
)

// showPerftest writes a test with perftest for people.
func showPerftest(w io.Writer, r *perftest.Report, unit unit) error {
	t := printer{w: w}
	role := "server"
	if r.Client {
		role = "client"
	}
	t.printf("%s, %s of %s, which is perftest %s\n", r.Kind, role, r.Peer.Address, r.Peer.Version)
	t.printf("here: %s, GID %v; there: GID %v\n", r.NIC, r.GID, r.Peer.GID)
	how := fmt.Sprintf("up to %s outstanding on each", count(r.TxDepth, "message"))
	switch {
	case r.Kind == perftest.ReadLat:
		how = "from one message to the next"
	case r.Kind.Latency():
		how = "half of the time from one message to the next"
	}
	t.printf("%s, path MTU %d, %s, NOT verified\n\n", count(r.QPs, "queue pair"), r.PathMTU, how)
	if r.Kind.Latency() {
		t.printf("%9s %9s %10s %10s %10s %10s %10s\n", "size", "messages", "min µs", "median µs", "p99 µs",
			"p99.9 µs", "max µs")
	} else {
		t.printf("%9s %9s %12s %10s\n", "size", "messages", unit.name, "Mmsg/s")
	}
	for i := range r.Results {
		res := &r.Results[i]
		t.printf("%9v %9d", units.Size(res.Size), res.Messages)
		if l := res.Latency; l != nil {
			for _, ns := range []int64{l.Min, l.P50, l.P99, l.P999, l.Max} {
				t.printf(" %10.2f", float64(ns)/1e3)
			}
		} else {
			t.printf(" %12s %10s", digits(unit.of(res.GBPerSecond)), digits(res.MsgPerSecond/1e6))
		}
		if res.Seconds == 0 {
			t.printf("  as the client says")
		}
		t.printf("\n")
	}
	return t.err
}
