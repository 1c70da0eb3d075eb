package soft

import (
	"slices"
	"strconv"
	"time"

	"ibverbx/internal/guard"
	"ibverbx/verbs"
)

// FaultKind is what an injected fault does.
type FaultKind uint8

// The kinds of faults. The status in brackets is the default.
const (
	// FailSend: the request completes with Status [RETRY_EXC_ERR] and never reaches the peer.
	FailSend FaultKind = iota
	// FailAfterData: the data lands at the target, which sees no completion, and the request
	// completes with Status [RETRY_EXC_ERR], as if the last acknowledgements were lost.
	FailAfterData
	// FailRecv: the receive that a message consumes completes with Status [LOC_PROT_ERR] and its
	// queue pair fails; the request completes with REM_OP_ERR. Device and QPNum name the receiving
	// side.
	FailRecv
	// RefuseSend: posting the request is refused with Err [verbs.ErrNoMemory].
	RefuseSend
	// RefuseRecv: posting a receive is refused with Err [verbs.ErrNoMemory]. Match is not called.
	RefuseRecv
	// StallQP: the send queue stops at the request until the injection is removed.
	StallQP
	// Delay: the request executes after Delay; in a stepped fabric, after a Timer action.
	Delay
	// FailQP: the queue pair goes to ERR instead of executing the request, as after a fatal error
	// inside the NIC. Everything outstanding is flushed, and only verbs.EventQPFatal says why.
	FailQP
	// CutLink: the link of the request's NIC goes down just before the request executes, as with
	// [Device.SetLink], and stays down. Removing the injection puts it up again, unless SetLink was
	// called since.
	CutLink
	// KillNIC: the request's NIC is gone just before the request executes, as with [Device.Kill].
	// Removing the injection brings it back like [Device.Restore], unless Kill or Restore was
	// called since.
	KillNIC
	// OverrunCQ: the completion queue overruns when the request completes, successfully or not:
	// that completion and all later ones are lost, and the queue pairs on it fail. Successful
	// unsignaled requests do not complete, so they are not counted.
	OverrunCQ
	// Rewrite: the function Rewrite changes the request in transit, so that the peer sees something
	// other than what was posted. The completion is the usual one of the changed request.
	Rewrite
	// ArriveLate: the request completes with Status [RETRY_EXC_ERR], and arrives at the peer later,
	// as if it had waited in a switch after its sender gave up. So do, in order, the requests
	// posted after it, up to the first that Match does not select; their completions are flushed.
	// They arrive after Delay [1 ms], in a stepped fabric with an Arrive action each. They are lost
	// if the peer's queue pair has failed or was reset, has no receive for one of them, or its link
	// is down.
	ArriveLate
	// PlaceLate: an RDMA write is acknowledged as usual, but reaches the peer's memory later, as on
	// hosts where data waits between the NIC and memory: after Delay [1 ms], in a stepped fabric
	// with a Place action. It is there before any message of the same queue pair other than plain
	// writes takes effect (IBTA o9-20), and before the peer's queue pair flushes. Later writes of
	// the queue pair wait behind it; messages over other queue pairs overtake it. Other operations
	// and empty writes are not delayed, but count if Match selects them.
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

// FaultKinds returns all kinds, in order, for tests that choose at random and commands that offer a
// choice.
func FaultKinds() []FaultKind {
	list := make([]FaultKind, len(faultKindText))
	for i := range list {
		list[i] = FaultKind(i)
	}
	return list
}

// String returns the name of the kind.
func (k FaultKind) String() string {
	if int(k) < len(faultKindText) {
		return faultKindText[k].name
	}
	return "fault " + strconv.Itoa(int(k))
}

// Description returns one line that says what the kind does.
func (k FaultKind) Description() string {
	if int(k) < len(faultKindText) {
		return faultKindText[k].does
	}
	return "nothing: there is no such kind"
}

// Fault describes a fault, and the requests that it strikes.
type Fault struct {
	Device *Device // the NIC; nil means any
	QPNum  uint32  // the queue pair; 0 means any
	// Match selects requests; nil selects all. It gets a copy, and must not keep its slices or
	// write to them. It is called with the fabric locked, and must not call into it.
	Match func(*verbs.SendWR) bool
	Skip  int // how many matching requests pass first
	Count int // how many requests it strikes after that; 0 means 1, negative means all
	Kind  FaultKind

	Status    verbs.Status  // FailSend, FailAfterData, FailRecv, ArriveLate
	VendorErr uint32        // the vendor's code, beside Status
	Err       error         // RefuseSend, RefuseRecv
	Delay     time.Duration // Delay, ArriveLate, PlaceLate
	// Rewrite changes what the peer sees of a request: Imm, RKey, RemoteAddr, and Opcode between an
	// operation and its variant with an immediate. Other changes have no effect. nil changes
	// nothing. The rules of Match apply. Faults that strike the same request at its arrival or its
	// completion match the changed request.
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

// String returns what goes wrong, where and when: "fail send (REM_ACCESS_ERR) on soft1 qp 17, the
// 3rd request".
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

// ordinal returns 1st, 2nd, 3rd, 4th and so on.
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
	left  int // strikes left; negative means no limit
	hits  int
}

// Inject puts a fault in force. If several match a request at the same moment, the one injected
// first strikes. Requests that are already executing are not affected.
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

// Remove ends the fault. Queue pairs that it stalled continue, a link that it cut comes up, a NIC
// that it removed comes back. What has failed in the meantime stays failed. Removing it again does
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

// String returns the text of [Fault.String], how often the fault has struck, and whether it is
// over: "fail send (REM_ACCESS_ERR) on soft1 qp 17, the 3rd request: 1 hit, over".
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

// Hits returns how many requests it has struck.
func (i *Injection) Hits() int {
	i.f.mu.Lock()
	defer i.f.mu.Unlock()
	return i.hits
}
