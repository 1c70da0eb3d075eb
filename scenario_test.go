package ibverbx_test

import (
	"slices"
	"testing"

	"ibverbx"
	"ibverbx/verbs"
	"ibverbx/verbs/soft"
)

// The scenarios of the design on a stepped fabric: each test says which physical work request
// completes next, and checks what is reported then.

// steppedLink is a link on which nothing happens by itself.
func steppedLink(t *testing.T, qps int, cfg ibverbx.Config) *link {
	t.Helper()
	cfg.QPsPerDevice = qps
	return newLink(t, linkConfig{qp: cfg, fabric: soft.Config{Stepped: true, Scramble: true}})
}

// do executes the first possible action that matches, and reports whether there was one.
func (l *link) do(match func(soft.Action) bool) bool {
	for _, a := range l.fabric.Actions(nil) {
		if match(a) {
			return l.fabric.Do(a)
		}
	}
	return false
}

// on matches an action of one kind on a rail of an end.
func on(e *end, rail int, kind soft.ActionKind) func(soft.Action) bool {
	return func(a soft.Action) bool {
		return a.Kind == kind && a.Device == e.nics[rail%len(e.nics)].ID() && a.QPNum == e.railQP[rail] &&
			!a.Recv
	}
}

// arrive executes the oldest waiting work request of a sender's rail: its data is written, and the
// completion of a receive that it consumes becomes visible to the peer.
func (l *link) arrive(e *end, rail int) {
	l.tb.Helper()
	if !l.do(on(e, rail, soft.Execute)) {
		l.tb.Fatalf("rail %d has nothing to execute: %v", rail, l.fabric.Actions(nil))
	}
	for l.do(func(a soft.Action) bool { return a.Kind == soft.Reveal && a.Recv }) {
	}
}

// acknowledge completes the oldest executed work request of a rail. The completion stays hidden.
func (l *link) acknowledge(e *end, rail int) {
	l.tb.Helper()
	if !l.do(on(e, rail, soft.Acknowledge)) {
		l.tb.Fatalf("rail %d has nothing to acknowledge: %v", rail, l.fabric.Actions(nil))
	}
}

// reveal makes a hidden send completion of a rail visible; with pos 0 the oldest.
func (l *link) reveal(e *end, rail, pos int) {
	l.tb.Helper()
	match := on(e, rail, soft.Reveal)
	if !l.do(func(a soft.Action) bool { return match(a) && a.Index == pos }) {
		l.tb.Fatalf("rail %d has no hidden completion %d: %v", rail, pos, l.fabric.Actions(nil))
	}
}

// complete executes, acknowledges and reveals the oldest work request of a rail.
func (l *link) complete(e *end, rail int) {
	l.tb.Helper()
	l.arrive(e, rail)
	l.acknowledge(e, rail)
	l.reveal(e, rail, 0)
}

// reports checks that an end now reports exactly these IDs, all successful.
func (l *link) reports(e *end, want ...uint64) {
	l.tb.Helper()
	if got := ids(l.tb, e.poll(l.tb), verbs.StatusSuccess); !slices.Equal(got, append([]uint64{}, want...)) {
		l.tb.Fatalf("reported %v, want %v", got, want)
	}
}

const kb = 1000

func TestScenarioMultiFragmentMessage(t *testing.T) {
	l := steppedLink(t, 3, ibverbx.Config{FragmentSize: 100 * kb})
	l.a.send(t, l.a.write(verbs.OpRDMAWrite, 42, 0, 300*kb))
	if s := l.a.Stats(); s.SendsWaiting != 0 ||
		s.Rails[0].Fragments+s.Rails[1].Fragments+s.Rails[2].Fragments != 3 {
		t.Fatalf("want three fragments, all posted: %+v", s)
	}
	for _, rail := range []int{1, 2} {
		l.complete(l.a, rail)
		l.reports(l.a)
	}
	l.complete(l.a, 0)
	wcs := l.a.poll(t)
	if len(wcs) != 1 || wcs[0].ID != 42 || wcs[0].ByteLen != 300*kb || wcs[0].Status != verbs.StatusSuccess ||
		wcs[0].QPNum != l.a.Num() {
		t.Fatal(fmtWCs(wcs))
	}
}

func TestScenarioOutOfOrderCompletionsWithInOrderReporting(t *testing.T) {
	l := steppedLink(t, 2, ibverbx.Config{FragmentSize: 100 * kb})
	l.a.send(t, l.a.write(verbs.OpRDMAWrite, 100, 0, 200*kb)) // A: rails 0 and 1
	l.a.send(t, l.a.write(verbs.OpRDMAWrite, 200, 0, 80*kb))  // B: rail 0, behind A's first fragment
	l.arrive(l.a, 0)
	l.arrive(l.a, 0)
	l.acknowledge(l.a, 0)
	l.acknowledge(l.a, 0)
	l.reveal(l.a, 0, 1) // B's completion comes first, although it is behind A's on one queue pair
	l.reports(l.a)
	l.reveal(l.a, 0, 0)
	l.reports(l.a)
	l.complete(l.a, 1)
	l.reports(l.a, 100, 200)
}

func TestScenarioSprayModeWithNotifyTracking(t *testing.T) {
	l := steppedLink(t, 2, ibverbx.Config{Scheme: ibverbx.Spray, FragmentSize: 100 * kb})
	const notify = 2
	l.b.expectRecv(t, 9)
	l.a.send(t, l.a.write(verbs.OpRDMAWriteWithImm, 42, 0, 200*kb))
	l.complete(l.a, 0)
	l.reports(l.a)
	if n := l.a.Stats().Rails[notify].Notifications; n != 0 {
		t.Fatal("the notification went out before the data was acknowledged")
	}
	l.complete(l.a, 1)
	l.reports(l.a)
	if n := l.a.Stats().Rails[notify].Notifications; n != 1 {
		t.Fatalf("%d notifications, want 1", n)
	}
	l.reports(l.b)
	l.complete(l.a, notify)
	l.reports(l.a, 42)
	wcs := l.b.poll(t)
	if len(wcs) != 1 || wcs[0].ID != 9 || wcs[0].Imm != 42 || wcs[0].Opcode != verbs.WCRecvRDMAWithImm {
		t.Fatal(fmtWCs(wcs))
	}
}

func TestScenarioSprayNotifyWithBackpressure(t *testing.T) {
	l := steppedLink(t, 2, ibverbx.Config{Scheme: ibverbx.Spray, FragmentSize: 100 * kb, MaxMsgCntPerQP: 1})
	const notify = 2
	for id := range uint64(2) {
		l.b.expectRecv(t, 100+id)
	}
	l.a.send(t, l.a.write(verbs.OpRDMAWriteWithImm, 1, 0, kb)) // A: rail 0
	l.a.send(t, l.a.write(verbs.OpRDMAWriteWithImm, 2, 0, kb)) // B: rail 1
	l.complete(l.a, 1)
	l.complete(l.a, 0)
	l.reports(l.a)
	if s := l.a.Stats().Rails[notify]; s.Notifications != 1 || s.Outstanding != 1 {
		t.Fatalf("the notify QP holds one notification, got %+v", s)
	}
	l.complete(l.a, notify)
	l.reports(l.a, 1)
	l.reports(l.b, 100)
	l.complete(l.a, notify)
	l.reports(l.a, 2)
	l.reports(l.b, 101)
}

func TestScenarioSprayNotificationsArePipelined(t *testing.T) {
	l := steppedLink(t, 2, ibverbx.Config{Scheme: ibverbx.Spray, FragmentSize: 100 * kb})
	const notify = 2
	for id := range uint64(4) {
		l.b.expectRecv(t, 100+id)
		l.a.send(t, l.a.write(verbs.OpRDMAWriteWithImm, id, 0, kb))
	}
	for rail := range 2 {
		l.complete(l.a, rail)
		l.complete(l.a, rail)
	}
	l.reports(l.a)
	if s := l.a.Stats().Rails[notify]; s.Outstanding != 4 {
		t.Fatalf("four notifications are on the way at a time, got %d", s.Outstanding)
	}
	for range 4 {
		l.complete(l.a, notify)
	}
	l.reports(l.a, 0, 1, 2, 3)
	l.reports(l.b, 100, 101, 102, 103)
}

func TestScenarioDQPLBRecvTracking(t *testing.T) {
	l := steppedLink(t, 4, ibverbx.Config{})
	for id := range uint64(3) {
		l.b.expectRecv(t, 100+id)
		l.a.send(t, l.a.write(verbs.OpRDMAWriteWithImm, id, 0, 8)) // message i on rail i
	}
	l.arrive(l.a, 0)
	l.reports(l.b, 100)
	l.arrive(l.a, 2) // message 1 is missing; message 2's immediate follows behind it
	l.arrive(l.a, 2)
	if l.reports(l.b); l.b.Stats().OutOfOrder != 1 {
		t.Fatal("message 2 is not kept")
	}
	l.arrive(l.a, 1) // fills the gap, but is complete only with its immediate
	l.reports(l.b)
	l.arrive(l.a, 1)
	l.reports(l.b, 101, 102)
}

func TestScenarioSingleQPVersusMultiQPVirtualQP(t *testing.T) {
	l := newLink(t, linkConfig{qp: ibverbx.Config{QPsPerDevice: 2, FragmentSize: 1000}, cqDepth: 4096,
		fabric: soft.Config{Stepped: true}})
	// A second virtual queue pair, of one QP, on the same virtual CQs.
	a1, err := l.a.dom.NewQP(l.a.cq, ibverbx.Config{QPsPerDevice: 1})
	if err != nil {
		t.Fatal(err)
	}
	b1, err := l.b.dom.NewQP(l.b.cq, ibverbx.Config{QPsPerDevice: 1})
	if err != nil {
		t.Fatal(err)
	}
	connectBoth(t, a1, b1)
	if l.a.DataRails() != 2 || a1.DataRails() != 1 || a1.Num() == l.a.Num() {
		t.Fatal("not one of each")
	}
	l.a.send(t, l.a.write(verbs.OpRDMAWrite, 1, 0, 2000))
	wr := l.a.write(verbs.OpRDMAWrite, 999, 4000, 8)
	if _, err := a1.PostSend(wr); err != nil {
		t.Fatal(err)
	}
	single := a1.Stats().Rails[0].QPNum
	completeQP := func(num uint32) {
		for _, kind := range []soft.ActionKind{soft.Execute, soft.Acknowledge, soft.Reveal} {
			if !l.do(func(a soft.Action) bool { return a.Kind == kind && a.QPNum == num && a.Device == 0 }) {
				t.Fatalf("no %v for qp %d", kind, num)
			}
		}
	}
	completeQP(l.a.railQP[0]) // an intermediate fragment
	completeQP(single)        // passes through
	completeQP(l.a.railQP[1]) // the last fragment
	wcs := l.a.poll(t)
	if len(wcs) != 2 || wcs[0].ID != 999 || wcs[0].QPNum != a1.Num() || wcs[1].ID != 1 ||
		wcs[1].QPNum != l.a.Num() {
		t.Fatal(fmtWCs(wcs))
	}
}

func TestScenarioInOrderCompletionGuarantee(t *testing.T) {
	l := steppedLink(t, 6, ibverbx.Config{FragmentSize: 1000})
	for id := range uint64(3) { // A, B, C: two fragments each, on rails of their own
		l.a.send(t, l.a.write(verbs.OpRDMAWrite, id, 0, 2000))
	}
	l.complete(l.a, 2) // B's first
	l.reports(l.a)
	l.complete(l.a, 0) // A's first
	l.complete(l.a, 4) // C, whole
	l.complete(l.a, 5)
	l.reports(l.a)
	l.complete(l.a, 1) // A's last
	l.reports(l.a, 0)
	l.complete(l.a, 3) // B's last: B and C together
	l.reports(l.a, 1, 2)
}

func TestScenarioDQPLBMessagesArriveOutOfOrder(t *testing.T) {
	l := steppedLink(t, 3, ibverbx.Config{})
	for id := range uint64(3) {
		l.b.expectRecv(t, 100+id)
		wr := l.a.write(verbs.OpRDMAWriteWithImm, id, 0, 8)
		wr.Imm = 0 // nothing but the number needs to travel
		l.a.send(t, wr)
	}
	l.arrive(l.a, 0)
	l.reports(l.b, 100)
	l.arrive(l.a, 2)
	l.reports(l.b)
	l.arrive(l.a, 1)
	l.reports(l.b, 101, 102)
}

// connectBoth connects two virtual queue pairs by their cards.
func connectBoth(tb testing.TB, a, b *ibverbx.VirtualQP) {
	tb.Helper()
	cardA, err := a.Card()
	if err != nil {
		tb.Fatal(err)
	}
	cardB, err := b.Card()
	if err != nil {
		tb.Fatal(err)
	}
	if err := a.Connect(cardB); err != nil {
		tb.Fatal(err)
	}
	if err := b.Connect(cardA); err != nil {
		tb.Fatal(err)
	}
}
