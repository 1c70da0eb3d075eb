package bench

import (
	"errors"
	"fmt"

	"ibverbx/verbs"
	"ibverbx/verbs/soft"
)

var errNeedsSoft = errors.New("only software NICs fail on demand: use --provider soft")

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
	where := "any NIC"
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
	if err := qp.Modify(&verbs.QPAttr{State: verbs.StateErr}, verbs.QPAttrState); err != nil {
		return nil, err
	}
	return &struck{what: fmt.Sprintf("%s qp %d went to ERR (end %s)", qp.Device().Name(), qp.Num(), f.End)}, nil
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
	return &struck{what: fmt.Sprintf("%s failed (end %s)", d.Name(), f.End)}, nil
}

func linkDown(r *rig, f *Fault) (*struck, error) {
	d, err := softNIC(r, f)
	if err != nil {
		return nil, err
	}
	d.SetLink(false)
	return &struck{what: fmt.Sprintf("link of %s went down (end %s)", d.Name(), f.End)}, nil
}

func linkFlap(r *rig, f *Fault) (*struck, error) {
	d, err := softNIC(r, f)
	if err != nil {
		return nil, err
	}
	d.SetLink(false)
	return &struck{
		what: fmt.Sprintf("link of %s went down for %v (end %s)", d.Name(), f.For, f.End),
		undo: func() { d.SetLink(true) },
	}, nil
}
