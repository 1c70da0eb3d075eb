//go:build linux

package shm

import (
	"bufio"
	"bytes"
	"encoding/binary"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"io"
	"math/rand/v2"
	"os"
	"os/exec"
	"slices"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"ibverbx/verbs"
	"ibverbx/verbs/verbstest"
)

// peerEnv says what the peer of a test does. A test binary that finds it set is that peer.
const peerEnv = "IBVERBX_SHM_PEER"

// half is one of two processes: a queue pair, and memory whose lower half the peer writes and whose
// upper half it reads.
type half struct {
	dev     *Device // nil if the NIC is another provider's
	gid     verbs.GID
	pd      verbs.PD
	mr      verbs.MR
	channel *verbs.CompChannel
	cq      verbs.CQ
	qp      verbs.QP
	buf     []byte
	memory  verbs.Memory // that buf is; nil for other memory
}

// address is what the two processes tell each other.
type address struct {
	GID  verbs.GID
	QP   uint32
	Addr uint64
	RKey uint32
}

const halfBytes = 2 << 20

func newHalf(d verbs.Device) (*half, error) { return newHalfOf(d, 2*halfBytes) }

// newHalfOf makes a half with so much memory.
func newHalfOf(d verbs.Device, size int) (*half, error) {
	h := &half{buf: make([]byte, size), channel: verbs.NewCompChannel()}
	h.dev, _ = d.(*Device)
	entry, err := d.QueryGID(1, 0)
	if err != nil {
		return nil, err
	}
	h.gid = entry.GID
	if h.pd, err = d.AllocPD(); err != nil {
		return nil, err
	}
	if h.mr, err = h.pd.RegisterMR(h.buf, verbs.AccessAll); err != nil {
		return nil, err
	}
	if h.cq, err = d.CreateCQ(verbs.CQConfig{Depth: 4096, Channel: h.channel}); err != nil {
		return nil, err
	}
	h.qp, err = h.pd.CreateQP(verbs.QPConfig{SendCQ: h.cq, RecvCQ: h.cq,
		Cap: verbs.QPCap{MaxSendWR: 512, MaxRecvWR: 512}})
	return h, err
}

func (h *half) address() address {
	return address{h.gid, h.qp.Num(), h.mr.Addr(), h.mr.RKey()}
}

// connect takes the queue pair to RTS. A peer that is alive may take its time.
func (h *half) connect(to address) error {
	return verbstest.ToRTS(h.qp, verbs.QPAttr{Port: 1, PathMTU: verbs.MTU4096, DestQPNum: to.QP,
		Access: verbs.AccessAll, MaxRDAtomic: 4, MaxDestRDAtomic: 4, MinRNRTimer: 12, Timeout: 20,
		RetryCount: 7, RNRRetry: verbs.RNRRetryForever, AH: verbs.AH{DGID: to.GID, Global: true, Port: 1}})
}

func (h *half) close() error {
	list := []io.Closer{h.qp, h.cq, h.mr, h.pd}
	if h.memory != nil {
		list = []io.Closer{h.qp, h.cq, h.mr, h.memory, h.pd}
	}
	for _, x := range list {
		if err := x.Close(); err != nil {
			return err
		}
	}
	return nil
}

// request is one of the kinds of requests, by number, of n bytes.
func (h *half) request(i, n int, to address) verbs.SendWR {
	wr := verbs.SendWR{ID: uint64(i), Opcode: verbs.Opcode(i % 7), Flags: verbs.SendSignaled,
		RemoteAddr: to.Addr, RKey: to.RKey, CompareAdd: 1, Imm: uint32(i)}
	if wr.Opcode.IsAtomic() {
		n = 8
	}
	at := uint64(halfBytes)
	if wr.Opcode == verbs.OpRDMARead || wr.Opcode.IsAtomic() {
		wr.RemoteAddr += halfBytes
		at = 0
	}
	wr.SGL = []verbs.SGE{{Addr: h.mr.Addr() + at, Length: uint32(n), LKey: h.mr.LKey()}}
	return wr
}

// runPeer is the other process. Its task may name the directory in which to meet behind an @, and
// end in inArena, if its memory is to be an arena. It
// says its address, reads that of the test, and does its task until its standard input ends: "idle"
// never polls, "echo" sends back what it receives, "busy" sends all kinds of requests. "narrow" has
// no use for an address.
func runPeer(task string) {
	run := peer
	switch task {
	case "roce":
		run = rocePeer
	case "full":
		run = func(string) error { return errors.Join(fillDevShm(), peer("idle")) }
	}
	if err := run(task); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	os.Exit(0)
}

const inArena = " in an arena"

func peer(task string) error {
	task, dir, _ := strings.Cut(task, "@")
	task, arena := strings.CutSuffix(task, inArena)
	if task == "narrow" {
		return narrow()
	}
	cfg := Config{Dir: dir}
	if task == "nobody" {
		if err := syscall.Setuid(nobody); err != nil {
			return err
		}
		cfg.Allow = func(uid uint32) bool { return uid == 0 }
	}
	p, err := Open(cfg)
	if err != nil {
		return err
	}
	h, err := newHalfOf(p.Device(0), sizeOf(task))
	if err == nil && arena {
		err = h.useArena()
	}
	if err != nil {
		return err
	}
	verbstest.Fill(h.buf[halfBytes:], 77)
	if err := json.NewEncoder(os.Stdout).Encode(h.address()); err != nil {
		return err
	}
	in := bufio.NewReader(os.Stdin)
	var to address
	if err := json.NewDecoder(in).Decode(&to); err != nil {
		return err
	}
	if err := h.connect(to); err != nil {
		return err
	}
	if err := h.receive(256); err != nil {
		return err
	}
	over := make(chan struct{})
	go func() {
		_, _ = io.Copy(io.Discard, in)
		close(over)
	}()
	switch task {
	case "idle", "nobody":
	case "writer":
		err = h.writer(to)
	case "mirror", "sleeper":
		err = h.mirror(to, task == "sleeper")
	default:
		err = h.work(task, to, over)
	}
	if err != nil {
		return err
	}
	<-over
	return h.close()
}

// receive posts receives into the lower half.
func (h *half) receive(n int) error {
	for range n {
		if _, err := h.qp.PostRecv([]verbs.RecvWR{{ID: 1 << 32,
			SGL: []verbs.SGE{{Addr: h.mr.Addr(), Length: halfBytes, LKey: h.mr.LKey()}}}}); err != nil {
			return err
		}
	}
	return nil
}

// writer writes its upper half over the peer's memory until that is refused.
func (h *half) writer(to address) error {
	wr := []verbs.SendWR{{Opcode: verbs.OpRDMAWrite, Flags: verbs.SendSignaled, RemoteAddr: to.Addr,
		RKey: to.RKey, SGL: []verbs.SGE{{Addr: h.mr.Addr() + halfBytes, Length: halfBytes,
			LKey: h.mr.LKey()}}}}
	var wcs [1]verbs.WC
	for {
		if _, err := h.qp.PostSend(wr); err != nil {
			return err
		}
		n, err := 0, error(nil)
		for n == 0 && err == nil {
			n, err = h.cq.Poll(wcs[:])
		}
		if err != nil || wcs[0].Status == verbs.StatusRemAccessErr {
			return err
		}
		if wcs[0].Status != verbs.StatusSuccess {
			return fmt.Errorf("a write: %v", wcs[0])
		}
	}
}

// work polls until over: it keeps 64 requests of all kinds outstanding, or sends back what it
// receives.
func (h *half) work(task string, to address, over chan struct{}) error {
	busy := task == "busy"
	var wcs [64]verbs.WC
	outstanding := 0
	for i := 0; ; i++ {
		select {
		case <-over:
			return nil
		default:
		}
		for busy && outstanding < 64 {
			if _, err := h.qp.PostSend([]verbs.SendWR{h.request(i, 1+i*997%100000, to)}); err != nil {
				return err
			}
			outstanding++
			i++
		}
		n, err := h.cq.Poll(wcs[:])
		if err != nil {
			return err
		}
		for _, wc := range wcs[:n] {
			if wc.Status != verbs.StatusSuccess {
				return nil // the test has closed its end
			}
			if wc.ID < 1<<32 {
				outstanding--
				continue
			}
			if task == "echo" {
				wr := verbs.SendWR{ID: 1, Opcode: verbs.OpSend, SGL: []verbs.SGE{{Addr: h.mr.Addr(),
					Length: wc.ByteLen, LKey: h.mr.LKey()}}, Flags: verbs.SendSignaled}
				if _, err := h.qp.PostSend([]verbs.SendWR{wr}); err != nil {
					return err
				}
			}
			if err := h.receive(1); err != nil {
				return err
			}
		}
	}
}

// child is a peer that runs.
type child struct {
	cmd *exec.Cmd
	in  io.WriteCloser
	to  address
	err bytes.Buffer
}

// spawn starts a peer and connects with it.
func spawn(t *testing.T, task string, h *half) *child {
	t.Helper()
	return spawnIn(t, task, h, 0)
}

// spawnIn starts a peer in namespaces of its own.
func spawnIn(t *testing.T, task string, h *half, namespaces uintptr) *child {
	t.Helper()
	c := &child{cmd: exec.Command(os.Args[0])}
	c.cmd.SysProcAttr = &syscall.SysProcAttr{Cloneflags: namespaces}
	c.cmd.Env = append(os.Environ(), peerEnv+"="+task)
	c.cmd.Stderr = &c.err
	out, err := c.cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if c.in, err = c.cmd.StdinPipe(); err != nil {
		t.Fatal(err)
	}
	if err := c.cmd.Start(); err != nil {
		if namespaces != 0 {
			t.Skipf("no namespaces: %v", err)
		}
		t.Fatal(err)
	}
	if err := json.NewDecoder(out).Decode(&c.to); err != nil {
		t.Fatalf("the peer says nothing: %v\n%s", err, c.err.String())
	}
	if err := h.connect(c.to); err != nil {
		t.Fatal(err)
	}
	if err := json.NewEncoder(c.in).Encode(h.address()); err != nil {
		t.Fatal(err)
	}
	return c
}

// wait polls until n requests have ended, and returns their completions.
func (h *half) wait(t *testing.T, n int) []verbs.WC {
	t.Helper()
	wcs := make([]verbs.WC, n)
	deadline := time.Now().Add(30 * time.Second)
	for got := 0; got < n; {
		k, err := h.cq.Poll(wcs[got:])
		if err != nil {
			t.Fatal(err)
		}
		if got += k; k == 0 && time.Now().After(deadline) {
			t.Fatalf("%d of %d completions", got, n)
		}
	}
	return wcs
}

func (h *half) do(t *testing.T, wr verbs.SendWR) {
	t.Helper()
	if _, err := h.qp.PostSend([]verbs.SendWR{wr}); err != nil {
		t.Fatal(err)
	}
	if wc := h.wait(t, 1)[0]; wc.Status != verbs.StatusSuccess || wc.ID != wr.ID {
		t.Fatal(wc)
	}
}

// Two processes write, read and add, with a peer that polls and with one that does nothing.
func TestTwoProcesses(t *testing.T) {
	for _, task := range []string{"idle", "echo", "idle" + inArena, "echo" + inArena} {
		t.Run(task, func(t *testing.T) {
			h, err := newHalf(openNICs(t, Config{}).Device(0))
			if err != nil {
				t.Fatal(err)
			}
			defer h.close()
			if strings.HasSuffix(task, inArena) {
				h.withArena(t)
			}
			c := spawn(t, task, h)
			for i, n := range []int{1, 8, 32, 33, 4096, 65536, 65537, 1 << 20} {
				verbstest.Fill(h.buf[halfBytes:], byte(i))
				h.do(t, h.request(int(verbs.OpRDMAWrite), n, c.to))
				back := h.request(int(verbs.OpRDMARead), n, c.to)
				back.RemoteAddr = c.to.Addr
				clear(h.buf[:halfBytes])
				h.do(t, back)
				if !bytes.Equal(h.buf[:n], h.buf[halfBytes:][:n]) || h.buf[n] != 0 {
					t.Fatalf("%d bytes were not written and read back", n)
				}
			}
			add := h.request(int(verbs.OpAtomicFetchAdd), 8, c.to)
			before := make([]byte, 8)
			verbstest.Fill(before, 77)
			if h.do(t, add); !bytes.Equal(h.buf[:8], before) {
				t.Errorf("an atomic found %x, not %x", h.buf[:8], before)
			}
			if strings.HasPrefix(task, "echo") {
				if err := h.receive(1); err != nil {
					t.Fatal(err)
				}
				send := h.request(int(verbs.OpSend), 100000, c.to)
				if _, err := h.qp.PostSend([]verbs.SendWR{send}); err != nil {
					t.Fatal(err)
				}
				h.wait(t, 2)
				if !bytes.Equal(h.buf[:100000], h.buf[halfBytes:][:100000]) {
					t.Error("an echo differs")
				}
			}
			_ = c.in.Close()
			if err := c.cmd.Wait(); err != nil {
				t.Errorf("the peer: %v\n%s", err, c.err.String())
			}
			// It has closed its queue pair: this is no death.
			if s := h.qp.State(); s != verbs.StateRTS {
				t.Errorf("the peer has closed its queue pair, and this one is in %v", s)
			}
		})
	}
}

// Containers meet across namespaces of processes, IPC and file systems, and in a directory that
// they share across those of networks too.
func TestContainers(t *testing.T) {
	const container = syscall.CLONE_NEWPID | syscall.CLONE_NEWIPC | syscall.CLONE_NEWNS | syscall.CLONE_NEWUTS
	for name, c := range map[string]struct {
		dir        string
		namespaces uintptr
		alone      bool
	}{
		"one network":           {"", container, false},
		"two networks":          {"", container | syscall.CLONE_NEWNET, true},
		"two, and a directory":  {t.TempDir(), container | syscall.CLONE_NEWNET, false},
		"a directory, no other": {t.TempDir(), 0, false},
	} {
		t.Run(name, func(t *testing.T) {
			d := openNICs(t, Config{Dir: c.dir}).Device(0)
			h, err := newHalf(d)
			if err != nil {
				t.Fatal(err)
			}
			defer h.close()
			child := spawnIn(t, "idle@"+c.dir, h, c.namespaces)
			why := d.CheckPath(1, child.to.GID)
			if alone := errors.Is(why, verbs.ErrUnreachable); alone != c.alone {
				t.Errorf("the path to the peer: %v", why)
			}
			wr := h.request(int(verbs.OpRDMAWrite), 100000, child.to)
			if _, err := h.qp.PostSend([]verbs.SendWR{wr}); err != nil {
				t.Fatal(err)
			}
			wc := h.wait(t, 1)[0]
			if isCutOff(wc) != c.alone || !c.alone && wc.Status != verbs.StatusSuccess {
				t.Error(wc)
			}
			_ = child.in.Close()
			_ = child.cmd.Wait()
		})
	}
}

// nobody is a user other than root.
const nobody = 65534

// A process of another user is reached only if both ends allow it.
func TestOtherUser(t *testing.T) {
	if os.Getuid() != 0 {
		t.Skip("needs root, to become another user")
	}
	for _, allowed := range []bool{false, true} {
		d := openNICs(t, Config{Allow: func(uid uint32) bool { return allowed && uid == nobody }}).Device(0)
		h, err := newHalf(d)
		if err != nil {
			t.Fatal(err)
		}
		c := spawn(t, "nobody", h)
		why := "it belongs to user 65534"
		if allowed {
			why = ""
		}
		if err := d.CheckPath(1, c.to.GID); err != nil != (why != "") ||
			err != nil && !strings.Contains(err.Error(), why) {
			t.Errorf("allowed %t: the path to the peer: %v", allowed, err)
		}
		wr := h.request(int(verbs.OpRDMAWrite), 100000, c.to)
		if _, err := h.qp.PostSend([]verbs.SendWR{wr}); err != nil {
			t.Fatal(err)
		}
		if wc := h.wait(t, 1)[0]; isCutOff(wc) == allowed || allowed && wc.Status != verbs.StatusSuccess {
			t.Errorf("allowed %t: %v", allowed, wc)
		}
		_ = c.in.Close()
		_ = c.cmd.Wait()
		if err := h.close(); err != nil {
			t.Error(err)
		}
	}
}

// A NIC that nobody uses costs nothing: no timer runs, and peers know that it sleeps.
func TestIdle(t *testing.T) {
	h, err := newHalf(openNICs(t, Config{}).Device(0))
	if err != nil {
		t.Fatal(err)
	}
	defer h.close()
	c := spawn(t, "idle", h)
	h.do(t, h.request(int(verbs.OpRDMAWrite), 100, c.to))
	used := func() (sum time.Duration) {
		var r syscall.Rusage
		if err := syscall.Getrusage(syscall.RUSAGE_SELF, &r); err != nil {
			t.Fatal(err)
		}
		return time.Duration(r.Utime.Nano() + r.Stime.Nano())
	}
	p := &h.dev.poll
	for deadline := time.Now().Add(30 * time.Second); p.awake.Load(); time.Sleep(time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatal("the NIC stays awake")
		}
	}
	if word := p.load(); word&1 == 0 {
		t.Errorf("peers see %d: a NIC that is awake", word)
	}
	const pause = 300 * time.Millisecond
	before := used()
	time.Sleep(pause)
	if took := used() - before; took > pause/10 {
		t.Errorf("idle, the process uses %v of %v", took, pause)
	}
	_ = c.in.Close()
	_ = c.cmd.Wait()
}

// isCutOff reports whether a request has failed because the peer is not reached. If that was known
// before it was posted, the queue pair was in ERR already.
func isCutOff(wc verbs.WC) bool {
	return (wc.Status == verbs.StatusRetryExcErr || wc.Status == verbs.StatusWRFlushErr) &&
		wc.VendorErr == vendorDied
}

// CheckPath says why a NIC is not reached.
func TestPaths(t *testing.T) {
	p := openNICs(t, Config{Devices: 2})
	d := p.Device(0)
	other := newGID(placeOf("") + 1)
	for gid, want := range map[verbs.GID]string{
		p.Device(1).gid:     "",
		d.gid:               "",
		other:               "is on another host",
		{15: 1}:             "is no NIC of shared memory",
		newGID(placeOf("")): "the process that had this NIC is gone",
	} {
		switch err := d.CheckPath(1, gid); {
		case want == "" && err != nil:
			t.Errorf("%v: %v", gid, err)
		case want != "" && (!errors.Is(err, verbs.ErrUnreachable) || !strings.Contains(err.Error(), want)):
			t.Errorf("%v: %v, want %q", gid, err, want)
		}
	}
	h, err := newHalf(d)
	if err != nil {
		t.Fatal(err)
	}
	defer h.close()
	if err := h.connect(address{GID: other, QP: 17}); !errors.Is(err, verbs.ErrUnreachable) {
		t.Errorf("a queue pair goes to a NIC of another host: %v", err)
	}
}

var kills = flag.Int("kills", 20, "how many processes TestKilled kills")

// A process is killed at any moment, under traffic of all kinds in both directions, in memory of
// the heap and in arenas. Another one, on the same NIC, goes on as before.
func TestKilled(t *testing.T) {
	rounds := *kills
	if testing.Short() {
		rounds = 5
	}
	p := openNICs(t, Config{})
	sound, err := newHalf(p.Device(0))
	if err != nil {
		t.Fatal(err)
	}
	defer sound.close()
	other := spawn(t, "idle"+inArena, sound)
	sound.granted(t, other.to)
	await(t, "the other process connects", func() bool {
		sound.dev.mu.Lock()
		defer sound.dev.mu.Unlock()
		return sound.qp.(*QP).in.lane != nil
	})
	add := func() (before uint64) {
		sound.do(t, sound.request(int(verbs.OpAtomicFetchAdd), 8, other.to))
		return binary.NativeEndian.Uint64(sound.buf)
	}
	first := add()
	fds, maps := held(t)
	var silences []time.Duration // from a death to the first request that it fails
	for round := range rounds {
		h, err := newHalf(p.Device(0))
		if err != nil {
			t.Fatal(err)
		}
		task := "busy"
		if round%2 == 1 {
			h.withArena(t)
			task += inArena
		}
		c := spawn(t, task, h)
		if err := h.receive(256); err != nil {
			t.Fatal(err)
		}
		var killed atomic.Int64
		kill := time.AfterFunc(time.Duration(rand.IntN(20_000))*time.Microsecond, func() {
			killed.Store(time.Now().UnixNano())
			_ = c.cmd.Process.Signal(syscall.SIGKILL)
		})
		defer kill.Stop()
		h.untilDeath(t, c)
		silences = append(silences, time.Since(time.Unix(0, killed.Load())))
		_ = c.cmd.Wait()
		add()
		if err := h.close(); err != nil {
			t.Fatalf("round %d: %v", round, err)
		}
	}
	for deadline := time.Now().Add(10 * time.Second); ; time.Sleep(time.Millisecond) {
		f, m := held(t)
		if f <= fds && m <= maps {
			break
		}
		if time.Now().After(deadline) {
			t.Fatalf("%d descriptors and %d mappings are left, there were %d and %d", f, m, fds, maps)
		}
	}
	if n := add() - first; n != uint64(rounds)+1 {
		t.Errorf("the other process has added %d, want %d", n, rounds+1)
	}
	_ = other.in.Close()
	if err := other.cmd.Wait(); err != nil {
		t.Errorf("the other process: %v\n%s", err, other.err.String())
	}
	slices.Sort(silences)
	t.Logf("deaths were known after %v at least, %v in the middle, %v at most", silences[0],
		silences[rounds/2], silences[rounds-1])
}

// untilDeath sends requests of all kinds until the peer dies, and checks what the queue pair
// reports then.
func (h *half) untilDeath(t *testing.T, c *child) {
	t.Helper()
	outstanding, next, expected := 0, 0, 0
	told := false // by a receive
	var wcs [64]verbs.WC
	events := make(chan verbs.Event, 8)
	defer h.dev.Watch(events)()
	deadline := time.Now().Add(30 * time.Second)
	for {
		for outstanding < 64 {
			if n, _ := h.qp.PostSend([]verbs.SendWR{h.request(next, 1+next*997%100000, c.to)}); n != 1 {
				break
			}
			outstanding, next = outstanding+1, next+1
		}
		n, err := h.cq.Poll(wcs[:])
		if err != nil {
			t.Fatal(err)
		}
		for _, wc := range wcs[:n] {
			switch {
			case wc.ID >= 1<<32:
				if wc.Status == verbs.StatusSuccess {
					if err := h.receive(1); err != nil {
						t.Fatal(err)
					}
				}
				told = told || wc.Status == verbs.StatusWRFlushErr && wc.VendorErr == vendorDied
				continue
			case wc.ID != uint64(expected):
				t.Fatalf("request %d ends, expected %d", wc.ID, expected)
			}
			outstanding, expected = outstanding-1, expected+1
			if wc.Status == verbs.StatusSuccess {
				continue
			}
			if wc.Status == verbs.StatusWRFlushErr && told {
				// It was posted after the death, which had found no other request to fail.
			} else if wc.Status == verbs.StatusWRFlushErr {
				// Nor a receive.
				if e := <-events; e.Type != verbs.EventQPFatal || e.QPNum != h.qp.Num() {
					t.Fatalf("the first request is flushed, and the event is %v", e)
				}
			} else if wc.Status != verbs.StatusRetryExcErr || wc.VendorErr != vendorDied {
				t.Fatalf("the first failure is %v, vendor %#x", wc.Status, wc.VendorErr)
			}
			if s := h.qp.State(); s != verbs.StateErr {
				t.Fatalf("the queue pair is in %v", s)
			}
			return
		}
		if time.Now().After(deadline) {
			t.Fatal("the peer's death is not reported")
		}
	}
}

// held counts this process's descriptors, and its mappings of shared memory.
func held(t *testing.T) (fds, maps int) {
	t.Helper()
	list, err := os.ReadDir("/proc/self/fd")
	if err != nil {
		t.Fatal(err)
	}
	text, err := os.ReadFile("/proc/self/maps")
	if err != nil {
		t.Fatal(err)
	}
	return len(list), strings.Count(string(text), "memfd:ibverbx")
}

// fillDevShm gives a process in a mount namespace of its own a /dev/shm without room.
func fillDevShm() error {
	if err := syscall.Mount("", "/", "", syscall.MS_REC|syscall.MS_PRIVATE, ""); err != nil {
		return err
	}
	if err := syscall.Mount("tmpfs", "/dev/shm", "tmpfs", 0, "size=1m"); err != nil {
		return err
	}
	if err := os.WriteFile("/dev/shm/full", make([]byte, 2<<20), 0o600); !errors.Is(err, syscall.ENOSPC) {
		return fmt.Errorf("2 MiB in a /dev/shm of 1 MiB: %w", err)
	}
	return nil
}

// Containers have a small /dev/shm, which others fill. No memory is taken from it.
func TestFullDevShm(t *testing.T) {
	h, err := newHalf(openNICs(t, Config{}).Device(0))
	if err != nil {
		t.Fatal(err)
	}
	defer h.close()
	c := spawnIn(t, "full", h, syscall.CLONE_NEWNS)
	verbstest.Fill(h.buf[halfBytes:], 5)
	h.do(t, h.request(int(verbs.OpRDMAWrite), halfBytes, c.to))
	back := h.request(int(verbs.OpRDMARead), halfBytes, c.to)
	back.RemoteAddr = c.to.Addr
	h.do(t, back)
	if !bytes.Equal(h.buf[:halfBytes], h.buf[halfBytes:]) {
		t.Error("what was written is not read back")
	}
	_ = c.in.Close()
	if err := c.cmd.Wait(); err != nil {
		t.Errorf("the peer: %v\n%s", err, c.err.String())
	}
}
