package verbs

// DeviceID is a small dense index of a device: the first device of a provider is 0. It indexes
// arrays of per-device keys, and distinguishes queue pairs of two NICs that have the same number.
// It has a meaning only within its provider.
type DeviceID uint8

// MaxDevices is the most devices of a provider: every [DeviceID] is less.
const MaxDevices = 64

// Provider is a source of NICs: software ones in this process, or the kernel's.
type Provider interface {
	// Name returns the provider's name, for people: "soft", "rdmacore".
	Name() string
	// Devices lists the NICs in the order of their DeviceID. If there is none, it returns an empty
	// list, or an error that says what is missing.
	Devices() ([]Device, error)
	// Close releases everything. It returns [ErrBusy] while objects made from its devices are open.
	Close() error
}

// Device is one NIC. Two values are equal (==) if and only if they are the same NIC of the same
// provider. An object made from a device returns that value as its Device.
type Device interface {
	ID() DeviceID
	// Name returns the NIC's name: "mlx5_0", "rxe0", "soft0".
	Name() string
	// DefaultPort returns the port to use unless the program names one: 1, or the port that was
	// chosen together with the device, as by a [DeviceFilter].
	DefaultPort() int
	Query() (DeviceAttr, error)
	// QueryPort describes a port; ports count from 1.
	QueryPort(port int) (PortAttr, error)
	// QueryGID reads one entry of a port's GID table; index is 0 to PortAttr.GIDTableLen-1.
	QueryGID(port, index int) (GIDEntry, error)

	AllocPD() (PD, error)
	// CreateCQ makes a completion queue of at least cfg.Depth entries.
	CreateCQ(cfg CQConfig) (CQ, error)

	// Watch sends every event of the NIC to c from now on, like os/signal.Notify: each watcher gets
	// each event, and sending does not wait. An event for which c has no room is lost to that
	// watcher, so give c a buffer; a nil channel has no room. In a buffer of two or more the last
	// place is reserved for [EventDeviceFatal]: if each NIC has its own channel, its death is never
	// lost. Once stop has returned, nothing more is sent to c, and you may close it. You may call
	// stop again.
	//
	// Earlier changes are not sent: watch first, then query.
	Watch(c chan<- Event) (stop func())
}

// PD is a protection domain: queue pairs can use only memory of the same domain.
type PD interface {
	Device() Device
	// RegisterMR registers buf with the NIC. The NIC may access buf until [MR.Close] has returned;
	// until then keep it reachable, at the same address. Remote write and remote atomic access need
	// local write access (IBTA 10.6.3.1; ibv_reg_mr(3)).
	RegisterMR(buf []byte, access AccessFlags) (MR, error)
	CreateQP(cfg QPConfig) (QP, error)
	// Close returns [ErrBusy] while memory regions or queue pairs of the domain are open.
	Close() error
}

// MR is a registered memory region.
type MR interface {
	// Addr returns the address of the first byte in work requests, on this host and on the peer.
	Addr() uint64
	// Len returns the region's size in bytes.
	Len() uint64
	LKey() uint32
	RKey() uint32
	// Close deregisters the memory. When it returns, the NIC no longer accesses the memory; work
	// requests that still name it complete with a protection or access error.
	Close() error
}

// CQConfig configures a completion queue.
type CQConfig struct {
	// Depth is the number of completions that the queue can hold; 0 means 256.
	Depth int
	// Channel receives the queue's completion events; nil for a queue that is only polled. CQs of
	// several devices may share one.
	Channel *CompChannel
}

// CQ is a completion queue. If it has no room for a completion it overruns: it loses that
// completion and is dead ([ErrOverrun] once it has been emptied), and the queue pairs on it fail.
type CQ interface {
	Device() Device
	// Depth returns the number of completions that the queue can hold, at least CQConfig.Depth.
	Depth() int
	// Channel returns CQConfig.Channel, which may be nil.
	Channel() *CompChannel
	// Poll moves up to len(wcs) completions into wcs, oldest first, and returns their number. It
	// neither blocks nor allocates. Completions of one direction of one queue pair are in posting
	// order.
	Poll(wcs []WC) (n int, err error)
	// Arm asks for one event on the channel when the next completion is added to the queue, or,
	// with solicitedOnly, the next receive completion of a message sent with [SendSolicited] or the
	// next error. Completions that are already in the queue raise no event: poll once more after
	// arming.
	Arm(solicitedOnly bool) error
	// Close returns [ErrBusy] while queue pairs use the queue.
	Close() error
}

// QPCap holds the sizes of a queue pair. In a request, 0 means the default in brackets; a queue
// pair reports what it got, which is never less.
type QPCap struct {
	MaxSendWR  int // work requests outstanding on the send queue [128]
	MaxRecvWR  int // work requests outstanding on the receive queue [128]
	MaxSendSGE int // scatter-gather elements of one send [4]
	MaxRecvSGE int // scatter-gather elements of one receive [4]
	MaxInline  int // bytes of one inline send [64]
}

// WithDefaults returns c with zero fields replaced by the defaults.
func (c QPCap) WithDefaults() QPCap {
	if c.MaxSendWR == 0 {
		c.MaxSendWR = 128
	}
	if c.MaxRecvWR == 0 {
		c.MaxRecvWR = 128
	}
	if c.MaxSendSGE == 0 {
		c.MaxSendSGE = 4
	}
	if c.MaxRecvSGE == 0 {
		c.MaxRecvSGE = 4
	}
	if c.MaxInline == 0 {
		c.MaxInline = 64
	}
	return c
}

// QPConfig configures a reliable-connected queue pair.
type QPConfig struct {
	SendCQ CQ // required, on the domain's device
	RecvCQ CQ // required, on the domain's device; may be SendCQ
	Cap    QPCap
	// SignalAll makes every send signaled, whatever its flags.
	SignalAll bool
}

// QP is a reliable-connected queue pair.
type QP interface {
	Device() Device
	// Num returns the queue pair's number, 24 bits, which is unique only on its device.
	Num() uint32
	// Cap returns the sizes of the queues.
	Cap() QPCap
	// State returns the current state. It may change at any moment: a fatal completion moves the
	// queue pair to ERR.
	State() QPState
	// Modify changes the attributes that mask names; a change of state is one of them.
	// [CheckModify] checks what each transition requires and allows; anything else is refused with
	// a [*ModifyError].
	Modify(attr *QPAttr, mask QPAttrMask) error
	// Query returns the current attributes.
	Query() (QPAttr, error)
	// PostSend adds work requests to the send queue, in order, and returns how many were accepted.
	// If n is less than len(wrs), the error says why wrs[n] was refused; it and all later ones had
	// no effect. It needs RTS. SQD accepts and holds requests. In ERR a request is accepted and
	// completes as flushed, or is refused with [ErrState] by drivers that accept none there.
	PostSend(wrs []SendWR) (n int, err error)
	// PostRecv does the same for the receive queue. It needs INIT or later; in ERR a request
	// completes as flushed.
	PostRecv(wrs []RecvWR) (n int, err error)
	// Close destroys the queue pair. When it returns, the NIC no longer accesses memory on its
	// behalf, and adds nothing more to its CQs. Outstanding requests yield no completion;
	// completions that were not polled before may or may not still appear.
	Close() error
}

// DMABufRegistrar is a [PD] that can register memory without an address in this process, such as
// that of a GPU, by the dma-buf that its driver exports. Ask with a type assertion; a NIC or a
// system may still refuse with [ErrNotSupported].
type DMABufRegistrar interface {
	// RegisterDMABuf registers length bytes of a dma-buf, from offset, with the NIC
	// (ibv_reg_dmabuf_mr(3); needs rdma-core 34, Linux 5.12 and a driver that supports it, such as
	// mlx5).
	//
	// fd is the dma-buf's file descriptor. The caller keeps it and may close it once the call has
	// returned: the region holds the dma-buf itself. Until [MR.Close] has returned, keep what the
	// exporter requires while the dma-buf is in use, such as a GPU allocation.
	//
	// iova is the address of the first byte in work requests, and the region's [MR.Addr]. It need
	// not be an address of this process, but its offset within a page must equal that of offset.
	// Access is as for [PD.RegisterMR].
	RegisterDMABuf(fd int, offset, length, iova uint64, access AccessFlags) (MR, error)
}

// MemoryAllocator is a [PD] whose NIC has memory of a kind that it accesses at less cost than other
// memory: NICs of shared memory make memory that the peer's process can access, too. Ask with a
// type assertion.
type MemoryAllocator interface {
	// AllocMemory makes n bytes, all zero, from the start of a page on. Register them, or parts of
	// them, like other memory.
	AllocMemory(n int) (Memory, error)
}

// Memory is memory that a [MemoryAllocator] has made.
type Memory interface {
	Bytes() []byte
	// Close ends what is special about the memory. The bytes stay what they are, and the garbage
	// collector frees them when nobody refers to them. It returns [ErrBusy] while a region that is
	// registered in the memory is open. Close it before the domain.
	Close() error
}

// RepairCounter is a [Device] that counts what it had to repair, and signs of congestion.
type RepairCounter interface {
	// Repairs returns the counters of a port by name. Names differ by driver; counters grow from
	// the time when the driver was loaded or the device made. It is empty if none can be read.
	Repairs(port int) map[string]uint64
}

// PathChecker is a [Device] that knows which ports it reaches, as software NICs do, whose network
// is their process. Ask with a type assertion; for real NICs only the fabric knows.
type PathChecker interface {
	// CheckPath returns an [ErrUnreachable] that says why packets from a local port cannot reach
	// the port with a GID, or nil. It ignores links that are down.
	CheckPath(port int, to GID) error
}
