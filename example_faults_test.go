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
	vqp, err := ibverbx.Open(nics, ibverbx.Config{FragmentSize: 400, QPsPerDevice: 2, Clock: clock})
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
