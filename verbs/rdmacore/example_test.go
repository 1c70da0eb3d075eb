package rdmacore_test

import (
	"errors"
	"fmt"
	"log"

	"ibverbx"
	"ibverbx/verbs"
	"ibverbx/verbs/rdmacore"
	"ibverbx/verbs/soft"
)

// A program that takes real NICs where there are some, and software NICs elsewhere.
func ExampleOpen() {
	var provider verbs.Provider
	provider, err := rdmacore.Open(rdmacore.Config{})
	if errors.Is(err, rdmacore.ErrNoLibrary) || errors.Is(err, rdmacore.ErrNoDevice) {
		log.Printf("software NICs, since there are no others: %v", err)
		provider, err = soft.New(soft.Config{Devices: 2})
	}
	if err != nil {
		log.Fatal(err)
	}
	defer provider.Close()
	nics, err := provider.Devices()
	if err != nil {
		log.Fatal(err)
	}
	q, err := ibverbx.Open(nics, ibverbx.Config{})
	if err != nil {
		log.Fatal(err)
	}
	defer q.Close()
	fmt.Println(len(q.CQ().Devices()), "NICs")
}

// Memory for a pool: one arena, registered on every NIC of a domain.
func ExampleProvider_NewArena() {
	provider, err := rdmacore.Open(rdmacore.Config{Devices: "mlx5_0,mlx5_1"})
	if err != nil {
		log.Fatal(err)
	}
	defer provider.Close()
	arena, err := provider.NewArena(64 << 20)
	if err != nil {
		log.Fatal(err)
	}
	defer arena.Close() // after the regions over it
	nics, err := provider.Devices()
	if err != nil {
		log.Fatal(err)
	}
	domain, err := ibverbx.NewDomain(nics...)
	if err != nil {
		log.Fatal(err)
	}
	defer domain.Close()
	pool, err := domain.Register(arena.Bytes(), verbs.AccessAll)
	if err != nil {
		log.Fatal(err)
	}
	defer pool.Close()
	fmt.Println(pool.Len(), "bytes on", len(nics), "NICs, huge pages:", arena.HugePages())
}

// Events report that a port goes down, or that a NIC is removed.
func ExampleProvider_Devices() {
	provider, err := rdmacore.Open(rdmacore.Config{})
	if err != nil {
		log.Fatal(err)
	}
	defer provider.Close()
	nics, err := provider.Devices()
	if err != nil {
		log.Fatal(err)
	}
	events := make(chan verbs.Event, 16)
	for _, nic := range nics {
		defer nic.Watch(events)()
	}
	fmt.Println(<-events) // rxe0 port 1: port error
}
