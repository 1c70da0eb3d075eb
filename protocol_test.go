package ibverbx_test

import (
	"errors"
	"strings"
	"testing"

	"ibverbx"
	"ibverbx/verbs"
)

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
			l := newLink(t, linkConfig{qp: ibverbx.Config{QPsPerDevice: 2}})
			l.b.expectRecv(t, 1)
			// b receives immediates that no virtual queue pair would send.
			for _, imm := range c.imms {
				l.receive(t, imm)
			}
			wc := l.b.wait(t, 1)[0]
			if !errors.Is(l.b.Err(), ibverbx.ErrProtocol) || !strings.Contains(l.b.Err().Error(), c.says) {
				t.Fatalf("%v after %+v", l.b.Err(), wc)
			}
			if c.imms[0] != 0 && wc.Status != verbs.StatusWRFlushErr {
				t.Fatalf("the posted receive ended with %+v", wc)
			}
		})
	}
}

// receive completes the next credit of b's first rail by a write of no bytes with a dqplb
// immediate, through ProcessCompletions.
func (l *link) receive(t *testing.T, imm uint32) {
	t.Helper()
	rail := l.b.Stats().Rails[0]
	l.inventedCredits++
	le := imm<<24 | imm&0xff00<<8 | imm>>8&0xff00 | imm>>24
	wc := verbs.WC{ID: 5<<60 | l.inventedCredits - 1, Opcode: verbs.WCRecvRDMAWithImm, Flags: verbs.WCWithImm,
		Imm: le, QPNum: rail.QPNum}
	l.b.backlog = l.b.cq.ProcessCompletions(l.b.backlog, l.b.nics[0].ID(), wc)
}

// Completions of no outstanding work request are counted and dropped.
func TestSpuriousCompletionsAreDropped(t *testing.T) {
	l := newLink(t, linkConfig{qp: ibverbx.Config{QPsPerDevice: 2, FragmentSize: 1000}})
	l.a.send(t, l.a.write(verbs.OpRDMAWrite, 1, 0, 4000))
	for kind := range uint64(16) {
		for _, number := range []uint64{0, 2, 77, 1<<28 - 1} {
			for _, status := range []verbs.Status{0, verbs.StatusWRFlushErr} {
				if kind == 5 && number < 300 {
					continue // the credit is posted
				}
				wc := verbs.WC{ID: kind<<60 | number, Status: status, QPNum: l.a.railQP[0]}
				if got := l.a.cq.ProcessCompletions(nil, 0, wc); len(got) != 0 && got[0].ID != 1 {
					t.Fatalf("kind %d number %d: reported %s", kind, number, fmtWCs(got))
				}
			}
		}
	}
	if got := l.a.cq.ProcessCompletions(nil, 63, verbs.WC{}); len(got) != 0 {
		t.Fatal("a device that is not there")
	}
	if l.a.Err() != nil || l.a.Stats().StaleEvents == 0 {
		t.Fatalf("%v %+v", l.a.Err(), l.a.Stats())
	}
}
