package bench

import (
	"errors"

	"ibverbx"
	"ibverbx/cmd/ibverbx/internal/layers"
	"ibverbx/verbs"
)

// Setback is a failure in the middle of a cell, and what was done about it: nothing if the cell
// could not go on.
type Setback struct {
	Failure  *Failure  `json:"failure,omitempty"`
	Recovery *Recovery `json:"recovery,omitempty"`
}

// Failure is what happened: what was injected, what each end saw of it, and what became of
// everything that was accepted.
type Failure struct {
	Faults []FaultReport `json:"faults,omitempty"` // that have struck since the failure before
	Ends   []EndFailure  `json:"ends"`
	// of the round that failed, those whose send succeeded
	Acknowledged int `json:"acknowledged_messages"`
	// of the round that failed, those whose receive succeeded
	Notified int `json:"notified_messages"`
	Compared int `json:"compared_messages"` // of these, those whose bytes were compared
	// one completion for each request, in order; all that was notified was there
	Kept   bool   `json:"promises_kept"`
	Broken string `json:"broken,omitempty"` // what was not kept
}

// EndFailure is a failure as an end saw it.
type EndFailure struct {
	End   string          `json:"end"`
	Error *FirstError     `json:"first_error,omitempty"` // none when the end noticed nothing
	Sends layers.Outcomes `json:"sends"`
	Recvs layers.Outcomes `json:"receives"`
}

// FirstError is what stopped a virtual queue pair, as its error says.
type FirstError struct {
	Text   string `json:"text"`      // all of it in one line
	Rail   int    `json:"rail"`      // -1 for none
	Notify bool   `json:"notify_qp"` // the rail is the notify QP
	Device string `json:"device"`    // of the rail
	QPNum  uint32 `json:"qp_num"`    // likewise
	Opcode string `json:"opcode"`    // of the request; empty when that is not known
	Part   string `json:"part"`      // which part of it failed, as [ibverbx.FailedPart] says
	Recv   bool   `json:"receive"`   // it was a receive
	// of the round that failed, from 0; -1 when no message was concerned
	Message   int    `json:"message"`
	Fragment  int    `json:"fragment"`       // from 0; -1 when that is not known
	Fragments int    `json:"fragments"`      // 0 when that is not known
	Local     uint64 `json:"local_address"`  // with Length 0 there is none
	Remote    uint64 `json:"remote_address"` // 0 for none
	Length    uint64 `json:"length"`         // bytes
	Whole     bool   `json:"whole_request"`  // the addresses are those of the whole request
	Status    string `json:"status"`         // its name; empty when the cause is no status
	Words     string `json:"words"`          // the status, or the cause, in words
	Vendor    uint32 `json:"vendor_error"`   // 0 for none
	Advice    string `json:"advice"`         // what to check
}

// Recovery is what was done after a failure, and how the run continued.
type Recovery struct {
	Action   string              `json:"action"`         // "reset" or "rebuilt"
	What     string              `json:"what"`           // in words
	Waited   Seconds             `json:"waited_seconds"` // until what was away for a while was back
	Seconds  float64             `json:"seconds"`        // from the reset to the new connection
	NICs     map[string][]string `json:"nics"`           // in use since, of each end
	Rails    int                 `json:"rails"`          // likewise
	Messages int                 `json:"messages"`       // that came through after it, in the same cell
	Verified int                 `json:"verified_messages"`
}

// The ways to continue.
const (
	ActionReset   = "reset"
	ActionRebuilt = "rebuilt"
)

// firstError is what a queue pair says of its failure; nil while it works.
func firstError(vqp *ibverbx.VirtualQP) *FirstError {
	err := vqp.Err()
	if err == nil {
		return nil
	}
	f := &FirstError{Text: err.Error(), Rail: -1, Message: -1, Fragment: -1, Words: err.Error()}
	var why *ibverbx.FailedError
	if !errors.As(err, &why) {
		return f
	}
	f.Rail, f.Device, f.QPNum, f.Notify = why.Rail, why.Device, why.RailQPNum, why.Rail >= vqp.DataRails()
	f.Part, f.Recv, f.Fragment, f.Fragments = why.Part.String(), why.Recv, why.Fragment, why.Fragments
	f.Local, f.Remote, f.Length, f.Whole = why.LocalAddr, why.RemoteAddr, why.Length, why.WholeRange
	f.Vendor, f.Advice = why.VendorErr, why.Advice()
	if why.HasID {
		var recv bool
		f.Message, recv = layers.MessageOf(why.ID)
		f.Recv = f.Recv || recv
		if why.Opcode != verbs.WCUnknown {
			f.Opcode = why.Opcode.String()
		}
	}
	if why.Err != nil {
		f.Words = why.Err.Error()
	}
	var status verbs.Status
	if errors.As(why.Err, &status) {
		f.Status, f.Words = status.Name(), status.String()
	}
	return f
}
