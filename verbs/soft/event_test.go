package soft

import (
	"slices"
	"testing"

	"ibverbx/verbs"
)

// watch returns a function that returns the texts of all events since its last call.
func watch(t *testing.T, d *Device) func() []string {
	c := make(chan verbs.Event, 16)
	t.Cleanup(d.Watch(c))
	return func() (list []string) {
		for {
			select {
			case e := <-c:
				list = append(list, e.String())
			default:
				return list
			}
		}
	}
}

// Each cause, in this order, and the events that follow.
func TestDeviceEvents(t *testing.T) {
	f := newFabric(t, Config{})
	d := f.Device(0)
	events, others := watch(t, d), watch(t, f.Device(1))
	const down, up, failed = "soft0 port 1: port error", "soft0 port 1: port active", "soft0: device failed"
	for i, step := range []struct {
		do   func()
		want []string
	}{
		{func() { d.SetLink(true) }, nil}, // it was up
		{func() { d.SetLink(false) }, []string{down}},
		{func() { d.SetLink(false) }, nil},
		{func() { d.SetLink(true) }, []string{up}},
		{d.Restore, nil}, // it was not gone
		{d.Kill, []string{failed}},
		{d.Kill, nil},
		{func() { d.SetLink(false) }, nil}, // a NIC that is gone raises no event
		{d.Restore, []string{down}},
		{func() { d.SetLink(true) }, []string{up}},
		{d.Kill, []string{failed}},
		{d.Restore, []string{up}},
	} {
		step.do()
		if got := events(); !slices.Equal(got, step.want) {
			t.Errorf("step %d: %q, want %q", i, got, step.want)
		}
	}
	if got := others(); got != nil {
		t.Errorf("the other NIC: %q", got)
	}
}

// An event reports each queue pair in use that fails with its completion queue. Those that fail
// with their NIC have none.
func TestEventsOfQueuePairs(t *testing.T) {
	f, a, b := pair(t, Config{}, endConfig{depth: 4})
	first := a.qp
	a.newQP(verbs.QPCap{})
	defer a.qp.Close()
	idle := a.qp
	must(t, idle.Modify(&verbs.QPAttr{State: verbs.StateInit, Port: 1},
		verbs.QPAttrState|verbs.QPAttrPKeyIndex|verbs.QPAttrPort|verbs.QPAttrAccess))
	a.newQP(verbs.QPCap{})
	third := a.qp // stays in RESET
	defer third.Close()
	a.qp = first

	events := watch(t, f.Device(0))
	for i := range uint64(5) {
		a.post(a.write(b, i, 0, 8))
	}
	want := []string{"soft0: completion queue error", "soft0 qp 17: queue pair failed",
		"soft0 qp 18: queue pair failed"}
	if got := events(); !slices.Equal(got, want) {
		t.Errorf("%q, want %q", got, want)
	}
	if first.State() != verbs.StateErr || idle.State() != verbs.StateErr ||
		third.State() != verbs.StateReset {
		t.Error(first.State(), idle.State(), third.State())
	}

	peer := watch(t, f.Device(1))
	f.Device(1).Kill()
	if got, want := peer(), []string{"soft1: device failed"}; !slices.Equal(got, want) {
		t.Errorf("%q, want %q", got, want)
	}
}

// A responder whose receive ends with the error raises no event.
func TestNoEventWhereAReceiveFails(t *testing.T) {
	f, a, b := pair(t, Config{}, endConfig{})
	events := watch(t, f.Device(1))
	b.recv(verbs.RecvWR{ID: 1, SGL: b.sge(0, 8)})
	a.post(a.send(2, 0, 64))
	awaitStatus(t, b.rcq, 1, verbs.StatusLocLenErr)
	awaitStatus(t, a.cq, 2, verbs.StatusRemInvReqErr)
	if got := events(); got != nil {
		t.Errorf("%q", got)
	}
}

// A watcher may call the NIC while events are sent.
func TestWatcherMayCallTheNIC(t *testing.T) {
	d := newFabric(t, Config{}).Device(0)
	c := make(chan verbs.Event)
	stop := d.Watch(c)
	seen := make(chan int)
	go func() {
		n := 0
		for e := range c {
			if _, err := e.Device.QueryPort(e.Port); err != nil {
				t.Error(err)
			}
			n++
		}
		seen <- n
	}()
	for i := range 2000 {
		d.SetLink(i%2 == 1)
	}
	stop()
	close(c)
	t.Logf("%d events", <-seen)
}
