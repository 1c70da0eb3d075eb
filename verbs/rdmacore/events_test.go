//go:build linux && (amd64 || arm64)

package rdmacore_test

import (
	"context"
	"syscall"
	"testing"
	"time"

	"ibverbx/verbs"
)

// wait takes the next event of a channel.
func wait(t testing.TB, c *verbs.CompChannel) {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
	defer cancel()
	if err := c.Wait(ctx); err != nil {
		t.Fatalf("no completion event: %v", err)
	}
}

// quiet fails if there is an event. Events travel through a goroutine, so what should not come
// cannot be waited for; what did come before an event that was waited for has come.
func quiet(t testing.TB, c *verbs.CompChannel) {
	t.Helper()
	select {
	case <-c.Events():
		t.Error("an event without arming")
	default:
	}
}

// next takes the next asynchronous event.
func next(t testing.TB, c <-chan verbs.Event) verbs.Event {
	t.Helper()
	select {
	case e := <-c:
		return e
	case <-time.After(10 * time.Second):
		t.Fatal("no asynchronous event")
		return verbs.Event{}
	}
}

func TestArmAndWait(t *testing.T) {
	s := openStandin(t, standinConfig{})
	c := verbs.NewCompChannel()
	r := newRig(t, s, rigConfig{channel: c})
	if r.cq.Channel() != c {
		t.Error("the queue has another channel")
	}
	for i := range 100 {
		ok(t, r.cq.Arm(false))
		r.poll(r.cq, 0)
		r.post(r.send(uint64(i), 1))
		wait(t, c)
		r.post(r.send(uint64(i), 1)) // not armed
		r.poll(r.cq, 2)
		quiet(t, c)
	}
	// What is in the queue already raises no event: armed after the post, only the next completion
	// does.
	r.post(r.send(1, 1))
	ok(t, r.cq.Arm(false))
	quiet(t, c)
	r.post(r.send(2, 1))
	wait(t, c)
	r.poll(r.cq, 2)
}

// Solicited only: an ordinary message raises no event, a solicited one and a failure do.
func TestArmSolicited(t *testing.T) {
	s := openStandin(t, standinConfig{})
	c := verbs.NewCompChannel()
	r := newRig(t, s, rigConfig{channel: c})
	r.recv(verbs.RecvWR{ID: 1}, verbs.RecvWR{ID: 2}, verbs.RecvWR{ID: 3})
	ok(t, r.rcq.Arm(true))
	s.completeRecv(0, r.qp.Num(), 1, 0, 0, 0)
	ok(t, r.cq.Arm(false)) // an event behind, to be sure that there was none before
	r.poll(r.rcq, 1)
	quiet(t, c)
	s.completeRecv(0, r.qp.Num(), 1, 0, 0, 1)
	wait(t, c)
	r.poll(r.rcq, 1)
	ok(t, r.rcq.Arm(true))
	r.setState(verbs.StateErr)
	wait(t, c)
	r.poll(r.rcq, 1)
}

// One wait covers the queues of several devices, and several events before a wait are one.
func TestEventsMerge(t *testing.T) {
	s := openStandin(t, standinConfig{})
	c := verbs.NewCompChannel()
	var rigs []*rig
	for _, d := range devices(t, s.open(t, "")) {
		rigs = append(rigs, rigOn(t, s, d, rigConfig{channel: c}))
	}
	for _, r := range rigs {
		ok(t, r.cq.Arm(false))
		r.post(r.send(1, 1))
		wait(t, c)
		r.poll(r.cq, 1)
	}
	for _, r := range rigs {
		ok(t, r.cq.Arm(false))
		r.post(r.send(1, 1))
	}
	wait(t, c)
	for _, r := range rigs {
		r.poll(r.cq, 1)
	}
	if n := s.live("channel"); n != int32(len(rigs)) {
		t.Errorf("%d completion channels for %d devices", n, len(rigs))
	}
}

func TestArmRefused(t *testing.T) {
	s := openStandin(t, standinConfig{})
	r := newRig(t, s, rigConfig{})
	is(t, r.cq.Arm(false), verbs.ErrInvalid) // it has no channel
	if n := s.live("channel"); n != 0 {
		t.Errorf("%d completion channels without need", n)
	}
	cq, err := r.dev.CreateCQ(verbs.CQConfig{Channel: verbs.NewCompChannel()})
	ok(t, err)
	closeLater(t, cq)
	s.fail("ibv_req_notify_cq", syscall.EIO)
	err = cq.Arm(false)
	is(t, err, syscall.EIO)
	mentions(t, err, "arm: standin0: ibv_req_notify_cq")
	ok(t, cq.Close())
	is(t, cq.Arm(false), verbs.ErrClosed)
}

// Interrupts are spread: each queue gets the next completion vector.
func TestCompletionVectors(t *testing.T) {
	s := openStandin(t, standinConfig{})
	d := s.device(t)
	for i := range 9 {
		cq, err := d.CreateCQ(verbs.CQConfig{})
		ok(t, err)
		closeLater(t, cq)
		if v := s.cqVector(0, s.lastCQ(0)); v != int32(i%4) {
			t.Errorf("queue %d on vector %d", i, v)
		}
	}
}

func TestAsyncEvents(t *testing.T) {
	s := openStandin(t, standinConfig{})
	list := devices(t, s.open(t, ""))
	r := rigOn(t, s, list[0], rigConfig{})
	cq, err := r.dev.CreateCQ(verbs.CQConfig{})
	ok(t, err)
	closeLater(t, cq)
	handle := s.lastCQ(0)
	all, other := make(chan verbs.Event, 64), make(chan verbs.Event, 64)
	defer list[0].Watch(all)()
	defer list[1].Watch(other)()

	const lastOfC = verbs.EventType(19) // IBV_EVENT_WQ_FATAL: events without a name come as numbers
	for typ := verbs.EventCQErr; typ <= lastOfC; typ++ {
		want := verbs.Event{Type: typ, Device: list[0]}
		number := r.qp.Num()
		switch {
		case typ == verbs.EventDeviceFatal:
			continue // see TestDeviceFatal
		case typ.IsPort():
			number, want.Port = 2, 2
		case typ.IsQP():
			want.QPNum = number
		case typ.IsCQ():
			number, want.CQ = handle, cq
		}
		if s.raise(0, int32(typ), number) == 0 {
			t.Fatalf("%v was not raised", typ)
		}
		if got := next(t, all); got != want {
			t.Errorf("%v: got %+v, want %+v", typ, got, want)
		}
	}
	if len(other) != 0 {
		t.Errorf("the other device's watcher got %v", <-other)
	}
	s.raise(1, int32(verbs.EventPortErr), 1)
	if e := next(t, other); e.Device != list[1] || e.Port != 1 ||
		e.String() != "standin1 port 1: port error" {
		t.Errorf("%v", e)
	}
	if n := s.unacked(0, handle); n != 0 {
		t.Errorf("%d events of the queue are not acknowledged", n)
	}
}

// A stopped watcher gets nothing, and one without room loses nothing for the others.
func TestWatchers(t *testing.T) {
	s := openStandin(t, standinConfig{})
	d := s.device(t)
	stopped, full, good := make(chan verbs.Event, 1), make(chan verbs.Event), make(chan verbs.Event, 1)
	stop := d.Watch(stopped)
	defer d.Watch(full)()
	defer d.Watch(good)()
	stop()
	stop()
	close(stopped)
	for range 3 {
		s.raise(0, int32(verbs.EventPortActive), 1)
		next(t, good)
	}
	if e, open := <-stopped; open {
		t.Errorf("after stop: %v", e)
	}
}

// An event of an object that is closed before the event is read, and one of a device without
// watchers, block nothing.
func TestEventsOfClosed(t *testing.T) {
	s := openStandin(t, standinConfig{})
	r := newRig(t, s, rigConfig{channel: verbs.NewCompChannel()})
	for range 100 {
		qp, err := r.pd.CreateQP(verbs.QPConfig{SendCQ: r.cq, RecvCQ: r.rcq})
		ok(t, err)
		cq, err := r.dev.CreateCQ(verbs.CQConfig{Channel: r.cq.Channel()})
		ok(t, err)
		s.raise(0, int32(verbs.EventQPFatal), qp.Num())
		s.raise(0, int32(verbs.EventCQErr), s.lastCQ(0))
		ok(t, r.cq.Arm(false))
		r.post(r.send(1, 1))
		ok(t, qp.Close())
		ok(t, cq.Close())
		r.poll(r.cq, 1)
	}
}

// A queue that overruns is dead once it has been emptied: sleepers are woken, and polling returns
// the error.
func TestOverrun(t *testing.T) {
	s := openStandin(t, standinConfig{})
	c := verbs.NewCompChannel()
	r := newRig(t, s, rigConfig{channel: c, depth: 7})
	if r.cq.Depth() != 7 {
		t.Fatalf("depth %d", r.cq.Depth())
	}
	watch := make(chan verbs.Event, 8)
	defer r.dev.Watch(watch)()
	for i := range 7 {
		r.post(r.send(uint64(i), 1))
	}
	r.post(r.send(7, 1))
	if e := next(t, watch); e.Type != verbs.EventCQErr || e.CQ != r.cq {
		t.Errorf("%v", e)
	}
	wait(t, c)
	if _, err := r.cq.Poll(make([]verbs.WC, 3)); err != nil {
		t.Errorf("completions that are there come first: %v", err)
	}
	wcs := make([]verbs.WC, 16)
	if n, err := r.cq.Poll(wcs); n != 4 || err != nil {
		t.Errorf("the rest: %d %v", n, err)
	}
	for range 2 {
		_, err := r.cq.Poll(wcs)
		is(t, err, verbs.ErrOverrun)
		mentions(t, err, "poll: standin0", "deeper")
	}
	if _, err := r.rcq.Poll(wcs); err != nil {
		t.Errorf("the other queue: %v", err)
	}
	if got := r.qp.State(); got != verbs.StateErr {
		t.Errorf("the queue pair is in %v", got)
	}
}

// A device that fails as a whole wakes everybody, and everything on it says so and can be closed.
func TestDeviceFatal(t *testing.T) {
	s := openStandin(t, standinConfig{})
	list := devices(t, s.open(t, ""))
	c := verbs.NewCompChannel()
	r, healthy := rigOn(t, s, list[0], rigConfig{channel: c}), rigOn(t, s, list[1], rigConfig{})
	watch := make(chan verbs.Event, 8)
	defer r.dev.Watch(watch)()
	r.post(r.send(1, 1))
	s.raise(0, int32(verbs.EventDeviceFatal), 0)
	if e := next(t, watch); e != (verbs.Event{Type: verbs.EventDeviceFatal, Device: r.dev}) {
		t.Errorf("%+v", e)
	}
	wait(t, c)
	r.poll(r.cq, 1) // what there is comes first
	_, err := r.cq.Poll(make([]verbs.WC, 1))
	is(t, err, verbs.ErrDeviceGone)
	_, err = r.qp.PostSend([]verbs.SendWR{r.send(2, 1)})
	is(t, err, verbs.ErrDeviceGone)
	_, err = r.qp.PostRecv([]verbs.RecvWR{{}})
	is(t, err, verbs.ErrDeviceGone)
	healthy.post(healthy.send(1, 1))
	healthy.poll(healthy.cq, 1)
}

// The kernel removes a device by failing every read of its events. That is a fatal event like
// any other: watchers get it, and sleepers on a completion channel are woken.
func TestDeviceRemoved(t *testing.T) {
	for _, call := range []string{"ibv_get_async_event", "ibv_get_cq_event"} {
		t.Run(call, func(t *testing.T) {
			s := openStandin(t, standinConfig{})
			c := verbs.NewCompChannel()
			d := devices(t, s.open(t, "standin0"))[0] // no other, whose reader might take the failure
			r := rigOn(t, s, d, rigConfig{channel: c})
			watch := make(chan verbs.Event, 8)
			defer d.Watch(watch)()
			s.raise(0, int32(verbs.EventPortActive), 1)
			next(t, watch) // the reader is at work
			s.fail(call, syscall.EIO)
			if call == "ibv_get_cq_event" {
				ok(t, r.cq.Arm(false))
				r.post(r.send(1, 1))
			} else {
				s.raise(0, int32(verbs.EventPortErr), 1) // to make it read
			}
			if e := next(t, watch); e.Type != verbs.EventDeviceFatal || e.Device != r.dev {
				t.Errorf("%+v", e)
			}
			wait(t, c)
			_, err := r.rcq.Poll(make([]verbs.WC, 1))
			is(t, err, verbs.ErrDeviceGone)
		})
	}
}

// An interrupted read is read again.
func TestEventReadInterrupted(t *testing.T) {
	s := openStandin(t, standinConfig{})
	c := verbs.NewCompChannel()
	r := newRig(t, s, rigConfig{channel: c})
	for range 10 {
		s.failTimes("ibv_get_cq_event", syscall.EINTR, 1)
		ok(t, r.cq.Arm(false))
		r.post(r.send(1, 1))
		wait(t, c)
		r.poll(r.cq, 1)
	}
}
