package api_test

import (
	"errors"
	"testing"

	"ibverbx"
	"ibverbx/internal/vqptest"
	"ibverbx/verbs"
)

// Two NICs, one slower by ten: every byte arrives, the completions are in order, and the slow one
// carries little. In turns each carries half. On a busy machine the fast one may seem slow: then it
// is measured again.
func TestByAbilityOverNICs(t *testing.T) {
	for _, scheme := range []ibverbx.Scheme{ibverbx.DQPLB, ibverbx.Spray} {
		for _, balance := range []ibverbx.Balance{ibverbx.RoundRobin, ibverbx.ByAbility} {
			t.Run(scheme.String()+"/"+balance.String(), func(t *testing.T) {
				for try := 0; ; try++ {
					share, known := slowShare(t, scheme, balance)
					switch {
					case balance == ibverbx.RoundRobin && share == 0.5 && !known,
						balance == ibverbx.ByAbility && share < 0.35 && known:
						return
					case try == 5 || balance == ibverbx.RoundRobin:
						t.Fatalf("the slow NIC carries %.2f; rates are known: %v", share, known)
					}
				}
			})
		}
	}
}

// slowShare is the share of a NIC of a tenth of the speed, and whether rates were measured.
func slowShare(t *testing.T, scheme ibverbx.Scheme, balance ibverbx.Balance) (share float64, known bool) {
	t.Helper()
	const messages, size, depth = 24, 512 << 10, 4
	l := vqptest.NewLink(t, vqptest.LinkConfig{NICs: 2, Buffer: messages * size,
		QP: ibverbx.Config{Scheme: scheme, Balance: balance, FragmentSize: 32 << 10}})
	l.Fabric.Device(0).SetSpeed(200<<20, 0)
	l.Fabric.Device(1).SetSpeed(20<<20, 0)
	vqptest.FillRandom(l.A.Buf, uint64(scheme))
	for i := range uint64(messages) {
		l.B.ExpectRecv(t, i)
		l.A.Send(t, l.A.Write(verbs.OpRDMAWriteWithImm, i, i*size, size))
		if i < depth {
			continue
		}
		for _, e := range []*vqptest.End{l.A, l.B} {
			if got := vqptest.IDs(t, e.Wait(t, 1), verbs.StatusSuccess); got[0] != i-depth {
				t.Fatalf("completion %d is of request %d", i-depth, got[0])
			}
		}
	}
	l.A.Wait(t, depth)
	l.B.Wait(t, depth)
	vqptest.MustEqual(t, "the buffer", l.B.Buf, l.A.Buf)
	rails := l.A.Stats().Rails
	share = float64(rails[1].Bytes) / (messages * size)
	known = rails[0].Rate != 0 && rails[1].Rate != 0
	return share, known
}

// What Balance accepts, and what it says.
func TestBalanceNames(t *testing.T) {
	for _, b := range []ibverbx.Balance{ibverbx.RoundRobin, ibverbx.ByAbility} {
		text, err := b.MarshalText()
		var back ibverbx.Balance
		if e := back.UnmarshalText(text); err != nil || e != nil || back != b {
			t.Errorf("%v: %q, %v, %v, %v", b, text, back, err, e)
		}
	}
	b := ibverbx.ByAbility
	err := b.UnmarshalText([]byte("fair"))
	if !errors.Is(err, verbs.ErrInvalid) || b != ibverbx.ByAbility ||
		err.Error() != `ibverbx: invalid argument: balance "fair": have round-robin, ability` {
		t.Errorf("%v, %v", b, err)
	}
	if got := ibverbx.Balance(9).String(); got != "balance 9" {
		t.Error(got)
	}
}
