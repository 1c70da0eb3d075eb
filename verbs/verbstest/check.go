package verbstest

import (
	"bytes"
	"errors"
	"slices"
	"testing"

	"ibverbx/verbs"
)

// wantErr checks that a call was refused with a sentinel, and that the error is one of package
// verbs that names an operation.
func wantErr(t testing.TB, what string, err, sentinel error) {
	t.Helper()
	if !errors.Is(err, sentinel) {
		t.Errorf("%s: error %q, want %q", what, text(err), sentinel)
		return
	}
	if op := (*verbs.OpError)(nil); !errors.As(err, &op) || op.Op == "" {
		t.Errorf("%s: %q (%T) is no OpError that names the call", what, err, err)
	}
}

func text(err error) string {
	if err == nil {
		return "none"
	}
	return err.Error()
}

// wantOK checks that completions are of these requests, in this order, of this queue pair, and
// successful.
func (e *End) wantOK(wcs []verbs.WC, ids ...uint64) {
	e.T.Helper()
	e.wantStatus(wcs, []verbs.Status{verbs.StatusSuccess}, ids...)
}

// wantFlushed does the same for flushed requests.
func (e *End) wantFlushed(wcs []verbs.WC, ids ...uint64) {
	e.T.Helper()
	e.wantStatus(wcs, []verbs.Status{verbs.StatusWRFlushErr}, ids...)
}

// wantStatus checks the fields that are defined for every status: ID, Status and QPNum.
func (e *End) wantStatus(wcs []verbs.WC, allowed []verbs.Status, ids ...uint64) {
	e.T.Helper()
	if len(wcs) != len(ids) {
		e.T.Fatalf("%d completions, want %d", len(wcs), len(ids))
	}
	for i, wc := range wcs {
		if wc.ID != ids[i] || !slices.Contains(allowed, wc.Status) || wc.QPNum != e.QP.Num() {
			names := make([]string, len(allowed))
			for j, s := range allowed {
				names[j] = s.Name()
			}
			e.T.Fatalf("completion %d of %d: request %d with %s on queue pair %d; want request %d with %v "+
				"on queue pair %d",
				i+1, len(wcs), wc.ID, wc.Status.Name(), wc.QPNum, ids[i], names, e.QP.Num())
		}
	}
}

// wantNone checks that a completion queue is empty.
func (e *End) wantNone(cq verbs.CQ) {
	e.T.Helper()
	var wcs [1]verbs.WC
	if n, err := cq.Poll(wcs[:]); n != 0 || err != nil {
		e.T.Errorf("an unexpected completion: request %d with %s (poll: %d, %v)", wcs[0].ID,
			wcs[0].Status.Name(), n, err)
	}
}

// wantState waits until the queue pair is in a state. After a fatal completion it may take a
// moment.
func (e *End) wantState(want verbs.QPState) {
	e.T.Helper()
	if !e.Until(func() bool { return e.QP.State() == want }) {
		e.T.Errorf("queue pair in %v, want %v", e.QP.State(), want)
	}
}

// wantBytes compares memory and reports where it first differs.
func wantBytes(t testing.TB, what string, got, want []byte) {
	t.Helper()
	if bytes.Equal(got, want) {
		return
	}
	if len(got) != len(want) {
		t.Errorf("%s: %d bytes, want %d", what, len(got), len(want))
		return
	}
	for i := range got {
		if got[i] != want[i] {
			t.Errorf("%s: byte %d of %d is %#x, want %#x", what, i, len(got), got[i], want[i])
			return
		}
	}
}

// ids returns count request numbers from first.
func ids(first uint64, count int) []uint64 {
	list := make([]uint64, count)
	for i := range list {
		list[i] = first + uint64(i)
	}
	return list
}

// probe sends an empty signaled write, a request that always works on a connected pair. If its
// completion is the next one, no other was due before it.
func (e *End) probe(id uint64) {
	e.T.Helper()
	e.PostSend(verbs.SendWR{ID: id, Opcode: verbs.OpRDMAWrite, Flags: verbs.SendSignaled})
	e.wantOK(e.WaitSend(1), id)
}
