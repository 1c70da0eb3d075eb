package shmem_test

import (
	"bytes"
	"context"
	"errors"
	"testing"

	"ibverbx/internal/errwrap/errwraptest"
	"ibverbx/shmem"
)

// TestErrorsForMachines: the error of a call after a NIC has died, and that of the program, are
// written in fields.
func TestErrorsForMachines(t *testing.T) {
	l := newTestbed(t, shape{2, 1, 1}, quick())
	l.mayFail = true
	l.fabric.Device(1).Kill()
	var called error
	ran := l.world.Run(l.ctx, func(ctx context.Context, pe *shmem.PE) error {
		if pe.Rank() == 1 {
			return nil
		}
		called = pe.Barrier(ctx)
		return called
	})
	var gone *shmem.PEError
	if !errors.As(ran, &gone) || !errors.As(called, &gone) || gone.PE != 1 {
		t.Fatalf("%v, %v", called, ran)
	}
	for name, err := range map[string]error{"barrier": called, "run": ran} {
		errwraptest.Check(t, name, err, func(cause []byte) bool {
			return bytes.Contains(cause, []byte(`"pe":1,`)) && bytes.Contains(cause, []byte(`"peer":"PE 1"`))
		})
	}
}
