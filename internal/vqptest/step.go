package vqptest

import (
	"slices"
	"testing"

	"ibverbx"
	"ibverbx/verbs"
	"ibverbx/verbs/soft"
)

// SteppedLink makes a link with one NIC at each end, on which nothing happens by itself.
func SteppedLink(t *testing.T, qps int, cfg ibverbx.Config) *Link {
	t.Helper()
	cfg.QPsPerDevice = qps
	return NewLink(t, LinkConfig{QP: cfg, Fabric: soft.Config{Stepped: true, Scramble: true}})
}

// Do executes the first possible action that matches, and reports whether there was one.
func (l *Link) Do(match func(soft.Action) bool) bool {
	for _, a := range l.Fabric.Actions(nil) {
		if match(a) {
			return l.Fabric.Do(a)
		}
	}
	return false
}

// On matches an action of one kind on a rail of an end.
func On(e *End, rail int, kind soft.ActionKind) func(soft.Action) bool {
	return func(a soft.Action) bool {
		return a.Kind == kind && a.Device == e.NICs[rail%len(e.NICs)].ID() && a.QPNum == e.RailQPs[rail] &&
			!a.Recv
	}
}

// Arrive executes the oldest waiting work request of a sender's rail: its data is written, and the
// completion of a receive that it consumes becomes visible to the peer.
func (l *Link) Arrive(e *End, rail int) {
	l.TB.Helper()
	if !l.Do(On(e, rail, soft.Execute)) {
		l.TB.Fatalf("rail %d has nothing to execute: %v", rail, l.Fabric.Actions(nil))
	}
	for l.Do(func(a soft.Action) bool { return a.Kind == soft.Reveal && a.Recv }) {
	}
}

// Acknowledge completes the oldest executed work request of a rail. The completion stays hidden.
func (l *Link) Acknowledge(e *End, rail int) {
	l.TB.Helper()
	if !l.Do(On(e, rail, soft.Acknowledge)) {
		l.TB.Fatalf("rail %d has nothing to acknowledge: %v", rail, l.Fabric.Actions(nil))
	}
}

// Reveal makes a hidden send completion of a rail visible: the oldest if pos is 0.
func (l *Link) Reveal(e *End, rail, pos int) {
	l.TB.Helper()
	match := On(e, rail, soft.Reveal)
	if !l.Do(func(a soft.Action) bool { return match(a) && a.Index == pos }) {
		l.TB.Fatalf("rail %d has no hidden completion %d: %v", rail, pos, l.Fabric.Actions(nil))
	}
}

// Complete executes, acknowledges and reveals the oldest work request of a rail.
func (l *Link) Complete(e *End, rail int) {
	l.TB.Helper()
	l.Arrive(e, rail)
	l.Acknowledge(e, rail)
	l.Reveal(e, rail, 0)
}

// Reports checks that an end now reports exactly these IDs, all successful.
func (l *Link) Reports(e *End, want ...uint64) {
	l.TB.Helper()
	if got := IDs(l.TB, e.Poll(l.TB), verbs.StatusSuccess); !slices.Equal(got, append([]uint64{}, want...)) {
		l.TB.Fatalf("reported %v, want %v", got, want)
	}
}
