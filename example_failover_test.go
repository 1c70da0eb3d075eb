package ibverbx_test

import (
	"bytes"
	"errors"
	"fmt"

	"ibverbx"
	"ibverbx/verbs"
	"ibverbx/verbs/soft"
)

// Two ends with two NICs each. One NIC dies while a message is under way: the message arrives all
// the same, and nobody sees an error.
func ExampleConfig_failover() {
	const size = 1 << 20
	fabric, err := soft.New(soft.Config{Devices: 4})
	fatal(err)
	nics, err := fabric.Devices()
	fatal(err)
	// Failback -1: what is lost stays lost. By default it is tried again after a second.
	cfg := ibverbx.Config{Failover: true, Failback: -1, QPsPerDevice: 1, FragmentSize: 16 << 10}
	sender, err := ibverbx.Open(nics[:2], cfg)
	fatal(err)
	receiver, err := ibverbx.Open(nics[2:], cfg)
	fatal(err)
	src, err := sender.Domain().Register(bytes.Repeat([]byte("data"), size/4), verbs.AccessAll)
	fatal(err)
	dst, err := receiver.Domain().Register(make([]byte, size), verbs.AccessAll)
	fatal(err)
	senderCard, err := sender.Card()
	fatal(err)
	receiverCard, err := receiver.Card()
	fatal(err)
	fatal(errors.Join(sender.Connect(receiverCard), receiver.Connect(senderCard)))

	// The sender's second NIC is gone with the tenth fragment that it is to carry.
	fabric.Inject(soft.Fault{Kind: soft.KillNIC, Device: fabric.Device(1), Skip: 9})
	_, err = receiver.PostRecv(ibverbx.RecvWR{ID: 1})
	fatal(err)
	_, err = sender.PostSend(ibverbx.SendWR{ID: 2, Opcode: verbs.OpRDMAWriteWithImm,
		Flags: verbs.SendSignaled, Local: src.Slice(0, size), Remote: dst.Remote().At(0), Imm: 7})
	fatal(err)

	// Both ends must poll: they tell each other what has arrived.
	for done := 0; done < 2; {
		for _, end := range []*ibverbx.VirtualQP{sender, receiver} {
			for wc, err := range end.CQ().Completions() {
				fatal(errors.Join(err, wc.Err()))
				fmt.Printf("%v of %d bytes: %v\n", wc.Opcode, wc.ByteLen, wc.Status.Name())
				done++
			}
		}
	}
	fmt.Println("the data is there:", bytes.Equal(dst.Bytes(), src.Bytes()))
	stats := sender.Stats()
	for _, r := range stats.Rails[:2] {
		fmt.Println(r.Device, "is out of service:", r.Down)
	}
	fmt.Println("something was posted again:", stats.Reposted > 0, "- the error:", sender.Err())

	fatal(errors.Join(sender.Close(), receiver.Close(), src.Close(), dst.Close(), fabric.Close()))
	// Unordered output:
	// RDMA_WRITE of 1048576 bytes: SUCCESS
	// RECV_RDMA_WITH_IMM of 1048576 bytes: SUCCESS
	// the data is there: true
	// soft0 is out of service: false
	// soft1 is out of service: true
	// something was posted again: true - the error: <nil>
}
