package ibverbx_test

import (
	"sync"
	"testing"

	"ibverbx"
	"ibverbx/verbs"
	"ibverbx/verbs/soft"
)

// newSoftDomain makes a domain over every device of a software fabric of its own.
func newSoftDomain(tb testing.TB, devices int) *ibverbx.Domain {
	tb.Helper()
	fabric, err := soft.New(soft.Config{Devices: devices})
	if err != nil {
		tb.Fatal(err)
	}
	list, err := fabric.Devices()
	if err != nil {
		tb.Fatal(err)
	}
	dom, err := ibverbx.NewDomain(list...)
	if err != nil {
		tb.Fatal(err)
	}
	tb.Cleanup(func() {
		if err := dom.Close(); err != nil {
			tb.Error(err)
		}
		if err := fabric.Close(); err != nil {
			tb.Error(err)
		}
	})
	return dom
}

// Whoever reads a region while another goroutine closes it sees all of it, or nothing.
func TestMRIsReadWhileItCloses(t *testing.T) {
	dom := newSoftDomain(t, 2)
	for range 50 {
		mr, err := dom.Register(make([]byte, 64), verbs.AccessAll)
		if err != nil {
			t.Fatal(err)
		}
		whole := mr.Remote()
		var wg sync.WaitGroup
		start := make(chan struct{})
		for range 2 {
			wg.Go(func() {
				<-start
				for open := true; open; {
					n := len(mr.Bytes())
					if n != 64 && n != 0 {
						t.Errorf("a region of 64 bytes has %d", n)
					}
					open = n != 0
					r := mr.Remote()
					if r.Len() == 0 {
						continue
					}
					for dev := range verbs.DeviceID(2) {
						want, _ := whole.At(0).Keys.Key(dev)
						if key, ok := r.At(0).Keys.Key(dev); !ok || key != want {
							t.Errorf("key %d of device %d (there: %v), want %d", key, dev, ok, want)
						}
					}
				}
			})
		}
		close(start)
		if err := mr.Close(); err != nil {
			t.Error(err)
		}
		wg.Wait()
		if mr.Bytes() != nil || mr.Remote().Len() != 0 {
			t.Errorf("a closed region has %d bytes and describes %d", len(mr.Bytes()), mr.Remote().Len())
		}
	}
}
