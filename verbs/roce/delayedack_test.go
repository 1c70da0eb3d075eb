package roce

import (
	"testing"
	"time"

	"ibverbx/verbs"
	"ibverbx/verbs/roce/internal/udp"
)

// sentBy records the packets of each send of a NIC.
func sentBy(d *Device) (sends func() []int) {
	var counts []int
	d.mu.Lock()
	defer d.mu.Unlock()
	put := d.sender.put
	d.sender.put = func(to destination, packets []udp.Packet, segment bool) (int, error) {
		counts = append(counts, len(packets))
		return put(to, packets, segment)
	}
	return func() []int {
		d.mu.Lock()
		defer d.mu.Unlock()
		return append([]int(nil), counts...)
	}
}

// pollUntil polls until something is so, for 20 seconds at most.
func (n *node) pollUntil(t *testing.T, what string, isSo func() bool) {
	t.Helper()
	var wcs [4]verbs.WC
	for began := time.Now(); !isSo(); {
		_, err := n.cq.Poll(wcs[:])
		must(t, err)
		if time.Since(began) > 20*time.Second {
			t.Fatalf("not within 20 seconds: %s", what)
		}
	}
}

func (n *node) delaysAck() bool {
	n.dev.mu.Lock()
	defer n.dev.mu.Unlock()
	return n.qp.ackDelayed
}

// received is how many packets of requests have arrived.
func (n *node) received() uint64 {
	n.dev.mu.Lock()
	defer n.dev.mu.Unlock()
	return n.qp.engine.Stats().Received
}

// delaying lets a write arrive at b, where a program polls, so that b delays its acknowledgement.
func delaying(t *testing.T) (a, b *node, sends func() []int) {
	p := openNICs(t, Config{}, "127.0.0.1", "127.0.0.2")
	pair := newNodes(t, p.Device(0), p.Device(1), 64)
	a, b = pair[0], pair[1]
	sends = sentBy(b.dev)
	// It begins when the goroutine has been given a processor and has seen that somebody polls.
	began := time.Now()
	for try := uint64(1); time.Since(began) < 5*time.Second; try++ {
		a.post(t, a.write(b, try, 8))
		b.pollUntil(t, "the write arrives", func() bool { return b.received() == try })
		if b.delaysAck() {
			return a, b, sends
		}
		a.succeed(t)
	}
	t.Fatal("no acknowledgement is ever delayed")
	return nil, nil, nil
}

// An acknowledgement waits for the answer of the program that polls, and leaves with it.
func TestAcknowledgementLeavesWithTheAnswer(t *testing.T) {
	for range 10 { // the goroutine may come first
		a, b, sends := delaying(t)
		before := len(sends())
		b.post(t, b.write(a, 1, 8))
		after := sends()[before:]
		a.succeed(t)
		b.succeed(t)
		if after[0] == 2 {
			return
		}
	}
	t.Error("no send has an answer and an acknowledgement")
}

// A program that stops polling keeps its peer waiting for no longer than that: the goroutine looks
// after it, and the peer sends nothing again.
func TestAcknowledgementOfWhoStopsPolling(t *testing.T) {
	for range 10 { // the host may be busy for longer than the peer has patience
		a, _, _ := delaying(t)
		before := a.dev.Counters().Probes
		began := time.Now()
		a.succeed(t)
		t.Logf("acknowledged after %v", time.Since(began))
		if a.dev.Counters().Probes == before {
			return
		}
	}
	t.Error("the peer has to ask each time")
}

// Where the goroutine has yet to notice that somebody polls, nobody would look after what is held
// back: nothing is.
func TestNoAckIsDelayedUnguarded(t *testing.T) {
	a, b, _ := delaying(t)
	for range 10 { // the goroutine may notice at once
		b.pollUntil(t, "the acknowledgement leaves", func() bool { return !b.delaysAck() })
		a.succeed(t)
		before := b.received()
		b.dev.recv.napping.Store(false)
		a.post(t, a.write(b, 1, 8))
		b.pollUntil(t, "the write arrives", func() bool { return b.received() > before })
		if !b.delaysAck() {
			a.succeed(t)
			return
		}
	}
	t.Error("every acknowledgement is delayed")
}

// A program that has got its last message may take its queue pair down at once: the acknowledgement
// leaves before, since the message was carried out. The peer would be told that it was not.
func TestAcknowledgementLeavesBeforeTheQueuePairDoes(t *testing.T) {
	for name, end := range map[string]func(*QP) error{
		"reset": func(qp *QP) error {
			return qp.Modify(&verbs.QPAttr{State: verbs.StateReset},
				verbs.QPAttrState)
		},
		"err": func(qp *QP) error {
			return qp.Modify(&verbs.QPAttr{State: verbs.StateErr},
				verbs.QPAttrState)
		},
		"close": (*QP).Close,
	} {
		t.Run(name, func(t *testing.T) {
			a, b, _ := delaying(t)
			qp := b.qp
			b.qp = b.newQP(t) // which the end of the test closes
			must(t, end(qp))
			a.succeed(t)
			if name != "close" {
				must(t, qp.Close())
			}
			b.dev.mu.Lock()
			defer b.dev.mu.Unlock()
			if n := len(b.dev.sender.delayed); n != 0 && name != "err" {
				t.Errorf("%d acknowledgements are delayed", n)
			}
		})
	}
}

// While a program posts that polls, the goroutine keeps out, however long that takes; but for
// whoever has begun to wait meanwhile, it does not. Posting alone is no polling.
func TestPostingIsPolling(t *testing.T) {
	now := int64(time.Hour)
	d := &Device{clock: func() int64 { return now }}
	r := &d.recv
	r.dev = d
	r.stopKeepingOut()
	if p := r.beginPost(); p.polls || r.isPolled() {
		t.Error("a program that never polls is taken for one that does")
	}
	r.polled.Store(now)
	now += int64(idleAfter) / 2
	long := r.beginPost()
	if now += int64(time.Minute); !r.isPolled() {
		t.Error("it is forgotten while it posts")
	}
	if r.endPost(long); !r.isPolled() {
		t.Error("it is forgotten when it has posted for long")
	}
	for range 5 {
		short := r.beginPost()
		now += int64(idleAfter) / 5
		r.endPost(short)
	}
	if r.isPolled() {
		t.Error("short posts go on counting as polls")
	}
	r.polled.Store(now)
	first := r.beginPost()
	second := r.beginPost() // by another goroutine
	r.endPost(first)
	r.endPost(second)
	if now += int64(idleAfter); r.isPolled() {
		t.Error("two posts at a time count as a poll for ever")
	}
	r.polled.Store(now)
	p := r.beginPost()
	r.stopKeepingOut()
	if r.endPost(p); r.isPolled() {
		t.Error("whoever waits is forgotten")
	}
}
