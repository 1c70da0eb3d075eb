package ibverbx

import (
	"errors"
	"fmt"

	"ibverbx/internal/failover"
	"ibverbx/verbs"
)

// NewCQ makes a virtual CQ with one physical CQ on each device, which holds depth completions; 0
// means 4096, enough for two virtual queue pairs with four rails on each device and the default
// limits.
func (d *Domain) NewCQ(depth int) (*VirtualCQ, error) {
	if depth == 0 {
		depth = 4096
	}
	depths := make([]int, len(d.devices))
	for i := range depths {
		depths[i] = depth
	}
	return d.newCQ(depths)
}

func (d *Domain) newCQ(depths []int) (*VirtualCQ, error) {
	if err := d.acquire(); err != nil {
		return nil, fmt.Errorf("ibverbx: new virtual cq: %w", err)
	}
	channel := verbs.NewCompChannel()
	var cqs []verbs.CQ
	var failed error
	for i, dev := range d.devices {
		cq, err := dev.CreateCQ(verbs.CQConfig{Depth: depths[i], Channel: channel})
		if err != nil {
			failed = err
			break
		}
		cqs = append(cqs, cq)
	}
	if failed == nil {
		c, err := NewVirtualCQ(cqs...)
		if err == nil {
			c.dom = d
			return c, nil
		}
		failed = err
	}
	for _, cq := range cqs {
		_ = cq.Close()
	}
	d.release()
	return nil, fmt.Errorf("ibverbx: new virtual cq: %w", failed)
}

// NewQP creates physical queue pairs on every device, cfg.QPsPerDevice each, a notify QP on the
// first device, and a virtual queue pair of them that completes on cq. If cq is nil it makes a
// virtual CQ of the right size, which is closed together with the virtual queue pair.
//
// Consecutive rails are on different devices. The result is in RESET: exchange [VirtualQP.Card] and
// call [VirtualQP.Connect].
func (d *Domain) NewQP(cq *VirtualCQ, cfg Config) (*VirtualQP, error) {
	if err := cfg.Validate(len(d.devices)); err != nil {
		return nil, err
	}
	deepest := cfg.MaxMsgCntPerQP == None
	cfg = cfg.withDefaults(d.devices)
	deepestQueue, err := d.fitDevices(&cfg)
	if err != nil {
		return nil, err
	}
	for {
		q, err := d.newQPOfDepth(cq, cfg, deepestQueue)
		if err == nil || !deepest || !tooDeep(err) || cfg.MaxMsgCntPerQP <= defaultMsgCnt {
			return q, err
		}
		cfg.MaxMsgCntPerQP /= 2
		cfg.Credits = min(cfg.Credits, 2*cfg.MaxMsgCntPerQP)
	}
}

// tooDeep reports whether a call may have been refused because a queue is too deep. With long
// scatter lists, NICs make only shorter queues than their limit says.
func tooDeep(err error) bool {
	return errors.Is(err, verbs.ErrInvalid) || errors.Is(err, verbs.ErrNoMemory) ||
		errors.Is(err, verbs.ErrNotSupported)
}

// newQPOfDepth is NewQP for a configuration that fits the devices.
func (d *Domain) newQPOfDepth(cq *VirtualCQ, cfg Config, deepestQueue int) (*VirtualQP, error) {
	layout := d.layout(&cfg, deepestQueue)
	ownsCQ := cq == nil
	if ownsCQ {
		var err error
		if cq, err = d.newCQ(layout.depths); errors.Is(err, verbs.ErrInvalid) {
			return nil, fmt.Errorf("%w: fewer queue pairs, or fewer messages and credits on each, need less",
				err)
		} else if err != nil {
			return nil, err
		}
	}
	q, err := d.newQP(cq, cfg, layout)
	if err != nil {
		if ownsCQ {
			_ = cq.Close()
		}
		return nil, err
	}
	q.ownsCQ = ownsCQ
	return q, nil
}

// Open does everything for one virtual queue pair over a list of devices in one call: a domain, a
// virtual CQ, the physical queue pairs. [VirtualQP.Domain] registers memory, [VirtualQP.CQ] is
// polled, and [VirtualQP.Close] closes it all, the domain when its last memory region is closed.
func Open(devices []verbs.Device, cfg Config) (*VirtualQP, error) {
	d, err := NewDomain(devices...)
	if err != nil {
		return nil, err
	}
	q, err := d.NewQP(nil, cfg)
	if err != nil {
		return nil, errors.Join(err, d.Close())
	}
	q.ownsDomain = true
	return q, nil
}

// fitDevices lowers the queue sizes to those that every device allows. It returns the deepest queue
// that they allow.
func (d *Domain) fitDevices(cfg *Config) (deepestQueue int, err error) {
	deepestQueue = maxQueue
	for _, dev := range d.devices {
		attr, err := dev.Query()
		if err != nil {
			return 0, fmt.Errorf("ibverbx: new virtual qp: %w", err)
		}
		if attr.MaxQPWR > 0 {
			deepestQueue = min(deepestQueue, attr.MaxQPWR)
		}
	}
	cfg.MaxMsgCntPerQP = min(cfg.MaxMsgCntPerQP, max(1, deepestQueue-d.reserved(cfg)))
	cfg.Credits = min(cfg.Credits, deepestQueue)
	return deepestQueue, nil
}

// reserved returns how many work requests each send queue holds beyond MaxMsgCntPerQP.
func (d *Domain) reserved(cfg *Config) int {
	if cfg.Failover && cfg.QPsPerDevice*len(d.devices) > 1 {
		return failover.ControlSlots
	}
	return 0
}

// plannedQP is a physical queue pair that NewQP is going to create.
type plannedQP struct {
	device int // index in the domain
	limits verbs.QPCap
}

type layout struct {
	data   []plannedQP
	notify *plannedQP
	spares []plannedQP
	depths []int // completions that may be outstanding, by device
}

// layout decides which queue pairs a configuration needs, and how large.
func (d *Domain) layout(cfg *Config, deepestQueue int) layout {
	total := cfg.QPsPerDevice * len(d.devices)
	l := layout{depths: make([]int, len(d.devices))}
	sends, watches := cfg.MaxMsgCntPerQP+d.reserved(cfg), 1
	if cfg.Failover && total > 1 {
		watches = min(controlRecvs, deepestQueue)
	}
	plan := func(device, recvs int) plannedQP {
		l.depths[device] += sends + recvs
		return plannedQP{device: device, limits: verbs.QPCap{
			MaxSendWR: sends, MaxRecvWR: recvs, MaxSendSGE: cfg.MaxSGE,
			MaxRecvSGE: cfg.MaxRecvSGE, MaxInline: cfg.MaxInline,
		}}
	}
	for i := range total {
		recvs := watches
		switch {
		case total == 1 || cfg.Scheme == Spray && i == 0:
			recvs = cfg.MaxMsgCntPerQP
		case cfg.Scheme == DQPLB:
			recvs = cfg.Credits
		}
		l.data = append(l.data, plan(i%len(d.devices), recvs))
	}
	if total > 1 && !cfg.NoNotifyQP {
		n := plan(0, cfg.MaxMsgCntPerQP)
		l.notify = &n
	}
	if total > 1 && cfg.Failover {
		for _, device := range spares(cfg, len(d.devices)) {
			l.spares = append(l.spares, plan(device, cfg.MaxMsgCntPerQP))
		}
	}
	if total == 1 {
		// Pass-through has the NIC's own limits, and a NIC may round queues up to the next power of
		// two.
		l.depths[0] *= 2
	}
	return l
}

// spares returns the devices of the spare queue pairs: in Spray first those for SENDs, which have
// no other, and then those that can replace the notify QP; in DQPLB only the latter. Counting the
// notify QP, there are as many of each kind as NICs, and at least two. See railSet.assignServices.
func spares(cfg *Config, devices int) (on []int) {
	each := max(2, devices)
	if cfg.Scheme == Spray {
		for i := range each {
			on = append(on, i%devices)
		}
	}
	for i := 1; i < each && !cfg.NoNotifyQP; i++ { // the notify QP is on device 0
		on = append(on, i%devices)
	}
	return on
}

func (d *Domain) newQP(cq *VirtualCQ, cfg Config, l layout) (*VirtualQP, error) {
	if err := d.acquire(); err != nil {
		return nil, fmt.Errorf("ibverbx: new virtual qp: %w", err)
	}
	var qps []verbs.QP
	var notify verbs.QP
	var spareQPs []verbs.QP
	undo := func(err error) (*VirtualQP, error) {
		for _, qp := range append(append(qps, spareQPs...), notify) {
			if qp != nil {
				_ = qp.Close()
			}
		}
		d.release()
		return nil, err
	}
	for _, p := range l.data {
		qp, err := d.createQP(cq, p)
		if err != nil {
			return undo(err)
		}
		qps = append(qps, qp)
	}
	if l.notify != nil {
		qp, err := d.createQP(cq, *l.notify)
		if err != nil {
			return undo(err)
		}
		notify = qp
	}
	for _, p := range l.spares {
		qp, err := d.createQP(cq, p)
		if err != nil {
			return undo(err)
		}
		spareQPs = append(spareQPs, qp)
	}
	q, err := newVirtualQP(cq, qps, notify, spareQPs, cfg)
	if err != nil {
		return undo(err)
	}
	q.dom = d
	if q.offered != nil {
		q.offered.lacking = &d.lacking
	}
	return q, nil
}

func (d *Domain) createQP(cq *VirtualCQ, p plannedQP) (verbs.QP, error) {
	dev := d.devices[p.device]
	pc := cq.physical(dev.ID())
	switch {
	case pc == nil:
		return nil, fmt.Errorf("ibverbx: new virtual qp: %w: virtual CQ %d has no CQ on %s",
			verbs.ErrInvalid, cq.num, dev.Name())
	case cq.dom != d && pc.cq.Device() != dev:
		return nil, fmt.Errorf("ibverbx: new virtual qp: %w: %s of virtual CQ %d has the index of the "+
			"domain's %s, and is of another provider", verbs.ErrInvalid, pc.cq.Device().Name(), cq.num,
			dev.Name())
	}
	qp, err := d.pds[p.device].CreateQP(verbs.QPConfig{SendCQ: pc.cq, RecvCQ: pc.cq, Cap: p.limits})
	if err != nil {
		return nil, fmt.Errorf("ibverbx: new virtual qp: %w", err)
	}
	return qp, nil
}
