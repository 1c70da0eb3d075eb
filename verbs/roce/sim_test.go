package roce

import (
	"errors"
	"fmt"
	"reflect"
	"regexp"
	"slices"
	"sync"
	"testing"

	"ibverbx/test/sim"
	"ibverbx/verbs"
	"ibverbx/verbs/roce/internal/rc"
)

var flags = sim.NewFlags()

// worlds are those of package sim, over NICs of this package on a network in virtual time.
var worlds = sim.Over("TestSimulation", "./verbs/roce", newNetwork)

// TestSimulation plays worlds of virtual queue pairs from seeds. A failing one is shrunk, and
// printed with the command that plays it again.
func TestSimulation(t *testing.T) {
	flags.Test(t, &worlds, 300)
	total.Lock()
	defer total.Unlock()
	t.Logf("%+v", total.Counters)
	if c := &total.Counters; c.Sent > 5e4 && (c.LinkDown == 0 || c.Malformed == 0 || c.NoQP == 0 ||
		c.Strangers == 0 || c.BadICRC == 0 || c.Retried == 0 || c.Resent == 0 || c.Timeouts == 0 ||
		c.Probes == 0 || c.NAKs == 0 || c.Marked == 0 || c.RNRNAKs == 0 || c.Duplicates == 0 ||
		c.Ahead == 0) {
		t.Error("some of it never happened")
	}
}

// drawn matches addresses and the numbers that the library draws by itself. They decide nothing.
var drawn = regexp.MustCompile(`0x[0-9a-f]{6,}|wr [0-9]+|(?i:virtual (qp|cq)) [0-9]+|PSN:[0-9]+`)

// TestReplays checks that a seed decides what happens.
func TestReplays(t *testing.T) {
	flags.Kit(t)
	worlds.Replays(t, 60, drawn)
}

// failoverWorlds are those of package sim whose rails die, on networks that lose, repeat, forge and
// hold up packets.
var failoverWorlds = sim.FailoverOver("TestFailover", "./verbs/roce", newNetwork)

func TestFailover(t *testing.T) { flags.Test(t, &failoverWorlds, 100) }

// What is looked at inside of NICs on a network, because users do not see it: what a NIC does wrong
// to a packet looks like loss, and what it forgets to send is sent again after a while.

// Check is the first thing that was wrong.
func (n *network) Check() error { return n.broken }

// inspect checks a NIC after something has happened to it.
func (n *network) inspect(x *networkNIC) {
	if n.broken == nil && !n.blind {
		n.broken = x.wrong()
	}
}

// wrong says what is wrong with a NIC; nil if nothing is.
func (x *networkNIC) wrong() error {
	n, c := x.net, &x.counts
	if p := n.plan; p.Corrupt == 0 && c.BadICRC+c.Malformed != 0 ||
		p.Corrupt+p.Forge == 0 && c.Strangers != 0 {
		return fmt.Errorf("%s: %d packets with a wrong ICRC, %d malformed, %d of strangers: nobody has sent "+
			"such", x.Name(), c.BadICRC, c.Malformed, c.Strangers)
	}
	for i, t := range x.timers.heap {
		if !t.IsArmed() || t.When < x.timers.heap[0].When {
			return fmt.Errorf("%s: timer %d of %d is in disorder", x.Name(), i, len(x.timers.heap))
		}
		if t.Of.core.Closed {
			return fmt.Errorf("%s: a queue pair that is closed has a timer", x.Name())
		}
	}
	first := x.timers.heap.First(rc.Never)
	if late := max(first, n.now); x.ringAt > late {
		return fmt.Errorf("%s: the first of %d timers is due at %d, the alarm goes off at %d, now is %d",
			x.Name(), len(x.timers.heap), first, x.ringAt, n.now)
	}
	used := map[*share]int{}
	for _, q := range x.qps.All {
		if err := q.wrong(n); err != nil {
			return fmt.Errorf("%s qp %d: %w", x.Name(), q.Num(), err)
		}
		used[q.path.share] += q.engine.UnderWay() * q.cost
	}
	for _, s := range x.shares {
		if err := s.wrong(used[s], x.sender.isClogged()); err != nil {
			return fmt.Errorf("%s: %w", x.Name(), err)
		}
	}
	return nil
}

// wrong says what is wrong with a share, whose queue pairs have so many bytes under way. While the
// socket is clogged it may be postponed.
func (s *share) wrong(used int, clogged bool) error {
	switch {
	case s.used != used:
		return fmt.Errorf("%d bytes are under way to %v, and %d are counted", used, s.peer, s.used)
	case s.head == len(s.waiting):
		return nil
	case s.room(s.waiting[s.head]) >= s.turnOf(s.waiting[s.head]) && (!clogged || !s.postponed):
		return fmt.Errorf("%d queue pairs wait for room towards %v, and there is some", len(s.waiting)-s.head,
			s.peer)
	}
	for _, q := range s.waiting[s.head:] {
		if !q.waits || q.path.share != s {
			return errors.New("a queue pair waits that does not")
		}
	}
	return nil
}

// rounding is by how many nanoseconds the time at which a rate allows the next packet may differ
// from call to call.
const rounding = 8

// wrong says what is wrong with a queue pair, whose NIC has done what there is to do.
func (q *QP) wrong(n *network) error {
	if err := q.engine.Check(); err != nil {
		return err
	}
	if s := q.engine.Stats(); s.Broken != 0 {
		return fmt.Errorf("%d packets against the protocol, and all ends keep it", s.Broken)
	}
	if q.core.State == verbs.StateReset && (q.path.to != nil || q.peerPort != 0) {
		return errors.New("it is in RESET, and knows a peer")
	}
	at := q.engine.Deadline()
	switch {
	case at <= n.now+rounding:
		return nil // its time has come at this very moment
	case at != rc.Never && (!q.timer.IsArmed() || q.timer.When > at+rounding):
		return fmt.Errorf("it has to be called at %d, and its timer is at %d; now is %d", at, q.timer.When,
			n.now)
	case q.blocked || q.path.to == nil:
		return nil
	case q.ackDelayed:
		return q.wrongToDelay()
	}
	if q.engine.HeldBack() && !q.waits {
		return errors.New("it is held back, and does not wait")
	}
	for range 2 { // requests and answers take turns at being first, which two calls leave as it was
		q.engine.Transmit(n.now, &n.scratch)
	}
	if left := len(n.scratch.Packets()); left != 0 {
		return fmt.Errorf("%d packets could leave, and did not", left)
	}
	return nil
}

// total is what all NICs of all networks have done.
var total struct {
	sync.Mutex
	Counters
}

// add adds what the NICs of a network have done.
func (n *network) add() {
	total.Lock()
	defer total.Unlock()
	for _, x := range n.nics {
		sum, c := reflect.ValueOf(&total.Counters).Elem(), reflect.ValueOf(x.Counters())
		for i := range c.NumField() {
			sum.Field(i).SetUint(sum.Field(i).Uint() + c.Field(i).Uint())
		}
	}
}

// wrongToDelay says what is wrong with a queue pair that delays its acknowledgement.
func (q *QP) wrongToDelay() error {
	switch r := &q.dev.recv; {
	case !q.engine.OwesAckAlone():
		return errors.New("it delays more than an acknowledgement")
	case !r.delayed || !slices.Contains(q.dev.sender.delayed, q):
		return errors.New("it delays an acknowledgement, and nobody knows")
	case !r.napping.Load():
		return errors.New("it delays an acknowledgement, and nobody will look after it")
	}
	return nil
}
