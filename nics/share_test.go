//go:build linux

package nics_test

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"os"
	"os/exec"
	"regexp"
	"runtime"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
	"unsafe"

	"go.uber.org/goleak"
	"golang.org/x/sys/unix"

	"ibverbx/nics"
	"ibverbx/verbs"
	"ibverbx/verbs/rdmacore"
	"ibverbx/verbs/shm"
	"ibverbx/verbs/soft"
)

// peerEnv configures the peer of a test. A test binary that finds it set is that peer.
const peerEnv = "IBVERBX_NICS_PEER"

func TestMain(m *testing.M) {
	if cfg := os.Getenv(peerEnv); cfg != "" {
		if err := runPeer(cfg); err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
		os.Exit(0)
	}
	goleak.VerifyTestMain(m)
}

// pair is one end of two processes that meet, or of two hosts in this process.
type pair struct {
	local, remote net.Addr
	send          func(mine []byte) error
	receive       func() (theirs []byte, err error)
}

func (p *pair) LocalAddr() net.Addr  { return p.local }
func (p *pair) RemoteAddr() net.Addr { return p.remote }

func (p *pair) AllGather(_ context.Context, mine []byte) ([][]byte, error) {
	if err := p.send(mine); err != nil {
		return nil, err
	}
	theirs, err := p.receive()
	return [][]byte{mine, theirs}, err
}

// apart gives the ends addresses of their own, as containers have; together gives both the same.
func (p *pair) apart(local, remote byte) *pair {
	p.local = &net.TCPAddr{IP: net.IPv4(10, 0, 0, local), Port: 1}
	p.remote = &net.TCPAddr{IP: net.IPv4(10, 0, 0, remote), Port: 1}
	return p
}

// ends are the two ends of a pair in this process.
func ends() (a, b *pair) {
	there, back := make(chan []byte, 2), make(chan []byte, 2)
	end := func(out chan<- []byte, in <-chan []byte) *pair {
		p := &pair{send: func(mine []byte) error { out <- mine; return nil },
			receive: func() ([]byte, error) { return <-in, nil }}
		return p.apart(1, 1)
	}
	return end(there, back), end(back, there)
}

// fakeHost is the configuration of a host with or without real NICs, and with a software NIC in
// place of sockets. What it logs goes to a buffer.
func fakeHost(t *testing.T, hasNIC bool) (nics.Config, *bytes.Buffer) {
	all := func(all []verbs.Device) []verbs.Device { return all }
	if !hasNIC {
		all = nil
	}
	cfg, said := hostWith(t, rdmacore.ErrNoDevice, all)
	if hasNIC {
		cfg, said = hostWith(t, nil, all)
	}
	cfg.Sources = append(cfg.Sources, softSockets)
	return cfg, said
}

// softSockets are software NICs under the name of roce.
var softSockets = nics.Source{Name: nics.RoCE, Open: func(nics.Config) (verbs.Provider, error) {
	return soft.New(soft.Config{Devices: 1})
}}

// decide lets two hosts choose NICs, and returns the first one of each and what each logs at INFO.
func decide(t *testing.T, hosts [2]*nics.Host, ends [2]*pair, said [2]*bytes.Buffer) (got [2]string) {
	t.Helper()
	var both sync.WaitGroup
	for i, h := range hosts {
		both.Go(func() {
			devices, err := h.ReachingAll(t.Context(), ends[i])
			if err != nil {
				got[i] = err.Error()
				return
			}
			got[i] = devices[0].Name()
			if note := h.Note(); note != "" {
				got[i] += ", " + note
			}
			_, line, _ := strings.Cut(said[i].String(), `level=INFO msg="ibverbx: `)
			if line, _, _ = strings.Cut(line, "\"\n"); line != h.Note() {
				t.Errorf("end %d logs %q, and notes %q", i, line, h.Note())
			}
		})
	}
	both.Wait()
	return got
}

// Two hosts prefer shared memory to real NICs and to sockets, unless one of them asks for NICs.
// Both say what they use and why.
func TestWhoSharesMemory(t *testing.T) {
	const (
		shares    = "shm0, all processes are on this host: sharing memory (provider shm)"
		sharesToo = "shm0, no RDMA NIC here: sharing memory with processes of this host (provider shm)"
		real      = "soft0, using real NICs (provider rdmacore); no shared memory: "
		sockets   = "soft0, no RDMA NIC here: using UDP sockets (provider roce); no shared memory: "
		here      = "this end: "
		there     = "the other end: "
		asksReal  = "NICs of provider rdmacore were asked for"
		networks  = "processes of this host have networks of their own: name a directory that they share, " +
			"with IBVERBX_SHM_DIR or Config.Shm.Dir"
	)
	const otherwise = "soft0, no RDMA NIC here: using UDP sockets (provider roce)"
	host := regexp.MustCompile(`"host":"[0-9a-f]*"`)
	on := func(p *pair, name string) {
		send := p.send
		p.send = func(mine []byte) error {
			return send(host.ReplaceAll(mine, fmt.Appendf(nil, `"host":%q`, name)))
		}
	}
	otherHosts := func(a, b *pair) { on(a, "0"); on(b, "1") }
	for name, c := range map[string]struct {
		nicA, nicB bool
		change     func(b *nics.Config)
		meet       func(a, b *pair)
		wantA      string
		wantB      string
		because    string // logged at DEBUG by both, behind the end
	}{
		"real NICs":            {true, true, nil, nil, shares, shares, ""},
		"real NICs at one end": {true, false, nil, nil, shares, sharesToo, ""},
		"no real NICs":         {false, false, nil, nil, sharesToo, sharesToo, ""},
		"a host unknown":       {true, true, nil, func(a, _ *pair) { on(a, "") }, shares, shares, ""},
		"a provider": {true, true, func(b *nics.Config) { b.Provider = nics.Real }, nil,
			real + there + asksReal, "soft0", asksReal},
		"a provider, and sockets": {false, true, func(b *nics.Config) { b.Provider = nics.Real }, nil,
			sockets + there + asksReal, "soft0", asksReal},
		"NICs by name": {true, true, func(b *nics.Config) { b.Devices = "soft0" }, nil,
			real + there + asksReal, "soft0", asksReal},
		"a library": {true, true, func(b *nics.Config) { b.Library = "/lib/libibverbs.so.1" }, nil,
			real + there + asksReal, "soft0", asksReal},
		"shared memory by name": {false, true, func(b *nics.Config) { b.Provider = nics.Shm }, nil,
			sharesToo, "shm0", ""},
		"shared memory by name, networks of their own": {false, true,
			func(b *nics.Config) { b.Provider = nics.Shm },
			func(a, b *pair) { a.apart(1, 2); b.apart(2, 1) }, sockets + networks,
			"nics: unreachable: no shared memory: " + networks, networks},
		"no directory": {true, true, func(b *nics.Config) { b.Shm.Dir = "/none" }, nil,
			real + there + "shm: open: invalid argument", real + here + "shm: open: invalid argument",
			"shm: open: "},
		"networks of their own": {true, false, nil, func(a, b *pair) { a.apart(1, 2); b.apart(2, 1) },
			real + networks, sockets + networks, networks},
		"two hosts": {true, false, nil, func(a, b *pair) { otherHosts(a.apart(1, 2), b.apart(2, 1)) },
			"soft0", otherwise, "a process is on another host"},
		"two hosts behind one address": {true, false, nil, otherHosts, "soft0", otherwise,
			"a process is on another host"},
	} {
		t.Run(name, func(t *testing.T) {
			cfgA, saidA := fakeHost(t, c.nicA)
			cfgB, saidB := fakeHost(t, c.nicB)
			if c.change != nil {
				c.change(&cfgB)
			}
			a, b := ends()
			if c.meet != nil {
				c.meet(a, b)
			}
			got := decide(t, [2]*nics.Host{openAs(t, cfgA), openAs(t, cfgB)}, [2]*pair{a, b},
				[2]*bytes.Buffer{saidA, saidB})
			for i, want := range []string{c.wantA, c.wantB} {
				if !strings.HasPrefix(got[i], want) || strings.HasPrefix(want, "shm0") && got[i] != want ||
					(want == "soft0" || want == otherwise) && got[i] != want {
					t.Errorf("end %d: %s, want %s", i, got[i], want)
				}
			}
			for _, said := range []*bytes.Buffer{saidA, saidB} {
				_, why, found := strings.Cut(said.String(), `msg="ibverbx: no shared memory" because="`)
				why = strings.TrimPrefix(strings.TrimPrefix(why, here), there)
				if found != (c.because != "") || !strings.HasPrefix(why, c.because) {
					t.Errorf("logged %s", said)
				}
			}
		})
	}
}

// member is a process of a job of two.
type member struct {
	*pair
	rank int
}

func (m member) Rank() int { return m.rank }

// AllGather returns the contributions in the order of the ranks.
func (m member) AllGather(ctx context.Context, mine []byte) ([][]byte, error) {
	all, err := m.pair.AllGather(ctx, mine)
	if m.rank == 1 {
		slices.Reverse(all)
	}
	return all, err
}

// In a job the rank is named, and a directory of the environment by its variable.
func TestRankWithoutDirectory(t *testing.T) {
	var hosts [2]*nics.Host
	for i := range hosts {
		cfg, _ := fakeHost(t, false)
		if i == 1 {
			t.Setenv("IBVERBX_SHM_DIR", "@place")
		}
		hosts[i] = openAs(t, cfg)
	}
	a, b := ends()
	both := make(chan error, 1)
	go func() {
		_, err := hosts[0].ReachingAll(t.Context(), member{a, 0})
		both <- err
	}()
	_, err := hosts[1].ReachingAll(t.Context(), member{b, 1})
	if err := errors.Join(err, <-both); err != nil {
		t.Fatal(err)
	}
	for _, h := range hosts {
		const want = `: rank 1: IBVERBX_SHM_DIR: shm: open: invalid argument: Dir: "@place" is the name of`
		if !strings.Contains(h.Note(), want) {
			t.Errorf("%s, want %s", h.Note(), want)
		}
	}
}

// openAs opens NICs, which log as the configuration says.
func openAs(t *testing.T, cfg nics.Config) *nics.Host {
	t.Helper()
	h, err := nics.Open(cfg)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := h.Close(); err != nil {
			t.Error(err)
		}
	})
	return h
}

// Whichever end does not reach the other one, both take their NICs, and both know why. Here two
// directories are bridged in one direction, in both or in none, as mounts of containers may be.
func TestReachedOneWay(t *testing.T) {
	for _, c := range []struct{ there, back bool }{{true, true}, {true, false}, {false, true},
		{false, false}} {
		t.Run(fmt.Sprintf("there %t, back %t", c.there, c.back), func(t *testing.T) {
			var hosts [2]*nics.Host
			var said [2]*bytes.Buffer
			var dirs [2]string
			for i := range hosts {
				var cfg nics.Config
				cfg, said[i] = fakeHost(t, i == 0)
				dirs[i] = shortDir(t)
				cfg.Shm.Dir = dirs[i]
				hosts[i] = openAs(t, cfg)
			}
			a, b := ends()
			pairs := [2]*pair{a.apart(1, 2), b.apart(2, 1)}
			for i, reaches := range []bool{c.there, c.back} {
				receive := pairs[i].receive
				pairs[i].receive = func() ([]byte, error) {
					theirs, err := receive()
					if reaches { // its offer is there, so its socket is
						err = errors.Join(err, bridge(dirs[1-i], dirs[i]))
					}
					return theirs, err
				}
			}
			got := decide(t, hosts, pairs, said)
			reached := c.there && c.back
			for i := range got {
				if strings.HasPrefix(got[i], "shm0, ") != reached ||
					strings.Contains(got[i], " end: check path: shm0: ") != !reached {
					t.Errorf("end %d: %s", i, got[i])
				}
				if c.there != c.back && strings.Contains(got[i], "this end: ") != (c.there == (i == 1)) {
					t.Errorf("end %d: %s", i, got[i])
				}
			}
		})
	}
}

// shortDir makes a directory with a name that leaves room for that of a socket.
func shortDir(t *testing.T) string {
	t.Helper()
	dir, err := os.MkdirTemp("", "nics")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = os.RemoveAll(dir) })
	return dir
}

// bridge lets those who look for a socket of one directory in another one find it.
func bridge(from, to string) error {
	entries, err := os.ReadDir(from)
	for _, e := range entries {
		if e.Type() != os.ModeSocket {
			continue
		}
		link := os.Symlink(from+"/"+e.Name(), to+"/"+e.Name())
		if !errors.Is(link, os.ErrExist) {
			err = errors.Join(err, link)
		}
	}
	return err
}

// peerConfig is what the peer of a test is told.
type peerConfig struct {
	Local   byte // the last number of its address, and of this end's
	Remote  byte
	Refused []uintptr // system calls that a sandbox refuses it
}

// runPeer is the other process: it chooses NICs with the test, and tells it which.
func runPeer(text string) error {
	var cfg peerConfig
	if err := json.Unmarshal([]byte(text), &cfg); err != nil {
		return err
	}
	if err := refuse(cfg.Refused); err != nil {
		return err
	}
	h, err := nics.Open(nics.Config{Logger: slog.New(slog.DiscardHandler),
		Sources: []nics.Source{noNIC, softSockets}})
	if err != nil {
		return err
	}
	group := pipes(os.Stdin, os.Stdout).apart(cfg.Local, cfg.Remote)
	devices, err := h.ReachingAll(context.Background(), group)
	if err != nil {
		return err
	}
	return errors.Join(group.send([]byte(devices[0].Name()+", "+h.Note())), h.Close())
}

// noNIC says that a host has no RDMA NIC.
var noNIC = nics.Source{Name: nics.Real, Open: func(nics.Config) (verbs.Provider, error) {
	return nil, rdmacore.ErrNoDevice
}}

// pipes makes an end of a pair of two files.
func pipes(in io.Reader, out io.Writer) *pair {
	from, to := json.NewDecoder(in), json.NewEncoder(out)
	return &pair{send: func(mine []byte) error { return to.Encode(mine) },
		receive: func() (theirs []byte, err error) { err = from.Decode(&theirs); return theirs, err }}
}

// refuse lets the kernel refuse system calls to this process, as a sandbox does (seccomp).
func refuse(calls []uintptr) error {
	if len(calls) == 0 {
		return nil
	}
	program := []unix.SockFilter{{Code: unix.BPF_LD | unix.BPF_W | unix.BPF_ABS}} // the number of the call
	for _, call := range calls {
		program = append(program,
			unix.SockFilter{Code: unix.BPF_JMP | unix.BPF_JEQ | unix.BPF_K, K: uint32(call), Jf: 1},
			unix.SockFilter{Code: unix.BPF_RET | unix.BPF_K,
				K: unix.SECCOMP_RET_ERRNO | uint32(unix.EPERM)})
	}
	program = append(program, unix.SockFilter{Code: unix.BPF_RET | unix.BPF_K, K: unix.SECCOMP_RET_ALLOW})
	filter := unix.SockFprog{Len: uint16(len(program)), Filter: &program[0]}
	runtime.LockOSThread() // the others take over what this thread has
	defer runtime.UnlockOSThread()
	if err := unix.Prctl(unix.PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0); err != nil {
		return err
	}
	if _, _, errno := unix.Syscall(unix.SYS_SECCOMP, unix.SECCOMP_SET_MODE_FILTER,
		unix.SECCOMP_FILTER_FLAG_TSYNC, uintptr(unsafe.Pointer(&filter))); errno != 0 {
		return errno
	}
	return nil
}

// Two processes share memory from containers too, if these have a network or a directory in common.
// If not, and where a sandbox refuses what sharing needs, both take the next NICs, and say why.
func TestContainers(t *testing.T) {
	const container = syscall.CLONE_NEWPID | syscall.CLONE_NEWIPC | syscall.CLONE_NEWNS | syscall.CLONE_NEWUTS
	const own = container | syscall.CLONE_NEWNET
	const refused = "shm: open: not supported: "
	dir := shortDir(t)
	for name, c := range map[string]struct {
		namespaces uintptr
		dir        string // this end's in its configuration, the peer's in its environment
		peer       peerConfig
		want       string // the reason against shared memory
	}{
		"one network": {container, "", peerConfig{Local: 1, Remote: 1}, ""},
		"a directory": {own, dir, peerConfig{Local: 2, Remote: 1}, ""},
		"neither":     {own, "", peerConfig{Local: 2, Remote: 1}, "processes of this host have networks"},
		"forwarded":   {own, "", peerConfig{Local: 1, Remote: 1}, "check path: shm0: unreachable: "},
		"no memory": {0, "", peerConfig{Local: 1, Remote: 1, Refused: []uintptr{unix.SYS_MEMFD_CREATE}},
			refused + "memfd_create: operation not permitted"},
		"none passed": {0, "", peerConfig{Local: 1, Remote: 1, Refused: []uintptr{unix.SYS_SENDMSG}},
			refused + "sendmsg: operation not permitted"},
		"none taken": {0, "", peerConfig{Local: 1, Remote: 1, Refused: []uintptr{unix.SYS_RECVMSG}},
			refused + "recvmsg: operation not permitted"},
		"no sockets": {0, "", peerConfig{Local: 1, Remote: 1, Refused: []uintptr{unix.SYS_SOCKET}},
			refused + "socket: operation not permitted"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			cfg, said := fakeHost(t, true)
			cfg.Shm = shm.Config{Dir: c.dir}
			h := openAs(t, cfg)
			text, err := json.Marshal(c.peer)
			if err != nil {
				t.Fatal(err)
			}
			cmd := exec.Command(os.Args[0])
			cmd.SysProcAttr = &syscall.SysProcAttr{Cloneflags: c.namespaces}
			cmd.Env = append(os.Environ(), peerEnv+"="+string(text), "IBVERBX_SHM_DIR="+c.dir)
			var failed bytes.Buffer
			cmd.Stderr = &failed
			in, err := cmd.StdinPipe()
			if err != nil {
				t.Fatal(err)
			}
			out, err := cmd.StdoutPipe()
			if err != nil {
				t.Fatal(err)
			}
			if err := cmd.Start(); err != nil {
				t.Skipf("no namespaces: %v", err)
			}
			group := pipes(out, in).apart(c.peer.Remote, c.peer.Local)
			devices, err := h.ReachingAll(t.Context(), group)
			there, gone := group.receive()
			if err := errors.Join(err, gone, cmd.Wait()); err != nil {
				t.Fatalf("%v\n%s", err, &failed)
			}
			here := devices[0].Name() + ", " + h.Note()
			for _, got := range []string{here, string(there)} {
				if strings.HasPrefix(got, "shm0, ") != (c.want == "") ||
					c.want != "" && !strings.Contains(got, c.want) {
					t.Errorf("got %s, want %q", got, c.want)
				}
			}
			if !strings.Contains(said.String(), h.Note()) {
				t.Errorf("logged %s", said)
			}
			t.Logf("here %s\nthere %s", here, there)
		})
	}
}

// Two processes of one host that leave the choice open share memory if both can, and otherwise use
// sockets. One that names its provider keeps it.
func TestConnectOverSharedMemory(t *testing.T) {

	const socketsNote = "roce0, ibverbx: no RDMA NIC here: using UDP sockets (provider roce)"
	for name, c := range map[string]struct {
		change func(*nics.Config)
		want   string // the NIC and what is logged
	}{
		"both": {func(*nics.Config) {},
			"shm0, ibverbx: no RDMA NIC here: sharing memory with processes of this host (provider shm)"},
		"another directory": {func(c *nics.Config) { c.Shm.Dir = t.TempDir() },
			socketsNote + "; no shared memory: this end: check path: shm0: unreachable"},
		"no such directory": {func(c *nics.Config) { c.Shm.Dir = "/none" },
			socketsNote + "; no shared memory: the other end: shm: open: invalid argument"},
		"a provider": {func(c *nics.Config) { c.Provider = nics.RoCE },
			socketsNote + "; no shared memory: the other end: NICs of provider roce were asked for"},
		"shared memory": {func(c *nics.Config) { c.Provider = nics.Shm },
			"shm0, ibverbx: no RDMA NIC here: sharing memory with processes of this host (provider shm)"},
	} {
		t.Run(name, func(t *testing.T) {
			cfg, _ := hostWith(t, rdmacore.ErrNoDevice, nil)
			other := cfg
			c.change(&other)
			var said bytes.Buffer
			cfg.Logger = slog.New(slog.NewTextHandler(&said, nil))
			a, err := nics.Open(cfg)
			if err != nil {
				t.Fatal(err)
			}
			defer a.Close()
			b := open(t, other)
			for range 2 {
				qpA, qpB, errA, errB := connect(t, a, b)
				if err := errors.Join(errA, errB); err != nil {
					t.Fatal(err)
				}
				_, line, _ := strings.Cut(said.String(), "msg=")
				got := qpA.Domain().Devices()[0].Name() + ", " + strings.Trim(line, "\"\n")
				here := qpB.Domain().Devices()[0].Name()
				if !strings.HasPrefix(got, c.want) || here[:3] != got[:3] ||
					!strings.HasSuffix(got, a.Note()) {
					t.Errorf("got %s, and %s at the other end, want %s", got, here, c.want)
				}
				move(t, qpA, qpB)
				if err := errors.Join(qpA.Close(), qpB.Close()); err != nil {
					t.Error(err)
				}
			}
			if err := a.Close(); err != nil {
				t.Error(err)
			}
		})
	}
}
