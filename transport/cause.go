package transport

import (
	"errors"

	"ibverbx"
	"ibverbx/verbs"
)

// newError makes the error of an endpoint that serves no more. It names what has failed in words,
// where the virtual queue pair knows a number only, and puts first what this end's NIC has
// reported.
func (p *peerState) newError(sentinel, cause error) *EndpointError {
	e := &EndpointError{Peer: p.cfg.Name, Err: sentinel, Cause: cause}
	var failed *ibverbx.FailedError
	if !errors.As(cause, &failed) {
		return e
	}
	named := *failed // the virtual queue pair keeps its own
	named.Name = p.nameOf(failed)
	e.Cause, e.Op = &named, named.Name
	p.w.watch.look()
	e.Event = p.w.watch.explains(failed)
	return e
}

// nameOf says in words what has failed; "" if that is not known.
func (p *peerState) nameOf(f *ibverbx.FailedError) string {
	if !f.HasID {
		return ""
	}
	if f.ID&wridRecv != 0 {
		return "receive of messages"
	}
	ops := &p.sending.ops
	for n := ops.Head; n != ops.Tail; n++ {
		if uint32(n) == wridLow(f.ID) {
			return opNames[ops.At(n).kind]
		}
	}
	switch f.Opcode { // its post was refused: it is no operation yet
	case verbs.WCSend:
		return opNames[opAM]
	case verbs.WCRDMAWrite:
		return opNames[opPut]
	case verbs.WCRDMARead:
		return opNames[opGet]
	case verbs.WCFetchAdd:
		return opNames[opFetchAdd]
	case verbs.WCCompSwap:
		return opNames[opCompareSwap]
	}
	return ""
}
