package soft

import (
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"ibverbx/verbs"
	"ibverbx/verbs/internal/nic"
)

// Every field of the configuration takes its smallest and its largest value, and nothing beyond:
// the error names the field, its value and the bounds.
func TestBoundsOfTheConfiguration(t *testing.T) {
	device := func(set func(d *DeviceConfig)) Config {
		var c Config
		set(&c.Device)
		return c
	}
	for _, c := range []struct {
		cfg  Config
		says string // "" where it is taken
	}{
		{Config{}, ""},
		{Config{Devices: 1}, ""},
		{Config{Devices: verbs.MaxDevices}, ""},
		{Config{Devices: 65}, "65 devices, possible are 1 to 64"},
		{Config{Devices: -1}, "-1 devices, possible are 1 to 64"},
		{device(func(d *DeviceConfig) { d.Latency = 1 }), ""},
		{device(func(d *DeviceConfig) { d.Latency = -1 }), "latency -1ns: must not be negative"},
		{device(func(d *DeviceConfig) { d.MaxQPWR = 1 }), ""},
		{device(func(d *DeviceConfig) { d.MaxQPWR = -1 }), "MaxQPWR -1: must not be negative"},
		{device(func(d *DeviceConfig) { d.MaxCQE = 1 }), ""},
		{device(func(d *DeviceConfig) { d.MaxCQE = -1 }), "MaxCQE -1: must not be negative"},
		{device(func(d *DeviceConfig) { d.MaxSGE = 1 }), ""},
		{device(func(d *DeviceConfig) { d.MaxSGE = -1 }), "MaxSGE -1: must not be negative"},
		{device(func(d *DeviceConfig) { d.MaxInline = 1 }), ""},
		{device(func(d *DeviceConfig) { d.MaxInline = -1 }), "MaxInline -1: must not be negative"},
		{device(func(d *DeviceConfig) { d.MaxRDAtomic = 1 }), ""},
		{device(func(d *DeviceConfig) { d.MaxRDAtomic = 255 }), ""},
		{device(func(d *DeviceConfig) { d.MaxRDAtomic = -1 }), "MaxRDAtomic -1: must not be negative"},
		{device(func(d *DeviceConfig) { d.MaxRDAtomic = 256 }), "MaxRDAtomic 256: must be 255 at most"},
	} {
		want := "<nil>"
		if c.says != "" {
			want = (&verbs.OpError{Op: "new soft fabric", Detail: c.says, Err: verbs.ErrInvalid}).Error()
		}
		f, err := New(c.cfg)
		if fmt.Sprint(err) != want || c.says != "" && !errors.Is(err, verbs.ErrInvalid) {
			t.Errorf("%+v: %v, want %s", c.cfg, err, want)
		}
		if err != nil {
			continue
		}
		if err := f.Close(); err != nil {
			t.Error(err)
		}
	}
}

// small is a NIC with limits below the contract's defaults, and each different.
var small = DeviceConfig{MaxQPWR: 8, MaxCQE: 100, MaxSGE: 2, MaxInline: 5, MaxMsgSize: 4096, MaxRDAtomic: 3}

func fewReads(c *connection) { c.MaxRDAtomic, c.MaxDestRDAtomic = 3, 3 }

// refused demands an error with a sentinel and a detail.
func refused(t *testing.T, what string, err, want error, says string) {
	t.Helper()
	var op *verbs.OpError
	if !errors.Is(err, want) || !errors.As(err, &op) || !strings.Contains(op.Detail, says) {
		t.Errorf("%s: %v; want %v that says %q", what, err, want, says)
	}
}

// What a configuration leaves out has the documented default, and a NIC says what it was given.
func TestLimitsOfANIC(t *testing.T) {
	for _, c := range []struct {
		given DeviceConfig
		want  verbs.DeviceAttr
		msg   uint32
	}{
		{DeviceConfig{}, verbs.DeviceAttr{MaxQPWR: 16384, MaxCQE: 1 << 20, MaxSGE: 32, MaxInline: 256,
			MaxRDAtomic: 16}, 1 << 31},
		{small, verbs.DeviceAttr{MaxQPWR: 8, MaxCQE: 100, MaxSGE: 2, MaxInline: 5, MaxRDAtomic: 3}, 4096},
	} {
		f := newFabric(t, Config{Devices: 2, Device: c.given})
		attr, err := f.Device(1).Query()
		must(t, err)
		want := c.want
		want.Firmware, want.Ports, want.NodeGUID, want.Software = "soft", 1, guid(f.identity, 1), true
		want.MaxQP, want.MaxCQ, want.MaxPD = 1<<18, 1<<16, 1<<16
		want.MaxMR, want.MaxMRSize = 1<<18-1, 1<<47
		if attr != want {
			t.Errorf("got %+v\nwant %+v", attr, want)
		}
		port, err := f.Device(1).QueryPort(1)
		must(t, err)
		if port.MaxMsgSize != c.msg || port.GIDTableLen != 2 {
			t.Errorf("port: %+v", port)
		}
	}
}

// An object may have all that the NIC allows, no more, and nothing negative. What is left out is
// lowered to the NIC's limits.
func TestObjectsBeyondTheLimitsOfANIC(t *testing.T) {
	f := newFabric(t, Config{Devices: 1, Device: small})
	e := newEnd(t, f.Device(0), endConfig{})
	if got, want := e.qp.Cap(), (verbs.QPCap{MaxSendWR: 8, MaxRecvWR: 8, MaxSendSGE: 2, MaxRecvSGE: 2,
		MaxInline: 5}); got != want {
		t.Errorf("default capacity %+v, want %+v", got, want)
	}
	if e.cq.Depth() != 100 {
		t.Errorf("default depth %d", e.cq.Depth())
	}
	for _, c := range []struct {
		cap  verbs.QPCap
		says string
	}{
		{verbs.QPCap{MaxSendWR: 8, MaxRecvWR: 8, MaxSendSGE: 2, MaxRecvSGE: 2, MaxInline: 5}, ""},
		{verbs.QPCap{MaxSendWR: 1, MaxRecvWR: 1, MaxSendSGE: 1, MaxRecvSGE: 1, MaxInline: 1}, ""},
		{verbs.QPCap{MaxSendWR: 9}, "queues of 9 and 8 work requests, the NIC allows 8"},
		{verbs.QPCap{MaxRecvWR: 9}, "queues of 8 and 9"},
		{verbs.QPCap{MaxSendWR: -1}, "queues of -1"},
		{verbs.QPCap{MaxRecvWR: -1}, "and -1 work requests"},
		{verbs.QPCap{MaxSendSGE: 3}, "3 and 2 scatter-gather elements, the NIC allows 2"},
		{verbs.QPCap{MaxRecvSGE: 3}, "2 and 3 scatter-gather"},
		{verbs.QPCap{MaxSendSGE: -1}, "-1 and 2"},
		{verbs.QPCap{MaxRecvSGE: -1}, "2 and -1"},
		{verbs.QPCap{MaxInline: 6}, "inline sends of 6 bytes, the NIC allows 5"},
		{verbs.QPCap{MaxInline: -1}, "inline sends of -1"},
	} {
		qp, err := e.pd.CreateQP(verbs.QPConfig{SendCQ: e.cq, RecvCQ: e.rcq, Cap: c.cap})
		if c.says != "" {
			refused(t, "queue pair", err, verbs.ErrInvalid, c.says)
			continue
		}
		must(t, err)
		if qp.Cap() != c.cap {
			t.Errorf("capacity %+v, want %+v", qp.Cap(), c.cap)
		}
		must(t, qp.Close())
	}
	for depth, says := range map[int]string{100: "", 1: "", 101: "depth 101, the NIC allows 1 to 100",
		-1: "depth -1"} {
		cq, err := e.dev.CreateCQ(verbs.CQConfig{Depth: depth})
		if says != "" {
			refused(t, "completion queue", err, verbs.ErrInvalid, says)
			continue
		}
		must(t, err)
		if cq.Depth() != depth {
			t.Errorf("depth %d, want %d", cq.Depth(), depth)
		}
		must(t, cq.Close())
	}
}

// A queue of a queue pair holds what it was made for, and not one more.
func TestQueuesHoldWhatTheyWereMadeFor(t *testing.T) {
	_, a, b := pair(t, Config{Stepped: true, Device: small}, endConfig{}, fewReads)
	for range small.MaxQPWR {
		a.post(a.write(b, 1, 0, 1))
		a.recv(verbs.RecvWR{})
	}
	_, err := a.qp.PostSend([]verbs.SendWR{a.write(b, 1, 0, 1)})
	refused(t, "send", err, verbs.ErrQueueFull, "the queue holds 8")
	_, err = a.qp.PostRecv([]verbs.RecvWR{{}})
	refused(t, "receive", err, verbs.ErrQueueFull, "the queue holds 8")
}

// What a driver finds wrong with a request is refused when it is posted, the requests before it
// are accepted.
func TestRequestsThatADriverRefuses(t *testing.T) {
	_, a, b := pair(t, Config{Stepped: true, Device: small}, endConfig{}, fewReads)
	good := a.write(b, 1, 0, 1)
	for _, c := range []struct {
		name string
		edit func(*verbs.SendWR)
		says string // "" where it is accepted
	}{
		{"a list as long as the queue takes", func(wr *verbs.SendWR) {
			wr.SGL = append(a.sge(0, 1), a.sge(1, 1)...)
		}, ""},
		{"a longer list", func(wr *verbs.SendWR) {
			wr.SGL = append(a.sge(0, 1), append(a.sge(1, 1), a.sge(2, 1)...)...)
		}, "3 scatter-gather elements, the queue takes 2"},
		{"opcode", func(wr *verbs.SendWR) { wr.Opcode = 99 }, "99"},
		{"flags", func(wr *verbs.SendWR) { wr.Flags |= 1 << 8 }, "flags"},
		{"as much inline as the queue takes", func(wr *verbs.SendWR) {
			wr.Flags, wr.SGL, wr.Inline = wr.Flags|verbs.SendInline, nil, make([]byte, 5)
		}, ""},
		{"more inline", func(wr *verbs.SendWR) {
			wr.Flags, wr.SGL, wr.Inline = wr.Flags|verbs.SendInline, nil, make([]byte, 6)
		}, "6 bytes inline, the queue takes 5"},
		{"inline and a list", func(wr *verbs.SendWR) {
			wr.Flags, wr.Inline = wr.Flags|verbs.SendInline, make([]byte, 1)
		}, "no scatter-gather list"},
		{"inline read", func(wr *verbs.SendWR) {
			wr.Opcode, wr.Flags, wr.SGL = verbs.OpRDMARead, wr.Flags|verbs.SendInline, nil
		}, "inline"},
		{"inline atomic", func(wr *verbs.SendWR) {
			wr.Opcode, wr.Flags, wr.SGL = verbs.OpAtomicFetchAdd, wr.Flags|verbs.SendInline, nil
		}, "inline"},
	} {
		bad := good
		c.edit(&bad)
		n, err := a.qp.PostSend([]verbs.SendWR{good, bad})
		if c.says == "" {
			if n != 2 || err != nil {
				t.Errorf("%s: accepted %d, %v", c.name, n, err)
			}
		} else {
			refused(t, c.name, err, verbs.ErrInvalid, c.says)
			if n != 1 {
				t.Errorf("%s: accepted %d, want the good one", c.name, n)
			}
		}
		a.qp.f.Run(100)
		await(t, a.cq, n)
	}
	n, err := a.qp.PostRecv([]verbs.RecvWR{{SGL: append(a.sge(0, 1), a.sge(1, 1)...)},
		{SGL: append(a.sge(0, 1), append(a.sge(1, 1), a.sge(2, 1)...)...)}})
	refused(t, "receive", err, verbs.ErrInvalid, "3 scatter-gather elements, the queue takes 2")
	if n != 1 {
		t.Errorf("accepted %d receives, want the good one", n)
	}
}

// Modify takes the largest value of each attribute and refuses the next one, with no effect.
func TestAttributesOutOfRange(t *testing.T) {
	f := newFabric(t, Config{Devices: 2, Device: small})
	e := newEnd(t, f.Device(0), endConfig{})
	good := verbs.QPAttr{State: verbs.StateInit, Port: 1, Access: verbs.AccessAll,
		PathMTU: verbs.MTU4096, DestQPNum: 1<<24 - 1, RQPSN: 1<<24 - 1, SQPSN: 1<<24 - 1,
		MaxRDAtomic: 3, MaxDestRDAtomic: 3, MinRNRTimer: 31, Timeout: 31, RetryCount: 7, RNRRetry: 7,
		AH: verbs.AH{DGID: f.Device(1).gids[1], SGIDIndex: 1, Port: 1, Global: true}}
	steps := []struct {
		state verbs.QPState
		mask  verbs.QPAttrMask
		bad   map[string]func(*verbs.QPAttr)
	}{
		{verbs.StateInit, verbs.QPAttrPKeyIndex | verbs.QPAttrPort | verbs.QPAttrAccess,
			map[string]func(*verbs.QPAttr){
				"port 0":                func(a *verbs.QPAttr) { a.Port = 0 },
				"port 2":                func(a *verbs.QPAttr) { a.Port = 2 },
				"partition key index 1": func(a *verbs.QPAttr) { a.PKeyIndex = 1 },
				"access":                func(a *verbs.QPAttr) { a.Access = 1 << 30 },
			}},
		{verbs.StateRTR, verbs.QPAttrAV | verbs.QPAttrPathMTU | verbs.QPAttrDestQPNum | verbs.QPAttrRQPSN |
			verbs.QPAttrMaxDestRDAtomic | verbs.QPAttrMinRNRTimer,
			map[string]func(*verbs.QPAttr){
				"path MTU code 0":               func(a *verbs.QPAttr) { a.PathMTU = 0 },
				"path MTU code 6":               func(a *verbs.QPAttr) { a.PathMTU = 6 },
				"destination queue pair":        func(a *verbs.QPAttr) { a.DestQPNum = 1 << 24 },
				"receive PSN":                   func(a *verbs.QPAttr) { a.RQPSN = 1 << 24 },
				"4 reads of the peer":           func(a *verbs.QPAttr) { a.MaxDestRDAtomic = 4 },
				"RNR timer code 32":             func(a *verbs.QPAttr) { a.MinRNRTimer = 32 },
				"not global":                    func(a *verbs.QPAttr) { a.AH.Global = false },
				"port 2 in the address handle":  func(a *verbs.QPAttr) { a.AH.Port = 2 },
				"source GID index 2, the table": func(a *verbs.QPAttr) { a.AH.SGIDIndex = 2 },
				"no destination GID":            func(a *verbs.QPAttr) { a.AH.DGID = verbs.GID{} },
			}},
		{verbs.StateRTS, verbs.QPAttrTimeout | verbs.QPAttrRetryCount | verbs.QPAttrRNRRetry |
			verbs.QPAttrSQPSN | verbs.QPAttrMaxRDAtomic,
			map[string]func(*verbs.QPAttr){
				"timeout code 32":     func(a *verbs.QPAttr) { a.Timeout = 32 },
				"8 retries":           func(a *verbs.QPAttr) { a.RetryCount = 8 },
				"8 RNR retries":       func(a *verbs.QPAttr) { a.RNRRetry = 8 },
				"send PSN":            func(a *verbs.QPAttr) { a.SQPSN = 1 << 24 },
				"4 reads outstanding": func(a *verbs.QPAttr) { a.MaxRDAtomic = 4 },
			}},
	}
	for _, step := range steps {
		good.State = step.state
		for says, edit := range step.bad {
			bad := good
			edit(&bad)
			before := e.qp.State()
			refused(t, says, e.qp.Modify(&bad, step.mask|verbs.QPAttrState), verbs.ErrInvalid, says)
			if e.qp.State() != before {
				t.Fatalf("%s: the queue pair is in %v", says, e.qp.State())
			}
		}
		must(t, e.qp.Modify(&good, step.mask|verbs.QPAttrState))
	}
	got, err := e.qp.Query()
	must(t, err)
	good.CurState = verbs.StateRTS
	if got != good {
		t.Errorf("got  %+v\nwant %+v", got, good)
	}
}

// A call on what is closed, or of a fabric that is, says so.
func TestCallsAfterClosing(t *testing.T) {
	f, err := New(Config{Devices: 2})
	must(t, err)
	d := f.Device(0)
	e := newEnd(t, d, endConfig{})
	if _, err := e.pd.RegisterMR(nil, verbs.AccessAll); !errors.Is(err, verbs.ErrInvalid) {
		t.Errorf("no memory: %v", err)
	}
	list, err := f.Devices()
	must(t, err)
	if len(list) != 2 || list[1] != verbs.Device(f.Device(1)) || f.Name() != "soft" {
		t.Errorf("%s has %v", f.Name(), list)
	}
	refused(t, "arming without a channel", e.cq.Arm(false), verbs.ErrInvalid, "without a completion channel")
	e.close()
	refused(t, "arming a closed queue", e.cq.Arm(false), verbs.ErrClosed, "")
	_, err = e.cq.Poll(make([]verbs.WC, 1))
	refused(t, "polling a closed queue", err, verbs.ErrClosed, "")
	_, err = e.qp.Query()
	refused(t, "querying a closed queue pair", err, verbs.ErrClosed, "")
	must(t, f.Close())
	for what, call := range map[string]func() error{
		"close":        f.Close,
		"devices":      func() error { _, err := f.Devices(); return err },
		"query":        func() error { _, err := d.Query(); return err },
		"query port":   func() error { _, err := d.QueryPort(1); return err },
		"query gid":    func() error { _, err := d.QueryGID(1, 0); return err },
		"domain":       func() error { _, err := d.AllocPD(); return err },
		"cq":           func() error { _, err := d.CreateCQ(verbs.CQConfig{}); return err },
		"memory":       func() error { _, err := e.pd.RegisterMR(e.buf, 0); return err },
		"queue pair":   func() error { _, err := e.pd.CreateQP(verbs.QPConfig{}); return err },
		"modify":       func() error { return e.qp.Modify(&verbs.QPAttr{}, 0) },
		"send":         func() error { _, err := e.qp.PostSend(make([]verbs.SendWR, 1)); return err },
		"receive":      func() error { _, err := e.qp.PostRecv(make([]verbs.RecvWR, 1)); return err },
		"close twice":  e.qp.Close,
		"close mr":     e.mr.Close,
		"close domain": e.pd.Close,
		"close cq":     e.cq.Close,
	} {
		if err := call(); !errors.Is(err, verbs.ErrClosed) {
			t.Errorf("%s: %v", what, err)
		}
	}
}

// GIDs exist on port 1 at two indexes.
func TestGIDTable(t *testing.T) {
	f := newFabric(t, Config{Devices: 2})
	seen := map[verbs.GID]bool{}
	for _, d := range f.devices {
		for i := range 2 {
			e, err := d.QueryGID(1, i)
			must(t, err)
			if e.Index != i || e.Type != verbs.GIDTypeRoCEv2 || e.GID.IsZero() || seen[e.GID] {
				t.Errorf("%s entry %d: %+v", d.Name(), i, e)
			}
			seen[e.GID] = true
		}
		for _, at := range [][2]int{{0, 0}, {2, 0}, {1, -1}, {1, 2}} {
			_, err := d.QueryGID(at[0], at[1])
			refused(t, "gid", err, verbs.ErrInvalid, "there are port 1 and indexes below 2")
		}
		for _, port := range []int{0, 2} {
			_, err := d.QueryPort(port)
			refused(t, "port", err, verbs.ErrInvalid, "there is only port 1")
		}
	}
}

// Numbers of queue pairs are given in a cycle, over those that are in use.
func TestQPNumbersGoRound(t *testing.T) {
	f := newFabric(t, Config{Devices: 1})
	e := newEnd(t, f.Device(0), endConfig{}) // has number 17
	e.dev.qps.Next = nic.MaxQPNum
	var got []uint32
	for range 2 {
		first := e.qp
		e.newQP(verbs.QPCap{})
		got = append(got, e.qp.Num())
		must(t, e.qp.Close())
		e.qp = first
	}
	if got[0] != nic.MaxQPNum || got[1] != nic.FirstQPNum+1 {
		t.Errorf("numbers %v, want %d and, 17 being in use, 18", got, nic.MaxQPNum)
	}
}

// A NIC whose numbers are all in use makes no queue pair, until one is closed.
func TestQPNumbersRunOut(t *testing.T) {
	f := newFabric(t, Config{Devices: 1})
	e := newEnd(t, f.Device(0), endConfig{})
	e.dev.qps.Last = e.qp.Num() + 1
	cfg := verbs.QPConfig{SendCQ: e.cq, RecvCQ: e.cq}
	second, err := e.pd.CreateQP(cfg)
	must(t, err)
	_, err = e.pd.CreateQP(cfg)
	refused(t, "a third queue pair for two numbers", err, verbs.ErrNoMemory, "no queue pair number is free")
	must(t, second.Close())
	again, err := e.pd.CreateQP(cfg)
	must(t, err)
	if again.Num() != second.Num() {
		t.Errorf("number %d, and only %d is free", again.Num(), second.Num())
	}
	must(t, again.Close())
}

// A message so long that its time overflows takes an hour.
func TestWireTime(t *testing.T) {
	for _, c := range []struct {
		bytes, bandwidth uint64
		want             time.Duration
	}{
		{1000, 0, 0}, {0, 1, 0}, {1000, 1000, time.Second}, {1, 3, 333333333},
		{1 << 31, 1, 1 << 31 * time.Second}, {1 << 40, 1, time.Hour},
	} {
		if got := time.Duration(wireTime(c.bytes, c.bandwidth)); got != c.want {
			t.Errorf("%d bytes at %d a second: %v, want %v", c.bytes, c.bandwidth, got, c.want)
		}
	}
}
