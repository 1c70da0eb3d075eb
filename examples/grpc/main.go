// gRPC over RDMA: a health service and its client, which need no line that is about RDMA but the
// listener and the dialer.
//
//	go run -C examples/grpc . -listen :7471
//	go run -C examples/grpc . -dial HOST:7471     # HOST: where the first one runs
//
// Without flags, one process is both. The example is a module of its own, so that the library does
// not depend on gRPC.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"log"
	"net"
	"os"
	"os/signal"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/health"
	"google.golang.org/grpc/health/grpc_health_v1"

	"ibverbx/stream"
)

func main() {
	listen := flag.String("listen", "", "address to serve at")
	dial := flag.String("dial", "", "address of a process that serves")
	calls := flag.Int("calls", 1000, "calls to make")
	flag.Parse()
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt)
	defer stop()
	var err error
	switch {
	case *dial != "":
		err = call(ctx, *dial, *calls)
	case *listen != "":
		err = serve(ctx, *listen, func(net.Addr) error {
			<-ctx.Done()
			return nil
		})
	default:
		err = serve(ctx, "127.0.0.1:0", func(addr net.Addr) error { return call(ctx, addr.String(), *calls) })
	}
	if err = errors.Join(err, closeIdle()); err != nil {
		log.Fatal(err)
	}
}

// serve serves while the function runs, which gets the address.
func serve(ctx context.Context, addr string, while func(net.Addr) error) error {
	l, err := stream.Listen(ctx, addr, stream.Config{})
	if err != nil {
		return err
	}
	server := grpc.NewServer()
	grpc_health_v1.RegisterHealthServer(server, health.NewServer())
	served := make(chan error, 1)
	go func() { served <- server.Serve(l) }()
	log.Print("serving at ", l.Addr())
	err = while(l.Addr())
	server.Stop() // which closes the listener
	return errors.Join(err, <-served)
}

// call makes so many calls, at least one, one after the other, and prints what one takes.
func call(ctx context.Context, addr string, calls int) error {
	carrier := make(chan stream.Carrier, 1)
	dialer := func(ctx context.Context, addr string) (net.Conn, error) {
		c, err := stream.Dial(ctx, addr, stream.Config{})
		if err != nil {
			return nil, err
		}
		select {
		case carrier <- c.Carrier():
		default: // a further connection
		}
		return c, nil
	}
	// "passthrough" leaves the address to the dialer.
	conn, err := grpc.NewClient("passthrough:///"+addr, grpc.WithContextDialer(dialer),
		grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		return err
	}
	client := grpc_health_v1.NewHealthClient(conn)
	began := time.Now()
	for range max(calls, 1) {
		res, err := client.Check(ctx, &grpc_health_v1.HealthCheckRequest{})
		if err != nil {
			return errors.Join(err, conn.Close())
		}
		if res.GetStatus() != grpc_health_v1.HealthCheckResponse_SERVING {
			return errors.Join(fmt.Errorf("the service says %v", res.GetStatus()), conn.Close())
		}
	}
	took := time.Since(began) / time.Duration(max(calls, 1))
	fmt.Printf("%d calls, %v each, carried by %+v\n", calls, took.Round(time.Microsecond), <-carrier)
	return conn.Close()
}

// closeIdle waits until what was written has been delivered, at most a few seconds.
func closeIdle() error {
	ctx, cancel := context.WithTimeout(context.Background(), 5*time.Second)
	defer cancel()
	return stream.CloseIdle(ctx, nil)
}
