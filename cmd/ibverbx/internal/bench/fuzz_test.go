package bench

import (
	"encoding/json"
	"errors"
	"strings"
	"testing"
	"time"
	"unicode"

	"ibverbx"
	"ibverbx/cmd/ibverbx/internal/layers"
	"ibverbx/rendezvous"
	"ibverbx/verbs"
)

// marshaled is a body as it is on the wire.
func marshaled(tb testing.TB, body any) string {
	tb.Helper()
	text, err := json.Marshal(body)
	if err != nil {
		tb.Fatal(err)
	}
	return string(text)
}

// checkLine looks whether a word of the peer fits into a line of a table.
func checkLine(t *testing.T, words ...string) {
	t.Helper()
	for _, w := range words {
		if len([]rune(w)) > 100 || strings.ContainsFunc(w, func(r rune) bool { return !unicode.IsPrint(r) }) {
			t.Fatalf("%.300q", w)
		}
	}
}

// FuzzTask reads what another process asks for. What is taken is within the limits, so is the
// memory that it takes, it is the same when it is passed on, and the queue pairs that it asks for
// can be configured.
func FuzzTask(f *testing.F) {
	p := params()
	if err := p.Complete(); err != nil {
		f.Fatal(err)
	}
	good := marshaled(f, taskBody{Self: selfBody{Offer: offer("x")}, Params: p})
	f.Add(good)
	for old, lie := range map[string]string{
		`"tx_depth":16`: `"tx_depth":1e9`, `"nics":2`: `"nics":-1`,
		`"sizes":[64,40000]`: `"sizes":[9223372036854775807]`,
		`"iterations":40`:    `"duration_seconds":-1e-9`, `"memory_bytes":262144`: `"memory_bytes":null`,
		`"op":"write"`: `"op":"fetch-add","sizes":[8]`,
		`"qps":2`:      `"qps":4611686018427387905`, `"mode":"bw"`: `"mode":"bw","more":1`,
		`"depth":16`:                           `"depth":8192,"memory_bytes":1073741824`,
		`"schemes":["single","spray","dqplb"]`: `"schemes":[]`, `"verify":true`: `"verify":true,"wait":""`,
		`"fragment_bytes":16384`: `"fragment_bytes":1`,
	} {
		f.Add(strings.Replace(good, old, lie, 1))
	}
	for _, layer := range []layers.Layer{layers.Transport, layers.Tagged, layers.SHMEM} {
		p := layerParams(layer, "", Bandwidth)
		if err := p.Complete(); err != nil {
			f.Fatal(err)
		}
		good := marshaled(f, taskBody{Self: selfBody{Offer: offer("x")}, Params: p})
		f.Add(good)
		f.Add(strings.Replace(good, `"tx_depth":16`, `"tx_depth":65536`, 1))
	}
	f.Fuzz(func(t *testing.T, text string) {
		task, err := decodeTask([]byte(text))
		if err == nil {
			err = task.check()
		}
		if err != nil {
			var unusable *UsageError
			if !errors.Is(err, rendezvous.ErrProtocol) && !errors.As(err, &unusable) {
				t.Fatalf("%v", err)
			}
			if len(err.Error()) > 2000 {
				t.Fatalf("%d bytes: %.300v", len(err.Error()), err)
			}
			return
		}
		p := task.Params
		if p.Memory > maxSize || p.rails() > 128 || p.rails() < 1 || p.QPs < 1 || p.QPs > 128 ||
			len(p.Sizes) > maxServedSizes || p.Duration > maxServedDuration || p.Duration < 0 {
			t.Fatalf("took %+v", p)
		}
		if p.Layered() && (p.Layer == layers.SHMEM || p.TxDepth > maxLayerWindow) {
			t.Fatalf("took %+v", p)
		}
		window := int(p.Memory)
		for _, z := range p.Sizes {
			if z < 1 || z > maxSize {
				t.Fatalf("took size %v", z)
			}
			window = max(window, int(z))
		}
		// An end has its own source and target, and the other one's source to compare with.
		src, dst := p.bufferSizes(1, window)
		theirs, _ := p.bufferSizes(0, window)
		most := 3 * (maxSize + layers.Shifts*layers.ShiftStep + tail)
		if src < 0 || dst < tail || theirs < 0 || src+dst+theirs > most {
			t.Fatalf("%d, %d and %d bytes for %+v", src, dst, theirs, p)
		}
		passed := marshaled(t, task)
		if again, err := decodeTask([]byte(passed)); err != nil || again.check() != nil ||
			marshaled(t, again) != passed {
			t.Fatalf("%s is passed on as %s: %v", text, passed, err)
		}
		for _, s := range p.Schemes {
			if c := p.config(s); c.MaxMsgCntPerQP < 1 || c.MaxMsgCntPerQP > 8192 || c.QPsPerDevice < 1 ||
				c.QPsPerDevice > 128 || c.FragmentSize > 1<<31 {
				t.Fatalf("%s with %+v", s, c)
			}
		}
		checkLine(t, task.Self.Version, task.Self.Machine.CPU, strings.Join(task.Self.NICs[:1], ""))
	})
}

// FuzzOffer reads what another process says of itself. What is taken can be shown.
func FuzzOffer(f *testing.F) {
	f.Add(marshaled(f, selfBody{Version: "v1", Machine: ThisMachine(), Offer: offer("mlx5_0", "mlx5_1")}))
	f.Add(`{"version":"a\nibverbx: all is well","nics":["\u001b[2J"]}`)
	f.Add(`{"nics":[` + strings.Repeat(`"x",`, verbs.MaxDevices) + `"x"]}`)
	f.Add(`{"nics":[""],"machine":{"clock_ns":1000000001}}`)
	f.Add(`{"nics":["` + strings.Repeat("é", 5000) + `"],"machine":{"cores":-1}}`)
	f.Fuzz(func(t *testing.T, text string) {
		m := rendezvous.Message{Kind: kindOffer, Body: json.RawMessage(text)}
		var self selfBody
		err := m.Decode(&self)
		if err == nil {
			err = self.check()
		}
		if err != nil {
			if !errors.Is(err, rendezvous.ErrProtocol) {
				t.Fatal(err)
			}
			checkWords(t, err)
			return
		}
		if len(self.NICs) < 1 || len(self.NICs) > verbs.MaxDevices || self.Machine.Clock < 0 ||
			time.Duration(self.Machine.Clock) > time.Second {
			t.Fatalf("took %+v", self)
		}
		checkLine(t, self.Version, self.Machine.CPU, self.Machine.OS, self.Machine.Arch, self.Machine.Go)
		checkLine(t, self.NICs...)
	})
}

// FuzzRow reads the figures of another process. What is taken is of what was measured, can be
// shown, and claims nothing about faults or failures, which the peer would have ended with.
func FuzzRow(f *testing.F) {
	f.Add(marshaled(f, rowBody{Results: []Result{{Size: 64, Scheme: Spray,
		Latency: &Percentile{Samples: 7}}}}))
	f.Add(`{"results":[{"scheme":"spray","size_bytes":64,"stats":{"a":{"rails":[{"device":"\u001b[2J"}]}}}]}`)
	f.Add(`{"results":[{"scheme":"spray","size_bytes":64,"failed":true,"error":"\u001b[2J",` +
		`"failed_completions":{"\u001b":1},"op":"x","mode":"y"}]}`)
	f.Add(`{"results":[{"scheme":"spray","size_bytes":64,` +
		`"faults":[{"fault":"kill-qp@msg=1","what":"\u001b"}]}]}`)
	f.Add(`{"results":[{"scheme":"single","size_bytes":65}]}`)
	f.Add(`{"results":[{"scheme":"spray","size_bytes":64,` +
		`"messages":-9223372036854775808,"seconds":-1e308}]}`)
	f.Add(`{"results":[{"scheme":"spray","size_bytes":64,"stats":{"b":{"rails":[` +
		strings.Repeat(`{},`, 500) + `{}]}}}]}`)
	p := params()
	if err := p.Complete(); err != nil {
		f.Fatal(err)
	}
	mine := []Result{{Layer: QP, Op: p.Op, Mode: p.Mode, Size: 64, Scheme: Spray}}
	f.Fuzz(func(t *testing.T, text string) {
		m := rendezvous.Message{Kind: kindRow, Body: json.RawMessage(text)}
		var row rowBody
		err := m.Decode(&row)
		if err == nil {
			err = row.check(mine)
		}
		if err != nil {
			if !errors.Is(err, rendezvous.ErrProtocol) {
				t.Fatal(err)
			}
			checkWords(t, err)
			return
		}
		if len(row.Results) != 1 {
			t.Fatalf("took %d results", len(row.Results))
		}
		for _, r := range row.Results {
			if r.Scheme != Spray || r.Size != 64 || r.Op != p.Op || r.Mode != p.Mode {
				t.Fatalf("took %+v", r)
			}
			if r.Failed || r.Error != "" || r.Err != nil || len(r.Faults) > 0 ||
				len(r.Stats.A.Rails) > ibverbx.MaxRails+1 {
				t.Fatalf("took %+v", r)
			}
			for _, rail := range append(r.Stats.A.Rails, r.Stats.B.Rails...) {
				checkLine(t, rail.Device)
			}
		}
		_ = marshaled(t, row) // as it is with --json
	})
}

// FuzzParseFault reads faults. One that is taken is printed as it was written, reads as the same
// from JSON too, and names what a run can have.
func FuzzParseFault(f *testing.F) {
	for _, k := range faultKinds() {
		f.Add(k.name)
		for _, key := range strings.Fields(k.keys) {
			f.Add(k.name + "@" + key + "=1")
		}
	}
	for _, s := range []string{
		"nic-down@for=20ms,msg=0", "nic-down@nic=1,msg=100", "kill-qp@end=b,rail=3", "slow@for=-1s",
		"kill-qp@rail=99999999999999999999", "slow@at=5ms,by=3",
		"", "@", "slow@", "slow@,,", "slow@for", "slow@nic==1", "link-flap@nic=-1", "nic-down@rail=0",
		"slow@for=1ns,for=2ns",
		"kill-qp@rail=128", "SLOW",
	} {
		f.Add(s)
	}
	p := params(func(p *Params) { p.Op = WriteImm })
	if err := p.Complete(); err != nil {
		f.Fatal(err)
	}
	f.Fuzz(func(t *testing.T, text string) {
		fault, err := ParseFault(text)
		if err != nil {
			if !strings.Contains(err.Error(), "fault") || !strings.ContainsAny(err.Error(), "@,") {
				t.Fatalf("%q: %v", text, err)
			}
			return
		}
		if fault.String() != text || fault.kind() == nil || fault.NIC < -1 || fault.Rail < -1 ||
			fault.Message < 0 || fault.For < 0 {
			t.Fatalf("%q is %+v", text, fault)
		}
		if fault.End != "a" && fault.End != "b" {
			t.Fatalf("%q is %+v", text, fault)
		}
		var again Fault
		err = json.Unmarshal([]byte(marshaled(t, fault)), &again)
		if err != nil && strings.ToValidUTF8(text, "") == text || err == nil && again != fault {
			t.Fatalf("%q is %+v, read again %+v, %v", text, fault, again, err)
		}
		p := *p
		p.Faults = []Fault{fault}
		var unusable *UsageError
		if err := p.Complete(); err != nil && !errors.As(err, &unusable) {
			t.Fatal(err)
		} else if fits := fault.NIC < p.NICs && fault.Rail < p.rails() &&
			(fault.At > 0 || fault.Message < p.Iterations*len(p.Sizes)); fits != (err == nil) {
			t.Fatalf("%q with %d NICs, %d rails and %d messages of %d sizes: %v", text, p.NICs, p.rails(),
				p.Iterations, len(p.Sizes), err)
		}
		if err := p.ValidateApart(); !errors.As(err, &unusable) {
			t.Fatalf("%q between two processes: %v", text, err)
		}
	})
}

// FuzzSeconds reads lengths of time from JSON. What is taken is not too long to count with, and
// reads as the same when written.
func FuzzSeconds(f *testing.F) {
	for _, s := range []string{"1", "0.1", "-0.5", "1e-9", "1e300", "4611686018.4", "null", `"1"`, "NaN",
		"1e-400", "3600"} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, text string) {
		var s Seconds
		if err := json.Unmarshal([]byte(text), &s); err != nil {
			if s != 0 || len(err.Error()) > 300+len(text) {
				t.Fatalf("%q: %v, %v", text, time.Duration(s), err)
			}
			return
		}
		if d := time.Duration(s); d > 1<<62 || d < -1<<62 {
			t.Fatalf("%q is %v", text, d)
		}
		var again Seconds
		if err := json.Unmarshal([]byte(marshaled(t, s)), &again); err != nil || exact(s) && again != s {
			t.Fatalf("%q is %v, and then %v, %v", text, time.Duration(s), time.Duration(again), err)
		}
	})
}

// exact says whether a length of time has no more digits than JSON keeps.
func exact(s Seconds) bool { return max(s, -s) < 1<<52 }

// FuzzLayerColumn reads what another process says of its end of a layer. What is taken has the
// memory that rounds will name.
func FuzzLayerColumn(f *testing.F) {
	p := layerParams(layers.Transport, layers.AM, Bandwidth)
	if err := p.Complete(); err != nil {
		f.Fatal(err)
	}
	f.Add(`{"scheme":"dqplb","src":{"addr":"0x1000","length":"999999"},` +
		`"dst":{"addr":"0x9000","length":"999999"}}`)
	f.Add(`{"scheme":"dqplb","dst":{"addr":"0x9001","length":"18446744073709551615"},` +
		`"transport":{"version":1}}`)
	f.Add(`{"scheme":"spray","tagged":{}}`)
	f.Fuzz(func(t *testing.T, text string) {
		m := rendezvous.Message{Kind: kindColumn, Body: json.RawMessage(text)}
		var column layers.Card
		if err := m.Decode(&column); err != nil {
			return
		}
		window := int(p.Memory)
		if err := checkCard(&column, p, window, 1); err != nil {
			if !errors.Is(err, rendezvous.ErrProtocol) || len(err.Error()) > 2000 {
				t.Fatal(err)
			}
			return
		}
		src, dst := p.bufferSizes(1, window)
		if column.Src.Len() < uint64(src) || column.Dst.Len() < uint64(dst) {
			t.Fatalf("took %s", text)
		}
	})
}

func decodeTask(text []byte) (*taskBody, error) {
	task, m := &taskBody{}, rendezvous.Message{Kind: kindTask, Body: text}
	return task, m.Decode(task)
}
