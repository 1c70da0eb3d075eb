//go:build linux && (amd64 || arm64)

package rdmacore

import (
	"bytes"
	"cmp"
	"encoding/binary"
	"errors"
	"fmt"
	"io/fs"
	"net"
	"os"
	"path/filepath"
	"sync"
	"sync/atomic"
	"syscall"

	"ibverbx/verbs"
)

// device is an open NIC.
type device struct {
	p        *Provider
	id       verbs.DeviceID
	name     string
	port     int // chosen by the filter, or 1
	limits   verbs.DeviceAttr
	atomics  bool // the NIC has atomics
	inSysfs  bool // the kernel listed it in sysfs when it was opened
	ctx      uintptr
	watchers verbs.Watchers
	gone     atomic.Bool // removed, or failed as a whole

	// The functions that <infiniband/verbs.h> calls through the context, as addresses.
	pollCQ, reqNotifyCQ, postSend, postRecv uintptr

	async *fdReader // asynchronous events

	// query holds the memory that C fills in queries about the device.
	query struct {
		mu   sync.Mutex
		mem  mapping
		dev  *ibvDeviceAttr // nil once the device is closed
		port *ibvPortAttr
		gid  *ibvGIDEntry
		gids map[int]gidTable // by port
	}

	mu         sync.Mutex // guards the following fields, and the use counts of the device's objects
	closed     bool
	pds        map[*pd]struct{}
	cqs        map[uintptr]*cq // by C's address
	qps        map[uint32]*qp  // by queue pair number
	events     *compEvents     // the completion channel, made for the first CQ that needs it
	nextVector int             // completion vector of the next CQ
}

// atomicNone is IBV_ATOMIC_NONE.
const atomicNone = 0

// openDevice opens a NIC of the list.
func openDevice(p *Provider, addr uintptr, name string, id verbs.DeviceID, port int) (*device, error) {
	const op = "open device"
	ctx, errno := p.lib.pointer(p.lib.openDevice, addr)
	if errno != 0 {
		return nil, callErr(op, name, 0, "ibv_open_device", errno,
			openHint(errno, name, object[ibvDevice](addr)))
	}
	c := object[ibvContext](ctx)
	d := &device{p: p, id: id, name: name, port: max(port, 1), ctx: ctx, pollCQ: c.pollCQ,
		reqNotifyCQ: c.reqNotifyCQ, postSend: c.postSend,
		postRecv: c.postRecv, pds: map[*pd]struct{}{}, cqs: map[uintptr]*cq{}, qps: map[uint32]*qp{}}
	_, unseen := fs.Stat(os.DirFS(sysClass), name)
	d.inSysfs = unseen == nil
	err := d.prepare(int(c.asyncFD))
	if err == nil {
		d.limits, err = d.Query()
		d.atomics = d.query.dev.atomicCap != atomicNone // filled by the query
		if err == nil && d.port > d.limits.Ports {
			err = d.err(op, verbs.ErrInvalid, fmt.Sprintf("port %d was asked for, the device has %d", d.port,
				d.limits.Ports))
		}
	}
	if err != nil {
		_ = d.close()
		return nil, err
	}
	return d, nil
}

// prepare reads the limits of an open device and starts its event reader.
func (d *device) prepare(asyncFD int) (err error) {
	q := &d.query
	q.mem, err = mapMemory(carved[ibvDeviceAttr](1)+carved[ibvPortAttr](1)+carved[ibvGIDEntry](1), 0)
	if err != nil {
		return d.err("open device", verbs.ErrNoMemory, err.Error())
	}
	q.gids = map[int]gidTable{}
	q.dev, q.port, q.gid = &carve[ibvDeviceAttr](&q.mem, 1)[0], &carve[ibvPortAttr](&q.mem, 1)[0],
		&carve[ibvGIDEntry](&q.mem, 1)[0]
	d.async, err = d.readAsyncEvents(asyncFD)
	return err
}

// openHint returns what to do if a device cannot be opened.
func openHint(errno syscall.Errno, name string, c *ibvDevice) string {
	if errno == syscall.ENOENT {
		// libibverbs reports only that its second path to the device does not exist: find out what
		// is wrong with the first.
		node, _, _ := bytes.Cut(c.devName[:], []byte{0})
		f, err := os.OpenFile(filepath.Join("/dev/infiniband", string(node)), os.O_RDWR, 0)
		if err == nil {
			_ = f.Close()
		}
		if errors.Is(err, fs.ErrPermission) {
			errno = syscall.EACCES
		}
	}
	switch errno {
	case syscall.EMFILE, syscall.ENFILE:
		return filesHint(errno)
	case syscall.EACCES, syscall.EPERM:
		return "no permission for its /dev/infiniband/uverbs*: join the group that owns it (rdma on most " +
			"systems), or in a container pass the " +
			"device in; or leave it out with the filter ^" + name
	case syscall.ENOENT:
		return "its /dev/infiniband/uverbs* is not there: modprobe ib_uverbs, or in a container pass the " +
			"device in; or leave it out with the " +
			"filter ^" + name
	}
	return ""
}

// retire refuses new objects from now on. It returns ErrBusy while some are open.
func (d *device) retire(op string) error {
	d.mu.Lock()
	defer d.mu.Unlock()
	if len(d.pds) == 0 && len(d.cqs) == 0 {
		d.closed = true
		return nil
	}
	return d.err(op, verbs.ErrBusy, fmt.Sprintf("%d protection domains and %d completion queues are open",
		len(d.pds), len(d.cqs)))
}

// revive undoes retire.
func (d *device) revive() {
	d.mu.Lock()
	d.closed = false
	d.mu.Unlock()
}

// close closes the device, after the event readers, which use it.
func (d *device) close() error {
	d.async.stop()
	err := d.events.close()
	d.query.mu.Lock()
	defer d.query.mu.Unlock()
	d.query.dev = nil // no more queries: they use the context
	if errno := d.destroy(d.p.lib.closeDevice, d.ctx); errno != 0 && err == nil {
		err = d.callErr("close device", 0, "ibv_close_device", errno, "")
	}
	_ = d.query.mem.unmap() // unmapping a valid mapping cannot fail
	return err
}

// destroy makes a call that destroys an object. When a NIC is removed, the kernel destroys
// everything by itself, and answers every such call with EIO (unless RDMAV_ALLOW_DISASSOC_DESTROY
// is set): the object is then gone, and libibverbs' memory for it leaks.
func (d *device) destroy(fn, object uintptr) syscall.Errno {
	errno := d.p.lib.status(fn, object)
	if errno == syscall.EIO && d.removed() {
		return 0
	}
	return errno
}

// removed reports whether the NIC was removed: an event has reported it, or the kernel no longer
// lists it, which may be noticed sooner.
func (d *device) removed() bool {
	if d.gone.Load() || !d.inSysfs {
		return d.gone.Load()
	}
	sys := os.DirFS(sysClass)
	_, err := fs.Stat(sys, d.name)
	_, readable := fs.Stat(sys, ".")
	return errors.Is(err, fs.ErrNotExist) && readable == nil
}

func (d *device) ID() verbs.DeviceID { return d.id }
func (d *device) Name() string       { return d.name }
func (d *device) DefaultPort() int   { return d.port }

// ProviderName returns the name of the NIC's provider, "rdmacore".
func (d *device) ProviderName() string { return "rdmacore" }

// Repairs returns what the NIC's counters say of what it had to repair at a port, by their names,
// which differ by driver. It is empty where the kernel shows none.
func (d *device) Repairs(port int) map[string]uint64 {
	return sysRepairs(os.DirFS(sysClass), d.name, port)
}

// Watch sends asynchronous events to c.
func (d *device) Watch(c chan<- verbs.Event) (stop func()) { return d.watchers.Watch(c) }

// err returns the error of a call on the device.
func (d *device) err(op string, sentinel error, detail string) error {
	return &verbs.OpError{Op: op, Device: d.name, Err: sentinel, Detail: detail}
}

// lockQuery locks the memory for queries, unless the device is closed.
func (d *device) lockQuery(op string) error {
	d.query.mu.Lock()
	if d.query.dev == nil {
		d.query.mu.Unlock()
		return d.err(op, verbs.ErrClosed, "")
	}
	return nil
}

// rxeVendor is the vendor of rdma_rxe (RXE_VENDOR_ID in the kernel).
const rxeVendor = 0xffffff

// Query describes the device.
func (d *device) Query() (verbs.DeviceAttr, error) {
	const op = "query device"
	if err := d.lockQuery(op); err != nil {
		return verbs.DeviceAttr{}, err
	}
	defer d.query.mu.Unlock()
	a := d.query.dev
	*a = ibvDeviceAttr{}
	if errno := d.p.lib.status(d.p.lib.queryDevice, d.ctx, address(a)); errno != 0 {
		return verbs.DeviceAttr{}, d.callErr(op, 0, "ibv_query_device", errno, "")
	}
	firmware, _, _ := bytes.Cut(a.fwVer[:], []byte{0})
	return verbs.DeviceAttr{
		Firmware: string(firmware), NodeGUID: bigEndian64(a.nodeGUID), VendorID: a.vendorID,
		PartID: a.vendorPartID, HWVersion: a.hwVer,
		Ports: int(a.physPortCnt), MaxQP: int(a.maxQP), MaxQPWR: int(a.maxQPWR), MaxSGE: int(a.maxSGE),
		MaxCQ:  int(a.maxCQ),
		MaxCQE: int(a.maxCQE), MaxMR: int(a.maxMR), MaxMRSize: a.maxMRSize, MaxPD: int(a.maxPD),
		MaxRDAtomic: int(min(a.maxQPRDAtom, a.maxQPInitRDAtom)), // as responder and as requester
		Software:    a.vendorID == rxeVendor,
	}, nil
}

// QueryPort describes a port.
func (d *device) QueryPort(port int) (verbs.PortAttr, error) {
	const op = "query port"
	if err := d.lockQuery(op); err != nil {
		return verbs.PortAttr{}, err
	}
	defer d.query.mu.Unlock()
	a, err := d.portAttr(op, port)
	if err != nil {
		return verbs.PortAttr{}, err
	}
	return verbs.PortAttr{
		State: verbs.PortState(a.state), MaxMTU: verbs.MTU(a.maxMTU), ActiveMTU: verbs.MTU(a.activeMTU),
		GIDTableLen: int(a.gidTblLen),
		MaxMsgSize:  a.maxMsgSz, LID: a.lid, LinkLayer: verbs.LinkLayer(a.linkLayer),
		Speed: linkSpeed(a.activeWidth, a.activeSpeed),
	}, nil
}

// portAttr queries a port's attributes. The query lock is held.
func (d *device) portAttr(op string, port int) (*ibvPortAttr, error) {
	if limit := cmp.Or(d.limits.Ports, 255); port < 1 || port > limit {
		return nil, d.err(op, verbs.ErrInvalid, fmt.Sprintf("port %d: the device has ports 1 to %d", port,
			limit))
	}
	a := d.query.port
	*a = ibvPortAttr{}
	if errno := d.p.lib.status(d.p.lib.queryPort, d.ctx, uintptr(port), address(a)); errno != 0 {
		return nil, d.callErr(op, 0, "ibv_query_port", errno, fmt.Sprintf("port %d", port))
	}
	return a, nil
}

// QueryGID reads one entry of a port's GID table. An unset entry has a zero GID.
func (d *device) QueryGID(port, index int) (verbs.GIDEntry, error) {
	const op = "query gid"
	if err := d.lockQuery(op); err != nil {
		return verbs.GIDEntry{}, err
	}
	defer d.query.mu.Unlock()
	table, err := d.gidTable(op, port)
	if err != nil {
		return verbs.GIDEntry{}, err
	}
	if index < 0 || index >= table.size {
		return verbs.GIDEntry{}, d.err(op, verbs.ErrInvalid,
			fmt.Sprintf("index %d: port %d has entries 0 to %d", index, port, table.size-1))
	}
	return d.gidEntry(op, port, index, table.link)
}

// gidTable holds constant attributes of a port: mlx5 asks its firmware for them, and a search
// through a GID table makes hundreds of queries.
type gidTable struct {
	size int
	link verbs.LinkLayer
}

// gidTable queries each port once. The query lock is held.
func (d *device) gidTable(op string, port int) (gidTable, error) {
	if t, ok := d.query.gids[port]; ok {
		return t, nil
	}
	a, err := d.portAttr(op, port)
	if err != nil {
		return gidTable{}, err
	}
	t := gidTable{size: int(a.gidTblLen), link: verbs.LinkLayer(a.linkLayer)}
	d.query.gids[port] = t
	return t, nil
}

// netDev returns the name of a network interface; empty if there is none, or if it is in another
// network namespace.
func netDev(index uint32) string {
	if index == 0 {
		return ""
	}
	i, err := net.InterfaceByIndex(int(index))
	if err != nil {
		return ""
	}
	return i.Name
}

// gidEntry queries the library, by the newer function if it has that.
func (d *device) gidEntry(op string, port, index int, link verbs.LinkLayer) (verbs.GIDEntry, error) {
	sys := os.DirFS(sysClass)
	lib, e := d.p.lib, d.query.gid
	*e = ibvGIDEntry{}
	entry := verbs.GIDEntry{Index: index}
	if lib.queryGIDEx != 0 {
		switch errno := lib.status(lib.queryGIDEx, d.ctx, uintptr(port), uintptr(index), address(e), 0,
			uintptr(sizeOf[ibvGIDEntry]())); errno {
		case 0:
			entry.GID, entry.Type = e.gid, verbs.GIDType(e.gidType)
			entry.NetDev = netDev(e.ndevIfindex)
			return entry, nil
		case syscall.ENODATA: // unset
			return entry, nil
		default:
			return entry, d.callErr(op, 0, "ibv_query_gid_ex", errno,
				fmt.Sprintf("port %d, index %d", port, index))
		}
	}
	if errno := lib.status(lib.queryGID, d.ctx, uintptr(port), uintptr(index), address(&e.gid)); errno != 0 {
		return entry, d.callErr(op, 0, "ibv_query_gid", errno, fmt.Sprintf("port %d, index %d", port, index))
	}
	entry.GID = e.gid
	if entry.GID.IsZero() {
		return entry, nil
	}
	var err error
	if entry.Type, err = sysGIDType(sys, d.name, port, index, link); err != nil {
		return verbs.GIDEntry{}, d.err(op, verbs.ErrNotSupported,
			fmt.Sprintf("what kind of GID entry %d of port %d is: "+
				"this libibverbs does not say (rdma-core 32 does), nor does the kernel: %v",
				index, port, err))
	}
	entry.NetDev = sysNetDev(sys, d.name, port, index)
	return entry, nil
}

// linkSpeed returns a port's signalling rate in bits a second, from the codes of its width and
// speed (IBTA PortInfo; the kernel's ib_port_attr_to_rate); 0 if a code is unknown.
func linkSpeed(width, speed uint8) uint64 {
	lanes := map[uint8]uint64{1: 1, 2: 4, 4: 8, 8: 12, 16: 2}[width]
	lane := map[uint8]uint64{1: 2_500, 2: 5_000, 4: 10_000, 8: 10_000, 16: 14_000, 32: 25_000, 64: 50_000,
		128: 100_000}[speed]
	return lanes * lane * 1_000_000
}

// bigEndian64 reads a number that C stored big-endian.
func bigEndian64(v uint64) uint64 {
	var b [8]byte
	binary.NativeEndian.PutUint64(b[:], v)
	return binary.BigEndian.Uint64(b[:])
}
