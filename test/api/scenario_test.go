// Package api_test tests virtual queue pairs through the public API, over software NICs, stepped
// ones, NICs whose calls fail, and the null provider: what is refused and with which words, what is
// reported when something fails, what waits, and how an end closes. What every provider can play is
// in test/vqp.
package api_test

import (
	"testing"

	"ibverbx"
	"ibverbx/internal/vqptest"
	"ibverbx/verbs"
	"ibverbx/verbs/soft"
)

// The scenarios of the design on a stepped fabric: each test says which physical work request
// completes next, and checks what is reported then.

const kb = 1000

func TestScenarioMultiFragmentMessage(t *testing.T) {
	l := vqptest.SteppedLink(t, 3, ibverbx.Config{FragmentSize: 100 * kb})
	l.A.Send(t, l.A.Write(verbs.OpRDMAWrite, 42, 0, 300*kb))
	if s := l.A.Stats(); s.SendsWaiting != 0 ||
		s.Rails[0].Fragments+s.Rails[1].Fragments+s.Rails[2].Fragments != 3 {
		t.Fatalf("want three fragments, all posted: %+v", s)
	}
	for _, rail := range []int{1, 2} {
		l.Complete(l.A, rail)
		l.Reports(l.A)
	}
	l.Complete(l.A, 0)
	wcs := l.A.Poll(t)
	if len(wcs) != 1 || wcs[0].ID != 42 || wcs[0].ByteLen != 300*kb || wcs[0].Status != verbs.StatusSuccess ||
		wcs[0].QPNum != l.A.Num() {
		t.Fatal(vqptest.FormatWCs(wcs))
	}
}

func TestScenarioOutOfOrderCompletionsWithInOrderReporting(t *testing.T) {
	l := vqptest.SteppedLink(t, 2, ibverbx.Config{FragmentSize: 100 * kb})
	l.A.Send(t, l.A.Write(verbs.OpRDMAWrite, 100, 0, 200*kb)) // A: rails 0 and 1
	l.A.Send(t, l.A.Write(verbs.OpRDMAWrite, 200, 0, 80*kb))  // B: rail 0, behind A's first fragment
	l.Arrive(l.A, 0)
	l.Arrive(l.A, 0)
	l.Acknowledge(l.A, 0)
	l.Acknowledge(l.A, 0)
	l.Reveal(l.A, 0, 1) // B's completion comes first, although it is behind A's on one queue pair
	l.Reports(l.A)
	l.Reveal(l.A, 0, 0)
	l.Reports(l.A)
	l.Complete(l.A, 1)
	l.Reports(l.A, 100, 200)
}

func TestScenarioSprayModeWithNotifyTracking(t *testing.T) {
	l := vqptest.SteppedLink(t, 2, ibverbx.Config{Scheme: ibverbx.Spray, FragmentSize: 100 * kb})
	const notify = 2
	l.B.ExpectRecv(t, 9)
	l.A.Send(t, l.A.Write(verbs.OpRDMAWriteWithImm, 42, 0, 200*kb))
	l.Complete(l.A, 0)
	l.Reports(l.A)
	if n := l.A.Stats().Rails[notify].Notifications; n != 0 {
		t.Fatal("the notification went out before the data was acknowledged")
	}
	l.Complete(l.A, 1)
	l.Reports(l.A)
	if n := l.A.Stats().Rails[notify].Notifications; n != 1 {
		t.Fatalf("%d notifications, want 1", n)
	}
	l.Reports(l.B)
	l.Complete(l.A, notify)
	l.Reports(l.A, 42)
	wcs := l.B.Poll(t)
	if len(wcs) != 1 || wcs[0].ID != 9 || wcs[0].Imm != 42 || wcs[0].Opcode != verbs.WCRecvRDMAWithImm {
		t.Fatal(vqptest.FormatWCs(wcs))
	}
}

func TestScenarioSprayNotifyWithBackpressure(t *testing.T) {
	l := vqptest.SteppedLink(t, 2, ibverbx.Config{Scheme: ibverbx.Spray, FragmentSize: 100 * kb,
		MaxMsgCntPerQP: 1})
	const notify = 2
	for id := range uint64(2) {
		l.B.ExpectRecv(t, 100+id)
	}
	l.A.Send(t, l.A.Write(verbs.OpRDMAWriteWithImm, 1, 0, kb)) // A: rail 0
	l.A.Send(t, l.A.Write(verbs.OpRDMAWriteWithImm, 2, 0, kb)) // B: rail 1
	l.Complete(l.A, 1)
	l.Complete(l.A, 0)
	l.Reports(l.A)
	if s := l.A.Stats().Rails[notify]; s.Notifications != 1 || s.Outstanding != 1 {
		t.Fatalf("the notify QP holds one notification, got %+v", s)
	}
	l.Complete(l.A, notify)
	l.Reports(l.A, 1)
	l.Reports(l.B, 100)
	l.Complete(l.A, notify)
	l.Reports(l.A, 2)
	l.Reports(l.B, 101)
}

func TestScenarioSprayNotificationsArePipelined(t *testing.T) {
	l := vqptest.SteppedLink(t, 2, ibverbx.Config{Scheme: ibverbx.Spray, FragmentSize: 100 * kb})
	const notify = 2
	for id := range uint64(4) {
		l.B.ExpectRecv(t, 100+id)
		l.A.Send(t, l.A.Write(verbs.OpRDMAWriteWithImm, id, 0, kb))
	}
	for rail := range 2 {
		l.Complete(l.A, rail)
		l.Complete(l.A, rail)
	}
	l.Reports(l.A)
	if s := l.A.Stats().Rails[notify]; s.Outstanding != 4 {
		t.Fatalf("four notifications are on the way at a time, got %d", s.Outstanding)
	}
	for range 4 {
		l.Complete(l.A, notify)
	}
	l.Reports(l.A, 0, 1, 2, 3)
	l.Reports(l.B, 100, 101, 102, 103)
}

func TestScenarioDQPLBRecvTracking(t *testing.T) {
	l := vqptest.SteppedLink(t, 4, ibverbx.Config{})
	for id := range uint64(3) {
		l.B.ExpectRecv(t, 100+id)
		l.A.Send(t, l.A.Write(verbs.OpRDMAWriteWithImm, id, 0, 8)) // message i on rail i
	}
	l.Arrive(l.A, 0)
	l.Reports(l.B, 100)
	l.Arrive(l.A, 2) // message 1 is missing; message 2's immediate follows behind it
	l.Arrive(l.A, 2)
	if l.Reports(l.B); l.B.Stats().OutOfOrder != 1 {
		t.Fatal("message 2 is not kept")
	}
	l.Arrive(l.A, 1) // fills the gap, but is complete only with its immediate
	l.Reports(l.B)
	l.Arrive(l.A, 1)
	l.Reports(l.B, 101, 102)
}

func TestScenarioSingleQPVersusMultiQPVirtualQP(t *testing.T) {
	l := vqptest.NewLink(t, vqptest.LinkConfig{QP: ibverbx.Config{QPsPerDevice: 2, FragmentSize: 1000},
		CQDepth: 4096,
		Fabric:  soft.Config{Stepped: true}})
	// A second virtual queue pair, of one QP, on the same virtual CQs.
	a1, err := l.A.Domain().NewQP(l.A.CQ(), ibverbx.Config{QPsPerDevice: 1})
	if err != nil {
		t.Fatal(err)
	}
	b1, err := l.B.Domain().NewQP(l.B.CQ(), ibverbx.Config{QPsPerDevice: 1})
	if err != nil {
		t.Fatal(err)
	}
	vqptest.ConnectBoth(t, a1, b1)
	if l.A.DataRails() != 2 || a1.DataRails() != 1 || a1.Num() == l.A.Num() {
		t.Fatal("not one of each")
	}
	l.A.Send(t, l.A.Write(verbs.OpRDMAWrite, 1, 0, 2000))
	wr := l.A.Write(verbs.OpRDMAWrite, 999, 4000, 8)
	if _, err := a1.PostSend(wr); err != nil {
		t.Fatal(err)
	}
	single := a1.Stats().Rails[0].QPNum
	completeQP := func(num uint32) {
		for _, kind := range []soft.ActionKind{soft.Execute, soft.Acknowledge, soft.Reveal} {
			if !l.Do(func(a soft.Action) bool { return a.Kind == kind && a.QPNum == num && a.Device == 0 }) {
				t.Fatalf("no %v for qp %d", kind, num)
			}
		}
	}
	completeQP(l.A.RailQPs[0]) // an intermediate fragment
	completeQP(single)         // passes through
	completeQP(l.A.RailQPs[1]) // the last fragment
	wcs := l.A.Poll(t)
	if len(wcs) != 2 || wcs[0].ID != 999 || wcs[0].QPNum != a1.Num() || wcs[1].ID != 1 ||
		wcs[1].QPNum != l.A.Num() {
		t.Fatal(vqptest.FormatWCs(wcs))
	}
}

func TestScenarioInOrderCompletionGuarantee(t *testing.T) {
	l := vqptest.SteppedLink(t, 6, ibverbx.Config{FragmentSize: 1000})
	for id := range uint64(3) { // A, B, C: two fragments each, on rails of their own
		l.A.Send(t, l.A.Write(verbs.OpRDMAWrite, id, 0, 2000))
	}
	l.Complete(l.A, 2) // B's first
	l.Reports(l.A)
	l.Complete(l.A, 0) // A's first
	l.Complete(l.A, 4) // C, whole
	l.Complete(l.A, 5)
	l.Reports(l.A)
	l.Complete(l.A, 1) // A's last
	l.Reports(l.A, 0)
	l.Complete(l.A, 3) // B's last: B and C together
	l.Reports(l.A, 1, 2)
}

func TestScenarioDQPLBMessagesArriveOutOfOrder(t *testing.T) {
	l := vqptest.SteppedLink(t, 3, ibverbx.Config{})
	for id := range uint64(3) {
		l.B.ExpectRecv(t, 100+id)
		wr := l.A.Write(verbs.OpRDMAWriteWithImm, id, 0, 8)
		wr.Imm = 0 // nothing but the number needs to travel
		l.A.Send(t, wr)
	}
	l.Arrive(l.A, 0)
	l.Reports(l.B, 100)
	l.Arrive(l.A, 2)
	l.Reports(l.B)
	l.Arrive(l.A, 1)
	l.Reports(l.B, 101, 102)
}

// fragments lists how many fragments each rail of an end was given.
func fragments(e *vqptest.End) (list []uint64) {
	for _, r := range e.Stats().Rails {
		list = append(list, r.Fragments)
	}
	return list
}

// Waiting requests go first to the rail that freed a slot last, then round robin over the others.
func TestFreedRailIsServedFirst(t *testing.T) {
	l := vqptest.SteppedLink(t, 2, ibverbx.Config{FragmentSize: 1000, MaxMsgCntPerQP: 2})
	for id := range uint64(5) {
		// two on each rail; one more waits, next in turn for rail 0
		l.A.Send(t, l.A.Write(verbs.OpRDMAWrite, id, 0, 8))
	}
	l.Complete(l.A, 0)
	l.Complete(l.A, 1)
	// One CQ reports both completions; the slot on rail 1 is freed last.
	l.A.Pump(t)
	if got := fragments(l.A); got[0] != 2 || got[1] != 3 {
		t.Fatalf("fragments %v, want 2 and 3", got)
	}
}
