//go:build linux

package shm

import (
	"context"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"io"
	"net"
	"net/netip"
	"os"
	"os/exec"
	"slices"
	"strconv"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"ibverbx/verbs"
	"ibverbx/verbs/roce"
)

var numbers = flag.Duration("numbers", 0, "measure for so long each, and print")

// The columns of a table.
const (
	viaWindow = iota // a copy at both ends
	inArenas         // one copy
	viaRoCE          // over UDP sockets of the loopback interface
	viaUnix          // a unix socket of package net
	byKernel         // process_vm_writev
	byCopy           // what this process does alone: copy(), and two goroutines for the first row
	ucxTag           // a message of UCX
	ucxPut           // a store of UCX
	columns
)

// TestTable measures shared memory beside other ways. All take turns, so that others who use the
// machine disturb each alike; a peer is stopped while it is not its turn. Each number is the best
// of many short runs. With ucx_perftest in the path, each of its numbers is the best of five runs.
func TestTable(t *testing.T) {
	if *numbers == 0 {
		t.Skip("give -numbers 2s")
	}
	x := &table{t: t, sockets: mirrorOver(t, openRoCE(t).Device(0), "roce"), ends: unixSocket(t)}
	d := openNICs(t, Config{}).Device(0)
	x.shared, x.arena = mirrorOver(t, d, "mirror"), mirrorOver(t, d, "mirror"+inArena)
	x.latencies(mirrorOver(t, d, "sleeper"))
	for column, m := range []*mirror{x.shared, x.arena, x.sockets} {
		x.most("8 bytes, 64 in a call, million/s", column, 8e6, m,
			func() float64 { return m.stream(8, 64, 20000, 1) })
	}
	x.ucx(ucxTag, "-t tag_bw -s 8 -n 100000", 6, 1e-6)
	for _, n := range []int{4096, 65536, 1 << 20} {
		x.transfers(fmt.Sprintf("%d bytes, GB/s", n), n, 1)
	}
	x.transfers("64 times 1 MiB in turn, GB/s", 1<<20, 64)
	if _, err := exec.LookPath("ucx_perftest"); err != nil {
		fmt.Println("No ucx_perftest (Debian: ucx-utils), so its columns stay empty.")
		x.list = slices.DeleteFunc(x.list, func(n *number) bool { return n.rare })
	}
	x.measure()
	fmt.Println("| | shm | arena | roce | unix socket | process_vm | this process | UCX tag | UCX put |")
	fmt.Println("|" + strings.Repeat(" --- |", columns+1))
	for i, n := range x.list {
		if i == 0 || n.row != x.list[i-1].row {
			fmt.Printf("| %s |%s\n", n.row, cells(x.list[i:]))
		}
	}
}

// table is what TestTable measures, by rows.
type table struct {
	t                      *testing.T
	list                   []*number
	shared, arena, sockets *mirror
	ends                   sockets
}

// least adds a number of which the least is the best.
func (x *table) least(row string, column int, of *mirror, run func() float64) {
	x.list = append(x.list, &number{row: row, column: column, unit: 1, of: of, run: run})
}

// most adds a number of which the most is the best.
func (x *table) most(row string, column int, unit float64, of *mirror, run func() float64) {
	x.list = append(x.list, &number{row: row, column: column, unit: unit, of: of, run: run, most: true})
}

// ucx adds to the last row what ucx_perftest prints in a field. Latencies are in nanoseconds.
func (x *table) ucx(column int, args string, field int, unit float64) {
	last := x.list[len(x.list)-1]
	x.list = append(x.list, &number{row: last.row, column: column, unit: 1, most: last.most, rare: true,
		run: func() float64 { return runUCX(x.t, args, field) * unit }})
}

func (x *table) latencies(sleeper *mirror) {
	x.least("a word from core to core, ns", byCopy, nil, mailbox)
	const row = "8 bytes, one way, ns"
	for column, m := range []*mirror{x.shared, x.arena, x.sockets} {
		x.least(row, column, m, m.latency)
	}
	x.least(row, viaUnix, nil, func() float64 { return x.ends.pingPong(x.t) })
	x.ucx(ucxTag, "-t tag_lat -s 8 -n 5000", 1, 1e3)
	x.ucx(ucxPut, "-t ucp_put_lat -s 8 -n 5000", 1, 1e3)
	x.least("8 bytes to a process that sleeps, and back, ns", viaWindow, sleeper,
		func() float64 { return 2 * sleeper.latency() })
}

// transfers adds a row of bytes a second: n in a message, from so many buffers in turn.
func (x *table) transfers(row string, n, buffers int) {
	window := min(64, max(2, 4<<20/n))
	count := max(window, 32<<20/n, 2*buffers)
	ways := []*mirror{x.shared, x.arena, x.sockets}
	if buffers > 1 {
		ways = ways[:viaRoCE]
	}
	for column, m := range ways {
		x.most(row, column, 1e9, m, func() float64 { return m.stream(n, window, count, buffers) })
	}
	x.most(row, byKernel, 1e9, nil, func() float64 { return x.shared.crossing(n, count, buffers) })
	x.most(row, byCopy, 1e9, nil, func() float64 { return x.arena.copying(n, count, buffers) })
	if buffers == 1 {
		x.most(row, viaUnix, 1e9, nil, func() float64 { return x.ends.stream(x.t, n, count) })
		args := fmt.Sprintf("_bw -s %d -n %d", n, count)
		x.ucx(ucxTag, "-t tag"+args, 4, 1<<20/1e9)
		x.ucx(ucxPut, "-t ucp_put"+args, 4, 1<<20/1e9)
	}
}

// measure takes each number many times, and those of another program five times.
func (x *table) measure() {
	for range 5 {
		for end := time.Now().Add(*numbers * time.Duration(len(x.list)) / 5); time.Now().Before(end); {
			for _, n := range x.list {
				if !n.rare {
					n.measure()
				}
			}
		}
		for _, n := range x.list {
			if n.rare {
				n.measure()
			}
		}
	}
}

// number is one of a table: the best of many short runs.
type number struct {
	row    string
	column int
	run    func() float64
	unit   float64
	most   bool    // the most is the best, not the least
	rare   bool    // a run takes long
	of     *mirror // whose peer answers; nil if there is none
	best   float64
}

func (n *number) measure() {
	if n.of != nil {
		n.of.signal(unix.SIGCONT)
		defer n.of.signal(unix.SIGSTOP)
		n.of.latency() // until the peer has woken up
	}
	if v := n.run() / n.unit; n.best == 0 || v > n.best == n.most {
		n.best = v
	}
}

// cells returns the row with which a list begins.
func cells(list []*number) string {
	var cells [columns]string
	for _, n := range list {
		if n.row == list[0].row && n.best != 0 {
			cells[n.column] = fmt.Sprintf("%.3g", n.best)
		}
	}
	return " " + strings.Join(cells[:], " | ") + " |"
}

// mirror is a queue pair whose peer answers each message.
type mirror struct {
	*half
	t    *testing.T
	peer *child
}

// mirrorOver starts a peer, which is stopped at first.
func mirrorOver(t *testing.T, d verbs.Device, task string) *mirror {
	h, err := newHalfOf(d, sizeOf(task))
	if err != nil {
		t.Fatal(err)
	}
	if strings.HasSuffix(task, inArena) {
		h.withArena(t)
	}
	m := &mirror{h, t, spawn(t, task, h)}
	t.Cleanup(func() {
		_ = m.peer.cmd.Process.Kill()
		_ = m.peer.cmd.Wait()
		if err := h.close(); err != nil {
			t.Error(err)
		}
	})
	if err := h.receive(256); err != nil {
		t.Fatal(err)
	}
	m.latency() // the peer is connected when it has answered
	m.signal(unix.SIGSTOP)
	return m
}

func (m *mirror) signal(s os.Signal) { _ = m.peer.cmd.Process.Signal(s) }

func (m *mirror) latency() float64 { return m.pingPong(m.t, m.peer) }

// sizeOf is the memory of both ends for a task: a table's buffers in turn need some.
func sizeOf(task string) int {
	if strings.HasPrefix(task, "mirror") {
		return 64 * halfBytes
	}
	return 2 * halfBytes
}

// openRoCE makes a NIC of a UDP socket, over which two processes of this host meet.
func openRoCE(tb testing.TB) *roce.Provider {
	p, err := roce.Open(overLoopback)
	if err != nil {
		tb.Fatal(err)
	}
	tb.Cleanup(func() {
		if err := p.Close(); err != nil {
			tb.Error(err)
		}
	})
	return p
}

var overLoopback = roce.Config{Addresses: []netip.Addr{netip.AddrFrom4([4]byte{127, 0, 0, 1})}}

// rocePeer is the peer of a table's sockets.
func rocePeer(string) error {
	p, err := roce.Open(overLoopback)
	if err != nil {
		return err
	}
	h, err := newHalf(p.Device(0))
	if err == nil {
		err = json.NewEncoder(os.Stdout).Encode(h.address())
	}
	var to address
	if err == nil {
		err = json.NewDecoder(os.Stdin).Decode(&to)
	}
	if err == nil {
		err = h.connect(to)
	}
	if err == nil {
		err = h.receive(256)
	}
	if err != nil {
		return err
	}
	return h.mirror(to, false)
}

// sockets are the two ends of a unix socket in this process.
type sockets [2]net.Conn

func unixSocket(t *testing.T) (ends sockets) {
	t.Helper()
	fds, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		t.Fatal(err)
	}
	for i, fd := range fds {
		f := os.NewFile(uintptr(fd), "socket")
		ends[i], err = net.FileConn(f)
		if err := errors.Join(err, f.Close()); err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = ends[i].Close() })
	}
	return ends
}

// pingPong returns the time of eight bytes one way, in nanoseconds.
func (s sockets) pingPong(t *testing.T) float64 {
	const rounds = 200
	over := make(chan error)
	go func() {
		b := make([]byte, 8)
		for range rounds {
			if _, err := io.ReadFull(s[1], b); err != nil {
				over <- err
				return
			}
			_, _ = s[1].Write(b)
		}
		over <- nil
	}()
	b := make([]byte, 8)
	begin := time.Now()
	for range rounds {
		_, _ = s[0].Write(b)
		if _, err := io.ReadFull(s[0], b); err != nil {
			t.Fatal(err)
		}
	}
	took := time.Since(begin)
	if err := <-over; err != nil {
		t.Fatal(err)
	}
	return float64(took.Nanoseconds()) / rounds / 2
}

// stream sends count times n bytes, and returns the bytes a second.
func (s sockets) stream(t *testing.T, n, count int) float64 {
	over := make(chan error)
	go func() {
		b := make([]byte, n)
		for range count {
			if _, err := io.ReadFull(s[1], b); err != nil {
				over <- err
				return
			}
		}
		over <- nil
	}()
	b := make([]byte, n)
	begin := time.Now()
	for range count {
		_, _ = s[0].Write(b)
	}
	if err := <-over; err != nil {
		t.Fatal(err)
	}
	return float64(count*n) / time.Since(begin).Seconds()
}

// copying copies between the buffers of stream in an arena, on the same pages, and returns the
// bytes a second.
func (m *mirror) copying(n, count, buffers int) float64 {
	to := m.qp.(*QP).out.grants[0].mem // the test's peer is stopped, and withdraws nothing
	from := m.buf[len(m.buf)/2:]
	return inTurn(n, count, buffers, func(at int) { copy(to[at:at+n], from[at:at+n]) })
}

// crossing is copying with process_vm_writev, into memory of the peer that is no arena; 0 where the
// system refuses it.
func (m *mirror) crossing(n, count, buffers int) float64 {
	from, pid, refused := m.buf[len(m.buf)/2:], m.peer.cmd.Process.Pid, false
	r := inTurn(n, count, buffers, func(at int) {
		_, err := unix.ProcessVMWritev(pid, []unix.Iovec{{Base: &from[at], Len: uint64(n)}},
			[]unix.RemoteIovec{{Base: uintptr(m.peer.to.Addr) + uintptr(at), Len: n}}, 0)
		refused = refused || err != nil
	})
	if refused {
		return 0
	}
	return r
}

// inTurn calls a function count times, with the places of so many buffers of n bytes in turn, and
// returns the bytes a second.
func inTurn(n, count, buffers int, do func(at int)) float64 {
	begin := time.Now()
	for i := range count {
		do(i % buffers * n)
	}
	return float64(count*n) / time.Since(begin).Seconds()
}

// runUCX runs ucx_perftest between two processes, and returns a field of what it prints.
func runUCX(t *testing.T, args string, field int) float64 {
	command := func(args string) *exec.Cmd {
		cmd := exec.Command("ucx_perftest", strings.Fields(args)...)
		cmd.Env = append(os.Environ(), "UCX_TLS=posix,cma,self")
		return cmd
	}
	const port = "-p 18724 "
	server := command(port)
	if err := server.Start(); err != nil {
		t.Fatal(err)
	}
	defer func() {
		_ = server.Process.Kill()
		_ = server.Wait()
	}()
	for range 500 { // until the server listens
		out, err := command(port + "127.0.0.1 -f -w 100 " + args).Output()
		lines := strings.Split(strings.TrimSpace(string(out)), "\n")
		words := strings.Fields(lines[len(lines)-1])
		if err == nil && len(words) == 8 {
			v, err := strconv.ParseFloat(words[field], 64)
			if err != nil {
				t.Fatal(err)
			}
			return v
		}
		time.Sleep(10 * time.Millisecond)
	}
	t.Fatal("ucx_perftest prints no result of " + args)
	return 0
}

// mailbox returns the time of a word from one core to another, in nanoseconds.
func mailbox() float64 {
	const rounds = 2000
	var there, back atomic.Uint64
	over := make(chan struct{})
	go func() {
		defer close(over)
		for i := uint64(1); i <= rounds; i++ {
			for there.Load() != i {
			}
			back.Store(i)
		}
	}()
	begin := time.Now()
	for i := uint64(1); i <= rounds; i++ {
		there.Store(i)
		for back.Load() != i {
		}
	}
	took := time.Since(begin)
	<-over
	return float64(took.Nanoseconds()) / rounds / 2
}

// asking is how many messages there are to one that is signaled. If each were, the time one way
// would contain that of the answer.
const asking = 64

// pingPong returns the time of a message one way, in nanoseconds.
func (h *half) pingPong(t *testing.T, c *child) float64 {
	const rounds = 8 * asking
	wr := []verbs.SendWR{{ID: 1, Opcode: verbs.OpRDMAWriteWithImm,
		RemoteAddr: c.to.Addr, RKey: c.to.RKey,
		SGL: []verbs.SGE{{Addr: h.mr.Addr() + halfBytes, Length: 8, LKey: h.mr.LKey()}}}}
	recv := []verbs.RecvWR{{ID: 1 << 32}}
	var wcs [8]verbs.WC
	begin := time.Now()
	for i := range rounds {
		asks := i%asking == 0
		if wr[0].Flags = 0; asks {
			wr[0].Flags = verbs.SendSignaled
		}
		if n, err := h.qp.PostSend(wr); n != 1 {
			t.Fatal(err)
		}
		for received, sent := false, !asks; !received || !sent; {
			n, err := h.cq.Poll(wcs[:])
			if err != nil {
				t.Fatal(err)
			}
			for _, wc := range wcs[:n] {
				if wc.Status != verbs.StatusSuccess {
					t.Fatal(wc)
				}
				if wc.ID == 1 {
					sent = true
				} else {
					received = true
				}
			}
		}
		if _, err := h.qp.PostRecv(recv); err != nil {
			t.Fatal(err)
		}
	}
	return float64(time.Since(begin).Nanoseconds()) / rounds / 2
}

// mirror answers each message with eight bytes until its peer is gone, and sleeps in between if it
// is told to. Like pingPong it allocates nothing.
func (h *half) mirror(to address, sleeps bool) error {
	wr := []verbs.SendWR{{ID: 1, Opcode: verbs.OpRDMAWriteWithImm, RemoteAddr: to.Addr, RKey: to.RKey,
		SGL: []verbs.SGE{{Addr: h.mr.Addr() + halfBytes, Length: 8, LKey: h.mr.LKey()}}}}
	recv := []verbs.RecvWR{{ID: 1 << 32}}
	var wcs [8]verbs.WC
	for i := 0; ; {
		n, err := h.cq.Poll(wcs[:])
		if n == 0 && err == nil && sleeps {
			if err = h.cq.Arm(false); err == nil {
				n, err = h.cq.Poll(wcs[:])
			}
			if n == 0 && err == nil {
				err = h.channel.Wait(context.Background())
			}
		}
		if err != nil {
			return err
		}
		for _, wc := range wcs[:n] {
			if wc.Status != verbs.StatusSuccess {
				return nil
			}
			if wc.ID < 1<<32 {
				continue
			}
			if wr[0].Flags = 0; i%asking == 0 {
				wr[0].Flags = verbs.SendSignaled
			}
			i++
			if _, err := h.qp.PostSend(wr); err != nil {
				return err
			}
			if _, err := h.qp.PostRecv(recv); err != nil {
				return err
			}
		}
	}
}

// stream writes count times n bytes, from so many buffers in turn to as many of the peer, and
// returns the bytes a second.
func (m *mirror) stream(n, batch, count, buffers int) float64 {
	h, c, t := m.half, m.peer, m.t
	from := h.mr.Addr() + uint64(len(h.buf)/2)
	wrs := make([]verbs.SendWR, batch)
	for i := range wrs {
		wrs[i] = verbs.SendWR{ID: 1, Opcode: verbs.OpRDMAWrite, RemoteAddr: c.to.Addr, RKey: c.to.RKey,
			SGL: []verbs.SGE{{Addr: from, Length: uint32(n), LKey: h.mr.LKey()}}}
	}
	wrs[batch-1].Flags = verbs.SendSignaled
	var wcs [8]verbs.WC
	begin := time.Now()
	outstanding := 0
	for done := 0; done < count || outstanding != 0; {
		if outstanding < 2 && done < count {
			for i := 0; buffers > 1 && i < batch; i++ {
				at := uint64((done + i) % buffers * n)
				wrs[i].RemoteAddr, wrs[i].SGL[0].Addr = c.to.Addr+at, from+at
			}
			if n, err := h.qp.PostSend(wrs); n != batch {
				t.Fatal(n, err)
			}
			outstanding++
			done += batch
		}
		k, err := h.cq.Poll(wcs[:])
		if err != nil {
			t.Fatal(err)
		}
		outstanding -= k
	}
	return float64(count*n) / time.Since(begin).Seconds()
}
