package debug

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"net/http/httptest"
	"os"
	"strconv"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"ibverbx"
	"ibverbx/internal/vqptest"
	"ibverbx/transport"
	"ibverbx/verbs"
	"ibverbx/verbs/soft"
)

// patience is how long a test waits for something that happens at once on an idle machine.
const patience = 60 * time.Second

// Sick connections, each by two snapshots that are a second apart. Each is named, and stands before
// one that is well.
func TestSickness(t *testing.T) {
	type rails []ibverbx.RailStats
	rail := func(name string, fragments uint64, outstanding int) ibverbx.RailStats {
		return ibverbx.RailStats{
			Device:      name,
			Fragments:   fragments,
			Bytes:       fragments << 19,
			Outstanding: outstanding,
		}
	}
	fine := [2]Peer{
		{Name: "fine", QP: ibverbx.Stats{Rails: rails{rail("n0", 9, 2), rail("n1", 9, 2)}}},
		{Name: "fine", QP: ibverbx.Stats{Rails: rails{rail("n0", 99, 2), rail("n1", 99, 2)}}},
	}
	with := func(p Peer, change func(p *Peer)) Peer {
		p.QP.Rails = append(rails{}, p.QP.Rails...)
		change(&p)
		return p
	}
	both := func(change func(p *Peer)) [2]Peer {
		return [2]Peer{with(fine[0], change), with(fine[1], change)}
	}
	endpoint := func(p *Peer) { p.Endpoint = &transport.EndpointStats{Pending: 7, SentBytes: 100} }
	for name, c := range map[string]struct {
		peers [2]Peer
		nic   string // the counter that grows
		row   string // what is said of the peer, or of its rail
		rail  string
	}{
		"slow": {both(func(p *Peer) { p.QP.Rails[1].Outstanding = 64 }), "", "n1 rail 1 is slow",
			"slow: 64 fragments stand there, at most 2 at the best rail"},
		"slow by ability": {both(func(p *Peer) { p.QP.Rails[0].Rate, p.QP.Rails[1].Rate = 10e9, 1e9 }), "",
			"n1 rail 1 is slow", "slow: 1 GB/s, another carries 10"},
		"stuck": {both(func(p *Peer) { p.QP.Rails[1] = rail("n1", 9, 64) }), "", "n1 rail 1 is slow", "slow"},
		"lost": {both(func(p *Peer) { p.QP.Rails[1].Down = true }), "", "n1 rail 1 is lost",
			"lost: other rails carry its work"},
		"no receives here": {both(func(p *Peer) { p.QP.Banked = 5 }), "",
			"this program posts no receives: 5 notifications", ""},
		"no receives there": {[2]Peer{fine[0], fine[0]}, "",
			"the peer posts no receives, or does not answer", ""},
		"no receives there, as the NIC says": {[2]Peer{fine[0], fine[0]}, "rnr_naks",
			"the peer posts no receives: nothing has completed for 1s", ""},
		"messages that nobody takes": {both(endpoint), "", "the peer takes no messages: 7 wait", ""},
		"congested": {fine, "np_cnp_sent", "congestion, not a fault",
			"congestion, not a fault"},
		"lossy": {fine, "resent_packets", "packets are lost", "packets are lost"},
		"failed": {both(func(p *Peer) { p.Err = "no\x1b[2J answer" }), "",
			"failed: no [2J answer", ""},
	} {
		t.Run(name, func(t *testing.T) {
			var shots [2]Process
			for i := range shots {
				at := time.Unix(int64(i), 0)
				shots[i] = Process{PID: 7, Name: "job", At: at,
					Groups: []Group{{Name: "g", At: at, Peers: []Peer{fine[i], c.peers[i]}}},
					NICs: []NIC{
						{Device: "n1", Port: 1, Repairs: map[string]uint64{c.nic: uint64(i)}},
					}}
				shots[i].Groups[0].Peers[1].Name = "sick"
			}
			if c.nic == "" {
				shots[0].NICs, shots[1].NICs = nil, nil
			}
			look := compare(shots[:1], shots[1:])
			first, last := look.Peers[0], look.Peers[1]
			if !strings.Contains(first.Sick, c.row) ||
				c.rail != "" && !strings.Contains(first.Rails[0].Sick, c.rail) {
				t.Errorf("%+v", first)
			}
			if c.nic == "" && (first.Name != "g sick" || last.Sick != "") {
				t.Errorf("first %+v, then %+v", first, last)
			}
			if c.nic != "" && (len(look.NICs) != 1 || look.NICs[0].Sick == "") {
				t.Errorf("%+v", look.NICs)
			}
		})
	}
}

// A queue that is long at one look and short at the next is chance.
func TestChanceIsNoSickness(t *testing.T) {
	shot := func(sec int64, outstanding int) []Process {
		at := time.Unix(sec, 0)
		return []Process{{PID: 7, At: at, Groups: []Group{{Name: "g", At: at, Peers: []Peer{{Name: "p",
			QP: ibverbx.Stats{SendsCompleted: uint64(sec), Rails: []ibverbx.RailStats{{Device: "n0"},
				{Device: "n1", Outstanding: outstanding}}}}}}}}}
	}
	if look := compare(shot(0, 16), shot(1, 0), shot(2, 16)); look.Peers[0].Sick != "" {
		t.Error(look.Peers[0].Sick)
	}
	if look := compare(shot(0, 16), shot(1, 3), shot(2, 16)); look.Peers[0].Sick != "n1 rail 1 is slow" {
		t.Error(look.Peers[0].Sick)
	}
}

// Programs of two containers have the same number and name: each is compared with itself, and shown
// by the address at which it was asked.
func TestSameNumber(t *testing.T) {
	shot := func(target string, sec int64, bytes uint64) Process {
		at := time.Unix(sec, 0)
		return Process{PID: 1, Name: "server", At: at, target: target, Groups: []Group{{Name: "g", At: at,
			Peers: []Peer{{Name: "p", QP: ibverbx.Stats{Rails: []ibverbx.RailStats{{Bytes: bytes}}}}}}}}
	}
	look := compare([]Process{shot("a:1", 0, 1e9), shot("b:1", 0, 100e9)},
		[]Process{shot("a:1", 1, 1e9), shot("b:1", 1, 101e9)})
	if fast := look.Peers[0]; fast.Out != 1e9 || fast.Target != "b:1" || look.Peers[1].Out != 0 {
		t.Errorf("%+v", look.Peers)
	}
	var out bytes.Buffer
	err := look.write(&out, TopConfig{Rows: 9})
	if err != nil || !strings.Contains(out.String(), "b:1 server: g p") {
		t.Errorf("%v\n%s", err, &out)
	}
}

// An owner that has not polled for long, although there is work, hangs; one without work rests.
func TestHung(t *testing.T) {
	for waiting, want := range map[int]string{0: "", 9: "its owner has not polled for 59s"} {
		shot := []Process{{PID: 1, At: time.Unix(60, 0), Groups: []Group{{Name: "g", At: time.Unix(1, 0),
			Peers: []Peer{{Name: "p", QP: ibverbx.Stats{SendsWaiting: waiting}}}}}}}
		if sick := compare(shot, shot).Peers[0].Sick; sick != want {
			t.Errorf("%d wait: %q", waiting, sick)
		}
	}
}

// closedNIC is a NIC that has been closed.
type closedNIC struct {
	counting
	asked *int
}

func (c closedNIC) Query() (verbs.DeviceAttr, error) {
	*c.asked++
	return verbs.DeviceAttr{}, fmt.Errorf("query: %w", verbs.ErrClosed)
}

// A NIC that is closed is asked once more, and forgotten.
func TestClosedNIC(t *testing.T) {
	asked := 0
	s := New(Config{})
	s.AddDevices(closedNIC{asked: &asked})
	for range 3 {
		if p := s.Snapshot(t.Context()); len(p.NICs) != 0 {
			t.Errorf("%+v", p.NICs)
		}
	}
	if asked != 1 {
		t.Errorf("asked %d times", asked)
	}
}

// A virtual CQ that nobody polls takes no time from the others.
func TestOneDoesNotPoll(t *testing.T) {
	g := newTraffic(t)
	idle, err := ibverbx.Open(g.devices[:1], ibverbx.Config{})
	if err != nil {
		t.Fatal(err)
	}
	defer idle.Close()
	s := New(Config{Timeout: time.Second})
	if err := errors.Join(s.AddCQ("a", idle.CQ()), s.AddCQ("busy", g.cq)); err != nil {
		t.Fatal(err)
	}
	for range 60 { // a busy machine may need more than one
		begin := time.Now()
		groups := s.Snapshot(t.Context()).Groups
		if n := len(groups); n != 0 && groups[n-1].At.After(begin) {
			return
		}
	}
	t.Error("the one that polls is never shown as it is")
}

// counting is a NIC that counts notifications of congestion while it is told to.
type counting struct {
	verbs.Device
	congested *atomic.Bool
	cnps      *atomic.Uint64
}

func (c counting) Repairs(int) map[string]uint64 {
	if c.congested.Load() {
		c.cnps.Add(1)
	}
	return map[string]uint64{"np_cnp_sent": c.cnps.Load()}
}

// traffic is a connection over two NICs at each end, over which one goroutine writes with
// notifications until the test ends.
type traffic struct {
	fabric    *soft.Fabric
	congested atomic.Bool
	receives  atomic.Bool // the receiver posts some
	cq        *ibverbx.VirtualCQ
	devices   []verbs.Device
}

func newTraffic(t *testing.T) *traffic {
	t.Helper()
	g := &traffic{fabric: vqptest.NewFabric(t, soft.Config{Devices: 4})}
	g.receives.Store(true)
	for i := range 2 {
		g.devices = append(g.devices, counting{g.fabric.Device(i), &g.congested, &atomic.Uint64{}})
	}
	cfg := ibverbx.Config{QPsPerDevice: 1, FragmentSize: 4096, MaxMsgCntPerQP: 32, MaxBanked: 64,
		Failover: true, Failback: time.Millisecond}
	open := func(devices ...verbs.Device) (*ibverbx.VirtualQP, *ibverbx.MR) {
		qp, err := ibverbx.Open(devices, cfg)
		if err != nil {
			t.Fatal(err)
		}
		mr, err := qp.Domain().Register(make([]byte, 64<<10), verbs.AccessAll)
		if err != nil {
			t.Fatal(err)
		}
		return qp, mr
	}
	a, from := open(g.fabric.Device(0), g.fabric.Device(1))
	b, to := open(g.fabric.Device(2), g.fabric.Device(3))
	vqptest.ConnectBoth(t, a, b)
	g.cq = a.CQ()
	ctx, stop := context.WithCancel(t.Context())
	over := make(chan error, 1)
	go func() { over <- g.run(ctx, a, b, from, to) }()
	t.Cleanup(func() {
		stop()
		if err := errors.Join(<-over, a.Close(), b.Close(), from.Close(), to.Close()); err != nil {
			t.Error(err)
		}
	})
	return g
}

// run is the owner of both ends.
func (g *traffic) run(ctx context.Context, a, b *ibverbx.VirtualQP, from, to *ibverbx.MR) error {
	wr := ibverbx.SendWR{Opcode: verbs.OpRDMAWriteWithImm, Flags: verbs.SendSignaled,
		Local: from.Slice(0, from.Remote().Len()), Remote: to.Remote().Slice(0, to.Remote().Len())}
	under, posted := 0, 0
	for ctx.Err() == nil {
		for ; under < 8; under++ {
			if _, err := a.PostSend(wr); err != nil {
				return err
			}
		}
		for ; posted < 16 && g.receives.Load(); posted++ {
			if _, err := b.PostRecv(ibverbx.RecvWR{}); err != nil {
				return err
			}
		}
		for _, end := range []struct {
			qp    *ibverbx.VirtualQP
			count *int
		}{{a, &under}, {b, &posted}} {
			for wc, err := range end.qp.CQ().Completions() {
				if err := errors.Join(err, end.qp.Err()); err != nil ||
					wc.Status != verbs.StatusSuccess {
					return fmt.Errorf("%v: %w", wc, err)
				}
				*end.count--
			}
		}
		time.Sleep(50 * time.Microsecond) // leaves the processor to others
	}
	return nil
}

// look asks top for one look after the other until the first line below the heading says what is
// wanted.
func look(t *testing.T, target, want string) {
	t.Helper()
	ctx, stop := context.WithTimeout(t.Context(), patience)
	defer stop()
	var out bytes.Buffer
	for ctx.Err() == nil {
		out.Reset()
		cfg := TopConfig{Interval: 50 * time.Millisecond, Looks: 1}
		if err := Top(ctx, &out, []string{target}, cfg); err != nil {
			t.Fatal(err)
		}
		if first := strings.Split(out.String(), "\n")[1]; strings.Contains(first, want) {
			return
		}
	}
	t.Fatalf("no look says %q; the last one:\n%s", want, &out)
}

// A slow rail, a lost one, a congested one, and a peer that posts no receives are named by what a
// user reads, over the socket of the process and over HTTP.
func TestTop(t *testing.T) {
	t.Setenv("XDG_RUNTIME_DIR", t.TempDir())
	g := newTraffic(t)
	s := New(Config{Name: "job", Timeout: patience})
	if err := s.AddCQ("copy", g.cq); err != nil {
		t.Fatal(err)
	}
	if err := s.AddCQ("copy", g.cq); !errors.Is(err, verbs.ErrBusy) {
		t.Error(err)
	}
	s.AddDevices(g.devices...)
	l, err := s.Listen()
	if err != nil {
		t.Fatal(err)
	}
	server := httptest.NewServer(s)
	defer server.Close()
	pid, addr := strconv.Itoa(os.Getpid()), strings.TrimPrefix(server.URL, "http://")

	g.fabric.Device(1).SetSpeed(2e6, 0)
	look(t, pid, "soft1 rail 1 is slow")
	g.fabric.Device(1).SetSpeed(0, 0)
	g.congested.Store(true)
	look(t, addr, "rail 0: congestion, not a fault")
	g.congested.Store(false)
	g.fabric.Device(1).SetLink(false)
	look(t, pid, "soft1 rail 1 is lost")
	g.fabric.Device(1).SetLink(true)
	g.receives.Store(false)
	look(t, addr, "posts no receives")

	var out bytes.Buffer
	once := TopConfig{Interval: time.Millisecond, Looks: 1, JSON: true}
	if err := Top(t.Context(), &out, nil, once); err != nil {
		t.Fatal(err)
	}
	var one Look
	if err := json.Unmarshal(out.Bytes(), &one); err != nil || len(one.Peers) != 1 ||
		one.Peers[0].Process != "job" || one.Peers[0].Lost == 0 || len(one.Peers[0].Rails) < 2 {
		t.Errorf("%v: %s", err, &out)
	}
	if err := errors.Join(l.Close(), l.Close()); err != nil {
		t.Error(err)
	}
	vain := map[string]string{pid: "no such file", "x": "neither", "127.0.0.1:1": "refused"}
	for target, want := range vain {
		err := Top(t.Context(), &out, []string{target}, TopConfig{Looks: 1})
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v", target, err)
		}
	}
}

// With "every" a line comes each time, and the look ends with its client.
func TestEvery(t *testing.T) {
	server := httptest.NewServer(New(Config{}))
	defer server.Close()
	r, err := http.Get(server.URL + "?every=10ms")
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = r.Body.Close() }()
	lines := bufio.NewReader(r.Body)
	for range 3 {
		text, err := lines.ReadBytes('\n')
		var p Process
		if err := errors.Join(err, json.Unmarshal(text, &p)); err != nil || p.PID != os.Getpid() {
			t.Errorf("%v: %s", err, text)
		}
	}
}

// FuzzLook compares what two answers of any content say. The page can be shown, and the document be
// written.
func FuzzLook(f *testing.F) {
	f.Add(
		`{"pid":1,"name":"a","groups":[{"at":"2026-01-01T00:00:00Z",
		"peers":[{"qp":{"rails":[{"device":"n"}]}}]}]}`,
		`{"pid":1,"name":"a","groups":[{"at":"2026-01-01T00:00:01Z","peers":[{"name":"\u001b","err":"\n",
		"qp":{"rails":[{"device":"n","fragments":9,"outstanding":-5},{"device":"\u001b"}]}}]}],
		"nics":[{"repairs":{"x":1}}]}`,
	)
	f.Fuzz(func(t *testing.T, first, second string) {
		var shots [2]Process
		if json.Unmarshal([]byte(first), &shots[0]) != nil ||
			json.Unmarshal([]byte(second), &shots[1]) != nil {
			return
		}
		look := compare(shots[:1], shots[1:])
		var page, doc bytes.Buffer
		err := errors.Join(
			look.write(&page, TopConfig{Rows: 5}),
			look.write(&doc, TopConfig{JSON: true}),
		)
		if err != nil || strings.ContainsAny(page.String(), "\x1b\x00\r") ||
			!json.Valid(doc.Bytes()) {
			t.Errorf("%v: %q\n%s", err, &page, &doc)
		}
	})
}
