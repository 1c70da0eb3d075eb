package api_test

import (
	"bytes"
	"encoding/json"
	"errors"
	"log/slog"
	"reflect"
	"strings"
	"testing"
	"time"

	"ibverbx"
	"ibverbx/internal/vqptest"
	"ibverbx/shmem"
	"ibverbx/tagged"
	"ibverbx/verbs"
	"ibverbx/verbs/soft"
)

// The parts of a request have one word each.
func TestWordsOfParts(t *testing.T) {
	for part, want := range map[ibverbx.FailedPart]string{
		ibverbx.PartUnknown: "unknown", ibverbx.PartFragment: "fragment", ibverbx.PartMessage: "message",
		ibverbx.PartNotification: "notification", ibverbx.PartMarker: "marker",
		ibverbx.PartImmediate: "immediate", ibverbx.PartCredit: "credit", ibverbx.PartWatch: "watch",
		ibverbx.PartWatch + 1: "part 8",
	} {
		if got := part.String(); got != want {
			t.Errorf("%q, want %q", got, want)
		}
	}
}

// A single queue pair whose NIC is gone fails at the request that was refused, and describes it:
// its payload in one piece, in several, or inline.
func TestRefusedRequestIsDescribed(t *testing.T) {
	for _, c := range []struct {
		name string
		edit func(e *vqptest.End, wr *ibverbx.SendWR)
		want ibverbx.FailedError // what describes memory; LocalAddr counts from the buffer
	}{
		{"one piece", func(*vqptest.End, *ibverbx.SendWR) {}, ibverbx.FailedError{Length: 64}},
		{"pieces", func(e *vqptest.End, wr *ibverbx.SendWR) {
			wr.SGL, wr.Local = []ibverbx.Segment{e.MR.Slice(8, 8), e.MR.Slice(32, 16)}, ibverbx.Segment{}
		}, ibverbx.FailedError{Length: 24, LocalAddr: 8, Scattered: true}},
		{"one piece among empty ones", func(e *vqptest.End, wr *ibverbx.SendWR) {
			wr.SGL, wr.Local = []ibverbx.Segment{{}, e.MR.Slice(16, 8), {}}, ibverbx.Segment{}
		}, ibverbx.FailedError{Length: 8, LocalAddr: 16}},
		{"inline", func(e *vqptest.End, wr *ibverbx.SendWR) {
			wr.Flags, wr.Inline, wr.Local = wr.Flags|verbs.SendInline, []byte("inline"), ibverbx.Segment{}
		}, ibverbx.FailedError{Length: 6}},
		{"send", func(e *vqptest.End, wr *ibverbx.SendWR) { wr.Opcode = verbs.OpSend },
			ibverbx.FailedError{Length: 64}},
	} {
		for _, behind := range []int{0, 2} { // alone, and at the end of a batch
			l := vqptest.NewLink(t, vqptest.LinkConfig{QP: ibverbx.Config{MaxSGE: 3, MaxInline: 8}})
			l.Fabric.Inject(soft.Fault{Kind: soft.RefuseSend, Device: l.A.NICs[0], Skip: behind,
				Err: verbs.ErrDeviceGone})
			wr := l.A.Write(verbs.OpRDMAWrite, 7, 0, 64)
			c.edit(l.A, &wr)
			batch := []ibverbx.SendWR{l.A.Write(verbs.OpRDMAWrite, 1, 0, 8),
				l.A.Write(verbs.OpRDMAWrite, 2, 0, 8)}
			n, err := l.A.PostSend(append(batch[:behind:behind], wr)...)
			var f *ibverbx.FailedError
			if !errors.As(l.A.Err(), &f) {
				t.Fatalf("%s: posted %d, %v; no failure: %v", c.name, n, err, l.A.Err())
			}
			remote, local := wr.Remote.Addr, l.A.MR.Addr()+c.want.LocalAddr
			if c.name == "inline" {
				local = 0
			}
			if wr.Opcode == verbs.OpSend {
				remote = 0
			}
			if !f.HasID || f.ID != 7 || f.Length != c.want.Length || f.RemoteAddr != remote ||
				f.LocalAddr != local || f.Scattered != c.want.Scattered || f.Recv ||
				f.Part != ibverbx.PartMessage || f.Opcode != wr.Opcode.WCOpcode() ||
				!errors.Is(f, verbs.ErrDeviceGone) {
				t.Errorf("%s: %+v", c.name, f)
			}
			if n != behind {
				t.Errorf("%s: accepted %d, want %d", c.name, n, behind)
			}
		}
	}
}

// Errors that no completion explains name what is known.
func TestWordsOfFailures(t *testing.T) {
	for want, f := range map[string]*ibverbx.FailedError{
		"virtual qp 3: request id 5: rail 1 (mlx5_0 qp 9)": {QPNum: 3, HasID: true, ID: 5,
			Part: ibverbx.PartMessage, Rail: 1, Device: "mlx5_0", RailQPNum: 9, Opcode: verbs.WCUnknown},
		"virtual qp 3: receive id 5: mlx5_0": {QPNum: 3, HasID: true, ID: 5, Recv: true,
			Part: ibverbx.PartMessage, Rail: -1, Device: "mlx5_0", Opcode: verbs.WCUnknown},
		"RDMA_WRITE id 5, one of its fragments": {HasID: true, ID: 5, Part: ibverbx.PartFragment,
			Fragment: -1,
			Opcode:   verbs.WCRDMAWrite, Rail: -1},
		"RDMA_WRITE id 5, one of 4 fragments": {HasID: true, ID: 5, Part: ibverbx.PartFragment, Fragment: -1,
			Fragments: 4, Opcode: verbs.WCRDMAWrite, Rail: -1},
		"RDMA_WRITE id 5, fragment 3 of 4": {HasID: true, ID: 5, Part: ibverbx.PartFragment, Fragment: 2,
			Fragments: 4, Opcode: verbs.WCRDMAWrite, Rail: -1},
		"RDMA_WRITE id 5, fragment 3:": {HasID: true, ID: 5, Part: ibverbx.PartFragment, Fragment: 2,
			Opcode: verbs.WCRDMAWrite, Rail: -1},
		"(vendor 0x81)": {Rail: -1, VendorErr: 0x81},
	} {
		f.Err = verbs.ErrDeviceGone
		if got := f.Error(); !strings.Contains(got, want) {
			t.Errorf("%q: want %q in it", got, want)
		}
	}
}

// Posts that a NIC refuses are counted by the rail, whether for now or permanently.
func TestRefusedPostsAreCounted(t *testing.T) {
	for _, m := range vqptest.Modes {
		l := m.Link(t, vqptest.LinkConfig{})
		l.Fabric.Inject(soft.Fault{Kind: soft.RefuseSend, QPNum: l.A.RailQPs[0], Device: l.A.NICs[0],
			Count: 2})
		for done := false; !done; {
			n, err := l.A.PostSend(l.A.Write(verbs.OpRDMAWrite, 1, 0, 8))
			if done = n == 1; !done && !verbs.IsTransient(err) {
				t.Fatalf("%s: %v", m.Name, err)
			}
		}
		vqptest.IDs(t, l.A.Wait(t, 1), verbs.StatusSuccess)
		if r := l.A.Stats().Rails[0]; r.Refused != 2 || r.Errors != 0 {
			t.Errorf("%s: %d posts refused, %d errors; want 2 and none", m.Name, r.Refused, r.Errors)
		}
		carrier := len(l.B.RailQPs) - 1 // of SENDs
		if m.Scheme == ibverbx.Spray {
			carrier = 0
		}
		l.Fabric.Inject(soft.Fault{Kind: soft.RefuseRecv, QPNum: l.B.RailQPs[carrier], Device: l.B.NICs[0],
			Count: 2})
		for done := false; !done; {
			n, err := l.B.PostRecv(ibverbx.RecvWR{Local: l.B.MR.Slice(0, 8)})
			if done = n == 1; !done && !verbs.IsTransient(err) {
				t.Fatalf("%s: %v", m.Name, err)
			}
		}
		l.A.Send(t, ibverbx.SendWR{Opcode: verbs.OpSend, Local: l.A.MR.Slice(0, 8)})
		vqptest.IDs(t, l.B.Wait(t, 1), verbs.StatusSuccess)
		if r := l.B.Stats().Rails[carrier]; r.Refused != 2 || r.Errors != 0 {
			t.Errorf("%s: %d receives refused, %d errors; want 2 and none", m.Name, r.Refused, r.Errors)
		}
		l.Fabric.Inject(soft.Fault{Kind: soft.FailSend, QPNum: l.A.RailQPs[0], Device: l.A.NICs[0]})
		l.A.Send(t, l.A.Write(verbs.OpRDMAWrite, 9, 0, 8))
		for l.A.Err() == nil {
			l.A.Send(t, l.A.Write(verbs.OpRDMAWrite, 9, 0, 8))
			l.A.Pump(t)
		}
		if r := l.A.Stats().Rails[0]; r.Errors == 0 {
			t.Errorf("%s: no error is counted", m.Name)
		}
	}
}

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
			Err: verbs.StatusRetryExcErr, GIDPort: 40001, AssumedScheme: "dqplb"},
			`{"virtual_qp":1,"id":18446744073709551615,"operation":"RDMA_WRITE","part":"fragment",` +
				`"fragment":0,"fragments":16,"local_addr":"0x7f10","remote_addr":"0x7f20","length":524288,` +
				`"rail":0,"device":"mlx5_1","rail_qp":18,"status":"RETRY_EXC_ERR","status_code":12,` +
				`"cause":"RETRY_EXC_ERR: transport retries exceeded: ` +
				`the peer or the path to it is gone","vendor_err":129,` +
				`"vendor_words":"transport retry counter exceeded","gid_port":40001,` +
				`"assumed_scheme":"dqplb","advice":"?"}`},
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

// Where the peer's card names no scheme and the schemes differ, the first notification fails, and
// the error says what to check. Once a notification has come through, later failures do not.
func TestAdviceWhereSchemesMayDiffer(t *testing.T) {
	const advice = "the peer's card names no scheme: check that it uses "
	unsaid := func(c *ibverbx.BusinessCard) { c.Scheme, c.Credits, c.RawImm = "", 0, false }
	cfg := ibverbx.Config{QPsPerDevice: 2, FragmentSize: 8, Linger: -1,
		Conn: ibverbx.ConnConfig{Timeout: 1, RetryCount: 1}}
	spray := cfg
	spray.Scheme = ibverbx.Spray

	l := vqptest.NewLink(t, vqptest.LinkConfig{QP: cfg, PeerQP: &spray, EditCard: unsaid})
	l.A.Send(t, l.A.Write(verbs.OpRDMAWrite, 1, 0, 40)) // plain writes need no scheme
	vqptest.IDs(t, l.A.Wait(t, 1), verbs.StatusSuccess)
	l.B.ExpectRecv(t, 9)
	l.A.Send(t, l.A.Write(verbs.OpRDMAWriteWithImm, 2, 0, 16))
	if wc := l.B.Wait(t, 1)[0]; wc.Status == verbs.StatusSuccess {
		t.Fatalf("a numbered write is taken for a notification of spray: %+v", wc)
	}
	var failed *ibverbx.FailedError
	if err := l.B.Err(); !errors.As(err, &failed) || !errors.Is(err, ibverbx.ErrProtocol) ||
		failed.AssumedScheme != "spray" || !strings.Contains(err.Error(), advice+"spray too") {
		t.Errorf("the receiver says: %v", err)
	}
	l.A.Wait(t, 1)
	if err := l.A.Err(); err == nil || !strings.Contains(err.Error(), advice+"dqplb too") {
		t.Errorf("the sender says: %v", err)
	}

	for _, c := range []struct {
		cfg  ibverbx.Config
		edit func(*ibverbx.BusinessCard)
	}{{cfg, unsaid}, {spray, unsaid}, {cfg, nil}} {
		l := vqptest.NewLink(t, vqptest.LinkConfig{QP: c.cfg, EditCard: c.edit})
		if c.edit != nil {
			l.B.ExpectRecv(t, 9)
			l.A.Send(t, l.A.Write(verbs.OpRDMAWriteWithImm, 2, 0, 16))
			vqptest.IDs(t, append(l.A.Wait(t, 1), l.B.Wait(t, 1)...), verbs.StatusSuccess)
		}
		l.B.NICs[0].SetLink(false)
		l.A.Send(t, l.A.Write(verbs.OpRDMAWriteWithImm, 3, 0, 16))
		l.A.Wait(t, 1)
		if err := l.A.Err(); !errors.As(err, &failed) || failed.AssumedScheme != "" ||
			strings.Contains(err.Error(), "names no scheme") {
			t.Errorf("%v, behind a notification: %v", c.cfg.Scheme, err)
		}
		l.B.ExpectRecv(t, 10)
		for _, nic := range l.B.NICs {
			nic.Kill()
		}
		l.B.Wait(t, 1)
		if err := l.B.Err(); !errors.As(err, &failed) || failed.AssumedScheme != "" {
			t.Errorf("%v, behind a notification, the receiver: %v", c.cfg.Scheme, err)
		}
	}

	// Failures unrelated to schemes do not mention them.
	l = vqptest.NewLink(t, vqptest.LinkConfig{QP: cfg, EditCard: unsaid})
	bad := l.A.Write(verbs.OpRDMAWrite, 2, 0, 16)
	bad.Remote.Keys = ibverbx.NewKeys(map[verbs.DeviceID]uint32{0: 1, 1: 1})
	l.A.Send(t, bad)
	l.A.Wait(t, 1)
	if err := l.A.Err(); !errors.Is(err, verbs.StatusRemAccessErr) ||
		strings.Contains(err.Error(), "scheme") {
		t.Errorf("a wrong key: %v", err)
	}
}

// Once what a failure leaves has been reported, nothing is tried again: a program with its own wait
// need not poll every millisecond any more.
func TestNothingIsTriedAgainAfterAFailure(t *testing.T) {
	settled := func(t *testing.T, l *vqptest.Link) {
		l.A.Send(t, l.A.Write(verbs.OpRDMAWrite, 9, 0, 20000))
		l.A.Wait(t, 5)
		for deadline := time.Now().Add(3 * time.Second); l.A.CQ().Stats().Retrying != 0; l.A.Pump(t) {
			if time.Now().After(deadline) {
				t.Fatal("it is tried again and again")
			}
		}
	}
	for _, kind := range []soft.FaultKind{soft.FailSend, soft.KillNIC} {
		vqptest.EachMultiMode(t, vqptest.LinkConfig{QP: ibverbx.Config{FragmentSize: 1000}},
			func(t *testing.T, l *vqptest.Link) {
				fill(l.A, t, 0, 4)
				l.Fabric.Inject(soft.Fault{Kind: kind, Device: l.A.NICs[0]})
				settled(t, l)
			})
	}
}

// Every post that is refused after a failure wraps the failure, for errors.Is and errors.As.
func TestRefusalAfterAFailureNamesTheCause(t *testing.T) {
	vqptest.EachMode(t, 1000, func(t *testing.T, l *vqptest.Link) {
		l.Fabric.Inject(soft.Fault{Device: l.A.NICs[0], Kind: soft.FailSend, Status: verbs.StatusRemOpErr})
		for id := range uint64(8) {
			_, _ = l.A.PostSend(l.A.Write(verbs.OpRDMAWrite, id, 0, 10)) // refused once it has failed
		}
		for l.A.Err() == nil {
			l.A.Pump(t)
		}
		var fe *ibverbx.FailedError
		_, err := l.A.PostSend(l.A.Write(verbs.OpRDMAWrite, 9, 0, 10))
		if !errors.Is(err, ibverbx.ErrFailed) || !errors.Is(err, verbs.StatusRemOpErr) ||
			!errors.As(err, &fe) {
			t.Error(err)
		}
		if l.A.DataRails() == 1 {
			if wc := l.A.Wait(t, 1)[0]; wc.Opcode != verbs.WCUnknown {
				t.Errorf("a failed completion of a single queue pair claims to be of %v", wc.Opcode)
			}
		}
	})
}

// Completions and events of rails print as sentences, values of configurations by their names.
func TestPrinted(t *testing.T) {
	for _, c := range []struct {
		value interface{ String() string }
		want  string
	}{
		{ibverbx.WC{ID: 7, QPNum: 3, Opcode: verbs.WCRDMAWrite, ByteLen: 4096},
			"virtual qp 3: request 7 (RDMA_WRITE, 4096 bytes) succeeded"},
		{ibverbx.WC{ID: 9, QPNum: 3, Opcode: verbs.WCRecvRDMAWithImm, ByteLen: 64, Imm: 0x1f,
			Flags: verbs.WCWithImm},
			"virtual qp 3: receive 9 (RECV_RDMA_WITH_IMM, 64 bytes, immediate 0x1f) succeeded"},
		{ibverbx.WC{ID: 7, QPNum: 3, Opcode: verbs.WCSend, Status: verbs.StatusRetryExcErr, VendorErr: 0x81,
			ByteLen: 8},
			"virtual qp 3: request 7 (SEND, 8 bytes) failed: " + verbs.StatusRetryExcErr.Error() +
				" (vendor code 0x81)"},
		{ibverbx.WC{ID: 1, QPNum: 2, Opcode: verbs.WCUnknown, Status: verbs.StatusWRFlushErr},
			"virtual qp 2: request or receive 1 (unknown, 0 bytes) failed: " +
				verbs.StatusWRFlushErr.Error()},
		{ibverbx.RailEvent{VirtualQP: 3, Rail: 1, Device: "mlx5_0", QPNum: 17, Down: true,
			Cause: verbs.StatusRetryExcErr},
			"virtual qp 3: rail 1 (mlx5_0 qp 17) is out of service: " + verbs.StatusRetryExcErr.Error()},
		{ibverbx.RailEvent{VirtualQP: 3, Rail: 1, Device: "mlx5_0", QPNum: 17},
			"virtual qp 3: rail 1 (mlx5_0 qp 17) is back in service"},
		{ibverbx.PatienceFabric, "PatienceFabric"},
		{ibverbx.PatienceFabric + 1, "unknown patience 3"},
		{tagged.ForSends | tagged.ForReceives, "ForSends|ForReceives"},
		{tagged.Use(8), "unknown use 0x8"},
		{tagged.Info{Tag: 7, Length: 5}, "tag 0x7, 5 bytes"},
		{shmem.SignalAdd, "SignalAdd"},
		{shmem.SignalAdd + 1, "unknown signal op 2"},
	} {
		if got := c.value.String(); got != c.want {
			t.Errorf("got  %s\nwant %s", got, c.want)
		}
	}
}
