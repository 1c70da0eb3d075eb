package soft

import (
	"testing"
	"time"

	"ibverbx/verbs"
)

// A message that is still on its way to a queue pair in ERR is reported before what is flushed,
// also where it is the only one.
func TestErrorKeepsTheOnlyArrivalFirst(t *testing.T) {
	_, a, b := pair(t, Config{Device: DeviceConfig{Latency: 5 * time.Millisecond}}, endConfig{})
	b.recv(verbs.RecvWR{ID: 0, SGL: b.sge(0, 8)}, verbs.RecvWR{ID: 1, SGL: b.sge(0, 8)})
	a.post(a.send(1, 0, 8))
	time.Sleep(time.Millisecond)
	setState(t, b, verbs.StateErr)
	for i, wc := range await(t, b.rcq, 2) {
		if wc.ID != uint64(i) {
			t.Errorf("%d: %+v", i, wc)
		}
	}
}
