package soft

import (
	"encoding/binary"
	"fmt"
	"math/rand/v2"
	"strconv"
	"sync/atomic"
	"time"

	"ibverbx/internal/guard"
	"ibverbx/verbs"
	"ibverbx/verbs/internal/nic"
)

// Device is one software NIC. It is a verbs.Device.
type Device struct {
	_    guard.NoCopy
	f    *Fabric
	core nic.Device
	id   verbs.DeviceID
	gids [2]verbs.GID

	// Guarded by the fabric's lock; see SetSpeed.
	bandwidth uint64
	latency   time.Duration

	linkDown bool
	cutBy    *Injection // the fault that took the link down; its removal brings it up again
	killedBy *Injection // the fault that killed the NIC; its removal brings it back
	qps      nic.Table[QP]

	worker worker // of the background engine
}

func newDevice(f *Fabric, i int, cfg DeviceConfig) *Device {
	d := &Device{
		f:         f,
		id:        verbs.DeviceID(i),
		gids:      gids(f.identity, i),
		bandwidth: cfg.Bandwidth,
		latency:   cfg.Latency,
		qps:       nic.NewTable[QP](nil),
	}
	c := &d.core
	c.Lock, c.Open = &f.mu, &f.objects
	c.Name, c.Handle, c.GIDs = "soft"+strconv.Itoa(i), d, len(d.gids)
	c.Keys = nic.NewKeys(d.id, nil)
	c.Limits = nic.Limits{MaxQPWR: cfg.MaxQPWR, MaxCQE: cfg.MaxCQE, MaxSGE: cfg.MaxSGE,
		MaxInline: cfg.MaxInline, MaxMsgSize: cfg.MaxMsgSize, MaxRDAtomic: cfg.MaxRDAtomic}
	d.worker.init()
	return d
}

// ID returns the NIC's index in its fabric.
func (d *Device) ID() verbs.DeviceID { return d.id }

// Name returns "soft0", "soft1" and so on.
func (d *Device) Name() string { return d.core.Name }

// ProviderName returns the name of the NIC's provider, "soft".
func (d *Device) ProviderName() string { return "soft" }

// DefaultPort returns 1, the only port.
func (d *Device) DefaultPort() int { return 1 }

// Query describes the NIC.
func (d *Device) Query() (verbs.DeviceAttr, error) {
	d.f.mu.Lock()
	defer d.f.mu.Unlock()
	if err := d.core.Usable("query device"); err != nil {
		return verbs.DeviceAttr{}, err
	}
	attr := d.core.Limits.Attr()
	attr.Firmware, attr.NodeGUID = "soft", guid(d.f.identity, int(d.id))
	return attr, nil
}

// QueryPort describes port 1.
func (d *Device) QueryPort(port int) (verbs.PortAttr, error) {
	d.f.mu.Lock()
	defer d.f.mu.Unlock()
	if err := d.core.Usable("query port"); err != nil {
		return verbs.PortAttr{}, err
	}
	if port != 1 {
		return verbs.PortAttr{}, d.core.Err("query port", verbs.ErrInvalid,
			fmt.Sprintf("port %d, there is only port 1", port))
	}
	attr := verbs.PortAttr{
		State:       verbs.PortActive,
		MaxMTU:      verbs.MTU4096,
		ActiveMTU:   verbs.MTU4096,
		GIDTableLen: len(d.gids),
		MaxMsgSize:  d.core.Limits.MaxMsgSize,
		LinkLayer:   verbs.LinkLayerEthernet,
		Speed:       d.bandwidth * 8,
	}
	if d.linkDown {
		attr.State = verbs.PortDown
	}
	return attr, nil
}

// QueryGID returns an entry of the GID table: 0 is the GID over IPv4, 1 the link-local GID.
func (d *Device) QueryGID(port, index int) (verbs.GIDEntry, error) {
	d.f.mu.Lock()
	defer d.f.mu.Unlock()
	if err := d.core.Usable("query gid"); err != nil {
		return verbs.GIDEntry{}, err
	}
	if port != 1 || index < 0 || index >= len(d.gids) {
		return verbs.GIDEntry{}, d.core.Err("query gid", verbs.ErrInvalid,
			fmt.Sprintf("port %d index %d, there are port 1 and indexes below %d", port, index, len(d.gids)))
	}
	return verbs.GIDEntry{Index: index, GID: d.gids[index], Type: verbs.GIDTypeRoCEv2}, nil
}

// SetSpeed changes the bandwidth, in bytes a second, and the one-way latency. 0 means no limit and
// no latency. Messages on the wire keep the speed at which they left. A stepped fabric has no clock
// and ignores it.
func (d *Device) SetSpeed(bandwidth uint64, latency time.Duration) {
	d.f.mu.Lock()
	defer d.f.mu.Unlock()
	d.bandwidth, d.latency = bandwidth, max(latency, 0)
}

// SetLink takes the NIC's link down or up again. While it is down, packets are lost in both
// directions, and senders at both ends get RETRY_EXC_ERR after their retries, unless the link comes
// back in time. A change raises verbs.EventPortErr or verbs.EventPortActive.
func (d *Device) SetLink(up bool) {
	d.f.mu.Lock()
	defer d.f.mu.Unlock()
	d.setLink(up, nil)
}

// setLink is SetLink with the fabric locked, on behalf of an injection or of the caller.
func (d *Device) setLink(up bool, by *Injection) {
	changed := d.linkDown == up
	d.linkDown, d.cutBy = !up, by
	if changed {
		d.publishPort()
	}
	if up {
		d.f.pathsChanged()
	}
}

// Kill removes the NIC, as when it fails or is unplugged: its queue pairs go to ERR and flush,
// posts and queries are refused with verbs.ErrDeviceGone, and peers get RETRY_EXC_ERR. Poll still
// returns the completions that there are, and you can close everything. It raises
// verbs.EventDeviceFatal, and no event after it.
func (d *Device) Kill() {
	d.f.mu.Lock()
	defer d.f.mu.Unlock()
	d.kill(nil)
}

// kill is Kill with the fabric locked, on behalf of an injection or of the caller.
func (d *Device) kill(by *Injection) {
	d.killedBy = by
	if d.core.Gone {
		return
	}
	d.core.Publish(verbs.Event{Type: verbs.EventDeviceFatal})
	d.core.Gone = true
	for _, q := range d.qps.All {
		d.f.toError(q)
	}
}

// Restore brings a killed NIC back. Its queue pairs stay in ERR until they are reset. It raises the
// event for the state of the port: verbs.EventPortActive, or verbs.EventPortErr if the link is
// down.
func (d *Device) Restore() {
	d.f.mu.Lock()
	defer d.f.mu.Unlock()
	d.restore()
}

// restore is Restore with the fabric locked.
func (d *Device) restore() {
	d.killedBy = nil
	if d.core.Gone {
		d.core.Gone = false
		d.publishPort()
	}
	d.f.pathsChanged()
}

// up reports whether packets pass through the NIC.
func (d *Device) up() bool { return !d.linkDown && !d.core.Gone }

// Watch sends the NIC's events to c. They are
//
//   - verbs.EventPortErr and EventPortActive, when [Device.SetLink] or [CutLink] changes the link,
//     and one of them at [Device.Restore];
//   - verbs.EventDeviceFatal, at [Device.Kill] and [KillNIC];
//   - verbs.EventCQErr, when a completion queue overruns, and then EventQPFatal for each queue pair
//     that fails with it;
//   - verbs.EventQPFatal, at [FailQP];
//   - verbs.EventQPReqErr and EventQPAccessErr, when a queue pair fails as the responder and no
//     receive reports it: it refused an RDMA request or an atomic.
//
// Each is sent before the call or the step that causes it has returned. A NIC that was killed sends
// none until it is restored.
func (d *Device) Watch(c chan<- verbs.Event) (stop func()) { return d.core.Watch(c) }

// publishPort raises the event for the port's current state.
func (d *Device) publishPort() {
	e := verbs.Event{Type: verbs.EventPortActive, Port: 1}
	if d.linkDown {
		e.Type = verbs.EventPortErr
	}
	d.core.Publish(e)
}

// failWithEvent takes a queue pair to ERR for a reason that no completion reports, and raises the
// event that does.
func (f *Fabric) failWithEvent(q *QP, why verbs.EventType) {
	if q.core.State == verbs.StateErr || q.core.State == verbs.StateReset {
		return
	}
	q.dev.core.Publish(verbs.Event{Type: why, QPNum: q.core.Num})
	f.toError(q)
}

// refusalEvent returns the event of a responder that refused a request with a status.
func refusalEvent(status verbs.Status) verbs.EventType {
	if status == verbs.StatusRemAccessErr {
		return verbs.EventQPAccessErr
	}
	return verbs.EventQPReqErr
}

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
