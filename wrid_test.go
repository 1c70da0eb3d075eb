package ibverbx

import (
	"math"
	"testing"
)

func TestWRIDRoundTrip(t *testing.T) {
	for _, kind := range []uint64{kindData, kindNumbered, kindFinal, kindRecv, kindCredit, kindImm,
		kindMessage} {
		for _, railIndex := range []int{0, 1, 127, MaxRails} { // MaxRails: the notify QP behind the last
			for _, aux := range []uint32{0, 1, 0xfffffe, wridAuxMask} {
				for _, number := range []uint64{0, 1, wridNumberMask, wridNumberMask + 1, 1<<40 + 12345,
					math.MaxUint64} {
					id := wrid(kind, uint64(railIndex)<<wridRailShift, aux, number)
					if wridKind(id) != kind || wridRail(id) != railIndex || wridAux(id) != aux ||
						wridNumber(id) != number&(1<<28-1) {
						t.Errorf("kind %d rail %d aux %#x number %#x came back as %d %d %#x %#x",
							kind, railIndex, aux, number, wridKind(id), wridRail(id), wridAux(id),
							wridNumber(id))
					}
				}
			}
		}
	}
}
