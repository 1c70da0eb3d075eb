package soft

import (
	"slices"
	"strconv"
	"time"

	"ibverbx/internal/guard"
	"ibverbx/verbs"
)

// FaultKind says what an injected fault does.
type FaultKind uint8

// The kinds of faults. The status in brackets is the default.
const (
	// FailSend: the request completes with Status [RETRY_EXC_ERR] and never reaches the peer.
	FailSend FaultKind = iota
	// FailAfterData: the data lands at the target, which sees no completion, and the request
	// completes with Status [RETRY_EXC_ERR]; as when the last acknowledgements are lost.
	FailAfterData
	// FailRecv: the receive that a message consumes completes with Status [LOC_PROT_ERR] and its
	// queue pair fails; the request completes with REM_OP_ERR. Device and QPNum name the receiving
	// side.
	FailRecv
	// RefuseSend: posting the request is refused with Err [verbs.ErrNoMemory].
	RefuseSend
	// RefuseRecv: posting a receive is refused with Err [verbs.ErrNoMemory]. Match is not asked.
	RefuseRecv
	// StallQP: the send queue stops at the request until the injection is removed.
	StallQP
	// Delay: the request executes later by Delay; in a stepped fabric, after a Timer action.
	Delay
	// FailQP: the queue pair goes to ERR in place of executing the request, as after a fatal error
	// inside the NIC. All that is outstanding is flushed, and only verbs.EventQPFatal says why.
	FailQP
	// CutLink: the link of the request's NIC goes down just before the request executes, as with
	// [Device.SetLink], and stays down. Removing the injection puts it up again, unless SetLink was
	// called since.
	CutLink
	// KillNIC: the request's NIC is gone just before the request executes, as with [Device.Kill].
	// Removing the injection brings it back like [Device.Restore], unless Kill or Restore was
	// called since.
	KillNIC
	// OverrunCQ: the completion queue overruns when the request completes, with success or without:
	// that completion and all later ones are lost, and the queue pairs on it fail. Unsignaled
	// requests that end well do not complete, so they are not counted either.
	OverrunCQ
	// Rewrite: the request is altered on its way, by the function Rewrite, so that the peer sees
	// something else than what was posted. The completion is the usual one of what was executed.
	Rewrite
	// ArriveLate: the request completes with Status [RETRY_EXC_ERR], and arrives at the peer later,
	// as what waits in a switch does whose sender has given up. So do, in order, the requests that
	// are posted behind it, up to the first that Match does not choose; their completions are
	// flushed. They arrive after Delay [1 ms], in a stepped fabric with an Arrive action each,
	// unless the peer's queue pair has failed or was reset, has no receive for one, or its link is
	// down.
	ArriveLate
	// PlaceLate: an RDMA write is acknowledged as usual, and is in the peer's memory later, as on
	// hosts where data waits on its way from the NIC to memory: after Delay [1 ms], in a stepped
	// fabric with a Place action. It is there before whatever else but plain writes the same queue
	// pair brings (IBTA o9-20), and before the peer's queue pair flushes; messages over other queue
	// pairs pass it. Later writes of the queue pair do not: they wait as well. Other operations are
	// not delayed, nor are writes of no bytes; those that Match chooses count all the same.
	PlaceLate
)

// faultKindText has a line for every kind.
var faultKindText = [...]struct {
	name, does string
	at         moment
}{
	FailSend: {"fail send", "the request fails and never reaches the peer", atExecution},
	FailAfterData: {"fail after data", "the data lands, but the request fails and the peer sees no " +
		"completion", atExecution},
	FailRecv: {"fail recv", "the receive that takes the message fails, and the request with it",
		atArrival},
	RefuseSend: {"refuse send", "posting the request is refused", atPost},
	RefuseRecv: {"refuse recv", "posting a receive is refused", atPostRecv},
	StallQP: {"stall qp", "the send queue stops at the request until the fault is removed",
		atExecution},
	Delay:     {"delay", "the request executes later", atExecution},
	FailQP:    {"fail qp", "the queue pair goes to ERR in place of executing the request", atExecution},
	CutLink:   {"cut link", "the link of the NIC goes down before the request executes", atExecution},
	KillNIC:   {"kill nic", "the NIC is gone before the request executes", atExecution},
	OverrunCQ: {"overrun cq", "the completion queue overruns when the request completes", atCompletion},
	Rewrite: {"rewrite", "the peer sees another immediate, key or address than the request has",
		atExecution},
	ArriveLate: {"arrive late", "the request fails, and arrives at the peer later, with those behind it",
		atExecution},
	PlaceLate: {"place late", "the write is acknowledged before it is in memory", atExecution},
}

// FaultKinds lists all kinds, in order, for tests that choose at random and commands that offer a
// choice.
func FaultKinds() []FaultKind {
	list := make([]FaultKind, len(faultKindText))
	for i := range list {
		list[i] = FaultKind(i)
	}
	return list
}

// String names the kind.
func (k FaultKind) String() string {
	if int(k) < len(faultKindText) {
		return faultKindText[k].name
	}
	return "fault " + strconv.Itoa(int(k))
}

// Description says in one line what the kind does.
func (k FaultKind) Description() string {
	if int(k) < len(faultKindText) {
		return faultKindText[k].does
	}
	return "nothing: there is no such kind"
}

// Fault describes what goes wrong, and with which requests.
type Fault struct {
	Device *Device // the NIC; nil is any
	QPNum  uint32  // the queue pair; 0 is any
	// Match chooses requests; nil is any. It gets a copy whose slices must not be kept or written
	// to, is called with the fabric locked, and must not call into it.
	Match func(*verbs.SendWR) bool
	Skip  int // so many matching requests pass first
	Count int // how many requests it strikes after that; 0 means 1, negative means all
	Kind  FaultKind

	Status    verbs.Status  // FailSend, FailAfterData, FailRecv, ArriveLate
	VendorErr uint32        // goes with Status
	Err       error         // RefuseSend, RefuseRecv
	Delay     time.Duration // Delay, ArriveLate, PlaceLate
	// Rewrite changes what the peer sees of a request: Imm, RKey, RemoteAddr, and Opcode between an
	// operation and its variant with an immediate. Nothing else that it changes counts. nil changes
	// nothing. The rules of Match hold. Faults that strike the same request at its arrival or its
	// completion match it as altered.
	Rewrite func(*verbs.SendWR)
}

func (t Fault) withDefaults() Fault {
	if t.Status == verbs.StatusSuccess {
		t.Status = verbs.StatusRetryExcErr
		if t.Kind == FailRecv {
			t.Status = verbs.StatusLocProtErr
		}
	}
	if t.Err == nil {
		t.Err = verbs.ErrNoMemory
	}
	if t.Delay <= 0 && (t.Kind == ArriveLate || t.Kind == PlaceLate) {
		t.Delay = time.Millisecond
	}
	return t
}

// String says what goes wrong, where and when: "fail send (REM_ACCESS_ERR) on soft1 qp 17, the 3rd
// request".
func (t Fault) String() string {
	t = t.withDefaults()
	s := t.Kind.String()
	switch t.Kind {
	case FailSend, FailAfterData, FailRecv:
		s += " (" + t.Status.Name() + ")"
	case RefuseSend, RefuseRecv:
		s += " (" + t.Err.Error() + ")"
	case Delay, PlaceLate:
		s += " (" + t.Delay.String() + ")"
	case ArriveLate:
		s += " (" + t.Status.Name() + ", " + t.Delay.String() + ")"
	}
	if t.Device != nil {
		s += " on " + t.Device.core.Name
	} else {
		s += " on any nic"
	}
	if t.QPNum != 0 {
		s += " qp " + strconv.FormatUint(uint64(t.QPNum), 10)
	}
	what := "request"
	if t.Kind == RefuseRecv {
		what = "receive"
	} else if t.Match != nil {
		what = "matching request"
	}
	first := max(t.Skip, 0) + 1
	switch {
	case t.Count < 0 && first == 1:
		return s + ", every " + what
	case t.Count < 0:
		return s + ", every " + what + " from the " + ordinal(first) + " on"
	case t.Count > 1:
		return s + ", " + what + "s " + strconv.Itoa(first) + " to " + strconv.Itoa(first+t.Count-1)
	}
	return s + ", the " + ordinal(first) + " " + what
}

// ordinal is 1st, 2nd, 3rd, 4th and so on.
func ordinal(n int) string {
	suffix := "th"
	if n%100 < 11 || n%100 > 13 {
		switch n % 10 {
		case 1:
			suffix = "st"
		case 2:
			suffix = "nd"
		case 3:
			suffix = "rd"
		}
	}
	return strconv.Itoa(n) + suffix
}

// Injection is a fault that is in force.
type Injection struct {
	_     guard.NoCopy
	f     *Fabric
	fault Fault
	skip  int
	left  int // strikes left; negative is without limit
	hits  int
}

// Inject puts a fault in force. Of several that match a request at the same moment the one injected
// first strikes. Requests that are executing already are not affected.
func (f *Fabric) Inject(fault Fault) *Injection {
	i := &Injection{f: f, fault: fault.withDefaults(), skip: fault.Skip, left: fault.Count}
	if i.left == 0 {
		i.left = 1
	}
	f.mu.Lock()
	f.injections = append(f.injections, i)
	f.mu.Unlock()
	return i
}

// Remove ends the fault. Queue pairs that it stalled go on, a link that it cut comes up, a NIC that
// it took away comes back. What has failed in the meantime stays so. Removing it again does
// nothing.
func (i *Injection) Remove() {
	f := i.f
	f.mu.Lock()
	defer f.mu.Unlock()
	i.retire()
	for _, d := range f.devices {
		for _, q := range d.qps.All {
			if q.run.stall == i {
				q.run.stall = nil
				f.engine.ready(q)
			}
		}
		if d.cutBy == i {
			d.setLink(true, nil)
		}
		if d.killedBy == i {
			d.restore()
		}
	}
}

// String says what goes wrong, as [Fault.String] does, how often it has, and whether it may again:
// "fail send (REM_ACCESS_ERR) on soft1 qp 17, the 3rd request: 1 hit, over".
func (i *Injection) String() string {
	i.f.mu.Lock()
	defer i.f.mu.Unlock()
	s := i.fault.String() + ": " + strconv.Itoa(i.hits) + " hit"
	if i.hits != 1 {
		s += "s"
	}
	if slices.Contains(i.f.injections, i) {
		return s + ", in force"
	}
	return s + ", over"
}

// Hits says how many requests it has struck.
func (i *Injection) Hits() int {
	i.f.mu.Lock()
	defer i.f.mu.Unlock()
	return i.hits
}
