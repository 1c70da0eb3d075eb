package stream_test

import (
	"context"
	"fmt"
	"io"
	"log"
	"net"
	"net/http"
	"net/rpc"
	"time"

	"ibverbx/nics"
	"ibverbx/stream"
)

// An HTTP server and client run unchanged over streams. The NICs of this example are software; with
// the zero Config they are the best that both ends have.
func Example() {
	host := must(nics.Open(nics.Config{Provider: nics.Soft}))
	cfg := stream.Config{Host: host}
	ctx := context.Background()

	l := must(stream.Listen(ctx, "127.0.0.1:0", cfg))
	server := &http.Server{ReadHeaderTimeout: time.Minute, Handler: http.HandlerFunc(
		func(w http.ResponseWriter, r *http.Request) {
			_, _ = fmt.Fprintf(w, "hello over RDMA, %s", r.URL.Path[1:])
		})}
	go func() { _ = server.Serve(l) }()

	transport := &http.Transport{DialContext: func(ctx context.Context, _, addr string) (net.Conn, error) {
		return stream.Dial(ctx, addr, cfg)
	}}
	client := http.Client{Transport: transport}
	res, err := client.Get("http://" + l.Addr().String() + "/gopher")
	check(err)
	fmt.Printf("%s\n", must(io.ReadAll(res.Body)))
	check(res.Body.Close())

	transport.CloseIdleConnections()
	check(server.Close())
	check(stream.CloseIdle(ctx, host))
	check(host.Close())
	// Output: hello over RDMA, gopher
}

// Adder is a service of package net/rpc.
type Adder struct{}

// Add adds two numbers.
func (Adder) Add(args [2]int, sum *int) error {
	*sum = args[0] + args[1]
	return nil
}

// A server and a client of net/rpc take a stream for a connection.
func ExampleListener() {
	host := must(nics.Open(nics.Config{Provider: nics.Soft}))
	cfg := stream.Config{Host: host}
	ctx := context.Background()

	l := must(stream.Listen(ctx, "127.0.0.1:0", cfg))
	server := rpc.NewServer()
	check(server.Register(Adder{}))
	go server.Accept(l)

	client := rpc.NewClient(must(stream.Dial(ctx, l.Addr().String(), cfg)))
	var sum int
	check(client.Call("Adder.Add", [2]int{20, 22}, &sum))
	fmt.Println(sum)

	check(client.Close())
	check(l.Close())
	check(stream.CloseIdle(ctx, host))
	check(host.Close())
	// Output: 42
}

func must[T any](v T, err error) T {
	check(err)
	return v
}

func check(err error) {
	if err != nil {
		log.Fatal(err)
	}
}
