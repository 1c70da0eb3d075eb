//go:build linux && (amd64 || arm64)

package rdmacore_test

import (
	"context"
	"io/fs"
	"os"
	"runtime/debug"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"

	"go.uber.org/goleak"

	"ibverbx/verbs"
	"ibverbx/verbs/rdmacore"
)

// Parents refuse to close before their children, and say what is open.
func TestCloseOrder(t *testing.T) {
	s := openStandin(t, standinConfig{})
	p := s.open(t, "")
	r := rigOn(t, s, devices(t, p)[1], rigConfig{channel: verbs.NewCompChannel()})
	busy := func(err error, words ...string) {
		t.Helper()
		is(t, err, verbs.ErrBusy)
		mentions(t, err, words...)
	}
	busy(p.Close(), "standin1", "1 protection domains", "2 completion queues")
	busy(r.pd.Close(), "1 memory regions", "1 queue pairs")
	busy(r.cq.Close(), "use it")
	busy(r.rcq.Close())
	// A refused close has no effect: everything works, on the device that had nothing open, too.
	r.post(r.send(1, 1))
	r.poll(r.cq, 1)
	pd, err := devices(t, p)[0].AllocPD()
	ok(t, err)
	ok(t, pd.Close())

	ok(t, r.qp.Close())
	busy(r.pd.Close(), "1 memory regions", "0 queue pairs")
	ok(t, r.cq.Close())
	ok(t, r.rcq.Close())
	busy(p.Close(), "1 protection domains", "0 completion queues")
	ok(t, r.mr.Close())
	ok(t, r.pd.Close())
	ok(t, p.Close())
	if n := s.live("all"); n != 0 {
		t.Errorf("%d objects are alive", n)
	}
}

// Calls on closed objects return ErrClosed.
func TestClosed(t *testing.T) {
	s := openStandin(t, standinConfig{})
	p := s.open(t, "")
	r := rigOn(t, s, devices(t, p)[0], rigConfig{channel: verbs.NewCompChannel()})
	closed := func(what string, err error) {
		t.Helper()
		is(t, err, verbs.ErrClosed, fs.ErrClosed)
		mentions(t, err, what)
	}
	ok(t, r.qp.Close())
	closed("close qp", r.qp.Close())
	_, err := r.qp.PostSend([]verbs.SendWR{r.send(1, 1)})
	closed("post send: standin0 qp", err)
	_, err = r.qp.PostRecv([]verbs.RecvWR{{}})
	closed("post recv: standin0 qp", err)
	closed("modify qp", r.qp.Modify(&verbs.QPAttr{State: verbs.StateErr}, verbs.QPAttrState))
	_, err = r.qp.Query()
	closed("query qp", err)
	r.qp.State() // some state; it does not ask C
	r.qp.Cap()

	ok(t, r.rcq.Close())
	closed("close cq", r.rcq.Close())
	_, err = r.rcq.Poll(make([]verbs.WC, 1))
	closed("poll: standin0", err)
	closed("arm", r.rcq.Arm(false))
	_, err = r.pd.CreateQP(verbs.QPConfig{SendCQ: r.cq, RecvCQ: r.rcq})
	closed("create qp", err)

	ok(t, r.mr.Close())
	closed("close memory region", r.mr.Close())
	ok(t, r.cq.Close())
	ok(t, r.pd.Close())
	closed("close pd", r.pd.Close())
	_, err = r.pd.RegisterMR(r.buf, verbs.AccessAll)
	closed("register memory", err)
	_, err = r.pd.CreateQP(verbs.QPConfig{SendCQ: r.cq, RecvCQ: r.cq})
	closed("create qp", err)

	ok(t, p.Close())
	closed("close provider", p.Close())
	_, err = p.Devices()
	closed("list devices", err)
	_, err = r.dev.Query()
	closed("query device: standin0", err)
	_, err = r.dev.QueryPort(1)
	closed("query port: standin0", err)
	_, err = r.dev.QueryGID(1, 0)
	closed("query gid: standin0", err)
	_, err = r.dev.AllocPD()
	closed("alloc pd", err)
	_, err = r.dev.CreateCQ(verbs.CQConfig{})
	closed("create cq", err)
	r.dev.Watch(make(chan verbs.Event, 1))()
}

// What C refuses to destroy is open still, and can be closed later.
func TestCloseFails(t *testing.T) {
	s := openStandin(t, standinConfig{})
	r := newRig(t, s, rigConfig{channel: verbs.NewCompChannel()})
	for _, c := range []struct {
		call  string
		close func() error
	}{
		{"ibv_destroy_qp", r.qp.Close}, {"ibv_destroy_cq", r.cq.Close}, {"ibv_destroy_cq", r.rcq.Close},
		{"ibv_dereg_mr", r.mr.Close},
		{"ibv_dealloc_pd", r.pd.Close},
	} {
		s.fail(c.call, syscall.EIO)
		err := c.close()
		is(t, err, syscall.EIO)
		mentions(t, err, c.call)
		switch c.call {
		case "ibv_destroy_qp":
			r.post(r.send(1, 1))
			r.poll(r.cq, 1)
		case "ibv_dereg_mr":
			is(t, r.pd.Close(), verbs.ErrBusy)
		}
		ok(t, c.close())
	}
}

// A creation that fails counts nothing as open, on either side.
func TestCreateFails(t *testing.T) {
	s := openStandin(t, standinConfig{})
	p := s.open(t, "")
	d := devices(t, p)[0]
	s.fail("ibv_alloc_pd", syscall.ENOMEM)
	_, err := d.AllocPD()
	is(t, err, verbs.ErrNoMemory, syscall.ENOMEM)
	channel := verbs.NewCompChannel()
	for _, call := range []string{"ibv_create_comp_channel", "ibv_create_cq"} {
		s.fail(call, syscall.EMFILE)
		_, err = d.CreateCQ(verbs.CQConfig{Channel: channel})
		is(t, err, syscall.EMFILE)
		mentions(t, err, "create cq: standin0: "+call)
	}
	for _, depth := range []int{-1, 1<<20 + 1, 1 << 40} {
		_, err = d.CreateCQ(verbs.CQConfig{Depth: depth})
		is(t, err, verbs.ErrInvalid)
	}
	pd, err := d.AllocPD()
	ok(t, err)
	cq, err := d.CreateCQ(verbs.CQConfig{})
	ok(t, err)
	// The second attempt is without inline data, see TestDefaultInline.
	s.failTimes("ibv_create_qp", syscall.EINVAL, 2)
	_, err = pd.CreateQP(verbs.QPConfig{SendCQ: cq, RecvCQ: cq})
	is(t, err, verbs.ErrInvalid, syscall.EINVAL)
	mentions(t, err, "create qp: standin0: ibv_create_qp", "inline")
	foreign, err := devices(t, p)[1].CreateCQ(verbs.CQConfig{})
	ok(t, err)
	for _, cfg := range []verbs.QPConfig{
		{}, {SendCQ: cq}, {RecvCQ: cq}, {SendCQ: cq, RecvCQ: foreign}, {SendCQ: foreign, RecvCQ: foreign},
		{SendCQ: cq, RecvCQ: cq, Cap: verbs.QPCap{MaxSendWR: 16385}},
		{SendCQ: cq, RecvCQ: cq, Cap: verbs.QPCap{MaxRecvSGE: 31}},
		{SendCQ: cq, RecvCQ: cq, Cap: verbs.QPCap{MaxInline: 1025}},
		{SendCQ: cq, RecvCQ: cq, Cap: verbs.QPCap{MaxSendSGE: -1}},
	} {
		_, err = pd.CreateQP(cfg)
		is(t, err, verbs.ErrInvalid)
	}
	ok(t, pd.Close())
	ok(t, cq.Close())
	ok(t, foreign.Close())
	ok(t, p.Close())
}

// Closing while a goroutine waits for an event, one for a completion to poll, and events are on
// their way.
func TestCloseWhileWaiting(t *testing.T) {
	s := openStandin(t, standinConfig{})
	for range 20 {
		c := verbs.NewCompChannel()
		p := s.open(t, "")
		r := rigOn(t, s, devices(t, p)[0], rigConfig{channel: c})
		ctx, cancel := context.WithCancel(context.Background())
		waited, polled := make(chan error, 1), make(chan error, 1)
		go func() {
			for {
				if err := c.Wait(ctx); err != nil {
					waited <- err
					return
				}
			}
		}()
		go func() {
			wcs := make([]verbs.WC, 4)
			for {
				if _, err := r.cq.Poll(wcs); err != nil {
					polled <- err
					return
				}
			}
		}()
		ok(t, r.cq.Arm(false))
		r.post(r.send(1, 1))
		for _, close := range []func() error{r.qp.Close, r.cq.Close, r.rcq.Close, r.mr.Close, r.pd.Close,
			p.Close} {
			ok(t, close())
		}
		is(t, <-polled, verbs.ErrClosed)
		cancel()
		is(t, <-waited, context.Canceled)
	}
}

// openFiles and memory measure what the process has.
func openFiles(t testing.TB) int {
	t.Helper()
	list, err := os.ReadDir("/proc/self/fd")
	ok(t, err)
	return len(list)
}

// memory is the anonymous memory in use, in KiB: Go's, C's and mappings, but no room that is only
// reserved.
func memory(t testing.TB) int {
	t.Helper()
	debug.FreeOSMemory()
	status, err := os.ReadFile("/proc/self/status")
	ok(t, err)
	_, after, _ := strings.Cut(string(status), "RssAnon:")
	n, err := strconv.Atoi(strings.Fields(after)[0])
	ok(t, err)
	return n
}

// underRace reports whether the test was built with the race detector.
func underRace() bool {
	info, _ := debug.ReadBuildInfo()
	return slices.Contains(info.Settings, debug.BuildSetting{Key: "-race", Value: "true"})
}

// Hundreds of rounds of everything leave nothing behind: no object of the library, no descriptor,
// no goroutine, no memory.
func TestNoLeaks(t *testing.T) {
	s := openStandin(t, standinConfig{})
	round := func() {
		p, err := rdmacore.Open(rdmacore.Config{Library: s.path})
		ok(t, err)
		arena, err := p.NewArena(64 << 10)
		ok(t, err)
		for _, d := range devices(t, p) {
			c := verbs.NewCompChannel()
			pd, err := d.AllocPD()
			ok(t, err)
			mr, err := pd.RegisterMR(arena.Bytes(), verbs.AccessAll)
			ok(t, err)
			heap, err := pd.RegisterMR(make([]byte, 64<<10), verbs.AccessAll)
			ok(t, err)
			cq, err := d.CreateCQ(verbs.CQConfig{Channel: c})
			ok(t, err)
			qp, err := pd.CreateQP(verbs.QPConfig{SendCQ: cq, RecvCQ: cq})
			ok(t, err)
			raise(t, qp, verbs.StateRTS)
			ok(t, cq.Arm(false))
			_, err = qp.PostSend([]verbs.SendWR{{ID: 1, Opcode: verbs.OpSend, Flags: verbs.SendSignaled}})
			ok(t, err)
			wait(t, c)
			_, err = cq.Poll(make([]verbs.WC, 2))
			ok(t, err)
			// The event may still be on its way when the device closes.
			s.raise(int32(d.ID()), int32(verbs.EventPortErr), 1)
			// What fails gives back what it had.
			for _, call := range []string{"ibv_create_qp", "ibv_reg_mr", "ibv_create_cq", "ibv_alloc_pd"} {
				s.fail(call, syscall.ENOMEM)
			}
			_, e1 := pd.CreateQP(verbs.QPConfig{SendCQ: cq, RecvCQ: cq})
			_, e2 := pd.RegisterMR(make([]byte, 4096), verbs.AccessAll)
			_, e3 := d.CreateCQ(verbs.CQConfig{})
			_, e4 := d.AllocPD()
			for _, err := range []error{e1, e2, e3, e4} {
				is(t, err, verbs.ErrNoMemory)
			}
			for _, c := range []interface{ Close() error }{qp, cq, mr, heap, pd} {
				ok(t, c.Close())
			}
		}
		ok(t, arena.Close())
		ok(t, p.Close())
		for device := range int32(2) { // one that fails to open, as the first or after it
			s.failCall("ibv_query_device", int32(syscall.EIO), 1, device)
			_, err = rdmacore.Open(rdmacore.Config{Library: s.path, Devices: "standin0,standin1"})
			is(t, err, syscall.EIO)
			s.failCall("ibv_query_device", int32(syscall.EIO), 1, device)
			p, err := rdmacore.Open(rdmacore.Config{Library: s.path}) // goes on without it
			ok(t, err)
			is(t, p.Unopened(), syscall.EIO)
			ok(t, p.Close())
		}
	}
	const rounds = 400
	for range 50 {
		round()
	}
	goroutines, files := goleak.IgnoreCurrent(), openFiles(t)
	// The smallest leak is a page each round. The growth of the runtime ends, a leak does not. The
	// race detector takes as much for itself.
	for attempt := 1; !underRace(); attempt++ {
		before := memory(t)
		for range rounds {
			round()
		}
		grown := memory(t) - before
		if grown < 4*rounds {
			break
		}
		if attempt == 8 {
			t.Fatalf("%d rounds took %d KiB, as did those before", rounds, grown)
		}
	}
	if n := s.live("all"); n != 0 {
		t.Errorf("%d objects are alive", n)
	}
	if n := openFiles(t); n > files {
		t.Errorf("%d descriptors are open, %d were", n, files)
	}
	goleak.VerifyNone(t, goroutines)
}
