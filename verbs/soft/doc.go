// Package soft is a provider of software NICs: several of them in this process, joined by a perfect
// network. They keep the contract of package verbs as a real NIC does, so programs, tests and
// demonstrations run on a laptop. You can also make them fail on purpose, which a real NIC cannot
// do.
//
// # The model
//
// A [Fabric] holds the NICs, soft0, soft1 and so on, each with one RoCE v2-like port. Any of them
// reaches any other by the GID in a queue pair's address handle. The GIDs and GUIDs of a fabric
// contain an identity drawn anew in each process, stepped or not, so an end can tell that an
// address belongs to a NIC elsewhere ([Device.CheckPath]). NICs hand out the same queue pair
// numbers on purpose, as real ones do, while their memory keys always differ.
//
//	fabric, _ := soft.New(soft.Config{Devices: 2})
//	defer fabric.Close()
//	dev := fabric.Device(0)
//	pd, _ := dev.AllocPD()
//	mr, _ := pd.RegisterMR(make([]byte, 4096), verbs.AccessAll)
//	cq, _ := dev.CreateCQ(verbs.CQConfig{})
//	qp, _ := pd.CreateQP(verbs.QPConfig{SendCQ: cq, RecvCQ: cq})
//	// ... the same on fabric.Device(1), connect the two with Modify, post and poll ...
//
// By default requests execute in the background: small ones at once on the goroutine that posts
// them, the others on one worker goroutine per NIC, which starts when it is first needed and ends
// with [Fabric.Close]. A bandwidth or a latency ([DeviceConfig], [Device.SetSpeed]) delays them.
//
// With [Config].Stepped nothing moves by itself and there is no clock: [Fabric.Actions] lists what
// can happen next, [Fabric.Do] makes one of them happen, [Fabric.Step] lets a seeded generator
// choose. The landing of the data, its acknowledgement and the moment a completion becomes visible
// are separate actions, so you can test a program against every order that a real network might
// produce. The same seed and the same calls give the same run. Package ibverbx has an example of
// such a test, "protocol under faults".
//
// [PD.RegisterDMABuf] accepts any file descriptor that can be mapped as memory of a device.
//
// # Failing on purpose
//
// [Fabric.Inject] makes chosen requests go wrong, in both modes. What a [Fault] can do
// ([FaultKinds]), and when it strikes:
//
//	FailSend       as it executes   the request fails and never reaches the peer
//	FailAfterData  as it executes   the data lands, but the request fails and the peer sees no completion
//	FailRecv       as it arrives    the receive that takes the message fails, and the request with it
//	RefuseSend     as it is posted  the post is refused
//	RefuseRecv     as it is posted  the post of a receive is refused
//	StallQP        as it executes   the send queue stops until the fault is removed
//	Delay          as it executes   the request executes later
//	FailQP         as it executes   the queue pair goes to ERR, and everything of it is flushed
//	CutLink        as it executes   the NIC's link goes down before it, and up when the fault is removed
//	KillNIC        as it executes   the NIC is gone before it, and back when the fault is removed
//	OverrunCQ      as it completes  the completion is lost, and its queue dead
//	Rewrite        as it executes   the peer sees another immediate, key or address
//	ArriveLate     as it executes   the request fails, and arrives at the peer later, with those behind it
//	PlaceLate      as it executes   the write is acknowledged before it is in memory
//
// [Device.SetLink] pulls the cable and [Device.Kill] removes the whole NIC at any moment;
// [Device.Watch] reports both. Unsuccessful completions carry garbage in the fields that the
// contract leaves undefined. Stale keys, keys of another NIC and keys used on the wrong side are
// refused.
//
// # What is stricter than some hardware
//
//   - A queue slot is free again only when you have polled its completion (for an unsignaled send:
//     a later one).
//   - A queue pair whose packet sequence numbers do not fit its peer's receives nothing from it;
//     after a reset of one side you must connect both anew.
//   - A request that the access rights of a queue pair forbid ends in REM_INV_REQ_ERR, as in the
//     kernel's rdma_rxe; some NICs report REM_ACCESS_ERR.
//   - A completion queue that overruns moves its queue pairs to ERR.
//   - Access to memory is checked for the whole message before the first byte moves.
//
// # What you must do
//
// The duties of package verbs apply. Close objects before their parents: queue pairs and regions
// before their protection domain, queue pairs before completion queues, all of it before the
// fabric. If you close too early, Close returns verbs.ErrBusy, names what is open, and changes
// nothing. [Fabric.Objects] counts open objects, for leak tests.
//
// A payload that is a word in memory, eight bytes at a multiple of eight or four at a multiple of
// four, is written and read by one access of sync/atomic; so are the target and the result of
// atomics. You may therefore wait for such a word with loads of sync/atomic, as on NICs, whose
// aligned words land whole, and then find behind it what the same queue pair wrote before it. Words
// within longer payloads are copied with them.
//
// The race detector reports remote accesses that overlap on purpose (which NICs allow), because in
// one process they are data races: the copies run on goroutines of this package. It does not report
// words as above if the program's own accesses to them use sync/atomic.
//
// # What it costs
//
// One lock guards the fabric. A payload of more than a few KiB is copied outside it, by the worker
// of the sending NIC or by a poll that finds nothing, at most 4 MiB per poll; several NICs copy in
// parallel. Posting and polling a small write costs well under a hundred nanoseconds and allocates
// nothing. A NIC with a bandwidth or latency keeps a core busy while something is on its wire.
package soft
