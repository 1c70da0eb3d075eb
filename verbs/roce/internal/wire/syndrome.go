package wire

import (
	"math/bits"
	"strconv"
)

// Syndrome is the verdict of an acknowledgement (IBTA volume 1, table 43): the high three bits are
// the kind, the low five its value.
type Syndrome uint8

// These syndromes do not carry a value of the connection.
const (
	Ack                Syndrome = 0x1f // acknowledged; the credits are not limited
	NakSequence        Syndrome = 0x60 // a packet is missing; the PSN is the expected one
	NakInvalidRequest  Syndrome = 0x61
	NakRemoteAccess    Syndrome = 0x62
	NakRemoteOperation Syndrome = 0x63
)

const (
	kindMask Syndrome = 0xe0
	kindAck  Syndrome = 0x00
	kindRNR  Syndrome = 0x20
	kindNak  Syndrome = 0x60
)

// MostCredits is the code of the largest number of credits, 32,768.
const MostCredits = 30

// Credits returns the number of credits that a code from 0 to MostCredits stands for: a power of
// two, or half-way between two (end-to-end flow control, IBTA volume 1, 9.7.7.2).
func Credits(code uint8) int {
	if code < 2 {
		return int(code)
	}
	return (2 + int(code&1)) << (code / 2) / 2
}

// AckCredits returns an acknowledgement with at most n credits: the most that have a code.
func AckCredits(n int) Syndrome {
	if n < 2 {
		return kindAck | Syndrome(max(n, 0))
	}
	code := 2 * (bits.Len(uint(n)) - 1)
	if Credits(uint8(code+1)) <= n {
		code++
	}
	return kindAck | Syndrome(min(code, MostCredits))
}

// RNRNak returns the syndrome for a missing receive. timer, a 5-bit code of
// [ibverbx/verbs.RNRTimer], is how long the requester waits.
func RNRNak(timer uint8) Syndrome { return kindRNR | Syndrome(timer)&^kindMask }

// IsAck reports whether s acknowledges.
func (s Syndrome) IsAck() bool { return s&kindMask == kindAck }

// IsRNR reports whether s means that the receiver is not ready.
func (s Syndrome) IsRNR() bool { return s&kindMask == kindRNR }

// IsNak reports whether s refuses: one of the Nak constants, or a code that they do not name. An
// RNR NAK is not one.
func (s Syndrome) IsNak() bool { return s&kindMask == kindNak }

// Value is the low five bits: the timer code of an RNR NAK, the code of a NAK,
// the credits of an ACK.
func (s Syndrome) Value() uint8 { return uint8(s &^ kindMask) }

// String describes the syndrome in words.
func (s Syndrome) String() string {
	switch {
	case s.IsAck():
		return "ACK"
	case s.IsRNR():
		return "RNR NAK, timer " + strconv.Itoa(int(s.Value()))
	case s == NakSequence:
		return "NAK: PSN sequence error"
	case s == NakInvalidRequest:
		return "NAK: invalid request"
	case s == NakRemoteAccess:
		return "NAK: remote access error"
	case s == NakRemoteOperation:
		return "NAK: remote operational error"
	default:
		return "syndrome 0x" + strconv.FormatUint(uint64(s), 16)
	}
}
