package verbs

import "time"

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
