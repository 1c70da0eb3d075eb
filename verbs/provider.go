package verbs

// DeviceID is a small dense index of a device: the first device of a provider is 0. It indexes
// arrays of per-device keys, and distinguishes queue pairs of two NICs that have the same number.
// It means something only together with the provider that gave it.
type DeviceID uint8

// MaxDevices is the most devices of a provider: every [DeviceID] is below it.
const MaxDevices = 64

// Provider is a source of NICs: software ones in this process, or the kernel's.
type Provider interface {
	// Name says which provider this is, for people: "soft", "rdmacore".
	Name() string
	// Devices lists the NICs in the order of their DeviceID. No NIC is an empty list, or an error
	// that says what is missing.
	Devices() ([]Device, error)
	// Close gives everything back. It returns [ErrBusy] while objects made from its devices are
	// open.
	Close() error
}

// Device is one NIC. Values of one NIC are equal, of two NICs or providers different: whatever was
// made from a device names that one as its Device.
type Device interface {
	ID() DeviceID
	// Name is the NIC's name: "mlx5_0", "rxe0", "soft0".
	Name() string
	// DefaultPort is the port that a program uses unless it says otherwise: 1, or the one that was
	// chosen together with the device, as by a [DeviceFilter].
	DefaultPort() int
	Query() (DeviceAttr, error)
	// QueryPort describes a port; ports count from 1.
	QueryPort(port int) (PortAttr, error)
	// QueryGID reads one entry of a port's GID table; entries count from 0 to
	// PortAttr.GIDTableLen-1.
	QueryGID(port, index int) (GIDEntry, error)

	AllocPD() (PD, error)
	// CreateCQ makes a completion queue of at least cfg.Depth entries.
	CreateCQ(cfg CQConfig) (CQ, error)

	// Watch sends every event of the NIC to c from now on, in the manner of os/signal.Notify: each
	// watcher gets each event, and sending does not wait. An event for which c has no room is lost
	// to that watcher, so give c a buffer; nil has room for nothing. Of a buffer of two or more the
	// last place is kept for [EventDeviceFatal]: with a channel for each NIC no other event takes
	// it, and no death is lost. Once stop has returned nothing
	// more is sent to c, and it may be closed. Stop may be called again.
	//
	// A watcher learns of no change that came before it: watch first, then query.
	Watch(c chan<- Event) (stop func())
}

// PD is a protection domain: memory and queue pairs work together only within one.
type PD interface {
	Device() Device
	// RegisterMR makes buf known to the NIC. The NIC may touch buf until [MR.Close] has returned;
	// until then the caller keeps it reachable and does not move it. Remote write and remote atomic
	// access demand local write access (IBTA 10.6.3.1; ibv_reg_mr(3)).
	RegisterMR(buf []byte, access AccessFlags) (MR, error)
	CreateQP(cfg QPConfig) (QP, error)
	// Close returns [ErrBusy] while memory regions or queue pairs of the domain are open.
	Close() error
}

// MR is a registered memory region.
type MR interface {
	// Addr is the address by which work requests on this host and on the peer name the first byte.
	Addr() uint64
	// Len is the region's size in bytes.
	Len() uint64
	LKey() uint32
	RKey() uint32
	// Close deregisters. When it returns the NIC no longer touches the memory; work requests that
	// still name it complete with a protection or access error.
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

// CQ is a completion queue. One that has no room for a completion is overrun: it loses that
// completion and is dead ([ErrOverrun] once it has been emptied), and the queue pairs on it fail.
type CQ interface {
	Device() Device
	// Depth is the number of completions that the queue can hold, at least what was asked for.
	Depth() int
	// Channel is the one given at creation, or nil.
	Channel() *CompChannel
	// Poll moves up to len(wcs) completions into wcs, oldest first, and says how many. It neither
	// blocks nor allocates. Completions of one direction of one queue pair come in posting order.
	Poll(wcs []WC) (n int, err error)
	// Arm asks for one event on the channel when the next completion is added to the queue, or,
	// with solicitedOnly, the next receive completion of a message sent with [SendSolicited] or the
	// next error. Completions that are already in the queue raise no event: poll once more after
	// arming.
	Arm(solicitedOnly bool) error
	// Close returns [ErrBusy] while queue pairs use the queue.
	Close() error
}

// QPCap holds the sizes of a queue pair. In a request, 0 picks the default in brackets; a queue
// pair reports what it really got, which is never less.
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
	// Num is the queue pair's number, 24 bits, unique on its device only.
	Num() uint32
	// Cap says how large the queues are.
	Cap() QPCap
	// State is the present state. It may change at any moment: a fatal completion moves the queue
	// pair to ERR.
	State() QPState
	// Modify changes the attributes that mask names; a change of state is one of them.
	// [CheckModify] says what each transition demands and allows; anything else is refused with a
	// [*ModifyError].
	Modify(attr *QPAttr, mask QPAttrMask) error
	// Query returns the attributes now in force.
	Query() (QPAttr, error)
	// PostSend hands work requests to the send queue, in order, and says how many were accepted.
	// When n is less than len(wrs) the error says why wrs[n] was refused; it and those behind it
	// had no effect. Needs RTS (SQD accepts and holds; in ERR a request is accepted and completes
	// as flushed, or refused with [ErrState] by drivers that take none there).
	PostSend(wrs []SendWR) (n int, err error)
	// PostRecv does the same for the receive queue. Needs INIT or later; in ERR a request completes
	// as flushed.
	PostRecv(wrs []RecvWR) (n int, err error)
	// Close destroys the queue pair. When it returns the NIC touches no memory on its behalf any
	// more, and nothing further is added to its CQs. Outstanding requests yield no completion;
	// completions that were not yet polled may or may not still appear.
	Close() error
}

// DMABufRegistrar is a [PD] that can register memory which has no address in this process, such as
// that of a GPU, by the dma-buf that its driver exports. Ask with a type assertion; a NIC or a
// system that lacks it refuses with [ErrNotSupported] nevertheless.
type DMABufRegistrar interface {
	// RegisterDMABuf makes length bytes of a dma-buf, from offset, known to the NIC
	// (ibv_reg_dmabuf_mr(3); needs rdma-core 34, Linux 5.12 and a driver that takes part, as mlx5
	// does).
	//
	// fd is the dma-buf's file descriptor. It stays the caller's, who may close it once the call
	// has returned: the region holds the dma-buf itself. What the exporter demands for as long as
	// it is in use (keeping a GPU allocation, say) is to be kept until [MR.Close] has returned.
	//
	// iova is the address by which work requests name the first byte, and [MR.Addr] of the region.
	// It need not be an address of this process, but its offset within a page must be that of
	// offset. Access is as for [PD.RegisterMR].
	RegisterDMABuf(fd int, offset, length, iova uint64, access AccessFlags) (MR, error)
}

// PathChecker is a [Device] that knows by itself which ports it reaches, as software NICs do, whose
// network is their process. Ask with a type assertion; of real NICs the fabric alone knows.
type PathChecker interface {
	// CheckPath says why packets from a local port cannot come to the port with a GID: an error
	// that is [ErrUnreachable], or nil. It says nothing of links that are down.
	CheckPath(port int, to GID) error
}
