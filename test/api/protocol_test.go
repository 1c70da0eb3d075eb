package api_test

import (
	"errors"
	"strings"
	"testing"

	"ibverbx"
	"ibverbx/internal/vqptest"
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
