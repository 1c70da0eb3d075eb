package soft

import (
	"encoding/binary"
	"fmt"
	"math/rand/v2"
	"sync/atomic"

	"ibverbx/verbs"
)

// The identities of a process's fabrics count up from a number drawn at its start. NICs of two
// processes have the same names and numbers, and this keeps a fabric from taking the other's GIDs
// for its own.
//
//nolint:gochecknoglobals // what they identify is the process's
var (
	firstIdentity = rand.Uint32()
	fabrics       atomic.Uint32 // fabrics ever made
)

// newIdentity returns the part that the GIDs and GUIDs of a fabric's NICs share. Nothing in a
// fabric depends on it, so a stepped fabric runs the same under any identity.
func newIdentity() uint32 { return firstIdentity + fabrics.Add(1) }

// guid returns the node GUID of the i-th NIC of a fabric: an EUI-64 whose bytes 1, 2, 5 and 6 are
// the fabric's identity.
func guid(identity uint32, i int) uint64 {
	high, low := uint64(identity>>16), uint64(identity&0xffff)
	return 0x02<<56 | high<<40 | 0xfffe<<24 | low<<8 | uint64(i+1)
}

// gids returns the GIDs of the i-th NIC: over IPv4, in 10.0.0.0/8 with 17 bits of the fabric's
// identity, and the link-local one, which ends in the GUID.
func gids(identity uint32, i int) [2]verbs.GID {
	v4, local := verbs.GID{10: 0xff, 11: 0xff}, verbs.GID{0: 0xfe, 1: 0x80}
	binary.BigEndian.PutUint32(v4[12:], 10<<24|identity&(1<<17-1)<<7|uint32(i+1))
	binary.BigEndian.PutUint64(local[8:], guid(identity, i))
	return [2]verbs.GID{v4, local}
}

// CheckPath implements verbs.PathChecker: a software NIC reaches only the NICs of its own fabric.
func (d *Device) CheckPath(_ int, to verbs.GID) error {
	if d.f.byGID[to] != nil {
		return nil
	}
	return d.core.Err("check path", verbs.ErrUnreachable, fmt.Sprintf("no NIC of this fabric has the "+
		"GID %v: software NICs reach those of their own fabric, in one process, only", to))
}
