// Package nics opens the NICs that this host has, whichever these are, and finds those that reach a
// peer: real NICs where there is a usable one, and RoCEv2 over UDP sockets where there is none.
//
//	host, err := nics.Open(nics.Config{})
//	c, err := rendezvous.Dial(ctx, "host1:7471", rendezvous.Config{})
//	qp, err := host.Connect(ctx, c, ibverbx.Config{}) // the other end does the same
//
// # Which NICs
//
// With the zero [Config] a host takes its real NICs (package verbs/rdmacore). One is usable if it
// can be opened and has a port that is up. Where there is no RDMA device, no libibverbs, or no port
// that is up, it takes package verbs/roce. What it has taken, and why, is logged, and can be asked
// for: [Host.Name], [Host.Instead], [Host.LeftOut]. NICs that are there and cannot be opened, for
// want of a permission for instance, are an error and no reason to take others: a program that runs
// at a hundredth of its speed without a word helps nobody.
//
// Config.Provider names a provider. Software NICs (verbs/soft) live inside one process, so they are
// taken only where they are named, with both ends on one [Host].
//
// The NICs of roce are addresses of the host. Where none is named, [Host.Reaching], [Host.Agree]
// and [Host.Connect] make a NIC at the address over which the conversation with the peer runs,
// since that way is proven; it serves all later conversations over that address.
//
// # Who pays for it
//
// The package imports every provider, and with verbs/rdmacore what opens libibverbs at run time:
// programs are dynamically linked. With the build tag softonly they have no real NICs and can be
// static. A program that knows its provider opens that instead, and needs this package not at all.
package nics
