package verbs

import (
	"strconv"
	"time"
)

// QPState is a queue pair's state (enum ibv_qp_state; IBTA 10.3.1).
type QPState uint32

// The states.
const (
	StateReset QPState = 0
	StateInit  QPState = 1 // receives may be posted
	StateRTR   QPState = 2 // ready to receive
	StateRTS   QPState = 3 // ready to send
	StateSQD   QPState = 4 // send queue drained: sends are accepted and held
	StateSQE   QPState = 5 // send queue error; reliable-connected queue pairs never enter it
	StateErr   QPState = 6 // everything outstanding and everything posted is flushed
)

var stateNames = [...]string{"RESET", "INIT", "RTR", "RTS", "SQD", "SQE", "ERR"}

// String returns the state's verbs name.
func (s QPState) String() string {
	if int(s) < len(stateNames) {
		return stateNames[s]
	}
	return "state " + strconv.FormatUint(uint64(s), 10)
}

// MarshalText returns the state's verbs name.
func (s QPState) MarshalText() ([]byte, error) { return []byte(s.String()), nil }

// UnmarshalText parses the form of MarshalText.
func (s *QPState) UnmarshalText(text []byte) error {
	for i, name := range stateNames {
		if name == string(text) {
			*s = QPState(i)
			return nil
		}
	}
	return &OpError{Op: "parse queue pair state", Detail: strconv.Quote(string(text)), Err: ErrInvalid}
}

// QPAttrMask selects the fields of a [QPAttr] that a Modify sets (enum ibv_qp_attr_mask).
type QPAttrMask uint32

// Bits of the mask; the names follow the fields of QPAttr.
const (
	QPAttrState           QPAttrMask = 1 << 0
	QPAttrCurState        QPAttrMask = 1 << 1
	QPAttrAccess          QPAttrMask = 1 << 3
	QPAttrPKeyIndex       QPAttrMask = 1 << 4
	QPAttrPort            QPAttrMask = 1 << 5
	QPAttrAV              QPAttrMask = 1 << 7
	QPAttrPathMTU         QPAttrMask = 1 << 8
	QPAttrTimeout         QPAttrMask = 1 << 9
	QPAttrRetryCount      QPAttrMask = 1 << 10
	QPAttrRNRRetry        QPAttrMask = 1 << 11
	QPAttrRQPSN           QPAttrMask = 1 << 12
	QPAttrMaxRDAtomic     QPAttrMask = 1 << 13
	QPAttrMinRNRTimer     QPAttrMask = 1 << 15
	QPAttrSQPSN           QPAttrMask = 1 << 16
	QPAttrMaxDestRDAtomic QPAttrMask = 1 << 17
	QPAttrDestQPNum       QPAttrMask = 1 << 20
)

// String returns the verbs names of the attributes.
func (m QPAttrMask) String() string {
	return flagString(uint64(m), "STATE", "CUR_STATE", "EN_SQD_ASYNC_NOTIFY", "ACCESS_FLAGS", "PKEY_INDEX",
		"PORT", "QKEY",
		"AV", "PATH_MTU", "TIMEOUT", "RETRY_CNT", "RNR_RETRY", "RQ_PSN", "MAX_QP_RD_ATOMIC", "ALT_PATH",
		"MIN_RNR_TIMER",
		"SQ_PSN", "MAX_DEST_RD_ATOMIC", "PATH_MIG_STATE", "CAP", "DEST_QPN")
}

// transition holds the attributes that a change of state requires, and those that it allows
// besides.
type transition struct {
	valid              bool
	required, optional QPAttrMask
}

// transitions is the state table of a reliable-connected queue pair (IBTA 10.3.1 and 11.2.5.3; the
// kernel's ib_modify_qp_is_ok uses the same table).
var transitions = [StateErr + 1][StateErr + 1]transition{
	StateReset: {
		StateReset: {valid: true},
		StateInit:  {valid: true, required: QPAttrPKeyIndex | QPAttrPort | QPAttrAccess},
	},
	StateInit: {
		StateReset: {valid: true},
		StateErr:   {valid: true},
		StateInit:  {valid: true, optional: QPAttrPKeyIndex | QPAttrPort | QPAttrAccess},
		StateRTR: {
			valid: true,
			required: QPAttrAV | QPAttrPathMTU | QPAttrDestQPNum | QPAttrRQPSN | QPAttrMaxDestRDAtomic |
				QPAttrMinRNRTimer,
			optional: QPAttrAccess | QPAttrPKeyIndex,
		},
	},
	StateRTR: {
		StateReset: {valid: true},
		StateErr:   {valid: true},
		StateRTS: {
			valid:    true,
			required: QPAttrTimeout | QPAttrRetryCount | QPAttrRNRRetry | QPAttrSQPSN | QPAttrMaxRDAtomic,
			optional: QPAttrCurState | QPAttrAccess | QPAttrMinRNRTimer,
		},
	},
	StateRTS: {
		StateReset: {valid: true},
		StateErr:   {valid: true},
		StateRTS:   {valid: true, optional: QPAttrCurState | QPAttrAccess | QPAttrMinRNRTimer},
		StateSQD:   {valid: true},
	},
	StateSQD: {
		StateReset: {valid: true},
		StateErr:   {valid: true},
		StateRTS:   {valid: true, optional: QPAttrCurState | QPAttrAccess | QPAttrMinRNRTimer},
		StateSQD: {
			valid: true,
			optional: QPAttrPort | QPAttrAV | QPAttrTimeout | QPAttrRetryCount | QPAttrRNRRetry |
				QPAttrMaxRDAtomic |
				QPAttrMaxDestRDAtomic | QPAttrAccess | QPAttrPKeyIndex | QPAttrMinRNRTimer,
		},
	},
	StateSQE: {
		StateReset: {valid: true},
		StateErr:   {valid: true},
	},
	StateErr: {
		StateReset: {valid: true},
		StateErr:   {valid: true},
	},
}

// CheckModify checks whether a reliable-connected queue pair in state cur may be modified as attr
// and mask ask. It returns a [*ModifyError] that names what is missing or not allowed. Providers
// call it first.
func CheckModify(cur QPState, attr *QPAttr, mask QPAttrMask) error {
	next := cur
	if mask&QPAttrState != 0 {
		next = attr.State
	}
	if mask&QPAttrCurState != 0 && attr.CurState != cur {
		return &ModifyError{From: cur, To: next}
	}
	if cur > StateErr || next > StateErr || !transitions[cur][next].valid {
		return &ModifyError{From: cur, To: next}
	}
	t := &transitions[cur][next]
	missing := t.required &^ mask
	notAllowed := mask &^ (t.required | t.optional | QPAttrState)
	if missing != 0 || notAllowed != 0 {
		return &ModifyError{From: cur, To: next, Missing: missing, NotAllowed: notAllowed}
	}
	return nil
}

// QPAttr holds the attributes of a reliable-connected queue pair; a [QPAttrMask] selects some.
type QPAttr struct {
	State    QPState
	CurState QPState // the state that the caller expects now
	// PathMTU is the largest payload of one packet.
	PathMTU   MTU
	DestQPNum uint32 // the peer's queue pair number
	RQPSN     uint32 // first packet sequence number expected; 24 bits, the peer's SQPSN
	// SQPSN is the first packet sequence number sent; 24 bits. If the queue pairs were connected
	// before, packets of that connection may still be in flight: begin far from their numbers.
	SQPSN uint32
	// Access holds the peer's rights through this queue pair; a memory region must grant them too.
	Access      AccessFlags
	MaxRDAtomic uint8 // reads and atomics outstanding as the requester
	// MaxDestRDAtomic is the most reads and atomics of the peer that the queue pair serves at a
	// time; the peer's MaxRDAtomic must not exceed it.
	MaxDestRDAtomic uint8
	MinRNRTimer     uint8 // 5-bit code of [RNRTimer]: how long the peer waits when no receive is posted
	PKeyIndex       uint16
	Port            uint8 // the local port; ports count from 1
	Timeout         uint8 // 5-bit code of [AckTimeout]; 0 waits forever
	RetryCount      uint8 // 0 to 7 retries of the transport
	RNRRetry        uint8 // 0 to 6 retries when the receiver is not ready; 7 retries forever
	AH              AH
}

// RNRRetryForever is the RNRRetry that never gives up.
const RNRRetryForever = 7

// AH is an address handle: the path to the peer's port.
type AH struct {
	DGID         GID   // the peer's GID
	SGIDIndex    uint8 // which entry of the local port's GID table is the source
	HopLimit     uint8
	TrafficClass uint8 // on RoCE v2 the IP header's DSCP and ECN; verbs/roce sets ECN itself
	FlowLabel    uint32
	SL           uint8  // service level
	DLID         uint16 // InfiniBand only
	Port         uint8  // the local port
	Global       bool   // use the GIDs; must be set on RoCE
}

// AckTimeout decodes the 5-bit timeout of a queue pair: 4.096 µs times 2 to the code (IBTA
// 9.7.6.1.3). Code 0 means no timeout and returns 0.
func AckTimeout(code uint8) time.Duration {
	if code == 0 {
		return 0
	}
	return 4096 * time.Nanosecond << (code & 31)
}

// rnrTimers lists the RNR NAK timer codes in units of 10 µs (IBTA table 45).
var rnrTimers = [32]uint32{
	65536, 1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64, 96, 128, 192,
	256, 384, 512, 768, 1024, 1536, 2048, 3072, 4096, 6144, 8192, 12288, 16384, 24576, 32768, 49152,
}

// RNRTimer decodes the 5-bit RNR timer of a queue pair: from 10 µs (code 1) to 655.36 ms (code 0).
func RNRTimer(code uint8) time.Duration {
	return time.Duration(rnrTimers[code&31]) * 10 * time.Microsecond
}
