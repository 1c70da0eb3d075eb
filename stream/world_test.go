package stream

import (
	"bufio"
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"log/slog"
	"math/rand/v2"
	"net"
	"os"
	"os/exec"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"go.uber.org/goleak"

	"ibverbx/nics"
)

func TestMain(m *testing.M) {
	if provider := os.Getenv(echoProvider); provider != "" {
		fmt.Println(echo(provider))
		return
	}
	goleak.VerifyTestMain(m)
}

// echoProvider is the variable that makes the test's binary a process that echoes, over NICs of the
// provider that it names.
const echoProvider = "STREAM_TEST_ECHO"

// echo prints where it listens, and returns what is read there to who has sent it. It ends with its
// input.
func echo(provider string) error {
	host, err := nics.Open(nics.Config{Provider: provider})
	if err != nil {
		return err
	}
	l, err := Listen(context.Background(), "127.0.0.1:0", Config{Host: host})
	if err != nil {
		return err
	}
	fmt.Println(l.Addr())
	go func() {
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			go func() {
				_, _ = io.Copy(c, c)
				_ = c.Close()
			}()
		}
	}()
	_, err = io.Copy(io.Discard, os.Stdin)
	return err
}

// echoing starts such a process, which is killed when the test ends, and returns its address.
func echoing(tb testing.TB, provider string) (addr string, process *os.Process) {
	tb.Helper()
	cmd := exec.Command(os.Args[0])
	cmd.Env = append(os.Environ(), echoProvider+"="+provider)
	in, err := cmd.StdinPipe()
	if err != nil {
		tb.Fatal(err)
	}
	out, err := cmd.StdoutPipe()
	if err != nil {
		tb.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		tb.Fatal(err)
	}
	tb.Cleanup(func() {
		_ = cmd.Process.Kill()
		_ = in.Close()
		_ = cmd.Wait()
	})
	line, err := bufio.NewReader(out).ReadString('\n')
	if _, _, bad := net.SplitHostPort(strings.TrimSpace(line)); err != nil || bad != nil {
		tb.Skipf("the process says %q, %v", line, err)
	}
	return strings.TrimSpace(line), cmd.Process
}

// patience is how long a test waits for what must happen.
const patience = 30 * time.Second

// providers are the NICs that streams are tested over.
var providers = []string{nics.Soft, nics.Shm, nics.RoCE}

// newHost opens NICs until the test ends, and demands that nothing uses them then.
func newHost(tb testing.TB, cfg nics.Config) *nics.Host {
	tb.Helper()
	if cfg.Logger == nil {
		cfg.Logger = slog.New(slog.DiscardHandler)
	}
	host, err := nics.Open(cfg)
	if err != nil {
		tb.Skip(err)
	}
	tb.Cleanup(func() {
		ctx, cancel := context.WithTimeout(context.Background(), patience)
		defer cancel()
		if err := CloseIdle(ctx, host); err != nil {
			tb.Errorf("links are left: %v", err)
		}
		if err := host.Close(); err != nil {
			tb.Errorf("the host: %v", err)
		}
	})
	return host
}

// over is a configuration for NICs of a provider.
func over(tb testing.TB, provider string) Config {
	return Config{Host: newHost(tb, nics.Config{Provider: provider}), Logger: slog.New(slog.DiscardHandler)}
}

// listen listens until the test ends.
func listen(tb testing.TB, cfg Config) *Listener {
	tb.Helper()
	l, err := Listen(tb.Context(), "127.0.0.1:0", cfg)
	if err != nil {
		tb.Fatal(err)
	}
	tb.Cleanup(func() { _ = l.Close() })
	return l
}

// dial opens a stream to l, and accepts it.
func dial(tb testing.TB, l *Listener, cfg Config) (a, b *Conn) {
	tb.Helper()
	a, err := Dial(tb.Context(), l.Addr().String(), cfg)
	if err != nil {
		tb.Fatal(err)
	}
	c, err := l.Accept()
	if err != nil {
		tb.Fatal(err)
	}
	b = c.(*Conn)
	tb.Cleanup(func() { _ = a.Close(); _ = b.Close() })
	return a, b
}

// pair is the two ends of a stream.
func pair(tb testing.TB, cfg Config) (a, b *Conn) {
	tb.Helper()
	return dial(tb, listen(tb, cfg), cfg)
}

// mustRead reads n bytes.
func mustRead(tb testing.TB, c net.Conn, n int) []byte {
	tb.Helper()
	got := make([]byte, n)
	if _, err := io.ReadFull(c, got); err != nil {
		tb.Fatal(err)
	}
	return got
}

func mustWrite(tb testing.TB, c net.Conn, p []byte) {
	tb.Helper()
	if n, err := c.Write(p); err != nil || n != len(p) {
		tb.Fatalf("wrote %d of %d: %v", n, len(p), err)
	}
}

var (
	seeds = flag.Int("seeds", 0, "random worlds for each provider; 0: a few")
	first = flag.Uint64("first", 1, "seed of the first world")
)

// TestWorlds runs streams of one link whose programs do anything at any moment, and compares what
// each of them sees with a model: the bytes of a direction are a function of their position; the
// end comes behind the last byte if the writer has ended in order, and is a reset only if one of
// the stream's own ends has reset it. No stream notices the others. In some worlds the link is cut
// behind any byte of one of them: then all of them end, in order if everything had arrived, and
// otherwise by a reset behind bytes that are all right.
func TestWorlds(t *testing.T) {
	n := 2
	switch {
	case *seeds != 0:
		n = *seeds
	case testing.Short():
		n = 1
	}
	for _, provider := range providers {
		t.Run(provider, func(t *testing.T) {
			for seed := *first; seed < *first+uint64(n); seed++ {
				world(t, provider, seed)
			}
		})
	}
}

// world is one of them. A seed fixes what the programs do, though not when.
func world(t *testing.T, provider string, seed uint64) {
	rng := rand.New(rand.NewPCG(seed, 0))
	host := nics.Config{Provider: provider}
	host.Soft.Devices = 1 + int(seed%2)
	cfg := Config{Host: newHost(t, host), Memory: leastMemory << rng.IntN(6),
		Spin: []time.Duration{-1, time.Microsecond, 0}[rng.IntN(3)]}
	l := listen(t, cfg)
	var programs []*program
	cuts := rng.IntN(3) == 0
	for id := range uint64(2 + rng.IntN(6)) {
		a, err := Dial(t.Context(), l.Addr().String(), cfg)
		if errors.Is(err, errNoMemory) {
			break
		}
		if err != nil {
			t.Fatalf("seed %d: %v", seed, err)
		}
		c, err := l.Accept()
		if err != nil {
			t.Fatalf("seed %d: %v", seed, err)
		}
		p := &program{t: t, seed: seed, id: id, ends: [2]*Conn{a, c.(*Conn)}, resets: rng.IntN(3) == 0,
			cuts: cuts, cutAt: -1}
		for i := range 2 {
			p.total[i] = rng.IntN(1 << (4 + rng.IntN(18)))
		}
		if cuts && id == 0 {
			p.cutAt = rng.IntN(p.total[1] + 1)
		}
		programs = append(programs, p)
	}
	if len(programs) == 0 {
		t.Errorf("seed %d: no stream", seed)
	}
	var all sync.WaitGroup
	for _, p := range programs {
		all.Go(p.run)
	}
	all.Wait()
}

// program is what the two ends of one stream do.
type program struct {
	t      *testing.T
	seed   uint64
	id     uint64
	ends   [2]*Conn
	total  [2]int // bytes that each end writes
	resets bool   // one of the ends resets the stream, at some moment
	cuts   bool   // the link is cut at some moment
	cutAt  int    // by this stream's first end, when it has read so many bytes; never if negative
}

// mayFail reports whether an error is one that a stream of this world may end with.
func (p *program) mayFail(err error) bool {
	return p.resets && !errors.Is(err, io.EOF) || p.cuts && errors.Is(err, syscall.ECONNRESET)
}

// at is the byte at a position of what an end writes.
func (p *program) at(end, position int) byte {
	return byte(uint64(position)*31 + uint64(position>>8) + uint64(end)*7 + p.id)
}

func (p *program) run() {
	var both sync.WaitGroup
	for end := range 2 {
		both.Go(func() { p.write(end) })
		both.Go(func() { p.read(end) })
	}
	both.Wait()
	for _, c := range p.ends {
		if err := c.Close(); err != nil && !p.resets {
			p.t.Errorf("seed %d, stream %d: close: %v", p.seed, p.id, err)
		}
	}
}

// rng is the source of one direction's choices.
func (p *program) rng(what uint64) *rand.Rand { return rand.New(rand.NewPCG(p.seed, 100*p.id+what+1)) }

// write writes what an end has to write, with deadlines on the way, and ends that side.
func (p *program) write(end int) {
	rng, c := p.rng(uint64(end)), p.ends[end]
	reset := -1
	if p.resets && end == 0 {
		reset = rng.IntN(p.total[end] + 1)
	}
	data := make([]byte, p.total[end])
	for i := range data {
		data[i] = p.at(end, i)
	}
	for at := 0; at < len(data); {
		if reset >= 0 && at >= reset {
			_, _ = c.SetLinger(0), c.Close()
			return
		}
		n := min(len(data)-at, rng.IntN(1<<(1+rng.IntN(19)))+1)
		if rng.IntN(4) == 0 {
			_ = c.SetWriteDeadline(time.Now().Add(time.Duration(rng.IntN(2000)) * time.Microsecond))
		}
		k, err := c.Write(data[at : at+n])
		at += k
		switch {
		case errors.Is(err, os.ErrDeadlineExceeded):
			_ = c.SetWriteDeadline(time.Time{})
		case err != nil && p.mayFail(err):
			return
		case err != nil || k != n:
			p.t.Errorf("seed %d, stream %d: write %d of %d at %d: %v", p.seed, p.id, k, n, at, err)
			return
		}
	}
	if err := c.CloseWrite(); err != nil && !p.mayFail(err) {
		p.t.Errorf("seed %d, stream %d: close write: %v", p.seed, p.id, err)
	}
}

// read reads to the end, and compares.
func (p *program) read(end int) {
	rng, c := p.rng(uint64(10+end)), p.ends[end]
	got, buf := 0, make([]byte, 1<<18)
	for {
		if end == 0 && p.cutAt >= 0 && got >= p.cutAt {
			_ = c.link.talk.Close()
			p.cutAt = -1
		}
		if rng.IntN(4) == 0 {
			_ = c.SetReadDeadline(time.Now().Add(time.Duration(rng.IntN(2000)) * time.Microsecond))
		}
		n, err := c.Read(buf[:1+rng.IntN(1<<(1+rng.IntN(17)))])
		for i := range n {
			if buf[i] != p.at(1-end, got+i) {
				p.t.Errorf("seed %d, stream %d: byte %d is wrong", p.seed, p.id, got+i)
				return
			}
		}
		got += n
		switch {
		case err == nil && n != 0:
		case errors.Is(err, os.ErrDeadlineExceeded):
			_ = c.SetReadDeadline(time.Time{})
		case errors.Is(err, io.EOF) && got == p.total[1-end]:
			return
		case err != nil && p.mayFail(err):
			return
		default:
			p.t.Errorf("seed %d, stream %d: read at %d of %d: %v", p.seed, p.id, got, p.total[1-end], err)
			return
		}
	}
}

func noError(tb testing.TB, err error) {
	tb.Helper()
	if err != nil {
		tb.Fatal(err)
	}
}
