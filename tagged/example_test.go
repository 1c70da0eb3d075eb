package tagged_test

import (
	"context"
	"fmt"
	"log"

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
