package stream

import (
	"bufio"
	"context"
	"fmt"
	"io"
	"log/slog"
	"net"
	"os"
	"os/exec"
	"strings"
	"sync"
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
func echoing(tb testing.TB, provider string) (addr string, kill func()) {
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
	var once sync.Once
	kill = func() {
		once.Do(func() {
			_ = cmd.Process.Kill()
			_ = in.Close()
			_ = cmd.Wait()
		})
	}
	tb.Cleanup(kill)
	line, err := bufio.NewReader(out).ReadString('\n')
	if _, _, bad := net.SplitHostPort(strings.TrimSpace(line)); err != nil || bad != nil {
		tb.Skipf("the process says %q, %v", line, err)
	}
	return strings.TrimSpace(line), kill
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
