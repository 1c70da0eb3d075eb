package api_test

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"math"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"

	"ibverbx"
	"ibverbx/internal/unreliable"
	"ibverbx/internal/vqptest"
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

// A goroutine that reads a region while another closes it sees all of it, or nothing.
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

// A description of the peer's memory that lacks a field is refused, and changes nothing.
func TestIncompleteRemoteMR(t *testing.T) {
	var r ibverbx.RemoteMR
	if err := json.Unmarshal([]byte(`{"addr":"4096","length":"64","rkeys":{"0":7}}`), &r); err != nil {
		t.Fatal(err)
	}
	for text, missing := range map[string]string{
		`{}`:                           `"addr", "length", "rkeys"`,
		`null`:                         `"addr", "length", "rkeys"`,
		`{"addr":"1"}`:                 `"length", "rkeys"`,
		`{"addr":"1","length":"2"}`:    `"rkeys"`,
		`{"length":"2","rkeys":{}}`:    `"addr"`,
		`{"addr":"1","rkeys":{"0":1}}`: `"length"`,
		`{"addr":null,"length":"2","rkeys":null}`: `"addr", "rkeys"`,
	} {
		err := json.Unmarshal([]byte(text), &r)
		if want := "ibverbx: remote memory: invalid argument: missing " + missing + ": "; !errors.Is(err,
			verbs.ErrInvalid) || !strings.HasPrefix(fmt.Sprint(err), want) {
			t.Errorf("%s: %v; want %q", text, err, want)
		}
		if r.Addr() != 4096 || r.Len() != 64 {
			t.Errorf("%s has changed it: %d, %d", text, r.Addr(), r.Len())
		}
	}
	// The JSON of a closed region, and of the zero value, can be read.
	text, err := json.Marshal(ibverbx.RemoteMR{})
	if err = errors.Join(err, json.Unmarshal(text, &r)); err != nil || r.Len() != 0 {
		t.Errorf("%s: %v", text, err)
	}
}

// A piece of memory is written as its address in hexadecimal digits and its length in decimal ones.
func TestTextOfASegment(t *testing.T) {
	const want = "0x1f00000000+1999"
	local := ibverbx.Segment{Addr: 0x1f << 32, Length: 1999}
	remote := ibverbx.RemoteSegment{Addr: 0x1f << 32, Length: 1999}
	if local.String() != want || remote.String() != want {
		t.Errorf("%v and %v, want %s", local, remote, want)
	}
}

// memoryFile is an open file of n bytes, which software NICs take for a dma-buf.
func memoryFile(t *testing.T, n int64) *os.File {
	t.Helper()
	f, err := os.Create(filepath.Join(t.TempDir(), "memory"))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = f.Close() })
	if err := f.Truncate(n); err != nil {
		t.Fatal(err)
	}
	return f
}

// To work requests a dma-buf is memory like any other, over every NIC of the domain.
func TestDMABufOverAllNICs(t *testing.T) {
	const offset, length = 4096, 8192
	for _, m := range vqptest.Modes {
		t.Run(m.Name, func(t *testing.T) {
			l := vqptest.NewLink(t, vqptest.LinkConfig{NICs: m.NICs,
				QP: ibverbx.Config{Scheme: m.Scheme, QPsPerDevice: m.QPs,
					FragmentSize: 1000}})
			f := memoryFile(t, offset+length)
			mr, err := l.B.Domain().RegisterDMABuf(int(f.Fd()), offset, length, 0x1000, verbs.AccessAll)
			if err != nil {
				t.Fatal(err)
			}
			if mr.Bytes() != nil || mr.Len() != length || mr.Addr() != 0x1000 {
				t.Errorf("%d bytes at %#x, of which %d can be seen", mr.Len(), mr.Addr(), len(mr.Bytes()))
			}
			vqptest.FillRandom(l.A.Buf[:800], 5)
			wr := l.A.Write(verbs.OpRDMAWrite, 1, 0, 800)
			wr.Remote = vqptest.ThroughJSON(t, mr.Remote()).Slice(100, 800)
			l.A.Send(t, wr)
			vqptest.IDs(t, l.A.Wait(t, 1), verbs.StatusSuccess)
			got := make([]byte, 800)
			if _, err := f.ReadAt(got, offset+100); err != nil || !bytes.Equal(got, l.A.Buf[:800]) {
				t.Errorf("the file has other bytes, %v", err)
			}
			if err := mr.Close(); err != nil {
				t.Error(err)
			}
		})
	}
}

// Impossible descriptions of dma-bufs are refused, and leave nothing behind.
func TestImpossibleDMABufs(t *testing.T) {
	fabric, err := soft.New(soft.Config{Devices: 2})
	if err != nil {
		t.Fatal(err)
	}
	dom, err := ibverbx.NewDomain(fabric.Device(0), fabric.Device(1))
	if err != nil {
		t.Fatal(err)
	}
	fd := int(memoryFile(t, 4096).Fd())
	for _, c := range []struct {
		fd                   int
		offset, length, iova uint64
		says                 string
	}{
		{-1, 0, 4096, 0, "file descriptor -1"},
		{fd, math.MaxUint64, 1, 0, "offset 18446744073709551615"},
		{fd, 2, math.MaxUint64 - 1, 0, "offset 2"},
		{fd, 0, 2, math.MaxUint64 - 1, "iova"},
		{fd, 0, 0, 0, ""}, {fd, 0, 8192, 0, ""},
	} {
		if _, err := dom.RegisterDMABuf(c.fd, c.offset, c.length, c.iova, verbs.AccessAll); !errors.Is(err,
			verbs.ErrInvalid) || !strings.Contains(err.Error(), c.says) ||
			!strings.HasPrefix(err.Error(), "ibverbx: register ") {
			t.Errorf("%+v: %v", c, err)
		}
	}
	// The last byte of the address space can be registered.
	if mr, err := dom.RegisterDMABuf(fd, 0, 4095, math.MaxUint64-4095, verbs.AccessAll); err != nil {
		t.Error(err)
	} else if err := mr.Close(); err != nil {
		t.Error(err)
	}
	if n := fabric.Objects().MRs; n != 0 {
		t.Errorf("%d regions are left", n)
	}
	if _, err := dom.RegisterDMABuf(0, 0, 4096, 0, verbs.AccessRemoteWrite); err == nil {
		t.Error("remote write without local write")
	}
	if err := errors.Join(dom.Close(), fabric.Close()); err != nil {
		t.Error(err)
	}
	f := &unreliable.Calls{At: -1}
	plain, err := soft.New(soft.Config{})
	if err != nil {
		t.Fatal(err)
	}
	if dom, err = ibverbx.NewDomain(unreliable.New(plain.Device(0), f)); err != nil {
		t.Fatal(err)
	}
	if _, err := dom.RegisterDMABuf(fd, 0, 4096, 0, verbs.AccessAll); !errors.Is(
		err, verbs.ErrNotSupported) ||
		!strings.Contains(err.Error(), "soft0") {
		t.Errorf("a NIC without dma-bufs: %v", err)
	}
	if err := errors.Join(dom.Close(), plain.Close()); err != nil {
		t.Error(err)
	}
}
