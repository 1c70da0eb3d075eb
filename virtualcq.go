package ibverbx

import (
	"errors"
	"fmt"
	"reflect"
	"slices"
	"sync"
	"sync/atomic"
	"weak"

	"ibverbx/internal/guard"
	"ibverbx/internal/ring"
	"ibverbx/verbs"
)

// VirtualCQ collects the completions of its virtual queue pairs, over physical CQs of one or many
// devices. It and its virtual queue pairs are owned by one goroutine at a time; see [VirtualQP].
//
// A VirtualCQ must not be copied.
type VirtualCQ struct {
	_ guard.NoCopy

	dom     *Domain // set when NewCQ created the physical CQs
	cqs     []physicalCQ
	routes  [verbs.MaxDevices]*routeTable
	room    [verbs.MaxDevices]int // completions that the device's CQ holds beyond what is reserved
	channel *verbs.CompChannel    // nil if the physical CQs do not share one

	scratch []verbs.WC
	one     [1]WC // where PollOne polls to
	// The virtual queue pairs share memory that they need only during a call: batches for several
	// queue pairs, one to translate requests of single queue pairs, one for receives.
	batches    batchPool
	translated sendBatch
	recvs      recvBatch
	ready      ring.FIFO[WC] // reported, not yet polled
	touched    []*VirtualQP
	vqps       []*VirtualQP
	num        uint32
	nextCQ     int // the physical CQ that is polled first
	stale      uint64
	// pendingErr is returned by the next poll: a physical CQ died in a call that could not return
	// it.
	pendingErr error
	ports      portWatch
	later      later
	closed     bool
	guard      guard.Owner

	snapshots snapshots
	recorder  *recorder // of the observers of its virtual queue pairs; nil while none has one
	// routesObserved says that completions are routed one by one for the observers: a virtual queue
	// pair has Config.Trace, or one over a single queue pair Config.Timing.
	routesObserved bool
	gone           Stats // the counters of virtual queue pairs that were closed
}

type physicalCQ struct {
	cq     verbs.CQ
	routes *routeTable
	// maxPolls is the most batches of one poll: as many as the CQ holds, and one. A NIC that
	// completes as fast as this end polls must not keep the others waiting.
	maxPolls int
	device   verbs.DeviceID
	dead     bool
}

// pollBatch is how many physical completions are taken from a CQ at a time.
const pollBatch = 64

// NewVirtualCQ makes a virtual CQ of physical ones, one per device, and owns them until Close. It
// refuses one that belongs to another virtual CQ with [verbs.ErrBusy]. To wait for events, create
// all of them with the same CompChannel, and let nothing else wait on it: an event wakes one
// waiter.
func NewVirtualCQ(cqs ...verbs.CQ) (*VirtualCQ, error) {
	if len(cqs) == 0 {
		return nil, fmt.Errorf("ibverbx: new virtual cq: %w: no physical CQ", verbs.ErrInvalid)
	}
	if i := slices.Index(cqs, nil); i >= 0 {
		return nil, fmt.Errorf("ibverbx: new virtual cq: %w: CQ %d of %d is nil", verbs.ErrInvalid, i,
			len(cqs))
	}
	c := &VirtualCQ{num: lastVirtualCQ.Add(1), scratch: make([]verbs.WC, pollBatch),
		channel: cqs[0].Channel()}
	for _, cq := range cqs {
		dev := cq.Device().ID()
		if dev >= verbs.MaxDevices {
			return nil, fmt.Errorf("ibverbx: new virtual cq: %w: %s has index %d: must be below %d",
				verbs.ErrInvalid, cq.Device().Name(), dev, verbs.MaxDevices)
		}
		if c.routes[dev] != nil {
			// A queue pair does not say which CQ it completes on, so room cannot be reserved.
			return nil, fmt.Errorf("ibverbx: new virtual cq: %w: two CQs of %s: give one a device",
				verbs.ErrInvalid, cq.Device().Name())
		}
		c.routes[dev] = &routeTable{}
		c.room[dev] = cq.Depth()
		if cq.Channel() != c.channel {
			c.channel = nil
		}
		c.cqs = append(c.cqs, physicalCQ{cq: cq, device: dev, routes: c.routes[dev],
			maxPolls: 1 + cq.Depth()/pollBatch})
	}
	if err := c.claim(); err != nil {
		return nil, fmt.Errorf("ibverbx: new virtual cq: %w", err)
	}
	return c, nil
}

// fit makes the shared batches fit the rails of a new virtual queue pair.
func (c *VirtualCQ) fit(rails *railSet) {
	for _, r := range rails.all {
		c.batches.fit(r.maxSGE)
		c.recvs.fit(r.maxRecvSGE)
	}
	if c.translated.width < c.batches.width {
		c.translated = newSendBatch(postBatch, c.batches.width)
	}
}

// lastVirtualQP and lastVirtualCQ are the last assigned numbers. Beside cqOwners they are the
// package's only global state: numbers distinguish log lines of one process, and a virtual CQ does
// not know the others. Nothing depends on a number's value.
//
//nolint:gochecknoglobals // unique in the process
var lastVirtualQP, lastVirtualCQ atomic.Uint32

// Num returns the virtual CQ's number, which is unique in the process.
func (c *VirtualCQ) Num() uint32 { return c.num }

// error names the virtual CQ in an error of one of its methods.
func (c *VirtualCQ) error(op string, err error) error {
	return fmt.Errorf("ibverbx: %s virtual cq %d: %w", op, c.num, err)
}

// deviceError is error for a physical CQ's error: it also names the device.
func (c *VirtualCQ) deviceError(op string, pc *physicalCQ, err error) error {
	return c.error(op, fmt.Errorf("%s: %w", pc.cq.Device().Name(), err))
}

// attach registers a virtual queue pair's rails, and reserves room for all their possible
// outstanding completions.
func (c *VirtualCQ) attach(q *VirtualQP) error {
	need := [verbs.MaxDevices]int{}
	for i, r := range q.send.rails.all {
		refuse := func(err error, why string) error {
			return fmt.Errorf("ibverbx: new virtual qp: %w: queue pair %d of %s %s", err, r.num,
				r.qp.Device().Name(), why)
		}
		t := c.routes[r.device]
		switch {
		case t == nil:
			return refuse(verbs.ErrInvalid, fmt.Sprintf("is on a device of which virtual CQ %d has no CQ",
				c.num))
		case r.qp.Device() != c.physical(verbs.DeviceID(r.device)).cq.Device():
			return refuse(verbs.ErrInvalid, fmt.Sprintf("is of another provider than %s of virtual CQ %d, "+
				"which has the same index: its completions would never come",
				c.deviceName(verbs.DeviceID(r.device)), c.num))
		case slices.ContainsFunc(q.send.rails.all[:i], func(o *rail) bool {
			return o.device == r.device &&
				o.num == r.num
		}):
			return refuse(verbs.ErrInvalid, "is given twice")
		case t.find(r.num) != nil:
			return refuse(verbs.ErrInvalid, "belongs to a virtual QP already")
		}
		if state := r.qp.State(); state != verbs.StateReset {
			return refuse(verbs.ErrState, fmt.Sprintf("is in %v: must be in RESET", state))
		}
		need[r.device] += r.completions()
	}
	for dev, n := range need {
		if n > c.room[dev] {
			return fmt.Errorf("ibverbx: new virtual qp: %w: its queue pairs on device %d may have %d "+
				"completions outstanding, virtual CQ %d has room for %d: make its CQ deeper, or lower "+
				"MaxMsgCntPerQP and Credits",
				verbs.ErrInvalid, dev, n, c.num, c.room[dev])
		}
	}
	for dev, n := range need {
		c.room[dev] -= n
	}
	q.num = lastVirtualQP.Add(1)
	for _, r := range q.send.rails.all {
		c.routes[r.device].add(r.num, r)
	}
	c.vqps = append(c.vqps, q)
	return nil
}

// detach removes a virtual queue pair.
func (c *VirtualCQ) detach(q *VirtualQP) {
	last := qpStats(q)
	c.gone.AddCounters(&last)
	for _, r := range q.send.rails.all {
		c.routes[r.device].remove(r.num, r)
		c.room[r.device] += r.completions()
	}
	for i := range c.vqps {
		if c.vqps[i] == q {
			c.vqps = append(c.vqps[:i], c.vqps[i+1:]...)
			c.later.forget(q)
			c.routesObserved = slices.ContainsFunc(c.vqps, routesObserved)
			return
		}
	}
}

// loseDevice handles the loss of a device whose CQ has died, for all virtual queue pairs with a
// rail there: those that cannot continue without it end. It reports whether all survived.
func (c *VirtualCQ) loseDevice(dev verbs.DeviceID, err error) (survived bool) {
	failed := 0
	for _, q := range c.vqps {
		if q.send.rails.localDevs&(1<<dev) == 0 {
			continue
		}
		if q.failover.loseDevice(uint8(dev), err) {
			survived = true
			c.touch(q)
			continue
		}
		failed++
		f := noRequest(err)
		f.Device = c.deviceName(dev)
		q.fail(nil, 0, f)
		_ = q.closeRails() // the device is lost already
		q.abandon()
		c.touch(q)
	}
	return survived && failed == 0
}

// deviceName returns the name of a device, which must have one of the physical CQs.
func (c *VirtualCQ) deviceName(dev verbs.DeviceID) string {
	return c.physical(dev).cq.Device().Name()
}

// deviceList writes the devices of the physical CQs as "0, 3".
func (c *VirtualCQ) deviceList() string {
	set := uint64(0)
	for i := range c.cqs {
		set |= 1 << c.cqs[i].device
	}
	return deviceList(set)
}

// physical returns the physical CQ of a device, or nil.
func (c *VirtualCQ) physical(dev verbs.DeviceID) *physicalCQ {
	for i := range c.cqs {
		if c.cqs[i].device == dev {
			return &c.cqs[i]
		}
	}
	return nil
}

// Close closes the virtual queue pairs that are still open on the virtual CQ, and the physical CQs.
// You can still poll the remaining completions, flushed ones included.
func (c *VirtualCQ) Close() error {
	c.enter()
	err := c.close()
	c.exit()
	return err
}

func (c *VirtualCQ) close() error {
	if c.closed {
		return c.error("close", ErrClosed)
	}
	var flushing []*passThrough
	for _, q := range c.vqps {
		if q.pass != nil && q.line.state != verbs.StateReset {
			q.startFlush()
			flushing = append(flushing, q.pass)
		}
	}
	awaitFlushes(flushing)
	var errs []error
	for len(c.vqps) != 0 {
		c.vqps[0].ownsCQ = false // it is being closed here
		errs = append(errs, c.vqps[0].close())
	}
	for i := range c.cqs {
		if err := c.cqs[i].cq.Close(); err != nil {
			errs = append(errs, c.deviceError("close", &c.cqs[i], err))
		}
	}
	c.ports.end()
	c.later.end()
	c.disclaim()
	c.closed = true
	c.takeSnapshot(true)
	errs = append(errs, c.pendingErr) // a CQ had died before
	c.pendingErr = nil
	if c.dom != nil {
		c.dom.release()
	}
	return errors.Join(errs...)
}

// Devices lists the devices of the physical CQs.
func (c *VirtualCQ) Devices() []verbs.Device {
	var devs []verbs.Device
	for i := range c.cqs {
		devs = append(devs, c.cqs[i].cq.Device())
	}
	return devs
}

// CQs returns the physical CQs, in the order of [VirtualCQ.Devices]: for queries, and for programs
// that poll them and hand the completions to [VirtualCQ.ProcessCompletions], instead of calling
// Poll.
func (c *VirtualCQ) CQs() []verbs.CQ {
	var cqs []verbs.CQ
	for i := range c.cqs {
		cqs = append(cqs, c.cqs[i].cq)
	}
	return cqs
}

// cqOwners has the virtual CQ that owns each physical CQ: two owners would take each other's
// completions. It is keyed by the address of the physical CQ and keeps neither alive: while the
// owner lives, so does its physical CQ, and nothing else has that address; an entry of an owner
// that was abandoned without Close is void.
//
//nolint:gochecknoglobals // virtual CQs know nothing of each other
var cqOwners = struct {
	sync.Mutex
	of map[uintptr]weak.Pointer[VirtualCQ]
}{of: map[uintptr]weak.Pointer[VirtualCQ]{}}

// claim makes c the owner of all its physical CQs, or of none if one has another owner.
func (c *VirtualCQ) claim() error {
	cqOwners.Lock()
	defer cqOwners.Unlock()
	for i := range c.cqs {
		if other := cqOwners.of[cqAddr(c.cqs[i].cq)].Value(); other != nil {
			return fmt.Errorf("%w: the CQ of %s belongs to virtual CQ %d already: close that first, or "+
				"create "+
				"another CQ", verbs.ErrBusy, c.cqs[i].cq.Device().Name(), other.num)
		}
	}
	for i := range c.cqs {
		if addr := cqAddr(c.cqs[i].cq); addr != 0 {
			cqOwners.of[addr] = weak.Make(c)
		}
	}
	return nil
}

// disclaim ends c's ownership of its physical CQs.
func (c *VirtualCQ) disclaim() {
	cqOwners.Lock()
	defer cqOwners.Unlock()
	for i := range c.cqs {
		delete(cqOwners.of, cqAddr(c.cqs[i].cq))
	}
}

// cqAddr returns the address of a physical CQ; 0 if its type has none, such as a struct that wraps
// another CQ. The ownership of such a CQ is unknown.
func cqAddr(cq verbs.CQ) uintptr {
	v := reflect.ValueOf(cq)
	if v.Kind() != reflect.Pointer || v.Type().Elem().Size() == 0 {
		return 0
	}
	return v.Pointer()
}

// Stats takes a snapshot. It follows the ownership rule of [VirtualCQ].
func (c *VirtualCQ) Stats() CQStats {
	c.enter()
	defer c.exit()
	return cqStats(c)
}

// Total returns the sums over the virtual queue pairs, closed ones included: see [Stats.Add]. It
// follows the ownership rule of [VirtualCQ]; [VirtualCQ.Snapshot] does not.
func (c *VirtualCQ) Total() Stats {
	c.enter()
	defer c.exit()
	var total Stats
	total.Add(&c.gone)
	for _, q := range c.vqps {
		one := qpStats(q)
		total.Add(&one)
	}
	return total
}

// cqStats is VirtualCQ.Stats, within a call.
func cqStats(c *VirtualCQ) CQStats {
	return CQStats{Num: c.num, VirtualQPs: len(c.vqps), Ready: c.ready.Len(), ReadyRing: c.ready.Cap(),
		Retrying: len(c.touched), StaleEvents: c.stale}
}

// routeTable finds the rail of a physical queue pair by its number, 24 bits, on one device: three
// array look-ups, where a map costs 5 to 24 ns. Numbers come in runs, so few pages are ever made:
// some 6 KiB for a table with one run.
type routeTable struct {
	pages [256]*routePage
}

type routePage struct {
	leaves [256]*routeLeaf
	used   int
}

type routeLeaf struct {
	rails [256]*rail
	used  int
}

// find returns the rail of a queue pair, or nil.
func (t *routeTable) find(qpNum uint32) *rail {
	if page := t.pages[qpNum>>16&0xff]; page != nil {
		if leaf := page.leaves[qpNum>>8&0xff]; leaf != nil {
			return leaf.rails[qpNum&0xff]
		}
	}
	return nil
}

func (t *routeTable) add(qpNum uint32, r *rail) {
	page := &t.pages[qpNum>>16&0xff]
	if *page == nil {
		*page = &routePage{}
	}
	leaf := &(*page).leaves[qpNum>>8&0xff]
	if *leaf == nil {
		*leaf = &routeLeaf{}
		(*page).used++
	}
	(*leaf).rails[qpNum&0xff] = r
	(*leaf).used++
}

// remove removes a queue pair, if it is still r's.
func (t *routeTable) remove(qpNum uint32, r *rail) {
	if t.find(qpNum) != r || r == nil {
		return
	}
	page := t.pages[qpNum>>16&0xff]
	leaf := page.leaves[qpNum>>8&0xff]
	leaf.rails[qpNum&0xff] = nil
	if leaf.used--; leaf.used != 0 {
		return
	}
	page.leaves[qpNum>>8&0xff] = nil
	if page.used--; page.used == 0 {
		t.pages[qpNum>>16&0xff] = nil
	}
}
