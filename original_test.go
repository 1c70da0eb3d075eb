package ibverbx_test

import (
	"encoding/json"
	"errors"
	"fmt"
	"math/bits"
	"reflect"
	"slices"
	"strings"
	"testing"
	"time"

	"ibverbx"
	"ibverbx/verbs"
	"ibverbx/verbs/soft"
)

// original is an end that does what the C++ original does, over the physical queue pairs of one
// software NIC: two data queue pairs and a notify QP. What it does was read off the original, and
// seen between it and this package over the kernel's RDMA:
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
	o := &original{tb: tb, buf: make([]byte, 1<<16)}
	var err error
	check := func() {
		if err != nil {
			tb.Helper()
			tb.Fatal(err)
		}
	}
	o.pd, err = dev.AllocPD()
	check()
	o.cq, err = dev.CreateCQ(verbs.CQConfig{Depth: 4096})
	check()
	o.mr, err = o.pd.RegisterMR(o.buf, verbs.AccessAll)
	check()
	for range 3 {
		qp, err2 := o.pd.CreateQP(verbs.QPConfig{SendCQ: o.cq, RecvCQ: o.cq,
			Cap: verbs.QPCap{MaxSendWR: 256, MaxRecvWR: 256}})
		err = err2
		check()
		o.data = append(o.data, qp)
	}
	o.data, o.notify = o.data[:2], o.data[2]
	return o
}

func (o *original) close() {
	o.tb.Helper()
	for _, qp := range append(slices.Clone(o.data), o.notify) {
		if err := qp.Close(); err != nil {
			o.tb.Error(err)
		}
	}
	for _, c := range []interface{ Close() error }{o.mr, o.cq, o.pd} {
		if err := c.Close(); err != nil {
			o.tb.Error(err)
		}
	}
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
		for _, step := range []struct {
			state verbs.QPState
			mask  verbs.QPAttrMask
		}{
			{verbs.StateInit, verbs.QPAttrPKeyIndex | verbs.QPAttrPort | verbs.QPAttrAccess},
			{verbs.StateRTR, verbs.QPAttrAV | verbs.QPAttrPathMTU | verbs.QPAttrDestQPNum |
				verbs.QPAttrRQPSN | verbs.QPAttrMaxDestRDAtomic | verbs.QPAttrMinRNRTimer},
			{verbs.StateRTS, verbs.QPAttrTimeout | verbs.QPAttrRetryCount | verbs.QPAttrRNRRetry |
				verbs.QPAttrSQPSN | verbs.QPAttrMaxRDAtomic},
		} {
			attr.State = step.state
			if err := qp.Modify(&attr, step.mask|verbs.QPAttrState); err != nil {
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
// an end that does as the original.
type originalLink struct {
	*ibverbx.VirtualQP
	mr     *ibverbx.MR
	peer   *original
	remote ibverbx.RemoteSegment // the peer's memory
}

func newOriginalLink(t *testing.T, cfg ibverbx.Config) *originalLink {
	t.Helper()
	fabric, err := soft.New(soft.Config{Devices: 2})
	if err != nil {
		t.Fatal(err)
	}
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
	l := &originalLink{peer: newOriginal(t, peerDev)}
	if l.VirtualQP, err = ibverbx.Open([]verbs.Device{dev}, cfg); err != nil {
		t.Fatal(err)
	}
	if l.mr, err = l.Domain().Register(make([]byte, 1<<16), verbs.AccessAll); err != nil {
		t.Fatal(err)
	}
	l.remote = ibverbx.RemoteSegment{Addr: l.peer.mr.Addr(), Length: 1 << 16,
		Keys: ibverbx.NewKeys(map[verbs.DeviceID]uint32{0: l.peer.mr.RKey()})}
	t.Cleanup(func() {
		l.peer.close()
		_ = l.Close()
		for {
			if _, ok, err := l.CQ().PollOne(); !ok || err != nil {
				break
			}
		}
		if err := l.mr.Close(); err != nil {
			t.Error(err)
		}
		if err := fabric.Close(); err != nil {
			t.Error(err)
		}
	})
	l.connect(t, gid(dev))
	return l
}

// connect exchanges cards: ours as it is made, its own in its own form.
func (l *originalLink) connect(t *testing.T, gid verbs.GID) {
	t.Helper()
	card, err := l.Card()
	if err != nil {
		t.Fatal(err)
	}
	text, err := json.Marshal(card)
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
			t.Fatalf("%d of %d completions: %s: error %v, %v", len(got), n, fmtWCs(got), err, l.Err())
		}
		if ok {
			got = append(got, wc)
		}
	}
	for _, wc := range got {
		if wc.Status != verbs.StatusSuccess {
			t.Fatalf("%s: %v", fmtWCs(got), l.Err())
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

// The cards of the original, as it writes and reads them: two keys, in either order, and for as
// many queue pairs always as long, because programs over it exchange cards in slots of one size. A
// card of this package with these two fields alone is one.
func TestCardsOfTheOriginal(t *testing.T) {
	for _, c := range []struct {
		golden string
		length int
		card   ibverbx.BusinessCard
	}{
		{`{"notifyQpNum":"0000000021","qpNums":["0000000017","0000000018"]}`, 65,
			ibverbx.BusinessCard{QPNums: []uint32{17, 18}, NotifyQPNum: 21}},
		{`{"notifyQpNum":"0000000000","qpNums":["0000000017"]}`, 52,
			ibverbx.BusinessCard{QPNums: []uint32{17}}},
		{`{"notifyQpNum":"0016777215","qpNums":["0000000017","0000000018","0000000019","0000000020"]}`, 91,
			ibverbx.BusinessCard{QPNums: []uint32{17, 18, 19, 20}, NotifyQPNum: 1<<24 - 1}},
	} {
		var got ibverbx.BusinessCard
		if err := json.Unmarshal([]byte(c.golden), &got); err != nil || !reflect.DeepEqual(got, c.card) {
			t.Errorf("%s reads as %+v, %v", c.golden, got, err)
		}
		text, err := json.Marshal(c.card)
		if err != nil || len(text) != c.length || len(c.golden) != c.length {
			t.Errorf("%s: %d bytes, the golden one %d, want %d; %v", text, len(text), len(c.golden), c.length,
				err)
		}
		var keys, want map[string]any
		if err := errors.Join(json.Unmarshal(text, &keys),
			json.Unmarshal([]byte(c.golden), &want)); err != nil ||
			!reflect.DeepEqual(keys, want) {
			t.Errorf("%s says other than %s: %v", text, c.golden, err)
		}
	}
}

// In Spray the original's data is plain, and its notification carries the immediate as its host
// stores it.
func TestOriginalNotifiesInSpray(t *testing.T) {
	cfg := ibverbx.Config{Scheme: ibverbx.Spray, MaxMsgSize: 1000}
	cfg.Conn.ImmLittleEndian = true
	l := newOriginalLink(t, cfg)
	l.recv(t, ibverbx.RecvWR{ID: 1})
	rkey, _ := l.mr.Remote().At(0).Keys.Key(0)
	fillRandom(l.peer.buf[:2000], 3)
	for rail, qp := range l.peer.data {
		off := uint64(rail) * 1000
		l.peer.post(qp, verbs.SendWR{ID: 7, Opcode: verbs.OpRDMAWrite, SGL: l.peer.sgl(off, 1000),
			RemoteAddr: l.mr.Addr() + off, RKey: rkey})
	}
	l.waitPeer(t, 2)
	l.peer.post(l.peer.notify, verbs.SendWR{ID: 8, Opcode: verbs.OpRDMAWriteWithImm, RemoteAddr: l.mr.Addr(),
		RKey: rkey, Imm: bits.ReverseBytes32(0x11223344)})
	if wc := l.wait(t, 1)[0]; wc.Imm != 0x11223344 {
		t.Errorf("the notification came as %+v", wc)
	}
	mustEqual(t, "data", l.mr.Bytes()[:2000], l.peer.buf[:2000])
	l.waitPeer(t, 1)

	l.peer.postRecv(l.peer.notify, verbs.RecvWR{ID: 9})
	l.send(t, ibverbx.SendWR{ID: 2, Opcode: verbs.OpRDMAWriteWithImm, Local: l.mr.Slice(0, 1500),
		Remote: l.remote, Imm: 0x55667788})
	l.wait(t, 1)
	if wc := l.waitPeer(t, 1)[0]; wc.ID != 9 || wc.ByteLen != 0 ||
		bits.ReverseBytes32(wc.Imm) != 0x55667788 {
		t.Errorf("the notification arrives there as %+v", wc)
	}
}

// SENDs go to and fro between an end in DQPLB and the original, on queue pair 0, before any
// notification, and behind them notifications do.
func TestOriginalSendsInDQPLB(t *testing.T) {
	l := newOriginalLink(t, ibverbx.Config{})
	const rounds = 300 // more than the queues hold
	for i := range uint64(rounds) {
		l.peer.postRecv(l.peer.data[0], verbs.RecvWR{ID: i, SGL: l.peer.sgl(100, 50)})
		copy(l.mr.Bytes(), fmt.Sprintf("to the original %03d", i))
		l.send(t, ibverbx.SendWR{ID: i, Opcode: verbs.OpSend, Local: l.mr.Slice(0, 19)})
		l.wait(t, 1)
		if wc := l.waitPeer(t, 1)[0]; wc.ID != i || wc.Opcode != verbs.WCRecv || wc.ByteLen != 19 ||
			wc.QPNum != l.peer.data[0].Num() {
			t.Fatalf("SEND %d came as %+v", i, wc)
		}
		if got, want := string(l.peer.buf[100:119]), fmt.Sprintf("to the original %03d", i); got != want {
			t.Fatalf("%q, want %q", got, want)
		}

		copy(l.peer.buf[200:], fmt.Sprintf("from the original %03d", i))
		l.recv(t, ibverbx.RecvWR{ID: 1000 + i, Local: l.mr.Slice(500, 50)})
		l.peer.post(l.peer.data[0], verbs.SendWR{ID: 7, Opcode: verbs.OpSend, SGL: l.peer.sgl(200, 21)})
		if wc := l.wait(t, 1)[0]; wc.ID != 1000+i || wc.Opcode != verbs.WCRecv || wc.ByteLen != 21 {
			t.Fatalf("SEND %d came as %+v", i, wc)
		}
		if got, want := string(l.mr.Bytes()[500:521]), fmt.Sprintf("from the original %03d", i); got != want {
			t.Fatalf("%q, want %q", got, want)
		}
		l.waitPeer(t, 1)
	}
	// Receives with memory that wait take SENDs ahead of the credits, which come with the first
	// receive for a notification.
	l.recv(t, ibverbx.RecvWR{ID: 1, Local: l.mr.Slice(500, 50)}, ibverbx.RecvWR{ID: 2},
		ibverbx.RecvWR{ID: 3})
	l.peer.post(l.peer.data[0], verbs.SendWR{ID: 7, Opcode: verbs.OpSend, SGL: l.peer.sgl(200, 21)})
	l.peer.writeNumbered(l.mr.Remote().At(1000), 1000, 300)
	l.peer.writeNumbered(l.mr.Remote().At(2000), 50, 300)
	for i, wc := range l.wait(t, 3) {
		if want := []uint64{21, 1000, 50}[i]; wc.ID != uint64(i+1) || wc.ByteLen != want {
			t.Errorf("receive %d: %+v, want %d bytes", i+1, wc, want)
		}
	}
	mustEqual(t, "data", l.mr.Bytes()[1000:2000], l.peer.buf[:1000])
}

// Receives with memory and credits share the receive queue of queue pair 0, and neither overruns
// it.
func TestCreditsKeepTheirRoomBesideReceivesWithMemory(t *testing.T) {
	l := newOriginalLink(t, ibverbx.Config{Credits: 8})
	posted := func(want ...int) {
		t.Helper()
		for i, r := range l.Stats().Rails {
			if r.Refused != 0 || r.Recvs != want[i] {
				t.Errorf("rail %d: %d receives are posted, want %d; %d posts were refused", i, r.Recvs,
					want[i], r.Refused)
			}
		}
	}
	for i := range uint64(30) {
		l.recv(t, ibverbx.RecvWR{ID: i, Local: l.mr.Slice(500, 50)})
	}
	posted(4, 0, 0)
	l.recv(t, ibverbx.RecvWR{ID: 30})
	posted(8, 8, 0)
}

// An end posts credits with its first receive for a notification, also one that was posted before
// Connect, and keeps them up from then on.
func TestOriginalNotifiesInDQPLB(t *testing.T) {
	l := newOriginalLink(t, ibverbx.Config{Credits: 8})
	for round := range 100 {
		l.recv(t, ibverbx.RecvWR{ID: 1})
		l.peer.writeNumbered(l.mr.Remote().At(0), 3000, 1000)
		if wc := l.wait(t, 1)[0]; wc.ByteLen != 3000 || wc.Imm != 0 {
			t.Fatalf("round %d: %+v", round, wc)
		}
		l.waitPeer(t, 3)
	}
}

// What an end in DQPLB sends to the original: the immediates of fragments and markers, lengths, and
// which queue pair they travel on.
func TestOriginalReadsNumbersAndMarkers(t *testing.T) {
	l := newOriginalLink(t, ibverbx.Config{MaxMsgSize: 1000})
	l.peer.postCredits()
	fillRandom(l.mr.Bytes(), 1)
	write := func(op verbs.Opcode, off, n uint64) {
		remote := l.remote
		remote.Addr += off
		l.send(t, ibverbx.SendWR{ID: off, Opcode: op, Local: l.mr.Slice(off, n), Remote: remote, Imm: 0x1234})
	}
	write(verbs.OpRDMAWriteWithImm, 0, 2500)    // rails 0, 1, 0
	write(verbs.OpRDMAWrite, 3000, 2000)        // rails 1, 0: both dirty
	write(verbs.OpRDMAWriteWithImm, 6000, 1000) // rail 1, a marker ahead of it on rail 0
	write(verbs.OpRDMAWriteWithImm, 8000, 1)
	l.wait(t, 4)
	type message struct {
		rail   int
		number uint32
		bytes  uint32
	}
	var got [2][]message
	for _, wc := range l.waitPeer(t, 6) {
		rail := slices.IndexFunc(l.peer.data, func(qp verbs.QP) bool { return qp.Num() == wc.QPNum })
		got[rail] = append(got[rail], message{rail, bits.ReverseBytes32(wc.Imm), wc.ByteLen})
	}
	want := [2][]message{
		{{0, 0x000000, 1000}, {0, 0x80000002, 500}, {0, 0x000003, 0}, {0, 0x80000005, 1}},
		{{1, 0x000001, 1000}, {1, 0x80000004, 1000}},
	}
	for rail := range got {
		if !slices.Equal(got[rail], want[rail]) {
			t.Errorf("rail %d carried %x\nwant %x", rail, got[rail], want[rail])
		}
	}
	for _, off := range []uint64{0, 3000, 6000} {
		mustEqual(t, "data", l.peer.buf[off:off+1000], l.mr.Bytes()[off:off+1000])
	}
}

// What the original's rule needs is refused where it cannot be had, without effect; and a reset end
// that then meets a peer of its own kind has SENDs on the notify QP again.
func TestPlainPeersNeedWhatTheOriginalDoes(t *testing.T) {
	plain := func(c *ibverbx.BusinessCard) { c.Scheme, c.Credits = "", 0 }
	l := newLink(t, linkConfig{qp: ibverbx.Config{QPsPerDevice: 2}, rawCard: plain})
	send := func(rail int) {
		t.Helper()
		before := l.a.Stats().Rails
		if _, err := l.b.PostRecv(ibverbx.RecvWR{ID: 5, Local: l.b.mr.Slice(0, 8)}); err != nil {
			t.Fatal(err)
		}
		l.a.send(t, l.a.write(verbs.OpSend, 4, 0, 8))
		ids(t, append(l.a.wait(t, 1), l.b.wait(t, 1)...), verbs.StatusSuccess)
		for i, r := range l.a.Stats().Rails {
			if n := r.Notifications - before[i].Notifications; (n == 1) != (i == rail) {
				t.Errorf("%d SENDs on rail %d, want the one on rail %d", n, i, rail)
			}
		}
	}
	send(0)
	reset := func() {
		t.Helper()
		if err := errors.Join(l.a.Reset(), l.b.Reset()); err != nil {
			t.Fatal(err)
		}
	}
	reset()
	if err := l.reconnect(); err != nil {
		t.Fatal(err)
	}
	send(2) // the notify QP
	reset()

	card, err := l.b.Card()
	if err != nil {
		t.Fatal(err)
	}
	plain(&card)
	init := verbs.QPAttr{State: verbs.StateInit, Port: 1, Access: verbs.AccessAll}
	if err := l.a.Modify(init, verbs.QPAttrState|verbs.QPAttrPKeyIndex|verbs.QPAttrPort|verbs.QPAttrAccess,
		nil); err != nil {
		t.Fatal(err)
	}
	if _, err := l.a.PostRecv(ibverbx.RecvWR{ID: 6, Local: l.a.mr.Slice(0, 8)}); err != nil {
		t.Fatal(err)
	}
	if err := l.a.Connect(card); !errors.Is(err, verbs.ErrInvalid) ||
		!strings.Contains(err.Error(), "post receives with memory after Connect") {
		t.Errorf("Connect behind a receive with memory: %v", err)
	}
	if l.a.State() != verbs.StateInit || l.a.Err() != nil {
		t.Errorf("left in %v, %v", l.a.State(), l.a.Err())
	}

	few := newLink(t, linkConfig{qp: ibverbx.Config{QPsPerDevice: 2, Credits: 1}})
	if err := errors.Join(few.a.Reset(), few.b.Reset()); err != nil {
		t.Fatal(err)
	}
	if card, err = few.b.Card(); err != nil {
		t.Fatal(err)
	}
	plain(&card)
	if err := few.a.Connect(card); !errors.Is(err, verbs.ErrInvalid) ||
		!strings.Contains(err.Error(), "Credits of 2 at least") {
		t.Errorf("Connect with one credit: %v", err)
	}
}
