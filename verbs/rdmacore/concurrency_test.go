//go:build linux && (amd64 || arm64)

package rdmacore_test

import (
	"errors"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"ibverbx/verbs"
)

// Many goroutines post to one queue pair and poll its queue: every request yields one completion,
// and those of one poster come in its order.
func TestConcurrentPosts(t *testing.T) {
	const posters, each, batch = 4, 3000, 7
	s := openStandin(t, standinConfig{})
	r := newRig(t, s, rigConfig{depth: 1024, cap: verbs.QPCap{MaxSendWR: 128}})
	var posting, polling sync.WaitGroup
	for p := range posters {
		posting.Go(func() {
			wrs := make([]verbs.SendWR, 0, batch)
			for next := 0; next < each; {
				wrs = wrs[:0]
				for i := next; i < min(next+batch, each); i++ {
					wrs = append(wrs, r.send(uint64(p)<<32|uint64(i), 8))
				}
				n, err := r.qp.PostSend(wrs)
				if err != nil && !errors.Is(err, verbs.ErrQueueFull) {
					t.Error(err)
					return
				}
				next += n
			}
		})
	}
	var total atomic.Int64
	var mu sync.Mutex
	var expect [posters]uint64
	for range 2 {
		polling.Go(func() {
			wcs := make([]verbs.WC, 32)
			for total.Load() < posters*each {
				mu.Lock()
				n, err := r.cq.Poll(wcs)
				for _, wc := range wcs[:n] {
					p, i := wc.ID>>32, wc.ID&0xffffffff
					if expect[p] != i || wc.Status != verbs.StatusSuccess {
						t.Errorf("poster %d: %d after %d", p, i, expect[p])
					}
					expect[p] = i + 1
				}
				mu.Unlock()
				if err != nil {
					t.Error(err)
					return
				}
				total.Add(int64(n))
			}
		})
	}
	posting.Wait()
	polling.Wait()
}

// Closing while others post, poll, arm, modify, ask and register: each call succeeds or is refused
// as closed, and C never sees a dead object.
func TestConcurrentClose(t *testing.T) {
	s := openStandin(t, standinConfig{})
	d := s.device(t)
	for range 30 {
		r := rigOn(t, s, d, rigConfig{channel: verbs.NewCompChannel()})
		var wg sync.WaitGroup
		var stop atomic.Bool
		loop := func(f func() error, fine ...error) {
			wg.Go(func() {
				for !stop.Load() {
					err := f()
					if err == nil {
						continue
					}
					expected := errors.Is(err, verbs.ErrClosed)
					for _, e := range fine {
						expected = expected || errors.Is(err, e)
					}
					if !expected {
						t.Error(err)
						return
					}
				}
			})
		}
		wcs, wcs2 := make([]verbs.WC, 16), make([]verbs.WC, 16)
		loop(func() error {
			_, err := r.qp.PostSend([]verbs.SendWR{r.send(1, 1), r.send(2, 1)})
			return err
		}, verbs.ErrQueueFull, verbs.ErrState)
		loop(func() error {
			_, err := r.qp.PostRecv([]verbs.RecvWR{{ID: 1}})
			return err
		}, verbs.ErrQueueFull, verbs.ErrState)
		loop(func() error { _, err := r.cq.Poll(wcs); return err })
		loop(func() error { _, err := r.rcq.Poll(wcs2); return err })
		loop(func() error { return r.cq.Arm(false) })
		loop(func() error { r.qp.State(); _, err := r.qp.Query(); return err })
		loop(func() error { return r.qp.Modify(&verbs.QPAttr{State: verbs.StateErr}, verbs.QPAttrState) })
		loop(func() error {
			mr, err := r.pd.RegisterMR(r.buf, verbs.AccessAll)
			if err != nil {
				return err
			}
			return mr.Close()
		})
		s.raise(0, int32(verbs.EventQPFatal), r.qp.Num())
		for _, c := range []interface{ Close() error }{r.qp, r.cq, r.rcq, r.mr} {
			ok(t, c.Close())
		}
		for {
			if err := r.pd.Close(); err == nil {
				break
			} else if !errors.Is(err, verbs.ErrBusy) {
				t.Fatal(err)
			}
		}
		stop.Store(true)
		wg.Wait()
	}
}

// Only one of many that close an object closes it.
func TestConcurrentDoubleClose(t *testing.T) {
	s := openStandin(t, standinConfig{})
	p := s.open(t, "")
	r := rigOn(t, s, devices(t, p)[0], rigConfig{channel: verbs.NewCompChannel()})
	for _, c := range []interface{ Close() error }{r.qp, r.cq, r.rcq, r.mr, r.pd, p} {
		var wg sync.WaitGroup
		var closed atomic.Int32
		for range 8 {
			wg.Go(func() {
				if err := c.Close(); err == nil {
					closed.Add(1)
				} else if !errors.Is(err, verbs.ErrClosed) {
					t.Errorf("%T: %v", c, err)
				}
			})
		}
		wg.Wait()
		if closed.Load() != 1 {
			t.Errorf("%T was closed %d times", c, closed.Load())
		}
	}
}

// Queues are made and closed by many at a time, which lets C use the memory of one for the next:
// each must continue to get its events.
func TestConcurrentQueues(t *testing.T) {
	s := openStandin(t, standinConfig{})
	s.set("graves", 0) // memory is used again at once
	d := s.device(t)
	pd := newPD(t, d)
	var wg sync.WaitGroup
	for range 4 {
		wg.Go(func() {
			for range 300 {
				c := verbs.NewCompChannel()
				cq, err := d.CreateCQ(verbs.CQConfig{Depth: 16, Channel: c})
				if err != nil {
					t.Error(err)
					return
				}
				qp, err := pd.CreateQP(verbs.QPConfig{SendCQ: cq, RecvCQ: cq})
				if err != nil {
					t.Error(err)
					return
				}
				raise(t, qp, verbs.StateRTS)
				if err := cq.Arm(false); err != nil {
					t.Error(err)
				}
				if _, err := qp.PostSend(
					[]verbs.SendWR{{ID: 1, Opcode: verbs.OpSend, Flags: verbs.SendSignaled}}); err != nil {
					t.Error(err)
				}
				select {
				case <-c.Events():
				case <-time.After(10 * time.Second):
					t.Error("a queue did not get its event")
				}
				if err := errors.Join(qp.Close(), cq.Close()); err != nil {
					t.Error(err)
				}
			}
		})
	}
	wg.Wait()
}

// Providers are independent of each other.
func TestConcurrentProviders(t *testing.T) {
	s := openStandin(t, standinConfig{})
	var wg sync.WaitGroup
	for range 4 {
		wg.Go(func() {
			for range 20 {
				p := s.open(t, "")
				for _, d := range devices(t, p) {
					if _, err := d.Query(); err != nil {
						t.Error(err)
					}
					if _, err := d.QueryGID(1, 3); err != nil {
						t.Error(err)
					}
				}
				if err := p.Close(); err != nil {
					t.Error(err)
				}
			}
		})
	}
	wg.Wait()
}
