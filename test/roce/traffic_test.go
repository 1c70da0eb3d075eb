package roce

import (
	"bytes"
	"encoding/binary"
	"flag"
	"math/rand/v2"
	"runtime"
	"testing"
	"time"

	"ibverbx/verbs"
	"ibverbx/verbs/roce"
	"ibverbx/verbs/verbstest"
)

var (
	requestsFlag = flag.Int("requests", 200, "requests of TestForeignTraffic, of each end")
	trafficSeed  = flag.Uint64("traffic-seed", 1, "seed of TestForeignTraffic")
	oneWayFlag   = flag.Bool("one-way", false, "only the first end of TestForeignTraffic has requests")
)

// Every opcode at sizes around the path MTU, many at a time, and over the wrap of the PSNs; both
// ends have requests of their own. It is what runs where the wires lose packets, too: no request is
// carried out twice, and none is lost.
func TestForeignTraffic(t *testing.T) {
	eachSide(t, func(t *testing.T, env verbstest.Env) {
		a, b := env.Open(t)
		x := newTraffic(t, env, a, b)
		x.run()
		x.verify()
		for _, d := range []verbs.Device{a, b} {
			if d, ok := d.(*roce.Device); ok {
				x.inspect(d)
			}
		}
	})
}

// The same between two ends of our own.
func TestTraffic(t *testing.T) {
	x := newTraffic(t, verbstest.Env{}, openOurs(t, "127.0.0.1"), openOurs(t, "127.0.0.2"))
	x.run()
	x.verify()
}

// request is one of those of an end. Its bytes have the same place in all buffers.
type request struct {
	op       verbs.Opcode
	at, size int
	atomic   uint64 // for an atomic, what it must find
}

// party is an end that has requests, and takes those of the other.
type party struct {
	*verbstest.End
	out, in, exposed *verbstest.Buffer // source of writes and sends; results; what the peer accesses
	requests         []request
	posted, done     int
	receives         []int // the peer's requests that take a receive, in their order
	received, given  int
}

// patient is a timeout of 0.27 s. A peer on a busy machine takes longer than the usual 67 ms at
// times, and what rdma_rxe (Linux 6.1) repeats after a timeout is wrong now and then: see the
// README of test/rxe.
const patient = 16

// traffic is two ends that exchange requests.
type traffic struct {
	t      *testing.T
	ends   [2]*party
	random *rand.Rand
}

const (
	inFlight = 16 // requests under way of each end
	gap      = 8  // bytes between the places of two requests, which stay as they are
)

func newTraffic(t *testing.T, env verbstest.Env, a, b verbs.Device) *traffic {
	x := &traffic{t: t, random: rand.New(rand.NewPCG(*trafficSeed, 0))}
	pair := verbstest.NewPair(verbstest.NewNode(t, env, a), verbstest.NewNode(t, env, b),
		verbstest.PairConfig{Cap: verbs.QPCap{MaxSendWR: inFlight, MaxRecvWR: inFlight}, SignalAll: true,
			Adjust: func(_ verbs.QP, attr *verbs.QPAttr) {
				attr.MinRNRTimer = 1 // 10 µs
				attr.Timeout = patient
			}})
	x.ends = [2]*party{{End: pair.A}, {End: pair.B}}
	attr, err := pair.A.QP.Query()
	check(t, err)
	x.draw(x.ends[0], attr.PathMTU.Bytes())
	if !*oneWayFlag {
		x.draw(x.ends[1], attr.PathMTU.Bytes())
	}
	for i, p := range x.ends {
		size := max(p.size(), x.ends[1-i].size())
		for seed, b := range []**verbstest.Buffer{&p.out, &p.in, &p.exposed} {
			*b = p.Register(size, verbs.AccessAll)
			if b != &p.in {
				verbstest.Fill((*b).B, byte(seed+7*i))
			}
		}
		clear(p.exposed.B[:8]) // the word of the atomics
	}
	return x
}

// size is how many bytes a buffer of the end's requests needs.
func (p *party) size() int {
	if len(p.requests) == 0 {
		return gap
	}
	last := p.requests[len(p.requests)-1]
	return last.at + last.size + gap
}

// draw draws the requests of an end.
func (x *traffic) draw(p *party, mtu int) {
	sizes := []int{0, 1, 3, 4, 8, mtu - 1, mtu, mtu + 1, 2 * mtu, 3*mtu + 5, 15*mtu - 1, 64 << 10, 100_000}
	opcodes := []verbs.Opcode{verbs.OpSend, verbs.OpSendWithImm, verbs.OpRDMAWrite, verbs.OpRDMAWriteWithImm,
		verbs.OpRDMARead, verbs.OpAtomicFetchAdd, verbs.OpAtomicCmpAndSwp}
	at, atomics := gap+8, uint64(0)
	for i := range *requestsFlag {
		r := request{op: opcodes[x.random.IntN(len(opcodes))], at: at, size: sizes[x.random.IntN(len(sizes))]}
		if r.op.IsAtomic() {
			r.size, r.atomic = 8, atomics
			atomics++
		}
		p.requests = append(p.requests, r)
		if r.op.IsSend() || r.op.HasImm() {
			x.other(p).receives = append(x.other(p).receives, i)
		}
		at += (r.size + gap + 7) &^ 7
	}
}

func (x *traffic) other(p *party) *party {
	if p == x.ends[0] {
		return x.ends[1]
	}
	return x.ends[0]
}

// run posts and polls until all requests are complete. Receives are posted a few at a time, so that
// some messages find none.
func (x *traffic) run() {
	x.t.Helper()
	begin, last := time.Now(), time.Now()
	for !x.complete() {
		moved := false
		for _, p := range x.ends {
			moved = x.post(p) || moved
			moved = x.poll(p) || moved
		}
		switch {
		case moved:
			last = time.Now()
		case time.Since(last) > *waitFlag:
			x.t.Fatalf("nothing for %v; complete are %d of %d and %d of %d requests, %d of %d and %d of %d "+
				"receives", *waitFlag,
				x.ends[0].done, len(x.ends[0].requests), x.ends[1].done, len(x.ends[1].requests),
				x.ends[0].received, len(x.ends[0].receives), x.ends[1].received, len(x.ends[1].receives))
		default:
			runtime.Gosched()
		}
	}
	x.t.Logf("%d and %d requests in %v", len(x.ends[0].requests), len(x.ends[1].requests), time.Since(begin))
}

func (x *traffic) complete() bool {
	for _, p := range x.ends {
		if p.done < len(p.requests) || p.received < len(p.receives) {
			return false
		}
	}
	return true
}

// post posts a request and a receive, where there is room.
func (x *traffic) post(p *party) bool {
	peer, moved := x.other(p), false
	if p.given < len(p.receives) && p.given-p.received < inFlight/2 {
		r := &peer.requests[p.receives[p.given]]
		p.PostRecv(verbs.RecvWR{ID: uint64(p.given), SGL: p.exposed.SGL(r.at, r.size)})
		p.given++
		moved = true
	}
	if p.posted < len(p.requests) && p.posted-p.done < inFlight {
		r := &p.requests[p.posted]
		wr := verbs.SendWR{ID: uint64(p.posted), Opcode: r.op, RemoteAddr: peer.exposed.At(r.at),
			RKey: peer.exposed.RKey(), Imm: uint32(p.posted), SGL: p.out.SGL(r.at, r.size)}
		switch {
		case r.op == verbs.OpRDMARead:
			wr.SGL = p.in.SGL(r.at, r.size)
		case r.op.IsAtomic():
			wr.SGL, wr.RemoteAddr = p.in.SGL(r.at, 8), peer.exposed.At(0)
			wr.CompareAdd, wr.Swap = 1, 0
			if r.op == verbs.OpAtomicCmpAndSwp {
				wr.CompareAdd, wr.Swap = r.atomic, r.atomic+1
			}
		}
		p.PostSend(wr)
		p.posted++
		moved = true
	}
	return moved
}

// poll takes completions, which have to come in order.
func (x *traffic) poll(p *party) bool {
	x.t.Helper()
	var wcs [inFlight]verbs.WC
	sent, err := p.SendCQ.Poll(wcs[:])
	check(x.t, err)
	for _, wc := range wcs[:sent] {
		if wc.Status != verbs.StatusSuccess || wc.ID != uint64(p.done) {
			x.t.Fatalf("%s: request %d (%v of %d bytes) ended with %v, after %d", p.Dev.Name(), wc.ID,
				p.requests[wc.ID].op, p.requests[wc.ID].size, wc.Status, p.done)
		}
		p.done++
	}
	got, err := p.RecvCQ.Poll(wcs[:])
	check(x.t, err)
	for _, wc := range wcs[:got] {
		if wc.Status != verbs.StatusSuccess || wc.ID != uint64(p.received) {
			x.t.Fatalf("%s: receive %d ended with %v, after %d", p.Dev.Name(), wc.ID, wc.Status, p.received)
		}
		i := p.receives[p.received]
		r := &x.other(p).requests[i]
		if int(wc.ByteLen) != r.size || r.op.HasImm() && wc.Imm != uint32(i) {
			x.t.Fatalf("%s: receive %d of %d bytes, immediate %d; want %d, %d", p.Dev.Name(), wc.ID,
				wc.ByteLen, wc.Imm,
				r.size, i)
		}
		p.received++
	}
	return sent+got != 0
}

// verify compares all memory with what the requests make of it.
func (x *traffic) verify() {
	x.t.Helper()
	for i, p := range x.ends {
		peer := x.other(p)
		in := make([]byte, len(p.in.B))
		exposed := make([]byte, len(peer.exposed.B))
		verbstest.Fill(exposed, byte(2+7*(1-i)))
		clear(exposed[:8])
		atomics := uint64(0)
		for _, r := range p.requests {
			switch {
			case r.op.IsAtomic():
				binary.NativeEndian.PutUint64(in[r.at:], r.atomic)
				atomics++
			case r.op == verbs.OpRDMARead:
				copy(in[r.at:][:r.size], peer.exposed.B[r.at:])
			default:
				copy(exposed[r.at:][:r.size], p.out.B[r.at:])
			}
		}
		binary.NativeEndian.PutUint64(exposed, atomics)
		x.compare("the results of "+p.Dev.Name(), p.in.B, in, p)
		x.compare("the memory of "+peer.Dev.Name(), peer.exposed.B, exposed, p)
	}
}

func (x *traffic) compare(what string, got, want []byte, p *party) {
	x.t.Helper()
	if bytes.Equal(got, want) {
		return
	}
	for i := range got {
		if got[i] == want[i] {
			continue
		}
		for n, r := range p.requests {
			if i >= r.at && i < r.at+r.size {
				x.t.Errorf("%s: byte %d of request %d (%v of %d bytes) is %#x, want %#x", what, i-r.at, n,
					r.op, r.size,
					got[i], want[i])
				return
			}
		}
		x.t.Errorf("%s: byte %d, which belongs to no request, is %#x, want %#x", what, i, got[i], want[i])
		return
	}
}

// inspect demands that nothing that the peer sent was foreign to our end.
func (x *traffic) inspect(d *roce.Device) {
	x.t.Helper()
	c := d.Counters()
	x.t.Logf("%s: %+v", d.Name(), c)
	if c.Malformed+c.NoQP+c.Strangers+c.BadICRC+c.Unsendable+c.RecvErrors+c.Broken != 0 {
		x.t.Errorf("%s refused packets of its peer: %+v", d.Name(), c)
	}
}
