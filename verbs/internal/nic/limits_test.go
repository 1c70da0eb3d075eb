package nic

import (
	"strings"
	"testing"

	"ibverbx/verbs"
)

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
