package ibverbx

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"

	"ibverbx/verbs"
)

// LogValue has log/slog write the fields that are known, in words and numbers.
func (e *FailedError) LogValue() slog.Value { return slog.GroupValue(e.fields()...) }

// MarshalJSON writes the fields that are known, in words and numbers, and the whole line as
// "error". IDs are numbers of 64 bits, addresses texts like "0x7f10"; fragments count from 0.
func (e *FailedError) MarshalJSON() ([]byte, error) { return marshalFields(e.fields(), e) }

// LogValue has log/slog write the fields in words and numbers, and Cause in its own form.
func (e *PostError) LogValue() slog.Value { return slog.GroupValue(e.fields()...) }

// MarshalJSON writes the fields in words and numbers, Cause in its own form as "failure", and the
// whole line as "error".
func (e *PostError) MarshalJSON() ([]byte, error) { return marshalFields(e.fields(), e) }

// fields are what is known of the refusal.
func (e *PostError) fields() []slog.Attr {
	list := []slog.Attr{slog.String("op", e.Op), slog.Int("index", e.Index), slog.Uint64("id", e.ID)}
	if e.Err != nil {
		list = append(list, slog.String("cause", e.Err.Error()))
	}
	if e.Detail != "" {
		list = append(list, slog.String("detail", e.Detail))
	}
	var failed *FailedError
	switch {
	case errors.As(e.Cause, &failed):
		list = append(list, slog.Any("failure", failed))
	case e.Cause != nil:
		list = append(list, slog.String("failure", e.Cause.Error()))
	}
	return list
}

// marshalFields writes fields, and the text of the error that has them as "error".
func marshalFields(fields []slog.Attr, of error) ([]byte, error) {
	var b bytes.Buffer
	for i, f := range append(fields, slog.String("error", of.Error())) {
		value, err := json.Marshal(f.Value.Any())
		if err != nil {
			return nil, err
		}
		sep := ','
		if i == 0 {
			sep = '{'
		}
		fmt.Fprintf(&b, "%c%q:%s", sep, f.Key, value)
	}
	b.WriteByte('}')
	return b.Bytes(), nil
}

// fields are what is known of the failure, in the order in which Error says it.
func (e *FailedError) fields() []slog.Attr {
	list := append([]slog.Attr{slog.Uint64("virtual_qp", uint64(e.QPNum))}, e.requestFields()...)
	if e.Rail >= 0 {
		list = append(list, slog.Int("rail", e.Rail))
	}
	if e.Device != "" {
		list = append(list, slog.String("device", e.Device))
	}
	if e.Rail >= 0 {
		list = append(list, slog.Uint64("rail_qp", uint64(e.RailQPNum)))
	}
	return append(list, e.causeFields()...)
}

// requestFields say which part of which request failed.
func (e *FailedError) requestFields() (list []slog.Attr) {
	add := func(known bool, a slog.Attr) {
		if known {
			list = append(list, a)
		}
	}
	add(e.Recv, slog.Bool("recv", true))
	add(e.HasID, slog.Uint64("id", e.ID))
	add(e.Opcode != verbs.WCUnknown, slog.String("operation", e.Opcode.String()))
	add(e.Part != PartUnknown, slog.String("part", e.Part.String()))
	add(e.Part == PartFragment && e.Fragment >= 0, slog.Int("fragment", e.Fragment))
	add(e.Fragments != 0, slog.Int("fragments", e.Fragments))
	add(e.LocalAddr != 0, slog.String("local_addr", fmt.Sprintf("%#x", e.LocalAddr)))
	add(e.RemoteAddr != 0, slog.String("remote_addr", fmt.Sprintf("%#x", e.RemoteAddr)))
	add(e.Length != 0, slog.Uint64("length", e.Length))
	add(e.WholeRange, slog.Bool("whole_range", true))
	add(e.Scattered, slog.Bool("scattered", true))
	return list
}

// causeFields say why it failed.
func (e *FailedError) causeFields() (list []slog.Attr) {
	var status verbs.Status
	if errors.As(e.Err, &status) {
		list = append(list, slog.String("status", status.Name()), slog.Uint64("status_code", uint64(status)))
	}
	if e.Err != nil {
		list = append(list, slog.String("cause", e.Err.Error()))
	}
	if e.VendorErr != 0 {
		list = append(list, slog.Uint64("vendor_err", uint64(e.VendorErr)))
		if words := vendorWords(e.Err, e.VendorErr); words != "" {
			list = append(list, slog.String("vendor_words", words))
		}
	}
	if e.Failover != "" {
		list = append(list, slog.String("failover", e.Failover))
	}
	if e.MixedKinds {
		list = append(list, slog.Bool("mixed_kinds", true))
	}
	if e.AssumedScheme != "" {
		list = append(list, slog.String("assumed_scheme", e.AssumedScheme))
	}
	if advice := e.Advice(); advice != "" {
		list = append(list, slog.String("advice", advice))
	}
	return list
}
