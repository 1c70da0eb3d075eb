// Package nics opens the NICs of this host and selects those that reach a peer: shared memory if
// the peer is on this host, and otherwise real NICs if one is usable, and RoCEv2 over UDP sockets
// if none is.
//
//	host, err := nics.Open(nics.Config{})
//	c, err := rendezvous.Dial(ctx, "host1:7471", rendezvous.Config{})
//	qp, err := host.Connect(ctx, c, ibverbx.Config{}) // the other end does the same
//
// # Which NICs
//
// With the zero [Config] a host takes its real NICs (package verbs/rdmacore). A NIC is usable if it
// can be opened and has an active port. If there is no RDMA device, no libibverbs, or no active
// port, the host takes package verbs/roce and logs "no RDMA NIC here: using UDP sockets (provider
// roce)", in a job only at rank 0. [Host.Name], [Host.Instead], [Host.Note] and [Host.LeftOut]
// return the choice and the reason, which are also logged at DEBUG. NICs that exist but cannot be
// opened, for instance for lack of a permission, are an error: a program that silently runs at a
// hundredth of its speed helps nobody.
//
// Processes of one host share memory instead (package verbs/shm): [Host.Agree], [Host.Connect] and
// [Host.ReachingAll] offer it first, and take it if all processes offer it and reach each other.
// Otherwise all take their NICs. It is logged in the same way, and so is the reason if processes of
// one host do not share memory. Containers need a common network namespace, or a directory that
// IBVERBX_SHM_DIR in the environment or Config.Shm.Dir names, in at most 62 bytes. A sandbox may
// refuse what sharing needs; then the next NICs are taken too.
//
// If you ask for NICs, no memory is shared: with another Config.Provider than Shm, with Devices,
// Library or RoCE.Addresses, or with a port or a GID in the configuration of [Host.Connect]. With
// the provider Shm a process that is not reached is an error. Name the provider Real if you
// register memory of a GPU: shared memory is copied by processors, which may not reach it.
//
// Config.Provider names a provider, and forces it. Software NICs (verbs/soft) live inside one
// process, so you get them only by name, with both ends on one [Host].
//
// The NICs of roce are addresses of the host. If you name none, [Host.Reaching], [Host.Agree] and
// [Host.Connect] make a NIC at the local address of the conversation with the peer, because that
// path is known to work. It serves all later conversations over that address.
//
// # Dependencies
//
// The package imports every provider, and verbs/rdmacore opens libibverbs at run time, so programs
// are dynamically linked. With the build tag softonly they have no real NICs and can be static. If
// you know your provider, open it directly; you then do not need this package.
package nics
