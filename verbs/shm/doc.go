// Package shm is a provider of NICs for the processes of one host: they share memory. It needs no
// RDMA hardware, no kernel module, no privilege, no file, and no room in /dev/shm.
//
//	provider, _ := shm.Open(shm.Config{})
//	defer provider.Close()
//	dev := provider.Device(0)
//	// ... as with every device of package verbs
//
// # The model
//
// A [Device] has a meeting place, a unix socket that is named after its GID, which is drawn anew in
// each process:
//
//	fd73:686d:PLACE:PLACE:RANDOM:RANDOM:RANDOM:RANDOM
//
// PLACE is the same for all NICs of a host, so a NIC of another host is refused when a queue pair
// goes to RTR. When a queue pair goes to RTS, its NIC dials the peer's meeting place, if it has not
// done so for another one, and passes a piece of memory: a ring of requests and a window for their
// payloads. From then on the two processes only read and write memory. The socket has two more
// purposes: whoever sleeps is woken by a byte, and its end is how the death of a process is known.
//
// Each byte is copied twice: by the process that sends it into the window, and by the one that
// receives it out of the window. The process that owns memory checks each request, as a NIC does.
// It does so while its program posts or polls; when it does not, a goroutine that the socket has
// woken does.
//
// # Arenas
//
// Memory of verbs.MemoryAllocator, as ibverbx.Domain.Alloc makes it, is an arena, which peers can
// map too. A peer that has used the key of a region in an arena is granted the region: from then on
// its own processor writes, reads and adds there, with one copy, and without the process that owns
// the memory. A WRITE_WITH_IMM puts its payload in place and sends the notification through the
// ring. A SEND goes through the ring, since only the receiver knows where it belongs. Everything
// else stays what it is: keys, bounds, rights, order, completions, errors.
//
// An arena takes a file descriptor, and is taken from the system when it is made. Its memory is an
// object of the Go heap whose pages are shared until it is closed. So it stays what it is behind
// Close, as long as you refer to it.
//
// [MR.Close] waits until no peer is in a copy, which takes microseconds. A peer that is stopped in
// one has as long as for an answer; then its connections end, and the arena gets pages that the
// peer does not have.
//
// # Where two processes meet
//
// The sockets are abstract: nothing of them is left behind, and all processes of a network
// namespace find each other, also from containers with file systems, process numbers and IPC of
// their own. Containers with network namespaces of their own need a directory that they share: see
// [Config].Dir. In such a directory a process that was killed leaves a socket file. The next NIC
// that is opened there removes it, if the file is older than 10 seconds: a younger one may belong
// to a process that is just starting. [Device.CheckPath] dials, and says what is in the way.
//
// # When a process dies
//
// Whether it exits, crashes or is killed: the kernel closes its sockets, and within milliseconds
// every queue pair that was connected to it is in ERR. Its oldest request ends in
// verbs.StatusRetryExcErr, the others and the receives are flushed, all with the vendor code
// 0x53484d01, and a queue pair without either raises verbs.EventQPFatal. What the process had
// published before its death is carried out. Memory is freed with the last process that maps it;
// there is nothing to clean up.
//
// A peer that closes or resets its queue pair, or moves it to ERR, is silent from then on, as on
// every NIC, and a process that is stopped is silent too: requests wait for timeout · (retries +
// 1), and then end in verbs.StatusRetryExcErr. Allow some 4 seconds, as virtual queue pairs do by
// default.
//
// # Security
//
// Processes of other users are refused, by what the kernel says of the socket, unless
// [Config].Allow admits them. A peer can write anything into the memory that it shares with this
// process, at any time. This process copies each request before it looks at it, and believes no
// counter and no length. So whatever a peer does, there is no crash and no hang, no access outside
// of the regions that it was given the keys of, and no completion of a request that this end did
// not post. An exception are arenas: a peer that has the key of one region in an arena can read and
// write all of it, whatever the region's rights, until you close the arena. Put memory for peers
// that you trust differently into different ones. A NIC has at most 512 links that peers have
// dialed, and maps at most 16,384 lanes of theirs. All shared memory is sealed, so that no peer can
// shrink it under a process that reads it.
//
// Not promised is that a peer does not keep this process busy. In a user namespace, all users that
// it does not map are 65534: a process that runs as that user there does not tell them apart.
//
// # What you must do
//
// The duties of package verbs apply. Close objects before their parents, and everything before the
// provider: an early Close returns verbs.ErrBusy and changes nothing. A peer takes a process that
// exits with open queue pairs for one that has died.
//
// # What it costs
//
// A queue pair in RTS has 12 KiB of shared memory, and up to 256 KiB more once it has moved
// payloads of more than 32 bytes; so has its peer's. The memory counts against the memory limit
// (cgroup) of the process that first writes it. A link takes two file descriptors in each process.
// A queue pair takes one from RTS until its memory is passed to the peer: if there is none, Modify
// returns verbs.ErrNoMemory; if the peer has none left then, requests time out.
//
// A link shows at most 64 arenas, and a queue pair grants at most 32 regions at a time. Further
// ones, and memory that is no arena, are written and read through the window. The kernel could copy
// there at once (process_vm_writev). That is not built: it needs the right to trace the peer, which
// Yama and process numbers of a container's own refuse, it would be one more way that checks
// memory, and it gains little. The window gives 8.7 GB/s for 4 KiB, an arena 58, and that call 6.6;
// for buffers of 1 MiB beyond the caches 6.7, 7.6 and 5.4. The call is ahead of the window, with 23
// to 14, only for large buffers that stay in the caches, where an arena has 23 too.
//
// One lock guards a NIC and its objects, and a second one those who poll, so polling an empty queue
// does not block posting. While a program polls, the report of its latest messages waits for its
// answer or its next poll, at most 400 microseconds: until then the sender's completion is late. An
// idle NIC uses no processor.
//
// # Systems
//
// Linux. Elsewhere, and where a sandbox forbids memfd_create or unix sockets, Open returns an error
// that is verbs.ErrNotSupported.
package shm
