package stream

import (
	"io"
	"net"
	"path/filepath"
	"testing"
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
