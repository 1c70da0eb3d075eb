package ibverbx

import (
	"encoding/json"
	"fmt"
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
	// buf is nil once the region is closed: requests that were reported may still refer to the MR,
	// and must not keep the memory.
	buf          atomic.Pointer[[]byte]
	lkeys, rkeys Keys // complete before anybody sees the MR
	regions      []verbs.MR
	// holds counts the requests that use the region; closed adds closedHolds, so that it is
	// negative from then on.
	holds atomic.Int64
}

// closedHolds makes the hold count of a closed region negative, however many still come.
const closedHolds = -1 << 62

// Bytes is the registered memory; nil after Close, and for a dma-buf.
func (m *MR) Bytes() []byte {
	if b := m.buf.Load(); b != nil {
		return *b
	}
	return nil
}

// Addr is the address by which work requests name the first byte.
func (m *MR) Addr() uint64 { return m.lkeys.base }

// Len is the size in bytes.
func (m *MR) Len() uint64 { return m.lkeys.length }

// Keys are the local keys on every device.
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

// Close deregisters the memory on every NIC. It is refused with [verbs.ErrBusy] while requests use
// the region. When it returns nil no NIC accesses the memory any more; requests of the peer that
// still name it fail.
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
	m.dom.completed(m.regions)
	m.dom.release()
	m.buf.Store(nil)
	m.regions = nil
	return err
}

// hold keeps the region open for n requests; it reports false when the region is closed.
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

// Addr is the address of the first byte, as the peer counts.
func (r RemoteMR) Addr() uint64 {
	if r.keys == nil {
		return 0
	}
	return r.keys.base
}

// Len is the size in bytes.
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

// missing are the names of the fields that a description lacks.
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

// MarshalJSON writes address, length and one key a device.
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

// UnmarshalJSON reads what MarshalJSON writes. It refuses descriptions that lack a field, null too,
// and ranges that wrap around the address space. Refusals are [verbs.ErrInvalid], and change
// nothing.
func (r *RemoteMR) UnmarshalJSON(data []byte) error {
	var w remoteMRJSON
	if err := json.Unmarshal(data, &w); err != nil {
		// which repeats what came
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
