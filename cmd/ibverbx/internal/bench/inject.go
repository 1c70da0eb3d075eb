package bench

import (
	"errors"
	"fmt"
	"time"

	"ibverbx/internal/units"
	"ibverbx/verbs"
	"ibverbx/verbs/soft"
)

var errNeedsSoft = errors.New("only software NICs fail on demand: use --provider soft")

// struck is a fault that has been injected.
type struck struct {
	what   string // for people
	undo   func() // nil when it is permanent
	missed bool   // there was nothing to strike
}

// missed is the result of a fault that found nothing to strike.
func missed(why string, args ...any) *struck {
	return &struck{what: "did not strike: " + fmt.Sprintf(why, args...), missed: true}
}

// end is the number of the end that the fault strikes.
func (f *Fault) end() int {
	if f.End == endName(1) {
		return 1
	}
	return 0
}

// killQP moves a rail to ERR, as its NIC does after a fatal error.
func killQP(c *pair, f *Fault) (*struck, error) {
	qp := c.ends[f.end()].QueuePair().VQP.QPs()[f.Rail]
	nic := qp.Device().Name()
	if qp.State() == verbs.StateErr {
		return missed("%s qp %d was in ERR already (end %s)", nic, qp.Num(), f.End), nil
	}
	switch err := qp.Modify(&verbs.QPAttr{State: verbs.StateErr}, verbs.QPAttrState); {
	case errors.Is(err, verbs.ErrDeviceGone):
		return missed("%s was gone already (end %s)", nic, f.End), nil
	case err != nil:
		return nil, err
	}
	return &struck{what: fmt.Sprintf("%s qp %d went to ERR (end %s)", nic, qp.Num(), f.End)}, nil
}

// softNIC returns the NIC that a fault names.
func softNIC(c *pair, f *Fault) (*soft.Device, error) {
	fabric, ok := c.provider.(*soft.Fabric)
	if !ok {
		return nil, errNeedsSoft
	}
	return fabric.Device(int(c.devices[f.end()][f.NIC].ID())), nil
}

// nicStruck describes a fault of a whole NIC.
func nicStruck(f *Fault, d *soft.Device, what string, undo func()) *struck {
	lasts := "permanently"
	if f.For > 0 {
		lasts = "for " + f.For.String()
	}
	return &struck{what: fmt.Sprintf(what+" (end %s)", d.Name(), lasts, f.End), undo: undo}
}

func nicDown(c *pair, f *Fault) (*struck, error) {
	return strikeNIC(c, f, "%s failed %s", (*soft.Device).Kill, (*soft.Device).Restore)
}

func linkDown(c *pair, f *Fault) (*struck, error) {
	return strikeNIC(c, f, "link of %s went down %s", func(d *soft.Device) { d.SetLink(false) },
		func(d *soft.Device) { d.SetLink(true) })
}

// strikeNIC strikes a NIC, permanently if the fault has no duration.
func strikeNIC(c *pair, f *Fault, what string, strike, undo func(*soft.Device)) (*struck, error) {
	d, err := softNIC(c, f)
	if err != nil {
		return nil, err
	}
	strike(d)
	if f.For == 0 {
		return nicStruck(f, d, what, nil), nil
	}
	return nicStruck(f, d, what, func() { undo(d) }), nil
}

// slowNIC slows a NIC down, and the one at the other end of its link, which sends the data of
// reads.
func slowNIC(c *pair, f *Fault) (*struck, error) {
	var nics [2]*soft.Device
	for i := range nics {
		at := *f
		at.End = endName(i)
		var err error
		if nics[i], err = softNIC(c, &at); err != nil {
			return nil, err
		}
	}
	usual, latency := uint64(pick(c.p.Speeds, f.NIC)), time.Duration(pick(c.p.Latencies, f.NIC))
	speed, from := float64(usual), "its speed"
	if speed == 0 { // unlimited: its speed is what it has carried
		speed, from = c.carried/float64(len(c.nics[0])), "what it carried"
	}
	slow := units.Rate(max(speed/float64(f.By), 1))
	set := func(speed uint64) {
		for _, nic := range nics {
			nic.SetSpeed(speed, latency)
		}
	}
	set(uint64(slow))
	return nicStruck(f, nics[0], fmt.Sprintf("%%s slowed down %%s to %.3g GB/s, %d times less than %s",
		float64(slow)/1e9, f.By, from), func() { set(usual) }), nil
}
