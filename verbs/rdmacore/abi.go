//go:build linux && (amd64 || arm64)

package rdmacore

// The structures of <infiniband/verbs.h> as C lays them out on 64-bit Linux, under their C names.
// Only structures in memory that C reads or writes are here; a field that is not used is padding
// with its name. layout_test.go compares each with the real header.
//
// C sees them in mapped memory only (memory.go), never on the Go heap.

// ibvSendWR is struct ibv_send_wr.
type ibvSendWR struct {
	wrID      uint64
	next      uintptr
	sgList    uintptr
	numSGE    int32
	opcode    uint32
	sendFlags uint32
	immData   uint32 // big-endian
	// wr.rdma and wr.atomic overlap: see setRDMA and setAtomic.
	remoteAddr uint64
	wr         [3]uint64
	qpType     [8]byte  // union of xrc
	_          [48]byte // bind_mw, tso
}

// setRDMA fills wr.rdma.
func (w *ibvSendWR) setRDMA(addr uint64, rkey uint32) {
	w.remoteAddr, w.wr[0] = addr, uint64(rkey)
}

// setAtomic fills wr.atomic.
func (w *ibvSendWR) setAtomic(addr, compareAdd, swap uint64, rkey uint32) {
	w.remoteAddr, w.wr = addr, [3]uint64{compareAdd, swap, uint64(rkey)}
}

// ibvRecvWR is struct ibv_recv_wr.
type ibvRecvWR struct {
	wrID   uint64
	next   uintptr
	sgList uintptr
	numSGE int32
	_      int32
}

// ibvSGE is struct ibv_sge.
type ibvSGE struct {
	addr   uint64
	length uint32
	lkey   uint32
}

// ibvWC is struct ibv_wc.
type ibvWC struct {
	wrID      uint64
	status    uint32
	opcode    uint32
	vendorErr uint32
	byteLen   uint32
	immData   uint32 // big-endian
	qpNum     uint32
	srcQP     uint32
	wcFlags   uint32
	pkeyIndex uint16
	slid      uint16
	sl        uint8
	dlidBits  uint8
	_         [2]byte
}

// ibvQPCap is struct ibv_qp_cap.
type ibvQPCap struct {
	maxSendWR, maxRecvWR, maxSendSGE, maxRecvSGE, maxInlineData uint32
}

// ibvQPInitAttr is struct ibv_qp_init_attr.
type ibvQPInitAttr struct {
	qpContext uintptr
	sendCQ    uintptr
	recvCQ    uintptr
	srq       uintptr
	cap       ibvQPCap
	qpType    uint32
	sqSigAll  int32
	_         int32
}

// ibvAHAttr is struct ibv_ah_attr, with struct ibv_global_route at its start.
type ibvAHAttr struct {
	dgid         [16]byte
	flowLabel    uint32
	sgidIndex    uint8
	hopLimit     uint8
	trafficClass uint8
	_            uint8
	dlid         uint16
	sl           uint8
	srcPathBits  uint8
	staticRate   uint8
	isGlobal     uint8
	portNum      uint8
	_            uint8
}

// ibvQPAttr is struct ibv_qp_attr.
type ibvQPAttr struct {
	qpState         uint32
	curQPState      uint32
	pathMTU         uint32
	pathMigState    uint32
	qkey            uint32
	rqPSN           uint32
	sqPSN           uint32
	destQPNum       uint32
	qpAccessFlags   uint32
	cap             ibvQPCap
	ahAttr          ibvAHAttr
	altAHAttr       ibvAHAttr
	pkeyIndex       uint16
	altPKeyIndex    uint16
	enSQDAsync      uint8
	sqDraining      uint8
	maxRDAtomic     uint8
	maxDestRDAtomic uint8
	minRNRTimer     uint8
	portNum         uint8
	timeout         uint8
	retryCnt        uint8
	rnrRetry        uint8
	altPortNum      uint8
	altTimeout      uint8
	_               uint8
	rateLimit       uint32
	_               uint32
}

// ibvDeviceAttr is struct ibv_device_attr.
type ibvDeviceAttr struct {
	fwVer           [64]byte
	nodeGUID        uint64 // big-endian
	sysImageGUID    uint64 // big-endian
	maxMRSize       uint64
	pageSizeCap     uint64
	vendorID        uint32
	vendorPartID    uint32
	hwVer           uint32
	maxQP           int32
	maxQPWR         int32
	deviceCapFlags  uint32
	maxSGE          int32
	maxSGERd        int32
	maxCQ           int32
	maxCQE          int32
	maxMR           int32
	maxPD           int32
	maxQPRDAtom     int32
	maxEERDAtom     int32
	maxResRDAtom    int32
	maxQPInitRDAtom int32
	maxEEInitRDAtom int32
	atomicCap       uint32
	_               [14]int32 // max_ee to max_srq_sge
	maxPKeys        uint16
	localCAACKDelay uint8
	physPortCnt     uint8
	_               uint32
}

// ibvPortAttr is struct ibv_port_attr. The exported ibv_query_port fills it only up to flags,
// because portCapFlags2 is newer.
type ibvPortAttr struct {
	state         uint32
	maxMTU        uint32
	activeMTU     uint32
	gidTblLen     int32
	portCapFlags  uint32
	maxMsgSz      uint32
	badPKeyCntr   uint32
	qkeyViolCntr  uint32
	pkeyTblLen    uint16
	lid           uint16
	smLID         uint16
	lmc           uint8
	maxVLNum      uint8
	smSL          uint8
	subnetTimeout uint8
	initTypeReply uint8
	activeWidth   uint8
	activeSpeed   uint8
	physState     uint8
	linkLayer     uint8
	flags         uint8
	portCapFlags2 uint16
}

// ibvGIDEntry is struct ibv_gid_entry.
type ibvGIDEntry struct {
	gid         [16]byte
	gidIndex    uint32
	portNum     uint32
	gidType     uint32
	ndevIfindex uint32
}

// ibvAsyncEvent is struct ibv_async_event. element is a pointer to the object that the event is
// about, or a port number.
type ibvAsyncEvent struct {
	element   uintptr
	eventType uint32
	_         uint32
}

// The beginnings of structures that C allocates, up to the last field that is read.

// ibvDevice is the head of struct ibv_device.
type ibvDevice struct {
	ops           [2]uintptr
	nodeType      int32
	transportType int32
	name          [64]byte
	devName       [64]byte // the character device's name: "uverbs0"
}

// ibvContext is the head of struct ibv_context. The calls of the hot path are inline functions of
// the header and not exported: they are read from its table of operations.
type ibvContext struct {
	device         uintptr
	_              [11]uintptr // query_device to destroy_cq's older names
	pollCQ         uintptr
	reqNotifyCQ    uintptr
	_              [12]uintptr
	postSend       uintptr
	postRecv       uintptr
	_              [5]uintptr
	cmdFD          int32
	asyncFD        int32
	numCompVectors int32
}

// ibvCompChannel is the head of struct ibv_comp_channel.
type ibvCompChannel struct {
	context uintptr
	fd      int32
}

// ibvCQ is the head of struct ibv_cq.
type ibvCQ struct {
	context   uintptr
	channel   uintptr
	cqContext uintptr
	handle    uint32
	cqe       int32
}

// ibvQP is the head of struct ibv_qp.
type ibvQP struct {
	context   uintptr
	qpContext uintptr
	pd        uintptr
	sendCQ    uintptr
	recvCQ    uintptr
	srq       uintptr
	handle    uint32
	qpNum     uint32
	state     uint32
	qpType    uint32
}

// ibvMR is the head of struct ibv_mr.
type ibvMR struct {
	context uintptr
	pd      uintptr
	addr    uintptr
	length  uint64
	handle  uint32
	lkey    uint32
	rkey    uint32
}
