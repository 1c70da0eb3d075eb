package vqp_test

import (
	"errors"
	"fmt"
	"slices"
	"testing"

	"ibverbx"
	"ibverbx/internal/vqptest"
	"ibverbx/verbs"
)

// end is a virtual queue pair on a host, and a record of all requests that were posted and not yet
// reported. Every completion is compared with the record. So every test also proves promises 1 to
// 5: each request is reported once, in the order of posting, with its data in place, and after a
// failure everything is flushed.
type end struct {
	*ibverbx.VirtualQP
	host  *host
	mem   *memory
	other *end
	peer  ibverbx.RemoteMR // the other host's memory
	word  uint64           // offset in the other host's memory of the word for this end's atomics
	count uint64           // what the word must hold after them

	sends, recvs direction
	arriving     [2][]*posted // by kind: what the other end has sent and no receive has reported
	sequence     uint64
	mayFail      bool // the test makes it fail, or closes it
	closed       bool
	due          *request // the request that busy posts next
	announced    bool     // the other end has posted its receive

	earlierFailures uint64 // what failures said when this session began
}

// direction is what was posted in one direction.
type direction struct {
	open     []*posted // not yet reported, oldest first
	reported int
	failure  *ibverbx.WC // the first failed completion
}

// posted is a request that was posted.
type posted struct {
	id uint64
	request
	recv    bool
	sender  *end
	checked bool // its data was found in place
}

// recvBit marks the IDs of receives.
const recvBit = 1 << 63

// The kinds of receives. With one queue pair any receive takes any message, and all are of one
// kind.
const (
	forNotes = iota
	forMessages
)

func (h *host) newEnd(cfg ibverbx.Config) *end {
	h.rig.tb.Helper()
	cfg.Conn.Access = verbs.AccessAll
	q, err := h.dom.NewQP(h.cq, cfg)
	if err != nil {
		h.rig.tb.Fatal(err)
	}
	peer := h.rig.a
	if h == peer {
		peer = h.rig.b
	}
	e := &end{VirtualQP: q, host: h, mem: h.mem, peer: vqptest.ThroughJSON(h.rig.tb, peer.mem.mr.Remote()),
		word: peer.mem.word()}
	h.ends = append(h.ends, e)
	return e
}

func (e *end) tb() testing.TB { return e.host.rig.tb }

func (e *end) single() bool { return e.DataRails() == 1 }

// kind is the index into arriving for messages and their receives, or for notifications and theirs.
func (e *end) kind(message bool) int {
	if message && !e.single() {
		return forMessages
	}
	return forNotes
}

// send posts requests, all in one call. Several queue pairs accept them however full the queues are
// (promise 8). A single one accepts the rest when it has room again.
func (e *end) send(rs ...request) {
	e.tb().Helper()
	for n := 0; n < len(rs); {
		n += e.trySend(rs[n:]...)
		if n < len(rs) {
			e.host.rig.until("room in the send queue",
				func() bool { k := e.trySend(rs[n]); n += k; return k != 0 })
		}
	}
}

// trySend posts requests, all in one call, and says how many were accepted.
func (e *end) trySend(rs ...request) int {
	e.tb().Helper()
	var wrs []ibverbx.SendWR
	for i := range rs {
		e.sequence++
		rs[i].ID = e.sequence
		wrs = append(wrs, rs[i].SendWR)
	}
	n, err := e.PostSend(wrs...)
	full := e.single() && errors.Is(err, verbs.ErrQueueFull)
	if n == len(rs) && err != nil || n < len(rs) && !full {
		e.tb().Fatalf("PostSend took %d of %d requests: %v", n, len(rs), err)
	}
	for i := range rs[:n] {
		p := &posted{id: rs[i].ID, request: rs[i], sender: e}
		e.sends.open = append(e.sends.open, p)
		if p.notifies() {
			k := e.kind(p.Opcode.IsSend())
			e.other.arriving[k] = append(e.other.arriving[k], p)
		}
	}
	return n
}

// deliver posts at the other end the receives that some requests need, and then the requests.
func (e *end) deliver(rs ...request) {
	e.tb().Helper()
	for i := range rs {
		e.other.expect(&rs[i])
	}
	e.send(rs...)
}

// expect posts the receive that a request of the other end needs, if any.
func (e *end) expect(r *request) {
	e.tb().Helper()
	if !e.tryExpect(r) {
		e.host.rig.until("room in the receive queue", func() bool { return e.tryExpect(r) })
	}
}

// tryExpect does so unless the queue of a single queue pair is full.
func (e *end) tryExpect(r *request) bool {
	e.tb().Helper()
	switch {
	case !r.notifies():
		return true
	case r.Opcode.IsSend():
		return e.tryRecv(e.mem.land(uint64(len(r.want)) + 8))
	}
	return e.tryRecv()
}

// recv posts a receive: with memory for a message, or without for a notification.
func (e *end) recv(plots ...plot) {
	e.tb().Helper()
	if !e.tryRecv(plots...) {
		e.tb().Fatal("PostRecv: the queue is full")
	}
}

func (e *end) tryRecv(plots ...plot) bool {
	e.tb().Helper()
	e.sequence++
	p := &posted{id: recvBit | e.sequence, recv: true}
	wr := ibverbx.RecvWR{ID: p.id}
	for _, at := range plots {
		p.lands = append(p.lands, landing{e.mem, at})
		wr.SGL = append(wr.SGL, e.mem.mr.Slice(at.at, at.length))
	}
	if len(wr.SGL) == 1 {
		wr.Local, wr.SGL = wr.SGL[0], nil
	}
	switch n, err := e.PostRecv(wr); {
	case n == 1 && err == nil:
		e.recvs.open = append(e.recvs.open, p)
		return true
	case n == 0 && e.single() && errors.Is(err, verbs.ErrQueueFull):
		p.release()
		return false
	default:
		e.tb().Fatalf("PostRecv: %d, %v", n, err)
		return false
	}
}

// report compares a completion with the record.
func (e *end) report(wc *ibverbx.WC) {
	e.tb().Helper()
	d := &e.sends
	if wc.ID&recvBit != 0 {
		d = &e.recvs
	}
	for len(d.open) != 0 && d.open[0].id != wc.ID && e.single() && d.open[0].Flags&verbs.SendSignaled == 0 &&
		!d.open[0].recv {
		// an unsignaled success of a single queue pair is proven by a later completion
		e.succeeded(d.pop())
	}
	if len(d.open) == 0 || d.open[0].id != wc.ID {
		e.tb().Fatalf("promises 1 and 2: %s is not the next to be reported\n%s", fmtWC(wc), e.describe())
	}
	p := d.pop()
	switch {
	case wc.Status == verbs.StatusSuccess && d.failure != nil:
		e.tb().Fatalf("promise 5: %s succeeded behind %s", fmtWC(wc), fmtWC(d.failure))
	case wc.Status == verbs.StatusSuccess && p.recv:
		e.received(p, wc)
	case wc.Status == verbs.StatusSuccess:
		e.sent(p, wc)
	case !e.mayFail:
		e.tb().Fatalf("%s failed: %v\n%s", fmtWC(wc), e.Err(), e.host.rig.describe())
	case d.failure != nil && wc.Status != verbs.StatusWRFlushErr:
		e.tb().Fatalf("promise 5: %s behind %s", fmtWC(wc), fmtWC(d.failure))
	case d.failure == nil:
		failed := *wc
		d.failure = &failed
	}
}

func (d *direction) pop() *posted {
	p := d.open[0]
	d.open = d.open[1:]
	d.reported++
	return p
}

// sent checks a send that succeeded.
func (e *end) sent(p *posted, wc *ibverbx.WC) {
	e.tb().Helper()
	length := uint64(len(p.want))
	if e.single() {
		length = 0 // Spray does not report it
	}
	if wc.Opcode != p.Opcode.WCOpcode() || wc.ByteLen != length {
		e.tb().Fatalf("%s: want %v of %d bytes", fmtWC(wc), p.Opcode.WCOpcode(), length)
	}
	e.succeeded(p)
}

func (e *end) succeeded(p *posted) {
	e.tb().Helper()
	p.inPlace()
	if !p.notifies() || !p.Opcode.IsSend() {
		p.release()
	}
}

// received checks a receive that succeeded, and promise 4: the message and all earlier writes are
// in memory.
func (e *end) received(p *posted, wc *ibverbx.WC) {
	e.tb().Helper()
	k := e.kind(len(p.lands) != 0)
	if len(e.arriving[k]) == 0 {
		e.tb().Fatalf("a receive for nothing that was sent: %s", fmtWC(wc))
	}
	m := e.arriving[k][0]
	e.arriving[k] = e.arriving[k][1:]
	if m.never {
		e.tb().Fatalf("promise 4: told of a %v that something before it, or itself, has failed: %s\n%s",
			m.Opcode, fmtWC(wc), e.host.rig.describe())
	}
	opcode, length := verbs.WCRecvRDMAWithImm, uint64(len(m.want))
	switch {
	case m.Opcode.IsSend():
		opcode = verbs.WCRecv
	case e.Scheme() == ibverbx.Spray && !e.single():
		length = 0 // Spray does not report it
	}
	flags := verbs.WCFlags(0)
	if m.Opcode.HasImm() {
		flags = verbs.WCWithImm
	}
	if wc.Opcode != opcode || wc.ByteLen != length || wc.Flags != flags || wc.Imm != m.Imm {
		e.tb().Fatalf("%s: want %v of %d bytes, immediate %#x", fmtWC(wc), opcode, length, m.Imm)
	}
	for _, w := range m.sender.sends.open {
		if w.id < m.id && (w.Opcode == verbs.OpRDMAWrite || w.Opcode == verbs.OpRDMAWriteWithImm) {
			w.inPlace()
		}
	}
	if m.Opcode.IsSend() {
		m.lands = p.lands
	}
	m.inPlace()
	p.release()
}

// inPlace checks that the data of a request is where it must be.
func (p *posted) inPlace() {
	if p.checked || p.Opcode.IsSend() && p.lands == nil {
		return
	}
	rest := p.want
	for _, at := range p.lands {
		at.mem.host.rig.tb.Helper()
		n := min(uint64(len(rest)), at.length)
		at.mem.holds(fmt.Sprintf("%v, id %d", p.Opcode, p.id), at.plot, rest[:n])
		rest = rest[n:]
	}
	p.checked = true
}

// release frees the memory to which the data went.
func (p *posted) release() {
	for _, at := range p.lands {
		at.mem.release(at.plot)
	}
}

// settled says whether everything that was posted was reported.
func (e *end) settled() bool { return len(e.sends.open)+len(e.recvs.open) == 0 }

// settle waits until both ends have reported everything. It checks that nothing is left in them and
// that their atomics add up.
func settle(a, b *end) {
	a.tb().Helper()
	rig := a.host.rig
	rig.until("every request of both ends", func() bool {
		for _, e := range []*end{a, b} {
			if e.due != nil {
				e.proceed()
			}
		}
		return a.settled() && b.settled() && a.due == nil && b.due == nil
	})
	rig.pump()
	for _, e := range []*end{a, b} {
		s := e.Stats()
		if s.SendWindow != 0 || s.RecvWindow != 0 || s.Banked != 0 || s.OutOfOrder != 0 ||
			len(e.arriving[0])+len(e.arriving[1]) != 0 {
			e.tb().Fatalf("not quiet at the end:\n%s", e.describe())
		}
		for i, r := range s.Rails {
			if !e.single() && r.Outstanding != 0 {
				e.tb().Fatalf("rail %d is not quiet at the end: %+v", i, r)
			}
		}
		if failures := e.failures(); failures != e.earlierFailures {
			e.tb().Fatalf("something went wrong unnoticed, %d times:\n%s", failures-e.earlierFailures,
				e.describe())
		}
		if got := wordAt(e.other.mem.buf[e.word:]); got != e.count {
			e.tb().Fatalf("the atomics have left %#x, want %#x", got, e.count)
		}
	}
}

// failures counts, since the end was made, failed completions and those that belong to no request.
func (e *end) failures() uint64 {
	s := e.Stats()
	n := s.StaleEvents
	for _, r := range s.Rails {
		n += r.Errors
	}
	return n
}

// close closes the end. Everything outstanding must then be reported, in order.
func (e *end) close() {
	e.tb().Helper()
	e.mayFail, e.closed = true, true
	if err := e.Close(); err != nil {
		e.tb().Errorf("close: %v", err)
	}
	e.host.pump()
	if !e.settled() && !e.tb().Failed() {
		e.tb().Errorf("promise 1: never reported after Close:\n%s", e.describe())
	}
}

// describe describes the state of an end.
func (e *end) describe() string {
	name := "a"
	if e.host == e.host.rig.b {
		name = "b"
	}
	s := fmt.Sprintf("%s, virtual qp %d: %v\n", name, e.Num(), e.Err())
	for _, d := range []*direction{&e.sends, &e.recvs} {
		s += fmt.Sprintf("\t%d reported, %d open", d.reported, len(d.open))
		for _, p := range d.open[:min(len(d.open), 4)] {
			if p.recv {
				s += fmt.Sprintf(" {receive %d, %d pieces}", p.id&^recvBit, len(p.lands))
			} else {
				s += fmt.Sprintf(" {%v %d, %d bytes}", p.Opcode, p.id, len(p.want))
			}
		}
		s += "\n"
	}
	if !e.closed {
		s += fmt.Sprintf("\t%+v\n", e.Stats())
	}
	return s
}

func fmtWC(wc *ibverbx.WC) string {
	what := "send"
	if wc.ID&recvBit != 0 {
		what = "receive"
	}
	return fmt.Sprintf("%s %d (%v, %v, %d bytes, immediate %#x)", what, wc.ID&^recvBit, wc.Opcode,
		wc.Status.Name(), wc.ByteLen, wc.Imm)
}

// posts are the calls that post something.
func (e *end) posts() map[string]func() (int, error) {
	return map[string]func() (int, error){
		"PostSend": func() (int, error) {
			return e.PostSend(ibverbx.SendWR{Opcode: verbs.OpRDMAWrite, Flags: verbs.SendSignaled,
				Local: e.mem.mr.Slice(0, 8), Remote: e.peer.Slice(groundAt, 8)})
		},
		"PostRecv": func() (int, error) { return e.PostRecv(ibverbx.RecvWR{}) },
	}
}

// stopped waits until an end has failed with one of the statuses and has reported everything. It
// checks the state and error of the end, and that it refuses requests.
func (e *end) stopped(allowed ...verbs.Status) *ibverbx.FailedError {
	e.tb().Helper()
	e.host.rig.until("the failure, and all that it flushes", func() bool {
		return e.Err() != nil &&
			e.settled()
	})
	if e.host.rig.kind.strict {
		allowed = allowed[:1]
	}
	var failed *ibverbx.FailedError
	if err := e.Err(); !errors.As(err, &failed) ||
		!slices.ContainsFunc(allowed, func(s verbs.Status) bool { return errors.Is(err, s) }) {
		e.tb().Fatalf("VirtualQP.Err is %v, want one of %v", err, allowed)
	}
	if s := e.State(); s != verbs.StateErr {
		e.tb().Errorf("state %v after a failure", s)
	}
	for name, post := range e.posts() {
		if n, err := post(); n != 0 || !errors.Is(err, ibverbx.ErrFailed) || !errors.Is(err, failed.Err) {
			e.tb().Errorf("%s after a failure: %d, %v", name, n, err)
		}
	}
	return failed
}
