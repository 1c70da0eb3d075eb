package perftest

import (
	"bytes"
	"context"
	"errors"
	"flag"
	"net"
	"net/netip"
	"strings"
	"sync"
	"testing"
	"time"

	"ibverbx/internal/tcptest"
	"ibverbx/verbs"
	"ibverbx/verbs/roce"
)

// nics makes two NICs of this host, each in a provider of its own.
func nics(t testing.TB) (client, server verbs.Device) {
	t.Helper()
	var devices []verbs.Device
	for _, addr := range []string{"127.0.0.31", "127.0.0.32"} {
		p, err := roce.Open(roce.Config{Addresses: []netip.Addr{netip.MustParseAddr(addr)}})
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() {
			if err := p.Close(); err != nil {
				t.Error(err)
			}
		})
		devices = append(devices, p.Device(0))
	}
	return devices[0], devices[1]
}

// outcome is what an end returned.
type outcome struct {
	report *Report
	err    error
}

// both runs a test between two ends, which were told what client and server say.
func both(t *testing.T, client, server Config) (c, s *outcome) {
	t.Helper()
	a, b := tcptest.Pair(t)
	nicA, nicB := nics(t)
	c, s = &outcome{}, &outcome{}
	var all sync.WaitGroup
	for _, e := range []struct {
		*outcome
		nc     net.Conn
		client bool
		dev    verbs.Device
		cfg    Config
	}{{c, a, true, nicA, client}, {s, b, false, nicB, server}} {
		if err := e.cfg.Validate(); err != nil {
			t.Fatal(err)
		}
		all.Go(func() {
			e.report, e.err = Run(t.Context(), e.nc, e.client, e.dev, &e.cfg)
		})
	}
	all.Wait()
	return c, s
}

func TestMain(m *testing.M) {
	_ = flag.Set("test.parallel", "16") // they mostly wait
	m.Run()
}

// TestAllKinds runs all kinds between two ends of this package over UDP sockets.
func TestAllKinds(t *testing.T) {
	for _, tt := range []struct {
		name string
		cfg  Config
	}{
		{"write_bw", Config{Kind: WriteBW, Messages: 50}},
		{"write_bw, 3 queue pairs", Config{Kind: WriteBW, QPs: 3, Messages: 300, Size: 1000, TxDepth: 7}},
		{"write_bw --report_gbits", Config{Kind: WriteBW, Messages: 30, Gbits: true}},
		{"read_bw", Config{Kind: ReadBW, Messages: 50, QPs: 2}},
		{"send_bw", Config{Kind: SendBW, Messages: 200, RxDepth: 50}},
		{"send_bw, 2 queue pairs", Config{Kind: SendBW, Messages: 45, QPs: 2, Size: 100, RxDepth: 1}},
		{"write_lat", Config{Kind: WriteLat, Messages: 300, Size: 8}},
		{"read_lat", Config{Kind: ReadLat, Messages: 50}},
		{"send_lat", Config{Kind: SendLat, Messages: 50, RxDepth: 3}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			c, s := both(t, tt.cfg, tt.cfg)
			if c.err != nil || s.err != nil {
				t.Fatalf("client: %v; server: %v", c.err, s.err)
			}
			cfg := tt.cfg
			_ = cfg.Validate()
			for _, end := range []*outcome{c, s} {
				if end == s && cfg.Kind == ReadLat {
					if len(end.report.Results) != 0 {
						t.Errorf("the server of %s has figures", cfg.Kind)
					}
					continue
				}
				checkResult(t, &cfg, end)
			}
			if !cfg.Kind.Latency() && cfg.Kind != SendBW {
				mine, theirs := c.report.Results[0], s.report.Results[0]
				if r := theirs.GBPerSecond / mine.GBPerSecond; r < 0.999 || r > 1.001 {
					t.Errorf("the client measured %v, the server says %v", mine, theirs)
				}
			}
		})
	}
}

// checkResult says whether an end's only figures are those of what it was told.
func checkResult(t *testing.T, cfg *Config, end *outcome) {
	t.Helper()
	r := end.report
	if r.Peer.Version != Version || r.PathMTU == 0 || r.Peer.GID.IsZero() ||
		len(r.Results) != 1 {
		t.Fatalf("report %+v", r)
	}
	res := r.Results[0]
	if res.Size != cfg.Size || res.Messages != cfg.Messages*cfg.QPs || res.MsgPerSecond <= 0 ||
		(res.GBPerSecond > 0) != !cfg.Kind.Latency() {
		t.Errorf("result %+v", res)
	}
	if l := res.Latency; cfg.Kind.Latency() && (l == nil || l.Samples != int64(cfg.Messages-1) ||
		l.Min <= 0 ||
		l.Min > l.P50 || l.P50 > l.P99 || l.P99 > l.Max || l.HalfRoundTrip != (cfg.Kind != ReadLat)) {
		t.Errorf("latency %+v", l)
	}
}

// TestMismatch: what the exchange shows of a difference between the two ends is said in words.
func TestMismatch(t *testing.T) {
	t.Parallel() // most of the time it waits
	for _, tt := range []struct {
		name           string
		client, server Config
		want           string // of either end
	}{
		{"more queue pairs here", Config{Kind: WriteBW, Messages: 5},
			Config{Kind: WriteBW, QPs: 2, Messages: 5},
			"it has fewer of them than the 2 here"},
		{"fewer queue pairs here", Config{Kind: WriteBW, QPs: 2, Messages: 5},
			Config{Kind: WriteBW, Messages: 5},
			"it has more of them than the 1 here"},
		{"fewer messages", Config{Kind: SendBW, Messages: 5}, Config{Kind: SendBW, Messages: 9},
			"the peer has gone on while this end still waits for messages"},
		{"other size", Config{Kind: SendBW, Size: 64, Messages: 5},
			Config{Kind: SendBW, Size: 4096, Messages: 5},
			"a message has 64 bytes, 4096 were due"},
		{"smaller memory", Config{Kind: WriteBW, Size: 1 << 20, Messages: 2},
			Config{Kind: WriteBW, Messages: 2},
			"the peer offers less memory"},
		{"bandwidth and latency", Config{Kind: SendBW, Messages: 5}, Config{Kind: WriteLat, Messages: 5},
			agree},
	} {
		t.Run(tt.name, func(t *testing.T) {
			tt.client.Timeout, tt.server.Timeout = 4*time.Second, 4*time.Second
			c, s := both(t, tt.client, tt.server)
			found := false
			for _, end := range []*outcome{c, s} {
				found = found || end.err != nil && strings.Contains(end.err.Error(), tt.want)
			}
			if !found {
				t.Errorf("client: %v\nserver: %v\nwant %q", c.err, s.err, tt.want)
			}
		})
	}
}

// TestCanceled ends each kind of test, at either end: while it waits for the first message, and
// when the queue pairs are connected and nothing more comes. The peer's NIC is there, so that its
// host refuses nothing, and does not know the queue pair: this end's fails after half a second.
func TestCanceled(t *testing.T) {
	t.Parallel()
	nic, _ := nics(t)
	k := keys{qp: 7, reads: 1, gid: someKeys.gid}
	copy(k.gid[12:], []byte{127, 0, 0, 32})
	for _, kind := range Kinds() {
		cfg := Config{Kind: kind, Messages: 10}
		if err := cfg.Validate(); err != nil {
			t.Fatal(err)
		}
		for _, client := range []bool{true, false} {
			for _, connected := range []bool{true, false} {
				end, peer := tcptest.Pair(t)
				ctx, cancel := context.WithCancel(t.Context())
				if connected {
					text := script(begin(Version), bytes.Repeat(k.encode(), 4))
					if _, err := peer.Write(text); err != nil {
						t.Fatal(err)
					}
				}
				time.AfterFunc(10*time.Millisecond, cancel)
				_, err := Run(ctx, end, client, nic, &cfg)
				if !errors.Is(err, context.Canceled) {
					t.Errorf("%s, client %v, connected %v: %v", kind, client, connected, err)
				}
				cancel()
			}
		}
	}
}

// taking is a queue pair that takes any number of receives.
type taking struct{ verbs.QP }

func (taking) PostRecv(wrs []verbs.RecvWR) (int, error) { return len(wrs), nil }

// TestReceivesAreRenewed: of the receives that a queue pair holds at least half are posted while
// messages come, so that the peer does not find it without one.
func TestReceivesAreRenewed(t *testing.T) {
	for _, depth := range []int{1, 2, 20, 100} {
		nic, _ := nics(t)
		cfg := Config{Kind: SendBW, RxDepth: depth, Size: 64}
		if err := cfg.Validate(); err != nil {
			t.Fatal(err)
		}
		e, err := probe(nic, &cfg)
		if err != nil {
			t.Fatal(err)
		}
		e.page, e.stride = 4096, 64
		if err := e.open(); err != nil {
			t.Fatal(err)
		}
		e.qps[0] = taking{e.qps[0]}
		s := newStream(e, false)
		if err := s.expect(); err != nil || s.qps[0].expected != depth {
			t.Errorf("%d receives are posted, %v; want %d", s.qps[0].expected, err, depth)
		}
		s.qps[0].took = (depth + 1) / 2
		if err := s.expect(); err != nil || s.qps[0].expected != depth+s.qps[0].took {
			t.Errorf("%d of %d receives are used: %d are posted, %v", s.qps[0].took, depth,
				s.qps[0].expected-depth, err)
		}
		if err := e.close(); err != nil {
			t.Error(err)
		}
	}
}

// TestLatencyFigures records 1 to 1000 µs between posts: a ping-pong's figures are halves of them,
// and nothing is longer than the longest latency.
func TestLatencyFigures(t *testing.T) {
	for kind, half := range map[Kind]int64{ReadLat: 1, SendLat: 2} {
		s := newStream(&end{cfg: &Config{Kind: kind, QPs: 1}}, true)
		now := time.Unix(1, 0)
		s.sample(now)
		for i := range 1000 {
			now = now.Add(time.Duration(i+1) * time.Microsecond)
			s.sample(now)
		}
		l := s.samples.Percentiles()
		for _, tt := range []struct{ got, us int64 }{{l.Min, 1}, {l.P50, 500}, {l.P90, 900}, {l.P99, 990},
			{l.P999, 999}, {l.Max, 1000}, {int64(l.Mean + 0.5), 500}} {
			if want := tt.us * 1000 / half; tt.got < want*999/1000 || tt.got > want*1002/1000 {
				t.Errorf("%s: %d ns, want %d: %+v", kind, tt.got, want, l)
			}
		}
		if l.Samples != 1000 || l.HalfRoundTrip != (half == 2) {
			t.Errorf("%s: %+v", kind, l)
		}
		s.sample(now.Add(time.Hour))
		most := s.samples.Percentiles().Max
		if want := int64(100 * time.Second); most < want || most > want*1001/1000 {
			t.Errorf("%s: an hour counts as %d ns", kind, most)
		}
	}
}
