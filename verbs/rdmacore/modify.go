//go:build linux && (amd64 || arm64)

package rdmacore

import (
	"fmt"
	"syscall"

	"ibverbx/verbs"
)

// Modify changes attributes and state. It first checks the attributes that the transition requires
// and allows, because the kernel answers EINVAL to every mistake.
func (q *qp) Modify(attr *verbs.QPAttr, mask verbs.QPAttrMask) error {
	const op = "modify qp"
	q.lock()
	defer q.unlock()
	if q.sends.closed {
		return q.err(op, verbs.ErrClosed, "")
	}
	now := q.current()
	if err := verbs.CheckModify(now, attr, mask); err != nil {
		return q.err(op, err, "")
	}
	*q.attr = cAttr(attr, mask)
	if errno := q.modify(mask); errno != 0 {
		return q.d.callErr(op, q.num, "ibv_modify_qp", errno, q.modifyHint(errno, now, attr, mask))
	}
	if mask&verbs.QPAttrState != 0 {
		q.state.Store(uint32(attr.State))
	}
	return nil
}

// modify asks the kernel to apply q.attr. Both locks are held.
func (q *qp) modify(mask verbs.QPAttrMask) syscall.Errno {
	return q.d.p.lib.status(q.d.p.lib.modifyQP, q.addr, address(q.attr), uintptr(mask))
}

// cAttr returns attr in C's layout.
func cAttr(attr *verbs.QPAttr, mask verbs.QPAttrMask) ibvQPAttr {
	c := ibvQPAttr{
		qpState: uint32(attr.State), curQPState: uint32(attr.CurState), pathMTU: uint32(attr.PathMTU),
		rqPSN: attr.RQPSN, sqPSN: attr.SQPSN,
		destQPNum: attr.DestQPNum, qpAccessFlags: uint32(attr.Access), pkeyIndex: attr.PKeyIndex,
		maxRDAtomic:     attr.MaxRDAtomic,
		maxDestRDAtomic: attr.MaxDestRDAtomic, minRNRTimer: attr.MinRNRTimer, portNum: attr.Port,
		timeout:  attr.Timeout,
		retryCnt: attr.RetryCount, rnrRetry: attr.RNRRetry,
	}
	if mask&verbs.QPAttrAV != 0 {
		ah := &attr.AH
		c.ahAttr = ibvAHAttr{dgid: ah.DGID, flowLabel: ah.FlowLabel, sgidIndex: ah.SGIDIndex,
			hopLimit: ah.HopLimit, trafficClass: ah.TrafficClass,
			dlid: ah.DLID, sl: ah.SL, portNum: ah.Port}
		if ah.Global {
			c.ahAttr.isGlobal = 1
		}
	}
	return c
}

// modifyHint returns what may be wrong if the kernel refuses a change that the state table allows.
func (q *qp) modifyHint(errno syscall.Errno, now verbs.QPState, attr *verbs.QPAttr,
	mask verbs.QPAttrMask) string {
	hint := "from " + now.String()
	if mask&verbs.QPAttrState != 0 {
		hint += " to " + attr.State.String()
	}
	switch errno {
	case syscall.ETIMEDOUT, syscall.EHOSTUNREACH, syscall.ENETUNREACH:
		if why := q.d.portHint(int(attr.AH.Port)); why != "" {
			return hint + ": " + why
		}
		return fmt.Sprintf("%s: no way to %v: is the peer's interface up and in reach?", hint, attr.AH.DGID)
	case syscall.EOPNOTSUPP:
		if mask&verbs.QPAttrAccess != 0 && attr.Access&verbs.AccessRemoteAtomic != 0 && !q.d.atomics {
			return hint + ": the NIC has no atomics: leave REMOTE_ATOMIC out of the access rights"
		}
	case syscall.EINVAL, syscall.ENODEV, syscall.EADDRNOTAVAIL:
		why := q.d.attrHint(attr, mask)
		if why == "" && mask&verbs.QPAttrAV != 0 {
			why = q.d.pathHint(attr)
		}
		if why != "" {
			return hint + ": " + why
		}
	}
	return hint
}

// attrHint returns which attribute exceeds the NIC's limits, if any.
func (d *device) attrHint(attr *verbs.QPAttr, mask verbs.QPAttrMask) string {
	has := func(bit verbs.QPAttrMask) bool { return mask&bit != 0 }
	switch {
	case has(verbs.QPAttrPort) && (attr.Port < 1 || int(attr.Port) > d.limits.Ports):
		return fmt.Sprintf("port %d: the NIC has ports 1 to %d", attr.Port, d.limits.Ports)
	case has(verbs.QPAttrMaxRDAtomic) && int(attr.MaxRDAtomic) > d.limits.MaxRDAtomic:
		return fmt.Sprintf("MaxRDAtomic %d: the NIC has %d", attr.MaxRDAtomic, d.limits.MaxRDAtomic)
	case has(verbs.QPAttrMaxDestRDAtomic) && int(attr.MaxDestRDAtomic) > d.limits.MaxRDAtomic:
		return fmt.Sprintf("MaxDestRDAtomic %d: the NIC has %d", attr.MaxDestRDAtomic, d.limits.MaxRDAtomic)
	case has(verbs.QPAttrPathMTU):
		if p, err := d.QueryPort(int(attr.AH.Port)); err == nil && attr.PathMTU > p.ActiveMTU {
			return fmt.Sprintf("path MTU %v: port %d has %v", attr.PathMTU, attr.AH.Port, p.ActiveMTU)
		}
	}
	return ""
}

// portHint returns what is wrong with a port, or "".
func (d *device) portHint(port int) string {
	p, err := d.QueryPort(port)
	switch {
	case err != nil:
		return err.Error()
	case p.State != verbs.PortActive:
		return fmt.Sprintf("port %d is %v, which may be why: bring the link up", port, p.State)
	}
	return ""
}

// pathHint returns what is wrong with the port and the GIDs of a path, or "".
func (d *device) pathHint(attr *verbs.QPAttr) string {
	port, index, global := int(attr.AH.Port), int(attr.AH.SGIDIndex), attr.AH.Global
	if why := d.portHint(port); why != "" {
		return why
	}
	p, err := d.QueryPort(port)
	switch {
	case err != nil:
		return err.Error()
	case !global && p.LinkLayer == verbs.LinkLayerEthernet:
		return "RoCE addresses by GID: AH.Global has to be set"
	case !global:
		return ""
	}
	g, err := d.QueryGID(port, index)
	switch {
	case err != nil:
		return err.Error()
	case g.GID.IsZero():
		return fmt.Sprintf("entry %d of port %d's GID table is empty: choose another (show_gids, or "+
			"ibverbx devices)", index, port)
	case g.GID.IsIPv4() != attr.AH.DGID.IsIPv4():
		return fmt.Sprintf("this end's GID is %v (%v) and the peer's %v: both have to be IPv4, or neither",
			g.GID, g.Type, attr.AH.DGID)
	}
	return ""
}

// State returns the current state. The NIC may have moved the queue pair to ERR by itself; if that
// is possible State asks the kernel, so do not call it on a hot path.
func (q *qp) State() verbs.QPState {
	q.lock()
	defer q.unlock()
	if q.sends.closed {
		return verbs.QPState(q.state.Load())
	}
	return q.current()
}

// current returns the state, and asks the kernel for it if it may have changed by itself. Both
// locks are held.
func (q *qp) current() verbs.QPState {
	state := verbs.QPState(q.state.Load())
	if !q.mayFail() {
		return state
	}
	if q.d.gone.Load() {
		return verbs.StateErr // the kernel's object is gone
	}
	if errno := q.query(verbs.QPAttrState); errno != 0 {
		return state
	}
	now := verbs.QPState(q.attr.qpState)
	if now == verbs.StateErr {
		q.state.Store(uint32(now))
		q.flushReceives() // those posted since the queue pair went to ERR
	}
	return now
}

// mayFail reports whether the queue pair is in a state that the NIC may leave for ERR by itself.
func (q *qp) mayFail() bool {
	switch verbs.QPState(q.state.Load()) {
	case verbs.StateReset, verbs.StateInit, verbs.StateErr:
		return false
	}
	return true
}

// query fills q.attr. Both locks are held.
func (q *qp) query(mask verbs.QPAttrMask) syscall.Errno {
	*q.attr = ibvQPAttr{}
	return q.d.p.lib.status(q.d.p.lib.queryQP, q.addr, address(q.attr), uintptr(mask), address(q.init))
}

// allAttrs is the set of attributes that Query asks for.
const allAttrs = verbs.QPAttrState | verbs.QPAttrAccess | verbs.QPAttrPKeyIndex | verbs.QPAttrPort |
	verbs.QPAttrAV | verbs.QPAttrPathMTU |
	verbs.QPAttrTimeout | verbs.QPAttrRetryCount | verbs.QPAttrRNRRetry | verbs.QPAttrRQPSN |
	verbs.QPAttrMaxRDAtomic |
	verbs.QPAttrMinRNRTimer | verbs.QPAttrSQPSN | verbs.QPAttrMaxDestRDAtomic | verbs.QPAttrDestQPNum

// Query returns the current attributes.
func (q *qp) Query() (verbs.QPAttr, error) {
	const op = "query qp"
	q.lock()
	defer q.unlock()
	if q.sends.closed {
		return verbs.QPAttr{}, q.err(op, verbs.ErrClosed, "")
	}
	if errno := q.query(allAttrs); errno != 0 {
		return verbs.QPAttr{}, q.d.callErr(op, q.num, "ibv_query_qp", errno, "")
	}
	c, ah := q.attr, &q.attr.ahAttr
	return verbs.QPAttr{
		State: verbs.QPState(c.qpState), CurState: verbs.QPState(c.curQPState), PathMTU: verbs.MTU(c.pathMTU),
		DestQPNum: c.destQPNum,
		RQPSN:     c.rqPSN, SQPSN: c.sqPSN, Access: verbs.AccessFlags(c.qpAccessFlags),
		MaxRDAtomic:     c.maxRDAtomic,
		MaxDestRDAtomic: c.maxDestRDAtomic, MinRNRTimer: c.minRNRTimer, PKeyIndex: c.pkeyIndex,
		Port: c.portNum, Timeout: c.timeout,
		RetryCount: c.retryCnt, RNRRetry: c.rnrRetry,
		AH: verbs.AH{DGID: ah.dgid, SGIDIndex: ah.sgidIndex, HopLimit: ah.hopLimit,
			TrafficClass: ah.trafficClass, FlowLabel: ah.flowLabel,
			SL: ah.sl, DLID: ah.dlid, Port: ah.portNum, Global: ah.isGlobal != 0},
	}, nil
}

// flushReceives makes the NIC flush receives that were posted after the queue pair had failed. The
// contract requires that, and most NICs do it; rdma_rxe looks at a receive only when a message
// needs it, which never happens in ERR. Moving to ERR once more has no other effect (IBTA 10.3.1
// allows it at any time). Both locks are held.
func (q *qp) flushReceives() {
	if verbs.QPState(q.state.Load()) != verbs.StateErr {
		return
	}
	*q.attr = ibvQPAttr{qpState: uint32(verbs.StateErr)}
	_ = q.modify(verbs.QPAttrState) // if the NIC refuses, the receives wait for the next change of state
}
