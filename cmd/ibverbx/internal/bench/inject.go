package bench

import (
	"errors"
	"fmt"
	"time"

	"ibverbx/cmd/ibverbx/internal/units"
	"ibverbx/verbs"
	"ibverbx/verbs/soft"
)

var errNeedsSoft = errors.New("only software NICs fail on demand: use --provider soft")

// noRail is the result of a fault that names a queue pair which the column does not have.
func (c *pair) noRail() *struck {
	what := "did not strike: this column has a single queue pair"
	if n := c.dataRails(); n > 1 {
		what = fmt.Sprintf("did not strike: this column has %d queue pairs", n)
	}
	return &struck{what: what, missed: true}
}

// end is the number of the end that the fault strikes.
func (f *Fault) end() int {
	if f.End == endName(1) {
		return 1
	}
	return 0
}

// anyNIC is where a fault may strike that names neither a NIC nor a rail.
const anyNIC = "any NIC"

// inject injects a fault that strikes requests.
func inject(c *pair, f *Fault, kind soft.FaultKind, what string) (*struck, error) {
	fabric, ok := c.provider.(*soft.Fabric)
	if !ok {
		return nil, errNeedsSoft
	}
	sf := soft.Fault{Kind: kind, Count: f.Count, Delay: f.For}
	sf.Match = func(wr *verbs.SendWR) bool { return wr.Bytes() > 0 } // not the notifications
	if kind == soft.FailRecv {
		sf.Match = nil
	}
	where := anyNIC
	const onEnd = "%s (end %s)"
	end := f.end()
	switch {
	case f.Rail >= 0:
		qp := c.rails[end][f.Rail]
		sf.Device, sf.QPNum = fabric.Device(int(qp.Device().ID())), qp.Num()
		where = fmt.Sprintf(onEnd, fmt.Sprintf("%s qp %d", qp.Device().Name(), qp.Num()), f.End)
	case f.NIC >= 0:
		sf.Device = fabric.Device(int(c.devices[end][f.NIC].ID()))
		where = fmt.Sprintf(onEnd, sf.Device.Name(), f.End)
	}
	i := fabric.Inject(sf)
	return &struck{what: what + " on " + where, hits: i.Hits, undo: i.Remove}, nil
}

func injectFail(c *pair, f *Fault) (*struck, error) {
	return inject(c, f, soft.FailSend, "fragments failed")
}

func injectLoseAck(c *pair, f *Fault) (*struck, error) {
	return inject(c, f, soft.FailAfterData, "fragments lost their acknowledgement")
}

func injectFailRecv(c *pair, f *Fault) (*struck, error) {
	return inject(c, f, soft.FailRecv, "receives failed")
}

func injectRefuse(c *pair, f *Fault) (*struck, error) {
	return inject(c, f, soft.RefuseSend, "posts refused")
}

func injectDelay(c *pair, f *Fault) (*struck, error) {
	s, err := inject(c, f, soft.Delay, fmt.Sprintf("fragments delayed by %v", f.For))
	if err == nil {
		f.For = 0 // the fault has no end to wait for
	}
	return s, err
}

func injectStall(c *pair, f *Fault) (*struck, error) {
	return inject(c, f, soft.StallQP, fmt.Sprintf("queue pair stalled for %v", f.For))
}

// killQP moves a rail to ERR, as its NIC would after a fatal error.
func killQP(c *pair, f *Fault) (*struck, error) {
	qp := c.rails[f.end()][f.Rail]
	if qp.State() == verbs.StateErr {
		return &struck{what: fmt.Sprintf("did not strike: %s qp %d was in ERR already (end %s)",
			qp.Device().Name(), qp.Num(), f.End), missed: true}, nil
	}
	err := qp.Modify(&verbs.QPAttr{State: verbs.StateErr}, verbs.QPAttrState)
	if errors.Is(err, verbs.ErrDeviceGone) {
		return &struck{what: fmt.Sprintf("did not strike: %s was gone already (end %s)", qp.Device().Name(),
			f.End), missed: true}, nil
	}
	if err != nil {
		return nil, err
	}
	return &struck{what: fmt.Sprintf("%s qp %d went to ERR (end %s)", qp.Device().Name(), qp.Num(), f.End)},
		nil
}

// nicStruck is a fault of a whole NIC.
func (c *pair) nicStruck(f *Fault, d *soft.Device, what string, undo func()) *struck {
	s := &struck{what: fmt.Sprintf("%s (end %s)", what, f.End), undo: undo, idle: true}
	for _, used := range c.nics[f.end()] {
		s.idle = s.idle && used.ID() != d.ID()
	}
	if s.idle {
		s.what += ", which this column does not use"
	}
	return s
}

// softNIC is the NIC that a fault names.
func softNIC(c *pair, f *Fault) (*soft.Device, error) {
	fabric, ok := c.provider.(*soft.Fabric)
	if !ok {
		return nil, errNeedsSoft
	}
	return fabric.Device(int(c.devices[f.end()][f.NIC].ID())), nil
}

func nicDown(c *pair, f *Fault) (*struck, error) {
	d, err := softNIC(c, f)
	if err != nil {
		return nil, err
	}
	d.Kill()
	if f.For > 0 {
		return c.nicStruck(f, d, fmt.Sprintf("%s failed for %v", d.Name(), f.For), d.Restore), nil
	}
	return c.nicStruck(f, d, d.Name()+" failed permanently", nil), nil
}

func linkDown(c *pair, f *Fault) (*struck, error) {
	d, err := softNIC(c, f)
	if err != nil {
		return nil, err
	}
	d.SetLink(false)
	return c.nicStruck(f, d, fmt.Sprintf("link of %s went down permanently", d.Name()), nil), nil
}

func linkFlap(c *pair, f *Fault) (*struck, error) {
	d, err := softNIC(c, f)
	if err != nil {
		return nil, err
	}
	d.SetLink(false)
	return c.nicStruck(f, d, fmt.Sprintf("link of %s went down for %v", d.Name(), f.For),
		func() { d.SetLink(true) }), nil
}

// slowNIC slows a NIC down, and the one at the other end of its link: the data of reads takes the
// wire there.
func slowNIC(c *pair, f *Fault) (*struck, error) {
	d, err := softNIC(c, f)
	if err != nil {
		return nil, err
	}
	other := *f
	other.End = endName(1)
	peer, err := softNIC(c, &other)
	if err != nil {
		return nil, err
	}
	speed, latency := float64(pick(c.p.Speeds, f.NIC)), time.Duration(pick(c.p.Latencies, f.NIC))
	from := "its speed"
	if speed == 0 { // unlimited: what it has carried is its speed
		speed = c.carried / float64(len(c.nics[0]))
		from = "what it carried"
	}
	slow := units.Rate(max(speed/float64(f.By), 1))
	for _, nic := range []*soft.Device{d, peer} {
		nic.SetSpeed(uint64(slow), latency)
	}
	undo := func() {
		for _, nic := range []*soft.Device{d, peer} {
			nic.SetSpeed(uint64(pick(c.p.Speeds, f.NIC)), latency)
		}
	}
	lasts := "permanently"
	if f.For > 0 {
		lasts = "for " + f.For.String()
	}
	what := fmt.Sprintf("%s slowed down %s to %.3g GB/s, %d times less than %s", d.Name(), lasts,
		float64(slow)/1e9, f.By, from)
	return c.nicStruck(f, d, what, undo), nil
}
