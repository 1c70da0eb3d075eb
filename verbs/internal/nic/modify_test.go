package nic

import (
	"testing"

	"ibverbx/verbs"
)

// A Modify stores the attributes that its mask names, each by itself, and no others.
func TestAttributesAreStored(t *testing.T) {
	r := newRig(t)
	all := verbs.QPAttr{Access: verbs.AccessRemoteRead, PKeyIndex: 3, Port: 1, PathMTU: verbs.MTU2048,
		AH: verbs.AH{DGID: verbs.GID{7}, Port: 1, Global: true, SL: 2}, Timeout: 11, RetryCount: 5,
		RNRRetry: 6, RQPSN: 77, MaxRDAtomic: 2, MinRNRTimer: 9, SQPSN: 88, MaxDestRDAtomic: 3,
		DestQPNum: 99}
	whole := verbs.QPAttr{}
	for _, c := range []struct {
		mask verbs.QPAttrMask
		want verbs.QPAttr
	}{
		{0, verbs.QPAttr{}},
		{verbs.QPAttrState, verbs.QPAttr{}},
		{verbs.QPAttrAccess, verbs.QPAttr{Access: all.Access}},
		{verbs.QPAttrPKeyIndex, verbs.QPAttr{PKeyIndex: all.PKeyIndex}},
		{verbs.QPAttrPort, verbs.QPAttr{Port: all.Port}},
		{verbs.QPAttrAV, verbs.QPAttr{AH: all.AH}},
		{verbs.QPAttrPathMTU, verbs.QPAttr{PathMTU: all.PathMTU}},
		{verbs.QPAttrTimeout, verbs.QPAttr{Timeout: all.Timeout}},
		{verbs.QPAttrRetryCount, verbs.QPAttr{RetryCount: all.RetryCount}},
		{verbs.QPAttrRNRRetry, verbs.QPAttr{RNRRetry: all.RNRRetry}},
		{verbs.QPAttrRQPSN, verbs.QPAttr{RQPSN: all.RQPSN}},
		{verbs.QPAttrMaxRDAtomic, verbs.QPAttr{MaxRDAtomic: all.MaxRDAtomic}},
		{verbs.QPAttrMinRNRTimer, verbs.QPAttr{MinRNRTimer: all.MinRNRTimer}},
		{verbs.QPAttrSQPSN, verbs.QPAttr{SQPSN: all.SQPSN}},
		{verbs.QPAttrMaxDestRDAtomic, verbs.QPAttr{MaxDestRDAtomic: all.MaxDestRDAtomic}},
		{verbs.QPAttrDestQPNum, verbs.QPAttr{DestQPNum: all.DestQPNum}},
	} {
		r.qp.Attr = verbs.QPAttr{}
		if Apply(&r.qp.Attr, &all, c.mask); r.qp.Attr != c.want {
			t.Errorf("%v: stored\n%+v, want\n%+v", c.mask, r.qp.Attr, c.want)
		}
		r.qp.Attr = whole
		Apply(&r.qp.Attr, &all, c.mask)
		whole = r.qp.Attr
	}
	if whole != all {
		t.Errorf("one after the other:\n%+v, want\n%+v", whole, all)
	}
}

// Every value is accepted up to its limit, and refused beyond in words that name it.
func TestAttributesAtTheirLimits(t *testing.T) {
	r := newRig(t)
	r.dev.GIDs = 2
	ah := verbs.AH{DGID: verbs.GID{1}, Port: 1, Global: true}
	with := func(change func(ah *verbs.AH)) verbs.QPAttr {
		changed := ah
		change(&changed)
		return verbs.QPAttr{AH: changed}
	}
	for _, c := range []struct {
		mask verbs.QPAttrMask
		attr verbs.QPAttr
		says string // "" where it is accepted
	}{
		{verbs.QPAttrPort, verbs.QPAttr{Port: 1}, ""},
		{verbs.QPAttrPort, verbs.QPAttr{Port: 0}, "port 0, there is only port 1"},
		{verbs.QPAttrPort, verbs.QPAttr{Port: 2}, "port 2, there is only port 1"},
		{verbs.QPAttrPKeyIndex, verbs.QPAttr{}, ""},
		{verbs.QPAttrPKeyIndex, verbs.QPAttr{PKeyIndex: 1}, "partition key index 1"},
		{verbs.QPAttrAccess, verbs.QPAttr{Access: verbs.AccessAll}, ""},
		{verbs.QPAttrAccess, verbs.QPAttr{Access: verbs.AccessAll << 8}, "access"},
		{verbs.QPAttrPathMTU, verbs.QPAttr{PathMTU: verbs.MTU256}, ""},
		{verbs.QPAttrPathMTU, verbs.QPAttr{PathMTU: verbs.MTU4096}, ""},
		{verbs.QPAttrPathMTU, verbs.QPAttr{PathMTU: 0}, "path MTU code 0"},
		{verbs.QPAttrPathMTU, verbs.QPAttr{PathMTU: verbs.MTU4096 + 1}, "path MTU code 6"},
		{verbs.QPAttrDestQPNum, verbs.QPAttr{DestQPNum: 1<<24 - 1}, ""},
		{verbs.QPAttrDestQPNum, verbs.QPAttr{DestQPNum: 1 << 24},
			"queue pair 0x1000000 has more than 24 bits"},
		{verbs.QPAttrRQPSN, verbs.QPAttr{RQPSN: 1<<24 - 1}, ""},
		{verbs.QPAttrRQPSN, verbs.QPAttr{RQPSN: 1 << 24}, "receive PSN 0x1000000"},
		{verbs.QPAttrSQPSN, verbs.QPAttr{SQPSN: 1<<24 - 1}, ""},
		{verbs.QPAttrSQPSN, verbs.QPAttr{SQPSN: 1 << 24}, "send PSN 0x1000000"},
		{verbs.QPAttrMaxRDAtomic, verbs.QPAttr{MaxRDAtomic: 4}, ""},
		{verbs.QPAttrMaxRDAtomic, verbs.QPAttr{MaxRDAtomic: 5}, "5 reads outstanding, the NIC allows 4"},
		{verbs.QPAttrMaxDestRDAtomic, verbs.QPAttr{MaxDestRDAtomic: 4}, ""},
		{verbs.QPAttrMaxDestRDAtomic, verbs.QPAttr{MaxDestRDAtomic: 5}, "5 reads of the peer outstanding"},
		{verbs.QPAttrMinRNRTimer, verbs.QPAttr{MinRNRTimer: 31}, ""},
		{verbs.QPAttrMinRNRTimer, verbs.QPAttr{MinRNRTimer: 32}, "RNR timer code 32"},
		{verbs.QPAttrTimeout, verbs.QPAttr{Timeout: 31}, ""},
		{verbs.QPAttrTimeout, verbs.QPAttr{Timeout: 32}, "timeout code 32"},
		{verbs.QPAttrRetryCount, verbs.QPAttr{RetryCount: 7}, ""},
		{verbs.QPAttrRetryCount, verbs.QPAttr{RetryCount: 8}, "8 retries, at most 7"},
		{verbs.QPAttrRNRRetry, verbs.QPAttr{RNRRetry: 7}, ""},
		{verbs.QPAttrRNRRetry, verbs.QPAttr{RNRRetry: 8}, "8 RNR retries, at most 7"},
		{verbs.QPAttrAV, verbs.QPAttr{AH: ah}, ""},
		{verbs.QPAttrAV, with(func(ah *verbs.AH) { ah.SGIDIndex = 1 }), ""},
		{verbs.QPAttrAV, with(func(ah *verbs.AH) { ah.SGIDIndex = 2 }),
			"source GID index 2, the table has 2"},
		{verbs.QPAttrAV, with(func(ah *verbs.AH) { ah.Global = false }), "not global"},
		{verbs.QPAttrAV, with(func(ah *verbs.AH) { ah.Port = 2 }), "port 2 in the address handle"},
		{verbs.QPAttrAV, with(func(ah *verbs.AH) { ah.DGID = verbs.GID{} }), "no destination GID"},
	} {
		got := r.dev.checkAttr(&c.attr, c.mask)
		if (got == "") != (c.says == "") {
			t.Errorf("%v of %+v: %q, want %q", c.mask, c.attr, got, c.says)
		}
		if c.says != "" {
			refused(t, c.mask.String(), r.qp.Err("modify qp", verbs.ErrInvalid, got), verbs.ErrInvalid,
				c.says)
		}
		// What the mask does not name is not looked at.
		if got := r.dev.checkAttr(&c.attr, verbs.QPAttrState); got != "" {
			t.Errorf("%+v, not named: %q", c.attr, got)
		}
	}
}

// A Modify is refused of a queue pair that is closed or whose NIC is gone, of a step that there is
// none, and of wrong values. One that names no state leaves the queue pair in its own.
func TestModify(t *testing.T) {
	r := newRig(t)
	toInit := verbs.QPAttr{State: verbs.StateInit, Port: 1}
	const initMask = verbs.QPAttrState | verbs.QPAttrPKeyIndex | verbs.QPAttrPort | verbs.QPAttrAccess
	refuse := func(what string, attr verbs.QPAttr, mask verbs.QPAttrMask, want error, says string) {
		t.Helper()
		next, err := r.qp.CheckModify(&attr, mask)
		refused(t, what, err, want, says)
		if next != 0 {
			t.Errorf("%s: refused, and yet to %v", what, next)
		}
	}
	refuse("from RESET to RTS", verbs.QPAttr{State: verbs.StateRTS}, verbs.QPAttrState, verbs.ErrState, "")
	refuse("port 2", verbs.QPAttr{State: verbs.StateInit, Port: 2}, initMask, verbs.ErrInvalid, "port 2")
	r.qp.Closed = true
	refuse("closed", toInit, initMask, verbs.ErrClosed, "")
	r.qp.Closed, r.dev.Gone = false, true
	refuse("gone", toInit, initMask, verbs.ErrDeviceGone, "")
	r.dev.Gone = false
	if next, err := r.qp.CheckModify(&toInit, initMask); next != verbs.StateInit || err != nil {
		t.Errorf("to INIT: %v, %v", next, err)
	}
	r.ready()
	attr := verbs.QPAttr{State: verbs.StateErr, MinRNRTimer: 3}
	if next, err := r.qp.CheckModify(&attr, verbs.QPAttrMinRNRTimer); next != verbs.StateRTS || err != nil {
		t.Errorf("a new timer in RTS: %v, %v", next, err)
	}
}
