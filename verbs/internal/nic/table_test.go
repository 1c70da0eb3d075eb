package nic

import (
	"strings"
	"testing"

	"ibverbx/verbs"
)

// Counted numbers go round, over those in use.
func TestCountedNumbers(t *testing.T) {
	table := NewTable[int](nil)
	table.Last = FirstQPNum + 2
	values := []int{0, 1, 2}
	for i := range values {
		num, ok := table.TakeNum()
		if !ok || num != FirstQPNum+uint32(i) {
			t.Fatalf("number %d, %v", num, ok)
		}
		table.Add(num, &values[i])
	}
	if num, ok := table.TakeNum(); ok || num != 0 {
		t.Errorf("number %d, %v where none is free", num, ok)
	}
	table.Remove(FirstQPNum + 1)
	if table.Find(FirstQPNum+1) != nil || table.Find(FirstQPNum+2) != &values[2] || len(table.All) != 2 ||
		table.All[0] != &values[0] || table.All[1] != &values[2] {
		t.Errorf("left are %v", table.All)
	}
	if num, ok := table.TakeNum(); !ok || num != FirstQPNum+1 {
		t.Errorf("number %d, %v: only %d is free", num, ok, FirstQPNum+1)
	}
}

// Drawn numbers are those of the source, cut to what a number may be, without those in use.
func TestDrawnNumbers(t *testing.T) {
	const size = MaxQPNum - FirstQPNum + 1
	draws := []uint32{5, 5, size + 5, size - 1, 0}
	table := NewTable[int](func() uint32 {
		n := draws[0]
		draws = draws[1:]
		return n
	})
	for _, want := range []uint32{FirstQPNum + 5, MaxQPNum, FirstQPNum} {
		num, ok := table.TakeNum()
		if !ok || num != want {
			t.Fatalf("number %#x, want %#x", num, want)
		}
		table.Add(num, new(int))
	}
}

// Find returns the queue pairs that are there, whichever was found last.
func TestFind(t *testing.T) {
	table := NewTable[int](nil)
	a, b := new(int), new(int)
	table.Add(17, a)
	for _, step := range []struct {
		num  uint32
		want *int
	}{{17, a}, {17, a}, {18, nil}, {18, nil}, {17, a}} {
		if got := table.Find(step.num); got != step.want {
			t.Errorf("number %d: %p, want %p", step.num, got, step.want)
		}
	}
	table.Add(18, b)
	if table.Find(17) != a || table.Find(18) != b {
		t.Error("a second queue pair hides one of the two")
	}
	table.Remove(18)
	if table.Find(18) != nil || table.Find(17) != a {
		t.Error("a removed queue pair is found, or the other one is not")
	}
}

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

// A queue pair gets what it asks for up to the NIC's limits, and without a wish the contract's
// defaults or what the NIC allows, whichever is less.
func TestSizesOfAQueuePair(t *testing.T) {
	std := verbs.QPCap{}.WithDefaults()
	small := Limits{MaxQPWR: 8, MaxSGE: 2, MaxInline: 4}
	large := Limits{MaxQPWR: 1 << 14, MaxSGE: 64, MaxInline: 1 << 10}
	least := verbs.QPCap{MaxSendWR: 8, MaxRecvWR: 8, MaxSendSGE: 2, MaxRecvSGE: 2, MaxInline: 4}
	most := verbs.QPCap{MaxSendWR: 1 << 14, MaxRecvWR: 1 << 14, MaxSendSGE: 64, MaxRecvSGE: 64,
		MaxInline: 1 << 10}
	one := verbs.QPCap{MaxSendWR: 1, MaxRecvWR: 1, MaxSendSGE: 1, MaxRecvSGE: 1, MaxInline: 1}
	for _, c := range []struct {
		limits     Limits
		wish, want verbs.QPCap
	}{
		{small, verbs.QPCap{}, least}, {large, verbs.QPCap{}, std}, {large, most, most}, {large, one, one},
		{small, one, one}, {small, least, least},
	} {
		if got, wrong := c.limits.QPCap(c.wish); got != c.want || wrong != "" {
			t.Errorf("%+v of %+v: %+v %q, want %+v", c.wish, c.limits, got, wrong, c.want)
		}
	}
	for _, c := range []struct {
		wish verbs.QPCap
		says string
	}{
		{verbs.QPCap{MaxSendWR: 9}, "queues of 9 and 8 work requests, the NIC allows 8"},
		{verbs.QPCap{MaxRecvWR: 9}, "queues of 8 and 9 work requests, the NIC allows 8"},
		{verbs.QPCap{MaxSendWR: -1}, "queues of -1 and 8"},
		{verbs.QPCap{MaxRecvWR: -1}, "queues of 8 and -1"},
		{verbs.QPCap{MaxSendSGE: 3}, "3 and 2 scatter-gather elements, the NIC allows 2"},
		{verbs.QPCap{MaxRecvSGE: 3}, "2 and 3 scatter-gather elements, the NIC allows 2"},
		{verbs.QPCap{MaxSendSGE: -1}, "-1 and 2"}, {verbs.QPCap{MaxRecvSGE: -1}, "2 and -1"},
		{verbs.QPCap{MaxInline: 5}, "inline sends of 5 bytes, the NIC allows 4"},
		{verbs.QPCap{MaxInline: -1}, "inline sends of -1 bytes"},
	} {
		if _, wrong := small.QPCap(c.wish); !strings.Contains(wrong, c.says) {
			t.Errorf("%+v: %q, want %q", c.wish, wrong, c.says)
		}
		r := newRig(t)
		r.dev.Limits.MaxQPWR, r.dev.Limits.MaxSGE, r.dev.Limits.MaxInline = 8, 2, 4
		_, err := r.pd.CheckQP(c.wish, &r.cq, &r.cq)
		refused(t, "queue pair", err, verbs.ErrInvalid, c.says)
	}
}

// What a NIC says of itself is what it allows.
func TestAttributesOfTheNIC(t *testing.T) {
	l := Limits{MaxQPWR: 1, MaxCQE: 2, MaxSGE: 3, MaxInline: 4, MaxMsgSize: 5, MaxRDAtomic: 6}
	want := verbs.DeviceAttr{Ports: 1, MaxQP: 1 << 18, MaxQPWR: 1, MaxSGE: 3, MaxCQ: 1 << 16, MaxCQE: 2,
		MaxMR: maxKeyIndex, MaxMRSize: 1 << 47, MaxPD: 1 << 16, MaxRDAtomic: 6, MaxInline: 4,
		Software: true}
	if got := l.Attr(); got != want {
		t.Errorf("%+v, want %+v", got, want)
	}
}

// The events of a NIC say which NIC it is; one that is gone raises none.
func TestEventsNameTheirNIC(t *testing.T) {
	r := newRig(t)
	type named struct{ verbs.Device }
	handle := named{}
	r.dev.Handle = handle
	events := make(chan verbs.Event, 2)
	defer r.dev.Watch(events)()
	r.dev.Publish(verbs.Event{Type: verbs.EventPortErr})
	r.dev.Gone = true
	r.dev.Publish(verbs.Event{Type: verbs.EventPortActive})
	if len(events) != 1 {
		t.Fatalf("%d events", len(events))
	}
	if e := <-events; e.Type != verbs.EventPortErr || e.Device != handle {
		t.Errorf("event %+v", e)
	}
}
