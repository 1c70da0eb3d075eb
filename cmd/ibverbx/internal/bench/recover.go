package bench

import (
	"errors"
	"fmt"
	"strings"
	"time"

	"ibverbx/verbs"
)

const (
	// settleTime is how long nothing may come in after a failure until both ends are taken to know
	// what they will know of it.
	settleTime = 5 * time.Millisecond
	// MaxSetbacks is how many failures a cell survives: no figure of one that fails more often
	// would say anything.
	MaxSetbacks = 16
)

// survive goes on after a failure that a fault has asked for: it takes stock, resets both ends, and
// connects them anew. What it returns ends the cell: err itself where nobody has asked for that, or
// why it cannot go on.
func (c *cell) survive(err error) error {
	if err == nil || c.peer != nil || !errors.Is(err, errFailed) && !errors.Is(err, verbs.ErrDeviceGone) {
		return err
	}
	c.recount()
	c.recovery = nil
	broken := c.settle()
	c.failure = c.takeStock()
	struck := c.rig.faults.fresh()
	why := c.explain(err)
	if len(struck) == 0 || broken != nil {
		return errors.Join(why, broken)
	}
	if err := c.hopeless(struck); err != nil {
		return errors.Join(why, err)
	}
	recovery, err := c.revive()
	if err != nil {
		return errors.Join(why, err)
	}
	c.rig.faults.excuse()
	c.result.recovered(recovery)
	c.recovery, c.mark, c.markVerified = recovery, c.through, c.result.Verified
	return nil
}

// hopeless says why it would be in vain to go on: what strikes for ever would strike again.
func (c *cell) hopeless(struck []*faultState) error {
	for _, s := range struck {
		if s.fault.Count < 0 && s.hits != nil && len(c.result.Setbacks()) > 1 && c.through == c.mark {
			return fmt.Errorf("could not go on: %s strikes again and again, and no message came through in "+
				"between", s.fault)
		}
	}
	if n := len(c.result.Setbacks()); n > MaxSetbacks {
		return fmt.Errorf("gave up: %d failures in this column at this size, and after %d the figure says "+
			"nothing", n, MaxSetbacks)
	}
	return nil
}

// recount tells the last recovery how much came through after it.
func (c *cell) recount() {
	if c.recovery != nil {
		c.recovery.Messages, c.recovery.Verified = c.through-c.mark, c.result.Verified-c.markVerified
	}
}

// revive brings both ends back: by reset where all their NICs are there, and else by making them
// anew on those that are left.
func (c *cell) revive() (*Recovery, error) {
	rec := &Recovery{Action: ActionReset, What: "both ends reset, and connected anew with new cards"}
	waited, err := c.await(rec)
	if err != nil {
		return nil, err
	}
	away := strings.Join(c.rig.away(), " and ")
	start := time.Now()
	if err := c.rest(rec, away); err != nil {
		return nil, err
	}
	took := time.Since(start)
	if err := c.account(); err != nil { // the ends are at rest: nothing touches the memory that is compared
		return nil, err
	}
	start = time.Now()
	if rec.Action == ActionRebuilt {
		if err := c.rebuild(); err != nil {
			return nil, fmt.Errorf("could not go on without %s: %w", away, err)
		}
	}
	if err := connect(c.rig.a, c.rig.b); err != nil {
		return nil, fmt.Errorf("could not connect again: %w", err)
	}
	c.renew()
	took += time.Since(start)
	rec.What, rec.Seconds, rec.Rails, rec.NICs = waited+rec.What, took.Seconds(), c.rig.a.vqp.DataRails(),
		c.rig.nicNames()
	c.result.Rails = rec.Rails
	return rec, nil
}

// await waits for NICs and links that come back by themselves. It returns what is to be said of
// that.
func (c *cell) await(rec *Recovery) (string, error) {
	away := c.rig.away()
	if len(away) == 0 {
		return "", nil
	}
	start := time.Now()
	if err := c.rig.faults.await(c.ctx); err != nil {
		return "", err
	}
	if len(c.rig.away()) == len(away) {
		return "", nil // it was for good
	}
	rec.Waited = Seconds(time.Since(start))
	return "waited until " + strings.Join(away, " and ") + " was back; ", nil
}

// rest resets both ends, or closes them where a NIC is away. Then nothing is outstanding, and
// nobody touches the memory.
func (c *cell) rest(rec *Recovery, away string) error {
	if away == "" {
		err := errors.Join(c.rig.a.vqp.Reset(), c.rig.b.vqp.Reset())
		if err == nil {
			return nil
		}
		rec.What = fmt.Sprintf("the reset failed (%v): both ends closed, and made anew on the NICs that work",
			err)
	} else {
		rec.What = away + " did not come back: both ends closed, and made anew on the NICs that are left"
	}
	rec.Action = ActionRebuilt
	return c.shut()
}

// renew makes the cell's messages ready for ends that were connected anew.
func (c *cell) renew() {
	c.rig.a.tally, c.rig.b.tally = tally{}, tally{}
	c.rig.regions = [2]regions{c.rig.a.regions(), c.rig.b.regions()}
	for i, f := range c.flows {
		*f = *newFlow(c.p, c.rig, c.mem, i, 1-i, c.size) // in place: lanes know it
	}
}

// rebuild makes both ends anew, on as many of the NICs that work as both have.
func (c *cell) rebuild() (err error) {
	r := c.rig
	devices := [2][]verbs.Device{working(r.devicesA), working(r.devicesB)}
	n := min(len(devices[0]), len(devices[1]))
	for i, name := range []string{"a", "b"} {
		if len(devices[i]) == 0 {
			return fmt.Errorf("end %s has no other NIC", name)
		}
	}
	r.rails, r.railsB = nil, nil
	a, err := newEnd(c.p, "a", r.scheme, devices[0][:n], &c.mem.ends[0], &r.rails)
	if err != nil {
		return err
	}
	b, err := newEnd(c.p, "b", r.scheme, devices[1][:n], &c.mem.ends[1], &r.railsB)
	if err != nil {
		return errors.Join(err, a.close())
	}
	*r.a, *r.b = *a, *b // in place: flows and lanes know them
	c.since = r.stats()
	return nil
}

// shut closes both ends, and takes in what that flushes.
func (c *cell) shut() error {
	var errs []error
	for _, e := range c.rig.here() {
		if !e.closed {
			errs = append(errs, e.shut(c.takerOf(e)))
		}
	}
	return errors.Join(errs...)
}

// away says which NICs of the queue pairs do not work, and why.
func (r *rig) away() (list []string) {
	for _, e := range r.here() {
		for _, d := range e.nics {
			if _, err := d.QueryPort(d.DefaultPort()); err != nil {
				list = append(list, fmt.Sprintf("%s (end %s)", d.Name(), e.name))
			} else if !works(d) {
				list = append(list, fmt.Sprintf("the link of %s (end %s)", d.Name(), e.name))
			}
		}
	}
	return list
}

// nicNames are the NICs of the queue pairs, by end.
func (r *rig) nicNames() map[string][]string {
	names := map[string][]string{}
	for _, e := range r.here() {
		for _, d := range e.nics {
			names[e.name] = append(names[e.name], d.Name())
		}
	}
	return names
}

// works says whether a NIC is there, and its link is up.
func works(d verbs.Device) bool {
	attr, err := d.QueryPort(d.DefaultPort())
	return err == nil && attr.State == verbs.PortActive
}

func working(devices []verbs.Device) (list []verbs.Device) {
	for _, d := range devices {
		if works(d) {
			list = append(list, d)
		}
	}
	return list
}
