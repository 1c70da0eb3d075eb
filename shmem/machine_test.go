package shmem_test

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"log/slog"
	"testing"

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
		if pe.ID() == 1 {
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
		text, failed := json.Marshal(map[string]error{"err": err})
		if failed != nil {
			t.Fatal(failed)
		}
		var log bytes.Buffer
		slog.New(slog.NewJSONHandler(&log, nil)).Error("lost", "err", err)
		for how, text := range map[string][]byte{"json": text, "slog": log.Bytes()} {
			var got struct {
				Err struct {
					Error string
					Cause json.RawMessage
				}
			}
			if failed := json.Unmarshal(text, &got); failed != nil || got.Err.Error != err.Error() ||
				!bytes.Contains(got.Err.Cause, []byte(`"pe":1,`)) ||
				!bytes.Contains(got.Err.Cause, []byte(`"peer":"PE 1"`)) {
				t.Errorf("%s, %s: %s, %v", name, how, text, failed)
			}
		}
	}
}
