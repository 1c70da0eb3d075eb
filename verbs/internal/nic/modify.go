package nic

import (
	"fmt"

	"ibverbx/verbs"
)

// PSNMask masks the 24 bits of a packet sequence number.
const PSNMask = 1<<24 - 1

// CheckModify returns the state that a Modify asks for, or why it is refused. Call it locked.
func (q *QP) CheckModify(attr *verbs.QPAttr, mask verbs.QPAttrMask) (verbs.QPState, error) {
	const op = "modify qp"
	if err := q.Usable(op); err != nil {
		return 0, err
	}
	if err := verbs.CheckModify(q.State, attr, mask); err != nil {
		return 0, q.Err(op, err, "")
	}
	if wrong := q.dev.checkAttr(attr, mask); wrong != "" {
		return 0, q.Err(op, verbs.ErrInvalid, wrong)
	}
	if mask&verbs.QPAttrState != 0 {
		return attr.State, nil
	}
	return q.State, nil
}

// checkAttr returns which value in attr is wrong; "" if none is.
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
	case has(verbs.QPAttrDestQPNum) && attr.DestQPNum > MaxQPNum:
		return fmt.Sprintf("destination queue pair %#x has more than 24 bits", attr.DestQPNum)
	case has(verbs.QPAttrRQPSN) && attr.RQPSN > PSNMask:
		return fmt.Sprintf("receive PSN %#x has more than 24 bits", attr.RQPSN)
	case has(verbs.QPAttrSQPSN) && attr.SQPSN > PSNMask:
		return fmt.Sprintf("send PSN %#x has more than 24 bits", attr.SQPSN)
	case has(verbs.QPAttrMaxRDAtomic) && int(attr.MaxRDAtomic) > d.Limits.MaxRDAtomic:
		return fmt.Sprintf("%d reads outstanding, the NIC allows %d", attr.MaxRDAtomic, d.Limits.MaxRDAtomic)
	case has(verbs.QPAttrMaxDestRDAtomic) && int(attr.MaxDestRDAtomic) > d.Limits.MaxRDAtomic:
		return fmt.Sprintf("%d reads of the peer outstanding, the NIC allows %d", attr.MaxDestRDAtomic,
			d.Limits.MaxRDAtomic)
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
		case int(ah.SGIDIndex) >= d.GIDs:
			return fmt.Sprintf("source GID index %d, the table has %d entries", ah.SGIDIndex, d.GIDs)
		case ah.DGID.IsZero():
			return "the address handle has no destination GID"
		}
	}
	return ""
}

// Apply stores in a the attributes that mask names. The caller does the rest, such as finding the
// path to the peer for QPAttrAV.
func Apply(a, attr *verbs.QPAttr, mask verbs.QPAttrMask) {
	has := func(bit verbs.QPAttrMask) bool { return mask&bit != 0 }
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
	}
	if has(verbs.QPAttrMaxRDAtomic) {
		a.MaxRDAtomic = attr.MaxRDAtomic
	}
	if has(verbs.QPAttrMinRNRTimer) {
		a.MinRNRTimer = attr.MinRNRTimer
	}
	if has(verbs.QPAttrSQPSN) {
		a.SQPSN = attr.SQPSN
	}
	if has(verbs.QPAttrMaxDestRDAtomic) {
		a.MaxDestRDAtomic = attr.MaxDestRDAtomic
	}
	if has(verbs.QPAttrDestQPNum) {
		a.DestQPNum = attr.DestQPNum
	}
}
