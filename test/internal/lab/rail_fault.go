package lab

import (
	"ibverbx/verbs"
	"ibverbx/verbs/soft"
)

// PlaceLate is a fault after which acknowledged data is in memory late. It harms no rail.
const PlaceLate = "data is in memory late"

// RailFaults are faults that take rails out and say nothing of the requests that met them: what a
// connection with failover survives while a rail of each kind is left.
var RailFaults = []Fault{
	{Name: "retries used up before the arrival", make: inject(soft.FailSend)},
	{Name: "retries used up after the arrival", make: inject(soft.FailAfterData)},
	{Name: "retries used up, and it arrives late", make: func(t *Testbed) soft.Fault {
		f := soft.Fault{Kind: soft.ArriveLate}
		if t.OneIn(3) { // nothing behind a message arrives
			f.Match = func(wr *verbs.SendWR) bool { return !wr.Opcode.HasImm() }
		}
		return f
	}},
	{Name: "a request meets a fatal error", make: func(*Testbed) soft.Fault {
		return soft.Fault{Kind: soft.FailSend, Status: verbs.StatusFatalErr}
	}},
	{Name: "queue pair dies at a request", make: inject(soft.FailQP)},
	{Name: QPDies, act: killQP},
	{Name: "sends are refused in ERR", make: refuseFor(soft.RefuseSend, verbs.ErrState)},
	{Name: "sends are refused by a NIC that is gone", make: refuseFor(soft.RefuseSend, verbs.ErrDeviceGone)},
	{Name: "receives are refused in ERR", make: refuseFor(soft.RefuseRecv, verbs.ErrState)},
	{Name: "receives are refused by a NIC that is gone",
		make: refuseFor(soft.RefuseRecv, verbs.ErrDeviceGone)},
	{Name: "link cut at a request", Scope: OneLink, make: inject(soft.CutLink)},
	{Name: "NIC dies at a request", Scope: OneNIC, make: inject(soft.KillNIC)},
	{Name: "completion queue overruns", Scope: OneCQ, make: inject(soft.OverrunCQ)},
	{Name: "completion queue overruns after some requests", Scope: OneCQ, make: func(t *Testbed) soft.Fault {
		return soft.Fault{Kind: soft.OverrunCQ, Match: skip(t.Rng.IntN(8))}
	}},
	{Name: "link down", Scope: OneLink, act: cutLink},
	{Name: LinkFlaps, Scope: OneLink, act: flapLink},
	{Name: "NIC dies", Scope: OneNIC, act: killNIC},
}

// skip lets n requests pass.
func skip(n int) func(*verbs.SendWR) bool {
	return func(*verbs.SendWR) bool { n--; return n < 0 }
}

func refuseFor(kind soft.FaultKind, err error) func(*Testbed) soft.Fault {
	return func(*Testbed) soft.Fault { return soft.Fault{Kind: kind, Err: err} }
}

// DelayPlacement has some writes of a queue pair in the peer's memory only after they were
// acknowledged.
func (t *Testbed) DelayPlacement(q *QP, c *Conn) {
	t.Inject(PlaceLate, c, q, soft.Fault{Kind: soft.PlaceLate, Count: t.Pick(1, 2, 5, 50),
		Skip: t.Rng.IntN(3)})
}
