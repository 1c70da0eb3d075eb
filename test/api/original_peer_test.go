package api_test

import (
	"encoding/json"
	"errors"
	"fmt"
	"math/bits"
	"slices"
	"strings"
	"testing"
	"time"

	"ibverbx"
	"ibverbx/internal/vqptest"
	"ibverbx/verbs"
	"ibverbx/verbs/soft"
)

// original is an end that does what the C++ original does, over the physical queue pairs of one
// software NIC: two data queue pairs and a notify QP. Its behaviour is the original's, as seen in
// its source and between it and this package over the kernel's RDMA:
//
//   - its card has the numbers of the queue pairs and nothing else;
//   - SENDs, and receives with memory, travel on data queue pair 0, whatever the scheme;
//   - in DQPLB it posts its credits, on every data queue pair, with the first receive for a
//     notification; numbers are stored as the host has them, least byte first;
//   - in Spray the notification carries the user's immediate as the host has it;
//   - it serves one read at a time, and begins packet sequence numbers at 0.
type original struct {
	tb     testing.TB
	pd     verbs.PD
	cq     verbs.CQ
	data   []verbs.QP
	notify verbs.QP
	mr     verbs.MR
	buf    []byte
	number uint32 // the next one it sends
}

// originalCredits is how many credits it posts on each queue pair: its maxMsgCntPerQp.
const originalCredits = 100

func newOriginal(tb testing.TB, dev verbs.Device) *original {
	tb.Helper()
	o := &original{tb: tb, buf: make([]byte, 1<<16), pd: vqptest.NewPD(tb, dev),
		cq: vqptest.NewCQ(tb, dev, 4096)}
	var err error
	if o.mr, err = o.pd.RegisterMR(o.buf, verbs.AccessAll); err != nil {
		tb.Fatal(err)
	}
	for range 3 {
		qp, err := o.pd.CreateQP(verbs.QPConfig{SendCQ: o.cq, RecvCQ: o.cq,
			Cap: verbs.QPCap{MaxSendWR: 256, MaxRecvWR: 256}})
		if err != nil {
			tb.Fatal(err)
		}
		o.data = append(o.data, qp)
	}
	o.data, o.notify = o.data[:2], o.data[2]
	return o
}

func (o *original) close() error {
	return errors.Join(o.data[0].Close(), o.data[1].Close(), o.notify.Close(), o.mr.Close(), o.cq.Close(),
		o.pd.Close())
}

// card is what it sends: the keys in its order.
func (o *original) card() string {
	nums := []string{}
	for _, qp := range o.data {
		nums = append(nums, fmt.Sprintf(`"%010d"`, qp.Num()))
	}
	return fmt.Sprintf(`{"notifyQpNum":"%010d","qpNums":[%s]}`, o.notify.Num(), strings.Join(nums, ","))
}

// connect connects it with the peer's card, of which it reads the numbers; the GID it knows.
func (o *original) connect(card []byte, gid verbs.GID) {
	o.tb.Helper()
	var peer struct {
		QPNums      []string `json:"qpNums"`
		NotifyQPNum string   `json:"notifyQpNum"`
	}
	if err := json.Unmarshal(card, &peer); err != nil {
		o.tb.Fatal(err)
	}
	for i, s := range append(peer.QPNums, peer.NotifyQPNum) {
		qp := append(slices.Clone(o.data), o.notify)[i]
		attr := verbs.QPAttr{Port: 1, Access: verbs.AccessAll, PathMTU: verbs.MTU1024, MaxDestRDAtomic: 1,
			MinRNRTimer: 1, Timeout: 14, RetryCount: 6, RNRRetry: 7, MaxRDAtomic: 1,
			AH: verbs.AH{Global: true, DGID: gid, Port: 1}}
		if _, err := fmt.Sscanf(s, "%d", &attr.DestQPNum); err != nil {
			o.tb.Fatal(err)
		}
		for _, step := range []vqptest.Step{vqptest.ToInit, vqptest.ToRTR, vqptest.ToRTS} {
			attr.State = step.Attr.State
			if err := qp.Modify(&attr, step.Mask); err != nil {
				o.tb.Fatal(err)
			}
		}
	}
}

func (o *original) sgl(off, n uint64) []verbs.SGE {
	return []verbs.SGE{{Addr: o.mr.Addr() + off, Length: uint32(n), LKey: o.mr.LKey()}}
}

func (o *original) post(qp verbs.QP, wr verbs.SendWR) {
	o.tb.Helper()
	wr.Flags = verbs.SendSignaled
	if _, err := qp.PostSend([]verbs.SendWR{wr}); err != nil {
		o.tb.Fatal(err)
	}
}

func (o *original) postRecv(qp verbs.QP, wr verbs.RecvWR) {
	o.tb.Helper()
	if _, err := qp.PostRecv([]verbs.RecvWR{wr}); err != nil {
		o.tb.Fatal(err)
	}
}

// postCredits is its first receive for a notification in DQPLB.
func (o *original) postCredits() {
	for range originalCredits {
		for _, qp := range o.data {
			o.postRecv(qp, verbs.RecvWR{})
		}
	}
}

// writeNumbered writes n bytes in DQPLB, in fragments that take turns on its queue pairs.
func (o *original) writeNumbered(remote ibverbx.RemoteSegment, n, fragment uint64) {
	o.tb.Helper()
	rkey, _ := remote.Keys.Key(0)
	for i, off := 0, uint64(0); off < n; i, off = i+1, off+fragment {
		size, num := min(fragment, n-off), o.number
		o.number++
		if off+size == n {
			num |= 1 << 31
		}
		o.post(o.data[i%2], verbs.SendWR{ID: 99, Opcode: verbs.OpRDMAWriteWithImm, SGL: o.sgl(off, size),
			RemoteAddr: remote.Addr + off, RKey: rkey, Imm: bits.ReverseBytes32(num)})
	}
}

// originalLink is an end of this package, with two data queue pairs and a notify QP, connected with
// an end that behaves as the original.
type originalLink struct {
	*ibverbx.VirtualQP
	fabric *soft.Fabric // this end is its device 0, the peer device 1
	mr     *ibverbx.MR
	peer   *original
	remote ibverbx.RemoteSegment // the peer's memory
}

func newOriginalLink(t *testing.T, cfg ibverbx.Config) *originalLink {
	t.Helper()
	fabric := vqptest.NewFabric(t, soft.Config{Devices: 2})
	dev, peerDev := fabric.Device(0), fabric.Device(1)
	gid := func(d verbs.Device) verbs.GID {
		e, err := d.QueryGID(1, 0)
		if err != nil {
			t.Fatal(err)
		}
		return e.GID
	}
	cfg.QPsPerDevice, cfg.Conn.MinRNRTimer = 2, 1
	cfg.Conn.PeerGIDs = slices.Repeat([]verbs.GID{gid(peerDev)}, 3)
	l := &originalLink{fabric: fabric, peer: newOriginal(t, peerDev)}
	var err error
	if l.VirtualQP, err = ibverbx.Open([]verbs.Device{dev}, cfg); err != nil {
		t.Fatal(err)
	}
	if l.mr, err = l.Domain().Register(make([]byte, 1<<16), verbs.AccessAll); err != nil {
		t.Fatal(err)
	}
	l.remote = ibverbx.RemoteSegment{Addr: l.peer.mr.Addr(), Length: 1 << 16,
		Keys: ibverbx.NewKeys(map[verbs.DeviceID]uint32{0: l.peer.mr.RKey()})}
	t.Cleanup(func() {
		_ = l.Close() // it may have failed
		for range l.CQ().Completions() {
		}
		if err := errors.Join(l.peer.close(), l.mr.Close()); err != nil {
			t.Error(err)
		}
	})
	l.connect(t, gid(dev))
	return l
}

// connect exchanges cards: this package's as it is made, the original's in its own form.
func (l *originalLink) connect(t *testing.T, gid verbs.GID) {
	t.Helper()
	text, err := json.Marshal(cardOf(t, l.VirtualQP))
	if err != nil {
		t.Fatal(err)
	}
	l.peer.connect(text, gid)
	var theirs ibverbx.BusinessCard
	if err := json.Unmarshal([]byte(l.peer.card()), &theirs); err != nil {
		t.Fatal(err)
	}
	if err := l.Connect(theirs); err != nil {
		t.Fatal(err)
	}
}

func (l *originalLink) send(t *testing.T, wr ibverbx.SendWR) {
	t.Helper()
	wr.Flags |= verbs.SendSignaled
	if _, err := l.PostSend(wr); err != nil {
		t.Fatal(err)
	}
}

func (l *originalLink) recv(t *testing.T, wrs ...ibverbx.RecvWR) {
	t.Helper()
	if _, err := l.PostRecv(wrs...); err != nil {
		t.Fatal(err)
	}
}

// wait returns the next n completions of this end.
func (l *originalLink) wait(t *testing.T, n int) (got []ibverbx.WC) {
	t.Helper()
	for deadline := time.Now().Add(10 * time.Second); len(got) < n; {
		wc, ok, err := l.CQ().PollOne()
		if err != nil || time.Now().After(deadline) {
			t.Fatalf("%d of %d completions: %s: error %v, %v", len(got), n, vqptest.FormatWCs(got), err,
				l.Err())
		}
		if ok {
			got = append(got, wc)
		}
	}
	for _, wc := range got {
		if wc.Status != verbs.StatusSuccess {
			t.Fatalf("%s: %v", vqptest.FormatWCs(got), l.Err())
		}
	}
	return got
}

// waitPeer returns the next n completions of the original.
func (l *originalLink) waitPeer(t *testing.T, n int) (got []verbs.WC) {
	t.Helper()
	wcs := make([]verbs.WC, 1)
	for deadline := time.Now().Add(10 * time.Second); len(got) < n; {
		if _, err := l.CQ().Poll(nil); err != nil {
			t.Fatal(err)
		}
		k, err := l.peer.cq.Poll(wcs)
		if err != nil || time.Now().After(deadline) {
			t.Fatalf("%d of %d completions at the peer: %v; %v", len(got), n, err, l.Err())
		}
		got = append(got, wcs[:k]...)
	}
	for _, wc := range got {
		if wc.Status != verbs.StatusSuccess {
			t.Fatalf("the peer's completion %+v: %v", wc, l.Err())
		}
	}
	return got
}
