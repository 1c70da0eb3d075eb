package api_test

import (
	"testing"
	"time"

	"ibverbx"
	"ibverbx/internal/vqptest"
	"ibverbx/verbs"
)

// However many queue pairs are lost, there is a receive for each word about them, with queues of
// any depth: a word that found none would hold up the data behind it.
func TestWordsFindReceives(t *testing.T) {
	for _, depth := range []int{32, 128} {
		l := vqptest.NewLink(t, vqptest.LinkConfig{NICs: 4, QP: ibverbx.Config{Scheme: ibverbx.Spray,
			QPsPerDevice:   2,
			MaxMsgCntPerQP: depth, Failover: true, Failback: -1}})
		for rail := l.A.DataRails(); rail > 1; {
			for id := range uint64(8) {
				l.A.Send(t, l.A.Write(verbs.OpRDMAWrite, id, 0, 64))
			}
			vqptest.IDs(t, l.A.Wait(t, 8), verbs.StatusSuccess)
			rail--
			killQP(l.A, t, rail)
		}
	}
}

// A peer that does not poll for a while lets no word fail, even where NICs do not wait for
// receives for ever.
func TestWordsWaitForNoPoll(t *testing.T) {
	l := vqptest.NewLink(t, vqptest.LinkConfig{NICs: 2, QP: ibverbx.Config{Scheme: ibverbx.Spray,
		QPsPerDevice:   8,
		MaxMsgCntPerQP: 32, Failover: true, Failback: -1, Conn: ibverbx.ConnConfig{RNRRetry: 6}}})
	for id := range uint64(32) {
		l.A.Send(t, l.A.Write(verbs.OpRDMAWrite, id, 0, 64))
	}
	l.A.NICs[1].Kill()
	for end := time.Now().Add(50 * time.Millisecond); time.Now().Before(end); {
		l.A.Pump(t)
	}
	vqptest.IDs(t, l.A.Wait(t, 32), verbs.StatusSuccess)
	if n, err := l.A.Stats().RailsLost, l.A.Err(); n < 8 || err != nil {
		t.Errorf("%d rails were lost, want 8 at least; error %v", n, err)
	}
}

// SENDs go both ways over a queue pair that has come back, as often as it does.
func TestSendsGoOverAServiceThatIsBack(t *testing.T) {
	for _, scheme := range []ibverbx.Scheme{ibverbx.DQPLB, ibverbx.Spray} {
		t.Run(scheme.String(), func(t *testing.T) {
			l := vqptest.NewLink(t, vqptest.LinkConfig{NICs: 2, QP: ibverbx.Config{Scheme: scheme,
				QPsPerDevice:   1,
				MaxMsgCntPerQP: 16, Failover: true, Failback: time.Millisecond}})
			carrier := func() (rail int) {
				before := l.A.Stats().Rails
				sendBothWays(t, l)
				for i, r := range l.A.Stats().Rails {
					if r.Notifications != before[i].Notifications {
						rail = i
					}
				}
				return rail
			}
			for range 6 {
				killQP(l.A, t, carrier())
				back := l.A.Stats().RailsBack
				for deadline := time.Now().Add(5 * time.Second); l.A.Stats().RailsBack == back; {
					if sendBothWays(t, l); time.Now().After(deadline) {
						t.Fatalf("it does not come back: %+v", l.A.Stats())
					}
				}
			}
		})
	}
}

// sendBothWays has each end send a message that the other receives.
func sendBothWays(t *testing.T, l *vqptest.Link) {
	t.Helper()
	ends := []*vqptest.End{l.A, l.B}
	for _, e := range ends {
		into := ibverbx.RecvWR{ID: 1, Local: e.Other.MR.Slice(4096, 64)}
		if _, err := e.Other.PostRecv(into); err != nil {
			t.Fatal(err)
		}
		e.Send(t, ibverbx.SendWR{ID: 2, Opcode: verbs.OpSend, Local: e.MR.Slice(0, 32)})
	}
	for _, e := range ends {
		vqptest.IDs(t, e.Wait(t, 2), verbs.StatusSuccess)
	}
}
