package bench

import (
	"errors"
	"fmt"

	"ibverbx/verbs"
	"ibverbx/verbs/soft"
)

var errNeedsSoft = errors.New("only software NICs fail on demand: use --provider soft")

// noRail is what becomes of a fault that names a queue pair which the column does not have.
func (r *rig) noRail() *struck {
	what := "did not strike: this column has a single queue pair"
	if n := r.here()[0].vqp.DataRails(); n > 1 {
		what = fmt.Sprintf("did not strike: this column has %d queue pairs", n)
	}
	return &struck{what: what, missed: true}
}

// anyNIC is where a fault may strike that names neither a NIC nor a rail.
const anyNIC = "any NIC"

// inject puts a fault in force that strikes requests.
func inject(r *rig, f *Fault, kind soft.FaultKind, what string) (*struck, error) {
	fabric, ok := r.provider.(*soft.Fabric)
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
	devices, end := r.devicesA, "a"
	if f.End == "b" {
		devices, end = r.devicesB, "b"
	}
	switch {
	case f.Rail >= 0:
		qp := r.rails[f.Rail]
		if f.End == "b" {
			qp = r.railsB[f.Rail]
		}
		sf.Device, sf.QPNum = fabric.Device(int(qp.Device().ID())), qp.Num()
		where = fmt.Sprintf(onEnd, fmt.Sprintf("%s qp %d", qp.Device().Name(), qp.Num()), end)
	case f.NIC >= 0:
		sf.Device = fabric.Device(int(devices[f.NIC].ID()))
		where = fmt.Sprintf(onEnd, sf.Device.Name(), end)
	}
	i := fabric.Inject(sf)
	return &struck{what: what + " on " + where, hits: i.Hits, undo: i.Remove}, nil
}

func injectFail(r *rig, f *Fault) (*struck, error) {
	return inject(r, f, soft.FailSend, "fragments failed")
}

func injectLoseAck(r *rig, f *Fault) (*struck, error) {
	return inject(r, f, soft.FailAfterData, "fragments lost their acknowledgement")
}

func injectFailRecv(r *rig, f *Fault) (*struck, error) {
	return inject(r, f, soft.FailRecv, "receives failed")
}

func injectRefuse(r *rig, f *Fault) (*struck, error) {
	return inject(r, f, soft.RefuseSend, "posts refused")
}

func injectDelay(r *rig, f *Fault) (*struck, error) {
	s, err := inject(r, f, soft.Delay, fmt.Sprintf("fragments delayed by %v", f.For))
	if err == nil {
		f.For = 0 // it is no end of the fault
	}
	return s, err
}

func injectStall(r *rig, f *Fault) (*struck, error) {
	return inject(r, f, soft.StallQP, fmt.Sprintf("queue pair stalled for %v", f.For))
}

// killQP moves a rail to ERR, as its NIC would after a fatal error.
func killQP(r *rig, f *Fault) (*struck, error) {
	rails := r.rails
	if f.End == "b" {
		rails = r.railsB
	}
	qp := rails[f.Rail]
	if qp.State() == verbs.StateErr {
		return &struck{what: fmt.Sprintf("did not strike: %s qp %d was in ERR already (end %s)",
			qp.Device().Name(), qp.Num(), f.End), missed: true}, nil
	}
	if err := qp.Modify(&verbs.QPAttr{State: verbs.StateErr}, verbs.QPAttrState); err != nil {
		return nil, err
	}
	return &struck{what: fmt.Sprintf("%s qp %d went to ERR (end %s)", qp.Device().Name(), qp.Num(), f.End)},
		nil
}

// nicStruck is a fault of a whole NIC.
func (r *rig) nicStruck(f *Fault, d *soft.Device, what string, undo func()) *struck {
	s := &struck{what: fmt.Sprintf("%s (end %s)", what, f.End), undo: undo, idle: true}
	e := r.a
	if f.End == "b" {
		e = r.b
	}
	for _, used := range e.nics {
		s.idle = s.idle && used.ID() != d.ID()
	}
	if s.idle {
		s.what += ", which this column does not use"
	}
	return s
}

// softNIC is the NIC that a fault names.
func softNIC(r *rig, f *Fault) (*soft.Device, error) {
	fabric, ok := r.provider.(*soft.Fabric)
	if !ok {
		return nil, errNeedsSoft
	}
	devices := r.devicesA
	if f.End == "b" {
		devices = r.devicesB
	}
	return fabric.Device(int(devices[f.NIC].ID())), nil
}

func nicDown(r *rig, f *Fault) (*struck, error) {
	d, err := softNIC(r, f)
	if err != nil {
		return nil, err
	}
	d.Kill()
	if f.For > 0 {
		return r.nicStruck(f, d, fmt.Sprintf("%s failed for %v", d.Name(), f.For), d.Restore), nil
	}
	return r.nicStruck(f, d, d.Name()+" failed for good", nil), nil
}

func linkDown(r *rig, f *Fault) (*struck, error) {
	d, err := softNIC(r, f)
	if err != nil {
		return nil, err
	}
	d.SetLink(false)
	return r.nicStruck(f, d, fmt.Sprintf("link of %s went down for good", d.Name()), nil), nil
}

func linkFlap(r *rig, f *Fault) (*struck, error) {
	d, err := softNIC(r, f)
	if err != nil {
		return nil, err
	}
	d.SetLink(false)
	return r.nicStruck(f, d, fmt.Sprintf("link of %s went down for %v", d.Name(), f.For),
		func() { d.SetLink(true) }), nil
}
