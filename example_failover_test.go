package ibverbx_test

import (
	"bytes"
	"errors"
	"fmt"
	"log"
	"math/rand/v2"
	"time"

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

// The protocol of this example is a log. The sender writes a record into the receiver's memory, and
// behind it commits it, with a notification that says how long the log is by now. Its promise: what
// the receiver sees committed is there, whatever fails.
const (
	logRecords = 8
	recordSize = 1000
	logSize    = logRecords * recordSize
)

// appendRecord is the sender's half. Post the commit before the record, and the example says which
// seeds tear the log.
func appendRecord(vqp *ibverbx.VirtualQP, src *ibverbx.MR, dst ibverbx.RemoteMR, i uint64) error {
	record := ibverbx.SendWR{ID: 2 * i, Opcode: verbs.OpRDMAWrite, Flags: verbs.SendSignaled,
		Local: src.Slice(i*recordSize, recordSize), Remote: dst.At(i * recordSize)}
	commit := ibverbx.SendWR{ID: 2*i + 1, Opcode: verbs.OpRDMAWriteWithImm, Flags: verbs.SendSignaled,
		Local: src.Slice(logSize, 1), Remote: dst.At(logSize), Imm: uint32(i+1) * recordSize}
	_, err := vqp.PostSend(record, commit)
	return err
}

// How to test a protocol of your own against every order of events and every fault: on a fabric
// where nothing moves by itself, once for each of many seeds. A seed determines the order of events
// and the fault, and the clock is the test's own: a seed always gives the same run, and one that
// fails can be run again, with the actions that Step returns and the fault printed. To adapt it,
// replace appendRecord, what becomes of completions, and what has to hold after every step.
func Example_protocolUnderFaults() {
	const seeds = 300
	whole, told := 0, 0
	for seed := range uint64(seeds) {
		switch committed, failure, err := runLog(seed); {
		case err != nil:
			fmt.Printf("seed %d: %v\n", seed, err)
		case failure != nil:
			told++ // the sender knows that something went wrong, and what
		case committed == logSize:
			whole++
		default:
			fmt.Printf("seed %d: %d bytes committed, and nobody knows why no more\n", seed, committed)
		}
	}
	if whole > 0 && told > 0 && whole+told == seeds {
		fmt.Println(seeds, "seeds: the log was never torn, and each failure was told")
	}
	// Output: 300 seeds: the log was never torn, and each failure was told
}

// runLog says how much of the log was committed in the end, the first error that the sender was
// told, and what is wrong with that.
func runLog(seed uint64) (committed uint32, failure, err error) {
	rng := rand.New(rand.NewPCG(seed, 0))
	fabric, err := soft.New(soft.Config{Devices: 4, Stepped: true, Seed: seed})
	fatal(err)
	nics, err := fabric.Devices()
	fatal(err)
	now := time.Unix(0, 0) // stands still while anything moves
	clock := func() time.Time { return now }
	sender, src := openLog(nics[:2], clock)
	receiver, dst := openLog(nics[2:], clock)
	senderCard, err := sender.Card()
	fatal(err)
	receiverCard, err := receiver.Card()
	fatal(err)
	fatal(errors.Join(sender.Connect(receiverCard), receiver.Connect(senderCard)))
	defer func() {
		fatal(errors.Join(sender.Close(), receiver.Close(), src.Close(), dst.Close()))
		if open := fabric.Objects(); open != (soft.Objects{}) {
			err = fmt.Errorf("left open: %v", open)
		}
		fatal(fabric.Close())
	}()
	for i := range src.Bytes() {
		src.Bytes()[i] = byte(rng.Uint32() | 1) // not what the receiver's memory holds before
	}
	_, err = receiver.PostRecv(make([]ibverbx.RecvWR, logRecords)...)
	fatal(err)

	kinds := soft.FaultKinds()
	fault := fabric.Inject(soft.Fault{Kind: kinds[rng.IntN(len(kinds))], Skip: rng.IntN(40),
		Rewrite: func(wr *verbs.SendWR) { wr.RKey++ }})
	told := func(err error) {
		if failure == nil {
			failure = err
		}
	}
	wcs := make([]ibverbx.WC, 4)
	posted := uint64(0)
	for idle := 0; idle < 10; {
		if posted < logRecords && failure == nil && rng.IntN(4) == 0 {
			told(appendRecord(sender, src, dst.Remote(), posted))
			posted++
		}
		if _, moved := fabric.Step(); moved {
			idle = 0
		} else if posted == logRecords || failure != nil {
			idle++
			now = now.Add(time.Second)
			fault.Remove() // a queue pair that stands still goes on
		}
		n, err := sender.CQ().Poll(wcs)
		told(err)
		for i := range wcs[:n] {
			told(wcs[i].Err())
		}
		n, _ = receiver.CQ().Poll(wcs)
		for _, wc := range wcs[:n] {
			switch {
			case wc.Status != verbs.StatusSuccess: // whatever was committed stays
			case wc.Imm != committed+recordSize:
				return committed, failure, fmt.Errorf("commit of %d bytes after %d", wc.Imm, committed)
			default:
				committed = wc.Imm
			}
		}
		// This is what the test checks.
		if !bytes.Equal(dst.Bytes()[:committed], src.Bytes()[:committed]) {
			return committed, failure, fmt.Errorf("the log is torn below %d bytes", committed)
		}
	}
	return committed, failure, nil
}

// openLog makes an end over two NICs, and memory for a log and the byte that commits write. A
// record is several fragments.
func openLog(nics []verbs.Device, clock func() time.Time) (*ibverbx.VirtualQP, *ibverbx.MR) {
	vqp, err := ibverbx.Open(nics, ibverbx.Config{FragmentSize: 400, QPsPerDevice: 2,
		Testing: ibverbx.Testing{Clock: clock}})
	fatal(err)
	mr, err := vqp.Domain().Register(make([]byte, logSize+1), verbs.AccessAll)
	fatal(err)
	return vqp, mr
}

func fatal(err error) {
	if err != nil {
		log.Fatal(err)
	}
}
