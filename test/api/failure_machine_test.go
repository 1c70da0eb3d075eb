package api_test

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"reflect"
	"strings"
	"testing"

	"ibverbx"
	"ibverbx/internal/vqptest"
	"ibverbx/verbs"
)

// What a failure says to people in a line, it says to machines in fields: to log/slog and in JSON
// alike.
func TestFailedErrorToMachines(t *testing.T) {
	for _, c := range []struct {
		name string
		err  ibverbx.FailedError
		want string // but for the line itself
	}{
		{"a fragment", ibverbx.FailedError{QPNum: 1, Rail: 0, Device: "mlx5_1", RailQPNum: 18, HasID: true,
			ID: 1<<64 - 1, Opcode: verbs.WCRDMAWrite, Part: ibverbx.PartFragment, Fragment: 0, Fragments: 16,
			LocalAddr: 0x7f10, RemoteAddr: 0x7f20, Length: 524288, VendorErr: 0x81,
			Err: verbs.StatusRetryExcErr, AssumedScheme: "dqplb"},
			`{"virtual_qp":1,"id":18446744073709551615,"operation":"RDMA_WRITE","part":"fragment",` +
				`"fragment":0,"fragments":16,"local_addr":"0x7f10","remote_addr":"0x7f20","length":524288,` +
				`"rail":0,"device":"mlx5_1","rail_qp":18,"status":"RETRY_EXC_ERR","status_code":12,` +
				`"cause":"RETRY_EXC_ERR: transport retries exceeded: ` +
				`the peer or the path to it is gone","vendor_err":129,` +
				`"vendor_words":"transport retry counter exceeded","assumed_scheme":"dqplb","advice":"?"}`},
		{"a receive, scattered", ibverbx.FailedError{QPNum: 2, Rail: 1, Device: "soft0", RailQPNum: 17,
			Recv: true, HasID: true, ID: 0, Opcode: verbs.WCUnknown, Part: ibverbx.PartMessage, Fragment: -1,
			LocalAddr: 1, Length: 9, WholeRange: true, Scattered: true, Err: verbs.StatusLocLenErr},
			`{"virtual_qp":2,"recv":true,"id":0,"part":"message","local_addr":"0x1","length":9,` +
				`"whole_range":true,"scattered":true,"rail":1,"device":"soft0","rail_qp":17,` +
				`"status":"LOC_LEN_ERR","status_code":1,"cause":"` + verbs.StatusLocLenErr.Error() +
				`","advice":"?"}`},
		{"no rail and no request", ibverbx.FailedError{QPNum: 3, Rail: -1, Device: "soft0",
			Opcode: verbs.WCUnknown, Fragment: -1, Err: errors.New("a \"cause\"")},
			`{"virtual_qp":3,"device":"soft0","cause":"a \"cause\""}`},
	} {
		var want map[string]any
		decode(t, c.want, &want)
		if _, ok := want["advice"]; ok {
			want["advice"] = c.err.Advice()
		}
		var log bytes.Buffer
		slog.New(slog.NewJSONHandler(&log, nil)).Error("lost", "err", &c.err)
		var logged struct{ Err map[string]any }
		decode(t, log.String(), &logged)
		if !reflect.DeepEqual(logged.Err, want) {
			t.Errorf("%s is logged as\n%v\nwant\n%v", c.name, logged.Err, want)
		}
		want["error"] = c.err.Error()
		text, err := json.Marshal(map[string]any{"err": &c.err})
		if err != nil {
			t.Fatal(err)
		}
		var written struct{ Err map[string]any }
		decode(t, string(text), &written)
		if !reflect.DeepEqual(written.Err, want) {
			t.Errorf("%s is written as\n%v\nwant\n%v", c.name, written.Err, want)
		}
	}
}

// A failure within another error is found and written too, and a plain text log has its fields.
func TestFailedErrorOfALink(t *testing.T) {
	l := vqptest.NewLink(t, vqptest.LinkConfig{QP: ibverbx.Config{QPsPerDevice: 2}})
	bad := l.A.Write(verbs.OpRDMAWrite, 7, 0, 16)
	bad.Remote.Keys = ibverbx.NewKeys(map[verbs.DeviceID]uint32{0: 1, 1: 1})
	l.A.Send(t, bad)
	l.A.Wait(t, 1)
	var log bytes.Buffer
	slog.New(slog.NewTextHandler(&log, nil)).Error("lost", "err", l.A.Err())
	for _, field := range []string{"err.id=7", "err.operation=RDMA_WRITE", "err.status=REM_ACCESS_ERR",
		"err.device=soft0", fmt.Sprintf("err.rail_qp=%d", l.A.RailQPs[0])} {
		if !strings.Contains(log.String(), field) {
			t.Errorf("%s lacks %s", log.String(), field)
		}
	}
}

// A refused post is written in words and numbers, with what made the virtual queue pair fail.
func TestPostErrorForMachines(t *testing.T) {
	failed := &ibverbx.FailedError{QPNum: 3, Rail: -1, Device: "soft0", Opcode: verbs.WCUnknown, Fragment: -1,
		Err: errors.New("gone")}
	for _, c := range []struct {
		err  ibverbx.PostError
		want string
	}{
		{ibverbx.PostError{Op: "post send", Index: 2, ID: 1 << 63, Err: ibverbx.ErrNoKey},
			`{"op":"post send","index":2,"id":9223372036854775808,"cause":"no key"}`},
		{ibverbx.PostError{Op: "post recv", Err: ibverbx.ErrFailed, Detail: "reset", Cause: failed},
			`{"op":"post recv","index":0,"id":0,"cause":"virtual queue pair failed","detail":"reset",` +
				`"failure":{"virtual_qp":3,"device":"soft0","cause":"gone"}}`},
		{ibverbx.PostError{Op: "post recv", Err: ibverbx.ErrFailed, Cause: errors.New("gone")},
			`{"op":"post recv","index":0,"id":0,"cause":"virtual queue pair failed","failure":"gone"}`},
	} {
		var want, written map[string]any
		decode(t, c.want, &want)
		var log bytes.Buffer
		slog.New(slog.NewJSONHandler(&log, nil)).Error("refused", "err", &c.err)
		var logged struct{ Err map[string]any }
		decode(t, log.String(), &logged)
		if !reflect.DeepEqual(logged.Err, want) {
			t.Errorf("logged as\n%v\nwant\n%v", logged.Err, want)
		}
		want["error"] = c.err.Error()
		if failure, ok := want["failure"].(map[string]any); ok {
			failure["error"] = failed.Error()
		}
		text, err := json.Marshal(&c.err)
		if err != nil {
			t.Fatal(err)
		}
		decode(t, string(text), &written)
		if !reflect.DeepEqual(written, want) {
			t.Errorf("written as\n%v\nwant\n%v", written, want)
		}
	}
}

func decode(t *testing.T, text string, v any) {
	t.Helper()
	dec := json.NewDecoder(strings.NewReader(text))
	dec.UseNumber()
	if err := dec.Decode(v); err != nil {
		t.Fatalf("%s: %v", text, err)
	}
}
