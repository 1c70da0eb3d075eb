package verbs

import "testing"

// The values and names below are those of <infiniband/verbs.h>, written out once more: a provider
// of real NICs casts between the two.

func TestABIValues(t *testing.T) {
	for _, c := range []struct {
		name string
		got  uint64
		want uint64
	}{
		{"IBV_WR_RDMA_WRITE", uint64(OpRDMAWrite), 0},
		{"IBV_WR_RDMA_WRITE_WITH_IMM", uint64(OpRDMAWriteWithImm), 1},
		{"IBV_WR_SEND", uint64(OpSend), 2},
		{"IBV_WR_SEND_WITH_IMM", uint64(OpSendWithImm), 3},
		{"IBV_WR_RDMA_READ", uint64(OpRDMARead), 4},
		{"IBV_WR_ATOMIC_CMP_AND_SWP", uint64(OpAtomicCmpAndSwp), 5},
		{"IBV_WR_ATOMIC_FETCH_AND_ADD", uint64(OpAtomicFetchAdd), 6},

		{"IBV_WC_SEND", uint64(WCSend), 0},
		{"IBV_WC_RDMA_WRITE", uint64(WCRDMAWrite), 1},
		{"IBV_WC_RDMA_READ", uint64(WCRDMARead), 2},
		{"IBV_WC_COMP_SWAP", uint64(WCCompSwap), 3},
		{"IBV_WC_FETCH_ADD", uint64(WCFetchAdd), 4},
		{"IBV_WC_RECV", uint64(WCRecv), 1 << 7},
		{"IBV_WC_RECV_RDMA_WITH_IMM", uint64(WCRecvRDMAWithImm), 1<<7 + 1},
		{"IBV_WC_WITH_IMM", uint64(WCWithImm), 1 << 1},

		{"IBV_SEND_FENCE", uint64(SendFence), 1},
		{"IBV_SEND_SIGNALED", uint64(SendSignaled), 2},
		{"IBV_SEND_SOLICITED", uint64(SendSolicited), 4},
		{"IBV_SEND_INLINE", uint64(SendInline), 8},

		{"IBV_ACCESS_LOCAL_WRITE", uint64(AccessLocalWrite), 1},
		{"IBV_ACCESS_REMOTE_WRITE", uint64(AccessRemoteWrite), 2},
		{"IBV_ACCESS_REMOTE_READ", uint64(AccessRemoteRead), 4},
		{"IBV_ACCESS_REMOTE_ATOMIC", uint64(AccessRemoteAtomic), 8},
		{"all access", uint64(AccessAll), 15},

		{"IBV_WC_SUCCESS", uint64(StatusSuccess), 0},
		{"IBV_WC_LOC_LEN_ERR", uint64(StatusLocLenErr), 1},
		{"IBV_WC_LOC_QP_OP_ERR", uint64(StatusLocQPOpErr), 2},
		{"IBV_WC_LOC_PROT_ERR", uint64(StatusLocProtErr), 4},
		{"IBV_WC_WR_FLUSH_ERR", uint64(StatusWRFlushErr), 5},
		{"IBV_WC_BAD_RESP_ERR", uint64(StatusBadRespErr), 7},
		{"IBV_WC_LOC_ACCESS_ERR", uint64(StatusLocAccessErr), 8},
		{"IBV_WC_REM_INV_REQ_ERR", uint64(StatusRemInvReqErr), 9},
		{"IBV_WC_REM_ACCESS_ERR", uint64(StatusRemAccessErr), 10},
		{"IBV_WC_REM_OP_ERR", uint64(StatusRemOpErr), 11},
		{"IBV_WC_RETRY_EXC_ERR", uint64(StatusRetryExcErr), 12},
		{"IBV_WC_RNR_RETRY_EXC_ERR", uint64(StatusRNRRetryExcErr), 13},
		{"IBV_WC_REM_ABORT_ERR", uint64(StatusRemAbortErr), 16},
		{"IBV_WC_FATAL_ERR", uint64(StatusFatalErr), 19},
		{"IBV_WC_RESP_TIMEOUT_ERR", uint64(StatusRespTimeoutErr), 20},
		{"IBV_WC_GENERAL_ERR", uint64(StatusGeneralErr), 21},

		{"IBV_QPS_RESET", uint64(StateReset), 0},
		{"IBV_QPS_INIT", uint64(StateInit), 1},
		{"IBV_QPS_RTR", uint64(StateRTR), 2},
		{"IBV_QPS_RTS", uint64(StateRTS), 3},
		{"IBV_QPS_SQD", uint64(StateSQD), 4},
		{"IBV_QPS_SQE", uint64(StateSQE), 5},
		{"IBV_QPS_ERR", uint64(StateErr), 6},

		{"IBV_QP_STATE", uint64(QPAttrState), 1 << 0},
		{"IBV_QP_CUR_STATE", uint64(QPAttrCurState), 1 << 1},
		{"IBV_QP_ACCESS_FLAGS", uint64(QPAttrAccess), 1 << 3},
		{"IBV_QP_PKEY_INDEX", uint64(QPAttrPKeyIndex), 1 << 4},
		{"IBV_QP_PORT", uint64(QPAttrPort), 1 << 5},
		{"IBV_QP_AV", uint64(QPAttrAV), 1 << 7},
		{"IBV_QP_PATH_MTU", uint64(QPAttrPathMTU), 1 << 8},
		{"IBV_QP_TIMEOUT", uint64(QPAttrTimeout), 1 << 9},
		{"IBV_QP_RETRY_CNT", uint64(QPAttrRetryCount), 1 << 10},
		{"IBV_QP_RNR_RETRY", uint64(QPAttrRNRRetry), 1 << 11},
		{"IBV_QP_RQ_PSN", uint64(QPAttrRQPSN), 1 << 12},
		{"IBV_QP_MAX_QP_RD_ATOMIC", uint64(QPAttrMaxRDAtomic), 1 << 13},
		{"IBV_QP_MIN_RNR_TIMER", uint64(QPAttrMinRNRTimer), 1 << 15},
		{"IBV_QP_SQ_PSN", uint64(QPAttrSQPSN), 1 << 16},
		{"IBV_QP_MAX_DEST_RD_ATOMIC", uint64(QPAttrMaxDestRDAtomic), 1 << 17},
		{"IBV_QP_DEST_QPN", uint64(QPAttrDestQPNum), 1 << 20},

		{"IBV_PORT_NOP", uint64(PortNop), 0},
		{"IBV_PORT_DOWN", uint64(PortDown), 1},
		{"IBV_PORT_INIT", uint64(PortInit), 2},
		{"IBV_PORT_ARMED", uint64(PortArmed), 3},
		{"IBV_PORT_ACTIVE", uint64(PortActive), 4},
		{"IBV_PORT_ACTIVE_DEFER", uint64(PortActiveDefer), 5},

		{"IBV_LINK_LAYER_UNSPECIFIED", uint64(LinkLayerUnspecified), 0},
		{"IBV_LINK_LAYER_INFINIBAND", uint64(LinkLayerInfiniBand), 1},
		{"IBV_LINK_LAYER_ETHERNET", uint64(LinkLayerEthernet), 2},

		{"IBV_GID_TYPE_IB", uint64(GIDTypeIB), 0},
		{"IBV_GID_TYPE_ROCE_V1", uint64(GIDTypeRoCEv1), 1},
		{"IBV_GID_TYPE_ROCE_V2", uint64(GIDTypeRoCEv2), 2},

		{"IBV_MTU_256", uint64(MTU256), 1},
		{"IBV_MTU_512", uint64(MTU512), 2},
		{"IBV_MTU_1024", uint64(MTU1024), 3},
		{"IBV_MTU_2048", uint64(MTU2048), 4},
		{"IBV_MTU_4096", uint64(MTU4096), 5},
	} {
		if c.got != c.want {
			t.Errorf("%s is %d, want %d", c.name, c.got, c.want)
		}
	}
}

func TestOpcode(t *testing.T) {
	for _, c := range []struct {
		op                       Opcode
		name                     string
		wc                       WCOpcode
		valid, atomic, send, imm bool
	}{
		{OpRDMAWrite, "RDMA_WRITE", WCRDMAWrite, true, false, false, false},
		{OpRDMAWriteWithImm, "RDMA_WRITE_WITH_IMM", WCRDMAWrite, true, false, false, true},
		{OpSend, "SEND", WCSend, true, false, true, false},
		{OpSendWithImm, "SEND_WITH_IMM", WCSend, true, false, true, true},
		{OpRDMARead, "RDMA_READ", WCRDMARead, true, false, false, false},
		{OpAtomicCmpAndSwp, "ATOMIC_CMP_AND_SWP", WCCompSwap, true, true, false, false},
		{OpAtomicFetchAdd, "ATOMIC_FETCH_AND_ADD", WCFetchAdd, true, true, false, false},
		{7, "opcode 7", WCRDMAWrite, false, false, false, false},
		{1<<32 - 1, "opcode 4294967295", WCRDMAWrite, false, false, false, false},
	} {
		if c.op.String() != c.name || c.op.Valid() != c.valid || c.op.IsAtomic() != c.atomic ||
			c.op.IsSend() != c.send ||
			c.op.HasImm() != c.imm || c.op.WCOpcode() != c.wc {
			t.Errorf("%v: valid %t, atomic %t, send %t, immediate %t, completion %v; want %+v",
				c.op, c.op.Valid(), c.op.IsAtomic(), c.op.IsSend(), c.op.HasImm(), c.op.WCOpcode(), c)
		}
	}
}

func TestStrings(t *testing.T) {
	for _, c := range []struct{ got, want string }{
		{WCSend.String(), "SEND"},
		{WCRDMAWrite.String(), "RDMA_WRITE"},
		{WCRDMARead.String(), "RDMA_READ"},
		{WCCompSwap.String(), "COMP_SWAP"},
		{WCFetchAdd.String(), "FETCH_ADD"},
		{WCRecv.String(), "RECV"},
		{WCRecvRDMAWithImm.String(), "RECV_RDMA_WITH_IMM"},
		{WCOpcode(77).String(), "completion opcode 77"},

		{SendFlags(0).String(), "0"},
		{(SendSignaled | SendInline).String(), "SIGNALED|INLINE"},
		{(SendFence | SendSolicited | 1<<7).String(), "FENCE|SOLICITED|0x80"},
		{AccessAll.String(), "LOCAL_WRITE|REMOTE_WRITE|REMOTE_READ|REMOTE_ATOMIC"},
		{AccessFlags(1 << 4).String(), "0x10"},
		{AccessRelaxedOrdering.String(), "RELAXED_ORDERING"},
		{(AccessLocalWrite | AccessRelaxedOrdering | 1<<4).String(), "LOCAL_WRITE|0x10|RELAXED_ORDERING"},
		{(QPAttrState | QPAttrDestQPNum).String(), "STATE|DEST_QPN"},
		{(QPAttrAV | QPAttrMinRNRTimer | 1<<21).String(), "AV|MIN_RNR_TIMER|0x200000"},

		{StateReset.String(), "RESET"},
		{StateErr.String(), "ERR"},
		{QPState(7).String(), "state 7"},
		{PortActive.String(), "ACTIVE"},
		{PortActiveDefer.String(), "ACTIVE_DEFER"},
		{PortState(6).String(), "port state 6"},
		{LinkLayerInfiniBand.String(), "InfiniBand"},
		{LinkLayerEthernet.String(), "Ethernet"},
		{LinkLayer(9).String(), "unspecified"},
		{GIDTypeIB.String(), "IB"},
		{GIDTypeRoCEv1.String(), "RoCE v1"},
		{GIDTypeRoCEv2.String(), "RoCE v2"},
		{MTU4096.String(), "4096"},
		{MTU(6).String(), "mtu code 6"},
	} {
		if c.got != c.want {
			t.Errorf("%q, want %q", c.got, c.want)
		}
	}
	if WCSend.IsRecv() || WCFetchAdd.IsRecv() || !WCRecv.IsRecv() || !WCRecvRDMAWithImm.IsRecv() {
		t.Error("IsRecv")
	}
}

func TestAccessValid(t *testing.T) {
	for f := range AccessAll + 3 {
		// ibv_reg_mr(3): remote write and remote atomic demand local write.
		want := f <= AccessAll && (f&(AccessRemoteWrite|AccessRemoteAtomic) == 0 || f&AccessLocalWrite != 0)
		for _, f := range []AccessFlags{f, f | AccessRelaxedOrdering} {
			if got := f.Valid(); got != want {
				t.Errorf("%v: valid %t, want %t", f, got, want)
			}
		}
	}
}

func TestBytes(t *testing.T) {
	sgl := []SGE{{Length: 5}, {Length: 1<<32 - 1}, {Length: 1<<32 - 1}}
	for _, c := range []struct {
		wr   SendWR
		want uint64
	}{
		{SendWR{}, 0},
		{SendWR{SGL: sgl[:1]}, 5},
		{SendWR{SGL: sgl}, 1<<33 + 3}, // does not wrap
		{SendWR{Flags: SendInline, Inline: make([]byte, 7)}, 7},
		{SendWR{Flags: SendSignaled, Inline: make([]byte, 7)}, 0}, // without the flag it does not count
	} {
		if got := c.wr.Bytes(); got != c.want {
			t.Errorf("%d bytes, want %d", got, c.want)
		}
	}
}
