package ibverbx

import (
	"errors"
	"fmt"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"ibverbx/verbs"
)

// Each virtual queue pair is touched when its time has come, whatever came before it. A poll reads
// one clock, however many wait.
func TestTouchedWhenDue(t *testing.T) {
	var c VirtualCQ
	start := time.Unix(0, 0)
	now, reads := start, 0
	clock := func() time.Time {
		reads++
		return now
	}
	qps := make([]*VirtualQP, 4)
	for i, in := range []time.Duration{30, 10, 20, 40} {
		qps[i] = &VirtualQP{cq: &c, line: line{clock: clock}}
		c.touchAt(qps[i], start.Add(in), start)
	}
	c.touchAt(qps[1], start.Add(25), start) // later than it was
	c.touchAt(qps[3], start.Add(15), start) // and earlier
	c.later.forget(qps[2])
	var at []time.Duration
	for ; len(c.later.list) != 0 && len(at) < 100; now = now.Add(1) {
		reads = 0
		if c.touchDue(); reads != 1 {
			t.Errorf("%d reads of clocks", reads)
		}
		for len(at) < len(c.touched) {
			at = append(at, now.Sub(start))
		}
	}
	if want := []*VirtualQP{qps[3], qps[1], qps[0]}; !slices.Equal(c.touched, want) ||
		!slices.Equal(at, []time.Duration{15, 25, 30}) {
		t.Errorf("touched in another order, at %v", at)
	}
}

// The alarm goes off for the earliest, and again for the next.
func TestAlarmForTheNext(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := VirtualCQ{channel: verbs.NewCompChannel()}
		defer c.later.end()
		qps := [2]*VirtualQP{}
		for i := range qps {
			qps[i] = &VirtualQP{cq: &c, line: line{clock: time.Now}}
		}
		start := time.Now()
		c.touchAt(qps[0], start.Add(40*time.Millisecond), start)
		c.touchAt(qps[1], start.Add(20*time.Millisecond), start)
		for i, want := range []*VirtualQP{qps[1], qps[0]} {
			if err := c.channel.Wait(t.Context()); err != nil {
				t.Fatal(err)
			}
			c.touchDue()
			at := time.Duration(i+1) * 20 * time.Millisecond
			if len(c.touched) != i+1 || c.touched[i] != want || time.Since(start) != at {
				t.Fatalf("alarm %d: %d are due after %v, want %d after %v, in the order of their times", i,
					len(c.touched), time.Since(start), i+1, at)
			}
		}
	})
}

// askedDevice counts how often its port is asked.
type askedDevice struct {
	verbs.Device // nothing else of it is used
	asked        int
	state        verbs.PortState
	err          error
}

func (*askedDevice) ID() verbs.DeviceID { return 1 }
func (*askedDevice) Name() string       { return "nic" }

func (d *askedDevice) QueryPort(int) (verbs.PortAttr, error) {
	d.asked++
	return verbs.PortAttr{State: d.state}, d.err
}

// The answer of a port counts for a moment, unless it reports something: each of a thousand virtual
// queue pairs asks.
func TestPortsAreAskedOnce(t *testing.T) {
	var c VirtualCQ
	d, now := &askedDevice{state: verbs.PortDown}, time.Unix(0, 0)
	expect := func(asked int, says string) {
		t.Helper()
		said := ""
		if err := c.portDown(d, 1, now); err != nil {
			said = err.Error()
		}
		if d.asked != asked || said != says {
			t.Errorf("asked %d times, says %q, want %d and %q", d.asked, said, asked, says)
		}
	}
	expect(1, "nic port 1 is down")
	expect(1, "nic port 1 is down")
	now, d.state = now.Add(portStateFor), verbs.PortActive
	expect(2, "")
	now = now.Add(portStateFor - 1)
	expect(2, "")
	c.heard(verbs.Event{Type: verbs.EventPortErr, Device: d, Port: 1})
	d.err = errors.New("no answer")
	expect(3, "nic port 1 does not say whether it is up: no answer")
	if err := c.portDown(d, 2, now); err == nil || d.asked != 4 {
		t.Error("another port has not been asked")
	}
	now, d.err = now.Add(portStateFor), fmt.Errorf("query port: %w", verbs.ErrDeviceGone)
	expect(5, "nic: device gone")
}
