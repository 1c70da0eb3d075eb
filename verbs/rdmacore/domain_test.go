//go:build linux && (amd64 || arm64)

package rdmacore_test

import (
	"os"
	"testing"

	"ibverbx"
	"ibverbx/internal/vqptest"
	"ibverbx/transport"
	"ibverbx/verbs"
)

// deviceMemory opens something that has a file descriptor, as a dma-buf does.
func deviceMemory(t *testing.T) int {
	t.Helper()
	file, err := os.Open(os.DevNull)
	ok(t, err)
	t.Cleanup(func() { _ = file.Close() })
	return int(file.Fd())
}

// newDomain makes a domain over all devices of the stand-in.
func newDomain(t *testing.T, s *standin) *ibverbx.Domain {
	t.Helper()
	dom, err := ibverbx.NewDomain(devices(t, s.open(t, ""))...)
	ok(t, err)
	closeLater(t, dom)
	return dom
}

const iova = 0x7f00_0000_0000 // of the device memory in these tests

// names checks that every piece of memory that C has seen is of a region's, by the key of a device,
// and that together they are n bytes. It returns the keys.
func names(t *testing.T, seen []seenWR, mr *ibverbx.MR, n uint64) (keys map[uint32]bool) {
	t.Helper()
	known := map[uint32]bool{}
	for dev := range verbs.DeviceID(2) {
		key, _ := mr.Keys().Key(dev)
		known[key] = true
	}
	keys = map[uint32]bool{}
	sum := uint64(0)
	for _, wr := range seen {
		for _, sge := range wr.SGE[:wr.NumSGE] {
			if sge.Addr < mr.Addr() || sge.Addr+uint64(sge.Length) > mr.Addr()+mr.Len() || !known[sge.LKey] {
				t.Errorf("a request names %d bytes at %#x by key %#x", sge.Length, sge.Addr, sge.LKey)
			}
			keys[sge.LKey] = true
			sum += uint64(sge.Length)
		}
	}
	if sum != n {
		t.Errorf("the requests name %d bytes, want %d", sum, n)
	}
	return keys
}

// A domain registers a dma-buf on each of its NICs, and a virtual queue pair sends from it over all
// of them.
func TestDomainRegistersDMABuf(t *testing.T) {
	s := openStandin(t, standinConfig{})
	dom := newDomain(t, s)
	// So that the region has different keys on the two NICs.
	other, err := newPD(t, dom.Devices()[0]).RegisterMR(make([]byte, 64), verbs.AccessAll)
	ok(t, err)
	closeLater(t, other)
	mr, err := dom.RegisterDMABuf(deviceMemory(t), 0x3000, 1<<20, iova, verbs.AccessAll)
	ok(t, err)
	closeLater(t, mr)
	if n := s.live("mr"); n != 3 || mr.Addr() != iova || mr.Len() != 1<<20 || mr.Bytes() != nil {
		t.Errorf("%d regions; at %#x, %d bytes of which the processor has %d", n, mr.Addr(), mr.Len(),
			len(mr.Bytes()))
	}
	cfg := ibverbx.Config{QPsPerDevice: 2, FragmentSize: 4096}
	a, err := dom.NewQP(nil, cfg)
	ok(t, err)
	closeLater(t, a)
	b, err := dom.NewQP(nil, cfg)
	ok(t, err)
	closeLater(t, b)
	vqptest.ConnectBoth(t, a, b)

	s.set("record", 1)
	wr := ibverbx.SendWR{ID: 1, Opcode: verbs.OpRDMAWrite, Flags: verbs.SendSignaled,
		Local: mr.Slice(100, 20000), Remote: mr.Remote().At(0)}
	_, err = a.PostSend(wr)
	ok(t, err)
	if keys := names(t, s.seen(t), mr, 20000); len(keys) != 2 {
		t.Errorf("the fragments use the keys of %d NICs", len(keys))
	}
	wr.Local = mr.Slice(1<<20-4, 8)
	_, err = a.PostSend(wr)
	is(t, err, ibverbx.ErrBounds)
	is(t, mr.Close(), verbs.ErrBusy)
	wcs := make([]ibverbx.WC, 2)
	if n, err := a.CQ().Poll(wcs); n != 1 || err != nil || wcs[0].Status != verbs.StatusSuccess {
		t.Errorf("%d completions: %+v %v", n, wcs[0], err)
	}
	ok(t, mr.Close())
	is(t, mr.Close(), verbs.ErrClosed)
}

// A dma-buf that cannot be registered is registered nowhere.
func TestDomainRefusesDMABuf(t *testing.T) {
	for _, old := range []bool{false, true} {
		s := openStandin(t, standinConfig{Old: old})
		dom := newDomain(t, s)
		fd := deviceMemory(t)
		for _, c := range []struct{ offset, length, iova uint64 }{
			{0, 0, iova}, {1<<64 - 4096, 8192, iova}, {0, 8192, 1<<64 - 4096}, {0, 4096, iova + 1},
		} {
			_, err := dom.RegisterDMABuf(fd, c.offset, c.length, c.iova, verbs.AccessAll)
			is(t, err, verbs.ErrInvalid)
		}
		_, err := dom.RegisterDMABuf(-1, 0, 4096, iova, verbs.AccessAll)
		is(t, err, verbs.ErrInvalid)
		if old {
			_, err = dom.RegisterDMABuf(fd, 0, 4096, iova, verbs.AccessAll)
			is(t, err, verbs.ErrNotSupported)
			mentions(t, err, "dma-buf", "rdma-core 34")
		}
		if n := s.live("mr"); n != 0 {
			t.Errorf("%d registrations", n)
		}
		ok(t, dom.Close())
		_, err = dom.RegisterDMABuf(fd, 0, 4096, iova, verbs.AccessAll)
		is(t, err, verbs.ErrClosed)
	}
}

// Zero-copy operations of the transport take device memory.
func TestTransportTakesDMABuf(t *testing.T) {
	s := openStandin(t, standinConfig{})
	dom := newDomain(t, s)
	mr, err := dom.RegisterDMABuf(deviceMemory(t), 0, 1<<20, iova, verbs.AccessAll)
	ok(t, err)
	closeLater(t, mr)
	w, err := transport.NewWorker(dom, transport.Config{})
	ok(t, err)
	closeLater(t, w)
	a, err := w.NewEndpoint(transport.EndpointConfig{})
	ok(t, err)
	b, err := w.NewEndpoint(transport.EndpointConfig{})
	ok(t, err)
	ok(t, transport.Connect(a, b))
	for name, op := range map[string]func(*transport.Completion) (bool, error){
		"put": func(c *transport.Completion) (bool, error) {
			return a.PutZcopy(c, mr.Remote().At(0), mr.Slice(0, 4096), mr.Slice(8192, 100))
		},
		"get": func(c *transport.Completion) (bool, error) {
			return a.GetZcopy(c, mr.Remote().At(8192), mr.Slice(0, 4196))
		},
	} {
		s.set("record", 1)
		var c transport.Completion
		c.Init(1, nil)
		done, err := op(&c)
		ok(t, err)
		for !done && !c.Fired() {
			w.Progress()
		}
		if err := c.Err(); err != nil {
			t.Errorf("%s: %v", name, err)
		}
		names(t, s.seen(t), mr, 4196)
	}
}
