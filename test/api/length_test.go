package api_test

import (
	"errors"
	"fmt"
	"strings"
	"testing"

	"ibverbx"
	"ibverbx/internal/vqptest"
	"ibverbx/verbs"
	"ibverbx/verbs/soft"
)

// What travels as one message is refused where it is longer than the NIC's port carries, and
// nothing is lost: a SEND always, and on a single queue pair everything.
func TestMessagesBeyondThePortAreRefused(t *testing.T) {
	const longest = 4096
	fabric := soft.Config{Device: soft.DeviceConfig{MaxMsgSize: longest}}
	for _, m := range vqptest.Modes {
		for _, op := range []verbs.Opcode{verbs.OpRDMAWrite, verbs.OpRDMARead, verbs.OpSend} {
			t.Run(fmt.Sprintf("%s/%v", m.Name, op), func(t *testing.T) {
				l := vqptest.NewLink(t, vqptest.LinkConfig{NICs: m.NICs, Fabric: fabric,
					QP: ibverbx.Config{Scheme: m.Scheme, QPsPerDevice: m.QPs}})
				if op.IsSend() {
					if _, err := l.B.PostRecv(ibverbx.RecvWR{Local: l.B.MR.Slice(0, 2*longest)}); err != nil {
						t.Fatal(err)
					}
				}
				n, err := l.A.PostSend(l.A.Write(op, 1, 0, longest+1))
				if !op.IsSend() && m.Name != "single" {
					if err != nil {
						t.Fatal(err) // it is fragmented
					}
					vqptest.IDs(t, l.A.Wait(t, 1), verbs.StatusSuccess)
					return
				}
				if n != 0 || !errors.Is(err, ibverbx.ErrLength) || !strings.Contains(err.Error(), "4096") {
					t.Fatalf("%d, %v", n, err)
				}
				l.A.Send(t, l.A.Write(op, 2, 0, longest))
				vqptest.IDs(t, l.A.Wait(t, 1), verbs.StatusSuccess)
			})
		}
	}
}
