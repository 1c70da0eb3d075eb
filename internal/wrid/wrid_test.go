package wrid

import (
	"math"
	"testing"
)

func TestRoundTrip(t *testing.T) {
	for _, kind := range []uint64{Data, Numbered, Final, Recv, Credit, Imm, Message, Control} {
		for _, rail := range []int{0, 1, 127, 128, railMask} {
			for _, aux := range []uint32{0, 1, 0xfffffe, AuxMask} {
				for _, number := range []uint64{0, 1, NumberMask, NumberMask + 1, 1<<40 + 12345,
					math.MaxUint64} {
					id := New(kind, BitsOf(rail), aux, number)
					if Kind(id) != kind || Rail(id) != rail || Aux(id) != aux ||
						Number(id) != number&(1<<28-1) {
						t.Errorf("kind %d rail %d aux %#x number %#x came back as %d %d %#x %#x",
							kind, rail, aux, number, Kind(id), Rail(id), Aux(id), Number(id))
					}
					if got := BitsOf(rail).Index(); got != rail {
						t.Errorf("the bits of rail %d are of rail %d", rail, got)
					}
					if OnNoRail(id) != New(kind, 0, aux, number) {
						t.Errorf("%#x without its rail is %#x", id, OnNoRail(id))
					}
				}
			}
		}
	}
}
