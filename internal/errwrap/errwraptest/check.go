// Package errwraptest checks how errors write themselves to JSON and slog.
package errwraptest

import (
	"bytes"
	"encoding/json"
	"log/slog"
	"testing"
)

// Check writes an error to JSON, as a value of a document, and to slog. It checks that both contain
// the error's text, and a cause for which right returns true.
func Check(t testing.TB, name string, err error, right func(cause []byte) bool) {
	t.Helper()
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
			!right(got.Err.Cause) {
			t.Errorf("%s, %s: %s, %v", name, how, text, failed)
		}
	}
}
