package bench

import (
	"errors"
	"fmt"
	"strings"
	"time"

	"ibverbx/cmd/ibverbx/internal/layers"
	"ibverbx/verbs"
)

const (
	// settleTime is how long after the last completion both ends are taken to have noticed a
	// failure as far as they will.
	settleTime = 5 * time.Millisecond
	// MaxSetbacks is how many failures a cell survives: with more, its figure would be meaningless.
	MaxSetbacks = 16
)

// survival is how a cell of virtual queue pairs continues after failures.
type survival struct {
	through      int       // messages of rounds that went well, those of the warm-up included
	failure      *Failure  // whose requests are not accounted for yet
	recovery     *Recovery // the last one
	mark         int       // what through was when that was over
	markVerified int       // how many messages were verified then
}

// survive continues after a failure that a fault has caused: it records the failure, resets both
// ends, and connects them anew. What it returns ends the cell: err itself where no fault has caused
// it, or why the cell cannot go on.
func (c *cell) survive(err error) error {
	if err == nil || c.peer != nil || !errors.Is(err, errFailed) && !errors.Is(err, verbs.ErrDeviceGone) {
		return err
	}
	c.pair.resume()
	defer c.pair.pause()
	c.recount()
	c.recovery = nil
	broken := c.settle()
	c.failure = c.recordFailure()
	struck := c.pair.faults.fresh()
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
	c.pair.faults.excuse()
	c.result.recovered(recovery)
	if c.recorder != nil {
		c.recorder.mark(Recovered, recovery.Action)
	}
	c.recovery, c.mark, c.markVerified = recovery, c.through, c.result.Verified
	return nil
}

// hopeless says why the cell cannot continue: a permanent fault would strike again.
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

// recount notes in the last recovery how much came through after it.
func (c *cell) recount() {
	if c.recovery != nil {
		c.recovery.Messages, c.recovery.Verified = c.through-c.mark, c.result.Verified-c.markVerified
	}
}

// revive connects both ends again: by reset where all their NICs work, and otherwise by making new
// ends on those that are left.
func (c *cell) revive() (*Recovery, error) {
	rec := &Recovery{Action: ActionReset, What: "both ends reset, and connected anew with new cards"}
	waited, err := c.await(rec)
	if err != nil {
		return nil, err
	}
	away := strings.Join(c.pair.away(), " and ")
	start := time.Now()
	if err := c.quiesce(rec, away); err != nil {
		return nil, err
	}
	took := time.Since(start)
	// The ends are idle: nothing touches the memory that is compared.
	c.pair.pause()
	err = c.account()
	c.pair.resume()
	if err != nil {
		return nil, err
	}
	start = time.Now()
	if rec.Action == ActionRebuilt {
		if err := c.rebuild(); err != nil {
			return nil, fmt.Errorf("could not go on without %s: %w", away, err)
		}
	} else if err := layers.ConnectPair(c.pair.ends); err != nil {
		return nil, fmt.Errorf("could not connect again: %w", err)
	}
	c.readCounters()
	took += time.Since(start)
	rec.What, rec.Seconds, rec.Rails, rec.NICs = waited+rec.What, took.Seconds(), c.pair.dataRails(),
		c.pair.nicNames()
	c.result.Rails = rec.Rails
	return rec, nil
}

// await waits for NICs and links that come back by themselves. It returns a remark on that.
func (c *cell) await(rec *Recovery) (string, error) {
	away := c.pair.away()
	if len(away) == 0 {
		return "", nil
	}
	start := time.Now()
	if err := c.pair.faults.await(c.ctx); err != nil {
		return "", err
	}
	if len(c.pair.away()) == len(away) {
		return "", nil // none came back
	}
	rec.Waited = Seconds(time.Since(start))
	return "waited until " + strings.Join(away, " and ") + " was back; ", nil
}

// quiesce resets both ends, or closes them where a NIC is away. Then nothing is outstanding, and no
// NIC touches the memory.
func (c *cell) quiesce(rec *Recovery, away string) error {
	if away == "" {
		qps := c.pair.queuePairs()
		err := errors.Join(qps[0].VQP().Reset(), qps[1].VQP().Reset())
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

// rebuild makes both ends anew, on as many of the NICs that work as both have, and connects them.
func (c *cell) rebuild() error {
	devices := [2][]verbs.Device{working(c.pair.devices[0]), working(c.pair.devices[1])}
	n := min(len(devices[0]), len(devices[1]))
	for i := range devices {
		if len(devices[i]) == 0 {
			return fmt.Errorf("end %s has no other NIC", endName(i))
		}
		devices[i] = devices[i][:n]
	}
	if err := c.pair.connectBoth(devices); err != nil {
		return err
	}
	c.before = c.pair.count()
	return nil
}

// shut closes both ends, and handles what that flushes.
func (c *cell) shut() error {
	qps := c.pair.queuePairs()
	return errors.Join(qps[0].Shut(), qps[1].Shut())
}

// away says which NICs of the queue pairs do not work, and why.
func (c *pair) away() (list []string) {
	for end, nics := range c.nics {
		for _, d := range nics {
			if _, err := d.QueryPort(d.DefaultPort()); err != nil {
				list = append(list, fmt.Sprintf("%s (end %s)", d.Name(), endName(end)))
			} else if !works(d) {
				list = append(list, fmt.Sprintf("the link of %s (end %s)", d.Name(), endName(end)))
			}
		}
	}
	return list
}

// nicNames are the NICs of the queue pairs, by end.
func (c *pair) nicNames() map[string][]string {
	names := map[string][]string{}
	for end, nics := range c.nics {
		for _, d := range nics {
			names[endName(end)] = append(names[endName(end)], d.Name())
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
