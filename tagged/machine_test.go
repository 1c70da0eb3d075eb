package tagged_test

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"log/slog"
	"strings"
	"testing"

	"ibverbx/tagged"
)

// TestErrorsForMachines: what calls return after the peer has gone is written in fields, and names
// the package once.
func TestErrorsForMachines(t *testing.T) {
	r, a, b := pair(t, 1, impatient())
	if err := b.Abort(); err != nil {
		t.Fatal(err)
	}
	_, none := a.Worker().RecvWait(background(r), 1, tagged.Exact, make([]byte, 8))
	_, gone := a.RecvWait(background(r), 1, tagged.Exact, make([]byte, 8))
	_, refused := a.Send(1, nil)
	if !errors.Is(none, tagged.ErrNoPeer) {
		t.Error(none)
	}
	for name, err := range map[string]error{"receive": gone, "receive of any": none, "send": refused} {
		if err == nil || strings.Count(err.Error(), "tagged: ") != 1 {
			t.Errorf("%s: %v: want the package's name once", name, err)
		}
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
					Cause struct{ Peer, Kind string }
				}
			}
			if failed := json.Unmarshal(text, &got); failed != nil || got.Err.Error != err.Error() ||
				got.Err.Cause.Peer != a.Name() || got.Err.Cause.Kind == "" {
				t.Errorf("%s, %s: %s, %v", name, how, text, failed)
			}
		}
	}
	var nowhere context.Context
	text, err := json.Marshal(a.SendWait(nowhere, 1))
	if want := `"error":"tagged: send: `; err != nil || !bytes.Contains(text, []byte(want)) {
		t.Errorf("a refusal: %s, %v", text, err)
	}
}
