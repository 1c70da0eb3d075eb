package ibverbx

import (
	"context"
	"errors"
	"fmt"
	"iter"
	"time"

	"ibverbx/internal/ring"
	"ibverbx/verbs"
)

// VirtualCQ collects the completions of the virtual queue pairs that were made on it, over physical
// CQs of one or many devices. It and its virtual queue pairs are owned by one goroutine at a time;
// see [VirtualQP].
type VirtualCQ struct {
	dom     *Domain // set when NewCQ created the physical CQs
	cqs     []physicalCQ
	routes  [verbs.MaxDevices]*routeTable
	room    [verbs.MaxDevices]int // completions that the device's CQs hold beyond what is reserved
	channel *verbs.CompChannel    // nil if the physical CQs do not share one

	scratch []verbs.WC
	ready   ring.FIFO[WC] // reported, not yet polled
	touched []*VirtualQP
	vqps    []*VirtualQP
	nextNum uint32
	turn    int // physical CQ to poll first
	stale   uint64
	untold  error // a CQ's death that a caller could not be told of yet
	closed  bool
	guard   ownerGuard
}

type physicalCQ struct {
	cq     verbs.CQ
	device verbs.DeviceID
	routes *routeTable
	dead   bool
}

var errNoChannel = errors.New("the physical CQs were created without a common CompChannel: set " +
	"CQConfig.Channel")

// pollBatch is how many physical completions are taken from a CQ at a time.
const pollBatch = 64

// NewVirtualCQ makes a virtual CQ of physical ones, one a device, and owns them from then on. To
// wait for events they must all have been created with the same CompChannel, and nobody else may
// wait on that: an event wakes one.
func NewVirtualCQ(cqs ...verbs.CQ) (*VirtualCQ, error) {
	if len(cqs) == 0 {
		return nil, fmt.Errorf("ibverbx: new virtual cq: %w: no physical CQ", verbs.ErrInvalid)
	}
	c := &VirtualCQ{scratch: make([]verbs.WC, pollBatch), channel: cqs[0].Channel()}
	for _, cq := range cqs {
		dev := cq.Device().ID()
		if dev >= verbs.MaxDevices {
			return nil, fmt.Errorf("ibverbx: new virtual cq: %w: %s has index %d: must be below %d",
				verbs.ErrInvalid, cq.Device().Name(), dev, verbs.MaxDevices)
		}
		if c.routes[dev] != nil {
			// A queue pair does not say which CQ it completes on, so room could not be reserved.
			return nil, fmt.Errorf("ibverbx: new virtual cq: %w: two CQs of %s: give one a device",
				verbs.ErrInvalid, cq.Device().Name())
		}
		c.routes[dev] = &routeTable{}
		c.room[dev] = cq.Depth()
		if cq.Channel() != c.channel {
			c.channel = nil
		}
		c.cqs = append(c.cqs, physicalCQ{cq: cq, device: dev, routes: c.routes[dev]})
	}
	return c, nil
}

// sink is where a poll puts what it reports: into the caller's slice while there is room, then into
// the ready ring.
type sink struct {
	dst  []WC
	n    int
	mr   *MR // region whose holds are gathered, to give them back in one step
	held int64
}

// release gives back what a reported request held.
func (s *sink) release(r *sendReq) {
	if k := r.localKeys; k != nil && k.mr != nil {
		if k.mr != s.mr {
			s.settle()
			s.mr = k.mr
		}
		s.held++
	} else if r.scattered {
		unholdPieces(r.ext.pieces)
	}
}

func (s *sink) settle() {
	if s.held != 0 {
		s.mr.unhold(s.held)
		s.held = 0
	}
}

// slot is where the next completion to report goes. Its fields are as their last user left them.
func (c *VirtualCQ) slot(out *sink) *WC {
	if out.n < len(out.dst) {
		out.n++
		return &out.dst[out.n-1]
	}
	return c.ready.Open()
}

// Poll moves up to len(dst) completions into dst, oldest first, and says how many. What does not
// fit waits for the next call. It neither blocks nor allocates. An error concerns a physical CQ
// that has died; it is reported once, the virtual queue pairs on it fail, and completions come
// along all the same. After Close it delivers what was left and then [ErrClosed].
func (c *VirtualCQ) Poll(dst []WC) (n int, err error) {
	c.guard.enter()
	n, err = c.poll(dst, -1)
	c.guard.exit()
	return n, err
}

// PollDevice is Poll for the physical CQs of one device: for programs that serve one NIC before
// another. Completions of other devices that were collected earlier come along.
func (c *VirtualCQ) PollDevice(dev verbs.DeviceID, dst []WC) (n int, err error) {
	c.guard.enter()
	n, err = c.poll(dst, int(dev))
	c.guard.exit()
	return n, err
}

// PollOne returns the oldest completion, if there is one.
func (c *VirtualCQ) PollOne() (wc WC, ok bool, err error) {
	var dst [1]WC
	n, err := c.Poll(dst[:])
	return dst[0], n != 0, err
}

// Completions ranges over the completions there are, until there are none:
//
//	for wc, err := range cq.Completions() { ... }
//
// An error, as of Poll, comes by itself with a zero WC; the loop goes on behind it. The loop body
// may post.
func (c *VirtualCQ) Completions() iter.Seq2[WC, error] {
	return func(yield func(WC, error) bool) {
		var batch [16]WC
		for {
			n, err := c.Poll(batch[:])
			for i := range n {
				if !yield(batch[i], nil) {
					c.unpoll(batch[i+1 : n])
					c.untold = errors.Join(c.untold, err)
					return
				}
			}
			if err != nil && (!yield(WC{}, err) || c.closed) {
				return
			}
			if n == 0 && err == nil {
				return
			}
		}
	}
}

// unpoll puts completions back that a loop did not take.
func (c *VirtualCQ) unpoll(wcs []WC) {
	later := c.ready.Len()
	for i := range wcs {
		c.ready.Push(wcs[i])
	}
	for range later {
		c.ready.Push(c.ready.Pop())
	}
}

// ProcessCompletions is the direct way, for programs that poll the physical CQs themselves: it
// takes in completions of one device's CQ, in the order in which that CQ gave them, and appends
// what they complete to dst. Whoever uses it does not call Poll.
func (c *VirtualCQ) ProcessCompletions(dst []WC, dev verbs.DeviceID, wcs ...verbs.WC) []WC {
	c.guard.enter()
	out := sink{}
	if dev < verbs.MaxDevices && c.routes[dev] != nil {
		for i := range wcs {
			c.route(c.routes[dev], nil, &wcs[i], &out)
		}
	}
	c.progress(&out)
	out.settle()
	for c.ready.Len() != 0 {
		dst = append(dst, c.ready.Pop())
	}
	c.guard.exit()
	return dst
}

// poll is Poll for one device's CQs, or all with only = -1.
func (c *VirtualCQ) poll(dst []WC, only int) (int, error) {
	out := sink{dst: dst}
	for out.n < len(dst) && c.ready.Len() != 0 {
		dst[out.n] = c.ready.Pop()
		out.n++
	}
	if c.closed {
		if out.n == 0 && len(dst) != 0 {
			return 0, fmt.Errorf("ibverbx: poll: %w", ErrClosed)
		}
		return out.n, nil
	}
	if out.n == len(dst) && len(dst) != 0 {
		return out.n, nil
	}
	err := c.takeAll(&out, only)
	return out.n, err
}

// takeAll takes in what the physical CQs hold and carries on with what that frees. Once the
// caller's slice is full it takes no more than a batch from each further CQ.
func (c *VirtualCQ) takeAll(out *sink, only int) error {
	failed := c.untold
	c.untold = nil
	first := c.turn
	for i := range c.cqs {
		pc := &c.cqs[(first+i)%len(c.cqs)]
		if pc.dead || only >= 0 && int(pc.device) != only {
			continue
		}
		var last *rail // completions come in bursts of one queue pair
		// Bounded: a NIC that completes as fast as we poll must not keep the others waiting.
		for range 1 + pc.cq.Depth()/pollBatch {
			n, err := pc.cq.Poll(c.scratch)
			for j := range n {
				last = c.route(pc.routes, last, &c.scratch[j], out)
			}
			if err != nil {
				pc.dead = true
				failed = errors.Join(failed, fmt.Errorf("ibverbx: poll %s: %w", pc.cq.Device().Name(), err))
				c.loseDevice(pc.device, err)
				break
			}
			if n < len(c.scratch) {
				break
			}
			if out.n == len(out.dst) && out.n != 0 {
				c.turn = (first + i + 1) % len(c.cqs)
				break
			}
		}
	}
	c.progress(out)
	out.settle()
	return failed
}

// route hands a physical completion to the rail that it belongs to, and returns it; last is the
// rail of the completion before. One of a queue pair that was closed a moment ago is counted and
// dropped.
func (c *VirtualCQ) route(t *routeTable, last *rail, wc *verbs.WC, out *sink) *rail {
	if last == nil || last.num != wc.QPNum {
		if last = t.find(wc.QPNum); last == nil {
			c.stale++
			return nil
		}
	}
	last.vqp.process(last, wc, out)
	return last
}

// touch notes that a virtual queue pair has something to carry on with.
func (c *VirtualCQ) touch(q *VirtualQP) {
	if !q.touched {
		q.touched = true
		c.touched = append(c.touched, q)
	}
}

// progress lets every touched virtual queue pair carry on. One that must try again is touched anew,
// for the next time.
func (c *VirtualCQ) progress(out *sink) {
	n := len(c.touched)
	for i := range n {
		q := c.touched[i]
		q.touched = false
		q.progress(out)
	}
	c.touched = c.touched[:copy(c.touched, c.touched[n:])]
}

// FailDevice is for programs that poll the physical CQs themselves: it says that a device's CQ has
// died with err. The virtual queue pairs on it fail; [VirtualCQ.ProcessCompletions] reports what
// they had outstanding.
func (c *VirtualCQ) FailDevice(dev verbs.DeviceID, err error) {
	c.guard.enter()
	c.loseDevice(dev, err)
	c.guard.exit()
}

// loseDevice ends the virtual queue pairs that have a rail on a device whose CQ has died: their
// completions will not come.
func (c *VirtualCQ) loseDevice(dev verbs.DeviceID, err error) {
	for _, q := range c.vqps {
		if q.localDevs&(1<<dev) == 0 {
			continue
		}
		f := noRequest(err)
		f.Device = c.deviceName(dev)
		q.fail(nil, f)
		q.inflight = 0
		_ = q.closeRails() // the device is lost already
		q.abandon()
		c.touch(q)
	}
}

// deviceName is the name of a device of the physical CQs.
func (c *VirtualCQ) deviceName(dev verbs.DeviceID) string {
	for i := range c.cqs {
		if c.cqs[i].device == dev {
			return c.cqs[i].cq.Device().Name()
		}
	}
	return ""
}

// retryInterval is how often Wait tries again what a NIC has refused for now. There may be no
// completion to wake it.
const retryInterval = time.Millisecond

// Wait blocks until there are completions to poll, or until ctx ends; it then returns ctx's error.
// It burns no core.
func (c *VirtualCQ) Wait(ctx context.Context) error {
	c.guard.enter()
	err := c.wait(ctx)
	c.guard.exit()
	return err
}

func (c *VirtualCQ) wait(ctx context.Context) error {
	if c.channel == nil && !c.closed {
		return fmt.Errorf("ibverbx: wait: %w: %w", verbs.ErrNotSupported, errNoChannel)
	}
	if c.closed {
		if c.ready.Len() == 0 {
			return fmt.Errorf("ibverbx: wait: %w", ErrClosed)
		}
		return nil
	}
	for {
		// Arm, poll once more, sleep: in any other order a completion that comes in between wakes
		// nobody.
		for armed := range 2 {
			if err := c.takeAll(&sink{}, -1); err != nil {
				return err
			}
			if c.ready.Len() != 0 {
				return nil
			}
			if armed == 0 {
				if err := c.arm(); err != nil {
					return err
				}
			}
		}
		if err := c.sleep(ctx); err != nil {
			return err
		}
	}
}

// Arm asks for an event on [VirtualCQ.Events] when something new happens: for programs that wait
// for several virtual CQs, or for something else besides, in a select. The order is Arm, Poll, and
// only if that brought nothing the select. An event is a reason to poll, and need not bring a
// completion. A program that waits so must poll every millisecond while [CQStats.Retrying] is not
// 0, as Wait does: a NIC has refused work for now, or a virtual queue pair that has failed lingers.
func (c *VirtualCQ) Arm() error {
	c.guard.enter()
	defer c.guard.exit()
	if c.channel == nil {
		return fmt.Errorf("ibverbx: arm: %w: %w", verbs.ErrNotSupported, errNoChannel)
	}
	if c.closed {
		return fmt.Errorf("ibverbx: arm: %w", ErrClosed)
	}
	return c.arm()
}

// Events is where the events arrive that Arm asks for; nil if the physical CQs have no common
// CompChannel.
func (c *VirtualCQ) Events() <-chan struct{} {
	if c.channel == nil {
		return nil
	}
	return c.channel.Events()
}

func (c *VirtualCQ) arm() error {
	alive := 0
	for i := range c.cqs {
		if c.cqs[i].dead {
			continue
		}
		alive++
		if err := c.cqs[i].cq.Arm(false); err != nil {
			return fmt.Errorf("ibverbx: wait: arm %s: %w", c.cqs[i].cq.Device().Name(), err)
		}
	}
	if alive == 0 {
		return fmt.Errorf("ibverbx: wait: %w: every physical CQ has died", verbs.ErrDeviceGone)
	}
	return nil
}

func (c *VirtualCQ) sleep(ctx context.Context) error {
	if err := ctx.Err(); err != nil {
		return err // whatever else has happened: a select would toss a coin
	}
	if len(c.touched) == 0 {
		return c.channel.Wait(ctx)
	}
	timer := time.NewTimer(retryInterval)
	defer timer.Stop()
	select {
	case <-c.channel.Events():
	case <-timer.C:
	case <-ctx.Done():
		return ctx.Err()
	}
	return nil
}

// doze sleeps until there may be something new to poll, or until ctx ends. Armed says that an event
// will tell.
func (c *VirtualCQ) doze(ctx context.Context, armed bool) {
	if armed {
		_ = c.sleep(ctx) // the caller looks at ctx
		return
	}
	timer := time.NewTimer(pollInterval)
	defer timer.Stop()
	select {
	case <-timer.C:
	case <-ctx.Done():
	}
}

// Devices lists the devices of the physical CQs.
func (c *VirtualCQ) Devices() []verbs.Device {
	var devs []verbs.Device
	for i := range c.cqs {
		devs = append(devs, c.cqs[i].cq.Device())
	}
	return devs
}
