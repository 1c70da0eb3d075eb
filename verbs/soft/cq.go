package soft

import (
	"ibverbx/internal/guard"
	"ibverbx/verbs"
	"ibverbx/verbs/internal/nic"
)

// CQ is a completion queue. It is a verbs.CQ.
type CQ struct {
	_    guard.NoCopy
	dev  *Device
	core nic.CQ
}

// CreateCQ makes a completion queue.
func (d *Device) CreateCQ(cfg verbs.CQConfig) (verbs.CQ, error) {
	c := &CQ{dev: d}
	if err := c.core.Init(&d.core, c, cfg); err != nil {
		return nil, err
	}
	return c, nil
}

// Device returns the NIC that the queue belongs to.
func (c *CQ) Device() verbs.Device { return c.dev }

// Depth returns CQConfig.Depth, or its default.
func (c *CQ) Depth() int { return c.core.Depth() }

// Channel returns the completion channel, or nil.
func (c *CQ) Channel() *verbs.CompChannel { return c.core.Channel() }

// Poll moves completions into wcs. If it finds nothing, and the NIC's worker has not executed
// everything that was posted, it executes some of it itself (at most 4 MiB), which avoids a
// goroutine switch.
func (c *CQ) Poll(wcs []verbs.WC) (int, error) {
	if !c.core.Attention() {
		f := c.dev.f
		if f.stepped || !f.engine.(*background).hasWork(&c.dev.worker) || !f.help(c) {
			return 0, nil
		}
	}
	return c.core.Poll(wcs)
}

// Arm asks for one event. Arming for any completion takes precedence over arming for solicited
// ones.
func (c *CQ) Arm(solicitedOnly bool) error { return c.core.Arm(solicitedOnly) }

// Close destroys the queue.
func (c *CQ) Close() error { return c.core.Close() }

// overrun ends a completion queue of d: it loses this completion and all later ones, and its queue
// pairs fail.
func (d *Device) overrun(c *nic.CQ) {
	c.Overrun()
	for _, q := range d.qps.All {
		if q.core.Uses(c) {
			d.f.failWithEvent(q, verbs.EventQPFatal)
		}
	}
}
