package verbs

import (
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"slices"
	"strings"
	"syscall"
	"testing"
)

func TestOpErrorText(t *testing.T) {
	for _, c := range []struct {
		err  OpError
		want string
	}{
		{OpError{Op: "post send", Device: "soft0", QPNum: 17, Detail: "128 outstanding, the queue holds 128",
			Err: ErrQueueFull},
			"post send: soft0 qp 17: queue full: 128 outstanding, the queue holds 128"},
		{OpError{Op: "register", Device: "mlx5_0", Err: syscall.ENOMEM},
			"register: mlx5_0: cannot allocate memory"},
		{OpError{Op: "parse gid", Err: ErrInvalid}, "parse gid: invalid argument"},
		{OpError{Op: "write", Device: "rxe0", QPNum: 1, Err: StatusRetryExcErr},
			"write: rxe0 qp 1: RETRY_EXC_ERR: transport retries exceeded: " +
				"the peer or the path to it is gone"},
	} {
		if got := c.err.Error(); got != c.want {
			t.Errorf("%q, want %q", got, c.want)
		}
	}
}

func TestOpErrorIs(t *testing.T) {
	err := fmt.Errorf("outer: %w",
		&OpError{Op: "register", Err: fmt.Errorf("%w (%w)", ErrNoMemory, syscall.ENOMEM)})
	if !errors.Is(err, ErrNoMemory) || !errors.Is(err, syscall.ENOMEM) || errors.Is(err, ErrQueueFull) {
		t.Errorf("%v is not recognised", err)
	}
	var op *OpError
	if !errors.As(err, &op) || op.Op != "register" {
		t.Errorf("%v: %+v", err, op)
	}
	modify := error(&OpError{Op: "modify", Err: &ModifyError{From: StateReset, To: StateRTS}})
	if !errors.Is(modify, ErrState) || errors.Is(modify, ErrInvalid) ||
		!errors.As(modify, new(*ModifyError)) {
		t.Errorf("%v is not recognised", modify)
	}
}

func TestIsTransient(t *testing.T) {
	for err, want := range map[error]bool{
		ErrQueueFull: true, ErrNoMemory: true, ErrState: false, ErrClosed: false, ErrInvalid: false,
		ErrDeviceGone: false, nil: false,
	} {
		if got := IsTransient(err); got != want {
			t.Errorf("%v: transient %t, want %t", err, got, want)
		}
		if err != nil && IsTransient(&OpError{Op: "x", Err: err}) != want {
			t.Errorf("%v in an OpError: not %t", err, want)
		}
	}
}

func TestErrClosed(t *testing.T) {
	err := error(&OpError{Op: "poll", Err: ErrClosed})
	if !errors.Is(err, ErrClosed) || !errors.Is(err, fs.ErrClosed) || !errors.Is(err, os.ErrClosed) {
		t.Errorf("%v is not recognised as closed", err)
	}
	if errors.Is(err, ErrBusy) || errors.Is(err, fs.ErrExist) {
		t.Error("recognised where it should not be")
	}
}

// The statuses of what this package does not have, and some from the future.
var unnamedStatuses = map[Status]bool{
	3: true, 6: true, 14: true, 15: true, 17: true, 18: true, 22: true, 23: true, 24: true, 1 << 31: true,
}

func TestStatus(t *testing.T) {
	seen := map[string]Status{}
	for s := StatusSuccess; s <= StatusGeneralErr; s++ {
		if unnamedStatuses[s] {
			continue
		}
		name := s.Name()
		if other, dup := seen[name]; dup || name == "" || s.String() == "" {
			t.Errorf("status %d: name %q, words %q, name also of %d", s, name, s.String(), other)
		}
		seen[name] = s
		if got := s.Error(); got != name+": "+s.String() {
			t.Errorf("status %d: error %q", s, got)
		}
		if s != StatusSuccess && !strings.HasSuffix(name, "_ERR") {
			t.Errorf("status %d: name %q", s, name)
		}
	}
	for _, s := range slices.Sorted(maps.Keys(unnamedStatuses)) {
		want := fmt.Sprintf("STATUS_%d: unknown status %d", uint32(s), uint32(s))
		if got := s.Error(); got != want || s.String() != strings.TrimPrefix(want, s.Name()+": ") {
			t.Errorf("status %d without a name: %q, want %q", uint32(s), got, want)
		}
	}
	if StatusSuccess.Err() != nil {
		t.Error("success is an error")
	}
	err := fmt.Errorf("write: %w", StatusRetryExcErr.Err())
	if !errors.Is(err, StatusRetryExcErr) || errors.Is(err, StatusWRFlushErr) {
		t.Errorf("%v is not recognised", err)
	}
	var s Status
	if !errors.As(err, &s) || s != StatusRetryExcErr {
		t.Errorf("%v: status %v", err, s)
	}
}

// Advice is there for every status that a reliable connection can end with, and reads on behind an
// error's words.
func TestStatusAdvice(t *testing.T) {
	seen := map[string]Status{}
	for s := StatusSuccess; s <= StatusGeneralErr+3; s++ {
		advice := s.Advice()
		if (advice == "") != (s == StatusSuccess || unnamedStatuses[s]) {
			t.Errorf("%s: advice %q", s.Name(), advice)
		}
		if advice == "" {
			continue
		}
		if other, dup := seen[advice]; dup {
			t.Errorf("%s and %s have the same advice", s.Name(), other.Name())
		}
		seen[advice] = s
		if strings.ToLower(advice[:1]) != advice[:1] || strings.HasSuffix(advice, ".") ||
			strings.Contains(advice, "\n") {
			t.Errorf("%s: advice %q does not read on in a line", s.Name(), advice)
		}
	}
	if Status(1<<31).Advice() != "" {
		t.Error("advice for a status from the future")
	}
}
