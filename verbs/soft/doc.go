// Package soft is a provider of software NICs: several of them in this process, joined by a perfect
// network. They keep the contract of package verbs as a real NIC does, so programs, tests and
// demonstrations run on a laptop; and they can be made to fail on purpose, which a real NIC cannot.
//
// # The model
//
// A [Fabric] holds the NICs, soft0, soft1 and so on, each with one RoCE v2-like port. Any of them
// reaches any other by the GID in a queue pair's address handle. Each fabric has an identity of its
// own in its GIDs and GUIDs, drawn anew in each process, stepped or not: an end that is given the
// address of a NIC elsewhere can say so ([Device.CheckPath]). NICs hand out the same queue pair
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
// them, the others on one worker goroutine a NIC, which starts with the first need for it and ends
// with [Fabric.Close]. With a bandwidth or a latency ([DeviceConfig], [Device.SetSpeed]) they take
// their time.
//
// With [Config].Stepped nothing moves by itself and there is no clock: [Fabric.Actions] lists what
// can happen next, [Fabric.Do] makes one of them happen, [Fabric.Step] lets a seeded generator
// choose. The landing of the data, its acknowledgement and the moment a completion becomes visible
// are actions of their own, so a program can be tested against every order that a real network
// might produce. The same seed and the same calls give the same run. For how such a test looks see
// the example of protocols under faults in the module's root package.
//
// [PD.RegisterDMABuf] takes any file descriptor that can be mapped for memory of a device.
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
//	CutLink        as it executes   the link of the NIC goes down first, and up when the fault is removed
//	KillNIC        as it executes   the NIC is gone first, and comes back when the fault is removed
//	OverrunCQ      as it completes  the completion is lost, and its queue dead
//	Rewrite        as it executes   the peer sees another immediate, key or address
//	ArriveLate     as it executes   the request fails, and arrives at the peer later, with those behind it
//	PlaceLate      as it executes   the write is acknowledged before it is in memory
//
// [Device.SetLink] pulls the cable and [Device.Kill] takes the whole NIC away at any moment;
// [Device.Watch] reports both. Completions that are not successful carry garbage in the fields that
// the contract leaves undefined, and stale keys, keys of another NIC and keys used on the wrong
// side are refused.
//
// # What is stricter than some hardware
//
//   - A queue slot is free again when its completion (or for an unsignaled send a later one's) was
//     polled.
//   - A queue pair whose packet sequence numbers do not fit its peer's receives nothing from it;
//     after a reset of one side both have to be connected anew.
//   - What the access rights of a queue pair forbid ends in REM_INV_REQ_ERR, as in the kernel's
//     rdma_rxe; some NICs say REM_ACCESS_ERR.
//   - A completion queue that overruns takes its queue pairs to ERR.
//   - Access to memory is checked for the whole message before the first byte moves.
//
// # What a caller must keep
//
// The duties of package verbs hold. Close objects before their parents: queue pairs and regions
// before their protection domain, queue pairs before completion queues, all of it before the
// fabric; a Close that comes too early returns verbs.ErrBusy, names what is open, and changes
// nothing. [Fabric.Objects] counts what is open, for leak tests.
//
// A payload that is a word in memory, eight bytes at a multiple of eight or four at a multiple of
// four, lands there, and is fetched from there, by one access of sync/atomic; so do what atomics
// change and what they bring. A program may therefore wait for such a word with loads of
// sync/atomic, as it does on NICs, whose aligned words land whole, and finds behind it what the
// same queue pair wrote before it. Words within longer payloads are copied with them.
//
// Under the race detector, remote accesses that overlap on purpose (which NICs allow) are reported
// as the data races that they are in one process: the copies run on goroutines of this package.
// Words as above are none, where the program's own accesses to them are of sync/atomic.
//
// # What it costs
//
// One lock guards the fabric. A payload of more than a few KiB is copied outside of it, by the
// worker of the sending NIC or by a poll that finds nothing, 4 MiB a poll at most; several NICs
// copy in parallel. Posting and polling a small write costs well under a hundred nanoseconds and
// allocates nothing. A NIC with a bandwidth or latency keeps a core busy while something is on its
// wire.
package soft
