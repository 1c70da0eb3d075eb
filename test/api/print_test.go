package api_test

import (
	"testing"

	"ibverbx"
	"ibverbx/verbs"
)

// Completions and events of rails print as sentences.
func TestPrinted(t *testing.T) {
	for _, c := range []struct {
		value interface{ String() string }
		want  string
	}{
		{ibverbx.WC{ID: 7, QPNum: 3, Opcode: verbs.WCRDMAWrite, ByteLen: 4096},
			"virtual qp 3: request 7 (RDMA_WRITE, 4096 bytes) succeeded"},
		{ibverbx.WC{ID: 9, QPNum: 3, Opcode: verbs.WCRecvRDMAWithImm, ByteLen: 64, Imm: 0x1f,
			Flags: verbs.WCWithImm},
			"virtual qp 3: receive 9 (RECV_RDMA_WITH_IMM, 64 bytes, immediate 0x1f) succeeded"},
		{ibverbx.WC{ID: 7, QPNum: 3, Opcode: verbs.WCSend, Status: verbs.StatusRetryExcErr, VendorErr: 0x81,
			ByteLen: 8},
			"virtual qp 3: request 7 (SEND, 8 bytes) failed: " + verbs.StatusRetryExcErr.Error() +
				" (vendor code 0x81)"},
		{ibverbx.WC{ID: 1, QPNum: 2, Opcode: verbs.WCUnknown, Status: verbs.StatusWRFlushErr},
			"virtual qp 2: request or receive 1 (unknown, 0 bytes) failed: " +
				verbs.StatusWRFlushErr.Error()},
		{ibverbx.RailEvent{VirtualQP: 3, Rail: 1, Device: "mlx5_0", QPNum: 17, Down: true,
			Cause: verbs.StatusRetryExcErr},
			"virtual qp 3: rail 1 (mlx5_0 qp 17) is out of service: " + verbs.StatusRetryExcErr.Error()},
		{ibverbx.RailEvent{VirtualQP: 3, Rail: 1, Device: "mlx5_0", QPNum: 17},
			"virtual qp 3: rail 1 (mlx5_0 qp 17) is back in service"},
	} {
		if got := c.value.String(); got != c.want {
			t.Errorf("got  %s\nwant %s", got, c.want)
		}
	}
}
