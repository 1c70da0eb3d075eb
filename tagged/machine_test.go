package tagged_test

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"strings"
	"testing"

	"ibverbx/internal/errwrap/errwraptest"
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
	_, after := a.Worker().RecvWait(background(r), 1, tagged.Exact, make([]byte, 8))
	_, gone := a.RecvWait(background(r), 1, tagged.Exact, make([]byte, 8))
	_, refused := a.Send(1, nil)
	if !errors.Is(none, tagged.ErrNoPeer) {
		t.Error(none)
	}
	for name, err := range map[string]error{
		"receive": gone, "receive of any": none, "receive of any, afterwards": after, "send": refused,
	} {
		if err == nil || strings.Count(err.Error(), "tagged: ") != 1 {
			t.Errorf("%s: %v: want the package's name once", name, err)
		}
		errwraptest.Check(t, name, err, func(cause []byte) bool {
			var got struct{ Peer, Kind string }
			return json.Unmarshal(cause, &got) == nil && got.Peer == a.Name() && got.Kind != ""
		})
	}
	var nowhere context.Context
	text, err := json.Marshal(a.SendWait(nowhere, 1))
	if want := `"error":"tagged: send: `; err != nil || !bytes.Contains(text, []byte(want)) {
		t.Errorf("a refusal: %s, %v", text, err)
	}
}
