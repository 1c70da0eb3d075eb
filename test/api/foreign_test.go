package api_test

import (
	"errors"
	"strings"
	"testing"

	"ibverbx"
	"ibverbx/internal/vqptest"
	"ibverbx/verbs"
	"ibverbx/verbs/soft"
	"ibverbx/verbs/verbstest"
)

// A queue pair that is nil, or on a device whose index is too large for the tables, is refused.
func TestQueuePairsWithoutAPlaceAreRefused(t *testing.T) {
	near := verbstest.NewNull(1).Device(0)
	cq := vqptest.NewCQ(t, near, 4096)
	vcq, err := ibverbx.NewVirtualCQ(cq)
	if err != nil {
		t.Fatal(err)
	}
	pd := vqptest.NewPD(t, near)
	qp := func() verbs.QP { return vqptest.NewQP(t, pd, cq) }
	for want, qps := range map[string][3]verbs.QP{
		"queue pair 1 of 2 is nil":                                    {qp(), nil, qp()},
		"queue pair 0 of 2 is on null0, whose index is 64":            {farQP{qp()}, qp(), qp()},
		"the notify QP is on null0, whose index is 64, of 63 at most": {qp(), qp(), farQP{qp()}},
	} {
		_, err := ibverbx.NewVirtualQP(vcq, qps[:2], qps[2], ibverbx.Config{})
		if !errors.Is(err, verbs.ErrInvalid) || !strings.Contains(err.Error(), want) {
			t.Errorf("error %v, want one that says %q", err, want)
		}
	}
}

// farQP is on a device whose index is too large.
type farQP struct{ verbs.QP }

type farDevice struct{ verbs.Device }

func (q farQP) Device() verbs.Device { return farDevice{q.QP.Device()} }

func (farDevice) ID() verbs.DeviceID { return verbs.MaxDevices }

// A queue pair of another provider whose device has the same index as one of the virtual CQ's is
// refused: its completions would never come.
func TestQueuePairsOfAnotherProviderAreRefused(t *testing.T) {
	fabric, err := soft.New(soft.Config{Devices: 1})
	if err != nil {
		t.Fatal(err)
	}
	own, foreign := fabric.Device(0), verbstest.NewNull(1).Device(0)
	cq := vqptest.NewCQ(t, own, 4096)
	vcq, err := ibverbx.NewVirtualCQ(cq)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := errors.Join(vcq.Close(), fabric.Close()); err != nil {
			t.Errorf("something is left: %v", err)
		}
	})
	says := func(what string, err error) {
		t.Helper()
		if !errors.Is(err, verbs.ErrInvalid) || !strings.Contains(err.Error(), "null0") ||
			!strings.Contains(err.Error(), "soft0") || !strings.Contains(err.Error(), "another provider") {
			t.Errorf("%s: %v", what, err)
		}
	}
	qp := func(dev verbs.Device, cq verbs.CQ) verbs.QP {
		t.Helper()
		pd := vqptest.NewPD(t, dev)
		q := vqptest.NewQP(t, pd, cq)
		t.Cleanup(func() {
			if err := errors.Join(q.Close(), pd.Close()); err != nil {
				t.Error(err)
			}
		})
		return q
	}
	foreignCQ := vqptest.NewCQ(t, foreign, 4096)
	good := []verbs.QP{qp(own, cq), qp(own, cq)}
	bad := qp(foreign, foreignCQ)
	_, err = ibverbx.NewVirtualQP(vcq, []verbs.QP{good[0], bad}, nil, ibverbx.Config{})
	says("data", err)
	_, err = ibverbx.NewVirtualQP(vcq, good, bad, ibverbx.Config{})
	says("notify", err)
	dom, err := ibverbx.NewDomain(foreign)
	if err != nil {
		t.Fatal(err)
	}
	_, err = dom.NewQP(vcq, ibverbx.Config{})
	says("domain", err)
	if err := dom.Close(); err != nil {
		t.Error(err)
	}
	if s := vcq.Stats(); s.VirtualQPs != 0 {
		t.Errorf("%+v", s)
	}
}

// mutePort is a device that does not always say how long a message its port takes.
type mutePort struct {
	verbs.Device
	mute  int    // questions that get no answer
	most  uint32 // bytes of the longest message that it takes; 0: it does not say
	asked int    // questions so far
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

func (d *mutePort) AllocPD() (verbs.PD, error) {
	pd, err := d.Device.AllocPD()
	return mutePD{pd, d}, err
}

func (d *mutePort) CreateCQ(cfg verbs.CQConfig) (verbs.CQ, error) {
	cq, err := d.Device.CreateCQ(cfg)
	return muteCQ{cq, d}, err
}

type (
	mutePD struct {
		verbs.PD
		dev *mutePort
	}
	muteCQ struct {
		verbs.CQ
		dev *mutePort
	}
	muteQP struct {
		verbs.QP
		dev *mutePort
	}
)

func (p mutePD) Device() verbs.Device { return p.dev }
func (c muteCQ) Device() verbs.Device { return c.dev }
func (q muteQP) Device() verbs.Device { return q.dev }

func (p mutePD) CreateQP(cfg verbs.QPConfig) (verbs.QP, error) {
	cfg.SendCQ, cfg.RecvCQ = cfg.SendCQ.(muteCQ).CQ, cfg.RecvCQ.(muteCQ).CQ
	qp, err := p.PD.CreateQP(cfg)
	return muteQP{qp, p.dev}, err
}

// While a port does not say how long a message it takes, no virtual queue pair is made: its
// fragments might be longer than that.
func TestPortThatDoesNotAnswer(t *testing.T) {
	d := &mutePort{Device: verbstest.NewNull(1).Device(0), mute: 1, most: 4096}
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
		devs := [2]*mutePort{{Device: null.Device(0), most: c.ports[0]},
			{Device: null.Device(1), most: c.ports[1]}}
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

// A scatter list is refused that has memory which is not registered on every NIC, whichever is
// missing: the first one too.
func TestListsWithMemoryOfOtherNICsAreRefused(t *testing.T) {
	for missing := range 2 {
		l := vqptest.NewLink(t, vqptest.LinkConfig{NICs: 2, QP: ibverbx.Config{QPsPerDevice: 2}})
		dom, err := ibverbx.NewDomain(l.A.NICs[1-missing])
		if err != nil {
			t.Fatal(err)
		}
		mr, err := dom.Register(make([]byte, 100), verbs.AccessAll)
		if err != nil {
			t.Fatal(err)
		}
		wr := l.A.Write(verbs.OpRDMAWrite, 1, 0, 16)
		own, foreign := l.A.MR.Slice(0, 8), mr.Slice(0, 8)
		wr.Local = ibverbx.Segment{}
		for _, sgl := range [][]ibverbx.Segment{{foreign, foreign}, {own, foreign}, {foreign, own}} {
			wr.SGL = sgl
			if n, err := l.A.PostSend(wr); n != 0 || !errors.Is(err, ibverbx.ErrNoKey) {
				t.Errorf("without NIC %d: %d, %v", missing, n, err)
			}
		}
		if err := errors.Join(mr.Close(), dom.Close()); err != nil {
			t.Error(err)
		}
	}
}
