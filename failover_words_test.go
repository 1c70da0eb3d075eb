package ibverbx_test

import (
	"testing"
	"time"

	"ibverbx"
	"ibverbx/verbs"
)

// However many queue pairs are lost, there is a receive for each word about them, with queues of
// any depth: a word that found none would hold up the data behind it.
func TestWordsFindReceives(t *testing.T) {
	for _, depth := range []int{32, 128} {
		l := newLink(t, linkConfig{nics: 4, qp: ibverbx.Config{Scheme: ibverbx.Spray, QPsPerDevice: 2,
			MaxMsgCntPerQP: depth, Failover: true, Failback: -1}})
		for rail := l.a.DataRails(); rail > 1; {
			for id := range uint64(8) {
				l.a.send(t, l.a.write(verbs.OpRDMAWrite, id, 0, 64))
			}
			ids(t, l.a.wait(t, 8), verbs.StatusSuccess)
			rail--
			l.a.killQP(t, rail)
		}
	}
}

// A peer that does not poll for a while lets no word fail, even where NICs do not wait for
// receives for ever.
func TestWordsWaitForNoPoll(t *testing.T) {
	l := newLink(t, linkConfig{nics: 2, qp: ibverbx.Config{Scheme: ibverbx.Spray, QPsPerDevice: 8,
		MaxMsgCntPerQP: 32, Failover: true, Failback: -1, Conn: ibverbx.ConnConfig{RNRRetry: 6}}})
	for id := range uint64(32) {
		l.a.send(t, l.a.write(verbs.OpRDMAWrite, id, 0, 64))
	}
	l.a.nics[1].Kill()
	for end := time.Now().Add(50 * time.Millisecond); time.Now().Before(end); {
		l.a.pump(t)
	}
	ids(t, l.a.wait(t, 32), verbs.StatusSuccess)
	if n, err := l.a.Stats().RailsLost, l.a.Err(); n < 8 || err != nil {
		t.Errorf("%d rails were lost, want 8 at least; error %v", n, err)
	}
}

// SENDs go both ways over a queue pair that has come back, as often as it does.
func TestSendsGoOverAServiceThatIsBack(t *testing.T) {
	for _, scheme := range []ibverbx.Scheme{ibverbx.DQPLB, ibverbx.Spray} {
		t.Run(scheme.String(), func(t *testing.T) {
			l := newLink(t, linkConfig{nics: 2, qp: ibverbx.Config{Scheme: scheme, QPsPerDevice: 1,
				MaxMsgCntPerQP: 16, Failover: true, Failback: time.Millisecond}})
			carrier := func() (rail int) {
				before := l.a.Stats().Rails
				sendBothWays(t, l)
				for i, r := range l.a.Stats().Rails {
					if r.Notifications != before[i].Notifications {
						rail = i
					}
				}
				return rail
			}
			for range 6 {
				l.a.killQP(t, carrier())
				back := l.a.Stats().RailsBack
				for deadline := time.Now().Add(5 * time.Second); l.a.Stats().RailsBack == back; {
					if sendBothWays(t, l); time.Now().After(deadline) {
						t.Fatalf("it does not come back: %+v", l.a.Stats())
					}
				}
			}
		})
	}
}

// sendBothWays has each end send a message that the other receives.
func sendBothWays(t *testing.T, l *link) {
	t.Helper()
	ends := []*end{l.a, l.b}
	for _, e := range ends {
		into := ibverbx.RecvWR{ID: 1, Local: e.other.mr.Slice(4096, 64)}
		if _, err := e.other.PostRecv(into); err != nil {
			t.Fatal(err)
		}
		e.send(t, ibverbx.SendWR{ID: 2, Opcode: verbs.OpSend, Local: e.mr.Slice(0, 32)})
	}
	for _, e := range ends {
		ids(t, e.wait(t, 2), verbs.StatusSuccess)
	}
}
