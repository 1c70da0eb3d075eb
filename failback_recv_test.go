package ibverbx

import (
	"errors"
	"testing"
	"time"

	"ibverbx/internal/failover"
	"ibverbx/verbs"
	"ibverbx/verbs/soft"
)

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

func receivesStay(t *testing.T, cfg Config) {
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
	for id := range uint64(2) {
		if _, err := follower.PostRecv(RecvWR{ID: id, Local: into.Slice(32*id, 32)}); err != nil {
			t.Fatal(err)
		}
	}
	old := follower.send.rails.sendRail
	if err := old.qp.Modify(&verbs.QPAttr{State: verbs.StateErr}, verbs.QPAttrState); err != nil {
		t.Fatal(err)
	}
	for deadline := time.Now().Add(10 * time.Second); old.state.Stage() != failover.Ready; {
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
	if err := errors.Join(leader.Close(), follower.Close(), from.Close(), into.Close()); err != nil {
		t.Error(err)
	}
}
