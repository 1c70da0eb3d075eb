package ibverbx

import (
	"errors"
	"slices"
	"strings"
	"testing"
	"time"

	"ibverbx/verbs"
	"ibverbx/verbs/verbstest"
)

// Reads and atomics outstanding are as many as both ends allow. A card that does not say how many
// its end serves means one: that is what the C++ original serves, and NICs answer a second with
// "invalid request".
func TestReadsOutstanding(t *testing.T) {
	for _, c := range []struct{ own, peer, want uint8 }{
		{0, 16, 16}, {0, 4, 4}, {3, 16, 3}, {0, 0, 1}, {3, 0, 1}, {0, 255, 16},
	} {
		r := newUnconnected(t, 1, 2, Config{Conn: ConnConfig{MaxRDAtomic: c.own}})
		card, err := r.Card()
		if err != nil {
			t.Fatal(err)
		}
		own := card.RDAtomic
		card.RDAtomic = c.peer
		if err := r.Connect(Elsewhere(card)); err != nil {
			t.Fatal(err)
		}
		rtr, rts := r.step(verbs.StateRTR), r.step(verbs.StateRTS)
		for i := range rts {
			if sends, serves := rts[i].MaxRDAtomic, rtr[i].MaxDestRDAtomic; sends != c.want || serves != own {
				t.Errorf("%d here, %d at the peer: rail %d sends %d and serves %d, want %d and %d", c.own,
					c.peer, i, sends, serves, c.want, own)
			}
		}
	}
}

// answers is a NIC that answers as it is told to.
type answers struct {
	verbs.Device
	reads int // how many it allows outstanding; 0 where it does not say
	err   error
}

func (d answers) Query() (verbs.DeviceAttr, error) {
	return verbs.DeviceAttr{MaxRDAtomic: d.reads}, d.err
}

// software is a NIC of software.
type software struct{ verbs.Device }

func (software) Query() (verbs.DeviceAttr, error) { return verbs.DeviceAttr{Software: true}, nil }

// A card says as many reads as the configuration, or as fewer of them the NIC allows: one that does
// not say, or does not answer, does not count.
func TestReadsOfACard(t *testing.T) {
	for _, c := range []struct {
		nic  answers
		want uint8
	}{
		{answers{reads: 1}, 1}, {answers{reads: 8}, 8}, {answers{reads: 9}, 9}, {answers{reads: 10}, 9},
		{answers{reads: 300}, 9}, {answers{}, 9}, {answers{reads: 1, err: verbs.ErrNoMemory}, 9},
	} {
		r := newUnconnected(t, 1, 2, Config{Conn: ConnConfig{MaxRDAtomic: 9}})
		c.nic.Device = r.qps[1].Device()
		r.qps[1].device = c.nic
		if card, err := r.Card(); err != nil || card.RDAtomic != c.want {
			t.Errorf("%d reads, %v: the card says %d, want %d; %v", c.nic.reads, c.nic.err, card.RDAtomic,
				c.want, err)
		}
	}
}

// udpPort is the UDP source port that the kernel and rdma-core make of a flow label on RoCE v2
// (rdma_flow_label_to_udp_sport): the low 14 bits, with the high 6 folded in, above 0xc000.
func udpPort(label uint32) uint32 { return label&0x3fff ^ label>>14 | 0xc000 }

// By default no queue pair names a flow label, and the kernel picks the path from the queue pairs'
// numbers. With SpreadPaths each rail has a label of its own, and the UDP ports that switches
// choose a path by differ in their low bits and all over the range.
func TestSpreadPaths(t *testing.T) {
	if labels := newRecorded(t, 1, 8, Config{}).flowLabels(); slices.Max(labels) != 0 {
		t.Errorf("by default the flow labels are %x", labels)
	}
	r := newRecorded(t, 2, 8, Config{Conn: ConnConfig{SpreadPaths: true}})
	labels := r.flowLabels()
	for i, label := range labels[:16] { // the rails take turns: NIC 0, NIC 1, NIC 0, ...
		if want := flowLabel(r.send.rails.data[i%2].num, i/2); label != want {
			t.Errorf("rail %d has label %#x, want %#x: that of place %d on its NIC", i, label, want, i/2)
		}
	}
	for _, paths := range []uint32{2, 4, 8} {
		for nic := range 2 { // the rails take turns
			var low, high [8]int
			for i := nic; i < 16; i += 2 {
				low[udpPort(labels[i])%paths]++
				high[(udpPort(labels[i])&0x3fff)*paths>>14]++
			}
			for path := range paths {
				if low[path] != 8/int(paths) || max(high[path], 1) > 8/int(paths)+1 {
					t.Errorf("8 rails of NIC %d over %d paths: %v by the low bits of the port, %v by the "+
						"high "+
						"ones", nic, paths, low[:paths], high[:paths])
				}
			}
		}
	}
	other := newUnconnected(t, 1, 8, Config{Conn: ConnConfig{SpreadPaths: true}})
	if flowLabel(r.send.rails.data[0].num, 0) == flowLabel(other.send.rails.data[0].num+1, 0) {
		t.Error("neighbouring virtual queue pairs begin with one label")
	}
	for num := range uint32(1 << 16) {
		ports := map[uint32]bool{}
		for i := range 4 {
			label := flowLabel(num*251, i)
			ports[udpPort(label)] = true
			if label == 0 || label >= 1<<20 {
				t.Fatalf("label %#x", label)
			}
		}
		if len(ports) != 4 {
			t.Fatalf("queue pair %d: %d ports for 4 rails", num*251, len(ports))
		}
	}
}

// A program that connects step by step may give its own label.
func TestFlowLabelOfModify(t *testing.T) {
	r := newUnconnected(t, 1, 2, Config{Conn: ConnConfig{SpreadPaths: true}})
	card, err := r.Card()
	if err != nil {
		t.Fatal(err)
	}
	peer := Elsewhere(card)
	h := newHandshake(r.VirtualQP)
	steps := h.steps(&card, &peer)
	steps[1].attr.AH.FlowLabel = 0x12345
	for _, s := range steps[:2] {
		if err := r.Modify(s.attr, s.mask, &peer); err != nil {
			t.Fatal(err)
		}
	}
	if labels := r.flowLabels(); slices.Min(labels) != 0x12345 || slices.Max(labels) != 0x12345 {
		t.Errorf("labels %x", labels)
	}
}

func (r *recorded) flowLabels() (labels []uint32) {
	for _, a := range r.step(verbs.StateRTR) {
		labels = append(labels, a.AH.FlowLabel)
	}
	return labels
}

// Patience sets the timeout and the retries that the configuration leaves open.
func TestPatience(t *testing.T) {
	for _, c := range []struct {
		conn             ConnConfig
		timeout, retries uint8
	}{
		{ConnConfig{}, 20, 7}, // the null provider's NICs are not software
		{ConnConfig{Patience: PatienceShort}, 14, 6},
		{ConnConfig{Patience: PatienceFabric}, 20, 7},
		{ConnConfig{Patience: PatienceFabric, Timeout: 18}, 18, 7},
		{ConnConfig{Patience: PatienceFabric, RetryCount: 3}, 20, 3},
		{ConnConfig{Patience: PatienceFabric, Timeout: None, RetryCount: None}, 0, 0},
	} {
		r := newRecorded(t, 1, 2, Config{Conn: c.conn})
		for _, a := range r.step(verbs.StateRTS) {
			if r.send.rails.data[0].givesUp != givesUpAfter(c.timeout, c.retries) {
				t.Errorf("%+v: gives up after %v", c.conn, r.send.rails.data[0].givesUp)
			}
			if a.Timeout != c.timeout || a.RetryCount != c.retries {
				t.Errorf("%+v: timeout %d and %d retries, want %d and %d", c.conn, a.Timeout, a.RetryCount,
					c.timeout, c.retries)
			}
		}
	}
	null := verbstest.NewNull(1).Device(0)
	for _, c := range []struct {
		conn     ConnConfig
		devices  []verbs.Device
		gives    int64         // milliseconds
		failover time.Duration // seconds
	}{
		{ConnConfig{}, []verbs.Device{software{null}}, 3758, 15},
		{ConnConfig{}, []verbs.Device{software{null}, null}, 34359, 137},
		{ConnConfig{}, []verbs.Device{answers{Device: null, err: verbs.ErrDeviceGone}}, 34359, 137},
		{ConnConfig{Patience: PatienceFabric}, []verbs.Device{software{null}}, 30064, 120},
		{ConnConfig{Patience: PatienceShort}, []verbs.Device{null}, 469, 10},
		{ConnConfig{Timeout: None}, []verbs.Device{null}, 0, 10},
		{ConnConfig{Timeout: 31}, []verbs.Device{null}, 70368744, 3600},
	} {
		cfg := Config{Conn: c.conn}.withDefaults(c.devices)
		if gives := cfg.Conn.givesUpAfter(); gives.Milliseconds() != c.gives ||
			cfg.FailoverTimeout.Truncate(time.Second) != c.failover*time.Second || cfg.validate() != nil {
			t.Errorf("%+v: gives up after %v, FailoverTimeout %v", c.conn, gives, cfg.FailoverTimeout)
		}
	}
	cfg := Config{Conn: ConnConfig{Patience: 3}}.withDefaults(nil)
	if err := cfg.validate(); !errors.Is(err, verbs.ErrInvalid) ||
		!strings.Contains(err.Error(), "Patience 3") {
		t.Errorf("an unknown patience: %v", err)
	}
}
