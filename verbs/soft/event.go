package soft

import "ibverbx/verbs"

// Watch sends the NIC's events to c. They are
//
//   - verbs.EventPortErr and EventPortActive, when [Device.SetLink] or [CutLink] changes the link,
//     and one of them at [Device.Restore];
//   - verbs.EventDeviceFatal, at [Device.Kill] and [KillNIC];
//   - verbs.EventCQErr, when a completion queue overruns, and then EventQPFatal for each queue pair
//     that fails with it;
//   - verbs.EventQPFatal, at [FailQP];
//   - verbs.EventQPReqErr and EventQPAccessErr, when a queue pair fails as the responder and no
//     receive reports it: it refused an RDMA request or an atomic.
//
// Each is sent before the call or the step that causes it has returned. A NIC that was killed sends
// none until it is restored.
func (d *Device) Watch(c chan<- verbs.Event) (stop func()) { return d.core.Watch(c) }

// publishPort raises the event for the port's current state.
func (d *Device) publishPort() {
	e := verbs.Event{Type: verbs.EventPortActive, Port: 1}
	if d.linkDown {
		e.Type = verbs.EventPortErr
	}
	d.core.Publish(e)
}

// failWithEvent takes a queue pair to ERR for a reason that no completion reports, and raises the
// event that does.
func (f *Fabric) failWithEvent(q *QP, why verbs.EventType) {
	if q.core.State == verbs.StateErr || q.core.State == verbs.StateReset {
		return
	}
	q.dev.core.Publish(verbs.Event{Type: why, QPNum: q.core.Num})
	f.toError(q)
}

// refusalEvent returns the event of a responder that refused a request with a status.
func refusalEvent(status verbs.Status) verbs.EventType {
	if status == verbs.StatusRemAccessErr {
		return verbs.EventQPAccessErr
	}
	return verbs.EventQPReqErr
}
