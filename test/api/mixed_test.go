package api_test

import (
	"encoding/json"
	"errors"
	"strings"
	"testing"
	"time"

	"ibverbx"
	"ibverbx/internal/vqptest"
	"ibverbx/verbs"
)

// mixedAdvice is what an error says where SENDs and notifications met the receives of each other.
const mixedAdvice = "SENDs and notifications share queue pair 0: use one kind on a connection, or have " +
	"every " +
	"SEND arrive before the first receive for a notification is posted"

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
// connection, and the error says why, and how to avoid it.
func TestMixedKindsWithTheOriginal(t *testing.T) {
	for _, c := range []struct {
		name string
		mix  func(l *originalLink)
		err  error
	}{
		{"a SEND meets a credit", func(l *originalLink) {
			l.recv(t, ibverbx.RecvWR{ID: 1})
			l.peer.post(l.peer.data[0], verbs.SendWR{ID: 7, Opcode: verbs.OpSend, SGL: l.peer.sgl(0, 21)})
		}, verbs.StatusLocLenErr},
		{"a SEND of no bytes meets a credit", func(l *originalLink) {
			l.recv(t, ibverbx.RecvWR{ID: 1})
			l.peer.post(l.peer.data[0], verbs.SendWR{ID: 7, Opcode: verbs.OpSend})
		}, ibverbx.ErrProtocol},
		{"a notification meets a receive with memory", func(l *originalLink) {
			l.recv(t, ibverbx.RecvWR{ID: 1, Local: l.mr.Slice(0, 50)}, ibverbx.RecvWR{ID: 2})
			l.peer.writeNumbered(l.mr.Remote().At(1000), 50, 300)
		}, ibverbx.ErrProtocol},
		{"a SEND meets the peer's credit", func(l *originalLink) {
			l.peer.postCredits()
			l.send(t, ibverbx.SendWR{ID: 1, Opcode: verbs.OpSend, Local: l.mr.Slice(0, 8)})
		}, verbs.StatusRemInvReqErr},
	} {
		t.Run(c.name, func(t *testing.T) {
			l := newOriginalLink(t, ibverbx.Config{})
			c.mix(l)
			failed := l.failed(t)
			if !errors.Is(failed, c.err) || !failed.MixedKinds || failed.Rail != 0 ||
				strings.Count(failed.Error(), mixedAdvice) != 1 {
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
