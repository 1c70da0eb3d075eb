package failover

import (
	"errors"
	"slices"
	"strings"
	"testing"
	"time"

	"ibverbx/internal/wrid"
	"ibverbx/verbs"
)

// The rules that worlds of two ends seldom meet, one by one.

var start = time.Unix(1_000_000, 0)

// twoRails is the leader of a connection with two data rails, and two for SENDs.
func twoRails() *Protocol {
	p := New([]Role{Data, Data, Sends, Sends})
	p.Begin(Config{Leader: true, Failback: time.Second, Timeout: 10 * time.Second,
		Serving: [Roles]int{-1, 2, -1}})
	return p
}

// settle loses a rail with nothing outstanding, at both ends.
func settle(t *testing.T, p *Protocol, r *Rail) {
	t.Helper()
	p.Lose(r, start, errors.New("test"), nil, 0)
	p.Flushed(r, false)
	actions, err := p.HandleControl(p.rails[1], control{controlDown, r.index, r.epoch, 0}.bits(), false)
	if err != nil || len(actions) != 1 || actions[0].Kind != DoSettle {
		t.Fatal(actions, err)
	}
	if _, _, err := p.Settle(r, nil); err != nil {
		t.Fatal(err)
	}
}

// send empties the queues of controls, as if all were posted and acknowledged.
func send(p *Protocol) {
	for _, r := range p.rails {
		r.queue, r.controls = nil, 0
	}
}

// The fault of a queue pair, a NIC or a path loses the rail; that of a request does not.
func TestWhichStatusLosesARail(t *testing.T) {
	loses := []verbs.Status{verbs.StatusRetryExcErr, verbs.StatusWRFlushErr, verbs.StatusFatalErr,
		verbs.StatusRespTimeoutErr, verbs.StatusLocQPOpErr}
	for s := verbs.Status(0); s < 32; s++ {
		if got := LosesRail(s); got != slices.Contains(loses, s) {
			t.Errorf("%v loses the rail: %v", s, got)
		}
	}
}

// A rail can be lost where another one of its role is live, or ready to become live at once.
func TestWhoStandsIn(t *testing.T) {
	for stage, can := range map[Stage]bool{StageLive: true, StageDying: false, StageFlushed: false,
		StageSettled: false, StageReady: true, StageProbing: false} {
		p := twoRails()
		p.rails[1].stage = stage
		if got := p.CanLose(p.rails[0]); got != can {
			t.Errorf("the other rail is in stage %d: the rail can be lost: %v", stage, got)
		}
	}
}

// The pause before a rail is asked for doubles up to 64 times, and is short again once it has
// proved itself. Where none is to come back, or a control is outstanding, none is asked for.
func TestPauses(t *testing.T) {
	p := twoRails()
	r := p.rails[0]
	settle(t, p, r)
	if p.MayAsk() {
		t.Error("the leader may ask while a control is outstanding")
	}
	send(p)
	if !p.MayAsk() {
		t.Fatal("the leader may not ask")
	}
	now := start
	if due, at := p.Due(r, now); due || at != now.Add(time.Second) {
		t.Errorf("due %v at %v", due, at)
	}
	for _, want := range []time.Duration{2, 4, 8, 16, 32, 64, 64} {
		again := p.Ask(r, now, 7)
		if again.Sub(now) != want*time.Second {
			t.Errorf("a pause of %v, want %v", again.Sub(now), want*time.Second)
		}
		now = again
	}
	for live, want := range map[time.Duration]int{63 * time.Second: 7, 64 * time.Second: 0} {
		r.stage, r.pauses = StageProbing, 7
		p.WentLive(r, now)
		if p.Lose(r, now.Add(live), errors.New("test"), nil, 0); r.pauses != want {
			t.Errorf("live for %v: %d pauses count, want %d", live, r.pauses, want)
		}
	}
	r.stage, r.pauses = StageProbing, 7
	if p.Lose(r, now.Add(time.Hour), errors.New("GO is not acknowledged"), nil, 0); r.pauses != 7 {
		t.Errorf("a rail that did not come back has %d pauses", r.pauses)
	}
	p.unflushed, p.unsettled, r.stage = 0, 0, StageSettled
	if r.Proved(); p.pause(r) != time.Second {
		t.Error("a rail that has proved itself waits longer than at first")
	}
	send(p)
	if p.config.Failback = -1; p.MayAsk() {
		t.Error("the leader asks although nothing is to come back")
	}
}

// The follower answers for one rail at a time. The leader asks for the others again at once, and
// their pauses do not grow.
func TestRailsLostTogether(t *testing.T) {
	p := twoRails()
	first, other := p.rails[0], p.rails[3]
	settle(t, p, first)
	settle(t, p, other)
	send(p)
	for _, r := range []*Rail{first, other} {
		p.Due(r, start)
		p.Ask(r, start.Add(time.Second), 7)
	}
	send(p)
	now := start.Add(2 * time.Second)
	if due, _ := p.Due(other, now); due {
		t.Fatal("the pause after an unanswered UP is too short")
	}
	for range 2 {
		first.stage = StageSettled
		p.Connected(first, 7)
	}
	if due, _ := p.Due(other, now); !due || p.Ask(other, now, 7) != now.Add(2*time.Second) {
		t.Errorf("due %v, %d pauses", due, other.pauses)
	}
}

// No end brings a rail back before both have settled it.
func TestNoRailComesBackUnsettled(t *testing.T) {
	for _, leader := range []bool{true, false} {
		p := twoRails()
		p.config.Leader = leader
		r := p.rails[0]
		p.Lose(r, start, errors.New("test"), nil, 0)
		for range 2 { // dying, and flushed
			send(p)
			if due, at := p.Due(r, start.Add(time.Hour)); due || !at.IsZero() || p.MayAsk() {
				t.Errorf("stage %d: due %v at %v, may ask %v", r.stage, due, at, p.MayAsk())
			}
			r.psn = 7 // as if the leader had asked
			for _, kind := range []int{controlUp, controlReady} {
				actions, err := p.HandleControl(p.rails[1], control{kind, 0, 1, 9}.bits(), false)
				if err != nil || len(actions) != 0 {
					t.Errorf("stage %d: control %d: %v, %v", r.stage, kind, actions, err)
				}
			}
			if r.stage == StageDying {
				p.Flushed(r, false)
			}
		}
	}
}

// The follower begins no epoch while a control is outstanding, and takes SERVE of the current epoch
// alone.
func TestEpochs(t *testing.T) {
	p := twoRails()
	p.config.Leader = false
	r, service := p.rails[0], p.rails[2]
	settle(t, p, r)
	up := control{controlUp, 0, 1, 9}.bits()
	if actions, err := p.HandleControl(p.rails[1], up, false); err != nil || len(actions) != 0 {
		t.Errorf("UP while DOWN is outstanding: %v, %v", actions, err)
	}
	send(p)
	if actions, _ := p.HandleControl(p.rails[1], up, true); len(actions) != 0 {
		t.Errorf("UP at an end that is ending: %v", actions)
	}
	want := Action{Kind: DoConnect, Rail: 0, PeerPSN: 9}
	if actions, _ := p.HandleControl(p.rails[1], up, false); len(actions) != 1 || actions[0] != want {
		t.Errorf("UP: %v", actions)
	}
	settle(t, p, service)
	p.rails[3].stage = StageReady
	for epoch, want := range map[uint8]int{1: 0, 15: 0, 0: 2} {
		serve := control{controlServe, 2, epoch, 3}
		actions, err := p.HandleControl(p.rails[1], serve.bits(), false)
		if err != nil || len(actions) != want {
			t.Errorf("SERVE of epoch %d: %v, %v", epoch, actions, err)
		}
		taken := []Action{{Kind: DoGoLive, Rail: 3}, {Kind: DoServe, Rail: 3}}
		if want == 2 && !slices.Equal(actions, taken) {
			t.Errorf("SERVE: %v, want %v", actions, taken)
		}
		p.serving[Sends] = 2
	}
}

// SERVED of another epoch confirms nothing.
func TestServedOfAnotherEpoch(t *testing.T) {
	p := twoRails()
	settle(t, p, p.rails[2])
	want := []Action{{Kind: DoServe, Rail: 3}}
	if actions := p.Choose(); !slices.Equal(actions, want) || !p.Waits() {
		t.Fatal(actions, p.Waits())
	}
	for _, epoch := range []uint8{1, 15, 0} {
		served := control{controlServed, 2, epoch, 0}
		_, err := p.HandleControl(p.rails[0], served.bits(), false)
		if err != nil || p.Waits() != (epoch != 0) {
			t.Errorf("SERVED of epoch %d: %v, waits %v", epoch, err, p.Waits())
		}
	}
}

// While the follower has not confirmed the rail that serves, the leader chooses no other one, even
// if that rail is lost: the follower might learn of the two in the wrong order.
func TestNoChoiceBeforeServed(t *testing.T) {
	p := New([]Role{Data, Data, Sends, Sends, Sends})
	p.Begin(Config{Leader: true, Serving: [Roles]int{-1, 2, -1}})
	settle(t, p, p.rails[2])
	p.Choose()
	settle(t, p, p.rails[3])
	if actions := p.Choose(); len(actions) != 0 || p.Serving(Sends) != 3 {
		t.Errorf("before SERVED: %v, rail %d serves", actions, p.Serving(Sends))
	}
	if _, err := p.HandleControl(p.rails[0], control{controlServed, 2, 0, 0}.bits(), false); err != nil {
		t.Fatal(err)
	}
	want := []Action{{Kind: DoServe, Rail: 4}}
	if actions := p.Choose(); !slices.Equal(actions, want) || !p.Waits() {
		t.Errorf("after SERVED: %v, waits %v", actions, p.Waits())
	}
}

// A count that cannot be ends the connection, and loses no request: also the user's immediate that
// was due and had found no room is given up with the rest.
func TestNonsenseWhileAnImmediateIsDue(t *testing.T) {
	p := twoRails()
	r := p.rails[0]
	last, imm := wrid.New(wrid.Numbered, 0, 1, 7), Entry{ID: wrid.New(wrid.Imm, 0, 0, 7)}
	p.Lose(r, start, errors.New("test"), []Entry{{ID: last, State: EntryReturned}}, 1)
	p.Flushed(r, false)
	r.peerArrived = 5
	if _, _, err := p.Settle(r, &imm); err == nil {
		t.Fatal("5 of 1 messages have arrived")
	}
	if got := p.Drop(); len(got) != 2 || got[0].ID != last || got[1].ID != imm.ID {
		t.Errorf("dropped: %+v", got)
	}
}

// A GO that fails does not bring the rail back.
func TestGoThatFails(t *testing.T) {
	p := twoRails()
	r := p.rails[0]
	settle(t, p, r)
	p.Connected(r, 7)
	r.controls = 2
	if actions := p.ControlCompleted(r, false); len(actions) != 0 {
		t.Errorf("GO has failed: %v", actions)
	}
	if actions := p.ControlCompleted(r, true); len(actions) != 1 || actions[0].Kind != DoGoLive {
		t.Errorf("GO is acknowledged: %v", actions)
	}
}

// What was said on rails that are lost by now is repeated on one that comes back.
func TestControlsAreRepeated(t *testing.T) {
	p := twoRails()
	settle(t, p, p.rails[2])
	p.Choose()
	p.rails[3].stage, p.rails[3].epoch = StageFlushed, 5
	send(p)
	p.WentLive(p.rails[0], start)
	want := []uint32{control{controlDown, 2, 0, 0}.bits(), control{controlDown, 3, 5, 0}.bits(),
		control{controlServe, 2, 0, 3}.bits()}
	if got := p.rails[0].queue; !slices.Equal(got, want) {
		t.Errorf("%x, want %x", got, want)
	}
}

// A new connection of a rail has none of the places of the old one's controls.
func TestResetForgetsPlaces(t *testing.T) {
	r := Rail{posted: 5, unanswered: 2, peerDown: true, acked: 10, peerArrived: 9}
	r.notePlace(9)
	if _, err := r.covered(false); err != nil {
		t.Fatal(err)
	}
	r.Reset()
	if _, err := r.covered(false); err == nil || r.arrived() != 0 || r.peerDown {
		t.Error("the rail remembers its last connection")
	}
}

// Each step towards an agreement has Timeout, and who is late is named.
func TestOverdue(t *testing.T) {
	p := twoRails()
	p.config.Leader = false
	now, service := start, p.rails[2]
	// overdue has an end look every so often, and fail when more than the timeout has passed.
	overdue := func(name, says string) {
		t.Helper()
		for range 10 {
			now = now.Add(time.Second / 2)
			for range 2 {
				if _, err := p.Overdue(now); err != nil {
					t.Fatalf("%s: after half of the timeout: %v", name, err)
				}
			}
		}
		saved, half := *p, now
		for range 10 {
			now = now.Add(time.Second / 2)
			if _, err := p.Overdue(now); err != nil {
				t.Fatalf("%s: after just the timeout: %v", name, err)
			}
		}
		rail, err := p.Overdue(now.Add(1))
		if says != "" && (rail != 2 || !errors.Is(err, verbs.StatusRetryExcErr) ||
			!strings.Contains(err.Error(), says)) || says == "" && err != nil {
			t.Errorf("%s: rail %d, %v: want %q", name, rail, err, says)
		}
		*p, now = saved, half // the next step is taken after half of the timeout
	}
	p.Lose(service, now, verbs.StatusRetryExcErr, nil, 0)
	overdue("dying", "this end's NIC has not given back")
	p.Flushed(service, false)
	overdue("flushed", "the peer has not said what has arrived there")
	if _, err := p.HandleControl(p.rails[1], control{controlDown, 2, 0, 0}.bits(), false); err != nil {
		t.Fatal(err)
	}
	if _, _, err := p.Settle(service, nil); err != nil {
		t.Fatal(err)
	}
	overdue("settled, at the follower", "the peer has not said which one takes over")
	p.config.Leader = true
	p.Choose()
	overdue("chosen", "the peer has not confirmed which one takes over")
	if _, err := p.HandleControl(p.rails[1], control{controlServed, 2, 0, 0}.bits(), false); err != nil {
		t.Fatal(err)
	}
	overdue("served", "")
}

// A wait for a rail to come back where none is live has the same time, and says so.
func TestOverdueWithoutARail(t *testing.T) {
	for _, role := range []Role{Data, Sends} {
		p := twoRails()
		lost := p.rails[2*int(role)]
		settle(t, p, lost)
		if role == Data {
			p.rails[1].stage = StageReady // GO does not come
		} else {
			settle(t, p, p.rails[3])
		}
		if p.Waits() != (role == Data) {
			t.Errorf("role %d, of which nothing is wanted: waits %v", role, p.Waits())
		}
		p.Want(Sends, true)
		now, err := start, error(nil)
		for ; err == nil; now = now.Add(time.Second) {
			var rail int
			rail, err = p.Overdue(now)
			if late := now.Sub(start) > 2*p.config.Timeout; late || err != nil && (rail != lost.index ||
				!strings.Contains(err.Error(), "none that could take over has come back")) {
				t.Fatalf("role %d: after %v: rail %d, %v", role, now.Sub(start), rail, err)
			}
		}
	}
}

// A rail that serves is not brought back before another one serves in its place. If all others are
// gone for good, the connection goes on without, until something wants one.
func TestTheLastOfARoleStaysOut(t *testing.T) {
	p := twoRails()
	p.rails[3].GiveUp()
	settle(t, p, p.rails[3])
	settle(t, p, p.rails[2])
	for _, r := range p.rails[2:] {
		if due, at := p.Due(r, start.Add(time.Hour)); due || !at.IsZero() {
			t.Errorf("rail %d is to be brought back at %v", r.index, at)
		}
	}
	if actions := p.Choose(); len(actions) != 0 || p.Waits() || !p.Lacks(Sends) {
		t.Errorf("chosen: %v; waits %v, lacks a rail %v", actions, p.Waits(), p.Lacks(Sends))
	}
	if p.Want(Sends, true); !p.Waits() {
		t.Error("a SEND is not waited for")
	}
}

// An end that does not look, because it was stopped, does not blame the peer.
func TestOwnAbsenceCountsLittle(t *testing.T) {
	p := twoRails()
	now, looks := start, 0
	p.Lose(p.rails[0], now, verbs.StatusRetryExcErr, nil, 0)
	for err := error(nil); err == nil; looks++ {
		now = now.Add(time.Hour)
		_, err = p.Overdue(now)
	}
	if looks != patientLooks {
		t.Errorf("overdue at look %d, want %d", looks, patientLooks)
	}
}

// A connection that fails gives up what flushed and settled rails had outstanding and what was to
// be posted again, but nothing that is over and no control.
func TestDrop(t *testing.T) {
	p := twoRails()
	id := func(kind, n uint64) uint64 { return wrid.New(kind, 0, 0, n) }
	p.Lose(p.rails[0], start, errors.New("test"), []Entry{{ID: id(wrid.Data, 1), State: EntryReturned},
		{ID: id(wrid.Data, 2), State: EntryDone}, {ID: id(wrid.Control, 3), State: EntryReturned}}, 0)
	p.Flushed(p.rails[0], true)
	p.work[Sends].entries = []Entry{{ID: id(wrid.Message, 4)}}
	var got []uint64
	for _, e := range p.Drop() {
		got = append(got, e.ID)
	}
	if want := []uint64{id(wrid.Data, 1), id(wrid.Message, 4)}; !slices.Equal(got, want) {
		t.Errorf("%x, want %x", got, want)
	}
	if p.Unsettled() || p.work[Sends].Any() || len(p.Drop()) != 0 {
		t.Error("something is left")
	}
}

// When all is over it is known which rails are out of service and which never come back. A new
// connection begins with all of them.
func TestAbandonAndRestart(t *testing.T) {
	p := twoRails()
	p.Lose(p.rails[0], start, errors.New("test"), nil, 0)
	p.rails[0].GiveUp()
	p.Abandon()
	if r := p.rails[0]; r.stage != StageSettled || !r.GivenUp() || p.rails[1].stage != StageLive {
		t.Errorf("%+v, the other in stage %d", r, p.rails[1].stage)
	}
	if p.Serving(Sends) != 2 || p.Unsettled() {
		t.Errorf("rail %d serves, unsettled %v", p.Serving(Sends), p.Unsettled())
	}
	if p.Restart(); p.rails[0].stage != StageLive || p.rails[0].GivenUp() || p.Paused() {
		t.Error("a new connection lacks a rail")
	}
}

// What a rail loses while it carries work again goes ahead of what waits; what another one loses
// goes behind it. The user's immediate stays behind its fragment.
func TestOrderOfWork(t *testing.T) {
	var w Work
	a, b := &Rail{index: 0}, &Rail{index: 1}
	entry := func(n uint64) Entry { return Entry{ID: wrid.New(wrid.Data, 0, 0, n)} }
	imm := Entry{ID: wrid.New(wrid.Imm, 0, 0, 9)}
	w.add(a, []Entry{entry(1), imm})
	w.Begin(b)
	if w.Posted(); !w.Follows(entry(1).ID) || w.Follows(imm.ID) || !w.awaitsImm(b) || w.awaitsImm(a) {
		t.Error("the fragment is not what was posted last")
	}
	w.add(a, []Entry{entry(3)})
	w.add(b, []Entry{entry(1)})
	w.Precede(entry(5))
	var got []uint64
	for w.Begin(a); w.Any(); w.Posted() {
		got = append(got, w.Next().ID)
	}
	if want := []uint64{entry(5).ID, entry(1).ID, imm.ID, entry(3).ID}; !slices.Equal(got, want) {
		t.Errorf("%x, want %x", got, want)
	}
	if w.On() != -1 {
		t.Error("a rail carries work, and there is none")
	}
}

// However deep queues are, what a peer may have received and lost with its CQ is told apart by
// counts of 16 bits.
func TestLostMessagesAreTellable(t *testing.T) {
	entries := make([]Entry, MaxOutstanding+ControlSlots)
	for i := range entries {
		entries[i].ID = wrid.New(wrid.Numbered, 0, 0, 1)
	}
	for _, lost := range []int{2, MaxOutstanding / 2, MaxOutstanding * 15 / 16, MaxOutstanding} {
		r := Rail{acked: 5, peerArrived: uint16(5 - lost), entries: entries}
		if end, err := r.covered(false); err == nil {
			t.Errorf("%d messages are lost, and %d entries count as arrived", lost, end)
		}
	}
}

// A peer that asks the same again and again, and takes no answer, does not fill the memory.
func TestControlMessagesDoNotPileUp(t *testing.T) {
	p := New([]Role{Data, Data, Sends, Sends})
	p.Begin(Config{Serving: [Roles]int{-1, 2, -1}})
	p.rails[1].stage = StageReady
	p.unflushed = 1
	up := control{kind: controlUp, rail: 1, count: 9}
	serve := control{kind: controlServe, rail: 3, epoch: 3, count: 2}
	for range 1000 {
		for _, c := range []control{up, serve} {
			if actions, err := p.HandleControl(p.rails[0], c.bits(), false); err != nil || len(actions) != 0 {
				t.Fatal(actions, err)
			}
		}
	}
	if n, answers := len(p.rails[0].queue), len(p.heldAnswers); n != 1 || answers != 1 {
		t.Errorf("%d controls and %d answers wait, want one of each", n, answers)
	}
	if p.Answer(); len(p.heldAnswers) != 1 {
		t.Error("the follower has answered while a rail is dying")
	}
	p.unflushed = 0
	if p.Answer(); len(p.heldAnswers) != 0 || len(p.rails[0].queue) != 2 {
		t.Error("the follower does not answer when no rail is dying")
	}
}

// Of the acknowledged messages that a peer does not count, controls are no loss, nor is the last
// fragment whose immediate is still due, in whatever order they were posted. Any other is.
func TestWhichMessagesAreLostWithACQ(t *testing.T) {
	for _, c := range []struct {
		name     string
		count    uint64   // what the peer has counted of 10
		controls []uint64 // the places of controls among the 10
		immDue   bool
		lost     bool
	}{
		{name: "nothing", count: 10},
		{name: "a message", count: 9, lost: true},
		{name: "a control", count: 9, controls: []uint64{9}},
		{name: "two controls", count: 8, controls: []uint64{8, 9}},
		{name: "a message behind a control", count: 8, controls: []uint64{8}, lost: true},
		{name: "a message ahead of a control", count: 8, controls: []uint64{9}, lost: true},
		{name: "a fragment whose immediate is due", count: 9, immDue: true},
		{name: "such a fragment ahead of a control", count: 8, controls: []uint64{9}, immDue: true},
		{name: "such a fragment between controls", count: 7, controls: []uint64{7, 9}, immDue: true},
		{name: "a message ahead of such a fragment", count: 8, immDue: true, lost: true},
		{name: "a message ahead of such a fragment and a control", count: 7, controls: []uint64{9},
			immDue: true, lost: true},
	} {
		t.Run(c.name, func(t *testing.T) {
			for _, first := range []uint64{0, 1<<16 - 5, 1<<16 - 9} { // the count on the wire wraps
				v := Rail{acked: first + 10, peerArrived: uint16(first + c.count)}
				for _, place := range c.controls {
					v.places = append(v.places, first+place)
				}
				if end, err := v.covered(c.immDue); end != 0 || (err != nil) != c.lost {
					t.Errorf("from %d on: %d entries have arrived, %v", first, end, err)
				}
			}
		})
	}
}

// A control is no excuse for the message that is 65,536 behind it, whose count on the wire is the
// same.
func TestAControlIsNoOtherMessage(t *testing.T) {
	for _, behind := range []uint64{0, 1 << 16, 1 << 32} {
		var v Rail
		v.notePlace(7)
		v.acked, v.peerArrived = 8+behind, 7
		if _, err := v.covered(false); (err != nil) != (behind != 0) {
			t.Errorf("the message %d behind a control is lost: %v", behind, err)
		}
	}
}
