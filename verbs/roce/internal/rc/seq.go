package rc

import "ibverbx/verbs/roce/internal/wire"

// seq is a packet sequence number that does not wrap. Its low 24 bits are the PSN.
type seq uint64

// firstSeq is the sequence number of the first packet of a direction. It leaves room below, so that
// what lies before the first packet is no underflow.
func firstSeq(psn uint32) seq { return 1<<32 | seq(psn&psnMask) }

const psnMask = 1<<24 - 1

// psn is the number in a packet.
func (s seq) psn() uint32 { return uint32(s) & psnMask }

// near is the sequence number with a PSN that is nearest to s: half of the PSNs lie ahead, half
// behind (IBTA 9.7.2).
func (s seq) near(psn uint32) seq { return s + seq(int64(wire.PSNDiff(psn, s.psn()))) }
