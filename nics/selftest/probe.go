package selftest

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"strings"
	"time"

	"ibverbx"
	"ibverbx/rendezvous"
	"ibverbx/verbs"
)

// assumptions probes what failover assumes of NICs, by the numbers of docs/FAILOVER.md.
func (e *end) assumptions(ctx context.Context) {
	e.step(ctx, "A4: a message pushes the data ahead of it", func(ctx context.Context) (seen, error) {
		return e.placement(ctx, ibverbx.Config{QPsPerDevice: 1}, e.devices[:1])
	})
	e.step(ctx, "Spray: acknowledged data is in memory", func(ctx context.Context) (seen, error) {
		return e.placement(ctx, ibverbx.Config{Scheme: ibverbx.Spray}, e.devices)
	})
	for _, p := range []struct {
		name string
		run  func(ctx context.Context, acts bool) (tally, error)
	}{
		{"A3, A5, A6: success means received, and nothing lands behind the flush", e.stopReceiving},
		{"A7: no response lands behind the flush", e.stopReading},
		{"A8: nothing lands behind the destruction", e.destroy},
	} {
		for _, first := range []bool{true, false} {
			whose := map[bool]string{true: ", here", false: ", there"}[first == e.first]
			e.step(ctx, p.name+whose, func(ctx context.Context) (seen, error) {
				return e.rounds(ctx, p.run, e.first == first)
			})
		}
	}
}

// placement exchanges large messages, and counts those that were late.
func (e *end) placement(ctx context.Context, cfg ibverbx.Config,
	devices []verbs.Device) (s seen, err error) {
	const size, least = 1 << 20, 20
	l, err := e.open(ctx, devices, cfg, 2*size)
	if err != nil {
		return s, err
	}
	x, err := e.pingPong(ctx, l, size, least, func(int) error { return nil })
	if err = errors.Join(e.sync(ctx, err), l.close()); err != nil {
		return s, err
	}
	if x.late != 0 {
		return seen{Fail, fmt.Sprintf("%d of %d messages of 1 MiB were not in memory when they were notified",
			x.late, x.messages)}, nil
	}
	return seen{Pass, fmt.Sprintf("none of %d messages of 1 MiB was late", x.messages)}, nil
}

// tally is what rounds of a probe have come to.
type tally struct {
	Rounds   int `json:"rounds"`
	Hit      int `json:"hit"`      // rounds in which something was under way when it was stopped
	Late     int `json:"late"`     // rounds in which memory has changed afterwards
	Acked    int `json:"acked"`    // messages that the sender was told have arrived
	Received int `json:"received"` // messages that the receiver has seen
}

// rounds repeats a probe, and judges. acts says that this end stops what is under way.
func (e *end) rounds(ctx context.Context, run func(context.Context, bool) (tally, error),
	acts bool) (s seen, err error) {
	const most = 10_000
	sum, began := tally{}, time.Now()
	for more := true; more; {
		t, err := run(ctx, acts)
		if err := e.sync(ctx, err); err != nil {
			return s, err
		}
		theirs, err := rendezvous.Exchange(ctx, e.c, t)
		if err != nil {
			return s, err
		}
		if !acts {
			t, theirs = theirs, t
		}
		if sum.Rounds++; t.Hit != 0 && theirs.Hit != 0 {
			sum.Hit++
		}
		sum.Late += t.Late
		if t.Received >= 0 && theirs.Acked > t.Received {
			return seen{Fail, fmt.Sprintf("round %d: %d messages were acknowledged, %d have been received",
				sum.Rounds, theirs.Acked, t.Received)}, nil
		}
		mine := time.Since(began) < e.probe && sum.Rounds < most
		first, err := rendezvous.Exchange(ctx, e.c, mine)
		if err != nil {
			return s, err
		}
		if more = first; e.first {
			more = mine
		}
	}
	switch {
	case sum.Late != 0:
		return seen{Fail, fmt.Sprintf("memory has changed afterwards in %d of %d rounds", sum.Late,
			sum.Rounds)}, nil
	case sum.Hit == 0:
		return seen{Unknown, fmt.Sprintf("in none of %d rounds was anything under way", sum.Rounds)}, nil
	}
	return seen{Pass, fmt.Sprintf("%d rounds, %d of them in the middle of traffic, nothing late",
		sum.Rounds, sum.Hit)}, nil
}

const (
	probeSize  = 32 << 10 // of a write
	probeDepth = 32       // writes, each with a message behind it
	// variants is how many contents writes have. It has no divisor in common with probeDepth, so
	// each write to a place has another content than the one before it.
	variants = 5
	landing  = variants * probeSize // where the memory begins that is written
	probeAll = landing + probeDepth*probeSize
	// settle is how long memory is watched for what comes late: much longer than a write takes on
	// its way from a NIC to memory.
	settle = 20 * time.Millisecond
)

// fragile is a single queue pair whose NIC gives up soon.
func fragile() ibverbx.Config {
	return ibverbx.Config{QPsPerDevice: 1, MaxMsgCntPerQP: 2 * probeDepth, Conn: ibverbx.ConnConfig{
		Timeout: 12, RetryCount: 1}} // 2 * 16 ms
}

// bombard writes and sends until a request fails, for a second at most. It counts the messages that
// were acknowledged, and as a hit that a request was cut off.
func (l *link) bombard(ctx context.Context) (t tally, err error) {
	const limit = time.Second
	const message = 1 // the ID of a message; that of a write is 0
	ctx, stop := context.WithTimeout(ctx, patience)
	defer stop()
	for i := range uint64(variants) {
		stamp(l.buf[i*probeSize:(i+1)*probeSize], i+1)
	}
	under, i := 0, uint64(0)
	for began := time.Now(); ; {
		for ; under <= 2*probeDepth-2 && time.Since(began) < limit; under += 2 {
			wr := ibverbx.SendWR{Opcode: verbs.OpRDMAWrite, Flags: verbs.SendSignaled,
				Local:  l.mr.Slice(i%variants*probeSize, probeSize),
				Remote: l.peer.Slice(landing+i%probeDepth*probeSize, probeSize)}
			i++
			behind := ibverbx.SendWR{ID: message, Opcode: verbs.OpSend, Flags: verbs.SendSignaled}
			if _, err := l.qp.PostSend(wr, behind); err != nil {
				t.Hit = 1
				return t, nil //nolint:nilerr // the queue pair has failed, as it should
			}
		}
		if under == 0 {
			return t, nil
		}
		wc, err := l.next(ctx)
		switch {
		case err != nil:
			return t, err
		case wc.Status != verbs.StatusSuccess:
			t.Hit = 1
			return t, nil
		case wc.ID == message:
			t.Acked++
		}
		under--
	}
}

// fate is what happens to a queue pair in the middle of traffic.
type fate func(ctx context.Context, l *link, outstanding int) (received int, err error)

// stopped lets one end bombard the other, which stops its queue pair some time later, and watches
// its memory.
func (e *end) stopped(ctx context.Context, acts bool, stop fate) (t tally, err error) {
	l, err := e.open(ctx, e.devices[:1], fragile(), probeAll)
	if err != nil {
		return t, err
	}
	if acts {
		for range probeDepth {
			if _, err = l.qp.PostRecv(ibverbx.RecvWR{}); err != nil {
				break
			}
		}
	}
	if err := e.sync(ctx, err); err != nil {
		return t, errors.Join(err, l.close())
	}
	if !acts {
		t, err = l.bombard(ctx)
		return t, errors.Join(e.sync(ctx, err), l.close())
	}
	before, err := l.collect(ctx)
	t.Received = before
	if err == nil {
		var more int
		more, err = stop(ctx, l, probeDepth)
		if t.Received += more; more < 0 {
			t.Received = -1
		}
	}
	if wrong(l.buf[landing:], 0) >= 0 {
		t.Hit = 1
	}
	t.Late = e.watch(l)
	return t, errors.Join(e.sync(ctx, err), l.close())
}

// collect receives messages for a random time of up to some milliseconds.
func (l *link) collect(ctx context.Context) (received int, err error) {
	const most = 3 * time.Millisecond
	for until := time.Now().Add(rand.N(most)); time.Now().Before(until) && ctx.Err() == nil; {
		wc, ok, err := l.qp.CQ().PollOne()
		switch {
		case err != nil:
			return received, err
		case !ok:
			continue
		case wc.Status != verbs.StatusSuccess:
			return received, wc.Status
		}
		received++
		if _, err := l.qp.PostRecv(ibverbx.RecvWR{}); err != nil {
			return received, err
		}
	}
	return received, nil
}

// watch reports whether memory changes from now on.
func (e *end) watch(l *link) (late int) {
	snapshot := bytes.Clone(l.buf)
	e.pause(settle)
	if !bytes.Equal(snapshot, l.buf) {
		return 1
	}
	return 0
}

// toErr moves the physical queue pair to ERR, and waits until all that is outstanding has come
// back. It returns how much of it had succeeded.
func toErr(ctx context.Context, l *link, outstanding int) (succeeded int, err error) {
	ctx, stop := context.WithTimeout(ctx, patience)
	defer stop()
	if err := l.qp.QPs()[0].Modify(&verbs.QPAttr{State: verbs.StateErr}, verbs.QPAttrState); err != nil {
		return 0, err
	}
	for ; outstanding != 0; outstanding-- {
		wc, err := l.next(ctx)
		if err != nil {
			return succeeded, fmt.Errorf("%d requests of a queue pair in ERR do not come back: %w",
				outstanding, err)
		}
		if wc.Status == verbs.StatusSuccess {
			succeeded++
		}
	}
	return succeeded, nil
}

// stopReceiving moves the receiver of writes and messages to ERR.
func (e *end) stopReceiving(ctx context.Context, acts bool) (tally, error) {
	return e.stopped(ctx, acts, toErr)
}

// destroy destroys the receiver of writes and messages. What it has received last is not known.
func (e *end) destroy(ctx context.Context, acts bool) (tally, error) {
	return e.stopped(ctx, acts, func(_ context.Context, l *link, _ int) (int, error) {
		err := l.qp.Close()
		l.qp = nil
		return -1, err
	})
}

// stopReading moves a reader to ERR while responses are on their way.
func (e *end) stopReading(ctx context.Context, acts bool) (t tally, err error) {
	l, err := e.open(ctx, e.devices[:1], fragile(), probeAll)
	if err != nil {
		return t, err
	}
	if !acts {
		stamp(l.buf, 1)
		t.Hit = 1
	}
	if err := e.sync(ctx, nil); err != nil {
		return t, errors.Join(err, l.close())
	}
	if acts {
		for i := range uint64(probeDepth) {
			at := landing + i*probeSize
			if _, err = l.qp.PostSend(ibverbx.SendWR{Opcode: verbs.OpRDMARead, Flags: verbs.SendSignaled,
				Local: l.mr.Slice(at, probeSize), Remote: l.peer.Slice(at, probeSize)}); err != nil {
				break
			}
		}
		for until := time.Now().Add(rand.N(300 * time.Microsecond)); time.Now().Before(until); {
		}
		done := 0
		if err == nil {
			done, err = toErr(ctx, l, probeDepth)
		}
		if done != probeDepth {
			t.Hit = 1
		}
		t.Late = e.watch(l)
	}
	return t, errors.Join(e.sync(ctx, err), l.close())
}

// limits asks the NICs for large objects, and says what it got.
func (e *end) limits(context.Context) (seen, error) {
	var got []string
	for _, d := range e.devices {
		text, err := limitsOf(d)
		if err != nil {
			return seen{}, fmt.Errorf("%s: %w", d.Name(), err)
		}
		got = append(got, text)
	}
	return seen{Pass, strings.Join(got, "; ")}, nil
}

func limitsOf(d verbs.Device) (text string, err error) {
	const mostWR, mostSGE, mostCQE, inline = 4096, 16, 1 << 15, 256
	attr, err := d.Query()
	if err != nil {
		return "", err
	}
	depth := min(attr.MaxCQE, mostCQE)
	cq, err := d.CreateCQ(verbs.CQConfig{Depth: depth})
	if err != nil {
		return "", fmt.Errorf("a completion queue of %d, of %d that it claims: %w", depth, attr.MaxCQE, err)
	}
	defer func() { err = errors.Join(err, cq.Close()) }()
	pd, err := d.AllocPD()
	if err != nil {
		return "", err
	}
	defer func() { err = errors.Join(err, pd.Close()) }()
	ask := verbs.QPCap{MaxSendWR: min(attr.MaxQPWR, mostWR), MaxRecvWR: min(attr.MaxQPWR, mostWR),
		MaxSendSGE: min(attr.MaxSGE, mostSGE), MaxRecvSGE: min(attr.MaxSGE, mostSGE), MaxInline: inline}
	if attr.MaxInline != 0 {
		ask.MaxInline = min(inline, attr.MaxInline)
	}
	qp, err := pd.CreateQP(verbs.QPConfig{SendCQ: cq, RecvCQ: cq, Cap: ask})
	if errors.Is(err, verbs.ErrInvalid) || errors.Is(err, verbs.ErrNoMemory) {
		// Some have their maxima only one at a time.
		ask.MaxSendWR, ask.MaxRecvWR, ask.MaxSendSGE, ask.MaxRecvSGE = ask.MaxSendWR/4, ask.MaxRecvWR/4, 4, 4
		qp, err = pd.CreateQP(verbs.QPConfig{SendCQ: cq, RecvCQ: cq, Cap: ask})
	}
	if err != nil {
		return "", fmt.Errorf("a queue pair of %+v: %w", ask, err)
	}
	has := qp.Cap()
	return fmt.Sprintf("%s: claims %d work requests, %d pieces, %d completions; asked %d, %d, inline %d, "+
		"completions %d; got %d, %d, %d, %d", d.Name(), attr.MaxQPWR, attr.MaxSGE, attr.MaxCQE, ask.MaxSendWR,
		ask.MaxSendSGE, ask.MaxInline, depth, has.MaxSendWR, has.MaxSendSGE, has.MaxInline,
		cq.Depth()), qp.Close()
}
