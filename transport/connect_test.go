package transport_test

import (
	"errors"
	"testing"

	"ibverbx"
	"ibverbx/transport"
	"ibverbx/verbs"
	"ibverbx/verbs/soft"
)

// tap counts the receives that queue pairs are given before RTR, and refuses moves to RTS.
type tap struct{ early, refuse int }

type tapDevice struct {
	verbs.Device
	tap *tap
}

type tapPD struct {
	verbs.PD
	tap *tap
}

type tapQP struct {
	verbs.QP
	tap *tap
}

func (d tapDevice) AllocPD() (verbs.PD, error) {
	pd, err := d.Device.AllocPD()
	return tapPD{pd, d.tap}, err
}

func (p tapPD) CreateQP(cfg verbs.QPConfig) (verbs.QP, error) {
	qp, err := p.PD.CreateQP(cfg)
	return tapQP{qp, p.tap}, err
}

func (q tapQP) PostRecv(wrs []verbs.RecvWR) (int, error) {
	early := q.State() == verbs.StateInit
	n, err := q.QP.PostRecv(wrs)
	if early {
		q.tap.early += n
	}
	return n, err
}

func (q tapQP) Modify(attr *verbs.QPAttr, mask verbs.QPAttrMask) error {
	if mask&verbs.QPAttrState != 0 && attr.State == verbs.StateRTS && q.tap.refuse != 0 {
		q.tap.refuse--
		return verbs.ErrNoMemory
	}
	return q.QP.Modify(attr, mask)
}

// tapped makes two endpoints of two workers on tapped NICs. The handler of both counts in *got.
func tapped(t *testing.T, s setup, got *int) (w *world, eps [2]*transport.Endpoint, taps [2]*tap) {
	t.Helper()
	n := max(s.nics, 1)
	w = newWorld(t, setupFabric(2*n))
	for i := range eps {
		taps[i] = &tap{}
		var devices []verbs.Device
		for k := range n {
			devices = append(devices, tapDevice{w.fabric.Device(i*n + k), taps[i]})
		}
		dom, err := ibverbx.NewDomain(devices...)
		must(t, err)
		w.domains = append(w.domains, dom)
		worker, err := transport.NewWorker(dom, s.cfg)
		must(t, err)
		w.workers = append(w.workers, worker)
		must(t, worker.Handle(1, func(*transport.Message) { *got++ }))
		eps[i] = newEndpoint(t, worker, transport.EndpointConfig{})
	}
	return w, eps, taps
}

// An endpoint posts its receives before anything of the peer can arrive: a peer that is quick needs
// no retry.
func TestReceivesArePostedBeforeMessagesCanCome(t *testing.T) {
	eachShape(t, func(t *testing.T, s setup) {
		_, eps, taps := tapped(t, s, new(int))
		must(t, transport.Connect(eps[0], eps[1]))
		for i, tap := range taps {
			if want := eps[i].Worker().Config().AMBuffers + 3; tap.early != want {
				t.Errorf("%d receives of %d were posted before RTR", tap.early, want)
			}
		}
	})
}

// A Connect that a NIC stops half-way can be made again: receives of the first attempt, which were
// flushed, do not disturb the second.
func TestConnectAgainAfterARefusal(t *testing.T) {
	eachShape(t, func(t *testing.T, s setup) {
		got := 0
		w, eps, taps := tapped(t, s, &got)
		x, y := eps[0], eps[1]
		cy := card(t, y)
		other := throughJSON(t, cy)
		other.QP.QPNums = append(other.QP.QPNums, 77)
		if err := x.Connect(other); err == nil {
			t.Fatal("connected to a card of another shape")
		}
		for range 3 {
			taps[0].refuse = 1
			receive := w.fabric.Inject(soft.Fault{Kind: soft.RefuseRecv}) // for now
			if err := x.Connect(cy); err == nil {
				t.Fatal("connected although a NIC refused")
			}
			receive.Remove()
			if n := x.ToRepost(); n != 0 {
				t.Errorf("%d receives of the attempt are still to be posted", n)
			}
		}
		cx := card(t, x) // packet numbers are drawn anew
		must(t, x.Connect(cy))
		must(t, y.Connect(cx))
		for _, e := range []*transport.Endpoint{x, y} {
			before, sent := got, try(t, func(int) error { return e.AMShort(1, nil, []byte{1}) })
			w.until("messages", func() bool { return got >= before+sent })
			w.until("more of them", func() bool { return e.AMShort(1, nil, []byte{1}) == nil })
		}
		w.quiet()
		must(t, x.Err())
		must(t, y.Err())
		if n := x.Worker().Stats().StaleEvents; n != 0 {
			t.Errorf("%d stale completions", n)
		}
	})
}

// TestConnectNothing: a nil endpoint is refused.
func TestConnectNothing(t *testing.T) {
	if err := transport.Connect(nil, nil); !errors.Is(err, verbs.ErrInvalid) {
		t.Error(err)
	}
}
