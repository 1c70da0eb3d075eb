package shm

import (
	"encoding/binary"
	"fmt"
	mrand "math/rand/v2"
	"strconv"
	"sync"
	"sync/atomic"
	"time"

	"ibverbx/internal/guard"
	"ibverbx/verbs"
	"ibverbx/verbs/internal/nic"
)

// Device is a NIC: a meeting place, and the memory that it shares with its peers. It is a
// verbs.Device.
//
// It has two locks. poll.mu is held by whoever looks at the lanes, mu guards everything else; the
// first is taken before the second. What both guard may be read with one of them.
type Device struct {
	_        guard.NoCopy
	id       verbs.DeviceID
	provider *Provider
	cfg      Config
	gid      verbs.GID
	begun    time.Time
	meeting  *conn
	workers  sync.WaitGroup
	down     atomic.Bool // the link was taken down by SetLink
	poll     poller
	// isUntidy is set while retired is not empty, and owes once PostRecv has added to owed.
	isUntidy, owes atomic.Bool

	mu      nic.Lock
	core    nic.Device
	open    nic.Objects
	qps     nic.Table[QP]
	rng     *mrand.Rand
	timers  timers
	out     map[verbs.GID]*link // the links that this end has dialed
	in      map[*link]struct{}  // those of peers
	mapped  int                 // lanes of peers
	retired []*lane             // lanes without a queue pair, still mapped
	shared  map[uint32]*MR      // open regions in arenas, by remote key
	owed    []*lane             // those whose report is due
	pieces  nic.Pieces
	scratch [inlineBytes]byte
}

func newDevice(p *Provider, id verbs.DeviceID, cfg Config) (*Device, error) {
	d := &Device{id: id, provider: p, cfg: cfg, begun: time.Now(), qps: nic.NewTable[QP](draw),
		rng: mrand.New(mrand.NewPCG(uint64(draw()), uint64(draw()))),
		out: map[verbs.GID]*link{}, in: map[*link]struct{}{}, shared: map[uint32]*MR{}}
	d.gid = newGID(placeOf(cfg.Dir))
	c := &d.core
	c.Lock, c.Open = &d.mu, &d.open
	c.Name, c.Handle, c.GIDs = "shm"+strconv.Itoa(int(id)), d, 1
	c.Keys = nic.NewKeys(id, draw)
	c.Limits = nic.Limits{MaxQPWR: 16384, MaxCQE: 1 << 20, MaxSGE: 32, MaxInline: 512, MaxMsgSize: 1 << 30,
		MaxRDAtomic: 16}
	var err error
	if err = d.poll.init(d); err != nil {
		return nil, err
	}
	if err = checkPassing(d.poll.fd); err == nil {
		d.meeting, err = listen(cfg.Dir, d.gid)
	}
	if err != nil {
		d.poll.free()
		return nil, err
	}
	d.timers.init(d)
	return d, nil
}

// start lets peers in.
func (d *Device) start() { d.workers.Go(d.meet) }

// close ends all links. Nothing of the NIC is open.
func (d *Device) close() {
	d.lockAll()
	d.core.Closed = "the provider"
	d.meeting.close()
	for _, l := range d.out {
		l.hangUp()
	}
	for l := range d.in {
		l.hangUp()
		l.gone = true // no memory is open
	}
	d.poll.closed = true // from now on nobody looks at its page
	d.poll.nap.Stop()
	d.timers.alarm.Stop()
	d.unlockAll()
	d.workers.Wait()
	leave(d.cfg.Dir, d.gid)
	d.poll.free()
}

func (d *Device) lockAll() {
	d.poll.mu.Lock()
	d.mu.Lock()
}

func (d *Device) unlockAll() {
	d.reap()
	d.mu.Unlock()
	d.poll.mu.Unlock()
}

// retire gives up a lane. It stays mapped until reap is called, because whoever polls may look at
// it.
func (d *Device) retire(l *lane) {
	if l.retired {
		return
	}
	l.qp, l.retired = nil, true
	l.withdraw(nil)
	d.retired = append(d.retired, l)
	d.isUntidy.Store(true)
}

// reap unmaps the lanes that were given up. Call it with both locks.
func (d *Device) reap() {
	if len(d.retired) == 0 {
		return
	}
	d.payReports(len(d.owed))
	held := 0 // lanes whose peer is in a copy: await looks at them
	for _, l := range d.retired {
		d.poll.forget(l)
		if l.isHeld() {
			d.retired[held] = l
			held++
			continue
		}
		if l.in {
			delete(l.link.lanes, l.id)
			d.mapped--
		}
		unmapMemory(l.mem)
		l.mem = nil
	}
	clear(d.retired[held:])
	d.retired = d.retired[:held]
	d.isUntidy.Store(held != 0)
}

// awaitLeft waits until the peer of a lane that was given up has ended its copy.
func (d *Device) awaitLeft(l *lane) {
	d.mu.Lock()
	var holders []holder
	if l.retired && l.mem != nil && l.isHeld() {
		holders = append(holders, l.holder())
	}
	d.mu.Unlock()
	d.await(holders)
}

// tidy is reap for a caller without locks.
func (d *Device) tidy() {
	if d.isUntidy.Load() {
		d.lockAll()
		d.unlockAll()
	}
}

// now is the time of the NIC, nanoseconds.
func (d *Device) now() int64 { return int64(time.Since(d.begun)) }

// ID counts from 0.
func (d *Device) ID() verbs.DeviceID { return d.id }

// Name is "shm0" and so on.
func (d *Device) Name() string { return d.core.Name }

// ProviderName returns the name of the NIC's provider, "shm".
func (d *Device) ProviderName() string { return "shm" }

// DefaultPort is 1.
func (d *Device) DefaultPort() int { return 1 }

// Query returns the limits.
func (d *Device) Query() (verbs.DeviceAttr, error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if err := d.core.Usable("query device"); err != nil {
		return verbs.DeviceAttr{}, err
	}
	attr := d.core.Limits.Attr()
	attr.Firmware, attr.NodeGUID = "ibverbx/shm", binary.BigEndian.Uint64(d.gid[8:])
	return attr, nil
}

// QueryPort describes port 1.
func (d *Device) QueryPort(port int) (verbs.PortAttr, error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if err := d.checkPort("query port", port); err != nil {
		return verbs.PortAttr{}, err
	}
	attr := verbs.PortAttr{State: verbs.PortActive, MaxMTU: verbs.MTU4096, ActiveMTU: verbs.MTU4096,
		GIDTableLen: 1, MaxMsgSize: d.core.Limits.MaxMsgSize, LinkLayer: verbs.LinkLayerSharedMemory}
	if d.down.Load() {
		attr.State = verbs.PortDown
	}
	return attr, nil
}

func (d *Device) checkPort(op string, port int) error {
	if err := d.core.Usable(op); err != nil {
		return err
	}
	if port != 1 {
		return d.core.Err(op, verbs.ErrInvalid, fmt.Sprintf("port %d, there is only port 1", port))
	}
	return nil
}

// QueryGID reads the GID table, which has one entry.
func (d *Device) QueryGID(port, index int) (verbs.GIDEntry, error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	const op = "query gid"
	if err := d.checkPort(op, port); err != nil {
		return verbs.GIDEntry{}, err
	}
	if index != 0 {
		return verbs.GIDEntry{}, d.core.Err(op, verbs.ErrInvalid,
			fmt.Sprintf("index %d, there is only index 0", index))
	}
	return verbs.GIDEntry{GID: d.gid, Type: verbs.GIDTypeRoCEv2}, nil
}

// CheckPath is verbs.PathChecker: it knocks at the meeting place of the NIC with a GID.
func (d *Device) CheckPath(port int, to verbs.GID) error {
	const op = "check path"
	d.mu.Lock()
	err := d.checkPort(op, port)
	d.mu.Unlock()
	if err != nil {
		return err
	}
	why := checkPlace(d.gid, to)
	if why == "" {
		c, err := dial(d.cfg.Dir, to)
		if err == nil {
			err = d.checkUser(c)
			c.close()
		}
		if err != nil && err != errBusy { //nolint:errorlint // as dial returns it
			why = err.Error()
		}
	}
	if why != "" {
		return d.core.Err(op, verbs.ErrUnreachable, why)
	}
	return nil
}

// Watch sends the NIC's events to c.
func (d *Device) Watch(c chan<- verbs.Event) (stop func()) { return d.core.Watch(c) }

// SetLink takes the link down or up. While it is down the NIC neither publishes requests nor
// carries out those of peers, as if the cable were pulled. It is for tests of programs.
func (d *Device) SetLink(up bool) {
	d.lockAll()
	if d.down.Load() == !up {
		d.unlockAll()
		return
	}
	d.down.Store(!up)
	e := verbs.Event{Type: verbs.EventPortActive, Port: 1}
	if !up {
		e.Type = verbs.EventPortErr
		d.withdraw(nil)
	}
	d.core.Publish(e)
	if up {
		for _, q := range d.qps.All {
			q.send()
		}
	}
	d.unlockAll()
	if up {
		d.poll.serve()
	}
}

// PD is a protection domain. It is a verbs.PD.
type PD struct {
	_        guard.NoCopy
	dev      *Device
	core     nic.PD
	memories int // made by AllocMemory, and open
}

// AllocPD makes a protection domain.
func (d *Device) AllocPD() (verbs.PD, error) {
	p := &PD{dev: d}
	if err := p.core.Init(&d.core); err != nil {
		return nil, err
	}
	return p, nil
}

// Device is the NIC that the domain belongs to.
func (p *PD) Device() verbs.Device { return p.dev }

// Close frees the domain.
func (p *PD) Close() error {
	p.dev.mu.Lock()
	n := p.memories
	p.dev.mu.Unlock()
	if n != 0 {
		return p.dev.core.Err("close pd", verbs.ErrBusy,
			fmt.Sprintf("%d pieces of allocated memory are open", n))
	}
	return p.core.Close()
}

// MR is a registered memory region. It is a verbs.MR.
type MR struct {
	_      guard.NoCopy
	core   nic.MR
	dev    *Device
	access verbs.AccessFlags
	arena  *arena // that it is in; nil for other memory
}

// RegisterMR makes buf known to the NIC.
func (p *PD) RegisterMR(buf []byte, access verbs.AccessFlags) (verbs.MR, error) {
	d := p.dev
	m := &MR{dev: d, access: access}
	all := &d.provider.arenas
	if len(buf) != 0 {
		m.arena = all.hold(addressOf(buf), uint64(len(buf)))
	}
	if err := m.core.Register(&p.core, buf, access); err != nil {
		if m.arena != nil {
			all.release(m.arena)
		}
		return nil, err
	}
	if m.arena != nil {
		d.mu.Lock()
		d.shared[m.core.RKey()] = m
		d.mu.Unlock()
	}
	return m, nil
}

// RegisterDMABuf makes memory known to the NIC by a file descriptor that can be mapped, as
// [verbs.DMABufRegistrar] says.
func (p *PD) RegisterDMABuf(fd int, offset, length, iova uint64, access verbs.AccessFlags) (verbs.MR, error) {
	m := &MR{}
	if err := m.core.RegisterDMABuf(&p.core, fd, offset, length, iova, access); err != nil {
		return nil, err
	}
	return m, nil
}

// Addr is the real address of the buffer; of a dma-buf, its iova.
func (m *MR) Addr() uint64 { return m.core.Addr() }

// Len is the size in bytes.
func (m *MR) Len() uint64 { return m.core.Len() }

// LKey is the local key: a random number.
func (m *MR) LKey() uint32 { return m.core.LKey() }

// RKey is the remote key: a random number.
func (m *MR) RKey() uint32 { return m.core.RKey() }

// Close deregisters. The NIC accesses memory with its lock only, so there is nothing to wait for
// but peers that access memory of AllocMemory themselves. They end within microseconds; one that is
// stopped meanwhile has as much time as for an answer, and then its connections end.
func (m *MR) Close() error {
	if m.arena != nil {
		return m.closeShared()
	}
	return m.core.Close()
}

// CQ is a completion queue. It is a verbs.CQ.
type CQ struct {
	_    guard.NoCopy
	dev  *Device
	core nic.CQ
	// armed is set from Arm until completions are polled. A program that polls meanwhile does not
	// poll on, but waits for the event.
	armed atomic.Bool
}

// CreateCQ makes a completion queue.
func (d *Device) CreateCQ(cfg verbs.CQConfig) (verbs.CQ, error) {
	c := &CQ{dev: d}
	if err := c.core.Init(&d.core, c, cfg); err != nil {
		return nil, err
	}
	return c, nil
}

// coreOf returns the core of this package's completion queue; nil for another provider's.
func coreOf(cq verbs.CQ) *nic.CQ {
	if c, ok := cq.(*CQ); ok && c != nil {
		return &c.core
	}
	return nil
}

// Device is the NIC that the queue belongs to.
func (c *CQ) Device() verbs.Device { return c.dev }

// Depth is the depth that was asked for.
func (c *CQ) Depth() int { return c.core.Depth() }

// Channel is the completion channel, or nil.
func (c *CQ) Channel() *verbs.CompChannel { return c.core.Channel() }

// Poll moves completions into wcs. When there are none, it looks at the lanes first.
func (c *CQ) Poll(wcs []verbs.WC) (int, error) {
	var n int
	var err error
	if c.core.Attention() {
		n, err = c.core.Poll(wcs)
	} else {
		n, err = c.dev.poll.help(c, wcs)
	}
	if n > 0 && c.armed.Load() {
		c.armed.Store(false)
	}
	return n, err
}

// Arm asks for one event. Arming for any completion outweighs arming for solicited ones.
func (c *CQ) Arm(solicitedOnly bool) error {
	if err := c.core.Arm(solicitedOnly); err != nil {
		return err
	}
	c.armed.Store(true)
	c.dev.poll.offers.sleeps.Store(true)
	c.dev.poll.serve()
	return nil
}

// Close destroys the queue.
func (c *CQ) Close() error { return c.core.Close() }
