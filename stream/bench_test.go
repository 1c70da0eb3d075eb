package stream

import (
	"context"
	"io"
	"net"
	"net/http"
	"path/filepath"
	"runtime"
	"testing"
	"time"

	"ibverbx/nics"
)

// beside are the pairs that are measured in one run: streams over each provider, and what package
// net has.
func beside(b *testing.B, run func(b *testing.B, x, y net.Conn)) {
	for _, provider := range providers {
		b.Run(provider, func(b *testing.B) {
			x, y := pair(b, over(b, provider))
			run(b, x, y)
		})
	}
	for _, network := range []string{"tcp", "unix"} {
		b.Run(network, func(b *testing.B) {
			addr := "127.0.0.1:0"
			if network == "unix" {
				addr = filepath.Join(b.TempDir(), "socket")
			}
			l, err := net.Listen(network, addr)
			if err != nil {
				b.Fatal(err)
			}
			defer func() { _ = l.Close() }()
			x, err := net.Dial(network, l.Addr().String())
			if err != nil {
				b.Fatal(err)
			}
			y, err := l.Accept()
			if err != nil {
				b.Fatal(err)
			}
			defer func() { _, _ = x.Close(), y.Close() }()
			run(b, x, y)
		})
	}
}

// BenchmarkPingPong is eight bytes there and back; one way is half of it.
func BenchmarkPingPong(b *testing.B) {
	beside(b, func(b *testing.B, x, y net.Conn) {
		go func() {
			p := make([]byte, 8)
			for {
				if _, err := io.ReadFull(y, p); err != nil {
					return
				}
				if _, err := y.Write(p); err != nil {
					return
				}
			}
		}()
		p := make([]byte, 8)
		b.ReportAllocs()
		for b.Loop() {
			if _, err := x.Write(p); err != nil {
				b.Fatal(err)
			}
			if _, err := io.ReadFull(x, p); err != nil {
				b.Fatal(err)
			}
		}
		_ = x.Close()
	})
}

// BenchmarkWrite is writes of a MiB, read into a MiB; the last byte of each is checked.
func BenchmarkWrite(b *testing.B) {
	beside(b, func(b *testing.B, x, y net.Conn) {
		read := make(chan int64)
		go func() {
			p, n := make([]byte, 1<<20), int64(0)
			for {
				k, err := io.ReadFull(y, p)
				if n += int64(k); err != nil {
					break
				}
				if want := byte(n >> 20); p[len(p)-1] != want {
					b.Errorf("%d ends with %d", n, p[len(p)-1])
				}
			}
			read <- n
		}()
		p, sent := make([]byte, 1<<20), int64(0)
		b.SetBytes(int64(len(p)))
		b.ReportAllocs()
		for b.Loop() {
			sent += int64(len(p))
			p[len(p)-1] = byte(sent >> 20)
			if _, err := x.Write(p); err != nil {
				b.Fatal(err)
			}
		}
		_ = x.Close()
		if n := <-read; n != sent {
			b.Fatalf("%d of %d bytes", n, sent)
		}
	})
}

// BenchmarkGet is an HTTP GET of 64 MiB.
func BenchmarkGet(b *testing.B) {
	get := func(b *testing.B, l net.Listener, dial func(ctx context.Context) (net.Conn, error)) {
		body := make([]byte, 64<<20)
		server := &http.Server{ReadHeaderTimeout: patience, Handler: http.HandlerFunc(
			func(w http.ResponseWriter, _ *http.Request) { _, _ = w.Write(body) })}
		go func() { _ = server.Serve(l) }()
		client := &http.Transport{DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
			return dial(ctx)
		}}
		buf := make([]byte, 1<<20)
		b.SetBytes(int64(len(body)))
		for b.Loop() {
			res, err := (&http.Client{Transport: client}).Get("http://" + l.Addr().String())
			if err != nil {
				b.Fatal(err)
			}
			n, err := io.CopyBuffer(struct{ io.Writer }{io.Discard}, struct{ io.Reader }{res.Body}, buf)
			_ = res.Body.Close()
			if err != nil || n != int64(len(body)) {
				b.Fatalf("%d bytes, %v", n, err)
			}
		}
		client.CloseIdleConnections()
		_ = server.Close()
	}
	for _, provider := range providers {
		b.Run(provider, func(b *testing.B) {
			cfg := over(b, provider)
			l := listen(b, cfg)
			get(b, l, func(ctx context.Context) (net.Conn, error) {
				return Dial(ctx, l.Addr().String(), cfg)
			})
		})
	}
	b.Run("tcp", func(b *testing.B) {
		l, err := net.Listen("tcp", "127.0.0.1:0")
		if err != nil {
			b.Fatal(err)
		}
		get(b, l, func(ctx context.Context) (net.Conn, error) {
			return new(net.Dialer).DialContext(ctx, "tcp", l.Addr().String())
		})
	})
}

// BenchmarkConnections opens 10,000 streams between two ends of this process, with a request of 1
// KiB on each. It reports streams opened a second, and KiB of memory for the two ends of one.
func BenchmarkConnections(b *testing.B) {
	const n = 10_000
	for b.Loop() {
		cfg := over(b, nics.Soft)
		cfg.Backlog = n
		l := listen(b, cfg)
		before := heapBytes()
		ends := make([]net.Conn, 0, 2*n)
		began := time.Now()
		for range n {
			c, err := Dial(b.Context(), l.Addr().String(), cfg)
			if err != nil {
				b.Fatal(err)
			}
			ends = append(ends, c)
		}
		took := time.Since(began)
		request := make([]byte, 1<<10)
		for _, c := range ends[:n] {
			mustWrite(b, c, request)
			x, err := l.Accept()
			if err != nil {
				b.Fatal(err)
			}
			ends = append(ends, x)
		}
		for _, c := range ends[n:] {
			if _, err := io.ReadFull(c, request); err != nil {
				b.Fatal(err)
			}
		}
		b.ReportMetric(n/took.Seconds(), "opened/s")
		b.ReportMetric(float64(heapBytes()-before)/n/1024, "KiB/stream")
		b.ReportMetric(float64(runtime.NumGoroutine()), "goroutines")
		for _, c := range ends {
			_ = c.Close()
		}
	}
}

// heapBytes is the memory that is in use after a collection.
func heapBytes() int64 {
	runtime.GC()
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	return int64(m.HeapAlloc)
}
