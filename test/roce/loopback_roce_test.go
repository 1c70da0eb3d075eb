package roce

import (
	"bytes"
	"flag"
	"math"
	"net/netip"
	"sync/atomic"
	"testing"
	"time"
	"unsafe"

	"ibverbx/verbs"
	"ibverbx/verbs/roce"
	"ibverbx/verbs/verbstest"
)

// card is what an end tells of itself.
type card struct {
	GID  verbs.GID
	QPN  uint32
	Addr uint64
	RKey uint32
}

// rdma is one end of a connection over verbs/roce. Both ends poll.
type rdma struct {
	peer
	dev  *roce.Device
	pd   verbs.PD
	qp   verbs.QP
	cq   verbs.CQ
	mr   verbs.MR
	buf  []byte
	size int
	card card // of this end
	wr   []verbs.SendWR
	wcs  [2 * depth]verbs.WC

	close func()
}

// newRDMA makes an end whose buffer has a message to send and, behind it, one that comes.
func newRDMA(size int) *rdma {
	p, err := roce.Open(roce.Config{Addresses: []netip.Addr{netip.MustParseAddr("127.0.0.1")}})
	must(err)
	dev := p.Device(0)
	pd, err := dev.AllocPD()
	must(err)
	r := &rdma{dev: dev, pd: pd, size: size, buf: make([]byte, 2*size)}
	r.mr, err = pd.RegisterMR(r.buf, verbs.AccessAll)
	must(err)
	r.cq, err = dev.CreateCQ(verbs.CQConfig{})
	must(err)
	r.qp, err = pd.CreateQP(verbs.QPConfig{SendCQ: r.cq, RecvCQ: r.cq})
	must(err)
	gid, err := dev.QueryGID(1, 0)
	must(err)
	r.card = card{gid.GID, r.qp.Num(), r.mr.Addr() + uint64(size), r.mr.RKey()}
	r.close = func() {
		must(r.qp.Close())
		must(r.cq.Close())
		must(r.mr.Close())
		must(pd.Close())
		must(p.Close())
	}
	return r
}

// connect takes the queue pair to RTS. It writes to what the peer's card says.
func (r *rdma) connect(to card) {
	toRTS(r.qp, to)
	r.wr = []verbs.SendWR{{Opcode: verbs.OpRDMAWrite, Flags: verbs.SendSignaled,
		SGL:        []verbs.SGE{{Addr: r.mr.Addr(), Length: uint32(r.size), LKey: r.mr.LKey()}},
		RemoteAddr: to.Addr, RKey: to.RKey}}
}

func toRTS(qp verbs.QP, to card) {
	must(verbstest.ToRTS(qp, verbs.QPAttr{Port: 1, Access: verbs.AccessRemoteWrite, PathMTU: verbs.MTU4096,
		DestQPNum: to.QPN, MinRNRTimer: 12, Timeout: 17, RetryCount: 7, RNRRetry: 7,
		AH: verbs.AH{Global: true, DGID: to.GID, HopLimit: 64, Port: 1}}))
}

func dialRoCE(b *testing.B, size int) way {
	r := newRDMA(size)
	b.Cleanup(r.close)
	r.peer = startPeer(b, "roce", size)
	var theirs card
	r.say(r.card)
	r.hear(&theirs)
	r.connect(theirs)
	return r
}

func (r *rdma) run(messages int) {
	if r.size == short {
		for range messages {
			r.send(r.arrived() + 1)
			r.await(r.sent())
		}
		return
	}
	for sent, done := 0, 0; done < messages; {
		for ; sent < messages && sent-done < depth; sent++ {
			_, err := r.qp.PostSend(r.wr)
			must(err)
		}
		done += r.poll()
	}
}

// send writes a number to the peer.
func (r *rdma) send(v uint64) {
	atomic.StoreUint64(r.word(0), v)
	_, err := r.qp.PostSend(r.wr)
	must(err)
}

// sent is the number that was written last, and arrived the one that has come.
func (r *rdma) sent() uint64    { return atomic.LoadUint64(r.word(0)) }
func (r *rdma) arrived() uint64 { return atomic.LoadUint64(r.word(8)) }

func (r *rdma) word(at int) *uint64 { return wordOf(r.buf[at:]) }

// await polls until a number has come.
func (r *rdma) await(v uint64) {
	for r.arrived() != v {
		r.poll()
	}
}

// poll takes the completions that are there.
func (r *rdma) poll() int {
	n, err := r.cq.Poll(r.wcs[:])
	must(err)
	for _, wc := range r.wcs[:n] {
		must(wc.Status.Err())
	}
	return n
}

// serveRoCE polls, and writes every number back that comes.
func serveRoCE(talk *conversation, size int) {
	r := newRDMA(size)
	var theirs card
	talk.hear(&theirs)
	r.connect(theirs)
	talk.say(r.card)
	var ended atomic.Bool
	stopped := make(chan struct{})
	go func() {
		defer close(stopped)
		last := uint64(0)
		for !ended.Load() {
			r.poll()
			if v := r.arrived(); size == short && v != last {
				last = v
				r.send(v)
			}
		}
	}()
	talk.tellUsage()
	ended.Store(true)
	<-stopped
	r.close()
}

var (
	processesFlag = flag.Int("processes", 6, "processes of TestManyProcesses")
	forFlag       = flag.Duration("for", 200*time.Millisecond, "how long they write")
)

// written is what a process reports in the end.
type written struct {
	Writes   int
	Counters roce.Counters
}

// Many processes write to one, over a queue pair each, without end: no request fails, and all bytes
// are right. With -v it says how evenly, and how much was sent again.
func TestManyProcesses(t *testing.T) {
	const size = 64 << 10
	to := newRDMA(size * (*processesFlag + 1) / 2)
	t.Cleanup(to.close)
	peers := make([]peer, *processesFlag)
	for i := range peers {
		p := startPeer(t, "writer", size)
		qp, err := to.pd.CreateQP(verbs.QPConfig{SendCQ: to.cq, RecvCQ: to.cq})
		must(err)
		t.Cleanup(func() { must(qp.Close()) })
		var theirs card
		p.hear(&theirs)
		toRTS(qp, theirs)
		p.say(card{to.card.GID, qp.Num(), to.mr.Addr() + uint64(i*size), to.mr.RKey()})
		peers[i] = p
	}
	began := time.Now()
	for i, p := range peers {
		p.say(byte(i + 1))
	}
	for time.Since(began) < *forFlag {
		to.poll()
	}
	for _, p := range peers {
		p.say("stop")
	}
	took := time.Since(began)
	all, least, most := written{}, math.MaxInt, 0
	for i, p := range peers {
		var w written
		heard := make(chan error, 1)
		go func() { heard <- p.in.Decode(&w) }()
		for len(heard) == 0 {
			to.poll()
		}
		check(t, <-heard)
		all.Writes += w.Writes
		all.Counters.Sent += w.Counters.Sent
		all.Counters.Resent += w.Counters.Resent
		least, most = min(least, w.Writes), max(most, w.Writes)
		if at := to.buf[i*size:][:size]; bytes.Count(at, []byte{byte(i + 1)}) != size {
			t.Errorf("what process %d has written is not there", i)
		}
	}
	sent, resent := all.Counters.Sent, all.Counters.Resent
	t.Logf("%d processes: %.2f GB/s, %d to %d writes each, %.2f %% of %d packets sent again, "+
		"%d bursts dropped", len(peers), float64(all.Writes*size)/1e9/took.Seconds(), least, most,
		100*float64(resent)/float64(sent), sent, to.dev.Counters().Overflowed)
}

// writeUntilTold writes to the other end, two messages at a time, until that says stop.
func writeUntilTold(talk *conversation, size int) {
	r := newRDMA(size)
	defer r.close()
	talk.say(r.card)
	var theirs card
	talk.hear(&theirs)
	r.connect(theirs)
	var fill byte
	talk.hear(&fill)
	for i := range r.buf {
		r.buf[i] = fill
	}
	var ended atomic.Bool
	go func() {
		var stop string
		talk.hear(&stop)
		ended.Store(true)
	}()
	var w written
	for sent := 0; !ended.Load() || w.Writes < sent; {
		for ; sent-w.Writes < 2 && !ended.Load(); sent++ {
			_, err := r.qp.PostSend(r.wr)
			must(err)
		}
		w.Writes += r.poll()
	}
	w.Counters = r.dev.Counters()
	talk.say(w)
}

// wordOf is the first eight bytes of b, which a NIC may change.
func wordOf(b []byte) *uint64 { return (*uint64)(unsafe.Pointer(unsafe.SliceData(b))) }
