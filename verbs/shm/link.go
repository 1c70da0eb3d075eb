package shm

import (
	"errors"
	"fmt"
	"sync/atomic"
	"time"

	"ibverbx/verbs"
)

// A link is a socket between two NICs. The end that dials sends the memory of its lanes over it,
// and both ring on it when the other sleeps. Its end is how the death of a process is known: two
// NICs whose queue pairs send to each other have two links, one in each direction, which need not
// know of each other.
//
// Everything in a link but conn is guarded by the NIC's lock.
type link struct {
	dev    *Device
	peer   verbs.GID
	dialed bool // by this end
	conn   *conn
	page   []byte // the peer's: see poller; nil until both ends have said hello
	rung   uint64 // the word of the page for which this end has rung last
	ended  bool   // the peer is gone, or this end has hung up
	// gone is set once the peer has closed its end, or has nothing of this end any more: none of
	// its copies is under way.
	gone   bool
	nextID uint64              // of the next lane that this end makes
	lanes  map[uint64]*lane    // those of the peer
	shown  map[*arena]struct{} // arenas of this end that the peer has
	// arenas are those of the peer, by their numbers, and mappings changes whenever they do.
	arenas   map[uint64][]byte
	mappings uint64

	// What waits to be sent, and whether a goroutine sends it.
	notes   []note
	sending bool
}

const (
	// mostLinks is the most links that peers have dialed.
	mostLinks = 512
	// mostLanes is the most lanes of a link, and mostMapped that of all links: a system gives a
	// process some 65,000 mappings, and Go's heap needs some too.
	mostLanes  = 4096
	mostMapped = 16384
	// mostNotes is the most messages that wait for a peer that does not read: a lane's has a file
	// descriptor.
	mostNotes = 2 * mostLanes
	// helloTime is how long a peer may take to introduce itself.
	helloTime = 10 * time.Second
	// afterError is a pause that prevents spinning.
	afterError = 10 * time.Millisecond
)

var (
	errEnd    = errors.New("the process has died, or has closed its NICs")
	errNobody = errors.New("the process that had this NIC is gone, or it meets elsewhere: in another " +
		"network namespace or another Config.Dir")
	errBusy = errors.New("the peer is busy")
)

// sendHello introduces this end, and passes its page.
func (l *link) sendHello(c *conn) error {
	var b [messageSize]byte
	(&note{kind: noteHello, from: l.dev.gid, to: l.peer}).encode(&b)
	return c.send(b[:], l.dev.poll.fd)
}

// recvHello waits until the peer introduces itself, and maps its page.
func (l *link) recvHello(c *conn) (from verbs.GID, page []byte, err error) {
	b, fd, err := c.recv()
	if err != nil {
		return from, nil, err
	}
	defer closeFD(fd)
	var n note
	switch err := n.decode(b); {
	case err != nil:
		return from, nil, err
	case n.kind != noteHello || n.to != l.dev.gid || fd < 0:
		return from, nil, errors.New("the peer does not introduce itself")
	}
	if why := checkPlace(l.dev.gid, n.from); why != "" {
		return from, nil, errors.New(why)
	}
	page, err = mapMemory(fd, pageBytes, false)
	return n.from, page, err
}

// checkUser refuses the other end of a socket if its user may not connect.
func (d *Device) checkUser(c *conn) error {
	uid, err := c.peerUID()
	if err != nil || uid == userID() || d.cfg.Allow != nil && d.cfg.Allow(uid) {
		return err
	}
	return fmt.Errorf("it belongs to user %d, and this process to user %d: see shm.Config.Allow", uid,
		userID())
}

// linkTo returns the link to a peer, and dials it if there is none. Call it locked.
func (d *Device) linkTo(peer verbs.GID) *link {
	if l := d.out[peer]; l != nil && !l.ended {
		return l
	}
	l := &link{dev: d, peer: peer, dialed: true, sending: true}
	d.out[peer] = l
	d.workers.Go(func() {
		_ = l.run() // CheckPath has said what can be said before
		d.end(l)
	})
	return l
}

// run dials, and hears the peer until its end.
func (l *link) run() error {
	d := l.dev
	c, err := dial(d.cfg.Dir, l.peer)
	for ; err == errBusy; c, err = dial(d.cfg.Dir, l.peer) { //nolint:errorlint // as dial returns it
		d.mu.Lock()
		ended := l.ended
		d.mu.Unlock()
		if ended {
			return errEnd
		}
		time.Sleep(time.Millisecond)
	}
	if err != nil {
		return err
	}
	if !l.take(c) {
		return errEnd
	}
	if err := d.checkUser(c); err != nil {
		return err
	}
	if err := l.sendHello(c); err != nil {
		return err
	}
	from, page, err := l.recvHello(c)
	if err == nil && from != l.peer {
		unmapMemory(page)
		err = errNobody
	}
	if err != nil {
		return err
	}
	d.mu.Lock()
	l.page = page
	d.mu.Unlock()
	d.workers.Go(l.sendNotes)
	return l.hear(c)
}

// take keeps the socket for hangUp; it closes it, and returns false, if this end has hung up.
func (l *link) take(c *conn) bool {
	l.dev.mu.Lock()
	defer l.dev.mu.Unlock()
	if l.ended {
		c.close()
		return false
	}
	l.conn = c
	return true
}

// meet lets peers in until the meeting place is closed.
func (d *Device) meet() {
	for {
		c, err := d.meeting.accept()
		d.mu.Lock()
		closed := d.core.Closed != ""
		d.mu.Unlock()
		switch {
		case closed:
			if err == nil {
				c.close()
			}
			return
		case err != nil:
			time.Sleep(afterError) // there is no file descriptor left, for example
		default:
			d.welcome(c)
		}
	}
}

// welcome makes a link of a peer's socket.
func (d *Device) welcome(c *conn) {
	l := &link{dev: d, lanes: map[uint64]*lane{}, conn: c}
	d.mu.Lock()
	for len(d.in) >= mostLinks && d.isGreeting() && d.core.Closed == "" {
		d.mu.Unlock()
		time.Sleep(time.Millisecond) // who has hung up makes room soon, who is silent after helloTime
		d.mu.Lock()
	}
	full := len(d.in) >= mostLinks || d.core.Closed != ""
	if !full {
		d.in[l] = struct{}{}
	}
	d.mu.Unlock()
	if full || d.checkUser(c) != nil {
		d.end(l)
		return
	}
	d.workers.Go(func() {
		_ = l.greet(c) // the peer sees the end
		d.end(l)
	})
}

// isGreeting reports whether a peer that has dialed has not introduced itself yet. Call it locked.
func (d *Device) isGreeting() bool {
	for l := range d.in {
		if l.page == nil {
			return true
		}
	}
	return false
}

// greet exchanges introductions with a peer that has dialed, and hears it until its end.
func (l *link) greet(c *conn) error {
	c.setDeadline(time.Now().Add(helloTime))
	from, page, err := l.recvHello(c)
	if err != nil {
		return err
	}
	c.setDeadline(time.Time{})
	l.dev.mu.Lock()
	l.peer, l.page = from, page
	l.dev.mu.Unlock()
	if err := l.sendHello(c); err != nil {
		return err
	}
	return l.hear(c)
}

// hear handles the messages of the peer, until it has none any more or breaks the protocol.
func (l *link) hear(c *conn) error {
	for {
		b, fd, err := c.recv()
		if err != nil {
			l.dev.mu.Lock()
			l.gone = !l.ended
			l.dev.mu.Unlock()
			return err
		}
		if len(b) == 1 && fd < 0 {
			l.dev.poll.bell()
			continue
		}
		var n note
		err = n.decode(b)
		switch {
		case err != nil:
		case l.dialed && n.kind == noteArena:
			err = l.mapArena(&n, fd)
		case l.dialed && n.kind == noteArenaGone:
			l.unmapArena(n.id)
		case l.dialed:
			err = errors.New("the peer sends what it must not")
		case n.kind == noteLane:
			err = l.addLane(&n, fd)
		case n.kind == noteDrop:
			l.dropLane(n.id)
		}
		closeFD(fd)
		if err != nil {
			return err
		}
	}
}

// addLane takes a lane of the peer. Its queue pair may not be ready for it yet.
func (l *link) addLane(n *note, fd int) error {
	if fd < 0 {
		return nil // this process has no descriptor left; the requests over the lane will time out
	}
	mem, err := mapMemory(fd, laneBytes, true)
	if err != nil {
		return err
	}
	d := l.dev
	d.lockAll()
	defer d.unlockAll()
	if l.ended || l.lanes[n.id] != nil || len(l.lanes) >= mostLanes || d.mapped >= mostMapped {
		unmapMemory(mem)
		return errors.New("the peer has too many queue pairs, or names one twice")
	}
	x := newLane(mem, l)
	x.in, x.id, x.src, x.dst, x.psn = true, n.id, n.src, n.dst, n.psn
	l.lanes[n.id] = x
	d.mapped++
	if q := d.qps.Find(n.dst); q != nil && q.fits(x) {
		q.attach(x)
	}
	return nil
}

// adopt attaches the lane that waits for a queue pair, if it has come.
func (d *Device) adopt(q *QP) {
	for l := range d.in {
		if l.peer != q.core.Attr.AH.DGID {
			continue
		}
		for _, x := range l.lanes {
			if x.qp == nil && !x.retired && x.dst == q.core.Num && q.fits(x) {
				q.attach(x)
				return
			}
		}
	}
}

// dropLane gives up a lane that the peer does not use any more, after what it has published.
func (l *link) dropLane(id uint64) {
	d := l.dev
	d.lockAll()
	defer d.unlockAll()
	if x := l.lanes[id]; x != nil {
		d.finish(x)
	}
}

// finish carries out what is published in a lane of the peer, and gives it up. Call it with both
// locks.
func (d *Device) finish(x *lane) {
	if q := x.qp; q != nil {
		q.served = true
		beginLanding()
		for end := x.cursor + ringSlots; !d.down.Load() && q.in.lane == x && q.core.Receptive() &&
			x.hasNext() && x.cursor < end; {
			q.carryOut(false)
		}
		endLanding()
		if q.in.lane == x {
			q.in.lane = nil
		}
	}
	d.retire(x)
}

// end ends a link whose peer is gone, and the connections over it.
func (d *Device) end(l *link) {
	d.lockAll()
	defer d.unlockAll()
	l.hangUp()
	if l.dialed {
		if d.out[l.peer] == l {
			delete(d.out, l.peer)
		}
	}
	delete(d.in, l)
	for _, q := range d.qps.All {
		in, out := q.in.lane, q.out.lane
		if (in == nil || in.link != l) && (out == nil || out.link != l) {
			continue
		}
		// A peer that has given up its queue pair in order may go.
		inOrder := in != nil && in.load(wordLeft) != 0 ||
			out != nil && laneState(out.load(wordState)&stateMask) == laneClosed
		if in != nil && in.link == l {
			d.finish(in)
		}
		q.catchUp()
		if q.core.Receptive() && (!inOrder || q.core.SQ.Acked != q.core.SQ.Posted) {
			q.die()
		}
	}
	var holders []holder
	for _, x := range l.lanes {
		d.retire(x) // those that wait
		if x.isHeld() {
			holders = append(holders, x.holder())
		}
	}
	if len(holders) != 0 { // this end has hung up
		d.workers.Go(func() { d.await(holders) })
	}
	if l.page != nil {
		unmapMemory(l.page)
		l.page = nil
	}
	for _, mem := range l.arenas {
		unmapMemory(mem)
	}
	l.arenas = nil
	l.mappings++
}

// hangUp closes the socket. Call it locked.
func (l *link) hangUp() {
	l.ended = true
	if l.conn != nil {
		l.conn.close()
		l.conn = nil
	}
	for _, n := range l.notes {
		closeFD(n.fd)
	}
	l.notes = nil
}

// ring wakes the peer if it sleeps and has not been rung for that already. Call it locked, after
// what the peer is to see.
func (l *link) ring() {
	if l.page == nil || l.ended {
		return
	}
	if word := atomic.LoadUint64(&words(l.page)[0]); word&1 != 0 && word != l.rung {
		l.rung = word
		l.conn.bell()
	}
}

// tell sends a message in the background. It keeps fd. Call it locked.
func (l *link) tell(n note, fd int) {
	n.fd = fd
	if !l.ended && len(l.notes) == mostNotes {
		l.hangUp() // hear sees it, and ends the connections
	}
	if l.ended {
		closeFD(fd)
		return
	}
	l.notes = append(l.notes, n)
	if !l.sending {
		l.sending = true
		l.dev.workers.Go(l.sendNotes)
	}
}

// sendNotes sends the messages that wait.
func (l *link) sendNotes() {
	d := l.dev
	var b [messageSize]byte
	for {
		d.mu.Lock()
		if len(l.notes) == 0 || l.ended {
			l.sending = false
			d.mu.Unlock()
			return
		}
		n, c := l.notes[0], l.conn
		l.notes = l.notes[1:]
		d.mu.Unlock()
		n.encode(&b)
		err := c.send(b[:], n.fd)
		closeFD(n.fd)
		if err != nil {
			return // hear sees the end too
		}
	}
}
