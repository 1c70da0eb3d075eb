package tagged_test

import (
	"context"
	"fmt"
	"log"
	"sync"

	"ibverbx"
	"ibverbx/tagged"
	"ibverbx/verbs/soft"
)

// Two workers, each with a software NIC of its own. Bob picks messages by their tags, in another
// order than they were sent in.
func Example() {
	fabric, err := soft.New(soft.Config{Devices: 2})
	check(err)
	defer fabric.Close()
	alice, bob := worker(fabric, 0), worker(fabric, 1)
	defer alice.Close()
	defer bob.Close()

	toBob, err := alice.NewEndpoint(tagged.EndpointConfig{Name: "bob"})
	check(err)
	toAlice, err := bob.NewEndpoint(tagged.EndpointConfig{Name: "alice"})
	check(err)
	// between two processes: exchange toBob.Card() and toAlice.Card() as JSON
	check(tagged.Connect(toBob, toAlice))

	ctx := context.Background()
	const weights, greeting = 1, 2
	// read by Bob straight from here, over every queue pair
	sending, err := toBob.Send(weights, make([]byte, 64<<20))
	check(err)
	check(toBob.SendWait(ctx, greeting, []byte("hello, "), []byte("bob")))

	buf := make([]byte, 64<<20)
	info, err := bob.RecvWait(ctx, greeting, tagged.Exact, buf)
	check(err)
	fmt.Printf("%s: %s\n", info.Source.Name(), buf[:info.Length])
	info, err = bob.RecvWait(ctx, 0, tagged.Any, buf)
	check(err)
	fmt.Printf("%s: %d MiB of weights\n", info.Source.Name(), info.Length>>20)
	check(sending.Wait(ctx)) // Alice may write to the 64 MiB again

	// Output:
	// alice: hello, bob
	// alice: 64 MiB of weights
}

// Four ranks pass a sum round a ring. Each would be a process of its own, and Exchange the
// AllGather of package job; here they are goroutines.
func ExampleJoin() {
	const ranks = 4
	fabric, err := soft.New(soft.Config{Devices: ranks})
	check(err)
	defer fabric.Close()
	ctx := context.Background()
	all := newAllGather(ranks)
	var group sync.WaitGroup
	for rank := range ranks {
		group.Go(func() {
			dom, err := ibverbx.NewDomain(fabric.Device(rank))
			check(err)
			defer dom.Close()
			exchange := func(ctx context.Context, mine []byte) ([][]byte, error) {
				return all.call(ctx, rank, mine)
			}
			cfg := tagged.Config{Rank: rank, Size: ranks, Exchange: exchange, OnDemand: true}
			w, err := tagged.Join(ctx, dom, cfg)
			check(err)
			defer w.Close()

			next, err := w.Peer((rank + 1) % ranks)
			check(err)
			sum := []byte{0}
			if rank != 0 {
				_, err = w.RecvWait(ctx, 1, tagged.Exact, sum)
				check(err)
			}
			sum[0] += byte(rank)
			check(next.SendWait(ctx, 1, sum))
			if rank == 0 {
				info, err := w.RecvWait(ctx, 1, tagged.Exact, sum)
				check(err)
				fmt.Printf("%v: the ranks add up to %d\n", info.Source, sum[0])
			}
			_, err = exchange(ctx, nil) // nobody leaves before all are done
			check(err)
		})
	}
	group.Wait()
	// Output:
	// rank 3: the ranks add up to 6
}

// A server that does not know how long a request is, nor which client is next.
func ExampleWorker_RecvAlloc() {
	fabric, err := soft.New(soft.Config{Devices: 2})
	check(err)
	defer fabric.Close()
	client, server := worker(fabric, 0), worker(fabric, 1)
	defer client.Close()
	defer server.Close()
	toServer, err := client.NewEndpoint(tagged.EndpointConfig{Name: "server"})
	check(err)
	toClient, err := server.NewEndpoint(tagged.EndpointConfig{Name: "client"})
	check(err)
	check(tagged.Connect(toServer, toClient))

	ctx := context.Background()
	const request, replies = 1, 100 // a reply has the tag replies and the number of its request
	var waiting []*tagged.Request
	for i, text := range []string{"short", "somewhat longer"} {
		answer, err := client.Recv(replies+uint64(i), tagged.Exact, make([]byte, 8))
		check(err)
		waiting = append(waiting, answer)
		check(toServer.SendWait(ctx, request, []byte(text)))
	}
	for i := range waiting {
		body, info, err := server.RecvAlloc(ctx, request, tagged.Exact, 1<<20)
		check(err)
		fmt.Printf("%s asks: %q\n", info.Source, body)
		check(info.Source.SendWait(ctx, replies+uint64(i), []byte{byte(len(body))}))
	}
	check(tagged.WaitAll(ctx, waiting...))
	fmt.Println(waiting[1].Info())

	// Output:
	// client asks: "short"
	// client asks: "somewhat longer"
	// tag 0x65, 1 bytes from server
}

// worker makes a worker on one NIC of the fabric, which makes progress by itself.
func worker(fabric *soft.Fabric, nic int) *tagged.Worker {
	dom, err := ibverbx.NewDomain(fabric.Device(nic))
	check(err)
	w, err := tagged.NewWorker(dom, tagged.Config{})
	check(err)
	check(w.Start())
	return w
}

func check(err error) {
	if err != nil {
		log.Fatal(err)
	}
}
