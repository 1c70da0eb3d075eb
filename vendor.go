package ibverbx

import (
	"errors"

	"ibverbx/verbs"
)

// vendorText says what a NIC's own code means, where a public source does. Each entry holds only
// together with its status: other vendors may use the same number for something else, and then the
// status hardly fits too.
//
// Sources, all on ConnectX NICs, whose "vendor syndrome" this is: 0x81 Oracle support document
// 1614576.1 (driver mcxnex) and github.com/NVIDIA/nccl issue 1405 (status 12 with vendor error
// 129); 0x88 forums.developer.nvidia.com topic 207715 (driver mcxnex) and github.com/openucx/ucx
// issue 1569 (mlx5); 0xf9 github.com/linux-nvme/nvme-cli issue 3268 (mlx5, syndrome 5) and
// github.com/NVIDIA/nccl issue 1353 (status 5 with vendor error 249). The software NICs use 0xf9
// likewise.
var vendorText = [...]struct {
	status verbs.Status
	code   uint32
	words  string
}{
	{verbs.StatusRetryExcErr, 0x81, "transport retry counter exceeded"},
	{verbs.StatusRemAccessErr, 0x88, "protection error at the remote buffer"},
	{verbs.StatusWRFlushErr, 0xf9, "flushed"},
}

// vendorWords says what the vendor's code means; empty if nobody knows.
func vendorWords(err error, code uint32) string {
	var status verbs.Status
	if !errors.As(err, &status) {
		return ""
	}
	for _, v := range vendorText {
		if v.status == status && v.code == code {
			return v.words
		}
	}
	return ""
}
