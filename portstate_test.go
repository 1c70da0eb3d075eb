package ibverbx

import (
	"errors"
	"fmt"
	"testing"
	"time"

	"ibverbx/verbs"
)

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
