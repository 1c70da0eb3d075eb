package ibverbx

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"strings"
	"time"

	"ibverbx/verbs"
)

// FailedError describes what stopped a virtual queue pair: the first error, not the later ones that
// follow from it. [VirtualQP.Err] returns it. It does not change afterwards.
//
// It is a [slog.LogValuer] and a [json.Marshaler], with one field for each fact.
//
// Unknown facts are not guessed. A single queue pair tracks nothing, so it knows only the ID of a
// failed completion: neither the operation nor whether it was a receive.
type FailedError struct {
	QPNum     uint32 // number of the virtual queue pair
	Rail      int    // index of the physical queue pair, the notify QP after the others; -1 for none
	Device    string // its device; with Rail -1 the device that failed, if any
	RailQPNum uint32 // its number on that device

	Recv   bool           // the failure is in the receive direction; false also if unknown
	HasID  bool           // a request of the program failed: ID, Opcode and the range are its own
	ID     uint64         // its ID, as set by the program
	Name   string         // a layer's name for the request, which Error shows in place of operation and ID
	Opcode verbs.WCOpcode // as in its completion; [verbs.WCUnknown] if unknown
	Part   FailedPart     // the part of the request that failed

	// Fragment is the failed fragment's index in the request, in order of address, and Fragments
	// the number of the request's fragments. Error shows them counted from 1. Fragment is -1 if the
	// failed part is no fragment, or if its index is unknown; Fragments is 0 if there are none, or
	// if their number is unknown.
	Fragment, Fragments int

	// LocalAddr, RemoteAddr and Length (in bytes) are the range that failed: that of the fragment,
	// or of the whole request if WholeRange is set. Length is 0 if the failed part carries no data,
	// as a notification. An inline payload has no LocalAddr, and a SEND or a receive no RemoteAddr.
	LocalAddr, RemoteAddr, Length uint64
	// WholeRange reports that the range is that of the whole request: a scatter list has cut
	// fragments short, and the range of the failed one is unknown.
	WholeRange bool
	// Scattered reports that LocalAddr is only the beginning of a scatter list: the rest may lie
	// elsewhere.
	Scattered bool

	// AssumedScheme is this end's scheme if the peer's card named none and no notification had
	// arrived before the failure: the two ends may use different schemes. Otherwise it is empty.
	AssumedScheme string
	// MixedKinds reports that SENDs may have met receives for notifications, or the other way
	// round: in DQPLB both use queue pair 0 if the peer's card is of the C++ original's kind. See
	// the package comment.
	MixedKinds bool

	// Failover explains, with Config.Failover, why no other queue pair could take over. It is empty
	// if the failure is not one of a queue pair or a NIC.
	Failover string

	// GaveUpAfter is the time in which the peer has not answered, as Conn.Timeout and RetryCount
	// set it, if Err is [verbs.StatusRetryExcErr]; otherwise 0. NICs may take up to four times as
	// long.
	GaveUpAfter time.Duration

	// GIDPort is the UDP port in this end's GID ([verbs.GID.UDPAddr]), if Err is
	// [verbs.StatusRetryExcErr], the peer's card does not come from this package, and its GID
	// contains none: a peer whose NIC is not one of package verbs/roce does not understand this
	// end's. Otherwise it is 0.
	GIDPort uint16

	// Recent has the last events of the virtual queue pair, at most 64, with Config.Trace; the
	// error's text and fields in logs leave them out.
	Recent []TraceEvent

	VendorErr uint32 // the NIC's own error code; 0 if it gave none
	Err       error  // a [verbs.Status], [ErrProtocol], or the error of a refused post or of a CQ
}

// FailedPart is the part of a request that failed, or the work of the virtual queue pair itself.
type FailedPart uint8

// The parts.
const (
	PartUnknown  FailedPart = iota // unknown, or no request failed
	PartFragment                   // a piece of the data of a read or write
	// the whole request, in one message: a SEND, an atomic, a receive; any request of a single
	// queue pair
	PartMessage
	// the last step of a WRITE_WITH_IMM in Spray, after its data was acknowledged
	PartNotification
	// DQPLB: a message without data, ahead of the last fragment, which proves that earlier writes
	// have arrived
	PartMarker
	PartImmediate // DQPLB: the user's immediate, behind the last fragment
	// DQPLB: a receive that the virtual queue pair keeps posted for messages of the peer
	PartCredit
	// Spray: a receive that no message takes, whose flush shows that a queue pair has failed
	PartWatch
)

var partNames = [...]string{"unknown", "fragment", "message", "notification", "marker", "immediate", "credit",
	"watch"}

// String returns the part as one word.
func (p FailedPart) String() string {
	if int(p) < len(partNames) {
		return partNames[p]
	}
	return fmt.Sprintf("part %d", uint8(p))
}

// partText describes a failed part that is neither a fragment nor the whole request.
var partText = [...]string{
	PartNotification: "notification behind its data",
	PartMarker:       "marker ahead of its last fragment",
	PartImmediate:    "immediate behind its data",
	PartCredit:       "a receive kept for messages of the peer (dqplb credit)",
	PartWatch:        "a receive kept to notice failures (spray)",
}

// Error says in one line which request failed, which part of it, where, why, and what to check.
//
//	virtual qp 1: RDMA_WRITE id 7, fragment 3 of 16 (524288 bytes from 0x7f10 to remote 0x7f20):
//	rail 1 (mlx5_1 qp 18): RETRY_EXC_ERR: transport retries exceeded: ... (vendor 0x81: ...):
//	check that ...
func (e *FailedError) Error() string {
	var b strings.Builder
	fmt.Fprintf(&b, "virtual qp %d", e.QPNum)
	switch {
	case e.Name != "":
		b.WriteString(": " + e.Name + e.which() + e.memory())
	case e.HasID:
		fmt.Fprintf(&b, ": %s id %d%s%s", e.request(), e.ID, e.which(), e.memory())
	case int(e.Part) < len(partText) && partText[e.Part] != "":
		b.WriteString(": " + partText[e.Part])
	}
	if e.Rail >= 0 {
		fmt.Fprintf(&b, ": rail %d (%s qp %d)", e.Rail, e.Device, e.RailQPNum)
	} else if e.Device != "" {
		b.WriteString(": " + e.Device)
	}
	fmt.Fprintf(&b, ": %v", e.Err)
	if e.VendorErr != 0 {
		fmt.Fprintf(&b, " (vendor 0x%x", e.VendorErr)
		if words := vendorWords(e.Err, e.VendorErr); words != "" {
			b.WriteString(": " + words)
		}
		b.WriteByte(')')
	}
	if e.GaveUpAfter != 0 {
		fmt.Fprintf(&b, ": no answer for %v (Conn.Patience)", e.gaveUpAfter())
	}
	if e.Failover != "" {
		b.WriteString(": " + e.Failover)
	}
	if advice := e.Advice(); advice != "" {
		b.WriteString(": " + advice)
	}
	return b.String()
}

// Brief says what happened in a few words, for a line that says more than this: what the NIC's own
// code means, such as "the process has died", or else Err.
func (e *FailedError) Brief() string {
	if words := vendorWords(e.Err, e.VendorErr); words != "" {
		return words
	}
	return fmt.Sprint(e.Err)
}

// gaveUpAfter returns GaveUpAfter, rounded to three digits.
func (e *FailedError) gaveUpAfter() time.Duration {
	unit := time.Duration(1)
	for e.GaveUpAfter/unit >= 1000 {
		unit *= 10
	}
	return e.GaveUpAfter.Round(unit)
}

// request returns the operation in words.
func (e *FailedError) request() string {
	switch {
	case e.Opcode != verbs.WCUnknown:
		return e.Opcode.String()
	case e.Recv:
		return "receive"
	case e.Part == PartUnknown:
		return "request or receive"
	}
	return "request"
}

// which returns the part of the request that failed, if that is not the whole.
func (e *FailedError) which() string {
	switch {
	case e.Part != PartFragment:
		if int(e.Part) < len(partText) && partText[e.Part] != "" {
			return ", " + partText[e.Part]
		}
		return ""
	case e.Fragments == 1:
		return ""
	case e.Fragment < 0 && e.Fragments == 0:
		return ", one of its fragments"
	case e.Fragment < 0:
		return fmt.Sprintf(", one of %d fragments", e.Fragments)
	case e.Fragments == 0:
		return fmt.Sprintf(", fragment %d", e.Fragment+1)
	}
	return fmt.Sprintf(", fragment %d of %d", e.Fragment+1, e.Fragments)
}

// memory returns the range of memory that failed.
func (e *FailedError) memory() string {
	if e.Length == 0 {
		return ""
	}
	local, remote := fmt.Sprintf("0x%x", e.LocalAddr), fmt.Sprintf("remote 0x%x", e.RemoteAddr)
	if e.Scattered {
		local += " and on (scattered)"
	}
	where := ""
	switch {
	case e.Recv, e.Opcode == verbs.WCSend && e.LocalAddr != 0:
		where = " at " + local
	case e.Opcode == verbs.WCSend: // inline
	case e.LocalAddr == 0:
		where = " to " + remote
	case e.Opcode == verbs.WCRDMAWrite:
		where = " from " + local + " to " + remote
	default: // reads and atomics
		where = " from " + remote + " to " + local
	}
	whole := ""
	if e.WholeRange {
		whole = "the request: "
	}
	return fmt.Sprintf(" (%s%d bytes%s)", whole, e.Length, where)
}

// Advice returns what is usually wrong in such a case and what to check. It is empty if there is
// nothing to add to the error itself.
func (e *FailedError) Advice() string {
	advice := e.causeAdvice()
	if e.MixedKinds {
		mixed := "with a peer of the C++ original's kind SENDs and notifications share queue pair 0: " +
			"use one kind on a connection, or have every SEND arrive before the first receive for a " +
			"notification is posted"
		if e.Opcode == verbs.WCSend { // it may have met a receive with memory that is too short
			mixed += "; check also that the peer's receive is as long as the message"
		}
		advice = mixed // that of the status looks for the cause elsewhere
	}
	if e.GIDPort != 0 {
		advice += fmt.Sprintf("; this end's GID contains UDP port %d, which only NICs of package "+
			"verbs/roce understand: a peer over another NIC fails to go to RTR (EINVAL): free UDP port "+
			"4791 here, which another process has or the module rdma_rxe", e.GIDPort)
	}
	if e.AssumedScheme != "" {
		advice += "; the peer's card names no scheme: check that it uses " + e.AssumedScheme + " too"
	}
	return advice
}

// causeAdvice returns the advice that follows from the cause.
func (e *FailedError) causeAdvice() string {
	var status verbs.Status
	switch {
	case e.peerDied():
		return ""
	case errors.As(e.Err, &status):
		advice := status.Advice()
		if status == verbs.StatusRemInvReqErr && e.Opcode != verbs.WCSend && e.Opcode != verbs.WCRDMAWrite {
			advice += "; reads and atomics must be granted by the peer's Conn.Access"
		}
		return advice
	}
	for _, c := range causeText {
		if errors.Is(e.Err, c.err) {
			return c.advice
		}
	}
	return ""
}

// bySchemes reports whether an error may come from ends with different schemes: messages meet
// receives of another kind, or none.
func bySchemes(err error) bool {
	var status verbs.Status
	if !errors.As(err, &status) {
		return errors.Is(err, ErrProtocol)
	}
	switch status {
	case verbs.StatusLocLenErr, verbs.StatusLocQPOpErr, verbs.StatusWRFlushErr, verbs.StatusRemInvReqErr,
		verbs.StatusRemOpErr, verbs.StatusRetryExcErr, verbs.StatusRNRRetryExcErr:
		return true
	}
	return false
}

// causeText has the advice for causes that are not a status. The first match counts.
var causeText = [...]struct {
	err    error
	advice string
}{
	{ErrProtocol, "check that the peer's queue pairs are used by its virtual queue pair alone, and that " +
		"both ends exchanged cards of this connection"},
	{verbs.ErrDeviceGone, "check the NIC and the kernel's log: close, and open anew on the NICs that are " +
		"there"},
	{verbs.ErrOverrun, "make the CQ deeper, or let nothing complete on it but its virtual queue pairs, for " +
		"which room is reserved"},
	{verbs.ErrState, "the queue pair was not in the state for it: look for an earlier error, here or at " +
		"the peer, or for who modified the queue pair"},
	{verbs.ErrClosed, "a physical queue pair was closed under its virtual one: leave that to " +
		"VirtualQP.Close"},
	{verbs.ErrNotSupported, "check what the NIC supports: run 'ibverbx devices'"},
}

// Unwrap returns the cause.
func (e *FailedError) Unwrap() error { return e.Err }

// vendorText has the meaning of NICs' own codes, from public sources. An entry applies only
// together with its status: other vendors may use the same number for something else, hardly with
// the same status.
//
// Sources, all on ConnectX NICs, whose "vendor syndrome" this is: 0x81 Oracle support document
// 1614576.1 (driver mcxnex) and github.com/NVIDIA/nccl issue 1405 (status 12 with vendor error
// 129); 0x88 forums.developer.nvidia.com topic 207715 (driver mcxnex) and github.com/openucx/ucx
// issue 1569 (mlx5); 0xf9 github.com/linux-nvme/nvme-cli issue 3268 (mlx5, syndrome 5) and
// github.com/NVIDIA/nccl issue 1353 (status 5 with vendor error 249). The software NICs use 0xf9 in
// the same way.
var vendorText = [...]struct {
	status verbs.Status
	code   uint32
	words  string
}{
	{verbs.StatusRetryExcErr, 0x81, "transport retry counter exceeded"},
	{verbs.StatusRetryExcErr, vendorDied, "the process has died"},
	{verbs.StatusRemAccessErr, 0x88, "protection error at the remote buffer"},
	{verbs.StatusWRFlushErr, 0xf9, "flushed"},
	{verbs.StatusWRFlushErr, vendorDied, "the process has died"},
}

// vendorDied is the code of package verbs/shm for a peer that is known to be gone: no NIC has
// waited for it, and there is nothing to check.
const vendorDied = 0x53484d01

// peerDied reports whether the peer's process is known to be gone.
func (e *FailedError) peerDied() bool {
	return e.VendorErr == vendorDied && vendorWords(e.Err, e.VendorErr) != ""
}

// vendorWords returns what the vendor's code means; empty if unknown.
func vendorWords(err error, code uint32) string {
	var status verbs.Status
	if !errors.As(err, &status) {
		return ""
	}
	for _, v := range vendorText {
		if v.status == status && v.code == code {
			return v.words
		}
	}
	return ""
}

// LogValue makes log/slog write the known fields, in words and numbers.
func (e *FailedError) LogValue() slog.Value { return slog.GroupValue(e.fields()...) }

// MarshalJSON writes the known fields, in words and numbers, and the whole line as "error". IDs are
// numbers of 64 bits, addresses are strings like "0x7f10"; fragments count from 0. Recent is
// "recent".
func (e *FailedError) MarshalJSON() ([]byte, error) {
	fields := e.fields()
	if len(e.Recent) != 0 {
		fields = append(fields, slog.Any("recent", e.Recent))
	}
	return marshalFields(fields, e)
}

// LogValue makes log/slog write the fields in words and numbers, and Cause in its own form.
func (e *PostError) LogValue() slog.Value { return slog.GroupValue(e.fields()...) }

// MarshalJSON writes the fields in words and numbers, Cause in its own form as "failure", and the
// whole line as "error".
func (e *PostError) MarshalJSON() ([]byte, error) { return marshalFields(e.fields(), e) }

// fields returns what is known about the refusal.
func (e *PostError) fields() []slog.Attr {
	list := []slog.Attr{slog.String("op", e.Op), slog.Int("index", e.Index), slog.Uint64("id", e.ID)}
	if e.Err != nil {
		list = append(list, slog.String("cause", e.Err.Error()))
	}
	if e.Detail != "" {
		list = append(list, slog.String("detail", e.Detail))
	}
	var failed *FailedError
	switch {
	case errors.As(e.Cause, &failed):
		list = append(list, slog.Any("failure", failed))
	case e.Cause != nil:
		list = append(list, slog.String("failure", e.Cause.Error()))
	}
	return list
}

// marshalFields writes the fields of an error, and its text as "error".
func marshalFields(fields []slog.Attr, of error) ([]byte, error) {
	var b bytes.Buffer
	for i, f := range append(fields, slog.String("error", of.Error())) {
		value, err := json.Marshal(f.Value.Any())
		if err != nil {
			return nil, err
		}
		sep := ','
		if i == 0 {
			sep = '{'
		}
		fmt.Fprintf(&b, "%c%q:%s", sep, f.Key, value)
	}
	b.WriteByte('}')
	return b.Bytes(), nil
}

// fields returns what is known about the failure, in the order of Error's text.
func (e *FailedError) fields() []slog.Attr {
	list := append([]slog.Attr{slog.Uint64("virtual_qp", uint64(e.QPNum))}, e.requestFields()...)
	if e.Rail >= 0 {
		list = append(list, slog.Int("rail", e.Rail))
	}
	if e.Device != "" {
		list = append(list, slog.String("device", e.Device))
	}
	if e.Rail >= 0 {
		list = append(list, slog.Uint64("rail_qp", uint64(e.RailQPNum)))
	}
	return append(list, e.causeFields()...)
}

// requestFields returns which part of which request failed.
func (e *FailedError) requestFields() (list []slog.Attr) {
	add := func(known bool, a slog.Attr) {
		if known {
			list = append(list, a)
		}
	}
	add(e.Recv, slog.Bool("recv", true))
	add(e.HasID, slog.Uint64("id", e.ID))
	add(e.Opcode != verbs.WCUnknown, slog.String("operation", e.Opcode.String()))
	add(e.Part != PartUnknown, slog.String("part", e.Part.String()))
	add(e.Part == PartFragment && e.Fragment >= 0, slog.Int("fragment", e.Fragment))
	add(e.Fragments != 0, slog.Int("fragments", e.Fragments))
	add(e.LocalAddr != 0, slog.String("local_addr", fmt.Sprintf("%#x", e.LocalAddr)))
	add(e.RemoteAddr != 0, slog.String("remote_addr", fmt.Sprintf("%#x", e.RemoteAddr)))
	add(e.Length != 0, slog.Uint64("length", e.Length))
	add(e.WholeRange, slog.Bool("whole_range", true))
	add(e.Scattered, slog.Bool("scattered", true))
	return list
}

// causeFields returns why it failed.
func (e *FailedError) causeFields() (list []slog.Attr) {
	var status verbs.Status
	if errors.As(e.Err, &status) {
		list = append(list, slog.String("status", status.Name()), slog.Uint64("status_code", uint64(status)))
	}
	if e.Err != nil {
		list = append(list, slog.String("cause", e.Err.Error()))
	}
	if e.VendorErr != 0 {
		list = append(list, slog.Uint64("vendor_err", uint64(e.VendorErr)))
		if words := vendorWords(e.Err, e.VendorErr); words != "" {
			list = append(list, slog.String("vendor_words", words))
		}
	}
	if e.GaveUpAfter != 0 {
		list = append(list, slog.String("gave_up_after", e.gaveUpAfter().String()))
	}
	if e.GIDPort != 0 {
		list = append(list, slog.Uint64("gid_port", uint64(e.GIDPort)))
	}
	if e.Failover != "" {
		list = append(list, slog.String("failover", e.Failover))
	}
	if e.MixedKinds {
		list = append(list, slog.Bool("mixed_kinds", true))
	}
	if e.AssumedScheme != "" {
		list = append(list, slog.String("assumed_scheme", e.AssumedScheme))
	}
	if advice := e.Advice(); advice != "" {
		list = append(list, slog.String("advice", advice))
	}
	return list
}
