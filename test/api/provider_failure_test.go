package api_test

import (
	"context"
	"errors"
	"strings"
	"testing"
	"time"

	"ibverbx"
	"ibverbx/internal/unreliable"
	"ibverbx/internal/vqptest"
	"ibverbx/verbs"
	"ibverbx/verbs/soft"
	"ibverbx/verbs/verbstest"
)

// unreliableNICs are two NICs of a fabric.
func unreliableNICs(t *testing.T) (*soft.Fabric, *unreliable.Calls, []verbs.Device) {
	t.Helper()
	fabric := vqptest.NewFabric(t, soft.Config{Devices: 2})
	f := &unreliable.Calls{At: -1}
	return fabric, f, []verbs.Device{unreliable.New(fabric.Device(0), f), unreliable.New(fabric.Device(1), f)}
}

// Whatever call of the provider fails while objects are made, its error is returned and what had
// been made before is closed.
func TestFailedCreationLeavesNothing(t *testing.T) {
	create := func(devs []verbs.Device) (q *ibverbx.VirtualQP, mr *ibverbx.MR, cq *ibverbx.VirtualCQ,
		err error) {
		if q, err = ibverbx.Open(devs, ibverbx.Config{QPsPerDevice: 2}); err != nil {
			return nil, nil, nil, err
		}
		if mr, err = q.Domain().Register(make([]byte, 64), verbs.AccessAll); err != nil {
			return nil, nil, nil, errors.Join(err, q.Close())
		}
		if cq, err = q.Domain().NewCQ(0); err != nil {
			return nil, nil, nil, errors.Join(err, mr.Close(), q.Close())
		}
		return q, mr, cq, nil
	}
	made := map[string]bool{}
	for at := 0; ; at++ {
		fabric, f, devs := unreliableNICs(t)
		f.At = at
		q, mr, cq, err := create(devs)
		f.At = -1
		switch {
		case f.Name == "":
			if err != nil || at < 12 {
				t.Fatalf("%d calls, %v", at, err)
			}
			if len(q.Domain().Devices()) != 2 || q.Domain().Devices()[1] != devs[1] ||
				len(cq.Devices()) != 2 || cq.Devices()[1].Name() != "soft1" {
				t.Errorf("devices: %v, %v", q.Domain().Devices(), cq.Devices())
			}
			if err := errors.Join(cq.Close(), mr.Close(), q.Close(), fabric.Close()); err != nil {
				t.Error(err)
			}
			for _, name := range []string{"alloc pd", "create cq", "create qp", "register", "query"} {
				if !made[name] {
					t.Errorf("no %s failed", name)
				}
			}
			return
		// Connect asks again; a NIC that does not say whether it is software counts as none.
		case err == nil && (f.Name == "query port" || f.Name == "query"):
			err = errors.Join(cq.Close(), mr.Close(), q.Close())
			if err != nil {
				t.Error(err)
			}
		case !errors.Is(err, unreliable.Err) || !strings.HasPrefix(err.Error(), "ibverbx: "):
			t.Errorf("call %d, %s: %v", at, f.Name, err)
		}
		made[f.Name] = true
		if err := fabric.Close(); err != nil {
			t.Errorf("call %d, %s: %v", at, f.Name, err)
		}
	}
}

// Whatever call of the provider fails while it connects, Connect says so and names the rail, and
// after a reset the virtual queue pair can be connected.
func TestFailedConnectCanBeTriedAgain(t *testing.T) {
	for _, scheme := range []ibverbx.Scheme{ibverbx.DQPLB, ibverbx.Spray} {
		for at := 0; ; at++ {
			fabric, f, devs := unreliableNICs(t)
			cfg := ibverbx.Config{QPsPerDevice: 2, Scheme: scheme}
			a, err := ibverbx.Open(devs[:1], cfg)
			if err != nil {
				t.Fatal(err)
			}
			b, err := ibverbx.Open(devs[1:], cfg)
			if err != nil {
				t.Fatal(err)
			}
			card := cardOf(t, b)
			f.N, f.At = 0, at
			err = a.Connect(card)
			f.At = -1
			if f.Name != "" && f.Name != "query" &&
				(!errors.Is(err, unreliable.Err) || !strings.Contains(err.Error(), "rail ")) {
				t.Errorf("%v, call %d, %s: %v", scheme, at, f.Name, err)
			}
			if err := a.Reset(); err != nil {
				t.Errorf("%v, call %d, %s: %v", scheme, at, f.Name, err)
			}
			vqptest.ConnectBoth(t, a, b)
			if err := errors.Join(a.Close(), b.Close(), fabric.Close()); err != nil {
				t.Errorf("%v, call %d, %s: %v", scheme, at, f.Name, err)
			}
			if f.Name == "" {
				if at < 10 {
					t.Errorf("%v: %d calls", scheme, at)
				}
				break
			}
		}
	}
}

// Close returns what a NIC refuses while objects are closed, with the name of the object. The
// others are closed nevertheless.
func TestFailedCloseIsReported(t *testing.T) {
	for _, c := range []struct {
		call string
		at   int
		says string
	}{
		{"close qp", 0, "rail 0 (soft0 qp "}, {"close qp", 3, "rail 3 (soft1 qp "},
		{"close qp", 4, "rail 4 (soft0 qp "},
		{"close cq", 0, ": soft0: the provider"}, {"close cq", 1, ": soft1: the provider"},
	} {
		fabric, f, devs := unreliableNICs(t)
		q, err := ibverbx.Open(devs, ibverbx.Config{QPsPerDevice: 2})
		if err != nil {
			t.Fatal(err)
		}
		f.N, f.At, f.Only = 0, c.at, c.call
		if err := q.Close(); !errors.Is(err, unreliable.Err) || !strings.Contains(err.Error(), c.says) {
			t.Errorf("%s %d: %v; want one that says %q", c.call, c.at, err, c.says)
		}
		if err := fabric.Close(); err != nil {
			t.Errorf("%s %d: %v", c.call, c.at, err)
		}
	}
}

// A domain's Close says what a NIC has refused, and closes what it has on the others.
func TestFailedCloseOfADomainIsReported(t *testing.T) {
	for at := range 2 {
		fabric, f, devs := unreliableNICs(t)
		dom, err := ibverbx.NewDomain(devs...)
		if err != nil {
			t.Fatal(err)
		}
		f.N, f.At, f.Only = 0, at, "close pd"
		if err := dom.Close(); !errors.Is(err, unreliable.Err) ||
			!strings.HasPrefix(err.Error(), "ibverbx: close domain: ") {
			t.Errorf("close pd %d: %v", at, err)
		}
		if o := fabric.Objects(); o != (soft.Objects{}) {
			t.Errorf("close pd %d: left open: %v", at, o)
		}
		if err := fabric.Close(); err != nil {
			t.Error(err)
		}
	}
}

// dyingCQ is a CQ that dies when died is set.
type dyingCQ struct {
	verbs.CQ
	died  error
	armed int
}

func (c *dyingCQ) Poll(wcs []verbs.WC) (int, error) {
	if c.died != nil {
		return 0, c.died
	}
	return c.CQ.Poll(wcs)
}

func (c *dyingCQ) Arm(solicited bool) error {
	c.armed++
	return errors.Join(c.died, c.CQ.Arm(solicited))
}

// Wait returns that a physical CQ has died, once, and waits on for the others; when all of them
// have, there is nothing to wait for.
func TestWaitOnCQsThatHaveDied(t *testing.T) {
	null, channel := verbstest.NewNull(2), verbs.NewCompChannel()
	var cqs [2]*dyingCQ
	for i := range cqs {
		cq, err := null.Device(i).CreateCQ(verbs.CQConfig{Channel: channel})
		if err != nil {
			t.Fatal(err)
		}
		cqs[i] = &dyingCQ{CQ: cq}
	}
	vcq, err := ibverbx.NewVirtualCQ(cqs[0], cqs[1])
	if err != nil {
		t.Fatal(err)
	}
	wait := func() error {
		ctx, cancel := context.WithTimeout(context.Background(), 5*time.Millisecond)
		defer cancel()
		return vcq.Wait(ctx)
	}
	if err := wait(); !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("both live: %v", err)
	}
	cqs[0].died = unreliable.Err
	if err := wait(); !errors.Is(err, unreliable.Err) || !strings.Contains(err.Error(), "null0") {
		t.Errorf("the first has died: %v", err)
	}
	armed := [2]int{cqs[0].armed, cqs[1].armed}
	if err := wait(); !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("the second lives: %v", err)
	}
	if err := vcq.Arm(); err != nil {
		t.Errorf("the second lives: arm: %v", err)
	}
	if cqs[0].armed != armed[0] || cqs[1].armed != armed[1]+2 {
		t.Errorf("armed %d and %d times more", cqs[0].armed-armed[0], cqs[1].armed-armed[1])
	}
	cqs[1].died = unreliable.Err
	if err := wait(); !errors.Is(err, unreliable.Err) || !strings.Contains(err.Error(), "null1") {
		t.Errorf("the second has died: %v", err)
	}
	for _, wait := range []func() error{wait, vcq.Arm} {
		if err := wait(); !errors.Is(err, verbs.ErrDeviceGone) ||
			!strings.Contains(err.Error(), "every physical CQ") {
			t.Errorf("both have died: %v", err)
		}
	}
}

// A domain refuses an impossible list of NICs, and a virtual CQ one of CQs; they make nothing then.
func TestImpossibleDomains(t *testing.T) {
	_, _, devs := unreliableNICs(t)
	for _, c := range []struct {
		devs []verbs.Device
		says string
	}{
		{nil, "no devices"},
		{[]verbs.Device{devs[0], nil}, "device 1 of the list is nil"},
		{[]verbs.Device{devs[0], farNIC{devs[1]}}, "soft1 has index 64: must be below 64"},
		{[]verbs.Device{devs[0], devs[1], devs[0]}, "soft0 and soft0 have the same index"},
	} {
		if _, err := ibverbx.NewDomain(c.devs...); !errors.Is(err, verbs.ErrInvalid) ||
			!strings.Contains(err.Error(), c.says) {
			t.Errorf("%v; want one that says %q", err, c.says)
		}
	}
	cq, err := devs[0].CreateCQ(verbs.CQConfig{})
	if err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct {
		cqs  []verbs.CQ
		says string
	}{{nil, "no physical CQ"}, {[]verbs.CQ{cq, cq}, "one a device"},
		{[]verbs.CQ{cq, farCQ{cq}}, "soft0 has index 64: must be below 64"}} {
		if _, err := ibverbx.NewVirtualCQ(c.cqs...); !errors.Is(err, verbs.ErrInvalid) ||
			!strings.Contains(err.Error(), c.says) {
			t.Errorf("%v; want one that says %q", err, c.says)
		}
	}
	if err := cq.Close(); err != nil {
		t.Error(err)
	}
}

// farNIC has an index beyond those that fit into a set of devices.
type farNIC struct{ verbs.Device }

func (farNIC) ID() verbs.DeviceID { return verbs.MaxDevices }

type farCQ struct{ verbs.CQ }

func (c farCQ) Device() verbs.Device { return farNIC{c.CQ.Device()} }

// oneCQNIC hands out the same CQ again and again.
type oneCQNIC struct {
	*soft.Device
	cq *verbs.CQ
}

func (d oneCQNIC) CreateCQ(cfg verbs.CQConfig) (cq verbs.CQ, err error) {
	if *d.cq == nil {
		*d.cq, err = d.Device.CreateCQ(cfg)
	}
	return *d.cq, err
}

// A CQ that a provider hands out twice is refused the second time, in an error.
func TestProviderThatHandsOutOneCQTwice(t *testing.T) {
	fabric := vqptest.NewFabric(t, soft.Config{})
	dom, err := ibverbx.NewDomain(oneCQNIC{fabric.Device(0), new(verbs.CQ)})
	if err != nil {
		t.Fatal(err)
	}
	first, err := dom.NewCQ(64)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := dom.NewCQ(64); !errors.Is(err, verbs.ErrBusy) {
		t.Errorf("a second virtual CQ of one physical CQ: %v", err)
	}
	_ = first.Close() // its CQ was closed with the second
	if err := dom.Close(); err != nil {
		t.Error(err)
	}
}
