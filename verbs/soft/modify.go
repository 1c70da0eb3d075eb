package soft

import (
	"ibverbx/verbs"
	"ibverbx/verbs/internal/nic"
)

// Modify changes attributes and state. Going to ERR flushes what is outstanding, in order; going to
// RESET drops it and waits for a copy from or to the queue pair's memory.
func (q *QP) Modify(attr *verbs.QPAttr, mask verbs.QPAttrMask) error {
	f := q.f
	f.mu.Lock()
	defer f.mu.Unlock()
	for q.changing {
		f.mu.AwaitQuiet()
	}
	next, err := q.core.CheckModify(attr, mask)
	if err != nil {
		return err
	}
	switch next {
	case verbs.StateReset:
		q.empty()
		return nil
	case verbs.StateErr:
		f.toError(q)
		return nil
	}
	q.apply(attr, mask)
	before := q.core.State
	q.core.State = next
	switch {
	case next == verbs.StateRTR && before != next:
		f.readyToReceive(q)
	case next == verbs.StateRTS:
		f.engine.ready(q)
	}
	return nil
}

// apply stores the attributes that mask names.
func (q *QP) apply(attr *verbs.QPAttr, mask verbs.QPAttrMask) {
	nic.Apply(&q.core.Attr, attr, mask)
	if mask&verbs.QPAttrAV != 0 {
		q.dest = q.f.byGID[attr.AH.DGID]
	}
	if mask&(verbs.QPAttrAV|verbs.QPAttrDestQPNum) != 0 {
		q.peer = nil
	}
	if mask&verbs.QPAttrRQPSN != 0 {
		q.recvPSN = attr.RQPSN
	}
	if mask&verbs.QPAttrSQPSN != 0 {
		q.sendPSN = attr.SQPSN
	}
}
