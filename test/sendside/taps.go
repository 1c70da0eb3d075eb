package sendside

import (
	"slices"

	"ibverbx/test/internal/lab"
	"ibverbx/verbs"
)

// The taps know which queue pairs belong to which link, and which reads go out. They change
// nothing, except that they let the fabric move while the library closes a single queue pair, which
// waits.

func (b *testbed) tapCQ(cq lab.CQ) verbs.CQ { return &tappedCQ{CQ: cq, b: b} }

func (b *testbed) tapQP(qp lab.QP) verbs.QP {
	q := &wire{QP: qp, b: b, link: b.build}
	if q.link != nil {
		q.link.wires = append(q.link.wires, q)
	}
	return q
}

// tappedCQ is a tapped completion queue.
type tappedCQ struct {
	lab.CQ
	b     *testbed
	empty int // consecutive polls in vain
}

// Poll is called by the library.
func (c *tappedCQ) Poll(wcs []verbs.WC) (int, error) {
	if b := c.b; b.plan.rails == 1 {
		if c.empty++; b.ending[c.NIC] != 0 || c.empty > 8 {
			b.Steps(8)
			c.empty = 0
		}
	}
	n, err := c.CQ.Poll(wcs)
	if n != 0 {
		c.empty = 0
	}
	return n, err
}

// wire is a tapped queue pair: a rail of a virtual queue pair, or its notify queue pair.
type wire struct {
	lab.QP
	b      *testbed
	link   *link
	ending bool     // it was moved to ERR and is the only one of its virtual queue pair
	bye    bool     // the transport's goodbye was posted
	early  int      // receives that were posted before anything could arrive
	reads  []uint64 // remote addresses of the reads that were posted
}

// wireBye is the kind, in the first byte of a SEND, of the last message of an endpoint that closes.
const wireBye = 3

func (q *wire) PostSend(wrs []verbs.SendWR) (int, error) {
	n, err := q.QP.PostSend(wrs)
	for i := range wrs[:n] {
		switch wr := &wrs[i]; {
		case wr.Opcode == verbs.OpRDMARead:
			q.reads = append(q.reads, wr.RemoteAddr)
		case wr.Opcode != verbs.OpSend:
		case q.bye:
			q.b.Broken(ruleMessages, "a message follows the goodbye on %v", q)
		default:
			q.bye = len(wr.Inline) != 0 && wr.Inline[0] == wireBye
		}
	}
	return n, err
}

func (q *wire) PostRecv(wrs []verbs.RecvWR) (int, error) {
	n, err := q.QP.PostRecv(wrs)
	if q.State() == verbs.StateInit {
		q.early += n
	}
	return n, err
}

func (q *wire) Modify(attr *verbs.QPAttr, mask verbs.QPAttrMask) error {
	err := q.QP.Modify(attr, mask)
	if err == nil && mask&verbs.QPAttrState != 0 && attr.State == verbs.StateErr &&
		q.b.plan.rails == 1 && !q.ending {
		q.ending = true
		q.b.ending[q.NIC]++
	}
	return err
}

func (q *wire) Close() error {
	err := q.QP.Close()
	if err != nil {
		return err
	}
	if q.ending {
		q.ending = false
		q.b.ending[q.NIC]--
	}
	if l := q.link; l != nil {
		l.wires = slices.DeleteFunc(l.wires, func(o *wire) bool { return o == q })
	}
	return nil
}
