package soft

import (
	"fmt"

	"ibverbx/verbs"
)

// Modify changes attributes and state. Going to ERR flushes what is outstanding, in order; going to
// RESET drops it and waits for a copy from or to the queue pair's memory.
func (q *QP) Modify(attr *verbs.QPAttr, mask verbs.QPAttrMask) error {
	f := q.f
	f.mu.Lock()
	defer f.mu.Unlock()
	for q.changing {
		f.awaitQuiet()
	}
	const op = "modify qp"
	if err := q.usable(op); err != nil {
		return err
	}
	if err := verbs.CheckModify(q.state, attr, mask); err != nil {
		return q.err(op, err, "")
	}
	if detail := q.dev.checkAttr(attr, mask); detail != "" {
		return q.err(op, verbs.ErrInvalid, detail)
	}
	next := q.state
	if mask&verbs.QPAttrState != 0 {
		next = attr.State
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
	before := q.state
	q.state = next
	switch {
	case next == verbs.StateRTR && before != next:
		f.readyToReceive(q)
	case next == verbs.StateRTS:
		f.engine.ready(q)
	}
	return nil
}

// checkAttr says which value in attr is wrong; it returns "" if none is.
func (d *Device) checkAttr(attr *verbs.QPAttr, mask verbs.QPAttrMask) string {
	has := func(bit verbs.QPAttrMask) bool { return mask&bit != 0 }
	switch {
	case has(verbs.QPAttrPort) && attr.Port != 1:
		return fmt.Sprintf("port %d, there is only port 1", attr.Port)
	case has(verbs.QPAttrPKeyIndex) && attr.PKeyIndex != 0:
		return fmt.Sprintf("partition key index %d, there is only index 0", attr.PKeyIndex)
	case has(verbs.QPAttrAccess) && attr.Access&^verbs.AccessAll != 0:
		return fmt.Sprintf("access %v", attr.Access)
	case has(verbs.QPAttrPathMTU) && attr.PathMTU.Bytes() == 0:
		return fmt.Sprintf("path MTU code %d", attr.PathMTU)
	case has(verbs.QPAttrDestQPNum) && attr.DestQPNum > maxQPNum:
		return fmt.Sprintf("destination queue pair %#x has more than 24 bits", attr.DestQPNum)
	case has(verbs.QPAttrRQPSN) && attr.RQPSN > psnMask:
		return fmt.Sprintf("receive PSN %#x has more than 24 bits", attr.RQPSN)
	case has(verbs.QPAttrSQPSN) && attr.SQPSN > psnMask:
		return fmt.Sprintf("send PSN %#x has more than 24 bits", attr.SQPSN)
	case has(verbs.QPAttrMaxRDAtomic) && int(attr.MaxRDAtomic) > d.cfg.MaxRDAtomic:
		return fmt.Sprintf("%d reads outstanding, the NIC allows %d", attr.MaxRDAtomic, d.cfg.MaxRDAtomic)
	case has(verbs.QPAttrMaxDestRDAtomic) && int(attr.MaxDestRDAtomic) > d.cfg.MaxRDAtomic:
		return fmt.Sprintf("%d reads of the peer outstanding, the NIC allows %d", attr.MaxDestRDAtomic,
			d.cfg.MaxRDAtomic)
	case has(verbs.QPAttrMinRNRTimer) && attr.MinRNRTimer > 31:
		return fmt.Sprintf("RNR timer code %d has more than 5 bits", attr.MinRNRTimer)
	case has(verbs.QPAttrTimeout) && attr.Timeout > 31:
		return fmt.Sprintf("timeout code %d has more than 5 bits", attr.Timeout)
	case has(verbs.QPAttrRetryCount) && attr.RetryCount > 7:
		return fmt.Sprintf("%d retries, at most 7", attr.RetryCount)
	case has(verbs.QPAttrRNRRetry) && attr.RNRRetry > 7:
		return fmt.Sprintf("%d RNR retries, at most 7", attr.RNRRetry)
	}
	if has(verbs.QPAttrAV) {
		switch ah := &attr.AH; {
		case !ah.Global:
			return "the address handle is not global; on Ethernet it has to name a GID"
		case ah.Port != 1:
			return fmt.Sprintf("port %d in the address handle, there is only port 1", ah.Port)
		case int(ah.SGIDIndex) >= len(d.gids):
			return fmt.Sprintf("source GID index %d, the table has %d entries", ah.SGIDIndex, len(d.gids))
		case ah.DGID.IsZero():
			return "the address handle has no destination GID"
		}
	}
	return ""
}

// apply stores the attributes that mask names.
func (q *QP) apply(attr *verbs.QPAttr, mask verbs.QPAttrMask) {
	has := func(bit verbs.QPAttrMask) bool { return mask&bit != 0 }
	a := &q.attr
	if has(verbs.QPAttrAccess) {
		a.Access = attr.Access
	}
	if has(verbs.QPAttrPKeyIndex) {
		a.PKeyIndex = attr.PKeyIndex
	}
	if has(verbs.QPAttrPort) {
		a.Port = attr.Port
	}
	if has(verbs.QPAttrAV) {
		a.AH = attr.AH
		q.dest = q.f.byGID[attr.AH.DGID]
		q.peer = nil
	}
	if has(verbs.QPAttrPathMTU) {
		a.PathMTU = attr.PathMTU
	}
	if has(verbs.QPAttrTimeout) {
		a.Timeout = attr.Timeout
	}
	if has(verbs.QPAttrRetryCount) {
		a.RetryCount = attr.RetryCount
	}
	if has(verbs.QPAttrRNRRetry) {
		a.RNRRetry = attr.RNRRetry
	}
	if has(verbs.QPAttrRQPSN) {
		a.RQPSN = attr.RQPSN
		q.recvPSN = attr.RQPSN
	}
	if has(verbs.QPAttrMaxRDAtomic) {
		a.MaxRDAtomic = attr.MaxRDAtomic
	}
	if has(verbs.QPAttrMinRNRTimer) {
		a.MinRNRTimer = attr.MinRNRTimer
	}
	if has(verbs.QPAttrSQPSN) {
		a.SQPSN = attr.SQPSN
		q.sendPSN = attr.SQPSN
	}
	if has(verbs.QPAttrMaxDestRDAtomic) {
		a.MaxDestRDAtomic = attr.MaxDestRDAtomic
	}
	if has(verbs.QPAttrDestQPNum) {
		a.DestQPNum = attr.DestQPNum
		q.peer = nil
	}
}
