//go:build !race

package roce

func packetsOrder() {}
