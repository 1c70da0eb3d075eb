package nic

import (
	"testing"

	"ibverbx/verbs"
)

// Memory is refused that has no bytes, or that the peer may change and the program may not.
func TestMemoryThatIsRefused(t *testing.T) {
	r := newRig(t)
	var m MR
	refused(t, "no bytes", m.Register(&r.pd, nil, 0), verbs.ErrInvalid, "the buffer is empty")
	for _, access := range []verbs.AccessFlags{verbs.AccessRemoteWrite, verbs.AccessRemoteAtomic} {
		refused(t, "access", m.Register(&r.pd, r.buf, access), verbs.ErrInvalid, "need local write")
	}
	if r.pd.mrs != 1 || r.open.MRs != 1 {
		t.Errorf("%d regions in the domain, %d open: they were refused", r.pd.mrs, r.open.MRs)
	}
	must(t, m.Register(&r.pd, r.buf[:1], 0))
	if m.Len() != 1 || m.Addr() != addrOf(r.buf) {
		t.Errorf("%d bytes at %#x", m.Len(), m.Addr())
	}
	must(t, m.Close())
	refused(t, "closed twice", m.Close(), verbs.ErrClosed, "")
	if m.Len() != 0 {
		t.Errorf("a closed region has %d bytes", m.Len())
	}
	draws := uint32(0)
	r.dev.Keys = NewKeys(0, func() uint32 { draws += 2; return draws })
	for i := range maxKeyIndex {
		r.dev.Keys.drawn[uint32(i)*2+2] = &m
	}
	refused(t, "no key", m.Register(&r.pd, r.buf, 0), verbs.ErrNoMemory, "no more than 262143 regions")
}

// A key, a range, a right, a domain: each must fit the region that a slice is of.
func TestSlicesOfARegion(t *testing.T) {
	r := newRig(t)
	size := r.mr.Len()
	var readOnly MR
	must(t, readOnly.Register(&r.pd, r.buf, verbs.AccessRemoteRead))
	var pd PD
	must(t, pd.Init(&r.dev))
	var foreign MR
	must(t, foreign.Register(&pd, r.buf, verbs.AccessAll))
	for _, c := range []struct {
		m        *MR
		at, n    uint64 // from the region's address
		access   verbs.AccessFlags
		wrongKey uint32
		ok       bool
	}{
		{&r.mr, 0, size, verbs.AccessLocalWrite, 0, true},
		{&r.mr, 1, size - 1, verbs.AccessRemoteWrite, 0, true},
		{&r.mr, size, 0, 0, 0, true},
		{&r.mr, size + 1, 0, 0, 0, false},
		{&r.mr, 1, size, 0, 0, false},
		{&r.mr, ^uint64(0), 1, 0, 0, false},
		{&r.mr, 0, ^uint64(0), 0, 0, false},
		{&r.mr, 0, 8, 0, 1 << keyIndexShift << 10, false},
		{&readOnly, 0, 8, verbs.AccessRemoteRead, 0, true},
		{&readOnly, 0, 8, verbs.AccessRemoteWrite, 0, false},
		{&readOnly, 0, 8, verbs.AccessRemoteRead | verbs.AccessLocalWrite, 0, false},
		{&foreign, 0, 8, 0, 0, false},
	} {
		local, ok := r.qp.LocalSlice(c.m.LKey()^c.wrongKey, c.m.Addr()+c.at, c.n, c.access)
		remote, remoteOK := r.qp.RemoteSlice(c.m.RKey()^c.wrongKey, c.m.Addr()+c.at, c.n, c.access)
		if ok != c.ok || remoteOK != c.ok {
			t.Errorf("%+v: %t by the local key, %t by the remote one", c, ok, remoteOK)
		}
		if !c.ok {
			if local != nil || remote != nil {
				t.Errorf("%+v: memory without a right to it", c)
			}
			continue
		}
		for _, b := range [][]byte{local, remote} {
			if uint64(len(b)) != c.n || uint64(cap(b)) != c.n || c.n > 0 && &b[0] != &r.buf[c.at] {
				t.Errorf("%+v: %d bytes, room for %d", c, len(b), cap(b))
			}
		}
	}
	if _, ok := r.qp.RemoteSlice(r.mr.LKey(), r.mr.Addr(), 1, 0); ok {
		t.Error("the peer used a local key")
	}
}
