package verbstest

import (
	"fmt"

	"ibverbx/internal/guard"
	"ibverbx/verbs"
)

// Null is a provider that does nothing, fast: a post succeeds if the queue has room, its completion
// can be polled at once, and no data moves. Benchmarks over it measure the library above.
// [CompleteRecv] completes receives.
//
// Neither an object nor two objects of one device are safe for concurrent use. Keys and addresses
// are made up and never checked; of a request only the opcode, the flags and the length of an
// inline payload matter.
type Null struct {
	_       guard.NoCopy
	devices []*nullDevice
}

// NewNull makes a provider with this many devices, null0, null1 and so on.
func NewNull(devices int) *Null {
	if devices < 1 || devices > verbs.MaxDevices {
		panic(fmt.Sprintf("verbstest: %d null devices, possible are 1 to %d", devices, verbs.MaxDevices))
	}
	p := &Null{}
	for i := range devices {
		p.devices = append(p.devices, &nullDevice{id: verbs.DeviceID(i), nextAddr: nullBase})
	}
	return p
}

// Name returns "null".
func (p *Null) Name() string { return "null" }

// Devices lists the devices.
func (p *Null) Devices() ([]verbs.Device, error) {
	list := make([]verbs.Device, len(p.devices))
	for i, d := range p.devices {
		list[i] = d
	}
	return list, nil
}

// Device returns one device.
func (p *Null) Device(i int) verbs.Device { return p.devices[i] }

// Publish raises an event of a device, and fills in e.Device. Nothing else raises events.
func (p *Null) Publish(device int, e verbs.Event) {
	d := p.devices[device]
	e.Device = d
	d.watchers.Publish(e)
}

// Close returns verbs.ErrBusy while objects made from the devices are open.
func (p *Null) Close() error {
	for _, d := range p.devices {
		if d.open != 0 {
			return d.err("close", verbs.ErrBusy, fmt.Sprintf("%d objects are open", d.open))
		}
	}
	return nil
}

const (
	nullBase     = 1 << 32 // the first address handed out
	nullPage     = 4096    // regions start at a multiple of it
	nullFirstQP  = 17      // the same on every device, so numbers of two devices are equal
	nullMaxQPWR  = 1 << 16
	nullMaxCQE   = 1 << 22
	nullMaxSGE   = 32
	nullMaxInl   = 1024
	nullMsgSize  = 1 << 31
	nullGIDCount = 1
)

// nullDevice is a device of a Null.
type nullDevice struct {
	_        guard.NoCopy
	id       verbs.DeviceID
	nextAddr uint64
	nextKey  uint32
	open     int
	// qps holds every queue pair ever made, by number less nullFirstQP. A poll finds its queue pair
	// here.
	qps      []*nullQP
	watchers verbs.Watchers
}

// ID returns the device's index in the provider.
func (d *nullDevice) ID() verbs.DeviceID { return d.id }

// Name returns "null" and the index.
func (d *nullDevice) Name() string { return fmt.Sprintf("null%d", d.id) }

// DefaultPort returns 1, the only port.
func (d *nullDevice) DefaultPort() int { return 1 }

// Watch sends to c the events passed to [Null.Publish].
func (d *nullDevice) Watch(c chan<- verbs.Event) (stop func()) { return d.watchers.Watch(c) }

// Query describes the device.
func (d *nullDevice) Query() (verbs.DeviceAttr, error) {
	return verbs.DeviceAttr{
		Firmware: "null", NodeGUID: uint64(d.id) + 1, Ports: 1, MaxQP: 1 << 20, MaxQPWR: nullMaxQPWR,
		MaxSGE: nullMaxSGE,
		MaxCQ:  1 << 20, MaxCQE: nullMaxCQE, MaxMR: 1 << 20, MaxMRSize: 1 << 40, MaxPD: 1 << 20,
		MaxRDAtomic: 16, MaxInline: nullMaxInl,
	}, nil
}

// QueryPort describes port 1.
func (d *nullDevice) QueryPort(port int) (verbs.PortAttr, error) {
	if port != 1 {
		return verbs.PortAttr{}, d.err("query port", verbs.ErrInvalid,
			fmt.Sprintf("port %d, there is only port 1", port))
	}
	return verbs.PortAttr{
		State: verbs.PortActive, MaxMTU: verbs.MTU4096, ActiveMTU: verbs.MTU4096, GIDTableLen: nullGIDCount,
		MaxMsgSize: nullMsgSize, LinkLayer: verbs.LinkLayerEthernet,
	}, nil
}

// QueryGID reads the only entry of the table.
func (d *nullDevice) QueryGID(port, index int) (verbs.GIDEntry, error) {
	if port != 1 || index != 0 {
		return verbs.GIDEntry{}, d.err("query gid", verbs.ErrInvalid,
			fmt.Sprintf("port %d index %d, there is only port 1 index 0", port, index))
	}
	gid := verbs.GID{0: 0xfd, 14: 1, 15: byte(d.id)}
	return verbs.GIDEntry{GID: gid, Type: verbs.GIDTypeRoCEv2}, nil
}

// AllocPD makes a protection domain.
func (d *nullDevice) AllocPD() (verbs.PD, error) {
	d.open++
	return &nullPD{dev: d}, nil
}

func (d *nullDevice) err(op string, err error, detail string) error {
	return &verbs.OpError{Op: op, Device: d.Name(), Detail: detail, Err: err}
}

// nullPD is a protection domain of a Null.
type nullPD struct {
	_      guard.NoCopy
	dev    *nullDevice
	users  int
	closed bool
}

// Device returns the domain's device.
func (p *nullPD) Device() verbs.Device { return p.dev }

// RegisterMR makes up an address and keys for buf.
func (p *nullPD) RegisterMR(buf []byte, access verbs.AccessFlags) (verbs.MR, error) {
	d := p.dev
	switch {
	case p.closed:
		return nil, d.err("register", verbs.ErrClosed, "protection domain")
	case !access.Valid():
		return nil, d.err("register", verbs.ErrInvalid, access.String())
	case len(buf) == 0:
		return nil, d.err("register", verbs.ErrInvalid, "no bytes")
	}
	m := &nullMR{pd: p, addr: d.nextAddr, len: uint64(len(buf)), key: (uint32(d.id)+1)<<24 | d.nextKey<<8}
	d.nextAddr += (m.len + nullPage - 1) &^ (nullPage - 1)
	d.nextKey++
	d.open++
	p.users++
	return m, nil
}

// Close returns verbs.ErrBusy while regions or queue pairs of the domain are open.
func (p *nullPD) Close() error {
	if p.closed {
		return p.dev.err("close protection domain", verbs.ErrClosed, "")
	}
	if p.users != 0 {
		return p.dev.err("close protection domain", verbs.ErrBusy, fmt.Sprintf("%d regions and queue pairs",
			p.users))
	}
	p.closed = true
	p.dev.open--
	return nil
}

// nullMR is a memory region of a Null. Its address is not that of the memory.
type nullMR struct {
	_      guard.NoCopy
	pd     *nullPD
	addr   uint64
	len    uint64
	key    uint32
	closed bool
}

// Addr returns the made-up address of the first byte.
func (m *nullMR) Addr() uint64 { return m.addr }

// Len returns the size in bytes.
func (m *nullMR) Len() uint64 { return m.len }

// LKey returns the local key.
func (m *nullMR) LKey() uint32 { return m.key }

// RKey returns the remote key, which differs from the local key.
func (m *nullMR) RKey() uint32 { return m.key | 1 }

// Close deregisters the region.
func (m *nullMR) Close() error {
	if m.closed {
		return m.pd.dev.err("deregister", verbs.ErrClosed, "")
	}
	m.closed = true
	m.pd.users--
	m.pd.dev.open--
	return nil
}
