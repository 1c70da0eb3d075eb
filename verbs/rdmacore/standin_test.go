//go:build linux && (amd64 || arm64)

package rdmacore_test

import (
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"reflect"
	"sync"
	"testing"

	"github.com/ebitengine/purego"

	"ibverbx/verbs"
	"ibverbx/verbs/rdmacore"
)

// The tests of this package but for TestConformance run over a stand-in for libibverbs,
// testdata/standin, which is compiled against the system's header. They share it, so none of them
// runs in parallel.

func TestMain(m *testing.M) {
	code := m.Run()
	if built.dir != "" {
		_ = os.RemoveAll(built.dir)
	}
	os.Exit(code)
}

// standinConfig configures [openStandin].
type standinConfig struct {
	Old     bool // as old as rdma-core 27, without the optional functions
	Devices int  // 0 means 2
}

// standin is the loaded library and its controls; control.c, record.c and bench.c in
// testdata/standin say what they do.
type standin struct {
	path string

	reset        func()
	complaints   func() int32
	complaint    func() string
	live         func(kind string) int32
	failCall     func(call string, errno, times, index int32)
	status       func(status, vendorErr uint32, sends int32)
	setAny       func(what string, device, port, value int32)
	setGID       func(device, port, index int32, gid *byte, typ int32)
	lastCQ       func(device int32) uint32
	askCQ        func(what string, device int32, handle uint32) int32
	onQP         func(what string, device int32, qp uint32) int32
	completeRecv func(device int32, qp, bytes, imm uint32, withImm, solicited int32) int32
	raise        func(device, typ int32, number uint32) int32
	postPoll     func(device int32, qp uint32, addr uint64, lkey uint32, batch int32, rounds int) int
	keepsFrame   func(cross uintptr) int32
	seenCount    func() int32
	getSeen      func(i int32, out *seenWR, size uint32) int32
	getModified  func(out *modified, size uint32) int32
	getMR        func(out *registered)
}

// seenWR is a work request as C saw it: struct seen.
type seenWR struct {
	ID, RemoteAddr, CompareAdd, Swap                           uint64
	QPNum, IsRecv, Opcode, Flags, Imm, RKey, NumSGE, InlineLen uint32
	SGE                                                        [30]verbs.SGE
	Inlined                                                    [1024]byte
}

// modified is what ibv_modify_qp saw: struct modified.
type modified struct {
	Mask, State, CurState, PathMTU, RQPSN, SQPSN, DestQPNum, Access     uint32
	PKeyIndex, Port, Timeout, RetryCount, RNRRetry                      uint32
	MaxRDAtomic, MaxDestRDAtomic, MinRNRTimer                           uint32
	FlowLabel, SGIDIndex, HopLimit, TrafficClass, DLID, SL, SrcPathBits uint32
	StaticRate, IsGlobal, AHPort                                        uint32
	DGID                                                                verbs.GID
}

// registered is what ibv_reg_mr or ibv_reg_dmabuf_mr saw.
type registered struct{ Addr, Length, Offset, IOVA, FD, Access uint64 }

// built holds the libraries that this process has built, by whether they are old.
var built struct {
	sync.Mutex
	dir string
	lib [2]*standin
}

// openStandin builds and loads the stand-in, once a process, and makes it as new. When the test
// ends it must have no live object, and nothing to complain of.
func openStandin(t testing.TB, cfg standinConfig) *standin {
	t.Helper()
	built.Lock()
	defer built.Unlock()
	which := 0
	if cfg.Old {
		which = 1
	}
	if built.lib[which] == nil {
		built.lib[which] = loadStandin(t, buildStandin(t, cfg.Old))
	}
	s := built.lib[which]
	s.reset()
	if cfg.Devices != 0 {
		s.set("devices", cfg.Devices)
	}
	t.Cleanup(func() {
		if n := s.complaints(); n != 0 {
			t.Errorf("libibverbs was misused %d times; first: %s", n, s.complaint())
		}
		if n := s.live("all"); n != 0 {
			t.Errorf("%d objects of libibverbs are alive", n)
		}
	})
	return s
}

func buildStandin(t testing.TB, old bool) (path string) {
	t.Helper()
	cc := rdmacore.HeaderCompiler(t)
	if built.dir == "" {
		dir, err := os.MkdirTemp("", "standin")
		if err != nil {
			t.Fatal(err)
		}
		built.dir = dir
	}
	path = filepath.Join(built.dir, fmt.Sprintf("libstandin-%v.so", old))
	args := []string{"-std=gnu11", "-Wall", "-Wextra", "-Werror", "-O2", "-shared", "-fPIC", "-pthread",
		"-Wl,-Bsymbolic", "-o", path}
	if old {
		args = append(args, "-DOLD")
	}
	files, err := filepath.Glob(filepath.Join("testdata", "standin", "*.c"))
	ok(t, err)
	if out, err := exec.Command(cc, append(args, files...)...).CombinedOutput(); err != nil {
		t.Fatalf("%s: %v\n%s", cc, err, out)
	}
	return path
}

func loadStandin(t testing.TB, path string) *standin {
	t.Helper()
	lib, err := purego.Dlopen(path, purego.RTLD_NOW|purego.RTLD_LOCAL)
	if err != nil {
		t.Fatal(err)
	}
	s := &standin{path: path}
	for name, fn := range map[string]any{
		"reset": &s.reset, "complaints": &s.complaints, "complaint": &s.complaint, "live": &s.live,
		"fail": &s.failCall, "status": &s.status,
		"set": &s.setAny, "set_gid": &s.setGID, "last_cq": &s.lastCQ, "cq": &s.askCQ, "qp": &s.onQP,
		"complete_recv": &s.completeRecv,
		"raise":         &s.raise, "post_poll": &s.postPoll, "seen": &s.seenCount, "get_seen": &s.getSeen,
		"last_modify": &s.getModified,
		"last_mr":     &s.getMR,
		"keeps_frame": &s.keepsFrame,
	} {
		purego.RegisterLibFunc(fn, lib, "standin_"+name)
	}
	return s
}

// fail makes a call fail the next time.
func (s *standin) fail(call string, errno error) { s.failTimes(call, errno, 1) }

func (s *standin) failTimes(call string, errno error, times int) {
	s.failCall(call, int32(reflect.ValueOf(errno).Uint()), int32(times), 0)
}

// set sets something of the whole, setPort of a port.
func (s *standin) set(what string, value int) { s.setAny(what, 0, 1, int32(value)) }

func (s *standin) setPort(device, port int32, what string, value int) {
	s.setAny(what, device, port, int32(value))
}

func (s *standin) cqVector(device int32, handle uint32) int32 {
	return s.askCQ("vector", device, handle)
}
func (s *standin) unacked(device int32, handle uint32) int32 {
	return s.askCQ("unacked", device, handle)
}

// hold keeps the sends of a queue pair in its queue; letting go executes them.
func (s *standin) hold(device int32, qp uint32, on int) {
	s.onQP(map[int]string{0: "release", 1: "hold"}[on], device, qp)
}

func (s *standin) killQP(device int32, qp uint32) { s.onQP("kill", device, qp) }

// crossings is how often a queue pair was posted to.
func (s *standin) crossings(device int32, qp uint32, recv int) int {
	return int(s.onQP([]string{"sends", "recvs"}[recv], device, qp))
}

// seen is what was posted since the recording began.
func (s *standin) seen(t testing.TB) []seenWR {
	t.Helper()
	all := make([]seenWR, s.seenCount())
	for i := range all {
		if s.getSeen(int32(i), &all[i], uint32(reflect.TypeFor[seenWR]().Size())) == 0 {
			t.Fatal("seenWR is not struct seen")
		}
	}
	return all
}

func (s *standin) modified(t testing.TB) (m modified) {
	t.Helper()
	if s.getModified(&m, uint32(reflect.TypeFor[modified]().Size())) == 0 {
		t.Fatal("modified is not struct modified")
	}
	return m
}

func (s *standin) registered() (r registered) {
	s.getMR(&r)
	return r
}

// open opens the provider on it. The test's end closes it unless it is closed by then.
func (s *standin) open(t testing.TB, filter string) *rdmacore.Provider {
	t.Helper()
	p, err := rdmacore.Open(rdmacore.Config{Library: s.path, Devices: filter})
	if err != nil {
		t.Fatal(err)
	}
	closeLater(t, p)
	return p
}

// device opens the provider and takes its first device.
func (s *standin) device(t testing.TB) verbs.Device {
	t.Helper()
	return devices(t, s.open(t, ""))[0]
}

func devices(t testing.TB, p *rdmacore.Provider) []verbs.Device {
	t.Helper()
	list, err := p.Devices()
	ok(t, err)
	return list
}

func ok(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

func is(t testing.TB, err error, targets ...error) {
	t.Helper()
	for _, target := range targets {
		if !errors.Is(err, target) {
			t.Errorf("error is %v, want one that is: %v", err, target)
		}
	}
}

// closeLater closes c when the test ends, unless it is closed by then.
func closeLater(t testing.TB, c io.Closer) {
	t.Cleanup(func() {
		if err := c.Close(); err != nil && !errors.Is(err, verbs.ErrClosed) {
			t.Error(err)
		}
	})
}

// rig is a queue pair with everything that it needs, on the first device.
type rig struct {
	*standin
	t   testing.TB
	dev verbs.Device
	pd  verbs.PD
	buf []byte
	mr  verbs.MR
	cq  verbs.CQ // of sends
	rcq verbs.CQ // of receives
	qp  verbs.QP
}

type rigConfig struct {
	depth     int
	cap       verbs.QPCap
	channel   *verbs.CompChannel
	signalAll bool
	state     verbs.QPState // 0 means RTS
}

// newRig makes a queue pair and takes it to a state.
func newRig(t testing.TB, s *standin, cfg rigConfig) *rig {
	t.Helper()
	return rigOn(t, s, s.device(t), cfg)
}

func rigOn(t testing.TB, s *standin, d verbs.Device, cfg rigConfig) *rig {
	t.Helper()
	r := &rig{standin: s, t: t, dev: d, buf: make([]byte, 4096)}
	var err error
	r.pd, err = d.AllocPD()
	ok(t, err)
	closeLater(t, r.pd)
	r.mr, err = r.pd.RegisterMR(r.buf, verbs.AccessAll)
	ok(t, err)
	closeLater(t, r.mr)
	r.cq, err = d.CreateCQ(verbs.CQConfig{Depth: cfg.depth, Channel: cfg.channel})
	ok(t, err)
	closeLater(t, r.cq)
	r.rcq, err = d.CreateCQ(verbs.CQConfig{Depth: cfg.depth, Channel: cfg.channel})
	ok(t, err)
	closeLater(t, r.rcq)
	r.qp, err = r.pd.CreateQP(verbs.QPConfig{SendCQ: r.cq, RecvCQ: r.rcq, Cap: cfg.cap,
		SignalAll: cfg.signalAll})
	ok(t, err)
	closeLater(t, r.qp)
	if cfg.state == 0 {
		cfg.state = verbs.StateRTS
	}
	raise(t, r.qp, cfg.state)
	return r
}

// path is a full set of attributes.
func path() verbs.QPAttr {
	return verbs.QPAttr{
		PathMTU: verbs.MTU1024, DestQPNum: 99, RQPSN: 1, SQPSN: 2, Access: verbs.AccessAll, MaxRDAtomic: 4,
		MaxDestRDAtomic: 4,
		MinRNRTimer:     12, Port: 1, Timeout: 14, RetryCount: 7, RNRRetry: 7,
		AH: verbs.AH{DGID: verbs.GID{15: 1}, SGIDIndex: 3, Port: 1, Global: true},
	}
}

// steps are the changes of state on the way up, with the attributes that each demands.
var steps = []struct {
	state verbs.QPState
	mask  verbs.QPAttrMask
}{
	{verbs.StateInit, verbs.QPAttrState | verbs.QPAttrPKeyIndex | verbs.QPAttrPort | verbs.QPAttrAccess},
	{verbs.StateRTR, verbs.QPAttrState | verbs.QPAttrAV | verbs.QPAttrPathMTU | verbs.QPAttrDestQPNum |
		verbs.QPAttrRQPSN |
		verbs.QPAttrMaxDestRDAtomic | verbs.QPAttrMinRNRTimer},
	{verbs.StateRTS, verbs.QPAttrState | verbs.QPAttrTimeout | verbs.QPAttrRetryCount | verbs.QPAttrRNRRetry |
		verbs.QPAttrSQPSN |
		verbs.QPAttrMaxRDAtomic},
}

// raise takes a queue pair from RESET up to a state.
func raise(t testing.TB, qp verbs.QP, to verbs.QPState) {
	t.Helper()
	attr := path()
	for _, step := range steps {
		attr.State = step.state
		ok(t, qp.Modify(&attr, step.mask))
		if step.state == to {
			return
		}
	}
}

func (r *rig) setState(s verbs.QPState) {
	r.t.Helper()
	ok(r.t, r.qp.Modify(&verbs.QPAttr{State: s}, verbs.QPAttrState))
}

// send is a signaled send of n bytes.
func (r *rig) send(id uint64, n uint32) verbs.SendWR {
	return verbs.SendWR{ID: id, Opcode: verbs.OpSend, Flags: verbs.SendSignaled, SGL: r.sge(0, n)}
}

// sge names n bytes of the rig's memory.
func (r *rig) sge(at uint64, n uint32) []verbs.SGE {
	return []verbs.SGE{{Addr: r.mr.Addr() + at, Length: n, LKey: r.mr.LKey()}}
}

func (r *rig) post(wrs ...verbs.SendWR) {
	r.t.Helper()
	if n, err := r.qp.PostSend(wrs); n != len(wrs) || err != nil {
		r.t.Fatalf("posted %d of %d sends: %v", n, len(wrs), err)
	}
}

func (r *rig) recv(wrs ...verbs.RecvWR) {
	r.t.Helper()
	if n, err := r.qp.PostRecv(wrs); n != len(wrs) || err != nil {
		r.t.Fatalf("posted %d of %d receives: %v", n, len(wrs), err)
	}
}

// poll takes what is in a queue, which must be n completions.
func (r *rig) poll(cq verbs.CQ, n int) []verbs.WC {
	r.t.Helper()
	wcs := make([]verbs.WC, n+1)
	got, err := cq.Poll(wcs)
	if err != nil || got != n {
		r.t.Fatalf("polled %d completions, want %d: %+v %v", got, n, wcs[:got], err)
	}
	return wcs[:n]
}
