package shm

import (
	"math"
	"runtime"
	"sync"
	"sync/atomic"
	"time"

	"ibverbx/verbs"
	"ibverbx/verbs/internal/nic"
)

// poller looks at the lanes of a NIC, and does what they ask for: on the goroutine of a program
// that polls, or else on that of a link whose peer has rung.
//
// The NIC's page tells the peers which. Its one word is even while a program polls. It is odd while
// the NIC sleeps, another number each time: a peer that changes something then rings once. Whoever
// goes to sleep writes the word first and then looks at the lanes once more, and a peer publishes
// first and then reads the word. All of it is done with sync/atomic, which keeps that order on
// every processor. So one of the two sees the other, and no bell is lost.
type poller struct {
	dev  *Device
	page []byte
	fd   int

	mu     sync.Mutex
	lanes  []*lane // of queue pairs, the busy ones towards the front
	picked []*lane // reused
	first  int     // the busy lane that was looked at last
	turn   int     // the same of the quiet ones
	closed bool
	awake  atomic.Bool // written with mu
	polls  uint64      // polls that keep the NIC awake
	napped uint64      // their number when nap has looked last
	nap    *time.Timer
	owes   bool // carryOut has added to the reports that are due
	offers offers
	denied atomic.Uint32 // polls that another caller kept out
}

// offers decides when a caller that polls in vain offers the processor. A program that only polls
// does so soon, because its peer may wait for that processor. One that sleeps between its polls
// does not: it gives the processor up anyway, and a kernel may put whoever yields behind all others
// that want the processor. On Linux 6.18, with four times more work than processors, two processes
// with streams moved a tenth of the bytes when they yielded.
type offers struct {
	empty  int         // polls in a row that found nothing; the poller's mu guards it
	sleeps atomic.Bool // the program has armed a queue since it last polled for sleeperPatience
}

// due counts a poll that found nothing, and reports whether the caller offers the processor, and
// whether it lets other goroutines run.
func (o *offers) due() (processor, goroutines bool) {
	o.empty++
	if o.sleeps.Load() {
		if o.empty < sleeperPatience {
			return false, false
		}
		o.sleeps.Store(false)
	}
	late := o.empty >= patience
	return late && o.empty%offerEvery == 0, late && o.empty%goroutinesEvery == 0
}

const (
	pageBytes = 4096
	// busyLanes are looked at in each poll, and quietLanes of the others in turn.
	busyLanes  = 16
	quietLanes = 16
	// passLanes bounds how many lanes a pass works on with the lock.
	passLanes = 4
	// servePasses bounds how long serve keeps its caller.
	servePasses = 64
	// allEvery-th poll in a row that finds nothing looks at all lanes: see lane.wanted.
	allEvery = 16
	// idleAfter is how long a NIC that nobody polls any more stays awake, twice at most.
	idleAfter = 200 * time.Microsecond
	// After patience polls in a row that found nothing, some microseconds, the caller may be
	// keeping the processor from the peer that it waits for, so at every offerEvery-th poll it
	// offers the processor. An offer that nobody takes costs less than a microsecond.
	patience   = 200
	offerEvery = 8
	// sleeperPatience is the same for a program that sleeps between its polls: about a millisecond.
	sleeperPatience = 1 << 14
	// Other goroutines get the processor less often: Go wakes a thread each time.
	goroutinesEvery = 16 * offerEvery
)

func (p *poller) init(d *Device) (err error) {
	p.dev = d
	if p.page, p.fd, err = newMemory(pageBytes, pageBytes, true); err != nil {
		return err
	}
	p.store(1)
	p.nap = time.AfterFunc(time.Hour, p.napOver)
	p.nap.Stop()
	return nil
}

func (p *poller) free() {
	unmapMemory(p.page)
	closeFD(p.fd)
}

func (p *poller) load() uint64   { return atomic.LoadUint64(&words(p.page)[0]) }
func (p *poller) store(v uint64) { atomic.StoreUint64(&words(p.page)[0], v) }

// help works for a caller whose completion queue is empty, unless another caller does, and polls
// the queue again. A caller that has not armed it will poll again soon.
func (p *poller) help(c *CQ, wcs []verbs.WC) (n int, err error) {
	goesOn := !c.armed.Load()
	if !p.mu.TryLock() {
		// Whoever works may need this processor to go on.
		if p.denied.Add(1)%offerEvery == 0 && !p.offers.sleeps.Load() {
			yieldThread()
		}
		return c.core.Poll(wcs)
	}
	if goesOn {
		if !p.awake.Load() && !p.closed {
			p.awake.Store(true)
			p.store(p.load() + 1)
			p.nap.Reset(idleAfter)
		}
		p.polls++
	}
	all := p.offers.empty%allEvery == allEvery-1
	news := p.pick(busyLanes+quietLanes, all)
	if !news {
		pause() // the peer may run on the other half of this core
		news = p.pick(busyLanes, all)
	}
	var offer, goroutines bool
	if news {
		p.offers.empty = 0
		p.dev.mu.Lock()
		c.core.Hold()
		p.workPicked(goesOn)
		n, err = c.core.PollLocked(wcs)
		p.dev.mu.Unlock()
	} else {
		if offer, goroutines = p.offers.due(); p.owes || p.dev.owes.Load() {
			p.owes = false
			p.dev.mu.Lock()
			p.dev.payReports(len(p.dev.owed))
			p.dev.mu.Unlock()
		}
	}
	p.mu.Unlock()
	if offer {
		yieldThread()
	}
	if goroutines {
		runtime.Gosched()
		p.dev.helpOthers()
	}
	if n == 0 && err == nil {
		return c.core.Poll(wcs)
	}
	return n, err
}

// helpOthers works for the provider's other NICs if the process has a single processor. Go polls
// the network only when it has nothing else to run, and every ten milliseconds, so bells for the
// other NICs would wait that long while this goroutine polls.
func (d *Device) helpOthers() {
	if runtime.GOMAXPROCS(0) > 1 {
		return
	}
	for _, other := range d.provider.devices {
		if other != d && other.poll.mu.TryLock() {
			other.poll.work(math.MaxInt, false)
			other.poll.mu.Unlock()
		}
	}
}

// kick has the goroutine of nap go on with what a post has left, unless a program polls.
func (p *poller) kick() {
	if p.awake.Load() {
		return
	}
	p.mu.Lock()
	if !p.closed {
		p.nap.Reset(0)
	}
	p.mu.Unlock()
}

// napOver puts the NIC to sleep if nobody has polled since it was called last.
func (p *poller) napOver() {
	p.mu.Lock()
	polled := p.polls != p.napped
	if p.napped = p.polls; polled && p.awake.Load() {
		p.nap.Reset(idleAfter)
	}
	p.mu.Unlock()
	if !polled {
		p.serve()
	}
}

// bell is called when a peer has rung. While a program polls, that one works.
func (p *poller) bell() {
	if !p.awake.Load() {
		p.serve()
	}
}

// serve works until there is nothing to do, and puts the NIC to sleep. If peers send all the time,
// it leaves the rest to the goroutine of nap.
func (p *poller) serve() {
	more := true
	for pass := 0; more && pass < servePasses; pass++ {
		p.mu.Lock()
		if more = p.work(math.MaxInt, false); !more && !p.closed {
			p.awake.Store(false) // from now on a post reports at once
			p.dev.mu.Lock()
			p.dev.payReports(len(p.dev.owed))
			p.dev.mu.Unlock()
			p.store((p.load() + 1) | 1)
			more = p.pick(math.MaxInt, true) // what has come before the peers could see it
		}
		p.mu.Unlock()
	}
	if more {
		p.mu.Lock()
		if !p.closed {
			p.nap.Reset(0)
		}
		p.mu.Unlock()
	}
}

// work does what the lanes ask for, and reports whether they did. It looks at so many of them. With
// hold some reports to the peers wait. Call it with p.mu.
func (p *poller) work(most int, hold bool) bool {
	if !p.pick(most, true) {
		return false
	}
	p.dev.mu.Lock()
	p.workPicked(hold)
	p.dev.mu.Unlock()
	return true
}

// workPicked works on the lanes that pick has collected. Call it with both locks.
func (p *poller) workPicked(hold bool) {
	d := p.dev
	due := len(d.owed)
	for i, l := range p.picked {
		switch q := l.qp; {
		case q == nil: // given up
		case l.in:
			q.served = true
			beginLanding()
			q.carryOut(hold)
			endLanding()
		default:
			beginLanding()
			q.collect()
			endLanding()
			q.send()
		}
		p.picked[i] = nil
	}
	d.payReports(due)
	d.reap()
}

// pick collects the lanes with news, and reports whether there are any. Without all it passes by
// those whose news nobody waits for.
func (p *poller) pick(most int, all bool) bool {
	p.picked = p.picked[:0]
	if p.dev.down.Load() {
		return false
	}
	n := len(p.lanes)
	busy := min(n, busyLanes)
	for i := 0; i < busy && len(p.picked) < passLanes; i++ {
		if p.first++; p.first >= busy {
			p.first = 0
		}
		p.look(p.first, all)
	}
	for i := busy; i < min(n, most) && len(p.picked) < passLanes; i++ {
		if p.turn++; p.turn >= n || p.turn < busy {
			p.turn = busy
		}
		p.look(p.turn, all)
	}
	return len(p.picked) != 0
}

// look collects a lane if it has news, and moves it towards the front.
func (p *poller) look(i int, all bool) {
	if l := p.lanes[i]; (all || l.in || l.wanted.Load()) && l.hasNews() {
		p.picked = append(p.picked, l)
		p.lanes[i], p.lanes[i/2] = p.lanes[i/2], p.lanes[i]
	}
}

// forget removes a lane.
func (p *poller) forget(l *lane) {
	for i, other := range p.lanes {
		if other == l {
			last := len(p.lanes) - 1
			p.lanes[i], p.lanes[last] = p.lanes[last], nil
			p.lanes = p.lanes[:last]
			return
		}
	}
}

// timed is the queue pair and the event that a timer belongs to.
type timed struct {
	qp   *QP
	kind timerKind
}

type timerKind uint8

const (
	timerAck timerKind = iota // the peer has answered nothing
	timerRNR                  // it has posted no receive
)

// timers are the timers of a NIC's queue pairs, guarded by the NIC's lock.
type timers struct {
	dev   *Device
	heap  nic.TimerHeap[timed]
	alarm *time.Timer
	next  int64 // when the alarm goes off
}

func (t *timers) init(d *Device) {
	t.dev, t.next = d, math.MaxInt64
	t.alarm = time.AfterFunc(time.Hour, d.tick)
	t.alarm.Stop()
}

// arm sets a timer.
func (t *timers) arm(x *nic.Timer[timed], when int64) {
	t.heap.Arm(x, when)
	t.wind()
}

// wind sets the alarm to the first timer.
func (t *timers) wind() {
	if first := t.heap.First(math.MaxInt64); first < t.next {
		t.next = first
		t.alarm.Reset(time.Duration(first - t.dev.now()))
	}
}

// tick fires the timers that are due. It first takes what has come: if the process did not run for
// a while, that may be the answers that the timers wait for.
func (d *Device) tick() {
	for range 4 {
		d.poll.mu.Lock()
		more := d.poll.work(math.MaxInt, false)
		d.poll.mu.Unlock()
		if !more {
			break
		}
	}
	d.lockAll()
	defer d.unlockAll()
	d.timers.next = math.MaxInt64
	if d.core.Closed != "" {
		return
	}
	now := d.now()
	for x := d.timers.heap.Due(now); x != nil; x = d.timers.heap.Due(now) {
		switch x.Of.kind {
		case timerAck:
			x.Of.qp.tick()
		case timerRNR:
			x.Of.qp.receiveOverdue()
		}
	}
	d.timers.wind()
}
