package verbs_test

import (
	"errors"
	"fmt"
	"io/fs"
	"log"

	"ibverbx/verbs"
	"ibverbx/verbs/soft"
)

// A refused call says which call, where and why; errors.Is finds the reason.
func ExampleOpError() {
	err := error(&verbs.OpError{
		Op: "post send", Device: "mlx5_0", QPNum: 17, Err: verbs.ErrQueueFull,
		Detail: "128 outstanding, the queue holds 128",
	})
	fmt.Println(err)
	fmt.Println(errors.Is(err, verbs.ErrQueueFull), verbs.IsTransient(err))
	fmt.Println(errors.Is(verbs.ErrClosed, fs.ErrClosed))
	// Output:
	// post send: mlx5_0 qp 17: queue full: 128 outstanding, the queue holds 128
	// true true
	// true
}

// A refused change of state names the attributes that are missing.
func ExampleCheckModify() {
	attr := verbs.QPAttr{State: verbs.StateInit, Port: 1}
	err := verbs.CheckModify(verbs.StateReset, &attr, verbs.QPAttrState|verbs.QPAttrPort)
	fmt.Println(err)
	fmt.Println(verbs.CheckModify(verbs.StateReset, &attr,
		verbs.QPAttrState|verbs.QPAttrPort|verbs.QPAttrPKeyIndex|verbs.QPAttrAccess))
	// Output:
	// queue pair from RESET to INIT: attributes missing: ACCESS_FLAGS|PKEY_INDEX
	// <nil>
}

// The status of a completion is an error with words.
func ExampleStatus() {
	wc := verbs.WC{ID: 7, Status: verbs.StatusRNRRetryExcErr}
	if err := wc.Status.Err(); err != nil {
		fmt.Println(err)
	}
	// Output:
	// RNR_RETRY_EXC_ERR: receiver-not-ready retries exceeded: the peer posted no receive
}

// A completion prints as a sentence.
func ExampleWC() {
	fmt.Println(verbs.WC{ID: 7, QPNum: 17, Opcode: verbs.WCRDMAWrite})
	fmt.Println(verbs.WC{ID: 8, QPNum: 17, Opcode: verbs.WCRecvRDMAWithImm, ByteLen: 64,
		Flags: verbs.WCWithImm, Imm: 0x2a})
	fmt.Println(verbs.WC{ID: 9, QPNum: 17, Status: verbs.StatusFatalErr})
	// Output:
	// qp 17: request 7 (RDMA_WRITE) succeeded
	// qp 17: receive 8 (RECV_RDMA_WITH_IMM, 64 bytes, immediate 0x2a) succeeded
	// qp 17: work request 9 failed: FATAL_ERR: fatal error: the NIC or its driver failed
}

// A program that lists NICs.
func ExampleDescribe() {
	fabric, err := soft.New(soft.Config{Devices: 1})
	if err != nil {
		log.Fatal(err)
	}
	info, err := verbs.Describe(fabric.Device(0))
	if err != nil {
		log.Fatal(err)
	}
	fmt.Println(info.Name, "has", info.Attr.Ports, "port")
	for _, port := range info.Ports {
		fmt.Println(port.Port, port.State, port.LinkLayer, port.ActiveMTU, len(port.GIDs), "GIDs")
	}
	// Output:
	// soft0 has 1 port
	// 1 ACTIVE Ethernet 4096 2 GIDs
}

// A filter chooses NICs by name, in the order in which they are to be used.
func ExampleDeviceFilter() {
	names := []string{"mlx5_0", "mlx5_1", "mlx5_2", "mlx5_bond_0"}
	for _, text := range []string{"mlx5_2,mlx5_0:2", "mlx5_bond_*", "^mlx5_2", "mlx5_7"} {
		filter, err := verbs.ParseDeviceFilter(text)
		if err != nil {
			fmt.Println(err)
			continue
		}
		chosen, err := filter.Select(names)
		if err != nil {
			fmt.Println(err)
			continue
		}
		fmt.Printf("%s:", filter)
		for _, c := range chosen {
			fmt.Printf(" %s", names[c.Index])
			if c.Port != 0 {
				fmt.Printf(" (port %d)", c.Port)
			}
		}
		fmt.Println()
	}
	// Output:
	// mlx5_2,mlx5_0:2: mlx5_2 mlx5_0 (port 2)
	// mlx5_bond_*: mlx5_bond_0
	// ^mlx5_2: mlx5_0 mlx5_1 mlx5_bond_0
	// select devices: invalid argument: no device mlx5_7 (have mlx5_0, mlx5_1, mlx5_2, mlx5_bond_0)
}
