//go:build linux && (amd64 || arm64)

package rdmacore

import (
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"os"
	"os/exec"
	"path/filepath"
	"reflect"
	"strings"
	"testing"

	"ibverbx/internal/tool"
	"ibverbx/verbs"
)

// layout holds one of our structures against the header's.
type layout struct {
	ours any    // a zero value
	c    string // the name in C
	head bool   // only the head of a structure that C allocates
	// members gives, for each named field, what lies there in C.
	members []member
}

// member is a field and the C member in its place. Most cover each other exactly; where the header
// has a union, at and size pick the part of the field that the member covers.
type member struct {
	field, c string
	at, size uintptr
}

var layouts = []layout{
	{ours: ibvSGE{}, c: "struct ibv_sge", members: names("addr addr length length lkey lkey")},
	{ours: ibvSendWR{}, c: "struct ibv_send_wr", members: append(names(
		"wrID wr_id next next sgList sg_list numSGE num_sge opcode opcode sendFlags send_flags "+
			"immData imm_data remoteAddr wr.rdma.remote_addr remoteAddr wr.atomic.remote_addr"),
		member{"wr", "wr.rdma.rkey", 0, 4},
		member{"wr", "wr.atomic.compare_add", 0, 8},
		member{"wr", "wr.atomic.swap", 8, 8},
		member{"wr", "wr.atomic.rkey", 16, 4},
		member{"qpType", "qp_type.xrc.remote_srqn", 0, 4},
	)},
	{ours: ibvRecvWR{}, c: "struct ibv_recv_wr",
		members: names("wrID wr_id next next sgList sg_list numSGE num_sge")},
	{ours: ibvWC{}, c: "struct ibv_wc", members: names(
		"wrID wr_id status status opcode opcode vendorErr vendor_err byteLen byte_len " +
			"immData imm_data qpNum qp_num srcQP src_qp wcFlags wc_flags pkeyIndex pkey_index " +
			"slid slid sl sl dlidBits dlid_path_bits")},
	{ours: ibvQPCap{}, c: "struct ibv_qp_cap", members: names(
		"maxSendWR max_send_wr maxRecvWR max_recv_wr maxSendSGE max_send_sge " +
			"maxRecvSGE max_recv_sge maxInlineData max_inline_data")},
	{ours: ibvQPInitAttr{}, c: "struct ibv_qp_init_attr",
		members: names(
			"qpContext qp_context sendCQ send_cq recvCQ recv_cq srq srq cap cap qpType qp_type " +
				"sqSigAll sq_sig_all")},
	{ours: ibvAHAttr{}, c: "struct ibv_ah_attr", members: names(
		"dgid grh.dgid flowLabel grh.flow_label sgidIndex grh.sgid_index hopLimit grh.hop_limit " +
			"trafficClass grh.traffic_class dlid dlid sl sl srcPathBits src_path_bits " +
			"staticRate static_rate isGlobal is_global portNum port_num")},
	{ours: ibvQPAttr{}, c: "struct ibv_qp_attr", members: names(
		"qpState qp_state curQPState cur_qp_state pathMTU path_mtu pathMigState path_mig_state " +
			"qkey qkey rqPSN rq_psn sqPSN sq_psn destQPNum dest_qp_num qpAccessFlags qp_access_flags " +
			"cap cap ahAttr ah_attr altAHAttr alt_ah_attr pkeyIndex pkey_index " +
			"altPKeyIndex alt_pkey_index enSQDAsync en_sqd_async_notify sqDraining sq_draining " +
			"maxRDAtomic max_rd_atomic maxDestRDAtomic max_dest_rd_atomic minRNRTimer min_rnr_timer " +
			"portNum port_num timeout timeout retryCnt retry_cnt rnrRetry rnr_retry " +
			"altPortNum alt_port_num altTimeout alt_timeout rateLimit rate_limit")},
	{ours: ibvDeviceAttr{}, c: "struct ibv_device_attr",
		members: names(
			"fwVer fw_ver nodeGUID node_guid sysImageGUID sys_image_guid maxMRSize max_mr_size " +
				"pageSizeCap page_size_cap vendorID vendor_id vendorPartID vendor_part_id hwVer hw_ver " +
				"maxQP max_qp maxQPWR max_qp_wr deviceCapFlags device_cap_flags maxSGE max_sge " +
				"maxSGERd max_sge_rd maxCQ max_cq maxCQE max_cqe maxMR max_mr maxPD max_pd " +
				"maxQPRDAtom max_qp_rd_atom maxEERDAtom max_ee_rd_atom maxResRDAtom max_res_rd_atom " +
				"maxQPInitRDAtom max_qp_init_rd_atom maxEEInitRDAtom max_ee_init_rd_atom " +
				"atomicCap atomic_cap maxPKeys max_pkeys localCAACKDelay local_ca_ack_delay " +
				"physPortCnt phys_port_cnt")},
	{ours: ibvPortAttr{}, c: "struct ibv_port_attr",
		members: names(
			"state state maxMTU max_mtu activeMTU active_mtu gidTblLen gid_tbl_len " +
				"portCapFlags port_cap_flags maxMsgSz max_msg_sz badPKeyCntr bad_pkey_cntr " +
				"qkeyViolCntr qkey_viol_cntr pkeyTblLen pkey_tbl_len lid lid smLID sm_lid lmc lmc " +
				"maxVLNum max_vl_num smSL sm_sl subnetTimeout subnet_timeout " +
				"initTypeReply init_type_reply activeWidth active_width activeSpeed active_speed " +
				"physState phys_state linkLayer link_layer flags flags portCapFlags2 port_cap_flags2")},
	{ours: ibvGIDEntry{}, c: "struct ibv_gid_entry",
		members: names(
			"gid gid gidIndex gid_index portNum port_num gidType gid_type ndevIfindex ndev_ifindex")},
	{ours: ibvAsyncEvent{}, c: "struct ibv_async_event", members: append(names(
		"element element element element.qp element element.cq eventType event_type"),
		member{"element", "element.port_num", 0, 4},
	)},

	{ours: ibvDevice{}, c: "struct ibv_device", head: true,
		members: names(
			"ops _ops nodeType node_type transportType transport_type name name devName dev_name")},
	{ours: ibvContext{}, c: "struct ibv_context", head: true,
		members: names(
			"device device pollCQ ops.poll_cq reqNotifyCQ ops.req_notify_cq postSend ops.post_send " +
				"postRecv ops.post_recv cmdFD cmd_fd asyncFD async_fd numCompVectors num_comp_vectors")},
	{ours: ibvCompChannel{}, c: "struct ibv_comp_channel", head: true,
		members: names("context context fd fd")},
	{ours: ibvCQ{}, c: "struct ibv_cq", head: true,
		members: names("context context channel channel cqContext cq_context handle handle cqe cqe")},
	{ours: ibvQP{}, c: "struct ibv_qp", head: true,
		members: names(
			"context context qpContext qp_context pd pd sendCQ send_cq recvCQ recv_cq srq srq " +
				"handle handle qpNum qp_num state state qpType qp_type")},
	{ours: ibvMR{}, c: "struct ibv_mr", head: true,
		members: names("context context pd pd addr addr length length handle handle lkey lkey rkey rkey")},
}

// names reads pairs of a field and the member that it equals.
func names(pairs string) []member {
	f := strings.Fields(pairs)
	m := make([]member, 0, len(f)/2)
	for ; len(f) > 1; f = f[2:] {
		m = append(m, member{field: f[0], c: f[1]})
	}
	return m
}

// constants are the values that package verbs shares with the ABI, so that they cast: the name in
// C, and ours.
var constants = map[string]uint64{
	"IBV_QPT_RC": ibvQPTRC,

	"IBV_ATOMIC_NONE":     atomicNone,
	"IBV_TRANSPORT_IB":    transportIB,
	"IBV_TRANSPORT_IWARP": transportIWARP,

	"IBV_WR_RDMA_WRITE":           uint64(verbs.OpRDMAWrite),
	"IBV_WR_RDMA_WRITE_WITH_IMM":  uint64(verbs.OpRDMAWriteWithImm),
	"IBV_WR_SEND":                 uint64(verbs.OpSend),
	"IBV_WR_SEND_WITH_IMM":        uint64(verbs.OpSendWithImm),
	"IBV_WR_RDMA_READ":            uint64(verbs.OpRDMARead),
	"IBV_WR_ATOMIC_CMP_AND_SWP":   uint64(verbs.OpAtomicCmpAndSwp),
	"IBV_WR_ATOMIC_FETCH_AND_ADD": uint64(verbs.OpAtomicFetchAdd),

	"IBV_SEND_FENCE":     uint64(verbs.SendFence),
	"IBV_SEND_SIGNALED":  uint64(verbs.SendSignaled),
	"IBV_SEND_SOLICITED": uint64(verbs.SendSolicited),
	"IBV_SEND_INLINE":    uint64(verbs.SendInline),

	"IBV_WC_SEND":               uint64(verbs.WCSend),
	"IBV_WC_RDMA_WRITE":         uint64(verbs.WCRDMAWrite),
	"IBV_WC_RDMA_READ":          uint64(verbs.WCRDMARead),
	"IBV_WC_COMP_SWAP":          uint64(verbs.WCCompSwap),
	"IBV_WC_FETCH_ADD":          uint64(verbs.WCFetchAdd),
	"IBV_WC_RECV":               uint64(verbs.WCRecv),
	"IBV_WC_RECV_RDMA_WITH_IMM": uint64(verbs.WCRecvRDMAWithImm),
	"IBV_WC_WITH_IMM":           uint64(verbs.WCWithImm),

	"IBV_WC_SUCCESS":           uint64(verbs.StatusSuccess),
	"IBV_WC_LOC_LEN_ERR":       uint64(verbs.StatusLocLenErr),
	"IBV_WC_LOC_QP_OP_ERR":     uint64(verbs.StatusLocQPOpErr),
	"IBV_WC_LOC_PROT_ERR":      uint64(verbs.StatusLocProtErr),
	"IBV_WC_WR_FLUSH_ERR":      uint64(verbs.StatusWRFlushErr),
	"IBV_WC_BAD_RESP_ERR":      uint64(verbs.StatusBadRespErr),
	"IBV_WC_LOC_ACCESS_ERR":    uint64(verbs.StatusLocAccessErr),
	"IBV_WC_REM_INV_REQ_ERR":   uint64(verbs.StatusRemInvReqErr),
	"IBV_WC_REM_ACCESS_ERR":    uint64(verbs.StatusRemAccessErr),
	"IBV_WC_REM_OP_ERR":        uint64(verbs.StatusRemOpErr),
	"IBV_WC_RETRY_EXC_ERR":     uint64(verbs.StatusRetryExcErr),
	"IBV_WC_RNR_RETRY_EXC_ERR": uint64(verbs.StatusRNRRetryExcErr),
	"IBV_WC_REM_ABORT_ERR":     uint64(verbs.StatusRemAbortErr),
	"IBV_WC_FATAL_ERR":         uint64(verbs.StatusFatalErr),
	"IBV_WC_RESP_TIMEOUT_ERR":  uint64(verbs.StatusRespTimeoutErr),
	"IBV_WC_GENERAL_ERR":       uint64(verbs.StatusGeneralErr),

	"IBV_ACCESS_LOCAL_WRITE":   uint64(verbs.AccessLocalWrite),
	"IBV_ACCESS_REMOTE_WRITE":  uint64(verbs.AccessRemoteWrite),
	"IBV_ACCESS_REMOTE_READ":   uint64(verbs.AccessRemoteRead),
	"IBV_ACCESS_REMOTE_ATOMIC": uint64(verbs.AccessRemoteAtomic),

	"IBV_ACCESS_RELAXED_ORDERING": uint64(verbs.AccessRelaxedOrdering),

	"IBV_QPS_RESET": uint64(verbs.StateReset),
	"IBV_QPS_INIT":  uint64(verbs.StateInit),
	"IBV_QPS_RTR":   uint64(verbs.StateRTR),
	"IBV_QPS_RTS":   uint64(verbs.StateRTS),
	"IBV_QPS_SQD":   uint64(verbs.StateSQD),
	"IBV_QPS_SQE":   uint64(verbs.StateSQE),
	"IBV_QPS_ERR":   uint64(verbs.StateErr),

	"IBV_QP_STATE":              uint64(verbs.QPAttrState),
	"IBV_QP_CUR_STATE":          uint64(verbs.QPAttrCurState),
	"IBV_QP_ACCESS_FLAGS":       uint64(verbs.QPAttrAccess),
	"IBV_QP_PKEY_INDEX":         uint64(verbs.QPAttrPKeyIndex),
	"IBV_QP_PORT":               uint64(verbs.QPAttrPort),
	"IBV_QP_AV":                 uint64(verbs.QPAttrAV),
	"IBV_QP_PATH_MTU":           uint64(verbs.QPAttrPathMTU),
	"IBV_QP_TIMEOUT":            uint64(verbs.QPAttrTimeout),
	"IBV_QP_RETRY_CNT":          uint64(verbs.QPAttrRetryCount),
	"IBV_QP_RNR_RETRY":          uint64(verbs.QPAttrRNRRetry),
	"IBV_QP_RQ_PSN":             uint64(verbs.QPAttrRQPSN),
	"IBV_QP_MAX_QP_RD_ATOMIC":   uint64(verbs.QPAttrMaxRDAtomic),
	"IBV_QP_MIN_RNR_TIMER":      uint64(verbs.QPAttrMinRNRTimer),
	"IBV_QP_SQ_PSN":             uint64(verbs.QPAttrSQPSN),
	"IBV_QP_MAX_DEST_RD_ATOMIC": uint64(verbs.QPAttrMaxDestRDAtomic),
	"IBV_QP_DEST_QPN":           uint64(verbs.QPAttrDestQPNum),

	"IBV_MTU_256":  uint64(verbs.MTU256),
	"IBV_MTU_512":  uint64(verbs.MTU512),
	"IBV_MTU_1024": uint64(verbs.MTU1024),
	"IBV_MTU_2048": uint64(verbs.MTU2048),
	"IBV_MTU_4096": uint64(verbs.MTU4096),

	"IBV_PORT_NOP":          uint64(verbs.PortNop),
	"IBV_PORT_DOWN":         uint64(verbs.PortDown),
	"IBV_PORT_INIT":         uint64(verbs.PortInit),
	"IBV_PORT_ARMED":        uint64(verbs.PortArmed),
	"IBV_PORT_ACTIVE":       uint64(verbs.PortActive),
	"IBV_PORT_ACTIVE_DEFER": uint64(verbs.PortActiveDefer),

	"IBV_LINK_LAYER_UNSPECIFIED": uint64(verbs.LinkLayerUnspecified),
	"IBV_LINK_LAYER_INFINIBAND":  uint64(verbs.LinkLayerInfiniBand),
	"IBV_LINK_LAYER_ETHERNET":    uint64(verbs.LinkLayerEthernet),

	"IBV_GID_TYPE_IB":      uint64(verbs.GIDTypeIB),
	"IBV_GID_TYPE_ROCE_V1": uint64(verbs.GIDTypeRoCEv1),
	"IBV_GID_TYPE_ROCE_V2": uint64(verbs.GIDTypeRoCEv2),

	"IBV_EVENT_CQ_ERR":            uint64(verbs.EventCQErr),
	"IBV_EVENT_QP_FATAL":          uint64(verbs.EventQPFatal),
	"IBV_EVENT_QP_REQ_ERR":        uint64(verbs.EventQPReqErr),
	"IBV_EVENT_QP_ACCESS_ERR":     uint64(verbs.EventQPAccessErr),
	"IBV_EVENT_COMM_EST":          uint64(verbs.EventCommEst),
	"IBV_EVENT_DEVICE_FATAL":      uint64(verbs.EventDeviceFatal),
	"IBV_EVENT_PORT_ACTIVE":       uint64(verbs.EventPortActive),
	"IBV_EVENT_PORT_ERR":          uint64(verbs.EventPortErr),
	"IBV_EVENT_LID_CHANGE":        uint64(verbs.EventLIDChange),
	"IBV_EVENT_PKEY_CHANGE":       uint64(verbs.EventPKeyChange),
	"IBV_EVENT_SM_CHANGE":         uint64(verbs.EventSMChange),
	"IBV_EVENT_CLIENT_REREGISTER": uint64(verbs.EventClientReregister),
	"IBV_EVENT_GID_CHANGE":        uint64(verbs.EventGIDChange),
}

// TestLayout compiles assertions about our structures and constants with the header of the system.
func TestLayout(t *testing.T) {
	cc := HeaderCompiler(t)
	if out, err := checkSyntax(t, cc, assertions(t, 0)); err != nil {
		t.Errorf("abi.go and <infiniband/verbs.h> disagree (%v):\n%s", err, out)
	}
	t.Run("bites", func(t *testing.T) {
		out, err := checkSyntax(t, cc, assertions(t, 4))
		if err == nil || !strings.Contains(out, "ibvWC.qpNum") {
			t.Errorf("ibvWC.qpNum was said to lie 4 bytes further, and the compiler said: %v\n%s", err, out)
		}
	})
}

// TestLayoutCoversAll finds structures and fields of abi.go that no test checks. It needs no
// compiler.
func TestLayoutCoversAll(t *testing.T) {
	checked := map[string]bool{}
	for _, l := range layouts {
		typ := reflect.TypeOf(l.ours)
		checked[typ.Name()] = true
		has := map[string]bool{"_": true}
		for _, m := range l.members {
			has[m.field] = true
			if _, ok := typ.FieldByName(m.field); !ok {
				t.Errorf("%v has no field %s", typ, m.field)
			}
		}
		for i := range typ.NumField() {
			if name := typ.Field(i).Name; !has[name] {
				t.Errorf("%v.%s: nothing holds it against the header", typ, name)
			}
		}
	}
	file, err := parser.ParseFile(token.NewFileSet(), "abi.go", nil, 0)
	if err != nil {
		t.Fatal(err)
	}
	ast.Inspect(file, func(n ast.Node) bool {
		if spec, ok := n.(*ast.TypeSpec); ok {
			if _, isStruct := spec.Type.(*ast.StructType); isStruct && !checked[spec.Name.Name] {
				t.Errorf("%s: nothing holds it against the header", spec.Name.Name)
			}
		}
		return true
	})
}

// assertions writes the C file. wrong is added to one offset, to prove that the compiler sees it.
func assertions(t *testing.T, wrong uintptr) string {
	var b strings.Builder
	b.WriteString("#include <stddef.h>\n#include <infiniband/verbs.h>\n")
	claim := func(what, format string, args ...any) {
		fmt.Fprintf(&b, "_Static_assert(%s, \"%s\");\n", fmt.Sprintf(format, args...), what)
	}
	for _, l := range layouts {
		typ := reflect.TypeOf(l.ours)
		compare := "=="
		if l.head {
			compare = ">="
		}
		claim(typ.Name(), "sizeof(%s) %s %d", l.c, compare, lastByte(typ, l.head))
		for _, m := range l.members {
			f, ok := typ.FieldByName(m.field)
			if !ok {
				t.Fatalf("%v has no field %s", typ, m.field)
			}
			at, size := f.Offset+m.at, f.Type.Size()
			if m.size != 0 {
				size = m.size
			}
			what := fmt.Sprintf("%s.%s", typ.Name(), m.field)
			if what == "ibvWC.qpNum" {
				at += wrong
			}
			claim(what, "offsetof(%s, %s) == %d", l.c, m.c, at)
			claim(what, "sizeof(((%s *)0)->%s) == %d", l.c, m.c, size)
		}
	}
	for name, value := range constants {
		claim(name, "%s == %d", name, value)
	}
	return b.String()
}

// lastByte is how far C's structure must reach: for a head, to the end of its last field.
func lastByte(typ reflect.Type, head bool) uintptr {
	if !head {
		return typ.Size()
	}
	f := typ.Field(typ.NumField() - 1)
	return f.Offset + f.Type.Size()
}

func checkSyntax(t *testing.T, cc, source string) (output string, err error) {
	t.Helper()
	path := filepath.Join(t.TempDir(), "layout.c")
	if err := os.WriteFile(path, []byte(source), 0o666); err != nil {
		t.Fatal(err)
	}
	out, err := exec.Command(cc, "-std=gnu11", "-fsyntax-only", path).CombinedOutput()
	return string(out), err
}

// HeaderCompiler is a C compiler that finds <infiniband/verbs.h>. Where there is none the test is
// skipped, or fails if the environment's IBVERBX_REQUIRE has the word headers.
func HeaderCompiler(t testing.TB) string {
	t.Helper()
	for _, cc := range []string{os.Getenv("CC"), "cc", "gcc", "clang"} {
		if cc == "" {
			continue
		}
		probe := exec.Command(cc, "-fsyntax-only", "-x", "c", "-")
		probe.Stdin = strings.NewReader("#include <infiniband/verbs.h>\n")
		if probe.Run() == nil {
			return cc
		}
	}
	const missing = "no C compiler that finds <infiniband/verbs.h>; install them (Debian: libibverbs-dev gcc)"
	tool.Missing(t, "headers", missing)
	return ""
}
