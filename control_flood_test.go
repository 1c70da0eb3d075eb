package ibverbx

import (
	"errors"
	"testing"

	"ibverbx/verbs/soft"
)

// A peer that asks the same again and again, and takes no answer, does not fill the memory.
func TestControlMessagesDoNotPileUp(t *testing.T) {
	fabric, err := soft.New(soft.Config{Devices: 4})
	if err != nil {
		t.Fatal(err)
	}
	nics, err := fabric.Devices()
	if err != nil {
		t.Fatal(err)
	}
	cfg := Config{Failover: true, QPsPerDevice: 1}
	a, errA := Open(nics[:2], cfg)
	b, errB := Open(nics[2:], cfg)
	if err := errors.Join(errA, errB); err != nil {
		t.Fatal(err)
	}
	cardA, errA := a.Card()
	cardB, errB := b.Card()
	if err := errors.Join(errA, errB, a.Connect(cardB), b.Connect(cardA)); err != nil {
		t.Fatal(err)
	}
	q := a
	if q.failover.leads {
		q = b
	}
	f, rails := q.failover, &q.send.rails
	lost, serving := rails.data[1], rails.sendRail
	lost.recovery.stage = railReady
	f.unflushed = 1
	for range 1000 {
		err := errors.Join(q.obey(lost, word{controlUp, lost.index(), lost.recovery.epoch, 9}),
			q.obey(rails.spares[0], word{controlServe, rails.spares[0].index(), 3, uint16(serving.index())}))
		if err != nil {
			t.Fatal(err)
		}
	}
	if n, answers := len(rails.data[0].recovery.tell), len(f.answers); n != 1 || answers != 1 {
		t.Errorf("%d words and %d answers wait, want one of each", n, answers)
	}
	lost.recovery.stage, f.unflushed = railLive, 0
	if err := errors.Join(a.Close(), b.Close(), fabric.Close()); err != nil {
		t.Error(err)
	}
}
