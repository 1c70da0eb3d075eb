package roce

import (
	"encoding/binary"
	"errors"
	"fmt"
	"net/netip"
	"strconv"
	"time"

	"ibverbx/internal/guard"
	"ibverbx/verbs"
	"ibverbx/verbs/internal/nic"
	"ibverbx/verbs/roce/internal/rc"
	"ibverbx/verbs/roce/internal/udp"
	"ibverbx/verbs/roce/internal/wire"
)

// Device is a NIC: a socket on a local address. It is a verbs.Device.
type Device struct {
	_      guard.NoCopy
	id     verbs.DeviceID
	local  netip.AddrPort
	netDev string
	mtu    verbs.MTU
	speed  uint64 // bits a second; 0 when unknown
	cfg    Config
	gid    verbs.GID
	guid   uint64
	// provider has the NICs that a program that polls this one may receive for; nil in tests whose
	// NICs have no goroutines.
	provider *Provider
	clock    func() int64  // the time of the engine, nanoseconds
	draw     func() uint32 // random numbers

	// mu guards everything below, and all objects of the NIC.
	mu     nic.Lock
	core   nic.Device
	open   nic.Objects
	qps    nic.Table[QP]
	down   bool // the link was taken down by SetLink
	link   link
	sender sender
	recv   receiver
	timers timers
	early  rc.Pool                   // the memory for packets that have arrived ahead of a gap
	shares map[netip.AddrPort]*share // by the peer's address
	crowd  crowd
	counts Counters
}

// Counters counts the packets that a NIC has dropped, and the work of its queue pairs.
type Counters struct {
	LinkDown   uint64 // packets that arrived while the link was down
	Malformed  uint64 // packets that are not RoCEv2
	NoQP       uint64 // packets for queue pairs that do not exist, or are not connected
	Strangers  uint64 // packets for a queue pair from another address, or process, than its peer's
	BadICRC    uint64 // packets whose ICRC is wrong: corrupted, rewritten on the way, or forged
	Overflowed uint64 // packets, or bursts of them, that found the socket's receive buffer full
	Retried    uint64 // packets that waited for room in the socket's send buffer
	Unsendable uint64 // packets that the socket refused
	RecvErrors uint64 // errors of the socket when asked for packets

	Sent       uint64 // packets of requests and answers, not acknowledgements
	Received   uint64 // the same
	Resent     uint64 // packets that were sent again
	Timeouts   uint64 // acknowledgement timeouts
	Probes     uint64 // packets sent again because the last ones may be lost
	NAKs       uint64 // received, other than RNR NAKs
	RNRNAKs    uint64 // received
	Duplicates uint64 // packets received a second time
	Ahead      uint64 // packets received before one that is missing
	Unexpected uint64 // packets dropped: of another connection, or answers to nothing under way
	Broken     uint64 // packets received that violate the protocol
	Marked     uint64 // packets received with the network's mark of congestion
	CNPsSent   uint64 // congestion notifications sent to foreign peers
	CNPs       uint64 // received
}

// Repairs returns the counters of losses, repetitions and congestion, by name. There is one port.
func (d *Device) Repairs(int) map[string]uint64 {
	c := d.Counters()
	return map[string]uint64{"resent_packets": c.Resent, "timeouts": c.Timeouts, "naks": c.NAKs,
		"rnr_naks": c.RNRNAKs, "dropped_packets": c.Overflowed, "ecn_marked_packets": c.Marked,
		"cnps_sent": c.CNPsSent, "cnps": c.CNPs}
}

// add adds the counters of a queue pair.
func (c *Counters) add(s rc.Stats) {
	c.Sent += s.Sent
	c.Received += s.Received
	c.Resent += s.Resent
	c.Timeouts += s.Timeouts
	c.Probes += s.Probes
	c.NAKs += s.NAKs
	c.RNRNAKs += s.RNRNAKs
	c.Duplicates += s.Duplicates
	c.Ahead += s.Ahead
	c.Unexpected += s.Unexpected
	c.Broken += s.Broken
	c.Marked += s.Marked
	c.CNPsSent += s.CNPsSent
	c.CNPs += s.CNPs
}

// headerRoom is the most that a RoCEv2 packet adds to its payload: BTH, RETH, immediate and ICRC.
const headerRoom = 12 + 16 + 4 + wire.ICRCSize

func newDevice(id verbs.DeviceID, addr netip.Addr, cfg *Config) (*Device, error) {
	start := time.Now()
	d := &Device{id: id, cfg: *cfg, clock: func() int64 { return int64(time.Since(start)) }}
	conn, err := listen(addr.Unmap(), cfg)
	if err != nil {
		return nil, err
	}
	d.link, d.local = socket{conn}, conn.LocalAddr()
	if err := d.findLink(); err != nil {
		_ = conn.Close()
		return nil, err
	}
	d.init(draw)
	go d.recv.serve()
	return d, nil
}

// init makes a NIC of a link. Numbers of queue pairs and keys are drawn.
func (d *Device) init(draw func() uint32) {
	d.draw, d.qps = draw, nic.NewTable[QP](draw)
	d.gid = gidOf(d.local)
	d.guid = binary.BigEndian.Uint64(d.gid[8:]) ^ uint64(d.local.Port())<<48
	granted := d.link.Stats().RecvBuffer
	if d.cfg.Window == 0 {
		d.cfg.Window = min(1<<20, granted)
	}
	c := &d.core
	c.Lock, c.Open = &d.mu, &d.open
	c.Name, c.Handle, c.GIDs = "roce"+strconv.Itoa(int(d.id)), d, 1
	c.Keys = nic.NewKeys(d.id, draw)
	c.Limits = nic.Limits{MaxQPWR: 16384, MaxCQE: 1 << 20, MaxSGE: 32, MaxInline: 512, MaxMsgSize: 1 << 30,
		MaxRDAtomic: 16}
	d.sender.init(d)
	d.recv.init(d)
	d.timers.init(d)
}

// listen opens the socket.
func listen(addr netip.Addr, from *Config) (*udp.Conn, error) {
	cfg := udp.Config{Local: netip.AddrPortFrom(addr, from.Port), DisableGSO: from.DisableGSO,
		DisableGRO: from.DisableGRO}
	if from.Port == 0 {
		cfg.Local = netip.AddrPortFrom(addr, Port)
	}
	conn, err := udp.Listen(cfg)
	if errors.Is(err, udp.ErrPortTaken) && from.Port == 0 && addr.Is4() {
		cfg.Local = netip.AddrPortFrom(addr, 0)
		conn, err = udp.Listen(cfg)
	}
	return conn, err
}

// findLink looks up the link behind the address.
func (d *Device) findLink() error {
	all, err := udp.LocalAddresses()
	if err != nil {
		return err
	}
	for _, a := range all {
		if a.Addr.WithZone("") != d.local.Addr().WithZone("") {
			continue
		}
		d.netDev, d.speed = a.Interface, uint64(a.Speed)*1e6
	}
	path, err := d.link.MTU(d.local)
	if err != nil {
		return err
	}
	d.mtu = path.Verbs(headerRoom)
	for _, a := range all { // a NIC reaches itself over the loopback interface
		if a.Interface == d.netDev && a.MTU < path.IP {
			path.Payload -= path.IP - a.MTU
			d.mtu = path.Verbs(headerRoom)
			break
		}
	}
	if d.mtu == 0 {
		return fmt.Errorf("%w: the link of %v carries %d bytes, the smallest path MTU needs %d",
			verbs.ErrInvalid,
			d.local.Addr(), path.Payload, 256+headerRoom)
	}
	return nil
}

// close ends the NIC. The caller has made sure that it has no objects, and that none can be made.
func (d *Device) close() error {
	d.mu.Lock()
	d.timers.stop()
	d.mu.Unlock()
	err := d.link.Close()
	d.recv.wait()
	d.sender.drained.Wait()
	return err
}

// now is the time of the engine, nanoseconds.
func (d *Device) now() int64 { return d.clock() }

// ID is the NIC's index in its provider.
func (d *Device) ID() verbs.DeviceID { return d.id }

// Name is "roce0" and so on.
func (d *Device) Name() string { return d.core.Name }

// ProviderName returns the name of the NIC's provider, "roce".
func (d *Device) ProviderName() string { return "roce" }

// Addr is the address and UDP port of the NIC.
func (d *Device) Addr() netip.AddrPort { return d.local }

// DefaultPort is 1, the only one.
func (d *Device) DefaultPort() int { return 1 }

// Query describes the NIC.
func (d *Device) Query() (verbs.DeviceAttr, error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if err := d.core.Usable("query device"); err != nil {
		return verbs.DeviceAttr{}, err
	}
	attr := d.core.Limits.Attr()
	attr.Firmware, attr.NodeGUID = "roce", d.guid
	return attr, nil
}

// QueryPort describes port 1.
func (d *Device) QueryPort(port int) (verbs.PortAttr, error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if err := d.core.Usable("query port"); err != nil {
		return verbs.PortAttr{}, err
	}
	if port != 1 {
		return verbs.PortAttr{}, d.core.Err("query port", verbs.ErrInvalid,
			fmt.Sprintf("port %d, there is only port 1", port))
	}
	attr := verbs.PortAttr{State: verbs.PortActive, MaxMTU: d.mtu, ActiveMTU: d.mtu, GIDTableLen: 1,
		MaxMsgSize: d.core.Limits.MaxMsgSize, LinkLayer: verbs.LinkLayerEthernet, Speed: d.speed}
	if d.down {
		attr.State = verbs.PortDown
	}
	return attr, nil
}

// QueryGID reads the GID table, which has one entry.
func (d *Device) QueryGID(port, index int) (verbs.GIDEntry, error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if err := d.core.Usable("query gid"); err != nil {
		return verbs.GIDEntry{}, err
	}
	if port != 1 || index != 0 {
		return verbs.GIDEntry{}, d.core.Err("query gid", verbs.ErrInvalid,
			fmt.Sprintf("port %d index %d, there are port 1 and index 0", port, index))
	}
	return verbs.GIDEntry{GID: d.gid, Type: verbs.GIDTypeRoCEv2, NetDev: d.netDev}, nil
}

// CheckPath is verbs.PathChecker: it reports whether the host has a route from the NIC to an
// address. Only packets can show whether a peer is there.
func (d *Device) CheckPath(port int, to verbs.GID) error {
	const op = "check path"
	d.mu.Lock()
	err := d.core.Usable(op)
	d.mu.Unlock()
	switch {
	case err != nil:
		return err
	case port != 1:
		return d.core.Err(op, verbs.ErrInvalid, fmt.Sprintf("port %d, there is only port 1", port))
	}
	found := d.route(to, udp.Way{})
	found.close()
	if found.err != nil {
		return d.core.Err(op, verbs.ErrUnreachable, found.err.Error())
	}
	return nil
}

// Watch sends the NIC's events to c.
func (d *Device) Watch(c chan<- verbs.Event) (stop func()) { return d.core.Watch(c) }

// SetLink takes the link down or up. While it is down the NIC drops all packets, in both
// directions, as if the cable were pulled. It is for tests of programs.
func (d *Device) SetLink(up bool) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.down == !up {
		return
	}
	d.down = !up
	e := verbs.Event{Type: verbs.EventPortActive, Port: 1}
	if d.down {
		e.Type = verbs.EventPortErr
	}
	d.core.Publish(e)
}

// Counters returns the NIC's counters.
func (d *Device) Counters() Counters {
	socket := d.link.Stats()
	d.mu.Lock()
	defer d.mu.Unlock()
	c := d.counts
	c.Overflowed = socket.RecvDropped
	c.Malformed += socket.RecvTruncated // datagrams longer than any packet
	c.RecvErrors = d.recv.failed.Load()
	c.Unsendable += socket.SendDropped
	for _, q := range d.qps.All {
		c.add(q.engine.Stats())
	}
	return c
}
