package api_test

import (
	"errors"
	"strings"
	"testing"

	"ibverbx"
	"ibverbx/internal/unreliable"
	"ibverbx/internal/vqptest"
	"ibverbx/verbs"
	"ibverbx/verbs/soft"
	"ibverbx/verbs/verbstest"
)

// A virtual queue pair cannot be made of an impossible set of queue pairs, and a refused attempt
// takes neither room nor a queue pair.
func TestImpossibleVirtualQueuePairs(t *testing.T) {
	fabric := vqptest.NewFabric(t, soft.Config{Devices: 2})
	var qps [2][]verbs.QP // of each NIC
	var cqs []verbs.CQ
	for i := range qps {
		pd, cq := vqptest.NewPD(t, fabric.Device(i)), vqptest.NewCQ(t, fabric.Device(i), 4096)
		for range 4 {
			qps[i] = append(qps[i], vqptest.NewQP(t, pd, cq))
		}
		t.Cleanup(func() {
			for _, qp := range qps[i] {
				_ = qp.Close() // its virtual queue pair may have closed it
			}
			_ = cq.Close() // likewise
			if err := pd.Close(); err != nil {
				t.Error(err)
			}
		})
		cqs = append(cqs, cq)
	}
	vcq, err := ibverbx.NewVirtualCQ(cqs[0])
	if err != nil {
		t.Fatal(err)
	}
	qp, busy, inINIT, foreign := qps[0][0], qps[0][1], qps[0][2], qps[1][0]
	null := verbstest.NewNull(1).Device(0)
	other := vqptest.NewQP(t, vqptest.NewPD(t, null), vqptest.NewCQ(t, null, 16))
	used, err := ibverbx.NewVirtualQP(vcq, []verbs.QP{busy}, nil, ibverbx.Config{})
	if err != nil {
		t.Fatal(err)
	}
	if err := inINIT.Modify(&vqptest.ToInit.Attr, vqptest.ToInit.Mask); err != nil {
		t.Fatal(err)
	}
	one := []verbs.QP{qp}
	for _, c := range []struct {
		cq     *ibverbx.VirtualCQ
		qps    []verbs.QP
		notify verbs.QP
		cfg    ibverbx.Config
		want   error
		says   string
	}{
		{nil, one, nil, ibverbx.Config{}, ibverbx.ErrClosed, "virtual cq"},
		{vcq, nil, nil, ibverbx.Config{}, verbs.ErrInvalid, "0 queue pairs: must be 1 to 128"},
		{vcq, make([]verbs.QP, ibverbx.MaxRails+1), nil, ibverbx.Config{}, verbs.ErrInvalid,
			"129 queue pairs"},
		{vcq, []verbs.QP{qp, nil}, nil, ibverbx.Config{}, verbs.ErrInvalid, "queue pair 1 of 2 is nil"},
		{vcq, []verbs.QP{farQP{qp}, qp}, nil, ibverbx.Config{}, verbs.ErrInvalid,
			"queue pair 0 of 2 is on soft0, whose index is 64"},
		{vcq, []verbs.QP{qp, qps[0][3]}, farQP{qp}, ibverbx.Config{}, verbs.ErrInvalid,
			"the notify QP is on soft0, whose index is 64, of 63 at most"},
		{vcq, one, busy, ibverbx.Config{}, verbs.ErrInvalid, "notify QP"},
		{vcq, []verbs.QP{busy, qp}, nil, ibverbx.Config{}, verbs.ErrInvalid, "belongs to a virtual QP"},
		{vcq, []verbs.QP{qp, qp}, nil, ibverbx.Config{}, verbs.ErrInvalid, "twice"},
		{vcq, []verbs.QP{inINIT}, nil, ibverbx.Config{}, verbs.ErrState, ""},
		{vcq, []verbs.QP{qp, foreign}, nil, ibverbx.Config{}, verbs.ErrInvalid, "no CQ"},
		// Its completions would never come, although its NIC has the index of one that is there.
		{vcq, []verbs.QP{qp, other}, nil, ibverbx.Config{}, verbs.ErrInvalid, "another provider"},
		{vcq, []verbs.QP{qp, qps[0][3]}, other, ibverbx.Config{}, verbs.ErrInvalid, "another provider"},
		{vcq, one, nil, ibverbx.Config{Scheme: 9}, verbs.ErrInvalid, "Scheme 9"},
	} {
		if _, err := ibverbx.NewVirtualQP(c.cq, c.qps, c.notify, c.cfg); !errors.Is(err, c.want) ||
			!strings.Contains(err.Error(), c.says) {
			t.Errorf("%v; want %v that says %q", err, c.want, c.says)
		}
	}
	dom, err := ibverbx.NewDomain(null)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := dom.NewQP(vcq, ibverbx.Config{}); !errors.Is(err, verbs.ErrInvalid) ||
		!strings.Contains(err.Error(), "another provider") {
		t.Errorf("on the NIC of another provider: %v", err)
	}
	if q, err := ibverbx.NewVirtualQP(vcq, one, nil, ibverbx.Config{}); err != nil || q.Num() == used.Num() {
		t.Errorf("%v", err)
	}
	if err := errors.Join(inINIT.Close(), qps[0][3].Close(), vcq.Close(), dom.Close()); err != nil {
		t.Error(err)
	}
	if _, err := ibverbx.NewVirtualQP(vcq, one, nil, ibverbx.Config{}); !errors.Is(err, ibverbx.ErrClosed) {
		t.Errorf("a closed CQ: %v", err)
	}
}

// farQP is on a device whose index is too large.
type farQP struct{ verbs.QP }

func (q farQP) Device() verbs.Device { return farNIC{q.QP.Device()} }

// mutePort is a device that does not always say how long a message its port takes.
type mutePort struct {
	vqptest.Tap
	mute  int    // questions that get no answer
	most  uint32 // bytes of the longest message that it takes; 0: it does not say
	asked int    // questions so far
}

// newMutePort makes one of a null device.
func newMutePort(dev verbs.Device, mute int, most uint32) *mutePort {
	d := &mutePort{Tap: vqptest.Tap{Device: dev}, mute: mute, most: most}
	d.Self = d
	return d
}

var errMute = errors.New("the port is being renamed")

func (d *mutePort) QueryPort(port int) (verbs.PortAttr, error) {
	d.asked++
	if d.mute > 0 {
		d.mute--
		return verbs.PortAttr{}, errMute
	}
	attr, err := d.Device.QueryPort(port)
	attr.MaxMsgSize = d.most
	return attr, err
}

// While a port does not say how long a message it takes, no virtual queue pair is made: its
// fragments might be longer than that.
func TestPortThatDoesNotAnswer(t *testing.T) {
	d := newMutePort(verbstest.NewNull(1).Device(0), 1, 4096)
	_, err := ibverbx.Open([]verbs.Device{d}, ibverbx.Config{})
	if !errors.Is(err, errMute) || !strings.Contains(err.Error(), "null0 port 1") {
		t.Errorf("the port does not answer: %v", err)
	}
	q, err := ibverbx.Open([]verbs.Device{d}, ibverbx.Config{})
	if err != nil {
		t.Fatal(err)
	}
	if size := q.Config().FragmentSize; size != 4096 {
		t.Errorf("fragments of %d bytes, the port takes 4096", size)
	}
	if err := q.Close(); err != nil {
		t.Error(err)
	}
}

// Fragments fit every port. One that does not say how long a message it takes limits nothing, and
// the others still do, in whichever order they stand. Each is asked once, not for each queue pair.
func TestFragmentsFitEveryPort(t *testing.T) {
	const ours, big = 1 << 20, 1 << 30
	for _, c := range []struct {
		ports [2]uint32
		want  uint32
	}{
		{[2]uint32{0, 0}, ours}, {[2]uint32{big, 0}, ours}, {[2]uint32{0, big}, ours},
		{[2]uint32{4096, 0}, 4096}, {[2]uint32{0, 4096}, 4096}, {[2]uint32{4096, 8192}, 4096},
		{[2]uint32{8192, 4096}, 4096}, {[2]uint32{ours + 1, ours - 1}, ours - 1},
	} {
		null := verbstest.NewNull(2)
		devs := [2]*mutePort{newMutePort(null.Device(0), 0, c.ports[0]),
			newMutePort(null.Device(1), 0, c.ports[1])}
		q, err := ibverbx.Open([]verbs.Device{devs[0], devs[1]},
			ibverbx.Config{QPsPerDevice: 2, FragmentSize: ours})
		if err != nil {
			t.Fatal(err)
		}
		if size := q.Config().FragmentSize; size != c.want {
			t.Errorf("ports of %v: fragments of %d bytes, want %d", c.ports, size, c.want)
		}
		if devs[0].asked != 1 || devs[1].asked != 1 {
			t.Errorf("the ports are asked %d and %d times", devs[0].asked, devs[1].asked)
		}
		if err := q.Close(); err != nil {
			t.Error(err)
		}
	}
}

// A virtual CQ takes a virtual queue pair if it holds as many completions as may be outstanding,
// and not if it holds one less; it has that room again when the queue pair is closed. A virtual CQ
// that is made for the queue pair holds just as many.
func TestRoomInTheCQ(t *testing.T) {
	for _, c := range []struct {
		name string
		cfg  ibverbx.Config
		need [2]int // on each of two NICs
	}{
		// A send queue of 8 everywhere; receives: 4 credits, and 8 on the notify QP.
		{"dqplb", ibverbx.Config{QPsPerDevice: 2}, [2]int{2*(8+4) + 8 + 8, 2 * (8 + 4)}},
		{"dqplb without notify QP", ibverbx.Config{QPsPerDevice: 2, NoNotifyQP: true},
			[2]int{2 * (8 + 4), 2 * (8 + 4)}},
		// Receives: 8 on the queue pair of SENDs and the notify QP, a watch on any other.
		{"spray", ibverbx.Config{QPsPerDevice: 2, Scheme: ibverbx.Spray},
			[2]int{8 + 8 + 8 + 1 + 8 + 8, 2 * (8 + 1)}},
	} {
		c.cfg.MaxMsgCntPerQP, c.cfg.Credits = 8, 4
		fabric := vqptest.NewFabric(t, soft.Config{Devices: 2})
		dom, err := ibverbx.NewDomain(fabric.Device(0), fabric.Device(1))
		if err != nil {
			t.Fatal(err)
		}
		for dev := range 2 {
			for _, less := range []int{0, 1} {
				depths := c.need
				depths[dev] -= less
				cq, err := ibverbx.NewVirtualCQ(vqptest.NewCQ(t, fabric.Device(0), depths[0]),
					vqptest.NewCQ(t, fabric.Device(1), depths[1]))
				if err != nil {
					t.Fatal(err)
				}
				for range 2 { // the second finds the room that the first has left
					q, err := dom.NewQP(cq, c.cfg)
					if (err == nil) != (less == 0) || err != nil && (!errors.Is(err, verbs.ErrInvalid) ||
						!strings.Contains(err.Error(), "make its CQ deeper")) {
						t.Errorf("%s: room for %v: %v", c.name, depths, err)
					}
					if err != nil {
						continue
					}
					if _, err := dom.NewQP(cq, c.cfg); !errors.Is(err, verbs.ErrInvalid) {
						t.Errorf("%s: two in the room of one: %v", c.name, err)
					}
					if err := q.Close(); err != nil {
						t.Error(err)
					}
				}
				if err := cq.Close(); err != nil {
					t.Error(err)
				}
			}
		}
		q, err := dom.NewQP(nil, c.cfg)
		if err != nil {
			t.Fatal(err)
		}
		for dev, cq := range q.CQ().CQs() {
			if cq.Depth() != c.need[dev] {
				t.Errorf("%s: a CQ of %d completions on device %d, want %d", c.name, cq.Depth(), dev,
					c.need[dev])
			}
		}
		if err := errors.Join(q.Close(), dom.Close()); err != nil {
			t.Error(err)
		}
	}
}

// A single queue pair may be deeper than it was asked to be, so its CQ holds twice as many.
func TestRoomForASingleQueuePair(t *testing.T) {
	null := verbstest.NewNull(1)
	q, err := ibverbx.Open([]verbs.Device{null.Device(0)},
		ibverbx.Config{QPsPerDevice: 1, MaxMsgCntPerQP: 8})
	if err != nil {
		t.Fatal(err)
	}
	if got := q.CQ().CQs()[0].Depth(); got != 2*(8+8) {
		t.Errorf("a CQ of %d completions", got)
	}
	cq, err := q.Domain().NewCQ(0)
	if err != nil {
		t.Fatal(err)
	}
	if got := cq.CQs()[0].Depth(); got != 4096 {
		t.Errorf("by default a CQ of %d completions", got)
	}
	if err := errors.Join(cq.Close(), q.Close()); err != nil {
		t.Error(err)
	}
}

// silentNIC does not say its limits.
type silentNIC struct{ verbs.Device }

func (d silentNIC) Query() (verbs.DeviceAttr, error) {
	attr, err := d.Device.Query()
	attr.MaxQPWR, attr.MaxRDAtomic = 0, 0
	return attr, err
}

func (d silentNIC) QueryPort(port int) (verbs.PortAttr, error) {
	attr, err := d.Device.QueryPort(port)
	attr.MaxMsgSize = 0
	return attr, err
}

// What a NIC does not say is no limit: the configuration stays as it is.
func TestNICsThatDoNotSayTheirLimits(t *testing.T) {
	q, err := ibverbx.Open([]verbs.Device{silentNIC{verbstest.NewNull(1).Device(0)}}, ibverbx.Config{})
	if err != nil {
		t.Fatal(err)
	}
	card := cardOf(t, q)
	got := q.Config()
	if got.MaxMsgCntPerQP != 128 || got.Credits != 256 || got.FragmentSize != 512<<10 || card.RDAtomic != 16 {
		t.Errorf("%d requests, %d credits, %d bytes, %d reads", got.MaxMsgCntPerQP, got.Credits,
			got.FragmentSize, card.RDAtomic)
	}
	if err := q.Close(); err != nil {
		t.Error(err)
	}
}

// No more messages are on the way to a DQPLB peer than its card has credits, from one on. A card
// that does not say bounds nothing, and neither does one of Spray.
func TestCreditsOfThePeerBoundTheMessages(t *testing.T) {
	for _, c := range []struct {
		scheme        ibverbx.Scheme
		credits, want int
	}{
		{ibverbx.DQPLB, 0, 16}, {ibverbx.DQPLB, 1, 1}, {ibverbx.DQPLB, 2, 2}, {ibverbx.DQPLB, 16, 16},
		{ibverbx.DQPLB, 17, 16}, {ibverbx.Spray, 1, 16},
	} {
		l := vqptest.NewLink(t, vqptest.LinkConfig{QP: ibverbx.Config{Scheme: c.scheme, QPsPerDevice: 2,
			MaxMsgCntPerQP: 16},
			EditCard: func(card *ibverbx.BusinessCard) { card.Credits = c.credits }})
		for i, r := range l.A.Stats().Rails[:2] {
			if r.Limit != c.want {
				t.Errorf("%v, %d credits: rail %d has a limit of %d, want %d", c.scheme, c.credits, i,
					r.Limit,
					c.want)
			}
		}
		if got := l.A.Config().MaxMsgCntPerQP; got != c.want {
			t.Errorf("%v, %d credits: %d messages a queue pair, want %d", c.scheme, c.credits, got, c.want)
		}
	}
}

// A port that cannot be asked for its address stops the step that needs the address, and changes
// nothing.
func TestModifyWithoutTheOwnAddress(t *testing.T) {
	_, f, devs := unreliableNICs(t)
	var ends [2]*ibverbx.VirtualQP
	for i := range ends {
		var err error
		if ends[i], err = ibverbx.Open(devs[i:i+1], ibverbx.Config{QPsPerDevice: 2}); err != nil {
			t.Fatal(err)
		}
	}
	peer := cardOf(t, ends[1])
	toInit, toRTR := vqptest.ToInit, vqptest.ToRTR
	toInit.Attr.Port, toRTR.Attr.AH.Port, toRTR.Attr.PathMTU = 0, 0, verbs.MTU1024
	if err := toInit.Take(ends[0], &peer); err != nil {
		t.Fatal(err)
	}
	f.N, f.At, f.Only = 0, 0, "query port"
	if err := toRTR.Take(ends[0], &peer); !errors.Is(err, unreliable.Err) {
		t.Errorf("without an address: %v", err)
	}
	if got := ends[0].State(); got != verbs.StateInit {
		t.Errorf("in %v", got)
	}
	f.At = -1
	if err := toRTR.Take(ends[0], &peer); err != nil || ends[0].State() != verbs.StateRTR {
		t.Errorf("again: %v", err)
	}
	if err := errors.Join(ends[0].Close(), ends[1].Close()); err != nil {
		t.Error(err)
	}
}

// Completions of queue pairs that the virtual CQ does not know, and of devices that it has no CQ
// of, are dropped; the former are counted.
func TestCompletionsOfUnknownQueuePairsAreCounted(t *testing.T) {
	q := vqptest.OpenSoft(t, ibverbx.Config{QPsPerDevice: 2})
	unknown := verbs.WC{QPNum: 0xffffff}
	for dev, want := range map[verbs.DeviceID]uint64{0: 2, 1: 0, verbs.MaxDevices: 0} {
		before := q.CQ().Stats().StaleEvents
		if got := q.CQ().ProcessCompletions(nil, dev, unknown, unknown); len(got) != 0 {
			t.Errorf("device %d: %s", dev, vqptest.FormatWCs(got))
		}
		if got := q.CQ().Stats().StaleEvents - before; got != want {
			t.Errorf("device %d: %d are counted, want %d", dev, got, want)
		}
	}
	if err := errors.Join(q.Close()); err != nil {
		t.Error(err)
	}
}
