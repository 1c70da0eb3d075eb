package soft

import (
	"slices"
	"strconv"
	"time"

	"ibverbx/verbs"
)

// FaultKind says what an injected fault does.
type FaultKind uint8

// The kinds of faults. The status in brackets is the default.
const (
	// FailSend: the request completes with Status [RETRY_EXC_ERR] and never reaches the peer.
	FailSend FaultKind = iota
	// FailAfterData: the data lands at the target, which sees no completion, and the request completes with Status
	// [RETRY_EXC_ERR]; as when the last acknowledgements are lost.
	FailAfterData
	// FailRecv: the receive that a message consumes completes with Status [LOC_PROT_ERR] and its queue pair fails; the
	// request completes with REM_OP_ERR. Device and QPNum name the receiving side.
	FailRecv
	// RefuseSend: posting the request is refused with Err [verbs.ErrNoMemory].
	RefuseSend
	// RefuseRecv: posting a receive is refused with Err [verbs.ErrNoMemory]. Match is not asked.
	RefuseRecv
	// StallQP: the send queue stops at the request until the injection is removed.
	StallQP
	// Delay: the request executes later by Delay; in a stepped fabric, after a Timer action.
	Delay
)

var faultNames = [...]string{"fail send", "fail after data", "fail recv", "refuse send", "refuse recv", "stall qp", "delay"}

// String names the kind.
func (k FaultKind) String() string {
	if int(k) < len(faultNames) {
		return faultNames[k]
	}
	return "fault " + strconv.Itoa(int(k))
}

// Fault describes something that is to go wrong, and with which requests.
type Fault struct {
	Device *Device // the NIC; nil is any
	QPNum  uint32  // the queue pair; 0 is any
	// Match chooses requests; nil is any. It gets a copy whose slices must not be kept, is called with the
	// fabric locked, and must not call into it.
	Match func(*verbs.SendWR) bool
	Skip  int // so many matching requests pass first
	Count int // how many it strikes after that; 0 means 1, negative means for ever
	Kind  FaultKind

	Status    verbs.Status
	VendorErr uint32
	Err       error
	Delay     time.Duration
}

// Injection is a fault in force.
type Injection struct {
	f     *Fabric
	fault Fault
	skip  int
	left  int // strikes left; negative is for ever
	hits  int
}

// Inject puts a fault in force. Of several that match a request the one injected first strikes. Requests that are
// executing already are not affected.
func (f *Fabric) Inject(fault Fault) *Injection {
	i := &Injection{f: f, skip: fault.Skip, left: fault.Count}
	if i.left == 0 {
		i.left = 1
	}
	if fault.Status == verbs.StatusSuccess {
		fault.Status = verbs.StatusRetryExcErr
		if fault.Kind == FailRecv {
			fault.Status = verbs.StatusLocProtErr
		}
	}
	if fault.Err == nil {
		fault.Err = verbs.ErrNoMemory
	}
	i.fault = fault
	f.mu.Lock()
	f.injections = append(f.injections, i)
	f.mu.Unlock()
	return i
}

// Remove ends the fault. Queue pairs that it stalled go on.
func (i *Injection) Remove() {
	f := i.f
	f.mu.Lock()
	defer f.mu.Unlock()
	i.retire()
	for _, d := range f.devices {
		for _, q := range d.qps {
			if q.run.stall == i {
				q.run.stall = nil
				f.engine.ready(q)
			}
		}
	}
}

// Hits says how many requests it has struck.
func (i *Injection) Hits() int {
	i.f.mu.Lock()
	defer i.f.mu.Unlock()
	return i.hits
}

// retire takes the injection off the list of those that may strike.
func (i *Injection) retire() {
	if at := slices.Index(i.f.injections, i); at >= 0 {
		i.f.injections = slices.Delete(i.f.injections, at, at+1)
	}
}

// concerns says whether the injection is about q.
func (i *Injection) concerns(q *QP) bool {
	return (i.fault.Device == nil || i.fault.Device == q.dev) && (i.fault.QPNum == 0 || i.fault.QPNum == q.num)
}

// hit counts a matching request and says whether it is struck.
func (i *Injection) hit() bool {
	if i.skip > 0 {
		i.skip--
		return false
	}
	i.hits++
	if i.left > 0 {
		if i.left--; i.left == 0 {
			i.retire()
		}
	}
	return true
}

func (i *Injection) matches(wr *verbs.SendWR) bool { return i.fault.Match == nil || i.fault.Match(wr) }

// executes says whether the kind strikes requests as they execute.
func (k FaultKind) executes() bool {
	return k == FailSend || k == FailAfterData || k == StallQP || k == Delay
}

// strike compares the head request of q with the injections, once. It returns false when the request is held back.
func (f *Fabric) strike(q *QP) bool {
	r := &q.run
	if r.faultSeq == q.sq.executed+1 {
		return true
	}
	r.faultSeq = q.sq.executed + 1
	r.fault = nil
	wr := q.request(q.sq.executed)
	for _, i := range f.injections {
		if !i.fault.Kind.executes() || !i.concerns(q) || !i.matches(&wr) || !i.hit() {
			continue
		}
		switch i.fault.Kind {
		case StallQP:
			r.stall = i
			return false
		case Delay:
			r.wait = waitDelay
			f.engine.retryAfter(q, max(i.fault.Delay, 1))
			return false
		}
		r.fault = i
		return true
	}
	return true
}

// strikeReceive compares a message that is about to consume a receive of p with the injections.
func (f *Fabric) strikeReceive(q, p *QP) *Injection {
	wr := q.request(q.sq.executed - 1)
	for _, i := range f.injections {
		if i.fault.Kind == FailRecv && i.concerns(p) && i.matches(&wr) && i.hit() {
			return i
		}
	}
	return nil
}

// refuse compares a request that is being posted with the injections.
func (f *Fabric) refuse(q *QP, wr *verbs.SendWR) error {
	for _, i := range f.injections {
		if i.fault.Kind != RefuseSend || !i.concerns(q) {
			continue
		}
		if seen := *wr; i.matches(&seen) && i.hit() {
			return q.err("post send", i.fault.Err, "injected")
		}
	}
	return nil
}

// refuseRecv compares a receive that is being posted with the injections.
func (f *Fabric) refuseRecv(q *QP) error {
	for _, i := range f.injections {
		if i.fault.Kind == RefuseRecv && i.concerns(q) && i.hit() {
			return q.err("post recv", i.fault.Err, "injected")
		}
	}
	return nil
}

// request rebuilds the work request of a slot.
func (q *QP) request(seq uint64) verbs.SendWR {
	s := q.sq.at(seq)
	wr := verbs.SendWR{
		ID:         s.id,
		Opcode:     s.opcode,
		Flags:      s.flags,
		Imm:        s.imm,
		RKey:       s.rkey,
		RemoteAddr: s.remoteAddr,
		CompareAdd: s.compareAdd,
		Swap:       s.swap,
	}
	if s.flags&verbs.SendInline != 0 {
		wr.Inline = q.sq.inlined(seq)
	} else {
		wr.SGL = q.sq.sgl(seq)
	}
	return wr
}
