package failover

import (
	"errors"
	"fmt"
	"time"

	"ibverbx/verbs"
)

// Protocol is one end of a connection whose ends both offer failover.
//
// From a loss until the rail is settled and its lost work is posted again, no rail gets a new
// request. So no number is assigned, and no decision about a marker is made, while plain data is on
// no rail.
//
// Invariant: unflushed counts the rails that are dying, unsettled those that are dying or flushed.
type Protocol struct {
	rails                []*Rail
	config               Config
	unflushed, unsettled int
	patience             patience
	asked                time.Time // when the leader last asked for a rail
	idleSuspected        bool      // see SuspectIdle

	// serving is, by role, the index of the rail that carries its messages; -1 for none.
	serving [Roles]int
	// unconfirmed is, by role, the rail that was in service while the peer has not confirmed that
	// its receives are posted on the next one, and unconfirmedEpoch its epoch.
	unconfirmed      [Roles]*Rail
	unconfirmedEpoch [Roles]uint8
	heldAnswers      []control // SERVED, held back until receives can be posted
	work             [Roles]Work
	wanted           [Roles]bool // see Want
}

// Config is how an end takes part in a connection.
type Config struct {
	// Leader means that this end brings rails back, and chooses those that serve. The other end
	// follows.
	Leader bool
	// Failback is the first pause before a rail is brought back; negative: it never is.
	Failback time.Duration
	// Timeout is how long the peer may take to report what has arrived on a lost rail, and then to
	// confirm the rail that serves.
	Timeout time.Duration
	// Serving is, by role, the index of the rail that carries its messages at first; -1 for none.
	Serving [Roles]int
}

// Action is something for the caller to do.
type Action struct {
	Kind ActionKind
	Rail int // the index of the rail concerned
	// OwnPSN and PeerPSN are the upper 16 bits of the packet sequence numbers with which a queue
	// pair is to be connected. OwnPSN is 0 at the end that does not lead: it draws one.
	OwnPSN, PeerPSN uint16
}

// ActionKind is the kind of an action.
type ActionKind uint8

const (
	// DoLose takes a rail out of service, because the peer has lost it. If no other one can replace
	// it, and its role is needed ([Protocol.CanLack]), the connection fails.
	DoLose ActionKind = 1 + iota
	// DoSettle calls [Protocol.Settle]: both ends know what has arrived on the rail.
	DoSettle
	// DoConnect resets the queue pair and connects it again, and calls [Protocol.Connected] if that
	// succeeds. The caller may skip it: the leader asks again.
	DoConnect
	// DoGoLive puts a rail back into service, and calls [Protocol.WentLive].
	DoGoLive
	// DoServe makes a rail carry the messages of its role from now on. Its receives are posted
	// before the next control message is.
	DoServe
)

// New returns an end whose rails have these roles.
func New(roles []Role) *Protocol {
	p := &Protocol{}
	for i, role := range roles {
		p.rails = append(p.rails, &Rail{index: i, role: role})
	}
	return p
}

// Begin begins a connection. Receives that were posted before count.
func (p *Protocol) Begin(c Config) {
	*p = Protocol{rails: p.rails, config: c, serving: c.Serving}
}

// Restart drops the connection: the queue pairs were reset.
func (p *Protocol) Restart() {
	for _, r := range p.rails {
		r.restart()
	}
	p.Begin(p.config)
}

// Abandon drops everything except which rails are out of service or given up, and which serve: the
// connection is over.
func (p *Protocol) Abandon() {
	for _, r := range p.rails {
		out, gone := r.stage != StageLive, r.gone
		if r.restart(); out {
			r.stage = StageSettled
		}
		r.gone = gone
	}
	serving := p.serving
	p.Begin(p.config)
	p.serving = serving
}

// Rail returns the rail with an index.
func (p *Protocol) Rail(i int) *Rail { return p.rails[i] }

// Leader reports whether this end leads.
func (p *Protocol) Leader() bool { return p.config.Leader }

// Serving returns the index of the rail that carries the messages of a role; -1 for none.
func (p *Protocol) Serving(role Role) int { return p.serving[role] }

// Work returns the lost work of a role.
func (p *Protocol) Work(role Role) *Work { return &p.work[role] }

// Paused reports whether new requests must wait.
func (p *Protocol) Paused() bool {
	if p.Waits() {
		return true
	}
	for role := range p.work {
		if p.work[role].Any() {
			return true
		}
	}
	return false
}

// Waits reports whether the ends must still agree on lost rails, or a serving rail is wanted and
// not live, or no data rail is live. Meanwhile nothing is posted again.
func (p *Protocol) Waits() bool {
	if p.unsettled != 0 || p.unconfirmed != [Roles]*Rail{} || p.firstLive(Data) < 0 {
		return true
	}
	for role := range Roles {
		if p.unserved(role) && (p.firstLive(role) >= 0 || p.needed(role)) {
			return true
		}
	}
	return false
}

// unserved reports whether the rail that serves is not live.
func (p *Protocol) unserved(role Role) bool {
	i := p.serving[role]
	return i >= 0 && p.rails[i].stage != StageLive
}

// needed reports whether work waits for a rail of a role.
func (p *Protocol) needed(role Role) bool { return p.wanted[role] || p.work[role].Any() }

// Lacks reports whether no rail of a role is live. The connection continues without one, until Want
// reports work for it: then all new requests wait until one has come back.
func (p *Protocol) Lacks(role Role) bool { return p.unserved(role) && p.firstLive(role) < 0 }

// Want records whether a request waits for a rail of a role.
func (p *Protocol) Want(role Role, wanted bool) {
	if wanted && !p.wanted[role] {
		p.patience.renew()
	}
	p.wanted[role] = wanted
}

// Unflushed reports whether a rail is dying. Until none is, receives of the user that come back
// go ahead of later ones, and none is posted.
func (p *Protocol) Unflushed() bool { return p.unflushed != 0 }

// Unsettled reports whether a rail is dying or flushed.
func (p *Protocol) Unsettled() bool { return p.unsettled != 0 }

// firstLive returns the first live rail of a role; -1 if there is none.
func (p *Protocol) firstLive(role Role) int {
	for i, r := range p.rails {
		if r.role == role && r.stage == StageLive {
			return i
		}
	}
	return -1
}

// CanLose reports whether the connection can lose a rail: another of its role works, or it does not
// serve and its role is not needed.
func (p *Protocol) CanLose(lost *Rail) bool {
	for _, r := range p.rails {
		if r.role == lost.role && r != lost && (r.stage == StageLive || r.stage == StageReady) {
			return true
		}
	}
	return p.serving[lost.role] != lost.index && p.CanLack(lost.role)
}

// CanLack reports whether the connection can do without any rail of a role for some time: data
// continues, and lost rails come back. The peer may lose the last one without knowing that this end
// has lost another.
func (p *Protocol) CanLack(role Role) bool {
	return role != Data && p.config.Failback >= 0 && p.firstLive(Data) >= 0
}

// SuspectIdle records that queue pairs of which the NIC holds nothing may have failed, without a
// completion. Lose and WentLive do as well, because the queue pairs of a NIC often fail together.
func (p *Protocol) SuspectIdle() { p.idleSuspected = true }

// IdleSuspected reports such a suspicion, once: the caller queries the states of the queue pairs of
// which the NIC holds nothing, and loses the rails of those in ERR.
func (p *Protocol) IdleSuspected() bool {
	suspected := p.idleSuspected
	p.idleSuspected = false
	return suspected
}

// Lose takes a rail out of service. entries is the outstanding work of its log, and messages the
// number of messages ever logged.
func (p *Protocol) Lose(r *Rail, now time.Time, cause error, entries []Entry, messages uint64) {
	if r.stage == StageLive && now.Sub(r.liveSince) >= p.config.Failback<<maxPauses {
		r.pauses = 0 // it does not flap
	}
	r.stage, r.cause = StageDying, cause
	r.entries, r.acked, r.hint, r.held = entries, messages, 0, 0
	for i := range entries {
		e := &entries[i]
		if e.IsMessage() {
			r.acked--
		}
		if e.State == EntryOut {
			r.held++
		}
	}
	r.controls, r.queue = 0, r.queue[:0]
	p.patience = patience{looked: now}
	p.SuspectIdle()
	p.unflushed++
	p.unsettled++
}

// Returned handles a send that the NIC of a dying rail gives back. It reports whether the rail had
// it outstanding, and whether it is over: carried out, or failed by its own fault.
func (p *Protocol) Returned(r *Rail, id uint64, status verbs.Status) (known, over bool) {
	e := r.find(id)
	if e == nil || r.held == 0 {
		return false, false
	}
	r.held--
	e.State, e.Status = EntryReturned, status
	if e.isControl() || LosesRail(status) {
		return true, false
	}
	e.State = EntryDone
	return true, true
}

// Flushed handles the return of the last work request of a dying rail: the set of arrivals here is
// final now. ending is as in HandleControl.
func (p *Protocol) Flushed(r *Rail, ending bool) []Action {
	r.stage = StageFlushed
	p.unflushed--
	p.patience.renew()
	if ending {
		return nil
	}
	p.broadcast(control{controlDown, r.index, r.epoch, r.arrived()})
	if r.peerDown {
		return []Action{{Kind: DoSettle, Rail: r.index}}
	}
	return nil
}

// handleDown handles the peer's report that it has lost a rail, and how many messages have arrived
// there.
func (p *Protocol) handleDown(r *Rail, c control) []Action {
	switch {
	case c.epoch == (r.epoch+1)&epochMask && r.stage == StageSettled && p.config.Leader:
		// The follower has lost it again before this end had connected it: nothing was sent there.
		r.epoch++
		r.psn, r.posted, r.unanswered = 0, 0, 0
		p.broadcast(control{controlDown, r.index, r.epoch, 0})
		return nil
	case r.peerDown || c.epoch != r.epoch&epochMask:
		return nil // it travels on every live rail
	}
	r.peerDown, r.peerArrived = true, c.count
	switch {
	case r.Works():
		return []Action{{Kind: DoLose, Rail: r.index}}
	case r.stage == StageFlushed:
		return []Action{{Kind: DoSettle, Rail: r.index}}
	}
	return nil
}

// Settle sorts the outstanding work of a lost rail, which neither end's NIC carries out any more.
// arrived has arrived at the peer and counts as acknowledged. unknown are atomics that may have
// been carried out or not. The rest must be posted again (see Work). imm, if not nil, is a user's
// immediate that was due on the rail and had found no room.
func (p *Protocol) Settle(r *Rail, imm *Entry) (arrived, unknown []Entry, err error) {
	p.settled(r)
	covered, err := r.covered(imm != nil || p.work[Data].awaitsImm(r))
	if err != nil {
		if imm != nil {
			r.entries = append(r.entries, *imm) // to be dropped with them
		}
		return nil, nil, err
	}
	var again []Entry
	for i := range r.entries {
		e := r.entries[i]
		switch {
		case e.State == EntryDone || e.isControl():
		case e.Atomic && e.State != EntryUnposted:
			unknown = append(unknown, e)
		case i < covered && !e.Read:
			arrived = append(arrived, e)
		default:
			again = append(again, e)
		}
	}
	r.entries = nil
	if imm != nil {
		again = append(again, *imm)
	}
	p.work[r.role].add(r, again)
	return arrived, unknown, nil
}

// settled counts a lost rail as settled.
func (p *Protocol) settled(r *Rail) {
	r.stage = StageSettled
	p.unsettled--
	p.patience.renew()
}

// Drop gives up the outstanding work of flushed and settled rails, and returns it: the connection
// has failed.
func (p *Protocol) Drop() (dropped []Entry) {
	for _, r := range p.rails {
		switch r.stage {
		case StageFlushed:
			p.settled(r)
		case StageSettled:
		default:
			continue
		}
		dropped = append(dropped, r.entries...)
		r.entries = nil
	}
	for role := range p.work {
		dropped = append(dropped, p.work[role].entries...)
		p.work[role].clear()
	}
	kept := dropped[:0]
	for _, e := range dropped {
		if e.State != EntryDone && !e.isControl() {
			kept = append(kept, e)
		}
	}
	return kept
}

// patience is how long this end has waited for the next step towards an agreement. Time in which it
// did not poll counts little: a program that was stopped must not blame its peer.
type patience struct {
	waited time.Duration
	looked time.Time // when it was last counted
}

// patientLooks is how often an end polls at least before its patience is over.
const patientLooks = 16

// renew restarts the wait: there is another step to wait for.
func (w *patience) renew() { w.waited = 0 }

// over counts the time, and reports whether more than the limit has passed since renew.
func (w *patience) over(now time.Time, limit time.Duration) bool {
	w.waited += min(now.Sub(w.looked), limit/patientLooks+1)
	w.looked = now
	return w.waited > limit
}

// Overdue returns why the connection must end, and the rail responsible: the ends must still agree,
// and Config.Timeout has passed since their last step, while this end polled. err is nil while
// there is time.
func (p *Protocol) Overdue(now time.Time) (rail int, err error) {
	if !p.Waits() || !p.patience.over(now, p.config.Timeout) {
		return 0, nil
	}
	for i, r := range p.rails {
		switch r.stage {
		case StageDying:
			return i, p.late(r, "this end's NIC has not given back what it had there: check the NIC and "+
				"the kernel's log")
		case StageFlushed:
			return i, p.late(r, "the peer has not said what has arrived there: it must poll, and take what "+
				"was sent to it")
		}
	}
	for _, old := range p.unconfirmed {
		if old != nil {
			return old.index, p.late(old, "the peer has not confirmed which one takes over: it must poll, "+
				"and take what was sent to it")
		}
	}
	for role := range Roles {
		r := p.rails[max(p.serving[role], 0)] // of those for data none serves
		switch {
		case role == Data && p.firstLive(Data) < 0, p.Lacks(role) && p.needed(role):
			return r.index, p.late(r, "none that could take over has come back: check the NICs and links of "+
				"both ends")
		case p.unserved(role) && !p.Lacks(role):
			return r.index, p.late(r, "the peer has not said which one takes over: it must poll")
		}
	}
	return 0, nil
}

// late returns the error of a connection that ends because of a lost rail.
func (p *Protocol) late(r *Rail, why string) error {
	return fmt.Errorf("the rail is lost (%w), and within %v %s", r.cause, p.config.Timeout, why)
}

// Check returns an error if an invariant does not hold.
func (p *Protocol) Check() error {
	unflushed, unsettled := 0, 0
	for _, r := range p.rails {
		switch r.stage {
		case StageDying:
			unflushed++
			unsettled++
			if err := r.checkHeld(); err != nil {
				return err
			}
		case StageFlushed:
			unsettled++
		}
	}
	if unflushed != p.unflushed || unsettled != p.unsettled {
		return fmt.Errorf("%d and %d rails are to be settled, counted %d and %d", unflushed, unsettled,
			p.unflushed, p.unsettled)
	}
	for role, i := range p.serving {
		if i >= 0 && p.rails[i].role != Role(role) {
			return errors.New("a rail serves that has another role")
		}
	}
	return nil
}

// checkHeld returns an error if the sends that the NIC of a dying rail holds are not those that are
// counted. It checks only short lists, since it runs often.
func (r *Rail) checkHeld() error {
	const most = 64
	if len(r.entries) > most || r.held == 0 { // 0 after NothingReturns too
		return nil
	}
	out := 0
	for i := range r.entries {
		if r.entries[i].State == EntryOut {
			out++
		}
	}
	if r.held != out {
		return fmt.Errorf("rail %d: %d sends are on the NIC, counted %d", r.index, out, r.held)
	}
	return nil
}
