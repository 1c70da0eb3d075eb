package ibverbx_test

import (
	"errors"
	"testing"
	"time"

	"ibverbx"
	"ibverbx/verbs"
	"ibverbx/verbs/soft"
)

// One goroutine waits for two virtual CQs in a select, and posts in between.
func TestArmAndEventsInASelect(t *testing.T) {
	l := newLink(t, linkConfig{nics: 2, qp: ibverbx.Config{QPsPerDevice: 2, MaxMsgSize: 1000}})
	timeout := time.After(20 * time.Second)
	const rounds = 300
	got := map[*end]int{}
	post := func() {
		l.b.expectRecv(t, 1)
		l.a.send(t, l.a.write(verbs.OpRDMAWriteWithImm, 2, 0, 300_000)) // large: a worker copies it
	}
	post()
	for got[l.b] < rounds || got[l.a] < rounds {
		found := false
		for _, e := range []*end{l.a, l.b} {
			if err := e.cq.Arm(); err != nil {
				t.Fatal(err)
			}
			n := len(e.poll(t))
			got[e] += n
			found = found || n != 0
			if e == l.b && n != 0 && got[l.b] < rounds {
				post()
			}
		}
		if found {
			continue
		}
		select {
		case <-l.a.cq.Events():
		case <-l.b.cq.Events():
		case <-timeout:
			t.Fatalf("stuck after %d and %d", got[l.a], got[l.b])
		}
	}
}

func TestArmWithoutAChannelIsRefused(t *testing.T) {
	fabric, err := soft.New(soft.Config{})
	if err != nil {
		t.Fatal(err)
	}
	cq, err := fabric.Device(0).CreateCQ(verbs.CQConfig{})
	if err != nil {
		t.Fatal(err)
	}
	vcq, err := ibverbx.NewVirtualCQ(cq)
	if err != nil {
		t.Fatal(err)
	}
	if err := vcq.Arm(); !errors.Is(err, verbs.ErrNotSupported) || vcq.Events() != nil {
		t.Errorf("%v", err)
	}
	if err := errors.Join(vcq.Close(), fabric.Close()); err != nil {
		t.Error(err)
	}
}
