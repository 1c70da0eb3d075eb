package shmem_test

import (
	"bytes"
	"encoding/json"
	"errors"
	"log/slog"
	"testing"

	"ibverbx/shmem"
	"ibverbx/transport"
)

// marshaled is an error with a form in JSON.
type marshaled struct{ error }

func (marshaled) MarshalJSON() ([]byte, error) { return []byte(`{"status":12}`), nil }

// TestPEErrorForMachines: JSON and slog get words and numbers.
func TestPEErrorForMachines(t *testing.T) {
	text := errors.New("peer failed: retry count exceeded")
	for _, c := range []struct {
		err       error
		json, log string
	}{
		{text, `{"pe":3,"error":"peer failed: retry count exceeded"}`,
			`{"err":{"pe":3,"err":"peer failed: retry count exceeded"}}`},
		{marshaled{text}, `{"pe":3,"error":"peer failed: retry count exceeded","err":{"status":12}}`,
			`{"err":{"pe":3,"err":{"status":12}}}`},
	} {
		err := &shmem.PEError{PE: 3, Err: c.err}
		if got, failed := json.Marshal(err); failed != nil || string(got) != c.json {
			t.Errorf("JSON: %s, %v: want %s", got, failed, c.json)
		}
		var b bytes.Buffer
		drop := func(_ []string, a slog.Attr) slog.Attr {
			if a.Key == slog.TimeKey || a.Key == slog.LevelKey || a.Key == slog.MessageKey {
				return slog.Attr{}
			}
			return a
		}
		slog.New(slog.NewJSONHandler(&b, &slog.HandlerOptions{ReplaceAttr: drop})).Error("x", "err", err)
		if got := string(bytes.TrimSpace(b.Bytes())); got != c.log {
			t.Errorf("slog: %s: want %s", got, c.log)
		}
	}
	// A real failure.
	failed := &transport.EndpointError{Peer: "PE 3", Err: transport.ErrPeerFailed, Cause: text}
	got, err := json.Marshal(&shmem.PEError{PE: 3, Err: failed})
	if err != nil || !bytes.Contains(got, []byte(`"pe":3`)) || !bytes.Contains(got, []byte("retry count")) {
		t.Errorf("%s, %v", got, err)
	}
}
