package ibverbx

import (
	"encoding/binary"
	"fmt"
	"math/bits"

	"ibverbx/verbs"
)

// The binary form of a RemoteSegment is for messages that have no room or no time for JSON. All
// numbers are little-endian:
//
//	byte 0 to 7    address
//	byte 8 to 15   length
//	byte 16        how many keys
//	5 bytes a key  device, and then the key; devices ascend
const (
	segmentFixed = 17
	segmentKey   = 5
)

// BinarySize is how many bytes AppendBinary appends: 17, and 5 for each NIC.
func (s RemoteSegment) BinarySize() int {
	n := segmentFixed
	if s.Keys != nil {
		n += segmentKey * bits.OnesCount64(s.Keys.have)
	}
	return n
}

// AppendBinary appends a compact description of the memory, which [Keys.DecodeSegment] reads.
func (s RemoteSegment) AppendBinary(b []byte) []byte {
	b = binary.LittleEndian.AppendUint64(b, s.Addr)
	b = binary.LittleEndian.AppendUint64(b, s.Length)
	if s.Keys == nil {
		return append(b, 0)
	}
	b = append(b, byte(bits.OnesCount64(s.Keys.have)))
	for left := s.Keys.have; left != 0; left &= left - 1 {
		dev := bits.TrailingZeros64(left)
		b = binary.LittleEndian.AppendUint32(append(b, byte(dev)), s.Keys.at(uint8(dev)))
	}
	return b
}

// DecodeSegment reads what [RemoteSegment.AppendBinary] wrote, and returns the segment and the
// bytes behind it. The keys are stored in k, which the segment refers to: it must not change while
// requests name it. Nothing is allocated. A description that no segment has is refused with
// [verbs.ErrInvalid], and k is as before.
func (k *Keys) DecodeSegment(b []byte) (s RemoteSegment, rest []byte, err error) {
	if len(b) < segmentFixed {
		return s, b, fmt.Errorf("ibverbx: remote segment: %w: %d bytes: must be %d at least",
			verbs.ErrInvalid, len(b), segmentFixed)
	}
	addr, length, count := binary.LittleEndian.Uint64(b), binary.LittleEndian.Uint64(b[8:]), int(b[16])
	if addr+length < addr {
		return s, b, fmt.Errorf("ibverbx: remote segment: %w: %s goes beyond the address space",
			verbs.ErrInvalid, addrRange(addr, length))
	}
	keys := b[segmentFixed:]
	if count > verbs.MaxDevices || len(keys) < count*segmentKey {
		return s, b, fmt.Errorf("ibverbx: remote segment: %w: %d keys in %d bytes", verbs.ErrInvalid, count,
			len(keys))
	}
	for i := range count {
		dev := keys[i*segmentKey]
		if dev >= verbs.MaxDevices || i > 0 && dev <= keys[(i-1)*segmentKey] {
			return s, b, fmt.Errorf("ibverbx: remote segment: %w: key %d is for device %d: devices ascend, "+
				"up to %d", verbs.ErrInvalid, i, dev, verbs.MaxDevices-1)
		}
	}
	k.have, k.mr, k.base, k.length = 0, nil, addr, length
	for ; count > 0; count-- {
		k.set(verbs.DeviceID(keys[0]), binary.LittleEndian.Uint32(keys[1:]))
		keys = keys[segmentKey:]
	}
	return RemoteSegment{Addr: addr, Length: length, Keys: k}, keys, nil
}
