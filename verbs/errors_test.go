package verbs

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
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
