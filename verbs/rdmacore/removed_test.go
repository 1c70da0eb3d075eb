//go:build linux && (amd64 || arm64)

package rdmacore_test

import (
	"errors"
	"sync"
	"syscall"
	"testing"

	"ibverbx/verbs"
	"ibverbx/verbs/rdmacore"
)

// remove makes the device look removed: an event says so, and every call from now on fails as it
// does in the kernel.
func remove(t *testing.T, s *standin, d verbs.Device) {
	t.Helper()
	watch := make(chan verbs.Event, 1)
	defer d.Watch(watch)()
	s.raise(0, int32(verbs.EventDeviceFatal), 0)
	next(t, watch)
	for _, call := range []string{"ibv_query_qp", "ibv_modify_qp", "ibv_destroy_qp", "ibv_destroy_cq",
		"ibv_dereg_mr", "ibv_dealloc_pd"} {
		s.failTimes(call, syscall.EIO, 2)
	}
}

// Everything on a device that was removed can be closed, although the kernel answers every call
// with EIO: it has destroyed it already.
func TestCloseAfterRemoval(t *testing.T) {
	s := openStandin(t, standinConfig{Devices: 1})
	p, err := rdmacore.Open(rdmacore.Config{Library: s.path})
	ok(t, err)
	r := rigOn(t, s, devices(t, p)[0], rigConfig{channel: verbs.NewCompChannel()})
	remove(t, s, r.dev)
	if state := r.qp.State(); state != verbs.StateErr {
		t.Errorf("a queue pair of a device that is gone is in %v", state)
	}
	for _, c := range []interface{ Close() error }{r.qp, r.cq, r.rcq, r.mr, r.pd, p} {
		if err := c.Close(); err != nil {
			t.Errorf("%T: %v", c, err)
		}
		if err := c.Close(); !errors.Is(err, verbs.ErrClosed) {
			t.Errorf("%T, closed again: %v", c, err)
		}
	}
	s.reset() // libibverbs' part of them leaks, as it does on a real host
}

// A query beside Close either answers or says that the device is closed.
func TestQueryWhileClosing(t *testing.T) {
	s := openStandin(t, standinConfig{Devices: 1})
	for range 100 {
		p, err := rdmacore.Open(rdmacore.Config{Library: s.path})
		ok(t, err)
		d := devices(t, p)[0]
		var queries sync.WaitGroup
		asked := make(chan struct{}, 3)
		for range 3 {
			queries.Go(func() {
				for first := true; ; first = false {
					_, err := d.QueryPort(1)
					if first {
						asked <- struct{}{}
					}
					if err != nil {
						if !errors.Is(err, verbs.ErrClosed) {
							t.Error(err)
						}
						return
					}
				}
			})
		}
		<-asked
		ok(t, p.Close())
		queries.Wait()
	}
}
