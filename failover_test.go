package ibverbx

import (
	"errors"
	"testing"
	"time"

	"ibverbx/internal/failover"
	"ibverbx/internal/wrid"
	"ibverbx/verbs"
	"ibverbx/verbs/soft"
	"ibverbx/verbs/verbstest"
)

// The fragments of a request that are outstanding are never so far apart that their ids are the
// same: what a rail has lost is found by them.
func TestFragmentsOutstandingAreTellable(t *testing.T) {
	r := sendReq{opcode: verbs.OpRDMAWrite, length: 1 << 40, localKeys: &noKeys, remoteKeys: &noKeys,
		sendProgress: sendProgress{offset: 1 << 30, fragments: fragmentSpan, left: 1}}
	rl := &rail{railConn: railConn{limit: 1}}
	rl.log.Fit(1)
	s := sender{logs: true, batches: &batchPool{width: 1}, rails: railSet{data: []*rail{rl}, free: 1,
		maxFragment: 64}}
	if s.dispatchFragments(1, &r); r.fragments != fragmentSpan {
		t.Errorf("%d fragments are out while an earlier one is", r.fragments-fragmentSpan)
	}
	r.left = 0
	if s.dispatchFragments(1, &r); r.fragments != fragmentSpan+1 {
		t.Errorf("%d fragments are out, want 1", r.fragments-fragmentSpan)
	}
	for _, back := range []uint64{0, 1, fragmentSpan, 2*fragmentSpan - 1} {
		for _, fragments := range []uint32{2 * fragmentSpan, 3*fragmentSpan + 5, 1<<31 + 7} {
			r.fragments = fragments
			if at := uint64(fragments) - 1 - back; r.index(uint32(at&wrid.AuxMask)) != at {
				t.Errorf("fragment %d of %d is taken for %d", at, fragments, r.index(uint32(at&wrid.AuxMask)))
			}
		}
	}
}

// deepQP claims to hold more than the software NICs do.
type deepQP struct{ verbs.QP }

func (q deepQP) Cap() verbs.QPCap {
	limits := q.QP.Cap()
	limits.MaxSendWR, limits.MaxRecvWR = 1<<20, 1<<20
	return limits
}

// However deep queues are, what a peer may have received and lost with its CQ stays small enough
// for the counts of 16 bits that the ends exchange.
func TestFailoverBoundsTheQueues(t *testing.T) {
	fabric, err := soft.New(soft.Config{Devices: 2})
	if err != nil {
		t.Fatal(err)
	}
	defer fabric.Close()
	nics, err := fabric.Devices()
	if err != nil {
		t.Fatal(err)
	}
	for _, scheme := range []Scheme{DQPLB, Spray} {
		q, err := Open(nics, Config{Scheme: scheme, QPsPerDevice: 1})
		if err != nil {
			t.Fatal(err)
		}
		deep := q.cfg
		deep.MaxMsgCntPerQP = 1 << 20
		qps := q.QPs()
		rails := newRailSet(&deep, []verbs.QP{deepQP{qps[0]}, deepQP{qps[1]}}, deepQP{qps[2]}, nil)
		rails.assignRoles(scheme, 1<<20, true)
		for _, rl := range rails.all {
			if most := failover.MaxOutstanding; rl.slots > most || rl.recvLimit > most || rl.slots < most/2 {
				t.Errorf("%v: rail %d has %d slots and %d receives, want %d at most", scheme, rl.index(),
					rl.slots, rl.recvLimit, most)
			}
		}
		if err := q.Close(); err != nil {
			t.Error(err)
		}
	}
}

// A queue pair for SENDs that is connected anew, and not in service, dies with its CQ. The receives
// of the user are on the one in service by then: they are posted once.
func TestReceivesStayWhereARailInWaitingDies(t *testing.T) {
	for _, scheme := range []Scheme{DQPLB, Spray} {
		t.Run(scheme.String(), func(t *testing.T) {
			receivesStay(t, Config{Scheme: scheme, Failover: true, Failback: time.Microsecond,
				QPsPerDevice: 1})
		})
	}
}

// twoEnds is a connection with failover over four NICs of software, and its memory.
type twoEnds struct {
	leader, follower *VirtualQP
	from, into       *MR
}

func newTwoEnds(t *testing.T, cfg Config) *twoEnds {
	fabric, err := soft.New(soft.Config{Devices: 4})
	if err != nil {
		t.Fatal(err)
	}
	nics, err := fabric.Devices()
	if err != nil {
		t.Fatal(err)
	}
	leader, errA := Open(nics[:2], cfg)
	follower, errB := Open(nics[2:], cfg)
	if err := errors.Join(errA, errB); err != nil {
		t.Fatal(err)
	}
	cardA, errA := leader.Card()
	cardB, errB := follower.Card()
	if err := errors.Join(errA, errB, leader.Connect(cardB), follower.Connect(cardA)); err != nil {
		t.Fatal(err)
	}
	if follower.failover.protocol.Leader() {
		leader, follower = follower, leader
	}
	from, errA := leader.Domain().Register(make([]byte, 64), verbs.AccessAll)
	into, errB := follower.Domain().Register(make([]byte, 64), verbs.AccessAll)
	if err := errors.Join(errA, errB); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := errors.Join(leader.Close(), follower.Close(), from.Close(), into.Close()); err != nil {
			t.Error(err)
		}
	})
	return &twoEnds{leader, follower, from, into}
}

// sends has the leader post a request, and both poll until it is complete, and so many receives.
func (e *twoEnds) sends(t *testing.T, wr SendWR, receives int) {
	t.Helper()
	wr.Flags, wr.Local = verbs.SendSignaled, e.from.Slice(0, 8)
	if _, err := e.leader.PostSend(wr); err != nil {
		t.Fatal(err)
	}
	sent := 0
	for deadline := time.Now().Add(10 * time.Second); sent == 0 || receives != 0; {
		for _, wc := range pollNow(t, e.leader.CQ()) {
			if sent++; wc.Status != verbs.StatusSuccess {
				t.Fatalf("%+v: %v", wc, e.leader.Err())
			}
		}
		receives -= len(pollNow(t, e.follower.CQ()))
		if time.Now().After(deadline) {
			t.Fatalf("%v is not complete: %+v", wr.Opcode, e.leader.Stats())
		}
	}
}

// Each end loses another one of the two queue pairs of a role, of which nothing says so because
// nobody uses them. Data goes on without; what needs them waits until one has come back.
func TestIdleQueuePairsLostAtBothEnds(t *testing.T) {
	for _, scheme := range []Scheme{DQPLB, Spray} {
		for serving := range 2 { // at the leader, or at the follower
			idleLost(t, serving, Config{Scheme: scheme, Failover: true, QPsPerDevice: 1,
				Failback: time.Microsecond})
			idleLost(t, serving, Config{Scheme: scheme, Failover: true, QPsPerDevice: 1, Failback: time.Hour})
		}
	}
}

func idleLost(t *testing.T, serving int, cfg Config) {
	e := newTwoEnds(t, cfg)
	for i, q := range []*VirtualQP{e.leader, e.follower} {
		rl := q.send.rails.services[failover.Sends][(i+serving)%2]
		if err := rl.qp.Modify(&verbs.QPAttr{State: verbs.StateErr}, verbs.QPAttrState); err != nil {
			t.Fatal(err)
		}
		q.failover.suspectIdle()
		q.cq.touch(q)
	}
	write := SendWR{Opcode: verbs.OpRDMAWrite, Remote: e.into.Remote().At(0)}
	for range 10 {
		e.sends(t, write, 0)
	}
	if cfg.Failback == time.Hour {
		if x := e.leader.failover; x.railsLost != 2 || !x.protocol.Lacks(failover.Sends) {
			t.Errorf("%v, %d: %d rails are lost, want 2", cfg.Scheme, serving, x.railsLost)
		}
		return
	}
	if _, err := e.follower.PostRecv(RecvWR{Local: e.into.Slice(0, 32)}); err != nil {
		t.Fatal(err)
	}
	e.sends(t, SendWR{Opcode: verbs.OpSend}, 1)
	e.sends(t, write, 0)
}

func receivesStay(t *testing.T, cfg Config) {
	e := newTwoEnds(t, cfg)
	leader, follower, from, into := e.leader, e.follower, e.from, e.into
	for id := range uint64(2) {
		if _, err := follower.PostRecv(RecvWR{ID: id, Local: into.Slice(32*id, 32)}); err != nil {
			t.Fatal(err)
		}
	}
	old := follower.send.rails.sendRail
	if err := old.qp.Modify(&verbs.QPAttr{State: verbs.StateErr}, verbs.QPAttrState); err != nil {
		t.Fatal(err)
	}
	for deadline := time.Now().Add(10 * time.Second); old.back.state.Stage() != failover.StageReady; {
		wr := SendWR{Opcode: verbs.OpRDMAWrite, Flags: verbs.SendSignaled, Local: from.Slice(0, 8),
			Remote: into.Remote().At(0)}
		if _, err := leader.PostSend(wr); err != nil {
			t.Fatal(err)
		}
		pollNow(t, leader.CQ())
		pollNow(t, follower.CQ())
		if time.Now().After(deadline) {
			t.Fatalf("the queue pair is not connected anew: %+v", follower.Stats())
		}
	}
	next := follower.send.rails.sendRail
	had := next.recvs
	if next == old || had < 2 {
		t.Fatalf("rail %d serves, after %d, and has %d receives", next.index(), old.index(), had)
	}
	follower.CQ().FailDevice(verbs.DeviceID(old.device), verbs.ErrOverrun)
	follower.CQ().ProcessCompletions(nil, verbs.DeviceID(next.device))
	if next.recvs != had {
		t.Errorf("%d receives are posted where %d were", next.recvs, had)
	}
	for id := range uint64(2) {
		if _, err := leader.PostSend(SendWR{ID: id, Opcode: verbs.OpSend, Flags: verbs.SendSignaled,
			Local: from.Slice(0, 16)}); err != nil {
			t.Fatal(err)
		}
	}
	received := 0
	for deadline := time.Now().Add(10 * time.Second); received < 2; {
		pollNow(t, leader.CQ())
		for _, wc := range pollNow(t, follower.CQ()) {
			if wc.ID != uint64(received) || wc.Status != verbs.StatusSuccess {
				t.Errorf("%+v", wc)
			}
			received++
		}
		if time.Now().After(deadline) {
			t.Fatalf("%d messages have arrived: %+v", received, follower.Stats())
		}
	}
}

// A queue pair that has no room for a receive is asked again once in each poll, also while a rail
// is down, and each refusal counts once.
func TestRefusedReceiveIsTriedOnceAPoll(t *testing.T) {
	q := newRecorded(t, 2, 1, Config{Scheme: DQPLB, Failover: true})
	lost, sends := q.send.rails.data[0], q.send.rails.sendRail
	q.failover.loseRail(lost, verbs.StatusRetryExcErr)
	q.cq.touch(q.VirtualQP)
	for range 10 {
		pollNow(t, q.CQ())
	}
	if lost.back.state.Stage() != failover.StageFlushed {
		t.Fatalf("the lost rail is at stage %d, want Flushed", lost.back.state.Stage())
	}
	q.notify.refuseRecv = verbs.ErrQueueFull
	into := Segment{Addr: 1 << 40, Length: 64, Keys: NewKeys(map[verbs.DeviceID]uint32{0: 1, 1: 2})}
	if _, err := q.PostRecv(RecvWR{ID: 1, Local: into}); err != nil {
		t.Fatal(err)
	}
	before := sends.stats.refused
	pollNow(t, q.CQ())
	if got := sends.stats.refused - before; got != 1 {
		t.Errorf("a poll counts %d refusals, want 1", got)
	}
	q.notify.refuseRecv = nil
	if pollNow(t, q.CQ()); q.recv.nextMessage != q.recv.win.Tail {
		t.Error("the receive is not posted once there is room")
	}
}

// An event of the NIC is enough to find out that a queue pair has failed which holds nothing, and
// so has no completion that says it. The event itself proves nothing.
func TestEventsFindSparesThatFailed(t *testing.T) {
	for _, tt := range []struct {
		event verbs.EventType
		other bool // the event is of another queue pair
		fails bool // the spare has failed
		lost  bool
	}{
		{event: verbs.EventQPFatal, fails: true, lost: true},
		{event: verbs.EventQPReqErr, fails: true, lost: true},
		{event: verbs.EventQPAccessErr, fails: true, lost: true},
		{event: verbs.EventDeviceFatal, other: true, fails: true, lost: true},
		{event: verbs.EventQPFatal},
		{event: verbs.EventDeviceFatal},
		{event: verbs.EventQPFatal, other: true, fails: true},
		{event: verbs.EventCommEst, fails: true},
	} {
		null := verbstest.NewNull(2)
		nics := []verbs.Device{null.Device(0), null.Device(1)}
		q, err := Open(nics, Config{QPsPerDevice: 1, Failover: true})
		if err != nil {
			t.Fatal(err)
		}
		connectElsewhere(t, q)
		spare, num := q.send.rails.spares[0], uint32(1<<24-1)
		if tt.fails {
			if err := spare.qp.Modify(&verbs.QPAttr{State: verbs.StateErr}, verbs.QPAttrState); err != nil {
				t.Fatal(err)
			}
		}
		if pollNow(t, q.CQ()); spare.down {
			t.Errorf("%+v: it is out of service before the event", tt)
		}
		if !tt.other {
			num = spare.num
		}
		null.Publish(int(spare.device), verbs.Event{Type: tt.event, QPNum: num})
		if pollNow(t, q.CQ()); spare.down != tt.lost || q.Stats().RailsLost != 0 != tt.lost {
			t.Errorf("%+v: out of service: %v, %d rails lost", tt, spare.down, q.Stats().RailsLost)
		}
		if err := q.Close(); err != nil {
			t.Error(err)
		}
	}
}

// The peer's NIC has refused a request, and says so when its rail is lost already: it is an error,
// and not repeated on another rail, nor taken for carried out.
func TestRefusedAfterItsRailIsLost(t *testing.T) {
	q := newRecorded(t, 2, 1, Config{Scheme: DQPLB, Failover: true})
	if _, err := q.PostSend(rawWrite(1, 8)); err != nil {
		t.Fatal(err)
	}
	lost := q.send.rails.data[0]
	q.failover.loseRail(lost, verbs.StatusRetryExcErr)
	refusal := verbs.WC{ID: q.qps[0].posts[0].ID, QPNum: lost.num, Status: verbs.StatusRemAccessErr}
	got := q.CQ().ProcessCompletions(nil, verbs.DeviceID(lost.device), refusal)
	if len(got) != 1 || got[0].ID != 1 || got[0].Status != verbs.StatusRemAccessErr ||
		!errors.Is(q.Err(), verbs.StatusRemAccessErr) {
		t.Errorf("%+v, %v", got, q.Err())
	}
}
