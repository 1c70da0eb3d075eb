package ibverbx

import (
	"encoding/binary"
	"fmt"
	"math/bits"

	"ibverbx/verbs"
)

// The entry points in this file are those of the C++ original for programs that own their physical
// queue pairs and CQs, or their messages. The package comment has a section on them. Other programs
// use Open or Domain.NewQP, VirtualCQ.Poll, and cards and memory as JSON.

// NewVirtualQP makes a virtual queue pair of physical ones. qps are the data queue pairs, one or
// more, on any of the CQ's devices; notify may be nil if the configuration does not need it. All
// must be in RESET and complete on the physical CQs of cq, which must have room for them. The
// virtual queue pair owns the physical ones from then on.
//
// With one data queue pair and no notify QP, requests pass straight through: the physical work
// request has the user's own ID, nothing is tracked or queued, and limits and refusals are the
// NIC's own.
//
// [Domain.NewQP] creates the physical queue pairs too.
func NewVirtualQP(cq *VirtualCQ, qps []verbs.QP, notify verbs.QP, cfg Config) (*VirtualQP, error) {
	return newVirtualQP(cq, qps, notify, nil, cfg)
}

// PollDevice is Poll for the physical CQ of one device, for programs that serve one NIC before
// another. It also returns completions of other devices that were collected earlier. If the virtual
// CQ has no CQ on the device, the error is [verbs.ErrInvalid].
func (c *VirtualCQ) PollDevice(dev verbs.DeviceID, dst []WC) (n int, err error) {
	c.enter()
	if dev < verbs.MaxDevices && c.routes[dev] != nil {
		n, err = c.poll(dst, int(dev))
	} else {
		err = c.error("poll", fmt.Errorf("%w: no CQ of device %d: there are those of %s", verbs.ErrInvalid,
			dev, c.deviceList()))
	}
	c.exit()
	return n, err
}

// ProcessCompletions is for programs that poll the physical CQs themselves, and do not call Poll:
// it handles completions of one device's CQ, in the order in which that CQ returned them, and
// appends the virtual completions to dst. With failover, also call it now and then without
// completions, because timeouts expire and ports go down.
func (c *VirtualCQ) ProcessCompletions(dst []WC, dev verbs.DeviceID, wcs ...verbs.WC) []WC {
	c.enter()
	out := c.sink(nil)
	if dev < verbs.MaxDevices && c.routes[dev] != nil {
		c.route(c.routes[dev], nil, wcs, &out)
	}
	if len(c.ports.events) != 0 {
		c.takeEvents()
	}
	c.progress(&out)
	out.settle()
	for c.ready.Len() != 0 {
		dst = append(dst, c.ready.Pop())
	}
	c.exit()
	return dst
}

// FailDevice is for programs that poll the physical CQs themselves: call it when a device's CQ has
// died with err. The virtual queue pairs on it fail, and [VirtualCQ.ProcessCompletions] reports
// their outstanding requests. A nil err means [verbs.ErrDeviceGone].
func (c *VirtualCQ) FailDevice(dev verbs.DeviceID, err error) {
	c.enter()
	if err == nil {
		err = verbs.ErrDeviceGone
	}
	c.loseDevice(dev, err)
	c.exit()
}

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

// BinarySize returns how many bytes AppendBinary appends: 17, and 5 for each NIC.
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

// DecodeSegment parses the form of [RemoteSegment.AppendBinary], and returns the segment and the
// remaining bytes. It stores the keys in k, to which the segment refers: do not change k while
// requests use the segment. It allocates nothing. For an invalid description it returns
// [verbs.ErrInvalid] and leaves k unchanged.
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
