package job

import (
	"encoding/json"
	"net"
	"net/netip"
	"os"

	"ibverbx/internal/peertext"
)

// report is what a launcher hears when the job has failed: the verdict, and of which job.
type report struct {
	verdict

	Job string `json:"job"`
}

// maxReported is the most characters of a reason that a launcher hears.
const maxReported = 500

// tellLauncher tells the launcher, if it listens, why the job has failed, before the program learns
// it and may end. It is one datagram on the host, and nothing waits for it.
func tellLauncher(p *Place, why error) {
	to, err := netip.ParseAddrPort(os.Getenv(EnvReport)) // a name would have to be looked up
	if err != nil {
		return
	}
	r := report{verdictOf(why), p.Job}
	r.Text = peertext.Line(r.Text, maxReported)
	text, err := json.Marshal(r)
	if err != nil {
		return
	}
	if c, err := net.DialUDP("udp", nil, net.UDPAddrFromAddrPort(to)); err == nil {
		_, _ = c.Write(text)
		_ = c.Close()
	}
}
