package tagged_test

import (
	"context"
	"errors"
	"testing"

	"ibverbx/tagged"
	"ibverbx/verbs"
)

// TestNilArguments: nil arguments are refused.
func TestNilArguments(t *testing.T) {
	r := newRig(t, 1, 1, tagged.Config{})
	e := r.endpoint(0, tagged.EndpointConfig{})
	var none context.Context
	for name, err := range map[string]error{
		"nothing, endpoint": tagged.Connect(nil, e),
		"endpoint, nothing": tagged.Connect(e, nil),
		"nothing, nothing":  tagged.Connect(nil, nil),
		"no domain": func() error {
			_, err := tagged.NewWorker(nil, tagged.Config{})
			return err
		}(),
		"send, no context":      e.SendWait(none, 1),
		"send sync, no context": e.SendSyncWait(none, 1),
		"close, no context":     e.Close(none),
		"no memory":             func() error { _, err := r.workers[0].Register(nil); return err }(),
	} {
		if !errors.Is(err, verbs.ErrInvalid) {
			t.Errorf("%s: %v", name, err)
		}
	}
	if _, err := e.Send(1, nil); !errors.Is(err, tagged.ErrNotConnected) {
		t.Errorf("the endpoint after a Connect that was refused: %v", err)
	}
}
