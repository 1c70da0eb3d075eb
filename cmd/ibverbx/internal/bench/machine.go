package bench

import (
	"os"
	"regexp"
	"runtime"
	"time"
)

// Machine is where a run took place.
type Machine struct {
	CPU   string `json:"cpu"`
	Cores int    `json:"cores"` // that Go uses at a time
	OS    string `json:"os"`
	Arch  string `json:"arch"`
	Go    string `json:"go"`
	// how long a reading of the clock takes, which every sample of a latency includes
	Clock int64 `json:"clock_ns"`
}

// ThisMachine describes the machine.
func ThisMachine() Machine {
	return Machine{CPU: cpuModel(), Cores: runtime.GOMAXPROCS(0), OS: runtime.GOOS, Arch: runtime.GOARCH,
		Go: runtime.Version(), Clock: int64(clockCost())}
}

var modelName = regexp.MustCompile(`(?m)^model name\s*:\s*(.*\S)`)

// cpuModel is the processor's name, or the architecture where the system does not say.
func cpuModel() string {
	text, _ := os.ReadFile("/proc/cpuinfo") // without it there is no name either
	if name := modelName.FindSubmatch(text); name != nil {
		return string(name[1])
	}
	return runtime.GOARCH
}

func clockCost() time.Duration {
	const readings = 1000
	start := time.Now()
	now := start
	for range readings {
		now = time.Now()
	}
	return now.Sub(start) / readings
}
