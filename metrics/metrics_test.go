package metrics_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http/httptest"
	"os"
	"os/exec"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promhttp"
	"github.com/prometheus/client_golang/prometheus/testutil"

	"ibverbx"
	"ibverbx/metrics"
	"ibverbx/nics"
	"ibverbx/transport"
	"ibverbx/verbs"
	"ibverbx/verbs/soft"
)

// pair is two workers, each over a software NIC.
type pair struct {
	tb   testing.TB
	w    [2]*transport.Worker
	mr   [2]*ibverbx.MR
	ends [2]*transport.Endpoint
	m    *metrics.Collector
	reg  *prometheus.Registry
}

func newPair(tb testing.TB, cfg metrics.Config, worker transport.Config) *pair {
	tb.Helper()
	fabric, err := soft.New(soft.Config{Devices: 2})
	must(tb, err)
	p := &pair{tb: tb, m: metrics.New(cfg), reg: prometheus.NewRegistry()}
	must(tb, p.reg.Register(p.m))
	for i := range p.w {
		dom, err := ibverbx.NewDomain(fabric.Device(i))
		must(tb, err)
		p.w[i], err = transport.NewWorker(dom, worker)
		must(tb, err)
		p.mr[i], err = dom.Register(make([]byte, 4096), verbs.AccessAll)
		must(tb, err)
		must(tb, p.m.AddWorker(fmt.Sprint("worker ", i), p.w[i]))
		tb.Cleanup(func() { must(tb, errors.Join(p.w[i].Close(), p.mr[i].Close(), dom.Close())) })
	}
	return p
}

// connect makes an endpoint at each end.
func (p *pair) connect(name string) {
	p.tb.Helper()
	var cards [2]transport.Card
	for i := range p.ends {
		var err error
		p.ends[i], err = p.w[i].NewEndpoint(transport.EndpointConfig{Name: name})
		must(p.tb, err)
		cards[i], err = p.ends[i].Card()
		must(p.tb, err)
	}
	must(p.tb, errors.Join(p.ends[0].Connect(cards[1]), p.ends[1].Connect(cards[0])))
}

// put writes bytes to the other end, and waits for the acknowledgement.
func (p *pair) put(n int) {
	p.tb.Helper()
	must(p.tb, p.ends[0].PutShort(make([]byte, n), p.mr[1].Remote().At(0)))
	p.until("the put", func() bool { return p.ends[0].Stats().Outstanding == 0 })
}

// until makes progress until something has happened.
func (p *pair) until(what string, done func() bool) {
	p.tb.Helper()
	for deadline := time.Now().Add(20 * time.Second); !done(); {
		p.w[0].Progress()
		p.w[1].Progress()
		if time.Now().After(deadline) {
			p.tb.Fatalf("%s does not come", what)
		}
	}
}

func must(tb testing.TB, err error) {
	tb.Helper()
	if err != nil {
		tb.Fatal(err)
	}
}

// scrape returns the values by name and labels: "ibverbx_sends_total{group=a}".
func scrape(tb testing.TB, reg *prometheus.Registry) map[string]float64 {
	tb.Helper()
	families, err := reg.Gather()
	must(tb, err)
	values := map[string]float64{}
	for _, f := range families {
		for _, m := range f.GetMetric() {
			var labels []string
			for _, l := range m.GetLabel() {
				labels = append(labels, l.GetName()+"="+l.GetValue())
			}
			name := fmt.Sprintf("%s{%s}", f.GetName(), strings.Join(labels, ","))
			values[name] = m.GetCounter().GetValue() + m.GetGauge().GetValue()
		}
	}
	return values
}

// A worker shows what its NIC, its endpoints and their peers have done, in names that Prometheus'
// own linter accepts.
func TestWorker(t *testing.T) {
	p := newPair(t, metrics.Config{}, transport.Config{})
	p.connect("beta")
	for range 3 {
		p.put(40)
	}
	got := scrape(t, p.reg)
	const carried = "ibverbx_carrier_info{device=soft0,group=worker 0,provider=soft,software=true}"
	for name, want := range map[string]float64{
		carried:                               1,
		"ibverbx_sends_total{group=worker 0}": 3,
		"ibverbx_sends_completed_total{group=worker 0}":               3,
		"ibverbx_rail_bytes_total{device=soft0,group=worker 0}":       120,
		"ibverbx_rail_down{device=soft0,group=worker 0}":              0,
		"ibverbx_endpoints{group=worker 0}":                           1,
		"ibverbx_peer_sent_bytes_total{group=worker 0,peer=beta}":     120,
		"ibverbx_peer_outstanding{group=worker 0,peer=beta}":          0,
		"ibverbx_peer_received_bytes_total{group=worker 1,peer=beta}": 0,
		"ibverbx_registered_bytes{group=worker 0}":                    float64(p.w[0].Stats().Registered),
		"ibverbx_endpoint_failures_total{group=worker 0}":             0,
	} {
		if v, ok := got[name]; !ok || v != want {
			t.Errorf("%s: %v, there %v; want %v", name, v, ok, want)
		}
	}
	problems, err := testutil.GatherAndLint(p.reg)
	if err != nil || len(problems) != 0 {
		t.Errorf("%v: %+v", err, problems)
	}
}

// With Timing a worker shows histograms, whose buckets add up. They, too, please the linter, and
// keep what closed endpoints have counted.
func TestTiming(t *testing.T) {
	p := newPair(t, metrics.Config{}, transport.Config{QP: ibverbx.Config{Timing: true}})
	p.connect("beta")
	for range 200 {
		p.put(40)
	}
	must(t, errors.Join(p.ends[0].Abort(nil), p.ends[1].Abort(nil)))
	p.until("the release", func() bool { return p.w[0].Stats().Endpoints+p.w[1].Stats().Endpoints == 0 })
	families, err := p.reg.Gather()
	must(t, err)
	samples := map[string]uint64{}
	for _, f := range families {
		for _, m := range f.GetMetric() {
			h := m.GetHistogram()
			if h == nil || m.GetLabel()[0].GetValue() != "worker 0" {
				continue
			}
			samples[f.GetName()] = h.GetSampleCount()
			before, bound := uint64(0), 0.0
			for _, b := range h.GetBucket() {
				if b.GetCumulativeCount() < before || b.GetUpperBound() <= bound {
					t.Errorf("%s: %v", f.GetName(), h)
				}
				before, bound = b.GetCumulativeCount(), b.GetUpperBound()
			}
			if f.GetName() == "ibverbx_request_bytes" {
				least, most := h.GetBucket()[2], h.GetBucket()[3] // up to 32, up to 64
				if h.GetSampleSum() != 40*float64(before) || least.GetCumulativeCount() != 0 ||
					most.GetCumulativeCount() != before || most.GetUpperBound() != 64 {
					t.Errorf("sizes: %v", h)
				}
			}
		}
	}
	for _, name := range []string{"ibverbx_request_seconds", "ibverbx_request_wait_seconds",
		"ibverbx_request_bytes"} {
		if n := samples[name]; n < 2 || n > 20 {
			t.Errorf("%s has %d samples of 200 requests", name, n)
		}
	}
	problems, err := testutil.GatherAndLint(p.reg)
	if err != nil || len(problems) != 0 {
		t.Errorf("%v: %+v", err, problems)
	}
}

// No counter falls when endpoints are closed and others take their place, and none is lost.
func TestCountersNeverFall(t *testing.T) {
	p := newPair(t, metrics.Config{}, transport.Config{})
	last := map[string]float64{}
	for round := 1; round <= 3; round++ {
		p.connect("beta")
		p.put(10)
		check := func(when string) {
			t.Helper()
			now := scrape(t, p.reg)
			for name, v := range last {
				if strings.Contains(name, "_total{") && now[name] < v {
					t.Errorf("round %d, %s: %s was %v and is %v", round, when, name, v, now[name])
				}
			}
			last = now
		}
		check("open")
		must(t, errors.Join(p.ends[0].Abort(nil), p.ends[1].Abort(nil)))
		p.until("the release", func() bool {
			return p.w[0].Stats().Endpoints+p.w[1].Stats().Endpoints == 0
		})
		check("closed")
		sent := last["ibverbx_peer_sent_bytes_total{group=worker 0,peer=beta}"]
		if sent != float64(10*round) {
			t.Errorf("round %d: %v bytes sent in all", round, sent)
		}
	}
}

// A worker with more peers than have a label of their own sums the rest.
func TestOtherPeers(t *testing.T) {
	p := newPair(t, metrics.Config{MaxPeers: 2}, transport.Config{})
	for _, name := range []string{"a", "b", "c", "d"} {
		p.connect(name)
		scrape(t, p.reg) // peers have labels in the order in which they are seen
		p.put(10)
	}
	sent := map[string]float64{}
	for name, v := range scrape(t, p.reg) {
		if peer, ok := strings.CutPrefix(name, "ibverbx_peer_sent_bytes_total{group=worker 0,peer="); ok {
			sent[strings.TrimSuffix(peer, "}")] = v
		}
	}
	if len(sent) != 3 || sent["a"] != 10 || sent["b"] != 10 || sent["other"] != 20 {
		t.Errorf("%v", sent)
	}
}

// A virtual CQ shows what its owner said last; before that, and after it is removed, nothing.
func TestCQ(t *testing.T) {
	fabric, err := soft.New(soft.Config{})
	must(t, err)
	qp, err := ibverbx.Open([]verbs.Device{fabric.Device(0)}, ibverbx.Config{})
	must(t, err)
	m, reg := metrics.New(metrics.Config{Timeout: time.Millisecond}), prometheus.NewRegistry()
	must(t, errors.Join(reg.Register(m), m.AddCQ("copy", qp.CQ())))
	if err := m.AddCQ("copy", qp.CQ()); !errors.Is(err, verbs.ErrBusy) {
		t.Errorf("the name is taken: %v", err)
	}
	if got := scrape(t, reg); len(got) != 0 {
		t.Errorf("before the first poll: %v", got)
	}
	if _, err := qp.CQ().Poll(nil); err != nil { // the scrape's request still stands
		t.Fatal(err)
	}
	got := scrape(t, reg)
	if age, ok := got["ibverbx_snapshot_age_seconds{group=copy}"]; !ok || age <= 0 || age > 60 {
		t.Errorf("age %v in %v", age, got)
	}
	if _, ok := got["ibverbx_rail_outstanding{device=soft0,group=copy}"]; !ok {
		t.Errorf("%v", got)
	}
	m.Remove("copy")
	if got := scrape(t, reg); len(got) != 0 {
		t.Errorf("removed: %v", got)
	}
	must(t, errors.Join(qp.Close(), fabric.Close()))
}

// An owner that does not poll takes the time of no other, and one that is asked may report a
// fallback before it polls.
func TestIdleOwner(t *testing.T) {
	fabric, err := soft.New(soft.Config{Devices: 2})
	must(t, err)
	const timeout, tries = 100 * time.Millisecond, 50
	m, reg := metrics.New(metrics.Config{Timeout: timeout}), prometheus.NewRegistry()
	must(t, reg.Register(m))
	var qps [2]*ibverbx.VirtualQP
	for i, name := range []string{"an idle one", "busy"} {
		qps[i], err = ibverbx.Open([]verbs.Device{fabric.Device(i)}, ibverbx.Config{})
		must(t, errors.Join(err, m.AddCQ(name, qps[i].CQ())))
	}
	ctx, stop := context.WithCancel(t.Context())
	over := make(chan error, 1)
	go func() {
		var err error
		for err == nil && ctx.Err() == nil {
			m.Events().Fallback(nics.FallbackEvent{Provider: nics.RoCE})
			_, err = qps[1].CQ().Poll(nil)
			time.Sleep(time.Millisecond)
		}
		over <- err
	}()
	fresh := func() bool {
		time.Sleep(2 * timeout) // what an earlier scrape has asked for is then old
		age, ok := scrape(t, reg)["ibverbx_snapshot_age_seconds{group=busy}"]
		return ok && age < 2*timeout.Seconds() // the scrape itself has taken one
	}
	for n := 1; !fresh(); n++ {
		if n == tries {
			t.Fatal("what an owner says that polls all the time is old, or missing")
		}
	}
	stop()
	must(t, errors.Join(<-over, qps[0].Close(), qps[1].Close(), fabric.Close()))
}

// counting is a NIC that counts.
type counting struct{ verbs.Device }

func (counting) Repairs(port int) map[string]uint64 {
	return map[string]uint64{"out_of_sequence": 3, "np_cnp_sent": uint64(port)}
}

// NICs show what their providers count, and fallbacks are counted.
func TestDevicesAndFallbacks(t *testing.T) {
	fabric, err := soft.New(soft.Config{})
	must(t, err)
	m, reg := metrics.New(metrics.Config{}), prometheus.NewRegistry()
	must(t, reg.Register(m))
	d := counting{fabric.Device(0)}
	m.AddDevices(d, fabric.Device(0), d) // that of soft counts nothing
	m.Events().Fallback(nics.FallbackEvent{Provider: nics.RoCE})
	m.Events().Fallback(nics.FallbackEvent{Provider: nics.RoCE})
	var got []string
	for name, v := range scrape(t, reg) {
		got = append(got, fmt.Sprint(name, " ", v))
	}
	slices.Sort(got)
	if want := []string{"ibverbx_fallback_total{provider=roce} 2",
		"ibverbx_nic_repairs_total{counter=np_cnp_sent,device=soft0,port=1} 1",
		"ibverbx_nic_repairs_total{counter=out_of_sequence,device=soft0,port=1} 3",
	}; !slices.Equal(got, want) {
		t.Errorf("%q, want %q", got, want)
	}
	must(t, fabric.Close())
}

// The rules name only metrics that are exported. promtool, where it is installed, checks their
// syntax and plays their cases, and checks a page of metrics.
func TestAlerts(t *testing.T) {
	rules, err := os.ReadFile("alerts.yml")
	must(t, err)
	dashboard, err := os.ReadFile("dashboard.json")
	must(t, err)
	if !json.Valid(dashboard) {
		t.Error("dashboard.json is no JSON")
	}
	descs := make(chan *prometheus.Desc, 100)
	metrics.New(metrics.Config{}).Describe(descs)
	close(descs)
	exported := ""
	for d := range descs {
		exported += d.String()
	}
	names := regexp.MustCompile(`ibverbx_[a-z0-9_]+`).FindAllString(string(rules)+string(dashboard), -1)
	for _, name := range names {
		name = strings.TrimSuffix(name, "_bucket")
		if !strings.Contains(exported, `"`+name+`"`) {
			t.Errorf("%s is not exported", name)
		}
	}
	if len(names) < 25 {
		t.Errorf("only %d names found", len(names))
	}
	promtool, err := exec.LookPath("promtool")
	if err != nil {
		t.Skip("promtool, of the package prometheus, is not here")
	}
	for _, args := range [][]string{{"check", "config", "prometheus.yml"}, {"check", "rules", "alerts.yml"},
		{"test", "rules", "alerts_test.yml"}} {
		if out, err := exec.Command(promtool, args...).CombinedOutput(); err != nil {
			t.Errorf("promtool %v: %v\n%s", args, err, out)
		}
	}
	p := newPair(t, metrics.Config{}, transport.Config{QP: ibverbx.Config{Timing: true}})
	p.connect("beta")
	page := httptest.NewRecorder()
	promhttp.HandlerFor(p.reg, promhttp.HandlerOpts{}).ServeHTTP(page, httptest.NewRequest("GET", "/", nil))
	check := exec.Command(promtool, "check", "metrics")
	check.Stdin = page.Body
	if out, err := check.CombinedOutput(); err != nil || len(out) != 0 {
		t.Errorf("promtool check metrics: %v\n%s", err, out)
	}
}

// BenchmarkScrape collects two workers with a thousand endpoints each.
func BenchmarkScrape(b *testing.B) {
	p := newPair(b, metrics.Config{}, transport.Config{MaxEndpoints: 1000, BufferSize: 256, AMBuffers: 2,
		MaxOutstanding: 4, QP: ibverbx.Config{QPsPerDevice: 1}})
	for i := range 1000 {
		p.connect(fmt.Sprint("peer ", i))
	}
	scrape(b, p.reg)
	to := make(chan prometheus.Metric, 1)
	go func() {
		for range to {
			continue // they are only taken away
		}
	}()
	for b.Loop() {
		p.m.Collect(to)
	}
	close(to)
}
