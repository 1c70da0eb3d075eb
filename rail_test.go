package ibverbx

import (
	"errors"
	"math/rand/v2"
	"strings"
	"testing"
	"time"

	"ibverbx/internal/wrid"
	"ibverbx/verbs"
	"ibverbx/verbs/verbstest"
)

// reconnect resets a virtual queue pair and connects it again.
func (r *recorded) reconnect(t *testing.T) {
	t.Helper()
	if err := r.Reset(); err != nil {
		t.Fatal(err)
	}
	connectElsewhere(t, r.VirtualQP)
}

// What a NIC has refused for now is staged and not on the NIC: a completion of it is spurious.
func TestStagedIsNotOnTheNIC(t *testing.T) {
	r := newRecorded(t, 1, 2, Config{})
	rl, qp := r.send.rails.data[0], r.qps[0]
	if rl.staged() != 0 || rl.onNIC() {
		t.Errorf("new: %d staged, %t on the NIC", rl.staged(), rl.onNIC())
	}
	qp.refuse = verbs.ErrNoMemory
	if _, err := r.PostSend(rawWrite(1, 8)); err != nil {
		t.Fatal(err)
	}
	if rl.staged() != 1 || rl.inUse != 1 || rl.onNIC() {
		t.Errorf("refused: %d staged of %d, %t on the NIC", rl.staged(), rl.inUse, rl.onNIC())
	}
	invented := verbs.WC{ID: rl.batch.wrs[rl.batch.head].ID, QPNum: rl.num}
	if got := r.CQ().ProcessCompletions(nil, 0, invented); len(got) != 0 || rl.inUse != 1 {
		t.Errorf("a completion of what was never posted: %+v, %d in use", got, rl.inUse)
	}
	qp.refuse = nil
	if got := r.finish(t); len(got) != 1 || got[0].Status != verbs.StatusSuccess || len(qp.posts) != 1 {
		t.Errorf("accepted at last: %+v, %d posts", got, len(qp.posts))
	}
	if rl.staged() != 0 || rl.inUse != 0 {
		t.Errorf("%d staged, %d in use after all", rl.staged(), rl.inUse)
	}
}

// staged has two rails that refuse for now, and so many writes staged on them.
func staged(t *testing.T, writes uint64) *recorded {
	r := newRecorded(t, 1, 2, Config{})
	for _, qp := range r.qps {
		qp.refuse = verbs.ErrNoMemory
	}
	for id := range writes {
		if _, err := r.PostSend(rawWrite(id, 8)); err != nil {
			t.Fatal(err)
		}
	}
	return r
}

// A reset drops what is staged: it does not go out on the next connection.
func TestResetForgetsWhatIsStaged(t *testing.T) {
	r := staged(t, 4)
	for _, qp := range r.qps {
		qp.refuse = nil
	}
	for range 2 { // a batch that was given back is lent again
		r.reconnect(t)
		pollNow(t, r.CQ())
		for _, qp := range r.qps {
			qp.posts = nil
		}
		if _, err := r.PostSend(rawWrite(9, 8)); err != nil {
			t.Fatal(err)
		}
		if got := r.finish(t); len(got) != 1 || got[0].ID != 9 || got[0].Status != verbs.StatusSuccess {
			t.Errorf("after the reset: %+v", got)
		}
		if n := len(r.qps[0].posts) + len(r.qps[1].posts); n != 1 || len(r.send.staged) != 0 {
			t.Errorf("%d requests were posted, %d rails are listed", n, len(r.send.staged))
		}
		r.send.check()
		r.send.rails.check()
	}
}

// When a device is lost, what was staged for it does not stay in the batches, which other virtual
// queue pairs of the CQ are lent next.
func TestALostDeviceLeavesEmptyBatches(t *testing.T) {
	r := staged(t, 4)
	r.CQ().FailDevice(0, nil)
	if got := pollNow(t, r.CQ()); len(got) != 4 {
		t.Errorf("reported: %+v", got)
	}
	back := 0
	for b := r.CQ().batches.free; b != nil; b = b.next {
		back++
		if b.head != 0 || b.tail != 0 {
			t.Errorf("a batch came back with requests %d to %d", b.head, b.tail)
		}
	}
	if back != 2 {
		t.Errorf("%d batches came back, want 2", back)
	}
}

// A queue pair in RESET has nothing to flush, one in ERR does so already, and one that is closed
// takes no Modify: none of them is asked to move to ERR.
func TestNoNeedlessMoveToErr(t *testing.T) {
	r := newRecorded(t, 1, 2, Config{})
	rl, qp := r.send.rails.data[0], r.qps[0]
	moves := func() bool {
		clear(qp.steps)
		rl.toError()
		_, moved := qp.steps[verbs.StateErr]
		return moved
	}
	if !moves() || rl.stopErr != nil {
		t.Errorf("in RTS: no move, %v", rl.stopErr)
	}
	if moves() {
		t.Error("a move from ERR to ERR")
	}
	qp.refuseErr = verbs.ErrInvalid
	if err := r.Reset(); err != nil {
		t.Fatal(err)
	}
	if moves() || rl.stopErr != nil {
		t.Errorf("a move from RESET to ERR, %v", rl.stopErr)
	}
	r.reconnect(t)
	if !moves() || !errors.Is(rl.stopErr, verbs.ErrInvalid) || r.send.rails.stopAgain() {
		t.Errorf("refused: %v", rl.stopErr)
	}
	rl.closed = true
	if moves() || rl.stopErr != nil {
		t.Errorf("a move of a closed queue pair, %v", rl.stopErr)
	}
	rl.closed = false
}

// At most 2^27 requests are outstanding in either direction: their numbers are told apart by that
// many bits.
func TestMostOutstanding(t *testing.T) {
	r := newRecorded(t, 1, 2, Config{})
	s, v := &r.send.win, &r.recv.win
	sends, recvs := s.Head, v.Head
	for beyond, want := range []error{nil, verbs.ErrQueueFull, verbs.ErrQueueFull} {
		most := wrid.MaxOutstanding - 1 + uint64(beyond)
		s.Head, v.Head = s.Tail-most, v.Tail-most
		_, err := r.postSends(nil)
		if err != nil {
			t.Fatal(err)
		}
		if want == nil {
			continue
		}
		n, err := r.postSends([]SendWR{rawWrite(1, 8)})
		if n != 0 || !errors.Is(err, want) {
			t.Errorf("%d sends outstanding: %d accepted, %v", s.Len(), n, err)
		}
		n, err = r.postRecvs([]RecvWR{{ID: 1}})
		if n != 0 || !errors.Is(err, want) {
			t.Errorf("%d receives outstanding: %d accepted, %v", v.Len(), n, err)
		}
	}
	s.Head, v.Head = sends, recvs
}

// A virtual queue pair that waits for a NIC is counted once, however much it has to try again, and
// until it has.
func TestRetryingCountsQueuePairs(t *testing.T) {
	r := newRecorded(t, 1, 2, Config{})
	for _, qp := range r.qps {
		qp.refuse = verbs.ErrNoMemory
	}
	for id := range uint64(5) {
		if _, err := r.PostSend(rawWrite(id, 8)); err != nil {
			t.Fatal(err)
		}
		for range 2 {
			if n := r.CQ().Stats().Retrying; n != 1 {
				t.Errorf("%d virtual queue pairs are retrying", n)
			}
			pollNow(t, r.CQ())
		}
	}
	for _, qp := range r.qps {
		qp.refuse = nil
	}
	if r.finish(t); r.CQ().Stats().Retrying != 0 {
		t.Errorf("%d virtual queue pairs are retrying what has been accepted", r.CQ().Stats().Retrying)
	}
}

// A single queue pair is idle when many polls in a row, and over some time, found as many requests
// outstanding. One that completes begins the count anew.
func TestIdleAfterPollsAndTime(t *testing.T) {
	p := &passThrough{sends: 3, recvs: 2, ended: 1}
	var seen idleCQ
	now := time.Now()
	idleFor := func(polls int, step time.Duration) (idle bool) {
		for range polls {
			idle = p.isIdle(&seen, now)
			now = now.Add(step)
		}
		return idle
	}
	if idleFor(10*flushPolls, 0) {
		t.Error("idle without any time")
	}
	if now = now.Add(flushQuiet); idleFor(1, 0) {
		t.Error("idle after just the time")
	}
	if now = now.Add(1); !idleFor(1, 0) {
		t.Error("not idle after more than the time")
	}
	if p.ended++; idleFor(flushPolls-1, flushQuiet+1) {
		t.Error("idle although a request has completed, and there were too few polls since")
	}
	if !idleFor(1, 0) {
		t.Error("not idle after as many polls as it takes")
	}
	seen = idleCQ{}
	if idleFor(1, 0) || seen.outstanding != 3 || seen.polls != 1 {
		t.Errorf("a new count begins with %+v", seen)
	}
}

// A plain peer sends SENDs to queue pair 0: that one needs room for a credit and a SEND, the others
// do not.
func TestPlainPeerNeedsRoomOnTheFirstQueuePair(t *testing.T) {
	for first, recvs := range [][]int{{1, 64}, {64, 1}} {
		dev := verbstest.NewNull(1).Device(0)
		pd, err := dev.AllocPD()
		if err != nil {
			t.Fatal(err)
		}
		cq, err := dev.CreateCQ(verbs.CQConfig{Depth: 1024})
		if err != nil {
			t.Fatal(err)
		}
		var qps []verbs.QP
		for _, n := range append(recvs, 64) { // the last one is the notify QP
			qp, err := pd.CreateQP(verbs.QPConfig{SendCQ: cq, RecvCQ: cq, Cap: verbs.QPCap{MaxRecvWR: n}})
			if err != nil {
				t.Fatal(err)
			}
			qps = append(qps, qp)
		}
		vcq, err := NewVirtualCQ(cq)
		if err != nil {
			t.Fatal(err)
		}
		q, err := NewVirtualQP(vcq, qps[:2], qps[2], Config{})
		if err != nil {
			t.Fatal(err)
		}
		card, err := q.Card()
		if err != nil {
			t.Fatal(err)
		}
		card.Scheme, card.Credits = "", 0
		err = q.Connect(Elsewhere(card))
		few := errors.Is(err, verbs.ErrInvalid) && strings.Contains(err.Error(), "Credits of 2 at least")
		if wantFew := first == 0; few != wantFew || !wantFew && err != nil {
			t.Errorf("receive queues of %v: %v", recvs, err)
		}
	}
}

func TestRouteTable(t *testing.T) {
	table := &routeTable{}
	ref := map[uint32]*rail{}
	rng := rand.New(rand.NewPCG(4, 4))
	nums := []uint32{0, 1, 17, 1<<12 - 1, 1 << 12, 1<<24 - 1, 1<<24 - 2, 1 << 23}
	for range 100 {
		nums = append(nums, rng.Uint32N(1<<24))
	}
	for range 20_000 {
		num := nums[rng.IntN(len(nums))]
		switch {
		case ref[num] == nil:
			ref[num] = &rail{}
			table.add(num, ref[num])
		case rng.IntN(2) == 0:
			table.remove(num, &rail{}) // another owner: no effect
		default:
			table.remove(num, ref[num])
			table.remove(num, ref[num]) // removed already
			delete(ref, num)
		}
		for _, n := range []uint32{num, nums[rng.IntN(len(nums))], num ^ 1, num ^ 1<<12} {
			if n &= 1<<24 - 1; table.find(n) != ref[n] {
				t.Fatalf("number %d leads to %p, want %p", n, table.find(n), ref[n])
			}
		}
	}
	for num, r := range ref {
		table.remove(num, r)
	}
	for i, page := range table.pages {
		if page != nil {
			t.Fatalf("page %d is left behind", i)
		}
	}
}
