package api_test

import (
	"errors"
	"math/bits"
	"strings"
	"testing"

	"ibverbx"
	"ibverbx/internal/vqptest"
	"ibverbx/verbs"
)

// Two ends that both say ImmLittleEndian exchange every kind of immediate.
func TestLittleEndianImmediatesBetweenTwoEnds(t *testing.T) {
	for _, m := range vqptest.Modes {
		t.Run(m.Name, func(t *testing.T) {
			l := m.Link(t, vqptest.LinkConfig{QP: ibverbx.Config{FragmentSize: 8,
				Conn: ibverbx.ConnConfig{ImmLittleEndian: true}}})
			for _, op := range []verbs.Opcode{verbs.OpRDMAWriteWithImm, verbs.OpSendWithImm} {
				wr := ibverbx.RecvWR{ID: 1}
				if op.IsSend() {
					wr.Local = l.B.MR.Slice(0, 64)
				}
				if _, err := l.B.PostRecv(wr); err != nil {
					t.Fatal(err)
				}
				send := l.A.Write(op, 2, 0, 40)
				send.Imm = 0x11223344
				l.A.Send(t, send)
				vqptest.IDs(t, l.A.Wait(t, 1), verbs.StatusSuccess)
				if wc := l.B.Wait(t, 1)[0]; wc.Imm != 0x11223344 || wc.Flags&verbs.WCWithImm == 0 {
					t.Errorf("%v came as %s", op, vqptest.FormatWCs([]ibverbx.WC{wc}))
				}
			}
		})
	}
}

// Between an end that says ImmLittleEndian and one that does what the original does, which stores
// an immediate as its host has it, either reads what the other wrote: on a single queue pair, and
// in the notifications of Spray. Here the original is an end whose immediates are turned by hand.
func TestLittleEndianImmediatesOnTheWire(t *testing.T) {
	original := func(c *ibverbx.BusinessCard) {
		c.Scheme, c.Credits, c.RawImm, c.ImmLittleEndian, c.Rails = "", 0, false, false, nil
		c.RDAtomic = 4 // set by a program that knows what its peer serves
	}
	for i, m := range vqptest.Modes[:2] { // a single queue pair; two on one NIC, and a notify QP
		t.Run(m.Name, func(t *testing.T) {
			cfg := ibverbx.Config{Scheme: m.Scheme, QPsPerDevice: m.QPs, FragmentSize: 8, MaxInline: 8,
				MaxSGE: 2}
			peer := cfg
			cfg.Conn.ImmLittleEndian = true
			l := vqptest.NewLink(t, vqptest.LinkConfig{QP: cfg, PeerQP: &peer, EditCard: original,
				PeerGIDs: 1 + 2*i})
			for form, send := range payloads(l.A, verbs.OpRDMAWriteWithImm) {
				l.B.ExpectRecv(t, 1)
				send.Imm, send.Remote.Keys = 0x11223344, likeOwn(t, l.A, send.Remote.Keys)
				l.A.Send(t, send)
				if wc := l.B.Wait(t, 1)[0]; bits.ReverseBytes32(wc.Imm) != send.Imm {
					t.Errorf("%s: %#x stands on the wire as %#x", form, send.Imm, wc.Imm)
				}
				l.A.Wait(t, 1)
			}
			l.A.ExpectRecv(t, 3)
			back := l.B.Write(verbs.OpRDMAWriteWithImm, 4, 0, 40)
			back.Imm, back.Remote.Keys = bits.ReverseBytes32(0x55667788), likeOwn(t, l.B, back.Remote.Keys)
			l.B.Send(t, back)
			if wc := l.A.Wait(t, 1)[0]; wc.Imm != 0x55667788 {
				t.Errorf("read as %#x, want 0x55667788", wc.Imm)
			}
		})
	}
}

// likeOwn gives the key of the peer's only NIC the index of the end's own: where cards do not name
// devices, those of both ends count alike.
func likeOwn(t *testing.T, e *vqptest.End, k *ibverbx.Keys) *ibverbx.Keys {
	t.Helper()
	key, ok := k.Key(e.Other.NICs[0].ID())
	if !ok {
		t.Fatal("no key")
	}
	return ibverbx.NewKeys(map[verbs.DeviceID]uint32{e.NICs[0].ID(): key})
}

// payloads are requests of each way to give a payload.
func payloads(e *vqptest.End, op verbs.Opcode) map[string]ibverbx.SendWR {
	piece, none := e.Write(op, 2, 0, 40), e.Write(op, 2, 0, 0)
	inline, list := none, piece
	inline.Local, inline.Remote = ibverbx.Segment{}, piece.Remote
	inline.Inline, inline.Flags = make([]byte, 8), inline.Flags|verbs.SendInline
	list.Local, list.SGL = ibverbx.Segment{}, []ibverbx.Segment{e.MR.Slice(0, 16), e.MR.Slice(32, 16)}
	return map[string]ibverbx.SendWR{"a piece": piece, "nothing": none, "inline": inline, "a list": list}
}

// Two ends of this package that order immediates differently are not connected.
func TestByteOrdersThatDiffer(t *testing.T) {
	for _, m := range vqptest.Modes[:5] {
		l := m.Link(t, vqptest.LinkConfig{QP: ibverbx.Config{
			Conn: ibverbx.ConnConfig{ImmLittleEndian: true}}})
		if err := errors.Join(l.A.Reset(), l.B.Reset()); err != nil {
			t.Fatal(err)
		}
		card := cardOf(t, l.B)
		if !card.ImmLittleEndian {
			t.Errorf("%s: the card does not say how immediates travel", m.Name)
		}
		card.ImmLittleEndian = false
		if err := l.A.Connect(card); !errors.Is(err, verbs.ErrInvalid) ||
			!strings.Contains(err.Error(), "ImmLittleEndian") {
			t.Errorf("%s: %v", m.Name, err)
		}
	}
}

// An immediate that a correct DQPLB peer never sends ends the virtual queue pair with ErrProtocol.
func TestInvalidSequenceNumbers(t *testing.T) {
	for _, c := range []struct {
		name string
		imms []uint32
		says string
	}{
		{"far ahead", []uint32{1 << 20}, "too far ahead"},
		{"never-sent number", []uint32{0xffffff}, "no dqplb number"},
		{"duplicate in the window", []uint32{5, 5}, "twice"},
		{"duplicate behind", []uint32{0, 1, 0}, "twice"},
		{"reserved bits", []uint32{1 << 24}, "no dqplb number"},
		{"raw without end", []uint32{1 << 30}, "no dqplb number"},
	} {
		t.Run(c.name, func(t *testing.T) {
			l := vqptest.NewLink(t, vqptest.LinkConfig{QP: ibverbx.Config{QPsPerDevice: 2}})
			l.B.ExpectRecv(t, 1)
			// b receives immediates that no virtual queue pair would send.
			for i, imm := range c.imms {
				receive(l, i, imm)
			}
			wc := l.B.Wait(t, 1)[0]
			if !errors.Is(l.B.Err(), ibverbx.ErrProtocol) || !strings.Contains(l.B.Err().Error(), c.says) {
				t.Fatalf("%v after %+v", l.B.Err(), wc)
			}
			if c.imms[0] != 0 && wc.Status != verbs.StatusWRFlushErr {
				t.Fatalf("the posted receive ended with %+v", wc)
			}
		})
	}
}

// receive completes the nth credit of B's first rail by a write of no bytes with a DQPLB immediate,
// through ProcessCompletions.
func receive(l *vqptest.Link, n int, imm uint32) {
	rail := l.B.Stats().Rails[0]
	le := imm<<24 | imm&0xff00<<8 | imm>>8&0xff00 | imm>>24
	wc := verbs.WC{ID: 5<<60 | uint64(n), Opcode: verbs.WCRecvRDMAWithImm, Flags: verbs.WCWithImm,
		Imm: le, QPNum: rail.QPNum}
	l.B.Backlog = l.B.CQ().ProcessCompletions(l.B.Backlog, l.B.NICs[0].ID(), wc)
}
