package api_test

import (
	"encoding/json"
	"errors"
	"fmt"
	"math/bits"
	"net/netip"
	"reflect"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"ibverbx"
	"ibverbx/internal/vqptest"
	"ibverbx/verbs"
	"ibverbx/verbs/roce"
	"ibverbx/verbs/soft"
)

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
	cfg := ibverbx.Config{Scheme: ibverbx.Spray, FragmentSize: 1000}
	cfg.Conn.ImmLittleEndian = true
	l := newOriginalLink(t, cfg)
	l.recv(t, ibverbx.RecvWR{ID: 1})
	rkey, _ := l.mr.Remote().At(0).Keys.Key(0)
	vqptest.FillRandom(l.peer.buf[:2000], 3)
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
	vqptest.MustEqual(t, "data", l.mr.Bytes()[:2000], l.peer.buf[:2000])
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
	vqptest.MustEqual(t, "data", l.mr.Bytes()[1000:2000], l.peer.buf[:1000])
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

// The original numbers its plain writes and reads too. What comes behind such a number waits for
// it, and Stats shows that.
func TestNumbersThatTheOriginalSpends(t *testing.T) {
	l := newOriginalLink(t, ibverbx.Config{})
	l.recv(t, ibverbx.RecvWR{ID: 1})
	l.peer.post(l.peer.data[0], verbs.SendWR{Opcode: verbs.OpRDMAWrite,
		Imm: bits.ReverseBytes32(l.peer.number)})
	l.peer.number++
	l.peer.writeNumbered(l.mr.Remote().At(0), 50, 300)
	l.waitPeer(t, 2)
	if wc, ok, err := l.CQ().PollOne(); ok || err != nil || l.Err() != nil || l.Stats().OutOfOrder != 1 {
		t.Errorf("%+v, %v, %v: %d out of order", wc, err, l.Err(), l.Stats().OutOfOrder)
	}
}

// What an end in DQPLB sends to the original: the immediates of fragments and markers, lengths, and
// which queue pair they travel on.
func TestOriginalReadsNumbersAndMarkers(t *testing.T) {
	l := newOriginalLink(t, ibverbx.Config{FragmentSize: 1000})
	l.peer.postCredits()
	vqptest.FillRandom(l.mr.Bytes(), 1)
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
		vqptest.MustEqual(t, "data", l.peer.buf[off:off+1000], l.mr.Bytes()[off:off+1000])
	}
}

// What the original's rule needs is refused where it is not available, without effect; and a reset
// end that then meets a peer of its own kind has SENDs on the notify QP again.
func TestPlainPeersNeedWhatTheOriginalDoes(t *testing.T) {
	plain := func(c *ibverbx.BusinessCard) { c.Scheme, c.Credits = "", 0 }
	l := vqptest.NewLink(t, vqptest.LinkConfig{QP: ibverbx.Config{QPsPerDevice: 2}, EditCard: plain})
	send := func(rail int) {
		t.Helper()
		before := l.A.Stats().Rails
		if _, err := l.B.PostRecv(ibverbx.RecvWR{ID: 5, Local: l.B.MR.Slice(0, 8)}); err != nil {
			t.Fatal(err)
		}
		l.A.Send(t, l.A.Write(verbs.OpSend, 4, 0, 8))
		vqptest.IDs(t, append(l.A.Wait(t, 1), l.B.Wait(t, 1)...), verbs.StatusSuccess)
		for i, r := range l.A.Stats().Rails {
			if n := r.Notifications - before[i].Notifications; (n == 1) != (i == rail) {
				t.Errorf("%d SENDs on rail %d, want the one on rail %d", n, i, rail)
			}
		}
	}
	send(0)
	reset := func() {
		t.Helper()
		if err := errors.Join(l.A.Reset(), l.B.Reset()); err != nil {
			t.Fatal(err)
		}
	}
	reset()
	if err := l.Reconnect(); err != nil {
		t.Fatal(err)
	}
	send(2) // the notify QP
	reset()

	card := cardOf(t, l.B)
	plain(&card)
	if err := vqptest.ToInit.Take(l.A.VirtualQP, nil); err != nil {
		t.Fatal(err)
	}
	if _, err := l.A.PostRecv(ibverbx.RecvWR{ID: 6, Local: l.A.MR.Slice(0, 8)}); err != nil {
		t.Fatal(err)
	}
	if err := l.A.Connect(card); !errors.Is(err, verbs.ErrInvalid) ||
		!strings.Contains(err.Error(), "post receives with memory after Connect") {
		t.Errorf("Connect behind a receive with memory: %v", err)
	}
	if l.A.State() != verbs.StateInit || l.A.Err() != nil {
		t.Errorf("left in %v, %v", l.A.State(), l.A.Err())
	}

	few := vqptest.NewLink(t, vqptest.LinkConfig{QP: ibverbx.Config{QPsPerDevice: 2, Credits: 1}})
	if err := errors.Join(few.A.Reset(), few.B.Reset()); err != nil {
		t.Fatal(err)
	}
	card = cardOf(t, few.B)
	plain(&card)
	if err := few.A.Connect(card); !errors.Is(err, verbs.ErrInvalid) ||
		!strings.Contains(err.Error(), "Credits of 2 at least") {
		t.Errorf("Connect with one credit: %v", err)
	}
}

// mixedAdvice is how an error's advice begins where SENDs and notifications met the receives of
// each other.
const mixedAdvice = "with a peer of the C++ original's kind SENDs and notifications share queue pair 0: " +
	"use one kind on a connection, or have every SEND arrive before the first receive for a " +
	"notification is posted"

// failed is the first error of an end that is about to fail.
func (l *originalLink) failed(t *testing.T) *ibverbx.FailedError {
	t.Helper()
	for deadline := time.Now().Add(10 * time.Second); l.Err() == nil; {
		if _, _, err := l.CQ().PollOne(); err != nil || time.Now().After(deadline) {
			t.Fatalf("nothing failed; %v", err)
		}
	}
	var failed *ibverbx.FailedError
	if !errors.As(l.Err(), &failed) {
		t.Fatal(l.Err())
	}
	return failed
}

// With a peer of the original's kind a message that meets a receive of the other kind ends the
// connection, and the error says why, and how to avoid it. NICs differ in what they report then:
// the software NICs LOC_LEN_ERR and REM_INV_REQ_ERR, rdma_rxe LOC_QP_OP_ERR and REM_OP_ERR.
func TestMixedKindsWithTheOriginal(t *testing.T) {
	sendToCredit := func(l *originalLink, bytes uint64) {
		l.recv(t, ibverbx.RecvWR{ID: 1})
		l.peer.post(l.peer.data[0], verbs.SendWR{ID: 7, Opcode: verbs.OpSend, SGL: l.peer.sgl(0, bytes)})
	}
	sendToPeersCredit := func(l *originalLink, bytes uint64) {
		l.peer.postCredits()
		l.send(t, ibverbx.SendWR{ID: 1, Opcode: verbs.OpSend, Local: l.mr.Slice(0, bytes)})
	}
	// asRxe has a receive fail as there. The SEND is one without data: others the software NIC
	// refuses by itself.
	asRxe := func(l *originalLink, receiver int, status verbs.Status) {
		l.fabric.Inject(soft.Fault{Kind: soft.FailRecv, Device: l.fabric.Device(receiver), Status: status})
	}
	for _, c := range []struct {
		name string
		mix  func(l *originalLink)
		err  error
	}{
		{"a SEND meets a credit", func(l *originalLink) { sendToCredit(l, 21) }, verbs.StatusLocLenErr},
		{"a SEND meets a credit over rdma_rxe", func(l *originalLink) {
			asRxe(l, 0, verbs.StatusLocQPOpErr)
			sendToCredit(l, 0)
		}, verbs.StatusLocQPOpErr},
		{"a SEND meets a credit over another rdma_rxe", func(l *originalLink) {
			asRxe(l, 0, verbs.StatusRemInvReqErr)
			sendToCredit(l, 0)
		}, verbs.StatusRemInvReqErr},
		{"a SEND of no bytes meets a credit", func(l *originalLink) { sendToCredit(l, 0) },
			ibverbx.ErrProtocol},
		{"a notification meets a receive with memory", func(l *originalLink) {
			l.recv(t, ibverbx.RecvWR{ID: 1, Local: l.mr.Slice(0, 50)}, ibverbx.RecvWR{ID: 2})
			l.peer.writeNumbered(l.mr.Remote().At(1000), 50, 300)
		}, ibverbx.ErrProtocol},
		{"a SEND meets the peer's credit", func(l *originalLink) { sendToPeersCredit(l, 8) },
			verbs.StatusRemInvReqErr},
		{"a SEND meets the peer's credit over rdma_rxe", func(l *originalLink) {
			asRxe(l, 1, verbs.StatusLocQPOpErr)
			sendToPeersCredit(l, 0)
		}, verbs.StatusRemOpErr},
	} {
		t.Run(c.name, func(t *testing.T) {
			l := newOriginalLink(t, ibverbx.Config{})
			c.mix(l)
			failed := l.failed(t)
			if !errors.Is(failed, c.err) || !failed.MixedKinds || failed.Rail != 0 ||
				!strings.HasPrefix(failed.Advice(), mixedAdvice) ||
				strings.Contains(failed.Advice(), "that the peer's receive is as long") != failed.HasID {
				t.Errorf("%v", failed)
			}
			var fields struct {
				MixedKinds bool `json:"mixed_kinds"`
			}
			text, err := json.Marshal(failed)
			if err = errors.Join(err, json.Unmarshal(text, &fields)); err != nil || !fields.MixedKinds {
				t.Errorf("%s: %v", text, err)
			}
		})
	}
}

// A NIC of package verbs/roce on another port than RoCEv2's has a GID that other NICs cannot go to
// RTR with. Where a peer of the original's kind never answers, the error says so, unless the peer
// is on such a port itself.
func TestGIDThatThePeerDoesNotUnderstand(t *testing.T) {
	cfg := ibverbx.Config{QPsPerDevice: 1, Conn: ibverbx.ConnConfig{Timeout: 1, RetryCount: ibverbx.None}}
	local := []netip.Addr{netip.MustParseAddr("127.0.0.1")}
	first, err := roce.Open(roce.Config{Addresses: local}) // has port 4791, unless another process has
	if err != nil {
		t.Fatal(err)
	}
	second, err := roce.Open(roce.Config{Addresses: local})
	if err != nil {
		t.Fatal(err)
	}
	own, err := second.Device(0).QueryGID(1, 0)
	at, ok := own.GID.UDPAddr()
	if err != nil || !ok {
		t.Fatalf("the second NIC has GID %v, %v", own.GID, err)
	}
	for _, c := range []struct {
		peer string
		port uint16
	}{{"::ffff:127.0.0.1", at.Port()}, {own.GID.String(), 0}} {
		gid, err := verbs.ParseGID(c.peer)
		if err != nil {
			t.Fatal(err)
		}
		cfg.Conn.PeerGIDs = []verbs.GID{gid}
		q, err := ibverbx.Open([]verbs.Device{second.Device(0)}, cfg)
		if err != nil {
			t.Fatal(err)
		}
		if err := q.Connect(ibverbx.BusinessCard{QPNums: []uint32{1<<24 - 1}}); err != nil {
			t.Fatal(err)
		}
		if _, err := q.PostSend(ibverbx.SendWR{Opcode: verbs.OpSend, Flags: verbs.SendSignaled}); err != nil {
			t.Fatal(err)
		}
		failed := (&originalLink{VirtualQP: q}).failed(t)
		said := strings.Contains(failed.Advice(), "UDP port "+strconv.Itoa(int(c.port))+", which only")
		if !errors.Is(failed, verbs.StatusRetryExcErr) || failed.GIDPort != c.port || said != (c.port != 0) {
			t.Errorf("to %s: %v", c.peer, failed)
		}
		if err := q.Close(); err != nil {
			t.Error(err)
		}
	}
	if err := errors.Join(second.Close(), first.Close()); err != nil {
		t.Error(err)
	}
}

// Failures unrelated to the two kinds do not mention them: other errors, other queue pairs, other
// peers, and Spray, in which only SENDs come to queue pair 0.
func TestKindsThatAreNotMixed(t *testing.T) {
	spray := ibverbx.Config{Scheme: ibverbx.Spray}
	sendSomething := func(l *originalLink) {
		l.send(t, ibverbx.SendWR{ID: 1, Opcode: verbs.OpSend, Local: l.mr.Slice(0, 8)})
	}
	for _, c := range []struct {
		name string
		cfg  ibverbx.Config
		do   func(l *originalLink)
		err  error
	}{
		{"a wrong key", ibverbx.Config{}, func(l *originalLink) {
			remote := l.remote
			remote.Keys = ibverbx.NewKeys(map[verbs.DeviceID]uint32{0: 1})
			l.send(t, ibverbx.SendWR{ID: 1, Opcode: verbs.OpRDMAWrite, Local: l.mr.Slice(0, 8),
				Remote: remote})
		}, verbs.StatusRemAccessErr},
		{"an impossible number", ibverbx.Config{}, func(l *originalLink) {
			l.recv(t, ibverbx.RecvWR{ID: 1})
			l.peer.number = 1 << 23
			l.peer.writeNumbered(l.mr.Remote().At(0), 50, 300)
		}, ibverbx.ErrProtocol},
		{"a SEND to queue pair 1", ibverbx.Config{}, func(l *originalLink) {
			l.recv(t, ibverbx.RecvWR{ID: 1})
			l.peer.post(l.peer.data[1], verbs.SendWR{ID: 7, Opcode: verbs.OpSend})
		}, ibverbx.ErrProtocol},
		{"a receive that is too small", ibverbx.Config{}, func(l *originalLink) {
			l.recv(t, ibverbx.RecvWR{ID: 1, Local: l.mr.Slice(0, 8)})
			l.peer.post(l.peer.data[0], verbs.SendWR{ID: 7, Opcode: verbs.OpSend, SGL: l.peer.sgl(0, 21)})
		}, verbs.StatusLocLenErr},
		{"spray", spray, func(l *originalLink) {
			l.peer.postRecv(l.peer.data[0], verbs.RecvWR{ID: 9})
			sendSomething(l)
		}, verbs.StatusRemInvReqErr},
	} {
		t.Run(c.name, func(t *testing.T) {
			l := newOriginalLink(t, c.cfg)
			c.do(l)
			if failed := l.failed(t); !errors.Is(failed, c.err) || failed.MixedKinds ||
				strings.Contains(failed.Error(), mixedAdvice) {
				t.Errorf("%v", failed)
			}
		})
	}
	l := vqptest.NewLink(t, vqptest.LinkConfig{QP: ibverbx.Config{QPsPerDevice: 2}})
	l.B.ExpectRecv(t, 1)
	if _, err := l.B.PostRecv(ibverbx.RecvWR{ID: 2, Local: l.B.MR.Slice(0, 4)}); err != nil {
		t.Fatal(err)
	}
	l.A.Send(t, l.A.Write(verbs.OpSend, 4, 0, 8))
	l.A.Wait(t, 1)
	var failed *ibverbx.FailedError
	if err := l.A.Err(); !errors.As(err, &failed) || failed.MixedKinds {
		t.Errorf("between two ends of this package: %v", err)
	}
}
