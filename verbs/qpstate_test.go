package verbs

import (
	"errors"
	"testing"
	"time"
)

// demands lists, for each legal change of state of a reliable connection, what it demands and what
// it allows besides: the rows for RC of the kernel's qp_state_table, alternate paths and the
// notification of SQD left out.
var demands = map[[2]QPState][2]QPAttrMask{
	{StateReset, StateReset}: {},
	{StateReset, StateInit}:  {QPAttrPKeyIndex | QPAttrPort | QPAttrAccess},
	{StateInit, StateReset}:  {},
	{StateInit, StateErr}:    {},
	{StateInit, StateInit}:   {0, QPAttrPKeyIndex | QPAttrPort | QPAttrAccess},
	{StateInit, StateRTR}: {
		QPAttrAV | QPAttrPathMTU | QPAttrDestQPNum | QPAttrRQPSN | QPAttrMaxDestRDAtomic | QPAttrMinRNRTimer,
		QPAttrAccess | QPAttrPKeyIndex,
	},
	{StateRTR, StateReset}: {},
	{StateRTR, StateErr}:   {},
	{StateRTR, StateRTS}: {
		QPAttrTimeout | QPAttrRetryCount | QPAttrRNRRetry | QPAttrSQPSN | QPAttrMaxRDAtomic,
		QPAttrCurState | QPAttrAccess | QPAttrMinRNRTimer,
	},
	{StateRTS, StateReset}: {},
	{StateRTS, StateErr}:   {},
	{StateRTS, StateRTS}:   {0, QPAttrCurState | QPAttrAccess | QPAttrMinRNRTimer},
	{StateRTS, StateSQD}:   {},
	{StateSQD, StateReset}: {},
	{StateSQD, StateErr}:   {},
	{StateSQD, StateRTS}:   {0, QPAttrCurState | QPAttrAccess | QPAttrMinRNRTimer},
	{StateSQD, StateSQD}: {0, QPAttrPort | QPAttrAV | QPAttrTimeout | QPAttrRetryCount | QPAttrRNRRetry |
		QPAttrMaxRDAtomic |
		QPAttrMaxDestRDAtomic | QPAttrAccess | QPAttrPKeyIndex | QPAttrMinRNRTimer},
	{StateSQE, StateReset}: {},
	{StateSQE, StateErr}:   {},
	{StateErr, StateReset}: {},
	{StateErr, StateErr}:   {},
}

// TestCheckModify tries every pair of states with every single attribute too few and too many.
func TestCheckModify(t *testing.T) {
	for from := StateReset; from <= StateErr+1; from++ {
		for to := StateReset; to <= StateErr+1; to++ {
			attr := QPAttr{State: to, CurState: from}
			want, legal := demands[[2]QPState{from, to}]
			required, optional := want[0], want[1]
			if !legal {
				for _, mask := range []QPAttrMask{QPAttrState, 1<<21 - 1} {
					wantModifyError(t, CheckModify(from, &attr, mask), ErrState,
						ModifyError{From: from, To: to})
				}
				continue
			}
			for _, mask := range []QPAttrMask{required, required | optional} {
				if err := CheckModify(from, &attr, mask|QPAttrState); err != nil {
					t.Errorf("%v to %v with %v: %v", from, to, mask, err)
				}
			}
			for bit := QPAttrState << 1; bit <= QPAttrDestQPNum<<1; bit <<= 1 {
				switch {
				case required&bit != 0:
					wantModifyError(t, CheckModify(from, &attr, QPAttrState|required&^bit), ErrInvalid,
						ModifyError{From: from, To: to, Missing: bit})
				case optional&bit == 0:
					wantModifyError(t, CheckModify(from, &attr, QPAttrState|required|bit), ErrInvalid,
						ModifyError{From: from, To: to, NotAllowed: bit})
				}
			}
		}
	}
}

func wantModifyError(t *testing.T, err, sentinel error, want ModifyError) {
	t.Helper()
	var got *ModifyError
	if !errors.As(err, &got) || *got != want || !errors.Is(err, sentinel) {
		t.Errorf("%v (%+v), want %+v which is %v", err, got, want, sentinel)
	}
}

func TestCheckModifyWithoutState(t *testing.T) {
	attr := QPAttr{Access: AccessAll, CurState: StateRTS}
	if err := CheckModify(StateRTS, &attr, QPAttrAccess); err != nil { // stays in RTS
		t.Error(err)
	}
	if err := CheckModify(StateRTS, &attr, QPAttrAccess|QPAttrCurState); err != nil {
		t.Error(err)
	}
	wantModifyError(t, CheckModify(StateSQD, &attr, QPAttrAccess|QPAttrCurState), ErrState,
		ModifyError{From: StateSQD, To: StateSQD})
	wantModifyError(t, CheckModify(StateRTR, &attr, QPAttrAccess), ErrState,
		ModifyError{From: StateRTR, To: StateRTR})
}

func TestModifyErrorText(t *testing.T) {
	for _, c := range []struct {
		err  ModifyError
		want string
	}{
		{ModifyError{From: StateReset, To: StateRTS}, "queue pair from RESET to RTS: no such transition"},
		{ModifyError{From: StateReset, To: StateInit, Missing: QPAttrPort | QPAttrAccess},
			"queue pair from RESET to INIT: attributes missing: ACCESS_FLAGS|PORT"},
		{ModifyError{From: StateRTS, To: StateErr, NotAllowed: QPAttrAV},
			"queue pair from RTS to ERR: attributes not allowed: AV"},
		{ModifyError{From: StateRTR, To: StateRTS, Missing: QPAttrSQPSN, NotAllowed: QPAttrAV},
			"queue pair from RTR to RTS: attributes missing: SQ_PSN; not allowed: AV"},
	} {
		if got := c.err.Error(); got != c.want {
			t.Errorf("%q, want %q", got, c.want)
		}
	}
}

// TestTimers checks against IBTA 9.7.6.1.3 and table 45.
func TestTimers(t *testing.T) {
	for code, want := range map[uint8]time.Duration{
		0: 0, 1: 8192 * time.Nanosecond, 10: 4194304 * time.Nanosecond, 14: 67108864 * time.Nanosecond,
		31: 8796093022208 * time.Nanosecond,
	} {
		if got := AckTimeout(code); got != want {
			t.Errorf("timeout code %d: %v, want %v", code, got, want)
		}
	}
	for code, want := range map[uint8]time.Duration{
		0: 655360 * time.Microsecond, 1: 10 * time.Microsecond, 2: 20 * time.Microsecond,
		5:  60 * time.Microsecond,
		12: 640 * time.Microsecond, 14: 1280 * time.Microsecond, 16: 2560 * time.Microsecond,
		31: 491520 * time.Microsecond,
	} {
		if got := RNRTimer(code); got != want {
			t.Errorf("RNR timer code %d: %v, want %v", code, got, want)
		}
	}
	for code := uint8(2); code < 32; code++ {
		if RNRTimer(code) <= RNRTimer(code-1) || AckTimeout(code) != 2*AckTimeout(code-1) {
			t.Errorf("code %d: RNR timer %v, timeout %v", code, RNRTimer(code), AckTimeout(code))
		}
	}
}
