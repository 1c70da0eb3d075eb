package selftest

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"slices"
	"time"

	"ibverbx"
	"ibverbx/rendezvous"
	"ibverbx/verbs"
)

// end is one of the two ends. Both take the same steps in the same order.
type end struct {
	c       *rendezvous.Conn
	devices []verbs.Device
	first   bool // it begins
	probe   time.Duration
	report  *Report
	broken  error // why the conversation is over
	pause   func(time.Duration)
}

// seen is what an end has seen of a step.
type seen struct {
	Result Result `json:"result"`
	Text   string `json:"text"`
}

// hello is what the ends tell each other first.
type hello struct {
	NICs  []NIC         `json:"nics"`
	Probe time.Duration `json:"probe"`
}

// examine takes all steps.
func examine(ctx context.Context, c *rendezvous.Conn, devices []verbs.Device, cfg Config,
	first bool) (*Report, error) {
	e := &end{c: c, devices: devices, first: first, probe: cfg.Probe, report: newReport(), pause: cfg.pause}
	if e.pause == nil {
		e.pause = time.Sleep
	}
	mine, err := describe(devices)
	e.report.Here = mine
	if err != nil {
		e.report.Checks = append(e.report.Checks,
			Check{Result: Fail, Name: "queries", Seen: line(err.Error())})
	}
	theirs, err := rendezvous.Exchange(ctx, c, hello{mine, cfg.Probe})
	if err != nil {
		return e.report, err
	}
	if e.report.There = theirs.NICs[:min(len(theirs.NICs), verbs.MaxDevices)]; !first {
		e.probe = min(max(theirs.Probe, 0), 10*time.Second)
	}
	e.step(ctx, "limits", e.limits)
	e.virtual(ctx)
	e.assumptions(ctx)
	e.speeds(ctx)
	return e.report, e.broken
}

// virtual tries virtual queue pairs in both schemes: over one NIC and all, and with failover.
func (e *end) virtual(ctx context.Context) {
	for _, scheme := range []ibverbx.Scheme{ibverbx.DQPLB, ibverbx.Spray} {
		cfg := ibverbx.Config{Scheme: scheme, QPsPerDevice: 4, FragmentSize: 16 << 10}
		over := func(name string, devices []verbs.Device, cfg ibverbx.Config) {
			e.step(ctx, name, func(ctx context.Context) (seen, error) { return e.traffic(ctx, devices, cfg) })
		}
		name := fmt.Sprint("virtual queue pair, ", scheme)
		over(name+", one NIC", e.devices[:1], cfg)
		if len(e.devices) > 1 {
			over(fmt.Sprintf("%s, %d NICs", name, len(e.devices)), e.devices, cfg)
		}
		cfg.Failover = true
		over(fmt.Sprint("failover, ", scheme), e.devices, cfg)
	}
}

// step takes a step, and notes what both ends have seen of it: the worse counts.
func (e *end) step(ctx context.Context, name string, run func(context.Context) (seen, error)) {
	began := time.Now()
	check := Check{Result: Unknown, Name: name}
	if e.broken != nil {
		check.Seen = "not run: the ends have parted"
		e.report.Checks = append(e.report.Checks, check)
		return
	}
	mine, err := run(ctx)
	if err != nil {
		mine = seen{Fail, err.Error()}
	}
	mine.Text = line(mine.Text)
	theirs, talk := rendezvous.Exchange(ctx, e.c, mine)
	if talk != nil { // this end may have seen only that the other has gone, or that all is to end
		e.broken = talk
		check.Seen = "not finished: the ends have parted: " + line(talk.Error())
		e.report.Checks = append(e.report.Checks, check)
		return
	}
	check.Result, check.Seen = mine.Result, mine.Text
	if theirs.Result == Fail && mine.Result != Fail || mine.Text == "" {
		check.Result, check.Seen = theirs.Result, "the other end: "+line(theirs.Text)
	}
	if !slices.Contains([]Result{Pass, Fail, Unknown}, check.Result) {
		check.Result = Fail
	}
	check.Seconds = time.Since(began).Seconds()
	e.report.Checks = append(e.report.Checks, check)
}

// sync waits for the other end, and returns the first error of the two: both leave a step at the
// same place.
func (e *end) sync(ctx context.Context, err error) error {
	text := ""
	if err != nil {
		text = line(err.Error())
	}
	theirs, talk := rendezvous.Exchange(ctx, e.c, text)
	switch {
	case err != nil:
		return err
	case talk != nil:
		return talk
	case theirs != "":
		return fmt.Errorf("the other end: %s", line(theirs))
	}
	return nil
}

// link is a connected virtual queue pair with memory at both ends.
type link struct {
	qp   *ibverbx.VirtualQP
	mr   *ibverbx.MR
	buf  []byte
	peer ibverbx.RemoteMR

	under int      // requests that have not completed
	came  []uint32 // the immediates of notifications
}

// open connects the two ends.
func (e *end) open(ctx context.Context, devices []verbs.Device, cfg ibverbx.Config,
	size int) (*link, error) {
	cfg.Conn.Access = verbs.AccessAll
	qp, err := ibverbx.Open(devices, cfg)
	l := &link{qp: qp}
	if err == nil {
		l.buf = make([]byte, size)
		l.mr, err = qp.Domain().Register(l.buf, verbs.AccessAll)
	}
	if err = e.sync(ctx, err); err == nil {
		err = rendezvous.Connect(ctx, e.c, qp)
	}
	if err == nil {
		l.peer, err = rendezvous.Exchange(ctx, e.c, l.mr.Remote())
	}
	if err == nil && l.peer.Len() != uint64(size) {
		err = fmt.Errorf("the other end offers %d bytes of memory, not %d", l.peer.Len(), size)
	}
	if err != nil {
		return nil, errors.Join(err, l.close())
	}
	return l, nil
}

func (l *link) close() (err error) {
	if l.qp != nil {
		err = l.qp.Close()
	}
	if l.mr != nil {
		err = errors.Join(err, l.mr.Close())
	}
	return err
}

// next returns the next completion.
func (l *link) next(ctx context.Context) (ibverbx.WC, error) {
	for {
		wc, ok, err := l.qp.CQ().PollOne()
		if ok || err != nil {
			return wc, err
		}
		if err := l.qp.CQ().Wait(ctx); err != nil {
			return wc, err
		}
	}
}

const (
	patience = 20 * time.Second // for a message of the other end
	lastBit  = 1 << 31          // of an immediate: the message is the last
	receives = 8                // posted ahead of the messages
)

// exchanged is what an end knows behind messages to and fro.
type exchanged struct {
	messages int
	late     int // not complete when their notification came
	times    []time.Duration
}

// pingPong sends a message of some bytes to the other end and waits for one from there, again and
// again. The first half of the memory is sent, the second receives. Each message is full of its
// number, and is checked the moment that its notification comes. The first end says when it is
// over, at the earliest behind least messages. each is called with the number of messages before
// each one.
func (e *end) pingPong(ctx context.Context, l *link, size, least int,
	each func(i int) error) (x exchanged, err error) {
	ctx, stop := context.WithTimeout(ctx, e.probe+patience)
	defer stop()
	half := len(l.buf) / 2
	wr := ibverbx.SendWR{Opcode: verbs.OpRDMAWriteWithImm, Flags: verbs.SendSignaled,
		Local: l.mr.Slice(0, uint64(size)), Remote: l.peer.Slice(uint64(half), uint64(size))}
	for range receives {
		if _, err = l.qp.PostRecv(ibverbx.RecvWR{}); err != nil {
			break
		}
	}
	if err := e.sync(ctx, err); err != nil {
		return x, err
	}
	send := func(imm uint32) error {
		if err := l.sent(ctx, 0); err != nil { // the memory may change
			return err
		}
		stamp(l.buf[:size], uint64(imm&^lastBit))
		wr.Imm = imm
		_, err := l.qp.PostSend(wr)
		l.under++
		return err
	}
	began := time.Now()
	for i := uint32(1); ; i++ {
		imm, sent := i, time.Now()
		if e.first {
			if err := each(int(i)); err != nil {
				return x, err
			}
			if int(i) >= least && time.Since(began) > e.probe {
				imm |= lastBit
			}
			if err := send(imm); err != nil {
				return x, err
			}
		}
		got, err := l.receive(ctx)
		if err != nil {
			return x, err
		}
		if got&^lastBit != i {
			return x, fmt.Errorf("message %d came as number %d", i, got&^lastBit)
		}
		late, err := check(l.buf[half:half+size], uint64(i))
		if err != nil {
			return x, err
		}
		x.messages++
		if late {
			x.late++
		}
		if e.first {
			x.times = append(x.times, time.Since(sent))
		} else if err := send(got); err != nil {
			return x, err
		}
		if got&lastBit != 0 {
			return x, l.sent(ctx, 0)
		}
	}
}

// take handles a completion: of a request, or a notification, whose receive it posts again.
func (l *link) take(ctx context.Context) error {
	wc, err := l.next(ctx)
	switch {
	case err != nil:
		return err
	case wc.Status != verbs.StatusSuccess:
		return errors.Join(l.qp.Err(), wc.Status)
	case wc.Opcode != verbs.WCRecvRDMAWithImm:
		l.under--
		return nil
	}
	l.came = append(l.came, wc.Imm)
	_, err = l.qp.PostRecv(ibverbx.RecvWR{})
	return err
}

// receive waits for a notification.
func (l *link) receive(ctx context.Context) (imm uint32, err error) {
	for len(l.came) == 0 {
		if err := l.take(ctx); err != nil {
			return 0, err
		}
	}
	imm = l.came[0]
	l.came = l.came[1:]
	return imm, nil
}

// sent waits until at most so many requests are under way.
func (l *link) sent(ctx context.Context, most int) error {
	for l.under > most {
		if err := l.take(ctx); err != nil {
			return err
		}
	}
	return nil
}

// stamp fills memory with a number of eight bytes.
func stamp(p []byte, n uint64) {
	binary.NativeEndian.PutUint64(p, n)
	for done := 8; done < len(p); done *= 2 {
		copy(p[done:], p[:done])
	}
}

// check reports whether memory was not full of a number yet, and is now; an error if it does not
// become so.
func check(p []byte, n uint64) (late bool, err error) {
	const settle = 100 * time.Millisecond
	for deadline := time.Now().Add(settle); ; late = true {
		at := wrong(p, n)
		if at < 0 {
			return late, nil
		}
		if time.Now().After(deadline) {
			return late, fmt.Errorf("message %d: byte %d of %d is not there when it is notified, nor "+
				"%v later", n, at, len(p), settle)
		}
	}
}

// wrong returns where memory has another number first; negative if nowhere.
func wrong(p []byte, n uint64) int {
	if binary.NativeEndian.Uint64(p) == n && bytes.Equal(p[8:], p[:len(p)-8]) {
		return -1
	}
	for at := 0; at+8 <= len(p); at += 8 {
		if binary.NativeEndian.Uint64(p[at:]) != n {
			return at
		}
	}
	return -1
}

// traffic exchanges messages over a virtual queue pair. With failover a queue pair goes to ERR in
// the middle, and nothing may be lost.
func (e *end) traffic(ctx context.Context, devices []verbs.Device, cfg ibverbx.Config) (s seen, err error) {
	const size, when, least = 256 << 10, 20, 100
	l, err := e.open(ctx, devices, cfg, 2*size)
	if err != nil {
		return s, err
	}
	x, err := e.pingPong(ctx, l, size, least, func(i int) error {
		if !cfg.Failover || i != when {
			return nil
		}
		return l.qp.QPs()[0].Modify(&verbs.QPAttr{State: verbs.StateErr}, verbs.QPAttrState)
	})
	stats := l.qp.Stats()
	err = errors.Join(e.sync(ctx, err), l.close())
	text := fmt.Sprintf("%d messages of 256 KiB each way over %d queue pairs, each complete when it was "+
		"notified", x.messages, len(stats.Rails))
	switch {
	case err != nil:
		return s, err
	case x.late != 0:
		return seen{Fail, fmt.Sprintf("%d of %d messages were not complete when they were notified", x.late,
			x.messages)}, nil
	case cfg.Failover && stats.RailsLost == 0:
		return seen{Fail, "a queue pair that went to ERR was not noticed"}, nil
	case cfg.Failover:
		text += fmt.Sprintf("; lost %d, back %d, %d requests sent again", stats.RailsLost, stats.RailsBack,
			stats.Reposted)
	}
	return seen{Pass, text}, nil
}

// speeds measures bandwidth and rate each way, and latency.
func (e *end) speeds(ctx context.Context) {
	for _, first := range []bool{true, false} {
		way := map[bool]string{true: "out", false: "in"}[first == e.first]
		e.step(ctx, "bandwidth "+way, func(ctx context.Context) (seen, error) {
			return e.stream(ctx, e.first == first, 1<<20, 8, 1, "%.2f GB/s of writes of 1 MiB", 1e9/(1<<20))
		})
		e.step(ctx, "rate "+way, func(ctx context.Context) (seen, error) {
			return e.stream(ctx, e.first == first, 8, 512, 32, "%.2f million writes of 8 bytes a second",
				1e6)
		})
	}
	e.step(ctx, "latency", func(ctx context.Context) (s seen, err error) {
		l, err := e.open(ctx, e.devices[:1], ibverbx.Config{QPsPerDevice: 1}, 16)
		if err != nil {
			return s, err
		}
		x, err := e.pingPong(ctx, l, 8, 100, func(int) error { return nil })
		if err = errors.Join(e.sync(ctx, err), l.close()); err != nil || !e.first {
			return s, err
		}
		slices.Sort(x.times)
		most := len(x.times) - 1
		return seen{Pass, fmt.Sprintf("8 bytes and back: p50 %v, p99 %v, most %v, of %d", x.times[most/2],
			x.times[most*99/100], x.times[most], len(x.times))}, nil
	})
}

// stream lets one end write as fast as it can, in batches.
func (e *end) stream(ctx context.Context, mine bool, size, depth, batch int, text string,
	unit float64) (s seen, err error) {
	l, err := e.open(ctx, e.devices, ibverbx.Config{}, size*depth)
	if err != nil {
		return s, err
	}
	done, took := 0, time.Duration(0)
	if mine {
		stamp(l.buf, 1) // a page that was never touched is nowhere
		done, took, err = l.write(ctx, size, depth, batch, e.probe)
	}
	if err = errors.Join(e.sync(ctx, err), l.close()); err != nil || !mine {
		return s, err
	}
	return seen{Pass, fmt.Sprintf(text, float64(done)/took.Seconds()/unit)}, nil
}

// write writes for a while, and returns how many writes have completed in which time.
func (l *link) write(ctx context.Context, size, depth, batch int, limit time.Duration) (done int,
	took time.Duration, err error) {
	ctx, stop := context.WithTimeout(ctx, limit+patience)
	defer stop()
	wrs := slices.Repeat([]ibverbx.SendWR{{Opcode: verbs.OpRDMAWrite, Flags: verbs.SendSignaled,
		Local: l.mr.Slice(0, uint64(size))}}, batch)
	posted, began := 0, time.Now()
	for time.Since(began) < limit {
		for ; l.under+batch <= depth; posted += batch {
			for i := range wrs { // to a place that no write under way has
				wrs[i].Remote = l.peer.Slice(uint64((posted+i)%depth*size), uint64(size))
			}
			if _, err := l.qp.PostSend(wrs...); err != nil {
				return 0, 0, err
			}
			l.under += batch
		}
		if err := l.sent(ctx, depth-batch); err != nil {
			return 0, 0, err
		}
	}
	err = l.sent(ctx, 0)
	return posted, time.Since(began), err
}
