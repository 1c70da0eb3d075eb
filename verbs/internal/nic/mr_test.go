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
