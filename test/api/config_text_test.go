package api_test

import (
	"errors"
	"fmt"
	"testing"

	"ibverbx"
	"ibverbx/verbs"
)

// Each field of the configuration is taken at its bounds and refused beyond, in these words: they
// say the value and what may stand there.
func TestWordsOfARefusedConfiguration(t *testing.T) {
	conn := func(c ibverbx.ConnConfig) ibverbx.Config { return ibverbx.Config{Conn: c} }
	type config = ibverbx.Config
	for _, c := range []struct {
		cfg  config
		says string // "" where it is taken
	}{
		{config{}, ""},
		{config{Scheme: ibverbx.Spray}, ""},
		{config{Scheme: 2}, "Scheme 2: have DQPLB (0) and Spray (1)"},
		{config{FragmentSize: 1 << 31}, ""},
		{config{FragmentSize: 1<<31 + 1},
			"FragmentSize 2147483649: a message carries at most 2147483648 bytes"},
		{config{MaxMsgCntPerQP: 1 << 20}, ""},
		{config{MaxMsgCntPerQP: 1<<20 + 1}, "MaxMsgCntPerQP 1048577: must be 1 to 1048576, 0 for 128, " +
			"or -1 for as many as the queue pair holds"},
		{config{MaxMsgCntPerQP: -2},
			"MaxMsgCntPerQP -2: must be 1 to 1048576, 0 for 128, or -1 for as many " +
				"as the queue pair holds"},
		{config{Credits: 1 << 20}, ""},
		{config{Credits: 1<<20 + 1}, "Credits 1048577: must be 1 to 1048576, or 0 for twice MaxMsgCntPerQP"},
		{config{Credits: -1}, "Credits -1: must be 1 to 1048576, or 0 for twice MaxMsgCntPerQP"},
		{config{MaxBanked: 1 << 27}, ""},
		{config{MaxBanked: 1<<27 + 1}, "MaxBanked 134217729: must be 1 to 134217728, or 0 for 4096"},
		{config{MaxBanked: -1}, "MaxBanked -1: must be 1 to 134217728, or 0 for 4096"},
		{config{Testing: ibverbx.Testing{FirstNumber: 1<<24 - 2}}, ""},
		{config{Testing: ibverbx.Testing{FirstNumber: 1<<24 - 1}},
			"Testing.FirstNumber 16777215: must be below 2^24-1"},
		{config{MaxSGE: 4096}, ""},
		{config{MaxSGE: 4097}, "MaxSGE 4097: must be 1 to 4096, or 0 for 4"},
		{config{MaxSGE: -1}, "MaxSGE -1: must be 1 to 4096, or 0 for 4"},
		{config{MaxRecvSGE: 4096}, ""},
		{config{MaxRecvSGE: 4097}, "MaxRecvSGE 4097: must be 1 to 4096, or 0 for MaxSGE"},
		{config{MaxRecvSGE: -1}, "MaxRecvSGE -1: must be 1 to 4096, or 0 for MaxSGE"},
		{config{MaxInline: 1 << 20}, ""},
		{config{MaxInline: 1<<20 + 1}, "MaxInline 1048577: must be 1 to 1048576 bytes, or 0 for 64"},
		{config{MaxInline: -1}, "MaxInline -1: must be 1 to 1048576 bytes, or 0 for 64"},
		{config{QPsPerDevice: 128}, ""},
		{config{QPsPerDevice: 129}, "QPsPerDevice 129: must be 1 to 128, or 0 for 4"},
		{config{QPsPerDevice: -1}, "QPsPerDevice -1: must be 1 to 128, or 0 for 4"},
		{conn(ibverbx.ConnConfig{GIDIndex: -1}), ""},
		{conn(ibverbx.ConnConfig{GIDIndex: 255}), ""},
		{conn(ibverbx.ConnConfig{GIDIndex: 256}),
			"Conn.GIDIndex 256: must be 1 to 255, 0 (automatic), or -1 for entry 0"},
		{conn(ibverbx.ConnConfig{GIDIndex: -2}),
			"Conn.GIDIndex -2: must be 1 to 255, 0 (automatic), or -1 for entry 0"},
		{conn(ibverbx.ConnConfig{MTU: 5}), ""},
		{conn(ibverbx.ConnConfig{MTU: 6}), "Conn.MTU 6: is a code, 1 (256 bytes) to 5 (4096 bytes)"},
		{conn(ibverbx.ConnConfig{Patience: ibverbx.PatienceFabric}), ""},
		{conn(ibverbx.ConnConfig{Patience: ibverbx.PatienceFabric + 1}),
			"Conn.Patience 2: have PatienceShort (0) and PatienceFabric (1)"},
		{conn(ibverbx.ConnConfig{Timeout: 31}), ""},
		{conn(ibverbx.ConnConfig{Timeout: 32}),
			"Conn.Timeout 32: must be 1 to 31, 0 for that of Patience, or -1 for no timeout"},
		{conn(ibverbx.ConnConfig{RetryCount: 7}), ""},
		{conn(ibverbx.ConnConfig{RetryCount: 8}),
			"Conn.RetryCount 8: must be 1 to 7, 0 for that of Patience, or -1 for none"},
		{conn(ibverbx.ConnConfig{RNRRetry: 7}), ""},
		{conn(ibverbx.ConnConfig{RNRRetry: 8}),
			"Conn.RNRRetry 8: must be 1 to 7, 0 for 7, or -1 for none"},
		{conn(ibverbx.ConnConfig{MinRNRTimer: 31}), ""},
		{conn(ibverbx.ConnConfig{MinRNRTimer: 32}),
			"Conn.MinRNRTimer 32: must be 1 to 31, 0 for 12, or -1 for code 0"},
		{conn(ibverbx.ConnConfig{Timeout: ibverbx.None, RetryCount: ibverbx.None, RNRRetry: ibverbx.None,
			MinRNRTimer: ibverbx.None, GIDIndex: ibverbx.None}), ""},
		{conn(ibverbx.ConnConfig{Timeout: -2}),
			"Conn.Timeout -2: must be 1 to 31, 0 for that of Patience, or -1 for no timeout"},
		{conn(ibverbx.ConnConfig{RetryCount: -2}),
			"Conn.RetryCount -2: must be 1 to 7, 0 for that of Patience, or -1 for none"},
		{conn(ibverbx.ConnConfig{RNRRetry: -2}),
			"Conn.RNRRetry -2: must be 1 to 7, 0 for 7, or -1 for none"},
		{conn(ibverbx.ConnConfig{MinRNRTimer: -2}),
			"Conn.MinRNRTimer -2: must be 1 to 31, 0 for 12, or -1 for code 0"},
		{conn(ibverbx.ConnConfig{SL: 15}), ""},
		{conn(ibverbx.ConnConfig{SL: 16}), "Conn.SL 16: is a code of 4 bits"},
	} {
		want := "<nil>"
		if c.says != "" {
			want = "ibverbx: config: invalid argument: " + c.says
		}
		err := c.cfg.Validate(1)
		if fmt.Sprint(err) != want || c.says != "" && !errors.Is(err, verbs.ErrInvalid) {
			t.Errorf("%v, want %s", err, want)
		}
	}
}
