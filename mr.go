package ibverbx

import (
	"encoding/json"
	"errors"
	"fmt"
	"math"
	"strings"
	"sync/atomic"

	"ibverbx/verbs"
)

// MR is memory registered on every NIC of a [Domain]. It is safe for concurrent use.
//
// A work request names a piece of it with [MR.Slice]. While a request of a virtual queue pair over
// several queue pairs uses the region, you cannot close it. A single queue pair tracks nothing:
// closing a region that its requests still use makes them fail, and ends the connection. Both
// refuse a request that names a closed region.
type MR struct {
	dom *Domain
	// buf is nil once the region is closed: reported requests may still refer to the MR, and must
	// not keep the memory alive.
	buf          atomic.Pointer[[]byte]
	lkeys, rkeys Keys // complete before the MR is returned
	regions      []verbs.MR
	memory       verbs.Memory // that Alloc has made; nil for other memory
	// holds counts the requests that use the region; closed adds closedHolds, so that it is
	// negative from then on.
	holds atomic.Int64
}

// closedHolds makes the hold count of a closed region negative, whatever is added to it.
const closedHolds = -1 << 62

// Bytes returns the registered memory; nil after Close, and for a dma-buf.
func (m *MR) Bytes() []byte {
	if b := m.buf.Load(); b != nil {
		return *b
	}
	return nil
}

// Addr returns the address of the first byte in work requests.
func (m *MR) Addr() uint64 { return m.lkeys.base }

// Len returns the size in bytes.
func (m *MR) Len() uint64 { return m.lkeys.length }

// Keys returns the local keys on every device.
func (m *MR) Keys() *Keys { return &m.lkeys }

// Slice names n bytes from offset off. Bounds are checked when the piece is posted.
func (m *MR) Slice(off, n uint64) Segment {
	return Segment{Addr: m.lkeys.base + off, Length: n, Keys: &m.lkeys}
}

// All names the whole region.
func (m *MR) All() Segment { return m.Slice(0, m.lkeys.length) }

// Remote describes the region to the peer, who may use it as the access rights allow until you
// close the region. Send it as JSON. It allocates nothing. After Close it names no memory.
func (m *MR) Remote() RemoteMR {
	if m.holds.Load() < 0 {
		return RemoteMR{}
	}
	return RemoteMR{keys: &m.rkeys}
}

// Close deregisters the memory on every NIC. It fails with [verbs.ErrBusy] while requests use the
// region. When it returns nil, no NIC accesses the memory any more; requests of the peer that still
// name it fail.
func (m *MR) Close() error {
	if !m.holds.CompareAndSwap(0, closedHolds) {
		n := m.holds.Load()
		if n < 0 {
			return fmt.Errorf("ibverbx: close memory region: %w", verbs.ErrClosed)
		}
		return fmt.Errorf("ibverbx: close memory region %s: %w: %d requests: poll their completions or "+
			"close their virtual QP first",
			addrRange(m.Addr(), m.Len()), verbs.ErrBusy, n)
	}
	err := closeRegions(m.regions, m.Len())
	if m.memory != nil {
		err = errors.Join(err, m.memory.Close())
		m.memory = nil
	}
	m.dom.completed(m.regions)
	m.dom.release()
	m.buf.Store(nil)
	m.regions = nil
	return err
}

// hold keeps the region open for n requests; it reports false if the region is closed.
func (m *MR) hold(n int64) bool {
	if m.holds.Add(n) > 0 {
		return true
	}
	m.holds.Add(-n)
	return false
}

func (m *MR) unhold(n int64) { m.holds.Add(-n) }

// RemoteMR describes a memory region of the peer: where it is, how long, and its key on each of the
// peer's NICs. It travels as JSON. The zero value names no memory.
type RemoteMR struct {
	keys *Keys
}

// Addr returns the address of the first byte at the peer.
func (r RemoteMR) Addr() uint64 {
	if r.keys == nil {
		return 0
	}
	return r.keys.base
}

// Len returns the size in bytes.
func (r RemoteMR) Len() uint64 {
	if r.keys == nil {
		return 0
	}
	return r.keys.length
}

// Slice names n bytes from offset off. Bounds are checked when the piece is posted.
func (r RemoteMR) Slice(off, n uint64) RemoteSegment {
	return RemoteSegment{Addr: r.Addr() + off, Length: n, Keys: r.keys}
}

// At names everything from offset off to the end of the region.
func (r RemoteMR) At(off uint64) RemoteSegment {
	if off > r.Len() {
		return r.Slice(off, 0)
	}
	return r.Slice(off, r.Len()-off)
}

// remoteMRJSON is the wire form of a RemoteMR.
type remoteMRJSON struct {
	Addr   *uint64          `json:"addr,string"` // a string: JSON numbers lose bits beyond 2^53
	Length *uint64          `json:"length,string"`
	RKeys  map[uint8]uint32 `json:"rkeys"`
}

// missing returns the names of the fields that a description lacks.
func (w *remoteMRJSON) missing() (names []string) {
	for _, f := range []struct {
		name  string
		there bool
	}{{`"addr"`, w.Addr != nil}, {`"length"`, w.Length != nil}, {`"rkeys"`, w.RKeys != nil}} {
		if !f.there {
			names = append(names, f.name)
		}
	}
	return names
}

// MarshalJSON returns address, length and one key for each device.
func (r RemoteMR) MarshalJSON() ([]byte, error) {
	addr, length := r.Addr(), r.Len()
	w := remoteMRJSON{Addr: &addr, Length: &length, RKeys: map[uint8]uint32{}}
	for dev := range verbs.DeviceID(verbs.MaxDevices) {
		if key, ok := r.keys.Key(dev); ok {
			w.RKeys[uint8(dev)] = key
		}
	}
	return json.Marshal(w)
}

// UnmarshalJSON parses the form of MarshalJSON. It refuses null, descriptions that lack a field,
// and ranges that wrap around the address space. Its errors match [verbs.ErrInvalid], and change
// nothing.
func (r *RemoteMR) UnmarshalJSON(data []byte) error {
	var w remoteMRJSON
	if err := json.Unmarshal(data, &w); err != nil {
		// err quotes the input
		return fmt.Errorf("ibverbx: remote memory: %w: %.200s", verbs.ErrInvalid, err.Error())
	}
	if missing := w.missing(); len(missing) != 0 {
		return fmt.Errorf("ibverbx: remote memory: %w: missing %s: give what the peer's MR.Remote is "+
			"written "+
			"as", verbs.ErrInvalid, strings.Join(missing, ", "))
	}
	if *w.Addr+*w.Length < *w.Addr {
		return fmt.Errorf("ibverbx: remote memory: %w: %s goes beyond the address space", verbs.ErrInvalid,
			addrRange(*w.Addr, *w.Length))
	}
	k := &Keys{base: *w.Addr, length: *w.Length}
	for dev, key := range w.RKeys {
		if dev >= verbs.MaxDevices {
			return fmt.Errorf("ibverbx: remote memory: %w: key for device %d: devices count from 0 to %d",
				verbs.ErrInvalid, dev, verbs.MaxDevices-1)
		}
		k.set(verbs.DeviceID(dev), key)
	}
	r.keys = k
	return nil
}

// Keys holds the key of one memory region on each NIC, indexed by device. It is immutable once
// made, and safe for concurrent use.
//
// Local keys are indexed by this process's DeviceID, remote keys by the peer's, which the peer's
// [BusinessCard] gives for each queue pair; if it does not, the peer's devices count as numbered
// like the local ones they are connected to.
type Keys struct {
	have uint64 // bit i: there is a key for device i
	// base and length bound the valid addresses; raw keys cover everything.
	base, length uint64
	mr           *MR // the region that requests hold while they use it; nil for raw and remote keys
	key          [verbs.MaxDevices]uint32
}

// NewKeys makes keys for raw memory, from one key per device. Addresses are not checked against
// bounds.
func NewKeys(keys map[verbs.DeviceID]uint32) *Keys {
	k := &Keys{length: math.MaxUint64}
	for dev, key := range keys {
		k.set(dev, key)
	}
	return k
}

// Key returns the key for a device, and whether there is one.
func (k *Keys) Key(dev verbs.DeviceID) (key uint32, ok bool) {
	if k == nil || dev >= verbs.MaxDevices || k.have&(1<<dev) == 0 {
		return 0, false
	}
	return k.key[dev], true
}

// noKeys stands for the keys of a request without memory. It is never changed.
//
//nolint:gochecknoglobals // a constant whose address is needed
var noKeys Keys

func (k *Keys) set(dev verbs.DeviceID, key uint32) {
	if dev < verbs.MaxDevices {
		k.have |= 1 << dev
		k.key[dev] = key
	}
}

// at returns the key for a device that is known to have one. The mask lets the compiler drop the
// bounds check.
func (k *Keys) at(dev uint8) uint32 { return k.key[dev&(verbs.MaxDevices-1)] }

// open reports whether requests may name the memory: its region, if any, is not closed.
func (k *Keys) open() bool { return k.mr == nil || k.mr.holds.Load() >= 0 }

// appendSGL appends the non-empty pieces of memory, with a device's keys.
func appendSGL(sgl []verbs.SGE, pieces []Segment, device uint8) []verbs.SGE {
	for i := range pieces {
		if s := &pieces[i]; s.Length != 0 {
			sgl = append(sgl, verbs.SGE{Addr: s.Addr, Length: uint32(s.Length), LKey: s.Keys.at(device)})
		}
	}
	return sgl
}

// covers reports whether n bytes from addr are within the bounds; n is not 0. An address below base
// has an offset beyond length, since base+length does not wrap.
func (k *Keys) covers(addr, n uint64) bool {
	off := addr - k.base
	return off <= k.length && n <= k.length-off
}
