package nic

import (
	"testing"

	"ibverbx/verbs"
)

// An index of a key is used again only after many others, and never twice at a time.
func TestKeysRunOut(t *testing.T) {
	table := NewKeys(3, nil)
	list := make([]*MR, maxKeyIndex)
	seen := make(map[uint32]bool)
	for i := range list {
		list[i] = &MR{}
		if !table.add(list[i]) || seen[list[i].key] || list[i].key>>keyDeviceShift&63 != 3 {
			t.Fatalf("region %d: key %#x", i, list[i].key)
		}
		seen[list[i].key] = true
	}
	if table.add(&MR{}) {
		t.Fatal("a region more than there are indexes")
	}
	old := list[7].key
	table.remove(list[7])
	if !table.add(list[7]) || list[7].key == old || list[7].key>>keyIndexShift != old>>keyIndexShift {
		t.Errorf("the only free index: key %#x, was %#x", list[7].key, old)
	}
	if table.find(old) != nil || table.find(list[7].key) != list[7] || table.findRemote(list[7].key) != nil ||
		table.findRemote(list[7].RKey()) != list[7] {
		t.Error("keys name other regions")
	}
}

// A freed index waits until keyReuseDistance others have been freed after it.
func TestKeysAreUsedAgainLate(t *testing.T) {
	table := NewKeys(0, nil)
	first := &MR{}
	table.add(first)
	index := first.key >> keyIndexShift
	for beyond := range uint32(3) {
		if table.find((index+1+beyond)<<keyIndexShift) != nil {
			t.Error("a region at an index that was never given")
		}
	}
	table.remove(first)
	for i := range keyReuseDistance {
		m := &MR{}
		if table.add(m); m.key>>keyIndexShift == index {
			t.Fatalf("used again after %d others", i)
		}
		table.remove(m)
	}
	last := &MR{}
	if table.add(last); last.key>>keyIndexShift != index || last.key == first.key {
		t.Errorf("key %#x after %#x", last.key, first.key)
	}
}

// Drawn keys are those of the source, without what is in use, and 0; a closed region's key names
// nothing.
func TestDrawnKeys(t *testing.T) {
	draws := []uint32{0, 1, 0xdeadbeef, 0xdeadbeee, 0x10, 0x5, 0xffffffff}
	table := NewKeys(5, func() uint32 {
		n := draws[0]
		draws = draws[1:]
		return n
	})
	var list [4]MR
	for i, want := range []uint32{0xdeadbeee, 0x10, 0x4, 0xfffffffe} {
		m := &list[i]
		if !table.add(m) || m.LKey() != want || m.RKey() != want|1 {
			t.Fatalf("region %d: key %#x, want %#x", i, m.LKey(), want)
		}
	}
	for i := range list {
		m := &list[i]
		if table.find(m.LKey()) != m || table.findRemote(m.RKey()) != m || table.find(m.RKey()) != nil ||
			table.findRemote(m.LKey()) != nil {
			t.Errorf("region %d: keys name other regions", i)
		}
	}
	table.remove(&list[0])
	for _, key := range []uint32{list[0].LKey(), 0, 0x20, 0x7fffffff, 0x4010} {
		if table.find(key) != nil || table.findRemote(key|1) != nil {
			t.Errorf("a region with key %#x", key)
		}
	}
}

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
