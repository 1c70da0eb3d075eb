package ibverbx

import (
	"errors"
	"fmt"
	"math"
	"os"
	"reflect"
	"slices"
	"sync"
	"sync/atomic"

	"ibverbx/verbs"
)

// Register registers buf on every NIC. The NICs may access it until [MR.Close] has returned; until
// then do not free or move it (memory of the Go heap does not move).
//
// With [verbs.AccessRelaxedOrdering] some hosts are much faster. In DQPLB a notification still
// means that everything before it is in memory, because it depends on a completion of each rail
// that has carried data. Spray keeps its usual limit. If your program polls memory, keep the words
// that it polls in another region.
//
// Most of the time is spent on pinning the pages, which the kernel does once per NIC. From 1 MiB on
// up to 16 NICs do it in parallel, and likewise when the region is closed. If one of them refuses,
// the memory is registered on none. A NIC that is gone is left out as long as another one takes the
// memory, for connections that survive the loss ([Config].Failover). If it comes back, its queue
// pairs stay out of service until you close that region.
func (d *Domain) Register(buf []byte, access verbs.AccessFlags) (*MR, error) {
	m := &MR{dom: d}
	if err := m.registerBytes(buf, access); err != nil {
		return nil, fmt.Errorf("ibverbx: register %d bytes: %w", len(buf), err)
	}
	return m, nil
}

func (m *MR) registerBytes(buf []byte, access verbs.AccessFlags) error {
	m.buf.Store(&buf)
	return m.register(uint64(len(buf)), func(pd verbs.PD) (verbs.MR, error) {
		return pd.RegisterMR(buf, access)
	})
}

// Alloc makes n bytes of memory, all zero, from the start of a page on, and registers them on every
// NIC. It is the kind of memory that the NICs access at the least cost: between two processes that
// share memory (package verbs/shm) the peer reads and writes it itself, without a second copy. For
// NICs that have no such kind it is memory like any other.
//
// [MR.Bytes] is the memory. Like that of [Domain.Register] it stays valid after [MR.Close], as long
// as you refer to it.
func (d *Domain) Alloc(n int, access verbs.AccessFlags) (*MR, error) {
	m := &MR{dom: d}
	buf, err := m.allocate(n)
	if err == nil {
		err = m.registerBytes(buf, access)
	}
	if err != nil {
		if m.memory != nil {
			_ = m.memory.Close()
		}
		return nil, fmt.Errorf("ibverbx: allocate %d bytes: %w", n, err)
	}
	return m, nil
}

// allocate makes memory for the region: of the first NIC that has its own kind, or else of the
// heap.
func (m *MR) allocate(n int) ([]byte, error) {
	if n <= 0 {
		return nil, fmt.Errorf("%w: must be at least 1", verbs.ErrInvalid)
	}
	if err := m.dom.acquire(); err != nil {
		return nil, err
	}
	defer m.dom.release()
	for _, pd := range m.dom.pds {
		a, ok := pd.(verbs.MemoryAllocator)
		if !ok {
			continue
		}
		memory, err := a.AllocMemory(n)
		if err == nil {
			m.memory = memory
			return memory.Bytes(), nil
		}
		if !errors.Is(err, verbs.ErrDeviceGone) {
			return nil, err
		}
	}
	page := os.Getpagesize()
	buf := make([]byte, n+page-1)
	skip := int(-reflect.ValueOf(&buf[0]).Pointer() & uintptr(page-1))
	return buf[skip : skip+n : skip+n], nil
}

// RegisterDMABuf registers part of a dma-buf on every NIC: memory without an address in this
// process, such as that of a GPU, by the file descriptor that its driver exports. The arguments,
// and your duties to the exporter, are those of [verbs.DMABufRegistrar].
//
// Name pieces of the region by offset as for any other, in every work request that is not inline.
// Its [MR.Bytes] returns nil: the processor does not access it. The error is
// [verbs.ErrNotSupported] if one of the NICs has no dma-bufs.
func (d *Domain) RegisterDMABuf(fd int, offset, length, iova uint64, access verbs.AccessFlags) (*MR, error) {
	m := &MR{dom: d}
	err := checkDMABuf(fd, offset, length, iova)
	if err == nil {
		err = m.register(length, func(pd verbs.PD) (verbs.MR, error) {
			r, ok := pd.(verbs.DMABufRegistrar)
			if !ok {
				return nil, fmt.Errorf("%w: %s registers no dma-bufs", verbs.ErrNotSupported,
					pd.Device().Name())
			}
			return r.RegisterDMABuf(fd, offset, length, iova, access)
		})
	}
	if err != nil {
		return nil, fmt.Errorf("ibverbx: register %d bytes of a dma-buf: %w", length, err)
	}
	return m, nil
}

// checkDMABuf refuses impossible ranges.
func checkDMABuf(fd int, offset, length, iova uint64) error {
	switch {
	case fd < 0:
		return fmt.Errorf("%w: file descriptor %d", verbs.ErrInvalid, fd)
	case length > math.MaxUint64-offset:
		return fmt.Errorf("%w: offset %d: the part goes beyond 2^64 bytes", verbs.ErrInvalid, offset)
	case length > math.MaxUint64-iova:
		return fmt.Errorf("%w: iova: %s goes beyond the address space", verbs.ErrInvalid,
			addrRange(iova, length))
	}
	return nil
}

// register registers the region on every NIC, with a call of on for each.
func (m *MR) register(size uint64, on func(verbs.PD) (verbs.MR, error)) error {
	d := m.dom
	if err := d.acquire(); err != nil {
		return err
	}
	regions, err := registerAll(d.pds, size, on)
	if err != nil {
		d.release()
		return err
	}
	d.complete(regions, on)
	m.regions = regions
	first := regions[slices.IndexFunc(regions, func(r verbs.MR) bool { return r != nil })]
	m.lkeys = Keys{base: first.Addr(), length: first.Len(), mr: m}
	m.rkeys = Keys{base: m.lkeys.base, length: m.lkeys.length}
	for i, r := range regions {
		// With a key of 0 for a NIC that is gone, a request can be posted on it before either end
		// knows that it is gone: the request fails, and is posted again elsewhere.
		lkey, rkey := uint32(0), uint32(0)
		if r != nil {
			lkey, rkey = r.LKey(), r.RKey()
		}
		m.lkeys.set(d.devices[i].ID(), lkey)
		m.rkeys.set(d.devices[i].ID(), rkey)
	}
	return nil
}

// complete records which NICs lack a region, and then tries them again, because one may have come
// back before it was recorded. While a NIC lacks a region, its queue pairs stay out of service.
func (d *Domain) complete(regions []verbs.MR, on func(verbs.PD) (verbs.MR, error)) {
	for i, r := range regions {
		if r != nil {
			continue
		}
		lacking := &d.lacking[d.devices[i].ID()]
		lacking.Add(1)
		if r, err := on(d.pds[i]); err == nil {
			regions[i] = r
			lacking.Add(-1)
		}
	}
}

// completed undoes complete for a region that is closed.
func (d *Domain) completed(regions []verbs.MR) {
	for i, r := range regions {
		if r == nil {
			d.lacking[d.devices[i].ID()].Add(-1)
		}
	}
}

// registerAll registers memory in every protection domain, or in none; those of NICs that are gone
// do not count while there are others, and have no region. Of several errors it returns that of the
// first domain.
func registerAll(pds []verbs.PD, size uint64, on func(verbs.PD) (verbs.MR, error)) ([]verbs.MR, error) {
	regions, errs := make([]verbs.MR, len(pds)), make([]error, len(pds))
	var failed atomic.Bool
	sideBySide(len(pds), size, func(i int) {
		if failed.Load() {
			return
		}
		if regions[i], errs[i] = on(pds[i]); errs[i] != nil {
			regions[i] = nil
			if !errors.Is(errs[i], verbs.ErrDeviceGone) {
				failed.Store(true)
			}
		}
	})
	var first verbs.MR
	for i, r := range regions {
		switch {
		case r == nil:
		case first == nil:
			first = r
		case r.Addr() != first.Addr():
			errs[i] = fmt.Errorf("%w: %s knows the memory by another address", verbs.ErrNotSupported,
				pds[i].Device().Name())
		}
	}
	if first != nil {
		for i := range errs {
			if errors.Is(errs[i], verbs.ErrDeviceGone) {
				errs[i] = nil
			}
		}
	}
	for _, err := range errs {
		if err != nil {
			_ = closeRegions(regions, size)
			return nil, err
		}
	}
	return regions, nil
}

// closeRegions deregisters memory on every NIC. It skips nil regions.
func closeRegions(regions []verbs.MR, size uint64) error {
	errs := make([]error, len(regions))
	sideBySide(len(regions), size, func(i int) {
		if regions[i] != nil {
			errs[i] = regions[i].Close()
		}
	})
	return errors.Join(errs...)
}

const (
	// sideBySideSize is the least size of a region, in bytes, that is registered on NICs in
	// parallel. Smaller ones, as for single messages, stay on the caller's goroutine.
	sideBySideSize = 1 << 20
	// mostSideBySide bounds how many NICs register in parallel: each needs a thread in the kernel
	// meanwhile.
	mostSideBySide = 16
)

// sideBySide calls f for each of n NICs, in parallel if the region is large, and returns when all
// calls have returned.
func sideBySide(n int, size uint64, f func(i int)) {
	workers := min(n, mostSideBySide)
	if size < sideBySideSize || n == 1 {
		workers = 1
	}
	var next atomic.Int64
	work := func() {
		for i := int(next.Add(1)) - 1; i < n; i = int(next.Add(1)) - 1 {
			f(i)
		}
	}
	var wg sync.WaitGroup
	for range workers - 1 {
		wg.Go(work)
	}
	work()
	wg.Wait()
}
