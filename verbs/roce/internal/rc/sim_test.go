package rc

import (
	"bytes"
	"encoding/binary"
	"flag"
	"fmt"
	"math/rand/v2"
	"testing"

	"ibverbx/verbs"
)

var (
	worlds     = flag.Int("worlds", 200, "how many worlds TestSimulation runs")
	firstWorld = flag.Uint64("first", 0, "the seed of the first one")
)

// The memory of an end in the simulation: what the peer writes to, what it reads, what it sends
// from, where it receives, and counters.
const (
	writeArea   = 0
	readArea    = 256 << 10
	sourceArea  = 512 << 10
	recvArea    = 768 << 10
	areaLen     = 256 << 10
	counterArea = 1 << 20
	simMemory   = counterArea + 4096
)

// program is what one end does, and what must come of it.
type program struct {
	self, peer *end
	rng        *rand.Rand
	left       int      // requests to post
	posted     []simReq // in order; those completed are removed
	toRecv     []simMsg // messages on their way to the peer's receives, in order
	recvs      []simRecv
	id         uint64
	counter    uint64 // atomics carried out
	at         [3]int // next free byte of the areas this end fills: the peer's, its own sources, its receives
}

type simReq struct {
	wr     verbs.SendWR
	want   []byte
	target int
	number uint64 // of an atomic: how many came before
}

type simMsg struct {
	op   verbs.Opcode
	want []byte
	imm  uint32
}

type simRecv struct {
	id  uint64
	off int
}

// take takes n bytes of an area, in turn. What is outstanding never fills half of one.
func (p *program) take(area, n int) int {
	if p.at[area]+n > areaLen {
		p.at[area] = 0
	}
	off := p.at[area]
	p.at[area] += n
	return off
}

const simDepth, simMax = 8, 9000

// post posts a random request.
func (p *program) post() {
	if p.left == 0 || len(p.posted) >= simDepth {
		return
	}
	p.left--
	p.id++
	ops := []verbs.Opcode{verbs.OpRDMAWrite, verbs.OpRDMAWriteWithImm, verbs.OpSend, verbs.OpSendWithImm,
		verbs.OpRDMARead, verbs.OpAtomicFetchAdd, verbs.OpAtomicCmpAndSwp}
	op := ops[p.rng.IntN(len(ops))]
	size := p.rng.IntN(600)
	if p.rng.IntN(3) == 0 {
		size = p.rng.IntN(simMax)
	}
	if op.IsAtomic() {
		size = 8
	}
	off := sourceArea + p.take(1, size)
	wr := verbs.SendWR{ID: p.id, Opcode: op, Flags: verbs.SendSignaled, Imm: p.rng.Uint32(),
		RKey: p.peer.mr.RKey(), SGL: p.pieces(off, size)}
	if p.rng.IntN(8) == 0 {
		wr.Flags |= verbs.SendFence
	}
	r := simReq{want: make([]byte, size), target: off}
	switch {
	case op == verbs.OpRDMARead:
		from := readArea + p.rng.IntN(areaLen-size)
		wr.RemoteAddr = p.peer.mr.Addr() + uint64(from)
		copy(r.want, p.peer.mem[from:])
	case op.IsAtomic():
		wr.RemoteAddr = p.peer.mr.Addr() + counterArea
		wr.CompareAdd, wr.Swap = 1, p.counter+1
		if op == verbs.OpAtomicCmpAndSwp {
			wr.CompareAdd = p.counter
		}
		r.number = p.counter
		p.counter++
	default:
		for i := range r.want {
			r.want[i] = byte(p.rng.Uint32())
		}
		copy(p.self.mem[off:], r.want)
		if !op.IsSend() {
			r.target = writeArea + p.take(0, size)
			wr.RemoteAddr = p.peer.mr.Addr() + uint64(r.target)
		}
		if op.IsSend() || op.HasImm() {
			p.toRecv = append(p.toRecv, simMsg{op, r.want, wr.Imm})
		}
	}
	r.wr = wr
	p.posted = append(p.posted, r)
	p.self.send(wr)
}

// pieces is memory from an offset on, in up to four pieces.
func (p *program) pieces(off, n int) (sgl []verbs.SGE) {
	for k := p.rng.IntN(4); k > 0 && n > 1; k-- {
		cut := 1 + p.rng.IntN(n-1)
		sgl = append(sgl, p.self.sge(off, cut)...)
		off, n = off+cut, n-cut
	}
	return append(sgl, p.self.sge(off, n)...)
}

// receive posts a receive for messages of the peer.
func (p *program) receive() {
	if len(p.recvs) >= simDepth {
		return
	}
	p.id++
	off := recvArea + p.take(2, simMax)
	p.recvs = append(p.recvs, simRecv{p.id, off})
	p.self.recv(verbs.RecvWR{ID: p.id, SGL: p.pieces(off, simMax)})
}

// check takes the completions that there are, and compares them with what must be. from is the
// peer's program, whose messages this end receives.
func (p *program) check(from *program) error {
	for _, wc := range p.self.poll() {
		if wc.Status != verbs.StatusSuccess {
			return fmt.Errorf("request %d: %v", wc.ID, wc.Status)
		}
		if wc.Opcode.IsRecv() {
			if err := p.checkRecv(&wc, from); err != nil {
				return err
			}
			continue
		}
		if len(p.posted) == 0 || p.posted[0].wr.ID != wc.ID {
			return fmt.Errorf("completion of request %d out of order", wc.ID)
		}
		r := p.posted[0]
		p.posted = p.posted[1:]
		var got []byte
		switch op := r.wr.Opcode; {
		case op.IsAtomic():
			got = p.self.mem[r.target:][:8]
			binary.NativeEndian.PutUint64(r.want, r.number)
		case op == verbs.OpRDMARead:
			got = p.self.mem[r.target:][:len(r.want)]
		case op.IsSend():
			continue // what arrives is compared by the receiver
		default:
			got = p.peer.mem[r.target:][:len(r.want)]
		}
		if !bytes.Equal(got, r.want) {
			return fmt.Errorf("%v %d of %d bytes: wrong bytes", r.wr.Opcode, wc.ID, len(r.want))
		}
	}
	return nil
}

func (p *program) checkRecv(wc *verbs.WC, from *program) error {
	if len(p.recvs) == 0 || p.recvs[0].id != wc.ID {
		return fmt.Errorf("receive %d out of order", wc.ID)
	}
	if len(from.toRecv) == 0 {
		return fmt.Errorf("receive %d of what nobody sent", wc.ID)
	}
	r, m := p.recvs[0], from.toRecv[0]
	p.recvs, from.toRecv = p.recvs[1:], from.toRecv[1:]
	if int(wc.ByteLen) != len(m.want) || m.op.HasImm() && (wc.Imm != m.imm || wc.Flags != verbs.WCWithImm) {
		return fmt.Errorf("receive %d: %d bytes, imm %#x; sent were %d and %#x", wc.ID, wc.ByteLen, wc.Imm,
			len(m.want), m.imm)
	}
	if m.op.IsSend() && !bytes.Equal(p.self.mem[r.off:][:len(m.want)], m.want) {
		return fmt.Errorf("receive %d of %d bytes: wrong bytes", wc.ID, len(m.want))
	}
	return nil
}

// simWorld runs one world, and returns what went wrong in it.
func simWorld(t *testing.T, seed uint64) (stats [2]Stats, err error) {
	rng := rand.New(rand.NewPCG(seed, 99))
	s := shape{ours: rng.IntN(2) == 0, memory: simMemory, reads: uint8(1 + rng.IntN(6)), rndSeed: seed,
		timeout: uint8(10 + rng.IntN(6)),
		psn:     [2]uint32{rng.Uint32N(1 << 24), rng.Uint32N(1 << 24)}}
	if rng.IntN(3) == 0 {
		s.psn[0] = 1<<24 - 1 - rng.Uint32N(50)
	}
	if rng.IntN(3) == 0 {
		s.psn[1] = 1<<24 - 1 - rng.Uint32N(50)
	}
	n := newNetwork(t, seed, s)
	share := func(most float64) float64 {
		if rng.IntN(2) == 0 {
			return 0
		}
		return rng.Float64() * most
	}
	n.harm = harm{share(0.1), share(0.1), share(0.2)}
	var ps [2]*program
	for i := range ps {
		e := n.ends[i]
		for j := readArea; j < readArea+areaLen; j += 8 {
			binary.NativeEndian.PutUint64(e.mem[j:], rng.Uint64())
		}
		ps[i] = &program{self: e, peer: n.ends[1-i], rng: rng, left: 40}
	}
	for step := 0; ; step++ {
		for i, p := range ps {
			if rng.IntN(6) == 0 {
				p.post()
			}
			if rng.IntN(12) == 0 {
				p.receive()
			}
			if err := p.check(ps[1-i]); err != nil {
				return stats, err
			}
		}
		moved := n.step()
		over := true
		for _, p := range ps {
			over = over && p.left == 0 && len(p.posted) == 0 && len(p.toRecv) == 0
		}
		switch {
		case over && !moved:
			return [2]Stats{n.ends[0].q.Stats(), n.ends[1].q.Stats()}, nil
		case step > 200000:
			return stats, fmt.Errorf("it does not end: %v\n%v", n.ends[0], n.ends[1])
		}
	}
}

// TestSimulation: on networks that lose, repeat, delay and reorder packets, every request is
// carried out once, in order, and completes.
func TestSimulation(t *testing.T) {
	var sum Stats
	for seed := *firstWorld; seed < *firstWorld+uint64(*worlds); seed++ {
		stats, err := simWorld(t, seed)
		if err != nil {
			t.Fatalf("world %d: %v", seed, err)
		}
		for _, s := range stats {
			sum.Sent += s.Sent
			sum.Received += s.Received
			sum.Resent += s.Resent
			sum.Timeouts += s.Timeouts
			sum.Probes += s.Probes
			sum.Duplicates += s.Duplicates
			sum.Ahead += s.Ahead
			sum.RNRNAKs += s.RNRNAKs
			sum.NAKs += s.NAKs
			sum.Unexpected += s.Unexpected
			sum.Broken += s.Broken
		}
	}
	t.Logf("%+v", sum)
	if sum.Resent == 0 || sum.Duplicates == 0 || sum.Ahead == 0 || sum.RNRNAKs == 0 || sum.Broken != 0 {
		t.Errorf("some of it never happened, or what must not has: %+v", sum)
	}
}
