package failover

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"time"

	"ibverbx/internal/wrid"
	"ibverbx/verbs"
)

// world is a connection of two ends, whose NICs are those of nic_test.go. It is stepped at random.
// A rail is a pair of queues, one in each direction, in which messages and plain data keep their
// order and are lost with the rail. Between rails there is no order.
type world struct {
	rng  *rand.Rand
	now  time.Time
	ends [2]*end
	psn  uint16
	calm bool // nothing fails any more
	// unused says that nobody sends or receives on the rails for SENDs, until it is calm.
	unused bool
}

// end is one end with its queue pairs.
type end struct {
	w        *world
	id       int
	p        *Protocol
	rails    []*queuePair
	next     uint64 // the number of the next work request
	works    map[uint64]*work
	failed   error
	mayFail  bool // a CQ has died: messages that were acknowledged may be lost
	serving  [Roles]int
	received [Roles][]uint64 // the messages of the peer, by role, in the order in which they came
}

// work is a work request, as its end and the peer know it.
type work struct {
	role         Role
	message      bool
	atomic, read bool
	done         bool // acknowledged, or ended
	unknown      bool // ended as an atomic whose answer is lost
	posted       bool // on a queue pair, once at least
	landed       int  // how often the peer's NIC has carried it out
	handled      int  // how often the peer's program has seen it, if it is a message
}

const worldRecvs = 3

func newWorld(seed uint64) *world {
	w := &world{rng: rand.New(rand.NewPCG(seed, 1)), now: time.Unix(0, 0)}
	roles := []Role{Data, Data, Sends, Sends, Sends}
	if w.rng.IntN(2) == 0 {
		roles = []Role{Data, Data, Data, Notifications, Sends, Sends, Notifications}
	}
	leader := w.rng.IntN(2)
	w.unused = w.rng.IntN(2) == 0
	for i := range w.ends {
		e := &end{w: w, id: i, p: New(roles), works: map[uint64]*work{}, next: 1}
		c := Config{Leader: i == leader, Failback: time.Millisecond, Timeout: time.Hour,
			Serving: [Roles]int{-1, -1, -1}}
		for at, role := range roles {
			if role != Data && c.Serving[role] < 0 {
				c.Serving[role] = at
			}
			q := &queuePair{rail: e.p.Rail(at), up: true}
			q.log.Fit(256)
			e.rails = append(e.rails, q)
		}
		e.p.Begin(c)
		e.serving = c.Serving
		w.ends[i] = e
	}
	for _, e := range w.ends {
		for i := range e.rails {
			e.postRecvs(i)
		}
	}
	return w
}

// uses reports whether anybody sends or receives on the rails of a role.
func (w *world) uses(role Role) bool { return role != Sends || !w.unused || w.calm }

// drawPSN draws a packet sequence number that no connection has had.
func (w *world) drawPSN() uint16 {
	w.psn++
	return w.psn
}

func (e *end) peer() *end { return e.w.ends[1-e.id] }

// postRecvs fills up the receives of a rail, if messages may come there.
func (e *end) postRecvs(i int) {
	q := e.rails[i]
	role := q.rail.role
	if !q.up || role != Data && e.serving[role] != i || !e.w.uses(role) {
		return
	}
	for q.recvs < worldRecvs {
		q.recvs++
		q.rail.Posted(1)
	}
}

// post hands a new work request to a rail, as long as the protocol allows.
func (e *end) post() {
	if e.failed != nil || e.p.Paused() {
		return
	}
	role := Role(e.w.rng.IntN(int(Roles)))
	i := e.serving[role]
	if role == Data {
		var live []int
		for at, q := range e.rails {
			if q.rail.role == Data && q.rail.Stage() == StageLive {
				live = append(live, at)
			}
		}
		i = live[e.w.rng.IntN(len(live))]
	}
	if i < 0 || !e.w.uses(role) {
		return
	}
	if e.p.Want(role, !e.hasRoom(i)); !e.hasRoom(i) {
		return
	}
	n := e.next
	e.next++
	k := &work{role: role, message: true}
	kind := uint64(wrid.Final)
	if role == Data {
		kind = wrid.Data
		switch e.w.rng.IntN(6) {
		case 0, 1, 2:
			kind = wrid.Numbered
		case 3:
			k.atomic = true
		case 4:
			k.read = true
		}
	}
	k.message = kind != wrid.Data
	e.works[n] = k
	e.stage(i, wrid.New(kind, wrid.BitsOf(i), 0, n))
}

// hasRoom reports whether a rail takes more work.
func (e *end) hasRoom(i int) bool {
	q := e.rails[i]
	return q.rail.Stage() == StageLive && q.log.Pushed()-q.log.Completed() < 24
}

// stage logs a work request, which is to be posted later.
func (e *end) stage(i int, id uint64) {
	q := e.rails[i]
	if wrid.Kind(id) == wrid.Data {
		q.log.Push(id)
	} else {
		q.log.PushMessage(id)
	}
	q.staged = append(q.staged, packet{id: id, psn: q.own})
	q.sent = append(q.sent, wrid.Number(id))
}

// postStaged posts what is staged on a rail.
func (e *end) postStaged(i int) {
	q := e.rails[i]
	switch {
	case len(q.staged) == 0:
	case q.up:
		for _, pk := range q.staged {
			e.works[wrid.Number(pk.id)].posted = true
		}
		q.wire, q.staged = append(q.wire, q.staged...), nil
	default:
		e.refused(i)
	}
}

// refused handles a refusal of the queue pair: it is in ERR.
func (e *end) refused(i int) {
	if !e.canLose(e.rails[i].rail) {
		e.failed = verbs.ErrState
		return
	}
	e.lose(i, verbs.ErrState)
}

// sendControls posts the control messages that wait.
func (e *end) sendControls() {
	for i, q := range e.rails {
		for len(q.staged) == 0 && e.failed == nil {
			bits, ok := q.rail.NextControl()
			if !ok {
				break
			}
			if !q.up {
				e.refused(i)
				break
			}
			id := wrid.New(wrid.Control, wrid.BitsOf(i), 0, q.log.Pushed())
			q.rail.ControlPosted(q.log.Messages())
			q.log.PushMessage(id)
			q.wire = append(q.wire, packet{id, q.own, bits})
		}
	}
}

var errBroken = errors.New("broken")

func (w *world) fail(format string, args ...any) error {
	return fmt.Errorf("%w: "+format, append([]any{errBroken}, args...)...)
}

func (e *end) canLose(r *Rail) bool { return e.failed == nil && e.p.CanLose(r) }

func (e *end) canLack(r *Rail) bool { return e.canLose(r) || e.failed == nil && e.p.CanLack(r.role) }

// lose takes a rail out.
func (e *end) lose(i int, cause error) {
	q := e.rails[i]
	messages, entries := q.log.Messages(), q.log.Take(len(q.staged))
	q.staged = nil
	for at := range entries {
		en := &entries[at]
		if en.State != EntryDone && wrid.Kind(en.ID) != wrid.Control {
			k := e.works[wrid.Number(en.ID)]
			en.Atomic, en.Read = k.atomic, k.read
		}
	}
	e.p.Lose(q.rail, e.w.now, cause, entries, messages)
	e.killQP(i)
}

// poll takes one completion of a rail.
func (e *end) poll(i int) error {
	q := e.rails[i]
	if len(q.cq) == 0 || e.failed != nil {
		return nil
	}
	next := e.w.nextPolled(q.cq)
	c := q.cq[next]
	q.cq = slices.Delete(q.cq, next, next+1)
	if c.status != verbs.StatusSuccess && q.rail.Works() {
		if !e.canLose(q.rail) {
			e.failed = c.status
			return nil
		}
		e.lose(i, c.status)
	}
	switch {
	case c.message && c.status != verbs.StatusSuccess:
		q.recvs--
		q.rail.Unanswered(1)
	case c.message:
		q.recvs--
		q.unpolled--
		if err := e.receive(i, c); err != nil {
			return err
		}
	case !q.rail.Works():
		known, over := e.p.Returned(q.rail, c.id, c.status)
		if !known {
			return e.w.fail("end %d: rail %d does not know what comes back: %#x", e.id, i, c.id)
		}
		if over {
			e.acknowledge(c.id)
		}
	case wrid.Kind(c.id) == wrid.Control:
		if q.rail.HasControls() && q.log.Complete(c.id) {
			if err := e.do(e.p.ControlCompleted(q.rail, true)); err != nil {
				return err
			}
		}
	case q.log.Complete(c.id):
		e.acknowledge(c.id)
	default:
		return e.w.fail("end %d: rail %d has not logged %#x", e.id, i, c.id)
	}
	return e.flushed(i)
}

// receive handles a message of the peer.
func (e *end) receive(i int, c completion) error {
	q := e.rails[i]
	if wrid.Kind(c.id) == wrid.Control {
		actions, err := e.p.HandleControl(q.rail, c.control, false)
		if err != nil {
			return e.w.fail("end %d: control %#x: %v", e.id, c.control, err)
		}
		return e.do(actions)
	}
	n := wrid.Number(c.id)
	k := e.peer().works[n]
	if k.handled++; k.handled > 1 {
		return e.w.fail("end %d: message %d is handled twice", e.id, n)
	}
	if k.role != Data {
		if list := e.received[k.role]; len(list) != 0 && list[len(list)-1] > n {
			return e.w.fail("end %d: message %d comes after %d", e.id, n, list[len(list)-1])
		}
		e.received[k.role] = append(e.received[k.role], n)
	}
	return nil
}

// acknowledge ends a work request that was carried out.
func (e *end) acknowledge(id uint64) {
	if wrid.Kind(id) != wrid.Control {
		e.works[wrid.Number(id)].done = true
	}
}

// flushed tells the protocol when nothing of a lost rail is left.
func (e *end) flushed(i int) error {
	q := e.rails[i]
	if q.rail.Stage() != StageDying {
		return nil
	}
	if q.dead {
		q.rail.Unanswered(q.recvs)
		q.recvs, q.unpolled = 0, 0
		q.rail.NothingReturns()
	}
	if q.recvs != 0 || !q.rail.AllReturned() {
		return nil
	}
	return e.do(e.p.Flushed(q.rail, false))
}

// do carries out what the protocol decides.
func (e *end) do(actions []Action) error {
	for _, a := range actions {
		i := a.Rail
		q := e.rails[i]
		var err error
		switch a.Kind {
		case DoLose:
			if !e.canLack(q.rail) {
				e.failed = errors.New("the last rail")
				return nil
			}
			e.lose(i, errors.New("the peer has lost it"))
			err = e.flushed(i)
		case DoSettle:
			err = e.settle(i)
		case DoConnect:
			err = e.connect(i, a)
		case DoGoLive:
			e.p.WentLive(q.rail, e.w.now)
			if e.w.rng.IntN(2) == 0 {
				q.rail.Proved()
			}
			e.postRecvs(i)
		case DoServe:
			e.serving[q.rail.role] = i
			e.postRecvs(i)
		}
		if err != nil || e.failed != nil {
			return err
		}
	}
	return nil
}

// settle checks that what counts as arrived has, and that nothing of the rail can land any more.
func (e *end) settle(i int) error {
	q, to := e.rails[i], e.peer().rails[i]
	if len(q.wire) != 0 || to.up && to.peer == q.own {
		return e.w.fail("end %d: rail %d is settled while a NIC carries it out", e.id, i)
	}
	arrived, unknown, err := e.p.Settle(q.rail, nil)
	if err != nil {
		if e.failed = err; !e.mayFail || !strings.Contains(err.Error(), "are lost there") {
			return e.w.fail("end %d: rail %d: %v", e.id, i, err)
		}
		return nil
	}
	if n := e.ghost(q, arrived); n != 0 {
		return e.w.fail("end %d: work %d is posted again, and a message behind it was handled", e.id, n)
	}
	for _, en := range arrived {
		k := e.works[wrid.Number(en.ID)]
		if k.read || k.landed == 0 || en.IsMessage() && k.handled == 0 {
			return e.w.fail("end %d: work %d has not arrived", e.id, wrid.Number(en.ID))
		}
		k.done = true
	}
	for _, en := range unknown {
		k := e.works[wrid.Number(en.ID)]
		if k.done, k.unknown = true, true; !k.posted {
			return e.w.fail("end %d: atomic %d fails, and no NIC had it", e.id, wrid.Number(en.ID))
		}
	}
	return nil
}

// ghost returns plain data of a rail that does not count as arrived, though the peer's program has
// handled a message behind it there; 0 if there is none.
func (e *end) ghost(q *queuePair, arrived []Entry) (n uint64) {
	proved := false
	for _, n := range slices.Backward(q.sent) {
		k := e.works[n]
		proved = proved || k.message && k.handled != 0
		counts := slices.ContainsFunc(arrived, func(en Entry) bool { return wrid.Number(en.ID) == n })
		if proved && !k.message && !k.read && !k.atomic && !k.done && !counts {
			return n
		}
	}
	return 0
}

// repost stages lost work again.
func (e *end) repost() error {
	for role := range Roles {
		w := e.p.Work(role)
		if !w.Any() {
			continue
		}
		if w.On() < 0 {
			on := e.serving[role]
			if role == Data {
				on = e.p.firstLive(Data)
			}
			w.Begin(e.p.Rail(on))
		}
		for w.Any() && e.hasRoom(w.On()) && e.w.rng.IntN(3) != 0 {
			next, on := w.Next(), w.On()
			for i, q := range e.rails {
				for _, pk := range q.wire {
					if wrid.OnNoRail(pk.id) == wrid.OnNoRail(next.ID) {
						return e.w.fail("end %d: %#x is posted again while rail %d carries it", e.id,
							next.ID, i)
					}
				}
			}
			if k := e.works[wrid.Number(next.ID)]; k.message && k.handled != 0 || k.atomic && k.landed != 0 {
				return e.w.fail("end %d: %#x is posted again, and has arrived", e.id, next.ID)
			}
			e.stage(on, wrid.New(wrid.Kind(next.ID), wrid.BitsOf(on), 0, wrid.Number(next.ID)))
			w.Posted()
		}
	}
	return nil
}

// progress does what an end does each time that it polls.
func (e *end) progress() error {
	for i := range e.rails {
		if err := e.flushed(i); err != nil || e.failed != nil {
			return err
		}
	}
	if e.p.IdleSuspected() {
		for i, q := range e.rails {
			if q.idle() && !q.up && q.rail.Stage() == StageLive && e.canLack(q.rail) {
				e.lose(i, errors.New("it is in ERR"))
			}
		}
	}
	e.p.Answer()
	if err := e.do(e.p.Choose()); err != nil {
		return err
	}
	if e.p.MayAsk() {
		for _, q := range e.rails {
			switch due, _ := e.p.Due(q.rail, e.w.now); {
			case !due:
			case e.w.rng.IntN(8) == 0:
				e.p.Postpone(q.rail, e.w.now)
			default:
				e.p.Ask(q.rail, e.w.now, e.w.drawPSN())
			}
		}
	}
	e.sendControls()
	if e.failed != nil {
		return nil
	}
	if !e.p.Waits() {
		return e.repost()
	}
	if _, err := e.p.Overdue(e.w.now); err != nil {
		return e.w.fail("end %d: %v", e.id, err)
	}
	return e.overdueSays()
}

// overdueSays checks that an end that waits for ever would know why.
func (e *end) overdueSays() error {
	p, now := *e.p, e.w.now
	for range patientLooks + 1 {
		now = now.Add(p.config.Timeout)
		if _, err := p.Overdue(now); err != nil {
			return nil
		}
	}
	return e.w.fail("end %d waits, and nothing is overdue", e.id)
}
