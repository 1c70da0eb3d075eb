package ibverbx_test

import (
	"errors"
	"math/bits"
	"strings"
	"testing"

	"ibverbx"
	"ibverbx/verbs"
)

// Two ends that both say ImmLittleEndian exchange every kind of immediate.
func TestLittleEndianImmediatesBetweenTwoEnds(t *testing.T) {
	for _, m := range modes {
		t.Run(m.name, func(t *testing.T) {
			l := newLink(t, linkConfig{nics: m.nics, qp: ibverbx.Config{Scheme: m.scheme,
				QPsPerDevice: m.qps, FragmentSize: 8, Conn: ibverbx.ConnConfig{ImmLittleEndian: true}}})
			for _, op := range []verbs.Opcode{verbs.OpRDMAWriteWithImm, verbs.OpSendWithImm} {
				wr := ibverbx.RecvWR{ID: 1}
				if op.IsSend() {
					wr.Local = l.b.mr.Slice(0, 64)
				}
				if _, err := l.b.PostRecv(wr); err != nil {
					t.Fatal(err)
				}
				send := l.a.write(op, 2, 0, 40)
				send.Imm = 0x11223344
				l.a.send(t, send)
				ids(t, l.a.wait(t, 1), verbs.StatusSuccess)
				if wc := l.b.wait(t, 1)[0]; wc.Imm != 0x11223344 || wc.Flags&verbs.WCWithImm == 0 {
					t.Errorf("%v came as %s", op, fmtWCs([]ibverbx.WC{wc}))
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
	for i, m := range modes[:2] { // a single queue pair; two on one NIC, and a notify QP
		t.Run(m.name, func(t *testing.T) {
			cfg := ibverbx.Config{Scheme: m.scheme, QPsPerDevice: m.qps, FragmentSize: 8, MaxInline: 8,
				MaxSGE: 2}
			peer := cfg
			cfg.Conn.ImmLittleEndian = true
			l := newLink(t, linkConfig{qp: cfg, peerQP: &peer, rawCard: original, peerGIDs: 1 + 2*i})
			for form, send := range l.a.payloads(verbs.OpRDMAWriteWithImm) {
				l.b.expectRecv(t, 1)
				send.Imm, send.Remote.Keys = 0x11223344, likeOwn(t, l.a, send.Remote.Keys)
				l.a.send(t, send)
				if wc := l.b.wait(t, 1)[0]; bits.ReverseBytes32(wc.Imm) != send.Imm {
					t.Errorf("%s: %#x stands on the wire as %#x", form, send.Imm, wc.Imm)
				}
				l.a.wait(t, 1)
			}
			l.a.expectRecv(t, 3)
			back := l.b.write(verbs.OpRDMAWriteWithImm, 4, 0, 40)
			back.Imm, back.Remote.Keys = bits.ReverseBytes32(0x55667788), likeOwn(t, l.b, back.Remote.Keys)
			l.b.send(t, back)
			if wc := l.a.wait(t, 1)[0]; wc.Imm != 0x55667788 {
				t.Errorf("read as %#x, want 0x55667788", wc.Imm)
			}
		})
	}
}

// likeOwn gives the key of the peer's only NIC the index of the end's own: where cards do not name
// devices, those of both ends count alike.
func likeOwn(t *testing.T, e *end, k *ibverbx.Keys) *ibverbx.Keys {
	t.Helper()
	key, ok := k.Key(e.other.nics[0].ID())
	if !ok {
		t.Fatal("no key")
	}
	return ibverbx.NewKeys(map[verbs.DeviceID]uint32{e.nics[0].ID(): key})
}

// payloads are requests of each way to give a payload.
func (e *end) payloads(op verbs.Opcode) map[string]ibverbx.SendWR {
	piece, none := e.write(op, 2, 0, 40), e.write(op, 2, 0, 0)
	inline, list := none, piece
	inline.Local, inline.Remote = ibverbx.Segment{}, piece.Remote
	inline.Inline, inline.Flags = make([]byte, 8), inline.Flags|verbs.SendInline
	list.Local, list.SGL = ibverbx.Segment{}, []ibverbx.Segment{e.mr.Slice(0, 16), e.mr.Slice(32, 16)}
	return map[string]ibverbx.SendWR{"a piece": piece, "nothing": none, "inline": inline, "a list": list}
}

// Two ends of this package that order immediates differently are not connected.
func TestByteOrdersThatDiffer(t *testing.T) {
	for _, m := range modes[:5] {
		l := newLink(t, linkConfig{nics: m.nics, qp: ibverbx.Config{Scheme: m.scheme, QPsPerDevice: m.qps,
			Conn: ibverbx.ConnConfig{ImmLittleEndian: true}}})
		if err := errors.Join(l.a.Reset(), l.b.Reset()); err != nil {
			t.Fatal(err)
		}
		card, err := l.b.Card()
		if err != nil {
			t.Fatal(err)
		}
		if !card.ImmLittleEndian {
			t.Errorf("%s: the card does not say how immediates travel", m.name)
		}
		card.ImmLittleEndian = false
		if err := l.a.Connect(card); !errors.Is(err, verbs.ErrInvalid) ||
			!strings.Contains(err.Error(), "ImmLittleEndian") {
			t.Errorf("%s: %v", m.name, err)
		}
	}
}
