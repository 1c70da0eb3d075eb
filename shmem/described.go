package shmem

import (
	"encoding/json"
	"errors"
	"log/slog"
)

// described is an error with words around it. It passes on the form for machines of the error
// within, which [PEError] has, for one.
type described struct {
	err error // with its words
}

// Error is the text with its words.
func (e *described) Error() string { return e.err.Error() }

// Unwrap returns what is wrapped.
func (e *described) Unwrap() error { return e.err }

// LogValue has slog write the error within in its own way, and the text where it has none.
func (e *described) LogValue() slog.Value {
	var own slog.LogValuer
	if errors.As(e.err, &own) {
		return slog.GroupValue(slog.String("error", e.Error()), slog.Any("cause", own))
	}
	return slog.StringValue(e.Error())
}

// MarshalJSON writes the text, and the error within in its own form where it has one.
func (e *described) MarshalJSON() ([]byte, error) {
	form := struct {
		Error string         `json:"error"`
		Cause json.Marshaler `json:"cause,omitempty"`
	}{Error: e.Error()}
	_ = errors.As(e.err, &form.Cause)
	return json.Marshal(form)
}
