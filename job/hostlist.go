package job

import "strings"

// firstHost is the first host of a list as Slurm writes it: "node[07-09,12],other" begins with
// node07, "rack[1-2]n[3,5]" with rack1n3. It is empty where the list cannot be read.
func firstHost(list string) string {
	var host strings.Builder
	for list != "" && list[0] != ',' {
		if list[0] != '[' {
			host.WriteByte(list[0])
			list = list[1:]
			continue
		}
		inside, rest, closed := strings.Cut(list[1:], "]")
		first := inside[:len(inside)-len(strings.TrimLeft(inside, "0123456789"))]
		if !closed || first == "" {
			return ""
		}
		host.WriteString(first)
		list = rest
	}
	if strings.ContainsAny(host.String(), "] \t") {
		return ""
	}
	return host.String()
}
