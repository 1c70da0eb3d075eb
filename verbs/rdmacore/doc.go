// Package rdmacore is a provider of real NICs: those that the host's libibverbs knows, from mlx5,
// bnxt_re and irdma to the kernel's software NIC, rdma_rxe. They must use InfiniBand or RoCE: iWARP
// NICs connect in a different way and are left out.
//
// The library is opened at run time, without a C compiler or a header at build time, with cgo and
// without. A program opts in by importing the package, which makes its binary dynamically linked; a
// program that needs only software NICs stays static.
//
//	p, err := rdmacore.Open(rdmacore.Config{Devices: "mlx5_0,mlx5_1"})
//	if err != nil {
//		log.Fatal(err) // says what is missing, and how to get it
//	}
//	defer p.Close()
//	nics, _ := p.Devices()
//	qp, err := ibverbx.Open(nics, ibverbx.Config{})
//
// # Memory
//
// You can register two kinds of memory, whole or in parts, on any number of devices:
//
//   - Bytes of the Go heap. They are pinned, for the garbage collector and for the kernel, until
//     [verbs.MR.Close]; the region keeps them reachable. Use this for buffers of a few MiB that
//     come from elsewhere.
//   - An [Arena]: mapped memory that the garbage collector does not know. It uses huge pages if the
//     host has reserved some, for which a NIC needs 1/512 of the translations. Use this for pools
//     and for anything large. Only [Arena.Close] frees it, and refuses while regions over it are
//     open.
//
// You can also pass memory of other origin (a mapped file, memory of a C library) as a []byte if
// its owner keeps it mapped until the region is closed, and GPU memory through its dma-buf
// ([verbs.DMABufRegistrar]).
//
// Registered memory is locked. A process may have a limit of locked memory (ulimit -l); the error
// says how to raise it.
//
// # Fork
//
// os/exec is safe: the child shares the parent's memory until it executes, and copies nothing. A
// process that forks in C without executing, which Go programs do not do, needs Linux 5.12 or
// later, which copies the pages that a NIC uses for the child instead of taking them from the
// parent. On older kernels set RDMAV_FORK_SAFE=1 in the environment before [Open]: libibverbs reads
// it once.
//
// # Events
//
// Completion events and asynchronous events are read through Go's own poller: waiting takes a
// goroutine and no thread. A device has one completion channel for all its CQs.
//
// A queue pair may fail without a completion that reports it, for example as the responder to an
// invalid request: [verbs.QP.State] asks the kernel.
//
// # A NIC that is removed
//
// When a driver is unloaded or a NIC pulled, watchers get [verbs.EventDeviceFatal], posts return
// [verbs.ErrDeviceGone], polls return it once a queue is empty, and sleepers on a completion
// channel wake. You can close everything as usual; what libibverbs itself has allocated for the NIC
// leaks, because the kernel no longer answers.
//
// # What it costs
//
// A post, a poll or a request for an event calls into C, which takes some 75 ns: BenchmarkArm, over
// a library that does next to nothing, least of 60 runs on a loaded Xeon at 2.5 GHz. Other calls,
// and all with the build tag purego, take about twice that. A post calls once for every 64
// requests, a poll once for every 64 completions. What C reads and writes is in memory mapped for
// the purpose, some 24 KiB per queue pair with the default limits. Nothing is allocated once warm.
package rdmacore
