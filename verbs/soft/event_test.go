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

// Do refuses what cannot happen now, and nothing changes.
func TestActionsThatCannotHappen(t *testing.T) {
	f, a, b := pair(t, Config{Stepped: true}, endConfig{})
	num := a.qp.Num()
	impossible := func(list ...Action) {
		t.Helper()
		for _, act := range list {
			before := f.Actions(nil)
			if f.Do(act) {
				t.Errorf("did %v", act)
			}
			if after := f.Actions(nil); !slices.Equal(before, after) {
				t.Errorf("%v changed %v to %v", act, before, after)
			}
		}
	}
	execute, acknowledge := Action{Kind: Execute, QPNum: num}, Action{Kind: Acknowledge, QPNum: num}
	timer, reveal := Action{Kind: Timer, QPNum: num}, Action{Kind: Reveal, QPNum: num}
	never := []Action{timer, {Kind: Place + 1, QPNum: num}, {Kind: Arrive, QPNum: num},
		{Kind: Place, QPNum: num}, {Device: 2, QPNum: num}, {QPNum: num + 1},
		{Kind: Reveal, QPNum: num, Index: -1}, {Kind: Reveal, QPNum: num, Recv: true}}
	impossible(append(never, execute, acknowledge, reveal)...)
	a.post(a.write(b, 1, 0, 8), a.write(b, 2, 0, 8))
	impossible(append(never, acknowledge, reveal)...)
	do(t, f, "execute soft0 qp 17 wr 1")
	impossible(append(never, reveal)...)
	do(t, f, "execute soft0 qp 17 wr 2")
	impossible(append(never, execute, reveal)...)
	do(t, f, "acknowledge soft0 qp 17 wr 1")
	do(t, f, "acknowledge soft0 qp 17 wr 2")
	later, beyond := reveal, reveal
	later.Index, beyond.Index = 1, 2 // the queue is in order
	impossible(append(never, execute, acknowledge, later, beyond)...)
	do(t, f, "reveal soft0 qp 17 send wr 1")
	do(t, f, "reveal soft0 qp 17 send wr 2")
	impossible(append(never, execute, acknowledge, reveal)...)
	if got := (Place + 1).String(); got != "action 6" {
		t.Errorf("an action of no kind is %q", got)
	}
}

// A fabric that works by itself has no actions.
func TestNoActionsInTheBackground(t *testing.T) {
	f, a, b := pair(t, Config{}, endConfig{})
	stall := f.Inject(Fault{Kind: StallQP})
	a.post(a.write(b, 1, 0, 8))
	if list := f.Actions(nil); len(list) != 0 {
		t.Errorf("actions: %v", list)
	}
	if act, ok := f.Step(); ok || f.Run(10) != 0 || f.Do(Action{Kind: Execute, QPNum: a.qp.Num()}) {
		t.Errorf("stepped: %v", act)
	}
	stall.Remove()
	awaitStatus(t, a.cq, 1, verbs.StatusSuccess)
}

// Run counts its steps, does no more than it is asked for, and ends when nothing can happen.
func TestRunCountsItsSteps(t *testing.T) {
	f, a, b := pair(t, Config{Stepped: true}, endConfig{})
	a.post(a.write(b, 1, 0, 8), a.write(b, 2, 0, 8)) // execute, acknowledge and reveal each
	if n := f.Run(4); n != 4 {
		t.Errorf("%d steps of 4", n)
	}
	if n := f.Run(4); n != 2 {
		t.Errorf("%d steps, 2 were left", n)
	}
}

// The memory for what a read fetches can go before its data lands.
func TestReadIntoMemoryThatIsGone(t *testing.T) {
	f, a, b := pair(t, Config{Stepped: true}, endConfig{})
	read := a.write(b, 1, 0, 8)
	read.Opcode = verbs.OpRDMARead
	a.post(read)
	do(t, f, "execute")
	must(t, a.mr.Close())
	f.Run(10)
	awaitStatus(t, a.cq, 1, verbs.StatusLocProtErr)
	if a.qp.State() != verbs.StateErr {
		t.Errorf("the queue pair is in %v", a.qp.State())
	}
}

// A queue pair that is closed takes its completions with it, those of others stay in their order.
func TestClosedQueuePairForgetsItsCompletions(t *testing.T) {
	f, a, b := pair(t, Config{Stepped: true}, endConfig{})
	first := a.qp
	a.newQP(verbs.QPCap{})
	second := a.qp
	must(t, b.qp.Close())
	b.newQP(verbs.QPCap{})
	connect(t, a, b)
	for i := range uint64(6) { // flushed in turn
		a.qp = []*QP{first, second}[i%2]
		setState(t, a, verbs.StateErr)
		a.post(a.write(b, i, 0, 8))
		f.Run(10)
	}
	must(t, first.Close())
	for _, id := range []uint64{1, 3, 5} {
		awaitStatus(t, a.cq, id, verbs.StatusWRFlushErr)
	}
	nothing(t, a.cq)
}
